"""The checks of lesson 06's exercises. They draw sizes of their own, so nothing can be wired in."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import (
    PRODUCTS,
    NotYet,
    call,
    exercise,
    idle,
    numbers,
    traced,
)
from mgpu_helpers.names import order

# What moves numbers and computes none.
MOVES = {
    "Concat", "ConcatV2", "Const", "DeepCopy", "ExpandDims", "Identity", "IdentityN", "NoOp",
    "Pack", "Placeholder", "ReadVariableOp", "Reshape", "Slice", "Split", "SplitV", "Squeeze",
    "StridedSlice", "Unpack", "VarHandleOp",
}  # fmt: skip

ARITHMETIC = {
    "Abs", "AddV2", "BiasAdd", "EuclideanNorm", "Mul", "Pow", "Sqrt", "Square", "SquaredDifference",
    "Sub", "Sum",
}  # fmt: skip


@exercise
def distances(function: Callable[..., Any]) -> str:
    """Check exercise 1 of lesson 06: a function of two batches on every device."""
    plan = planned()
    rng = np.random.default_rng()
    for each in (12, int(rng.integers(13, 40))):  # rows for each device
        points, others = rng.integers(-9, 10, [2, each * len(plan), 2]).astype("float32")
        value, step = traced(_by_place_or_name(function, "points", "others"), points, others)
        value = numbers(value, points.shape[:1], "one distance for each point is wanted")
        wanted = np.linalg.norm(points - others, axis=1)
        if not np.allclose(value, wanted, rtol=1e-3, atol=1e-3):
            if np.allclose(np.sort(value), np.sort(wanted), rtol=1e-3, atol=1e-3):
                raise NotYet("these are the distances, but not in the order of the points")
            raise NotYet("these are not the distances of each point from the same row of others")
        worked = [op for op in step.ops if op.type not in MOVES]
        if rest := ", ".join(d for d in plan.devices if d not in {op.device for op in worked}):
            raise NotYet(f"{rest} computed nothing: wrap it with make_parallel")
        for op in worked:
            if op.device == plan.host and op.type in ARITHMETIC and op.bytes >= 4 * each:
                raise NotYet(f"{plan.host} computed {op.type}: cut the two batches, not what comes "
                             "of them")  # fmt: skip
            if op.device in plan.devices and op.bytes > 8 * each:  # two numbers for each point
                raise NotYet(f"{op.device} computed more than its shard: cut before you compute")
        counts = {device: Counter[str]() for device in plan.devices}
        for op in worked:
            if op.device in counts and op.type in ARITHMETIC and op.bytes >= 4 * each:
                counts[op.device][op.type] += 1
        first = counts[plan.devices[0]]
        if other := next((device for device in counts if counts[device] != first), None):
            raise NotYet(f"{other} computed something else than {plan.devices[0]}: cut the batches "
                         "by their rows, and let every device run the whole function")  # fmt: skip
    return "the distances are right, and every device computed those of its shard"


@exercise
def uneven(make: Callable[..., Any]) -> str:
    """Check exercise 2 of lesson 06: shards that differ by one example at most."""
    plan = planned()
    rng = np.random.default_rng()
    names = (*plan.devices, plan.host)
    said = _try_uneven(make, plan.devices, 5 * len(plan) + 1, "ab")
    for n, rest, batches in ((3, 2, "abc"), (5, 0, "a"), (5, 3, "ab"), (5, 4, "abcd")):
        some = tuple(names[i % len(names)] for i in range(n))
        _try_uneven(make, some, int(rng.integers(2, 9)) * n + rest, batches)
    return f"{said}, and as even on 3 devices and on 5"


def _try_uneven(make: Callable[..., Any], names: tuple[str, ...], size: int, batches: str) -> str:
    """Let the answer share `size` rows of these batches out over these devices."""
    import tensorflow as tf

    shards: list[tuple[int, str]] = []
    cut_on: set[str] = set()

    def product(*parts: Any) -> Any:
        if len(parts) != len(batches):
            got = f"of {len(batches)} batches it got {len(parts)}"
            raise ValueError(f"{got}: give it a shard of each")
        cut_on.update(map(_place, parts))
        parts = tuple(tf.identity(part) for part in parts)
        if len(lengths := {len(part) for part in parts}) > 1:
            said = " and ".join(map(str, sorted(lengths)))
            raise ValueError(f"shards of {said} rows: cut all batches alike")
        shards.append((len(parts[0]), devices.short(parts[0].device)))
        return tf.reduce_prod(tf.stack(parts), axis=0)

    over, way = f"{size} examples over {len(names)}", "the whole batch is wanted, in order"
    with contextlib.ExitStack() as stack:
        # What a tf.function holds runs as it stands, so that shapes and places are known.
        stack.callback(tf.config.run_functions_eagerly, tf.config.functions_run_eagerly())
        tf.config.run_functions_eagerly(True)
        stack.enter_context(tf.device(names[0]))
        rows = np.arange(2.0 * size).reshape(size, 2)  # a row has two numbers
        given = [tf.constant(rows + 7 * i, tf.float32) for i in range(len(batches))]
        parallel = call(make, product, names)
        try:
            value = call(_by_place_or_name(parallel, *batches), *given)
        except NotYet as hint:
            if not any(words in str(hint) for words in ("ways to split", "split_dim", "divi")):
                raise
            kind = type(hint.__cause__).__name__
            way = f"give tf.split sizes that add up to {size}"
            raise NotYet(f"{size} examples raise {kind}: {way}") from None
        joined_on = _place(value)
        value = numbers(value, (size, 2), f"{over}: {way}")
    if not np.allclose(value, np.prod(given, axis=0), rtol=1e-5):
        raise NotYet(f"{over}: the numbers are not those of the whole batch, in order")
    sizes = [length for length, _ in shards]
    even = sorted(map(len, np.array_split(np.arange(size), len(names))))
    if sorted(sizes) != even:
        raise NotYet(f"{over}: the shards hold {sizes} examples; they may differ by one at most")
    if sorted(place for _, place in shards) != sorted(names):
        used = ", ".join(place for _, place in shards)
        raise NotYet(f"{over} ran on {used}, not on {', '.join(names)}: is tf.device in the loop?")
    host = planned().host
    if elsewhere := sorted({*cut_on, joined_on} - {host}):
        what = "cut" if cut_on - {host} else "joined"
        raise NotYet(f"on a GPU machine {elsewhere[0]} {what} the batch: name {host} for that")
    return f"{size} examples as {' + '.join(map(str, sizes))}"


@exercise
def mean_error(function: Callable[[Any, Any], Any], error: Callable[[Any, Any], Any]) -> str:
    """Check exercise 3 of lesson 06: one number from each device instead of one an example."""
    plan = planned()
    rng = np.random.default_rng()
    for each in (24, int(rng.integers(25, 60))):  # points for each device
        x, y = rng.integers(-5, 6, [2, each * len(plan)]).astype("float32")
        try:
            value, step = traced(function, x, y)
        except NotYet as hint:
            if "scalars" not in str(hint.__cause__):
                raise
            way = "keepdims=True keeps one"
            raise NotYet(f"a shard's mean has no row left to join: {way}") from None
        value, right = numbers(value, (), "one number is wanted"), np.mean(call(error, x, y))
        if not np.isclose(value, right, rtol=1e-4):
            raise NotYet("this is not the mean of the squared errors of all points")
        if rest := idle(step, PRODUCTS):
            raise NotYet(f"{rest} did nothing: let every device take its shard")
        for op in step.ops:
            if op.type in PRODUCTS and op.device in plan.devices and op.bytes > 4 * each:
                raise NotYet(f"{op.device} computed more than its shard: cut before you compute")
        # What reads the weights has to send them.
        for copy in sorted(step.copies, key=lambda copy: order(copy.source)):
            sent = copy.bytes or 0
            if copy.source in plan.devices and sent > 4 and "ReadVariable" not in copy.tensor:
                raise NotYet(
                    f"{copy.source} sent more than one number: cut the batch on the host, and take "
                    "the mean of a shard on its device, before it is sent"
                )
    return "the same mean, and each device sent 4 bytes"


def _place(value: Any) -> str:
    """Say where a tensor is; what is no tensor is on the host."""
    import tensorflow as tf

    return devices.short(value.device) if tf.is_tensor(value) else planned().host


def _by_place_or_name(function: Any, *names: str) -> Callable[..., Any]:
    """Let a function that takes its batches only by name be called by place."""

    def called(*batches: Any) -> Any:
        named = dict(zip(names, batches, strict=True))
        by_name = _takes(function, **named) and not _takes(function, *batches)
        return function(**named) if by_name else function(*batches)

    return called if callable(function) else function


def _takes(function: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Say whether a function can be called so; True where it does not tell."""
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
