"""Models whose printed ranges of memory are held against traced steps, and that comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mgpu_helpers import fit, memory
from test_memory_plan import held

SPARSE = "sparse_categorical_crossentropy"
# Of keras.applications, with the smallest images that they take.
APPLICATIONS = {
    "MobileNet": 32, "MobileNetV2": 32, "MobileNetV3Small": 32, "EfficientNetB0": 32,
    "EfficientNetV2B0": 32, "DenseNet121": 32, "ResNet50": 32, "ResNet50V2": 32, "VGG16": 32,
    "Xception": 71, "InceptionV3": 75, "ConvNeXtTiny": 32,
}  # fmt: skip
# By what a line of the plan is called.
WAYS = {"shares": "batch over .*", "pieces": r"\d+ pieces", "recompute": "recompute in .*"}


def wide() -> Any:
    hidden = [layers.Dense(1500, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10, "softmax")])


def autoencoder() -> Any:
    x = given = keras.Input((32, 32, 3))
    for n in (16, 32):
        x = layers.MaxPooling2D()(layers.Conv2D(n, 3, padding="same", activation="relu")(x))
    for n in (32, 16):
        x = layers.Conv2DTranspose(n, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(given, layers.Conv2D(3, 3, padding="same", activation="sigmoid")(x))


def text() -> Any:
    given = keras.Input((100,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(20_000, 64)(given))
    return keras.Model(given, layers.Dense(10, "softmax")(layers.Dense(64, "relu")(x)))


def images() -> Any:
    x = given = keras.Input((32, 32, 3))
    for n in (32, 64):
        x = layers.MaxPooling2D()(layers.Conv2D(n, 3, activation="relu")(x))
    x = layers.Flatten()(layers.Conv2D(64, 3, activation="relu")(x))
    return keras.Model(given, layers.Dense(10, "softmax")(layers.Dense(64, "relu")(x)))


def unet() -> Any:
    x = given = keras.Input((64, 64, 3))
    skips = []
    for n in (8, 16):
        x = layers.BatchNormalization()(layers.Conv2D(n, 3, padding="same", activation="relu")(x))
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for n in (16, 8):
        x = layers.Concatenate()([layers.Conv2DTranspose(n, 2, strides=2)(x), skips.pop()])
        x = layers.Conv2D(n, 3, padding="same", activation="relu")(x)
    return keras.Model(given, layers.Conv2D(5, 1, activation="softmax")(x))


SMALL = {each.__name__: each for each in (wide, autoencoder, text, images, unet)}


def made(name: str) -> Any:
    """Build and compile a model."""
    keras.utils.set_random_seed(0)
    if name in SMALL:
        model = SMALL[name]()
    else:
        size = APPLICATIONS[name]
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=10
        )
    loss = "mse" if name == "autoencoder" else SPARSE
    model.compile("sgd" if name == "wide" else "adam", loss)
    return model


def batch_of(model: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a batch of inputs and labels."""
    random, given = np.random.default_rng(0), model.inputs[0]
    shape, (*outer, classes) = (size, *given.shape[1:]), model.output_shape[1:]
    whole = given.dtype == "int32"
    x = random.integers(0, 1000, shape) if whole else random.normal(size=shape).astype("f")
    if model.loss == "mse":
        return x, random.normal(size=(size, *outer, classes)).astype("f")
    return x, random.integers(0, classes, (size, *outer))


def compared(plan: Any, name: str, batch: int) -> Iterator[dict[str, Any]]:
    """Compare what is printed with a traced step, in each way to train."""
    with tf.device(plan.devices[0]):
        model = made(name)
    data = batch_of(model, batch)
    ways = memory.plan(model, batch, len(plan.devices)).ways

    def row(way: str, said: Any, model: Any) -> dict[str, Any]:
        real = int(held(plan, model, data))
        return {"model": name, "batch": batch, "way": way, "low": said.low, "high": said.high,
                "held": real, "inside": said.low <= real <= said.high}  # fmt: skip

    yield row("fit", memory.predict(model, batch), model)
    for way, called in WAYS.items():
        said = next((each for each in ways if re.fullmatch(called, each.name)), None)
        if said:
            fit.use(model, said)
            yield row(way, said, model)
            fit.alone(model)
    with fit.strategy(plan).scope():
        model = made(name)
    share = -(-batch // len(plan.devices))
    yield row("strategy", memory.predict(model, share), model)
