"""Train layers on a frozen MobileNetV2, and then the whole of it with a small rate."""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mgpu_helpers import devices, fit  # added

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dtype", default="float32", help="float32 or float64")
parser.add_argument("--epochs", type=int, default=3, help="of each phase")
options = parser.parse_args()
keras.config.set_floatx(options.dtype)
keras.utils.set_random_seed(4)
tf.distribute.experimental_set_strategy(fit.strategy(devices.setup()))  # added


def images(count, seed):
    """Make noisy stripes of four directions, in colours of their own."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, 4, count)
    steps = np.array([(1, 0), (0, 1), (1, 1), (1, -1)])[kinds]
    rows, columns = np.mgrid[:32, :32]
    phase = steps[:, :1, None] * rows + steps[:, 1:, None] * columns
    stripes = np.sin(phase + random.uniform(0, 6, (count, 1, 1)))[..., None]
    colours = random.uniform(0.5, 1.0, (count, 1, 1, 3))
    noisy = stripes * colours + random.normal(0, 0.3, (count, 32, 32, 3))
    return noisy.astype(options.dtype), kinds


def compiled(model, optimizer):
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


# With weights="imagenet" in place of None it knows something; with weights that are drawn only the
# second phase learns.
base = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None)
base.trainable = False
inputs = keras.Input((32, 32, 3))
features = base(inputs, training=False)
outputs = layers.Dense(4)(layers.GlobalAveragePooling2D()(features))
model = compiled(keras.Model(inputs, outputs), keras.optimizers.Adam(0.01))

x, y = images(240, seed=0)
fitting = {"batch_size": 48, "epochs": options.epochs, "shuffle": False, "verbose": 2}
frozen = model.fit(x, y, **fitting).history

base.trainable = True  # with its BatchNormalizations: Keras 3 trains them despite training=False
compiled(model, keras.optimizers.SGD(0.02, momentum=0.9))
whole = model.fit(x, y, **fitting).history
print(json.dumps({name: frozen[name] + whole[name] for name in frozen}))
