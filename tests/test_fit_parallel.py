"""A model whose calls are shared out, against itself on one device: `fit` and all of it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_cases
from mgpu_helpers import fit


@pytest.fixture(scope="module")
def keras(plan):
    import keras

    return keras


@pytest.fixture(scope="module")
def tf(plan):
    import tensorflow

    return tensorflow


@pytest.fixture
def double(keras):
    with fit_cases.double():
        yield


@functools.cache
def alone(case):
    return fit_cases.trained(case)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("case", fit_cases.CASES)
def test_fit_is_that_of_one_device(keras, plan, double, case, n):
    devices = [*plan.devices, plan.host][:n]
    got = fit_cases.trained(case, lambda model: fit.parallel(model, devices))
    fit_cases.near(got, alone(case))
    assert np.ptp(got[1].get("loss") or got[1]["seen"]) > 0  # it has learned something


@pytest.mark.parametrize("change, error, named", [
    ({"model": "resnet"}, TypeError, "'resnet'"), ({"devices": ["/gpu:9"]}, ValueError, "gpu:9"),
    ({"devices": ["cpu:1", "/CPU:1"]}, ValueError, "/CPU:1"),
    ({"batch_norm": "both"}, ValueError, "'both'"),
    ({"model": "parallel"}, ValueError, "twice"), ({"model": "stateful"}, ValueError, "'keeps'"),
    ({"model": "mirrored"}, ValueError, "'copies'.*2"),
    ({"model": "code"}, ValueError, "sync.*batch_norm.*'average'"),
])  # fmt: skip
def test_what_cannot_be_shared_out_is_named(keras, tf, plan, change, error, named):
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="twice")
    if change.get("model") == "parallel":
        change = {"model": fit.parallel(model, plan.devices)}
    elif change.get("model") == "stateful":
        first = [keras.Input(batch_shape=(2, 5, 3)), layers.LSTM(2, stateful=True, name="keeps")]
        change = {"model": keras.Sequential(first)}
    elif change.get("model") == "mirrored":
        with tf.distribute.MirroredStrategy(["/cpu:1", "/cpu:2"]).scope():
            copies = [keras.Input((6,)), layers.Dense(1)]
            change = {"model": keras.Sequential(copies, name="copies")}
    elif change.get("model") == "code":

        class Code(keras.Model):
            def __init__(self):
                super().__init__()
                self.normal = layers.BatchNormalization()

            def call(self, x):
                return self.normal(x)

        change = {"model": Code()}
        change["model"](np.ones((2, 6)))
    with pytest.raises(error, match=named):
        fit.parallel(**({"model": model, "devices": plan.devices} | change))
