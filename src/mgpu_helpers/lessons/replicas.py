"""The models of lesson 08, always with the same weights at the start, and what it counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.trace import Trace


def digits_model() -> Any:
    """Make a compiled network of two convolutions for digits, with its optimizer built."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    convolutions = [layers.Conv2D(n, 5, strides=2, activation="relu") for n in (16, 32)]
    model = keras.Sequential(
        [keras.Input([28, 28, 1]), *convolutions, layers.Flatten(), layers.Dense(10)]
    )
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), entropy)
    model.optimizer.build(model.trainable_variables)
    return model


def norm_model(synchronized: bool = False) -> Any:
    """Make a compiled network of 784 inputs with a BatchNormalization called norm."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    norm = layers.BatchNormalization(momentum=0.5, synchronized=synchronized, name="norm")
    model = keras.Sequential([keras.Input([784]), layers.Dense(3), norm, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def one_weight() -> Any:
    """Make the compiled model of one weight, which is 1."""
    import keras

    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([1]), weight])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def convolutions(step: Trace) -> dict[str, int]:
    """Count the convolutions that each device of the plan computed in a step."""
    plan = devices.current()
    found = Counter(op.device for op in step.ops if "Conv2D" in op.type)
    return {device: found[device] for device in (plan.host, *plan.devices)}


def difference(model: Any, other: Any) -> float:
    """Give the largest difference of two models' weights, as a share of a variable's largest."""
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs if b.any())
