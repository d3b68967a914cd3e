"""One way to train, for `peers`: a process that fits a Keras model each time a line comes in.

python _peer.py WAY MODEL, with KERAS_BACKEND set. It answers with seconds, processor seconds and
the loss of a pass. Only the ways that use the package import it: JAX's environment has none.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext

import numpy as np

STEPS = {"CNN": (64, 96), "Transformer": (32, 32)}  # batch, steps of a pass
# No tokens: Keras on TensorFlow updates an Embedding otherwise than on JAX (docs/upstream.md).
SHAPES = {"CNN": (28, 28, 1), "Transformer": (64, 16)}


def data(name):
    """Make what a pass trains on, something that can be learnt."""
    rng, (batch, steps) = np.random.default_rng(1), STEPS[name]
    shape, labels = SHAPES[name], rng.integers(0, 10, batch * steps)
    rows = rng.random([10, *shape])[labels] + rng.normal(0, 0.5, [len(labels), *shape])
    return rows.astype("float32"), labels.astype("int32")


def network(name, xla):
    """Make and compile a model, with weights that are the same on each backend."""
    import keras
    from keras import layers

    if name == "CNN":
        model, optimizer = keras.Sequential([
            layers.Input(SHAPES[name]), layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.MaxPool2D(), layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPool2D(), layers.Flatten(), layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]), keras.optimizers.Adam(1e-3)  # fmt: skip
    else:
        rows = keras.Input(SHAPES[name])
        x = layers.Dense(128)(rows)
        for _ in range(2):
            y = layers.LayerNormalization()(x)
            x = layers.add([x, layers.MultiHeadAttention(4, 32)(y, y)])
            y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
            x = layers.add([x, layers.Dense(128)(y)])
        pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
        model = keras.Model(rows, layers.Dense(10)(pooled))
        optimizer = keras.optimizers.AdamW(1e-3)
    rng = np.random.default_rng(0)
    model.set_weights([  # each backend draws others; what begins at 0 or 1 stays
        rng.normal(0, np.prod(value.shape[:-1]) ** -0.5, value.shape) if np.ptp(value) else value
        for value in model.get_weights()
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=xla)
    return model


def prepared(way, name):
    """Make the model in the way's scope and on its devices."""
    xla, scope = way.endswith("XLA") or way.startswith("JAX"), nullcontext()
    if way.startswith("fit."):
        from mgpu_helpers import devices, fit

        plan = devices.setup(2, exact=True)
        if way.startswith("fit.use"):
            return fit.use(network(name, xla), plan)
        scope = fit.strategy(plan).scope()
    elif way == "MirroredStrategy":
        import tensorflow as tf

        (processor,) = tf.config.list_physical_devices("CPU")
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(processor, halves)
        scope = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]).scope()
    elif way == "JAX, DataParallel":
        from keras import distribution

        distribution.set_distribution(distribution.DataParallel(auto_shard_dataset=False))
    with scope:
        return network(name, xla)


def main(way, name):
    """Answer every line that comes in."""
    answers, sys.stdout = sys.stdout, sys.stderr
    model, (x, y) = prepared(way, name), data(name)
    for _ in sys.stdin:
        wall, processors = time.perf_counter(), time.process_time()
        passed = model.fit(x, y, batch_size=STEPS[name][0], shuffle=False, verbose=0)
        clocks = time.perf_counter() - wall, time.process_time() - processors
        print(json.dumps([*clocks, passed.history["loss"][0]]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
