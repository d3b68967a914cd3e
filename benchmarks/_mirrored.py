"""Ways to train with MirroredStrategy, and the pieces of a call of `fit` under it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

Way = Callable[[], Any]


def leave() -> None:
    """End this process at once: to free the iterator of a loop takes up to a minute, each."""
    sys.stdout.flush()
    os._exit(0)


def keras_model() -> Any:
    """Make the network of `networks.tensorlight(width=0.25)` without dropout, in Keras."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 5, padding="same"),
            layers.LeakyReLU(0.2),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-3), loss)
    model.optimizer.build(model.trainable_variables)  # not in the step, where it fails
    return model


def loop(
    strategy: Any, data: Any, size: int, steps: int, one_call: bool = False, xla: bool = False
) -> Way:
    """Give a loop of our own of so many steps with the global batches of `data`.

    data is a dataset of whole batches, or a function that gives each worker a dataset of its part.
    """
    import tensorflow as tf

    with strategy.scope():
        model = keras_model()

    @tf.function(jit_compile=xla)
    def loss_and_gradients(x, y):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=size)
        return loss, tape.gradient(loss, model.trainable_variables)

    def replica(x, y):
        loss, gradients = loss_and_gradients(x, y)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    @tf.function
    def several(batches):
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            loss = step(next(batches))
        return loss

    batches = iter(
        strategy.distribute_datasets_from_function(data)
        if callable(data)
        else strategy.experimental_distribute_dataset(data)
    )
    if one_call:
        return lambda: several(batches).numpy()
    return lambda: [step(next(batches)).numpy() for _ in range(steps)]


def loops(strategy: Any, to_one: Any, data: Any, size: int, steps: int) -> dict[str, Way]:
    """Give loops of our own, each of so many steps, with the settings that may be faster.

    `strategy` has the usual all-reduce, and to_one is on the same devices, with
    ReductionToOneDevice.
    """
    given = data, size, steps
    return {
        "own loop": loop(strategy, *given),
        "own loop, to one device": loop(to_one, *given),
        "own loop, one call": loop(strategy, *given, one_call=True),
        "own loop, to one device, one call": loop(to_one, *given, one_call=True),
        "own loop, XLA": loop(strategy, *given, xla=True),
    }


def fit(strategy: Any, data: Any, steps: int) -> dict[str, Way]:
    """Give a call of `fit` of one pass, the pieces that it should be made of, and its end.

    "begins" makes the distributed dataset and its iterators, as often as `fit` does, and "steps"
    calls the function that `fit` calls in each step, on an iterator that stays. "end" gives the
    seconds that it takes to end an iterator after these steps.
    """
    with strategy.scope():
        model = keras_model()

    def call():
        model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False)

    times = iterators(strategy, call)
    kept = iter(strategy.experimental_distribute_dataset(data))

    def begins():
        distributed = strategy.experimental_distribute_dataset(data)
        for _ in range(times):
            iter(distributed)

    def some_steps(batches=kept):
        for _ in range(steps):
            logs = model.train_function(batches)
        return {name: float(value) for name, value in logs.items()}

    def end():
        batches = iter(strategy.experimental_distribute_dataset(data))
        some_steps(batches)
        began = time.perf_counter()
        del batches
        return time.perf_counter() - began

    return {"call": call, "begins": begins, "steps": some_steps, "end": end}


def iterators(strategy: Any, function: Callable[[], Any]) -> int:
    """Count the iterators of distributed datasets that a call of the function makes."""
    import tensorflow as tf

    kind = type(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8)))
    with mock.patch.object(kind, "__iter__", autospec=True, side_effect=kind.__iter__) as made:
        function()
    return made.call_count
