"""Fit, evaluate and predict as one of two workers, of which worker 1 has less data."""

from __future__ import annotations

import json
import os

import numpy as np

from mgpu_helpers import devices, fit

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = fit.strategy(devices.setup())

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

x = np.random.default_rng(0).normal(size=[24, 3]).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
    model.compile("sgd", "mse")


def data(size, known=True):
    own = x[:size] if index else x
    of = tf.data.Dataset.from_tensor_slices((own, own)).batch(8)
    if known:
        return of
    return tf.data.Dataset.from_generator(lambda: iter(of), output_signature=of.element_spec)


def said(does, *args, **named):
    before = model.optimizer.iterations.numpy()
    try:
        does(*args, **named, verbose=0)
    except ValueError as error:
        differ = str(error).partition(". ")[0].partition("differ in the ")[2]
        return [differ, int(model.optimizer.iterations.numpy() - before)]
    return ["nothing", int(model.optimizer.iterations.numpy() - before)]


print(json.dumps({
    "as many": said(model.fit, data(24, False), epochs=2),
    "fewer batches": said(model.fit, data(16)),
    "nobody knows": said(model.fit, data(16, False)),
    "a shorter last batch": said(model.fit, data(20), epochs=2),
    "arrays": said(model.fit, *[x[: 20 if index else 24]] * 2, batch_size=8),
    "validation": said(model.fit, data(24), validation_data=data(16, False)),
    "evaluate": said(model.evaluate, data(16, False)),
    "predict": said(model.predict, data(16).map(lambda x, y: x)),
    "as many again": said(model.fit, data(24)),
}))  # fmt: skip
