"""Stages that the pipeline was not written for, run with and without their streams.

In a process of its own: what went wrong with streams once did not raise, it never returned.
"""

from __future__ import annotations

import sys
import warnings
from unittest import mock

import numpy as np

import keras_models
from mgpu_helpers import devices, pipeline
from mgpu_helpers.lessons import digits, networks


def lesson(name, where):
    """Make stages of a network of the lessons, whose convolutions have biases."""
    made = networks.stages(getattr(networks, name)(width=0.125), ["conv2"], where)
    return made, networks.loss, *digits.load(32)


def convolutions(where):
    """Make stages of a model with the convolutions that the others do not have."""
    import keras
    from keras import layers

    model = keras.Sequential([
        keras.Input((28, 28, 1)), layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(),
        layers.DepthwiseConv2D(3, name="cut"), layers.LeakyReLU(), layers.SeparableConv2D(8, 3),
        layers.Conv2DTranspose(4, 3, strides=2), layers.Flatten(), layers.Dense(10),
    ])  # fmt: skip
    return pipeline.stages(model, ["cut"], where), networks.loss, *digits.load(32)


def run(made, loss, x, y, pieces):
    """Compute the gradients of stages, and put their state back."""
    import tensorflow as tf

    state = {name: v for stage in made for name, v in stage.state.items()}
    before = {name: v.numpy() for name, v in state.items()}
    order = pipeline.one_forward_one_backward(len(made), pieces)
    step = tf.function(lambda x, y: pipeline.gradients(made, loss, x, y, order)[1])
    found = {name: tf.convert_to_tensor(g).numpy() for name, g in step(x, y).items()}
    for name, v in state.items():
        found[name], _ = v.numpy(), v.assign(before[name])
    return found


def unordered(*args):
    """Compute them with no operation waiting for another that it does not need."""
    with mock.patch("mgpu_helpers.pipeline.run.stream"):
        return run(*args)


def by_tape(model, x, y):
    """Compute the gradients and the new state of a model whole, by Keras and TensorFlow alone."""
    import tensorflow as tf

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    before = [v.numpy() for v in model.non_trainable_variables]
    found = tf.function(step)(x, y)
    pairs = zip(model.trainable_variables, found, strict=True)
    found = {v.path: tf.convert_to_tensor(gradient).numpy() for v, gradient in pairs}
    for v, value in zip(model.non_trainable_variables, before, strict=True):
        found[v.path], _ = v.numpy(), v.assign(value)
    return found


def same(got, wanted, **near):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, err_msg=name, **near)


def main(*names):
    plan = devices.setup(2)
    import tensorflow as tf

    warnings.simplefilter("ignore")  # of BatchNormalization in pieces
    for name in names:
        tf.keras.utils.set_random_seed(0)
        if name in keras_models.BUILT:
            model, x, y = keras_models.built(name)
            layers = list(pipeline.places(model))
            third = len(layers) // 3
            cuts = [layers[third], layers[-third]] if name == "transformer" else [layers[third]]
            made = pipeline.stages(model, cuts, (plan.devices * 2)[: len(cuts) + 1])
            data = model.loss, x, y
            # Mostly bit for bit; but in MobileNetV2 an activation near its limits may switch.
            near = {"atol": 0.05} if name == "mobilenet" else {"atol": 1e-6}
            same(run(made, *data, 1), by_tape(model, x, y), rtol=1e-5, **near)
        else:
            make = {"convolutions": convolutions}.get(name)
            made, *data = make(plan.devices) if make else lesson(name, plan.devices)
            same(run(made, *data, 1), unordered(made, *data, 1), rtol=1e-3, atol=1e-5)
        if name != "mobilenet":  # which takes too long
            same(run(made, *data, 2), unordered(made, *data, 2), rtol=1e-3, atol=1e-5)
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
