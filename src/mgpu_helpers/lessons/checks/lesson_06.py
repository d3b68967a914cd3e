"""The checks of lesson 06's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.lessons.checks.judge import (
    PRODUCTS,
    NotYet,
    call,
    exercise,
    idle,
    numbers,
    traced,
)


@exercise
def distances(function: Callable[..., Any]) -> str:
    """Check exercise 1 of lesson 06: a function of two batches on every device."""
    plan = devices.current()
    n = 12 * len(plan)
    points = np.arange(2 * n, dtype="float32").reshape(n, 2)
    others = points + np.array([3, 4], "float32")
    value, step = traced(lambda p, q: function(points=p, others=q), points, others)
    if np.any(numbers(value, (n,), "one distance for each point is wanted") != 5):
        raise NotYet("every distance should be 5")
    if rest := idle(step):
        raise NotYet(f"{rest} did nothing: wrap it with make_parallel")
    return f"{n} distances of 5, and every device did its share"


@exercise
def uneven(make: Callable[..., Any]) -> str:
    """Check exercise 2 of lesson 06: shards that differ by one example at most."""
    plan = devices.current()
    x = np.arange(5 * len(plan) + 1, dtype="float32")
    sizes: list[int] = []

    def square(x: Any) -> Any:
        sizes.append(int(x.shape[0]))
        return x * x

    parallel, way = call(make, square, plan.devices), "the whole batch is wanted, in order"
    try:
        value = numbers(call(parallel, x=x), x.shape, way)
    except NotYet as hint:
        if "ways to split" not in str(hint):
            raise
        kind = type(hint.__cause__).__name__
        way = f"give tf.split sizes that add up to {len(x)}"
        raise NotYet(f"{len(x)} examples raise {kind}: {way}") from None
    if not np.array_equal(value, x * x):
        raise NotYet("the numbers are not those of the whole batch, in order")
    if sorted(sizes) != sorted(map(len, np.array_split(x, len(plan)))):
        raise NotYet(f"the shards hold {sizes} examples; they should differ by one at most")
    return f"{len(x)} examples as {' + '.join(map(str, sizes))}"


@exercise
def mean_error(function: Callable[[Any, Any], Any], error: Callable[[Any, Any], Any]) -> str:
    """Check exercise 3 of lesson 06: one number from each device instead of one an example."""
    plan = devices.current()
    rng = np.random.default_rng(seed=3)
    x, y = rng.integers(-5, 6, [2, 24 * len(plan)]).astype("float32")
    try:
        value, step = traced(function, x, y)
    except NotYet as hint:
        if "scalars" not in str(hint.__cause__):
            raise
        way = "keepdims=True keeps one"
        raise NotYet(f"a shard's mean has no row left to join: {way}") from None
    value = numbers(value, (), "one number is wanted")
    right = np.mean(call(error, x, y))
    if not np.isclose(value, right, rtol=1e-4):
        raise NotYet(f"the mean is {value:.4g}, not {right:.4g}")
    if rest := idle(step, PRODUCTS):
        raise NotYet(f"{rest} did nothing")
    # What reads the weights has to send them.
    for copy in sorted(step.copies, key=lambda copy: devices.order(copy.source)):
        if copy.source in plan.devices and copy.bytes > 4 and "ReadVariable" not in copy.tensor:
            raise NotYet(
                f"{copy.source} sent {copy.bytes:,} bytes: take the mean of its shard there, "
                "before it is sent"
            )
    return "the same mean, and each device sent 4 bytes"
