"""Keras models that no helper was written for, small and without downloads, with a batch.

The four of `BUILT` are what every helper has to work with. Those of `COMPILED` differ in what
`compile` is given, which decides what a step of `fit` holds.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


class Late:
    """A module that is loaded when it is used: devices are set up before Keras is there."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.module), name)


keras, layers, tf = Late("keras"), Late("keras.layers"), Late("tensorflow")
BUILT = ("mobilenet", "residual", "transformer", "lstm")


def built(name: str, batch: int = 8, optimizer: str = "adam") -> tuple[Any, np.ndarray, np.ndarray]:
    """Build and compile one of `BUILT`; give it with a batch of inputs and labels."""
    keras.utils.set_random_seed(0)
    model = globals()[name]()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = _numbers(random, model.inputs[0], batch, 200)
    return model, x, random.integers(0, model.output_shape[-1], batch)


def _numbers(random: Any, given: Any, batch: int, most: int) -> np.ndarray:
    """Draw a batch of what a model is given: numbers, or whole ones."""
    shape = (batch, *given.shape[1:])
    if given.dtype == "int32":
        return random.integers(0, most, shape)
    return random.normal(size=shape).astype(np.float32)


COMPILED = (
    "segmentation", "words", "words-accuracy", "two", "one-hot", "mixed", "mixed-embedding",
    "adamw", "lion", "accumulated", "accumulated-embedding",
)  # fmt: skip


def compiled(name: str, batch: int = 32, large: bool = False) -> tuple[Any, Any, Any]:
    """Build and compile one of `COMPILED`; give it with a batch of inputs and labels."""
    keras.utils.set_random_seed(0)
    random, kind = np.random.default_rng(0), name.partition("-")[0]
    sparse, accuracy = "sparse_categorical_crossentropy", ["accuracy"]
    if kind in ("mixed", "accumulated"):
        several = 4 if kind == "accumulated" else None
        optimizer = keras.optimizers.Adam(gradient_accumulation_steps=several)
        if kind == "mixed":
            keras.config.set_dtype_policy("mixed_float16")
        try:
            if name.endswith("embedding"):
                model = _sentences(20_000 if large else 1000)
            else:
                model = _dense(1000 if large else 300)
            model.compile(optimizer, sparse, metrics=accuracy)
        finally:
            keras.config.set_dtype_policy("float32")
    elif kind in ("adamw", "lion"):
        model = _dense(1000 if large else 300)
        model.compile(kind, sparse, metrics=accuracy)
    elif kind == "one":
        model = _dense(300)
        metrics = [*accuracy, keras.metrics.AUC()]
        model.compile("adam", "categorical_crossentropy", metrics=metrics)
    elif kind == "segmentation":
        model = _segmentation(64 if large else 32)
        model.compile("adam", sparse, metrics=accuracy)
    elif kind == "words":
        model = _words(20_000 if large else 2000)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=accuracy if name.endswith("accuracy") else None)
    else:
        model = _two()
        model.compile(
            "adam", {"kind": sparse, "box": "mse"}, loss_weights={"kind": 1.0, "box": 0.1},
            metrics={"kind": accuracy, "box": ["mae"]}, weighted_metrics={"box": ["mse"]},
        )  # fmt: skip

    x = _numbers(random, model.inputs[0], batch, 1000)
    if kind == "two":
        labels = {"kind": random.integers(0, 10, batch), "box": random.normal(size=(batch, 4))}
        return model, {"image": x}, labels | {"box": labels["box"].astype(np.float32)}
    *shape, classes = model.output_shape[1:]
    y = random.integers(0, classes, (batch, *shape))
    return model, x, np.eye(classes, dtype=np.float32)[y] if kind == "one" else y


def _segmentation(size: int) -> Any:
    given = keras.Input((size, size, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(given)
    y = layers.Conv2D(32, 3, padding="same", activation="relu")(layers.MaxPooling2D()(x))
    x = layers.Concatenate()([x, layers.UpSampling2D()(y)])
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    return keras.Model(given, layers.Conv2D(21, 1, activation="softmax")(x), name="segmentation")


def _words(vocabulary: int) -> Any:
    given = keras.Input((32,), dtype="int32")
    x = layers.GRU(64, return_sequences=True)(layers.Embedding(vocabulary, 64)(given))
    return keras.Model(given, layers.Dense(vocabulary)(x), name="words")


def _sentences(vocabulary: int) -> Any:
    given = keras.Input((100,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(vocabulary, 64)(given))
    x = layers.Dense(128, activation="relu")(x)
    x = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(given, x, name="sentences")


def _dense(units: int) -> Any:
    x = given = keras.Input((units,))
    for _ in range(3):
        x = layers.Dense(units, activation="gelu")(x)
    x = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(given, x, name="dense")


def _two() -> Any:
    given = keras.Input((32, 32, 3), name="image")
    x = layers.BatchNormalization()(layers.Conv2D(32, 3, activation="relu")(given))
    x = layers.Flatten()(layers.Conv2D(32, 3, strides=2, activation="relu")(x))
    kind, box = layers.Dense(10, activation="softmax", name="kind")(x), layers.Dense(4, name="box")
    return keras.Model({"image": given}, {"kind": kind, "box": box(x)}, name="two")


def mobilenet() -> Any:
    return keras.applications.MobileNetV2((96, 96, 3), weights=None, classifier_activation=None)


def residual() -> Any:
    """Make a residual network of 20 layers with weights, as the paper has it for 32 by 32 images.

    He et al., Deep Residual Learning for Image Recognition, 2015, section 4.2.
    """

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
    given = keras.Input((40,), dtype="int32")
    x = layers.Embedding(200, 32)(given)
    seen = layers.MultiHeadAttention(2, 16)(layers.LayerNormalization()(x), x)
    x = layers.Add()([x, layers.Dropout(0.1)(seen)])
    inner = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(32)(inner)])
    return keras.Model(given, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)), name="block")


def lstm() -> Any:
    given = keras.Input((24, 8))
    x = layers.LSTM(16, return_sequences=True)(given)
    return keras.Model(given, layers.Dense(3)(layers.LSTM(16)(x)), name="lstm")


def lesson(name: str, width: float = 1.0, hidden: int = 2400) -> Any:
    """Write a network of the lessons down once more, in Keras and without what it drops."""

    def n(count: int) -> int:
        return max(1, round(count * width))

    if name == "tensorlight":
        made = [
            layers.Conv2D(n(64), 5, padding="same", activation="relu"), layers.MaxPool2D(),
            layers.Conv2D(n(128), 5, padding="same"), layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPool2D(), layers.Flatten(), layers.Dense(n(1024), activation="relu"),
        ]  # fmt: skip
    elif name == "p40":
        made = [each for filters in (64, 128, 128)
                for each in (layers.Conv2D(n(filters), 3), layers.MaxPool2D())]  # fmt: skip
        made += [layers.Flatten(), layers.Dense(n(1024), activation="relu")]
        made += [layers.Dense(n(256), activation="relu")]
    else:
        plain = {"use_bias": False, "activation": "relu"}
        made = [each for filters in (64, 64, 128) for each in (
            layers.Conv2D(n(filters), 3, padding="same", **plain), layers.MaxPool2D(padding="same"))
        ]  # fmt: skip
        made += [layers.Flatten(), layers.Dense(n(hidden), **plain)]
    last = layers.Dense(10, use_bias=name != "jang")
    return keras.Sequential([layers.Input((28, 28, 1)), *made, last])
