"""Two stages of Keras layers that the pipeline was not written for, run with and without streams.

In a process of its own: what went wrong with streams once did not raise, it never returned.
"""

from __future__ import annotations

import sys

import numpy as np

from mgpu_helpers import devices, pipeline
from mgpu_helpers.lessons import digits, networks


def stage(model, device):
    import tensorflow as tf

    weights = {v.path: tf.Variable(v.numpy()) for v in model.trainable_variables}
    rest = [v.numpy() for v in model.non_trainable_variables]

    def call(weights, x):
        return model.stateless_call(list(weights.values()), rest, x)[0]

    return pipeline.Stage(device, call, weights)


def stages(name, where):
    from tensorflow import keras

    layers = keras.layers

    def attention():
        given = keras.Input((49, 16))
        out = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 8)(given, given))
        out = out + layers.Dense(16)(layers.Dense(64, activation="gelu")(out))
        return keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(out)))

    tail = [layers.Flatten(), layers.Dense(16, activation="tanh"), layers.Dense(10)]
    first, second = {
        "convolutions": (
            [layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(8, 3)],
            [layers.DepthwiseConv2D(3), layers.LeakyReLU(), layers.SeparableConv2D(8, 3),
             layers.Conv2DTranspose(4, 3, strides=2), *tail],
        ),
        "padding": (
            [layers.ZeroPadding2D(2), layers.Conv2D(8, 5, strides=2), layers.BatchNormalization()],
            [layers.ReLU(), *tail],
        ),
        "attention": ([layers.Conv2D(16, 4, strides=4), layers.Reshape((49, 16))], [attention()]),
        "LSTM": (
            [layers.Reshape((28, 28)), layers.LSTM(12, return_sequences=True)],
            [layers.LSTM(8), layers.Dense(10)],
        ),
    }[name]  # fmt: skip
    first = keras.Sequential([keras.Input((28, 28, 1)), *first])
    second = keras.Sequential([keras.Input(first.output_shape[1:]), *second])
    return [stage(model, device) for model, device in zip((first, second), where, strict=True)]


def gradients(made):
    """Compute the gradients in one piece without streams, with them, and in four pieces."""
    import tensorflow as tf

    x, y = digits.load(32)
    four = pipeline.one_forward_one_backward(2, 4)

    @tf.function
    def ways(x, y):
        return [
            pipeline.gradients(made, networks.loss, x, y, order, streams=streams)[1]
            for order, streams in ((None, False), (None, True), (four, True))
        ]

    return ways(x, y)


def main(*names):
    plan = devices.setup(2)
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    for name in names:
        if hasattr(networks, name):  # a network of the lessons, its convolutions with biases
            network = getattr(networks, name)(width=0.125)
            made = networks.stages(network, ["conv2"], plan.devices)
        else:
            made = stages(name, plan.devices)
        whole, *others = gradients(made)
        for other in others:
            for key, wanted in whole.items():
                np.testing.assert_allclose(other[key], wanted, rtol=1e-3, atol=1e-5)
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
