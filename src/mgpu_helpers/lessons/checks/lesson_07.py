"""The checks of lesson 07's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers, traced


@exercise
def weighted_average(function: Callable[..., Any]) -> str:
    """Check exercise 1 of lesson 07: gradients weighted by the sizes of their shards."""
    towers = [[np.float32([1, 2]), np.float32(10)], [np.float32([5, 6]), np.float32(50)]]
    way = "return one gradient for each variable, of the variable's shape"
    got = listed(call(function, towers, [3, 1]), way)
    if len(got) != 2:
        raise NotYet(way)
    vector, number = numbers(got[0], (2,), way), numbers(got[1], (), way)
    if np.isclose(number, 30):
        raise NotYet("3 examples and 1 count the same: 10 and 50 should become 20, not 30")
    if np.isclose(number, 80):
        raise NotYet("divide the sizes by their sum: 10 and 50 should become 20, not 80")
    if not np.isclose(number, 20):
        raise NotYet(f"10 and 50, from 3 examples and 1, should become 20, not {number:.3g}")
    if not np.allclose(vector, [2, 3]):
        raise NotYet(f"[1, 2] and [5, 6] should become [2, 3], not {vector.round(2).tolist()}")
    return "10 from 3 examples and 50 from 1 become 20"


@exercise
def half_the_bytes(function: Callable[..., Any]) -> str:
    """Check exercise 2 of lesson 07: an average whose parts cross in half the bytes."""
    import tensorflow as tf

    plan, length = devices.current(), 1000

    def step(seed: Any) -> Any:
        vectors = []
        for i, device in enumerate(plan.devices):
            with tf.device(device):
                vectors.append(tf.random.stateless_normal([length], tf.stack([seed, i])))
        return function(vectors), tf.add_n(vectors) / len(vectors)

    (got, wanted), _ = traced(step, tf.constant(3))
    got = numbers(got, (length,), f"return one vector of {length} numbers")
    _, crossing = traced(lambda seed: step(seed)[0], tf.constant(3))
    if got.dtype != np.float32:
        raise NotYet(f"the average should be float32, not {got.dtype}")
    if any(c.target in plan.devices and c.bytes > 100 for c in crossing.copies):
        raise NotYet(f"the average should be made on {plan.host}")
    if not np.allclose(got, wanted, atol=0.01):
        raise NotYet("the average is not right to 0.01")
    for device in plan.devices:
        sent = sum(c.bytes for c in crossing.copies if c.source == device)
        if sent > 2 * length:
            raise NotYet(f"{device} sent {sent:,} bytes; {2 * length:,} are enough: cast there")
    return f"right to 0.01, and {2 * length:,} bytes from each device, not {4 * length:,}"


@exercise
def mask_seed(function: Callable[[int, int], Any]) -> str:
    """Check exercise 3 of lesson 07: a dropout seed for each step and tower."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for step in range(20):
        for tower in range(8):
            way = "a seed has two whole numbers"
            seed = numbers(call(function, step, tower), (2,), way)
            if seed.dtype.kind == "f":
                raise NotYet(f"{way}, not {seed}")
            seed = tuple(seed.tolist())
            if seed in seen:
                raise NotYet(
                    f"step {step} of tower {tower} has the seed of step {seen[seed][0]} of tower "
                    f"{seen[seed][1]}: {seed}"
                )
            seen[seed] = step, tower
    return "20 steps of 8 towers have 160 seeds"
