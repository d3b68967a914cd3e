"""The checks of lesson 01's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices, placement
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
def full_name(answer: Any) -> str:
    """Check exercise 1 of lesson 01: the full name of the plan's last device."""
    import tensorflow as tf

    last = devices.current().devices[-1]
    right = next(d.name for d in tf.config.list_logical_devices() if devices.short(d.name) == last)
    right = f"/job:localhost/replica:0/task:0{right}"
    if isinstance(answer, tf.DeviceSpec):
        raise NotYet("that is the spec; its to_string() is the name")
    if not isinstance(answer, str):
        raise NotYet(f"a device name is a string, not {answer!r}")
    if answer == last:
        raise NotYet("that is the short name; merge it with the job, the replica and the task")
    if answer != right:
        missing = [p for p in ("job:localhost", "replica:0", "task:0") if p not in answer]
        why = f"{', '.join(missing)} is missing" if missing else f"the device is not {last}"
        if not missing and devices.short(answer) == last:
            part = tf.DeviceSpec.from_string(last).to_string()
            why = f"in a full name the device part is written {part}"
        raise NotYet(f"{answer!r}: {why}")
    return right


@exercise
def variables_on_host(choose: Callable[[Any], str]) -> str:
    """Check exercise 2 of lesson 01: a device function that keeps variables on the host."""
    import tensorflow as tf

    plan = devices.current()
    graph = tf.Graph()

    def place(op: Any) -> str:
        device = call(choose, op)
        device = device if isinstance(device, str) else ""
        return call(tf.DeviceSpec.from_string, device).to_string()

    with graph.as_default(), tf.compat.v1.device(place):
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        weights = tf.compat.v1.get_variable("weights", initializer=tf.ones([3, 2]))
        product = tf.matmul(x, weights, name="product")
    config = plan.session_config(log_placement=True)
    try:
        with (
            placement.capture() as log,
            tf.compat.v1.Session(graph=graph, config=config) as session,
        ):
            session.run(weights.initializer)
            session.run(product, {x: np.ones([1, 3])})
    except tf.errors.InvalidArgumentError:
        raise NotYet("an operation that reads or assigns the variable is not where it is") from None
    for row in sorted(log.rows, key=lambda row: row.type != "VarHandleOp"):  # others follow it
        wanted = plan.host if "Var" in row.type else plan.devices[0]
        if row.device != wanted:
            raise NotYet(f"{row.name}, a {row.type}, is on {row.device}, not on {wanted}")
    return f"variables on {plan.host}, the rest on {plan.devices[0]}"


@exercise
def add_entries(function: Callable[[Any], Any]) -> str:
    """Check exercise 3 of lesson 01: one number from each device instead of a matrix."""
    plan = devices.current()
    x = np.random.default_rng(seed=2).integers(-3, 4, [60, 60]).astype("float32")
    value, step = traced(function, x)
    value, right = numbers(value, (), "one number is wanted"), len(plan) * (x @ x).sum()
    if value != right:
        raise NotYet(f"the sum is {value:.0f}, not {right:.0f}")
    if rest := idle(step, PRODUCTS):
        raise NotYet(f"{rest} multiplied nothing")
    for (source, target), size in step.bytes_between().items():
        if source in plan.devices and size > 4:
            raise NotYet(f"{source} sent {size:,} bytes to {target}: add up in its own block")
    return "the same number, and each device sent 4 bytes"
