"""What `mgpu_helpers.fit` has to keep: models with data, fitted on any number of replicas.

As a script it fits some of them, on the devices that it is told or as one worker of several, and
writes down what came of it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(0)
SIZE, BATCH = 45, 16  # the last batch has 13 examples, that of the validation 7 and 3
IMAGES = RANDOM.normal(size=(SIZE, 12, 12, 1)).astype("float32")
KINDS = RANDOM.integers(0, 5, SIZE)
WORDS = RANDOM.integers(1, 30, (SIZE, 6))
WORDS[np.arange(6) >= RANDOM.integers(1, 7, SIZE)[:, None]] = 0  # masked
NEXT = RANDOM.integers(0, 30, (SIZE, 6))
WEIGHTS = RANDOM.uniform(0.5, 2, SIZE).astype("float32")


def cnn() -> Any:
    """Make a network with BatchNormalization and a regularizer, which is clipped by its norm."""
    import keras
    from keras import layers

    given = keras.Input((12, 12, 1))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, strides=2)(given)))
    x = layers.BatchNormalization(scale=False)(layers.Conv2D(6, 3)(x))
    x = layers.Dense(5, activation="softmax", kernel_regularizer="l2")(layers.Flatten()(x))
    model = keras.Model(given, x)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"],
                  weighted_metrics=["sparse_categorical_crossentropy"])  # fmt: skip
    return model


def transformer() -> Any:
    """Make a Transformer of a block, whose loss is masked, with AdamW and clipping."""
    import keras
    from keras import layers

    class Places(layers.Layer):
        """Embed positions, which are the same rows for every batch."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.supports_masking = layers.Embedding(6, 16), True

        def call(self, x: Any) -> Any:
            return x + self.table(keras.ops.arange(6))

    given = keras.Input((6,), dtype="int32")
    x = Places()(layers.Embedding(30, 16, mask_zero=True)(given))
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(layers.LayerNormalization()(x), x)])
    x = layers.BatchNormalization()(x)  # of what is not masked
    x = layers.Add()([x, layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x))])
    model = keras.Model(given, layers.Dense(30)(x))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.05)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def two() -> Any:
    """Make a model of two inputs and outputs, with a dict of losses; of each weight an average."""
    import keras
    from keras import layers

    image, words = keras.Input((12, 12, 1), name="image"), keras.Input((6,), name="words")
    x = layers.Concatenate()([layers.Flatten()(image), words])
    x = layers.Dense(8, activation="tanh", activity_regularizer="l2")(x)
    kind, box = layers.Dense(5, activation="softmax", name="kind"), layers.Dense(1, name="box")
    model = keras.Model({"image": image, "words": words}, {"kind": kind(x), "box": box(x)})
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5),
        {"kind": "sparse_categorical_crossentropy", "box": "mse"},
        loss_weights={"kind": 1.0, "box": 0.1}, metrics={"kind": ["accuracy"], "box": ["mae"]},
    )  # fmt: skip
    return model


def own() -> Any:
    """Make a model with a `train_step` of its own, and a loss that is a mean already."""
    import keras
    import tensorflow as tf
    from keras import ops

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            slopes = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
            return self.compute_metrics(x, y, self(x, training=False))

    given = keras.Input((6,))
    model = Own(given, keras.layers.Dense(1)(keras.layers.LSTM(4)(given[..., None] / 30)))
    model.compile("sgd", lambda y, p: ops.mean((y - p) ** 2), metrics=["mae", "mse"])
    return model


def mixed() -> Any:
    """Make the network of `cnn` in mixed precision."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return cnn()
    finally:
        keras.config.set_dtype_policy(before)


# What fit is given, beside the number of passes; what evaluate and predict are given.
CASES: dict[str, Any] = {
    "cnn": (cnn, (IMAGES, KINDS), {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0, 4: 3.0}}),
    "transformer": (transformer, (WORDS, NEXT, WEIGHTS[:, None]), {}),
    "two": (two, ({"image": IMAGES, "words": WORDS.astype("float32")},
                  {"kind": KINDS, "box": WEIGHTS[:, None]}), {}),
    "own": (own, (WORDS.astype("float32"), WEIGHTS[:, None]), {}),
    "mixed": (mixed, (IMAGES, KINDS), {}),
}  # fmt: skip


def fitted(name: str, scope: Any, options: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Fit a case for two passes in a scope, and give every number that comes of it."""
    import keras
    import tensorflow as tf

    from mgpu_helpers import fit

    make, data, settings = CASES[name]
    keras.utils.set_random_seed(0)
    with scope:
        model = make()
    first = tf.nest.map_structure(lambda array: array[:23], data)  # batches of 16 and 7
    few = tf.nest.map_structure(lambda array: array[:3], data)
    if name == "two":  # validate with the averages, and keep them at the end
        settings = {"callbacks": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]}
    history = model.fit(
        fit.batches(data, batch_size=BATCH), validation_data=fit.batches(first, batch_size=BATCH),
        epochs=2, verbose=0, **settings, **(options or {}),
    ).history  # fmt: skip
    found = {f"history {key}": np.array(value) for key, value in history.items()}
    # A convolution of 0 examples fails in halves on a processor; a mean of none is no number.
    if name in ("mixed", "own"):
        few = first
    tested = model.evaluate(fit.batches(few), verbose=0, return_dict=True)
    found |= {f"evaluate {key}": np.array(value) for key, value in tested.items()}
    predicted = keras.tree.flatten(model.predict(fit.batches((first[0],)), verbose=0))
    found |= {f"predict {i}": each.astype("float64") for i, each in enumerate(predicted)}
    weights = [*model.weights, *model.optimizer.variables]
    return found | {f"weight {i}": each.numpy() for i, each in enumerate(weights)}


def main(file: str, names: list[str], replicas: list[int]) -> None:
    """Fit cases on one device and on so many replicas each; 0 is a strategy of several workers."""
    import contextlib
    import dataclasses

    from mgpu_helpers import devices, fit

    plan = devices.setup(max(1, *replicas))
    import keras
    import tensorflow as tf

    found = {}
    for name in names:
        exact = name in ("cnn", "transformer", "two")
        keras.config.set_floatx("float64" if exact else "float32")
        for n in replicas:
            if n == 0:
                scope = fit.strategy(plan).scope()
            elif n == 1 and len(replicas) > 1:
                scope = tf.device(plan.devices[0])
            else:
                part = dataclasses.replace(plan, devices=plan.devices[:n], real=plan.real[:n])
                scope = fit.strategy(part).scope()
            values = fitted(name, scope)
            found |= {f"{name}/{n}/{key}": value for key, value in values.items()}
    with contextlib.suppress(FileExistsError), open(file, "xb") as to:  # the first worker writes
        np.savez(to, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), [int(n) for n in sys.argv[3].split(",")])
