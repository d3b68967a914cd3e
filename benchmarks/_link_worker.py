"""A worker of link.py: all-reduces and training steps, over a link that it limits itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from _loopback import crossed

PARAMETERS, ROWS = (1250, 1000), 64
REPEATS, SLOW = 5, 3  # over a slow link all times are alike, and long
P = 4 * PARAMETERS[0] * PARAMETERS[1]  # bytes of gradients

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index, n = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
with strategy.scope():
    weights = tf.Variable(tf.zeros(PARAMETERS))
gradients, one = tf.ones([P // 4]), tf.constant([1.0])
x = tf.constant(np.random.default_rng(index).normal(size=(ROWS, PARAMETERS[0])), tf.float32)


def everywhere(value: tf.Tensor) -> tf.Tensor:
    return tf.distribute.get_replica_context().all_reduce("sum", value)


@tf.function
def compute() -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - 1.0) ** 2)
    return tape.gradient(loss, weights)


@tf.function
def average(value: tf.Tensor) -> tf.Tensor:
    return strategy.run(lambda: everywhere(tf.identity(value)))


@tf.function
def step() -> None:
    def on_replica() -> None:
        weights.assign_sub(0.01 / n * everywhere(compute()))

    strategy.run(on_replica)


def together(work, *args, repeats: int, warmup: int = 1) -> float:
    """Time some work that all workers begin at once; the median, in seconds."""
    taken = []
    for _ in range(warmup + repeats):
        average(one)[0].numpy()
        began = time.perf_counter()
        result = work(*args)
        if result is not None:
            tf.reshape(result, [-1])[0].numpy()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warmup:])


def reduced(value: tf.Tensor) -> None:
    """Add a value up over all workers; nobody begins before all count, or counts too early."""
    for each in (one, value, one):
        average(each)[0].numpy()


found: dict = {"worker": index}
if len(sys.argv) == 1:
    half = tf.cast(gradients, tf.float16)
    found |= {"bytes": crossed(lambda: reduced(gradients)), "half": crossed(lambda: reduced(half))}
for rate in map(int, sys.argv[1:]):
    if rate:
        bucket = ["rate", f"{rate}mbit", "burst", "64kb", "latency", "200ms"]
        subprocess.run(["tc", "qdisc", "replace", "dev", "e0", "root", "tbf", *bucket], check=True)
    repeats = SLOW if rate else REPEATS
    found[str(rate)] = {
        "compute": together(compute, repeats=repeats),
        "average": together(average, gradients, repeats=repeats),
        "step": together(step, repeats=repeats, warmup=0 if rate else 1),
    }
print(json.dumps(found), flush=True)
