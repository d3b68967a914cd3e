"""Is a device of cores mode worth one core?

Two towers against one device on the same global batch, and, as the most that this machine can give,
two independent one-core processes against one of them. All four in turn, in one run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median, quantiles

from mgpu_helpers import devices

GLOBAL_BATCH, STEPS, ROUNDS, TARGET = 512, 5, 12, 0.9


def build(plan, n):
    """Build a training step of a small network on n devices; return a function that runs it."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    rng = np.random.default_rng(seed=0)
    images = rng.random([GLOBAL_BATCH, 28, 28, 1], "float32")
    labels = rng.integers(0, 10, GLOBAL_BATCH)
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x, y = tf.placeholder(tf.float32, images.shape), tf.placeholder(tf.int64, labels.shape)
            shapes = {"conv1": [5, 5, 1, 16], "conv2": [5, 5, 16, 32], "out": [7 * 7 * 32, 10]}
            start = tf.random_normal_initializer(stddev=0.05, seed=0)
            w = {k: tf.get_variable(k, s, initializer=start) for k, s in shapes.items()}
            shards = list(zip(tf.split(x, n), tf.split(y, n), strict=True))
        gradients = []
        for i, (device, (shard, label)) in enumerate(zip(plan.devices, shards, strict=False)):
            with tf.device(device), tf.name_scope(f"tower_{i}"):
                h = tf.nn.relu(tf.nn.conv2d(shard, w["conv1"], 1, "SAME"))
                h = tf.nn.max_pool2d(h, 2, 2, "SAME")
                h = tf.nn.relu(tf.nn.conv2d(h, w["conv2"], 1, "SAME"))
                h = tf.reshape(tf.nn.max_pool2d(h, 2, 2, "SAME"), [-1, 7 * 7 * 32])
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(
                        logits=tf.matmul(h, w["out"]), labels=label
                    )
                )
                gradients.append(
                    tf.gradients(loss, list(w.values()), colocate_gradients_with_ops=True)
                )
        with tf.device(plan.host):
            mean = [tf.add_n(list(g)) / n for g in zip(*gradients, strict=True)]
            step = tf.train.GradientDescentOptimizer(0.01).apply_gradients(
                list(zip(mean, w.values(), strict=True))
            )
        init = tf.global_variables_initializer()
    session = tf.Session(graph=graph, config=plan.session_config(devices=n))
    session.run(init)
    return lambda: session.run(step, {x: images, y: labels})


def seconds(step) -> float:
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - begin


def worker() -> None:
    """Be a one-core process: time some steps for every line that comes in."""
    step = build(devices.setup(1), 1)
    step()
    for _ in sys.stdin:
        print(seconds(step), flush=True)


def together(workers) -> float:
    """Let the workers run their steps at the same time; return the slowest one's seconds."""
    for w in workers:
        w.stdin.write("go\n")
        w.stdin.flush()
    return max(float(w.stdout.readline()) for w in workers)


def main() -> None:
    plan = devices.setup(2)
    if plan.mode != "cores":
        sys.exit("this benchmark is about cores mode: set MGPU_MODE=cores")
    print(plan)
    command = [sys.executable, __file__, "worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    one, two = build(plan, 1), build(plan, 2)
    for warm_up in (one, two, lambda: together(workers)):
        warm_up()
    towers, ceiling, step = [], [], []
    for _ in range(ROUNDS):
        alone = seconds(one)
        towers.append(alone / seconds(two))
        ceiling.append(2 * together(workers[:1]) / together(workers))
        step.append(alone / STEPS)
    for w in workers:
        w.stdin.close()
        w.wait()
    share = median(towers) / median(ceiling)
    print(f"one device             {median(step) * 1e3:.0f} ms a step, {GLOBAL_BATCH} examples")
    for name, ratios in (("two towers", towers), ("two processes (ceiling)", ceiling)):
        low, _, high = quantiles(ratios, n=4)
        print(f"{name:23}{median(ratios):.2f} times as fast ({low:.2f} to {high:.2f})")
    print(f"towers reach {share:.2f} of the ceiling; the target is {TARGET}")
    import _card

    _card.write(
        "cores",
        plan,
        {
            "two_towers": round(median(towers), 3),
            "two_processes": round(median(ceiling), 3),
            "share_of_ceiling": round(share, 3),
            "target": TARGET,
            "rounds": ROUNDS,
            "global_batch_size": GLOBAL_BATCH,
        },
    )


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
