"""The checks of lesson 07's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers, traced

STEPS, TOWERS = 1_000_000, 8


@exercise
def weighted_average(function: Callable[..., Any]) -> str:
    """Check exercise 1 of lesson 07: gradients weighted by the sizes of their shards."""
    rng = np.random.default_rng(7)
    for n in (2, 3, 5):
        sizes = [int(size) for size in rng.permutation(np.arange(1, 12))[:n]]
        # Whole numbers, and one variable whose average is whole: a hint shows it first.
        vectors, matrices = (rng.integers(-9, 10, [n, *s]) for s in ((4,), (2, 3)))
        values = (1 + rng.permutation(8)[:n]) * sum(sizes)
        _check_average(function, sizes, [vectors, matrices, values][-n:])
    return "2, 3 and 5 shards of unequal size count by their sizes"


def _check_average(
    function: Callable[..., Any], sizes: list[int], variables: list[np.ndarray]
) -> None:
    import tensorflow as tf

    n, way = len(sizes), "return one gradient for each variable, of the variable's shape"
    with tf.device(planned().host):
        towers = [[tf.constant(v[i], tf.float32) for v in variables] for i in range(n)]
        given, shares = [list(tower) for tower in towers], list(sizes)
        got = listed(call(function, given, shares), way)
    if len(got) != len(variables):
        raise NotYet(f"it returns {len(got)} gradients for {len(variables)} variables: {way}")
    arrays = [numbers(g, v.shape[1:], way) for g, v in zip(got, variables, strict=True)]
    for array, v in zip(arrays[::-1], variables[::-1], strict=True):
        column = v.reshape(n, -1)
        wanted = np.average(column, axis=0, weights=sizes)
        if np.allclose(array.ravel(), wanted, rtol=1e-4, atol=1e-4):
            continue
        first = np.argmax(np.abs(array.ravel() - wanted))
        said = (
            f"{', '.join(f'{number:g}' for number in column[:, first])} from shards of "
            f"{', '.join(map(str, sizes))} examples should become {wanted[first]:.4g}, not "
            f"{array.ravel()[first]:.4g}"
        )
        total = np.asarray(sizes) @ column
        if np.allclose(array.ravel(), column.mean(0), rtol=1e-4, atol=1e-4):
            said = f"all shards count the same: {said}"
        elif any(np.allclose(array.ravel(), total / k, rtol=1e-4, atol=1e-4) for k in (1, n)):
            said = f"divide the sizes by their sum: {said}"
        raise NotYet(said)
    leaves = [list(map(id, tf.nest.flatten(each))) for each in (given, towers)]
    if shares != sizes or leaves[0] != leaves[1]:
        raise NotYet("it changes the lists that it was given: make new ones")


@exercise
def half_the_bytes(function: Callable[..., Any]) -> str:
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
    if not callable(own):
        raise NotYet(f"a function is wanted, its name without brackets, not {own!r}")
    got, step = traced(lambda seed: own(vectors(seed)), tf.constant(3))
    got = numbers(got, (length,), f"return one vector of {length} numbers")
    if got.dtype != np.float32:
        raise NotYet(f"the average should be float32, not {got.dtype}")
    for copy in step.copies:
        if copy.target in plan.devices and (copy.bytes or 0) > 100:
            raise NotYet(
                f"{copy.source} sends {copy.bytes:,} bytes to {copy.target}: let every device send "
                f"its own vector straight to {plan.host}, and add and divide there"
            )
    _check_precision(got, np.stack([each.numpy() for each in vectors(tf.constant(3))]))
    for device in plan.devices:
        sent = sum(c.bytes or 0 for c in step.copies if c.source == device)
        if sent > 2 * length:
            raise NotYet(
                f"{device} sent {sent:,} bytes; {2 * length:,} are enough: cast in its block"
            )
    return f"as right as float16 is, and {2 * length:,} bytes from each device, not {4 * length:,}"


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
    if not error(got) > 1.1 * half:  # not a number compares as False
        if np.isfinite(got).all():
            return
        raise NotYet("there are infinite numbers in the average, or some that are none")
    coarse = error(cast(parts, brain).mean(0))
    if error(got) > 1.5 * coarse:
        raise NotYet(f"the average is off by {error(got):.2g}; in float16 it is off by {half:.1g}")
    if error(got) > 0.6 * coarse:
        raise NotYet("that is as coarse as bfloat16, which has 8 bits: float16 has 11")
    raise NotYet("it is rounded more than once: cast to float32 on the host first, then add")


@exercise
def mask_seed(function: Callable[[int, int], Any]) -> str:
    """Check exercise 3 of lesson 07: a dropout seed for each step and tower."""
    import tensorflow as tf

    seen: dict[tuple[int, ...], tuple[int, int]] = {}

    def seed_of(step: int, tower: int) -> tuple[int, ...]:
        way = "a seed has two whole numbers"
        seed = numbers(call(function, step, tower), (2,), way)
        if seed.dtype.kind not in "iu":
            raise NotYet(f"{way}, not {seed}")
        return tuple(seed.tolist())

    base = seed_of(0, 0)
    for step in _steps(seed_of):
        for tower in range(TOWERS):
            seed = seed_of(step, tower)
            if (step, tower) == (0, 0) and seed != base:
                raise NotYet(
                    f"step 0 of tower 0 has the seed {base}, and later {seed}: the step and the "
                    "tower alone should make it"
                )
            other = seen.setdefault(seed, (step, tower))
            if other != (step, tower):
                raise NotYet(_repeated(seed, (step, tower), other))
    # Numbers drawn from 31 bits repeat, and so rarely that only very many of them show it.
    many = np.random.default_rng(7).choice(STEPS, size=25_000, replace=False).tolist()
    for step in () if tf.is_tensor(call(function, 0, 0)) else many:
        for tower in range(TOWERS):
            seed = call(tuple, call(function, step, tower))
            if (other := seen.setdefault(seed, (step, tower))) != (step, tower):
                raise NotYet(_repeated(seed, (step, tower), other))
    steps = round(len(seen) // TOWERS, -3)
    return f"no seed came twice in about {steps:,} steps of {TOWERS} towers"


def _repeated(seed: tuple[int, ...], one: tuple[int, int], other: tuple[int, int]) -> str:
    return "step {} of tower {} has the seed of step {} of tower {}: {}".format(*one, *other, seed)


def _steps(seed_of: Callable[[int, int], tuple[int, ...]]) -> Iterator[int]:
    """Give the first steps, some of all others, and those that are as far apart as two towers."""
    some = set(range(300)) | {STEPS - 1, STEPS // 2}
    some |= {2**i for i in range(20)} | {10**i for i in range(6)}  # where a remainder starts anew
    some |= {int(step) for step in np.random.default_rng().integers(0, STEPS, 700)}
    for late in (seed_of(STEPS - 1, 0), seed_of(STEPS - 2, 1)):  # what a remainder leaves of it
        some |= {abs(number) // by for number in late for by in (1, TOWERS)}
    for tower in range(1, TOWERS):
        for a, b in zip(seed_of(0, tower), seed_of(0, 0), strict=True):
            some |= {abs(a - b) + near for near in (-1, 0, 1)}
    yield from sorted(step for step in some if 0 <= step < STEPS)
