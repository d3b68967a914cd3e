"""Four Keras models that no helper was written for, small and without downloads, with a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

BUILT = ("mobilenet", "residual", "transformer", "lstm")


def built(name: str, batch: int = 8, optimizer: str = "adam") -> tuple[Any, np.ndarray, np.ndarray]:
    """Build and compile one of `BUILT`; give it with a batch of inputs and labels."""
    import keras

    keras.utils.set_random_seed(0)
    model = globals()[name]()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    shape = model.input_shape[1:]
    if name == "transformer":
        x = random.integers(0, 200, (batch, *shape))
    else:
        x = random.normal(size=(batch, *shape)).astype(np.float32)
    return model, x, random.integers(0, model.output_shape[-1], batch)


def mobilenet() -> Any:
    import keras

    return keras.applications.MobileNetV2((96, 96, 3), weights=None, classifier_activation=None)


def residual() -> Any:
    """Make a residual network of 20 layers with weights, as the paper has it for 32 by 32 images.

    He et al., Deep Residual Learning for Image Recognition, 2015, section 4.2.
    """
    import keras
    from keras import layers

    def block(x: Any, filters: int, strides: int) -> Any:
        out = layers.Conv2D(filters, 3, strides, padding="same")(x)
        out = layers.ReLU()(layers.BatchNormalization()(out))
        out = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(out))
        if strides > 1:
            x = layers.Conv2D(filters, 1, strides)(x)
        return layers.ReLU()(layers.Add()([x, out]))

    given = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(given)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for filters, strides in ((16, 1),) * 3 + ((32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)):
        x = block(x, filters, strides)
    return keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)), name="residual")


def transformer() -> Any:
    """Make a Transformer of one block, with an embedding, over 40 tokens of 200."""
    import keras
    from keras import layers

    given = keras.Input((40,), dtype="int32")
    x = layers.Embedding(200, 32)(given)
    seen = layers.MultiHeadAttention(2, 16)(layers.LayerNormalization()(x), x)
    x = layers.Add()([x, layers.Dropout(0.1)(seen)])
    inner = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(32)(inner)])
    return keras.Model(given, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)), name="block")


def lstm() -> Any:
    import keras
    from keras import layers

    given = keras.Input((24, 8))
    x = layers.LSTM(16, return_sequences=True)(given)
    return keras.Model(given, layers.Dense(3)(layers.LSTM(16)(x)), name="lstm")
