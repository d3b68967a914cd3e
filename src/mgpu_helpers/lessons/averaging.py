"""Ways to average a vector of each device, and what they send: for lesson 07."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import towers, trace
from mgpu_helpers.devices.plan import planned

SAMPLE = 1000  # one entry in so many is looked at in the end


def central(vectors: list[Any], middle: str) -> list[Any]:
    """Average at one place; give each device the mean."""
    import tensorflow as tf

    with tf.device(middle):
        return [tf.add_n(vectors) / len(vectors)] * len(vectors)


def ring(vectors: list[Any]) -> list[Any]:
    """Average by sending pieces from neighbour to neighbour; give each device the mean."""
    import tensorflow as tf

    n, devices = len(vectors), planned().devices
    sizes = [len(part) for part in np.array_split(np.arange(vectors[0].shape[0]), n)]
    pieces = towers.run(lambda vector: tf.split(vector, sizes), devices, vectors)
    for turn in range(2 * (n - 1)):
        for i in range(n):  # each device sends one piece, by tf.identity in the neighbour's block
            piece, neighbour = (i - turn) % n, (i + 1) % n
            with tf.device(devices[neighbour]):
                came = tf.identity(pieces[i][piece])
                own = pieces[neighbour][piece]
                pieces[neighbour][piece] = came + own if turn < n - 1 else came
    return towers.run(lambda own: tf.concat(own, axis=0) / n, devices, pieces)


def traffic(
    way: Callable[[list[Any]], list[Any]], length: int
) -> tuple[dict[str, tuple[float, float]], float]:
    """Count what goes into and out of each place while `way` averages a vector of each device.

    Both are multiples of a vector, in the plan's order, the host first. The second result is the
    largest error of the averages that the devices end with.
    """
    import tensorflow as tf

    plan = planned()

    def drawn(seed: Any) -> list[Any]:
        def vector(i: int) -> Any:
            return tf.random.stateless_normal([length], tf.stack([seed, i]))

        return towers.run(vector, plan.devices, range(len(plan)))

    def step(seed: Any) -> list[Any]:
        return towers.run(lambda average: average[::SAMPLE], plan.devices, way(drawn(seed)))

    samples, traced = trace.function_step(step, tf.constant(1))
    wanted = np.mean([vector.numpy()[::SAMPLE] for vector in drawn(1)], axis=0)
    error = max(float(np.abs(sample - wanted).max()) for sample in samples)
    copies = [copy for copy in traced.copies if (copy.bytes or 0) > 4 * length // SAMPLE + 4]
    counted = {}
    for place in (plan.host, *plan.devices):
        into = sum(copy.bytes or 0 for copy in copies if copy.target == place)
        out = sum(copy.bytes or 0 for copy in copies if copy.source == place)
        counted[place] = into / (4 * length), out / (4 * length)
    return counted, error
