"""Stages of Keras models that the pipeline was not written for, against the models themselves.

In a process of its own: what went wrong with streams once did not raise, it never returned.
"""

from __future__ import annotations

import warnings

import numpy as np

import keras_models
from mgpu_helpers import devices, pipeline
from mgpu_helpers.lessons import digits, networks


def convolutions():
    """Make a model with the convolutions that the others do not have."""
    import keras
    from keras import layers

    return keras.Sequential([
        keras.Input((28, 28, 1)), layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(),
        layers.DepthwiseConv2D(3, name="cut"), layers.LeakyReLU(), layers.SeparableConv2D(8, 3),
        layers.Conv2DTranspose(4, 3, strides=2), layers.Flatten(), layers.Dense(10),
    ])  # fmt: skip


def by_pieces(model, loss, x, y, pieces):
    """Compute what stages should, with Keras alone: piece by piece, from the state before.

    Give the loss, the gradients, and the state after it; the model's own is put back.
    """
    import tensorflow as tf

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            one = tf.add_n([loss(y, outputs), *model.losses])
        return one, tape.gradient(one, model.trainable_variables, unconnected_gradients="zero")

    total, losses, before = 0, [], [v.numpy() for v in model.non_trainable_variables]
    each = [tf.nest.map_structure(lambda a: np.split(a, pieces)[k], (x, y)) for k in range(pieces)]  # noqa: B023
    for given in each:
        one, found = step(*given)
        total += np.array([tf.convert_to_tensor(g).numpy() / pieces for g in found], object)
        losses.append(float(one))
    after = [v.numpy() for v in model.non_trainable_variables]
    for v, value in zip(model.non_trainable_variables, before, strict=True):
        v.assign(value)
    return np.mean(losses), total, after


def compare(model, loss, x, y, cut, where, pieces, rtol, atol):
    """See that a step in stages computes what the model does, and put the state back."""
    import tensorflow as tf

    wanted_loss, wanted, after = by_pieces(model, loss, x, y, pieces)
    made = pipeline.stages(model, cut, (where * 2)[: len(cut) + 1])
    order = pipeline.one_forward_one_backward(len(made), pieces)
    before = [v.numpy() for v in model.non_trainable_variables]
    got, slopes = tf.function(lambda x, y: pipeline.gradients(made, loss, x, y, order))(x, y)
    np.testing.assert_allclose(got, wanted_loss, rtol=1e-5)
    for v, slope in zip(model.trainable_variables, wanted, strict=True):
        found = tf.convert_to_tensor(slopes[v.path])
        np.testing.assert_allclose(found, slope, rtol, atol, err_msg=v.path)
    for v, value, new in zip(model.non_trainable_variables, before, after, strict=True):
        np.testing.assert_allclose(v.numpy(), new, rtol=1e-5, err_msg=v.path)
        v.assign(value)


def main(*names):
    plan = devices.setup(2)
    import tensorflow as tf

    warnings.simplefilter("ignore")  # of BatchNormalization in pieces
    for name in names:
        tf.keras.utils.set_random_seed(0)
        if name in keras_models.BUILT:
            model, *data = keras_models.built(name)
            layers = list(pipeline.places(model))
            third = len(layers) // 3
            cut = [layers[third], layers[-third]] if name == "transformer" else [layers[third]]
            loss = model.loss
        else:
            model = convolutions() if name == "convolutions" else keras_models.lesson(name, 0.125)
            cut, loss, data = [model.layers[2].name], networks.loss, digits.load(32)
        # Mostly bit for bit; but in MobileNetV2 an activation near its limits may switch.
        atol = 0.05 if name == "mobilenet" else 1e-6
        compare(model, loss, *data, cut, plan.devices, 1, 1e-5, atol)
        if name != "mobilenet":  # which takes too long
            compare(model, loss, *data, cut, plan.devices, 2, 1e-3, 1e-5)
        print(name, flush=True)
