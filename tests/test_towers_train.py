"""A step in towers against Keras' own step on the whole batch, and against its parts by hand."""

from __future__ import annotations

import numpy as np
import pytest

import keras_models
from mgpu_helpers import towers, trace


@pytest.fixture(scope="module")
def keras(plan):
    import keras

    return keras


@pytest.fixture(scope="module")
def tf(plan):
    import tensorflow

    return tensorflow


def values(model):
    return [np.array(v.numpy()) for v in model.variables]


def near(got, wanted, much=2e-5):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=much, atol=much)


def both(keras, make, optimizer, loss, batches, devices, **kwargs):
    """Train one model by Keras on whole batches and its twin in towers: losses and variables."""
    seen = []
    for parallel in (False, True):
        keras.utils.set_random_seed(0)
        model = make()
        if parallel:
            step = towers.train_step(model, optimizer(), loss, devices, **kwargs)
            losses = [float(step(*batch)) for batch in batches]
        else:
            model.compile(optimizer(), loss, run_eagerly=True)  # no graph, no compiler
            losses = [float(model.train_on_batch(*batch)) for batch in batches]
        seen.append((losses, values(model), model))
    return seen


def without_dropout(model):
    for layer in model._flatten_layers():
        if hasattr(layer, "rate"):
            layer.rate = 0.0
    return model


def small(keras, *more, **kwargs):
    layers = keras.layers
    return keras.Sequential([
        keras.Input((6,)), layers.Dense(5, activation="relu", **kwargs), *more, layers.Dense(3)
    ])  # fmt: skip


def batch(size, seed=0, classes=3):
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 6)).astype("float32"), random.integers(0, classes, size)


def cross_entropy(keras):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# Equal to one device


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_losses_and_weights_are_those_of_one_device(keras, plan, name):
    """With a last batch that does not divide."""
    _, x, y = keras_models.built(name, 8)
    batches = [(x, y), (x[::-1], y[::-1]), (x[:5], y[:5])]

    def optimizer():
        return keras.optimizers.Adam(0.01, epsilon=1e-2, clipnorm=0.5)

    alone, parallel = both(
        keras, lambda: without_dropout(getattr(keras_models, name)()), optimizer,
        cross_entropy(keras), batches, plan.devices,
    )  # fmt: skip
    near(parallel[0], alone[0])
    near(parallel[1], alone[1])
    assert len(set(alone[0])) == 3 and np.ptp(alone[1][0]) > 0


@pytest.fixture
def double(keras):
    """Compute in float64: deep normalized networks make much of a rounding."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("name, size, steps", [("residual", 5, 2), ("mobilenet", 4, 1)])
def test_synchronized_networks_are_those_of_one_device(keras, plan, double, name, size, steps):
    _, x, y = keras_models.built(name, size)
    alone, parallel = both(
        keras, getattr(keras_models, name), lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        cross_entropy(keras), [(x, y)] * steps, plan.devices, batch_norm="sync",
    )  # fmt: skip
    near(parallel[0], alone[0], 1e-7)
    near(parallel[1], alone[1], 1e-7)
    if name == "residual":
        step = towers.train_step(
            parallel[2], "sgd", cross_entropy(keras), plan.devices, batch_norm="sync"
        )
        _check_places(plan, trace.function_step(step, x, y)[1])
        near(values(parallel[2]), parallel[1], 0)  # a trace trains nothing


def _check_places(plan, traced):
    """Check that each tower's convolutions, forward and back, ran on its device, and no other."""
    convolutions = [op for op in traced.ops if "Conv2D" in op.type]
    assert {op.device for op in convolutions} == set(plan.devices)
    for i, device in enumerate(plan.devices):
        own = [op for op in convolutions if op.device == device]
        assert all(f"tower_{i}/" in op.name for op in own)
        assert sum("Backprop" in op.type for op in own) >= 2 * 21 - 1  # not into the images
        assert sum("Backprop" not in op.type for op in own) >= 21
