"""The checks of lesson 06's exercises. They draw sizes of their own, so nothing can be wired in."""

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

RAISED = {  # what TensorFlow and the helper say of usual mistakes in mean_map, and the way on
    "to a numpy array": "the check gives tensors of a graph, which NumPy does not take: use "
                        "tf.split and tf.reduce_mean",
    "needs the value of a tensor": "the check traces a graph, where a tensor has no value yet: "
                                   "use tf.reduce_mean, and no .numpy()",
    "concatenate scalars": "the mean over all numbers of a shard is no image: take it over the "
                           "images alone, with axis=0 and keepdims=True",
    "for a shard of": "towers.make_parallel wants a row for each example: use the make_parallel of "
                      "this lesson",
}  # fmt: skip


@exercise
def uneven(make: Any) -> str:
    """Check exercise 1 of lesson 06: shards that differ by one example at most."""
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
        expect(callable(parallel), f"return the function that cuts and joins, not {parallel!r}")
        try:
            value = call(_by_place_or_name(parallel, *batches), *given)
        except NotYet as hint:
            cut = "ways to split", "split_dim", "divi", "Split size"
            if not any(words in str(hint) for words in cut):
                raise
            kind = type(hint.__cause__).__name__
            way = f"give tf.split sizes that add up to {size}, none of them below 0"
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
    """Check exercise 2 of lesson 06: the mean of all images, and one image from each device."""
    import tensorflow as tf

    plan = planned()
    rng = np.random.default_rng()
    row = 4 * 28 * 28  # bytes
    for each in (24, int(rng.integers(25, 60))):  # images for each device
        x = rng.random([each * len(plan), 28, 28, 1]).astype("float32")
        try:
            value, step = judge.traced(function, x)
        except NotYet as hint:
            for words, way in RAISED.items():
                expect(words not in f"{hint} {hint.__cause__}", way)
            raise
        right = np.mean(call(each_image, tf.constant(x)), axis=0)
        if np.size(value) == len(plan) * right.size > right.size:
            raise NotYet("these are the means of the shards: take the mean of them, too")
        if np.size(value) == right.size:  # one image, also as a batch of one
            value = np.reshape(value, right.shape)
        if np.shape(value) == right.shape[1:]:
            raise NotYet("means of shards were joined row by row: give each mean a first axis of "
                         "one, by keepdims=True")
        way = "one image is wanted, the mean over the images alone (axis=0)"
        value = numbers(value, right.shape, way)
        if not _close(value, right):
            _name_mean(value, right, each_image, x)
        if any(op.type in PRODUCTS and op.device == plan.host for op in step.ops):
            raise NotYet(f"{plan.host} computed matrix products: leave the model and its tape to "
                         "the devices, in the function of a shard")
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
    return f"the same mean, and each device sent the host {row:,} bytes"


def _close(value: Any, right: Any) -> bool:
    return bool(np.allclose(value, right, rtol=1e-4, atol=1e-5 * np.abs(right).max()))


def _name_mean(value: Any, right: Any, each_image: Any, x: Any) -> None:
    """Raise a hint that says what was given in the place of the mean over all images."""
    import tensorflow as tf

    n, one = len(planned()), "this is the mean of one shard: take the mean of all shards' means"
    shards = np.split(np.asarray(call(each_image, tf.constant(x))), n)
    image = "this is the saliency of a mean image: take the mean after the saliency, not before"
    centres = [np.mean(part, axis=0, keepdims=True) for part in (x, *np.split(x, n))]
    whole, *parts = (call(each_image, tf.constant(each))[0] for each in centres)
    for given, what in (
        (right * len(x), "this is the sum over all images: divide it by their number"),
        (right * n, "the shards' means were added: take the mean of them"),
        (right * (len(x) / n), "a shard's sum is no mean: divide it by the number of its images"),
        (np.mean(shards[0], axis=0), one), (np.mean(shards[-1], axis=0), one),
        (whole, image), (np.mean(parts, axis=0), image),
    ):
        expect(not _close(value, given), what)
    times = float(np.sum(value * right) / np.sum(right * right))
    expect(not _close(value, times * right), f"this is {times:.3g} times the mean over all images")
    raise NotYet("this is not the mean over all images that it was given")


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
