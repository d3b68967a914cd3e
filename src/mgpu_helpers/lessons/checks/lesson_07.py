"""The checks of lesson 07's exercises."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks import judge
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, numbers


@exercise
def weighted_average(function: Any) -> str:
    """Check exercise 1 of lesson 07: gradients weighted by the sizes of their shards."""
    rng = np.random.default_rng(7)
    for n in (2, 3, 5):
        sizes = [int(size) for size in rng.permutation(np.arange(1, 12))[:n]]
        # Whole numbers, and one variable whose average is whole: a hint shows it first.
        vectors, matrices = (rng.integers(-9, 10, [n, *s]) for s in ((4,), (2, 3)))
        values = (1 + rng.permutation(8)[:n]) * sum(sizes)
        _check_average(function, sizes, [vectors, matrices, values][-n:])
    return "2, 3 and 5 shards of unequal size count by their sizes"


def _check_average(function: Any, sizes: list[int], variables: list[np.ndarray]) -> None:
    import tensorflow as tf

    n, way = len(sizes), "return one gradient for each variable, of the variable's shape"
    with tf.device(planned().host):
        towers = [[tf.constant(v[i], tf.float32) for v in variables] for i in range(n)]
        given, shares = [list(tower) for tower in towers], list(sizes)
        got = listed(call(function, given, shares), way)
    count = len(variables)
    expect(len(got) == count, f"it returns {len(got)} gradients for {count} variables: {way}")
    arrays = [numbers(g, v.shape[1:], way).ravel() for g, v in zip(got, variables, strict=True)]
    for array, v in zip(arrays[::-1], variables[::-1], strict=True):
        near = functools.partial(np.allclose, array, rtol=1e-4, atol=1e-4)
        column = v.reshape(n, -1)
        total = np.asarray(sizes) @ column
        wanted = total / sum(sizes)
        first = np.argmax(np.abs(array - wanted))
        said = (
            f"gradients {', '.join(f'{number:g}' for number in column[:, first])} of shards with "
            f"{', '.join(map(str, sizes))} examples should give {wanted[first]:.4g}, not "
            f"{array[first]:.4g}"
        )
        if near(column.mean(0)):
            said = f"all shards count the same: {said}"
        elif any(near(total / k) for k in (1, n)):
            said = f"divide the sizes by their sum: {said}"
        expect(near(wanted), said)
    leaves = [list(map(id, tf.nest.flatten(each))) for each in (given, towers)]
    kept = shares == sizes and leaves[0] == leaves[1]
    expect(kept, "it changes the lists that it was given: make new ones")


@exercise
def half_the_bytes(function: Any) -> str:
    """Check exercise 2 of lesson 07: an average whose parts cross in half the bytes."""
    import tensorflow as tf

    plan, length = planned(), 4000

    def vectors(seed: Any) -> list[Any]:
        made = []
        for i, device in enumerate(plan.devices):
            with tf.device(device):
                made.append(tf.random.stateless_normal([length], tf.stack([seed, i])))
        return made

    # Nested in another, a tf.function gives its result to where it is called, and not its place.
    own = getattr(function, "python_function", function)
    expect(callable(own), f"a function is wanted, its name without brackets, not {own!r}")
    got, step = judge.traced(lambda seed: own(vectors(seed)), tf.constant(3))
    got = numbers(got, (length,), f"return one vector of {length} numbers")
    expect(got.dtype == np.float32, f"the average should be float32, not {got.dtype}")
    for copy in step.copies:
        size = copy.bytes or 0
        expect(copy.target == plan.host or size <= 100,
               f"{copy.source} sends {size:,} bytes to {copy.target}: let every device send its "
               f"own vector straight to {plan.host}, and add and divide there")
    _check_precision(got, np.stack([each.numpy() for each in vectors(tf.constant(3))]))
    enough = 2 * length
    for device in plan.devices:
        sent = judge.sent(step, device)
        way = f"{enough:,} are enough: cast in its block"
        expect(sent <= enough, f"{device} sent {sent:,} bytes; {way}")
    return f"as right as float16 is, and {enough:,} bytes from each device, not {2 * enough:,}"


def _check_precision(got: np.ndarray, parts: np.ndarray) -> None:
    """Check that an average is as right as one of float16 numbers that are added as float32."""
    import tensorflow as tf

    wanted = parts.astype(np.float64).mean(0)

    def error(average: Any) -> float:
        return float(np.sqrt(np.mean((np.asarray(average, np.float64) - wanted) ** 2)))

    def cast(values: np.ndarray, kind: Any) -> np.ndarray:
        return values.astype(kind).astype(np.float32)

    n, brain = len(parts), tf.bfloat16.as_numpy_dtype
    half = max(error(cast(parts, np.float16).mean(0)), error(cast(parts / n, np.float16).sum(0)))
    finite, off = np.isfinite(got).all(), error(got)
    expect(finite, "there are infinite numbers in the average, or some that are none")
    if off > 1.1 * half:
        coarse = error(cast(parts, brain).mean(0))
        expect(off <= 1.5 * coarse,
               f"the average is off by {off:.2g}; in float16 it is off by {half:.1g}")
        expect(off <= 0.6 * coarse,
               "that is as coarse as bfloat16, which has 8 bits: float16 has 11")
        raise NotYet("it is rounded more than once: cast to float32 on the host first, then add")
