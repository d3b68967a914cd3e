"""The checks of lesson 08's exercises. They draw sizes of their own, so nothing can be wired in."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers._names import order
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks import judge
from mgpu_helpers.lessons.checks.judge import PRODUCTS, NotYet, call, exercise, expect, numbers


@exercise
def uneven(make: Any) -> str:
    """Check exercise 1 of lesson 08: shards that differ by one example at most."""
    plan = planned()
    rng = np.random.default_rng()
    names = (*plan.devices, plan.host)
    said = _try_uneven(make, plan.devices, 5 * len(plan) + 1, "ab")
    for n, rest, batches in ((3, 2, "abc"), (5, 0, "a"), (5, 3, "ab"), (5, 4, "abcd")):
        some = tuple(names[i % len(names)] for i in range(n))
        _try_uneven(make, some, int(rng.integers(2, 9)) * n + rest, batches)
    return f"{said}, and as evenly on 3 devices and on 5"


def _try_uneven(make: Any, names: tuple[str, ...], size: int, batches: str) -> str:
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
    in_order = np.allclose(value, np.prod(given, axis=0), rtol=1e-5)
    expect(in_order, f"{over}: the numbers are not those of the whole batch, in order")
    sizes = [length for length, _ in shards]
    even = sorted(map(len, np.array_split(np.arange(size), len(names))))
    expect(sorted(sizes) == even,
           f"{over}: the shards hold {sizes} examples; they may differ by one at most")
    used = [place for _, place in shards]
    expect(sorted(used) == sorted(names), f"{over} ran on {', '.join(used)}, not on "
           f"{', '.join(names)}: is tf.device in the loop?")
    host = planned().host
    what = "cut" if cut_on - {host} else "joined"
    for elsewhere in sorted({*cut_on, joined_on} - {host}):
        raise NotYet(f"on a GPU machine {elsewhere} {what} the batch: name {host} for that")
    return f"{size} examples as {' + '.join(map(str, sizes))}"


@exercise
def mean_map(function: Any, each_image: Any) -> str:
    """Check exercise 2 of lesson 08: the mean of all images, and one image from each device."""
    import tensorflow as tf

    plan = planned()
    rng = np.random.default_rng()
    row = 4 * 28 * 28  # bytes
    for each in (24, int(rng.integers(25, 60))):  # images for each device
        x = rng.random([each * len(plan), 28, 28, 1]).astype("float32")
        try:
            value, step = judge.traced(function, x)
        except NotYet as hint:
            if "symbolic" in str(hint.__cause__):
                way = "tf.split cuts a tensor, np.split only an array"
                raise NotYet(f"the check gives tensors of a graph: {way}") from None
            raise
        right = np.mean(call(each_image, tf.constant(x)), axis=0)
        if np.size(value) == len(plan) * right.size > right.size:
            raise NotYet("these are the means of the shards: take the mean of them, too")
        if np.size(value) == right.size:  # one image, also as a batch of one
            value = np.reshape(value, right.shape)
        value = numbers(value, right.shape, "one image is wanted")
        close = np.allclose(value, right, rtol=1e-4, atol=1e-5 * np.abs(right).max())
        expect(close, "this is not the mean over all images")
        rest = judge.idle(step, PRODUCTS)
        expect(not rest, f"{rest} did nothing: let every device take its shard")
        for op in step.ops:
            large = op.type in PRODUCTS and op.bytes > row * each
            expect(not large, f"{op.device} computed more than its shard: cut before you compute")
        # What reads the weights has to send them.
        kinds = {op.name: op.type for op in step.ops}
        for copy in sorted(step.copies, key=lambda copy: order(copy.source)):
            large = copy.source in plan.devices and (copy.bytes or 0) > row
            kind = kinds.get(copy.tensor.split(":")[0], "")
            way = "take the mean of a shard on its device, and send only that"
            if copy.target in plan.devices and ("Split" in kind or "Slice" in kind):
                way = "cut the batch on the host"
            expect(not large or "ReadVariable" in copy.tensor,
                   f"{copy.source} sent more than one image: {way}")
    return f"the same mean, and each device sent {row:,} bytes"


def _place(value: Any) -> str:
    """Say where a tensor is; what is no tensor is on the host."""
    import tensorflow as tf

    return devices.short(value.device) if tf.is_tensor(value) else planned().host


def _by_place_or_name(function: Any, *names: str) -> Any:
    """Let a function that takes its batches only by name be called by place."""
    kinds = set()
    with contextlib.suppress(TypeError, ValueError):  # some do not tell
        kinds = {each.kind for each in inspect.signature(function).parameters.values()}

    def called(*batches: Any) -> Any:
        if kinds and kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}:
            return function(**dict(zip(names, batches, strict=True)))
        return function(*batches)

    return called if callable(function) else function
