"""What TensorFlow costs on this machine besides the operations themselves."""

from __future__ import annotations

import functools
import itertools
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_helpers.trace.records import lanes
from mgpu_helpers.trace.step import Trace

ROUNDS, PAIRS, LAYERS = 5, 10, 20
STALL = 10e-6  # seconds; after more, the thread had nothing to do, or another process its core


@dataclass(frozen=True)
class Machine:
    """Seconds that an operation costs besides its work, and that a thread takes to wake up.

    adding is how many bytes a second are read and written where arrays are added.
    """

    operation: float
    wake: float
    adding: float = float("inf")


@functools.cache
def measured() -> Machine:
    """Measure this machine, once a process, in less than a second.

    What an operation costs is the gap between two on one thread, in the two passes of a small
    network. What waking up costs is seen where two operations wait for the same one.

    >>> 0 < measured().operation < 1e-3
    True
    """
    wakes = [wake for step in _traced(_pairs) for wake in _wakes(step)]
    costs = []
    for step in _traced(_layers):
        threads = lanes(step.ops)
        gaps = [b.start - a.start - a.length for t in threads for a, b in itertools.pairwise(t)]
        costs.append(np.mean([gap for gap in gaps if gap < STALL] or gaps))
    return Machine(float(np.median(costs)), float(np.median(wakes)), _adding())


def _traced(build: Callable[[Any], Any]) -> list[Trace]:
    """Trace a graph some times on two threads."""
    import tensorflow.compat.v1 as tf

    from mgpu_helpers.trace.reading import session_step

    config = tf.ConfigProto(intra_op_parallelism_threads=1, device_count={"GPU": 0})
    config.session_inter_op_thread_pool.add(num_threads=2)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        end = build(tf)
    with tf.Session(graph=graph, config=config) as session:
        session.run(end)
        return [session_step(session, end)[1] for _ in range(ROUNDS)]


def _pairs(tf: Any) -> Any:
    """Let two operations wait for the same one, again and again: one thread has to wake up."""
    block = tf.random_uniform([256, 256])
    for n in range(PAIRS):
        both = [tf.linalg.matmul(block, block, transpose_b=m, name=f"pair{n}_{m:d}")
                for m in (False, True)]  # fmt: skip
        block = tf.add(*both, name=f"join{n}")
    return block.op


def _wakes(step: Trace) -> list[float]:
    """Give the seconds from the moment that two could start to the later start."""
    ops, found = {op.name: op for op in step.ops}, []
    for n in range(1, PAIRS):
        join, later = ops[f"join{n - 1}"], max(ops[f"pair{n}_{m}"].start for m in (0, 1))
        found.append(later - join.start - join.length)
    return found


def _layers(tf: Any) -> Any:
    """Build a network's forward and backward pass: operations as they are in a step."""
    weights = [tf.random_uniform([256, 256]) for _ in range(LAYERS)]
    x = tf.random_uniform([256, 256])
    for weight in weights:
        x = tf.nn.relu(tf.linalg.matmul(x, weight))
    return tf.group(*tf.gradients(x, weights))


def _adding() -> float:
    a, b = np.ones(2**20, np.float32), np.ones(2**20, np.float32)
    return 3 * a.nbytes / min(timeit.repeat(lambda: np.add(a, b, out=a), number=1, repeat=ROUNDS))
