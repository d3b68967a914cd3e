"""Run a function on every device, each with its shard: the runner of lesson 06."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mgpu_helpers.towers.split import HOST, rows, split
from mgpu_helpers.wording import counted


def _on_each(function: Callable[..., Any], devices: Sequence[str], pieces: Any) -> list[Any]:
    import tensorflow as tf

    outputs = []
    for i, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f"tower_{i}"), _scope(reuse=i > 0):
            outputs.append(function(*(piece[i] for piece in pieces)))
    return outputs


def _scope(reuse: bool) -> contextlib.AbstractContextManager[Any]:
    """Share what `get_variable` makes; only a classic graph knows variables by their names."""
    import tensorflow.compat.v1 as tf1

    if tf1.executing_eagerly_outside_functions():
        return contextlib.nullcontext()
    here = tf1.get_variable_scope()
    return tf1.variable_scope(here, reuse=reuse, auxiliary_name_scope=False)


def make_parallel(
    function: Callable[..., Any], devices: Sequence[str], *, uneven: bool = False
) -> Callable[..., Any]:
    """Make a function that does the same with every device taking a shard of the batch.

    All arguments must be batches, and all results too: one row for each example. The host cuts
    the batches and joins the results. With uneven=True the size of the batch need not divide by
    the number of devices.

    >>> make_parallel(tf.square, ["/CPU:0", "/CPU:0"])(tf.constant([1, 2, 3, 4])).numpy().tolist()
    [1, 4, 9, 16]
    """
    import tensorflow as tf

    def parallel(*args: Any, **batches: Any) -> Any:
        shards = split((args, batches), len(devices), uneven=uneven)
        outputs = run(lambda shard: function(*shard[0], **shard[1]), devices, shards)
        for shard, output in zip(shards, outputs, strict=True):
            _check_rows(tf.nest.flatten(shard)[0], tf.nest.flatten(output))
        with tf.device(HOST):
            return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *outputs)

    return parallel


def run(function: Callable[..., Any], devices: Sequence[str], *shards: Sequence[Any]) -> list[Any]:
    """Call the function once per device, on that device, with one shard of each list.

    In a classic graph the calls after the first reuse its variables. In a graph and in
    `tf.function` the devices work at the same time; eager code does one call after the other.

    >>> run(lambda x: 2 * x, ["/CPU:0", "/CPU:0"], [1, 2])
    [2, 4]
    """
    from mgpu_helpers.devices.plan import checked

    if not devices or any(len(each) != len(devices) for each in shards):
        given = ", ".join(str(len(each)) for each in shards) or "no"
        raise ValueError(
            f"{counted(len(devices), 'device')} and {given} shards: give one shard for each device."
        )
    return _on_each(function, checked(devices), shards)


def read(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Read each variable once, where it lives; a tensor stays what it is.

    Each read is a copy to the device that uses it. A tower that uses its weights twice, for logits
    and for l2, should read them first.

    >>> float(read({"w": tf.Variable(2.0)})["w"])
    2.0
    """
    import tensorflow as tf

    with tf.name_scope("read"):
        return {name: tf.convert_to_tensor(weight) for name, weight in weights.items()}


def _check_rows(given: Any, results: list[Any]) -> None:
    """Check that what a function returned has a row for each example that it was given."""
    import tensorflow as tf

    wanted = rows(given)
    for value in results:
        got = -1 if value is None else rows(tf.convert_to_tensor(value))
        if got == -1 or None not in (wanted, got) and wanted != got:
            what = "a single value" if got in (-1, None) else counted(got, "row")
            what = "None" if value is None else what
            raise ValueError(
                f"the function returned {what} for a shard of {wanted or 'some'} examples: return "
                "one row for each example, and take sums and means of what make_parallel returns."
            )
