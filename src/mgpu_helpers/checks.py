"""What the exercises call: each prints "yes: …", or "not yet: …" with the way on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices, placement, trace


def _not_yet(why: str) -> None:
    print(f"not yet: {why}")


def _raised(error: Exception) -> None:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    _not_yet(f"it raises {type(error).__name__}: {lines[-1] if lines else ''}")


def default_device(answer: Any) -> None:
    """Check exercise 1 of lesson 00: the device that TensorFlow chooses unasked."""
    import tensorflow as tf

    right = devices.short(tf.ones([2, 2]).device)
    if answer is None:
        return _not_yet("put a device name into answer; a tensor has one in .device")
    if not isinstance(answer, str):
        return _not_yet(f"a device name is a string such as '/CPU:0', not {answer!r}")
    if devices.short(answer) != right:
        return _not_yet(f"it is not on {answer or 'nothing'}; make it and look at its .device")
    print(f"yes: without a name it goes to {right}")


def multiply_columns(function: Callable[[Any, Any], Any]) -> None:
    """Check exercise 2 of lesson 00: value, places and bytes of a product shared by columns."""
    plan = devices.current()
    rng = np.random.default_rng(seed=1)
    left = rng.integers(-3, 4, [60, 40]).astype("float32")
    right = rng.integers(-3, 4, [40, 840]).astype("float32")
    try:
        value, step = trace.function_step(function, left, right)
    except Exception as error:
        return _raised(error)
    if value is None:
        return _not_yet("the function returns nothing")
    if value.shape != (60, 840):
        return _not_yet(
            f"the product has shape {value.shape}, not (60, 840): columns are joined along axis 1"
        )
    if not np.array_equal(value, left @ right):
        return _not_yet("the shape is right and the numbers are not: are the pieces in order?")
    idle = set(plan.devices) - {op.device for op in step.ops if op.type == "MatMul"}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} multiplied nothing: is tf.device in the loop?")
    wanted = left.nbytes + right.nbytes // len(plan)
    for copy in step.copies:
        if copy.source in plan.devices and copy.target in plan.devices:
            return _not_yet(f"{copy.source} sends to {copy.target}: join the pieces on {plan.host}")
    for device in plan.devices:
        got = sum(c.bytes for c in step.copies if c.target == device)
        if got > wanted:
            way = "cut right on the host, outside the device's block"
            if got < left.nbytes + right.nbytes:
                way = "send all of left, and cut right, not left"
            return _not_yet(
                f"{device} got {got:,} bytes, where all of left and its columns of right are "
                f"{wanted:,}: {way}"
            )
    print(f"yes: the same product, and each device got {wanted:,} bytes")


def full_name(answer: Any) -> None:
    """Check exercise 1 of lesson 01: the full name of the plan's last device."""
    import tensorflow as tf

    last = devices.current().devices[-1]
    right = next(d.name for d in tf.config.list_logical_devices() if devices.short(d.name) == last)
    right = f"/job:localhost/replica:0/task:0{right}"
    if isinstance(answer, tf.DeviceSpec):
        return _not_yet("that is the spec; its to_string() is the name")
    if not isinstance(answer, str):
        return _not_yet(f"a device name is a string, not {answer!r}")
    if answer == last:
        return _not_yet("that is the short name; merge it with the job, the replica and the task")
    if answer != right:
        missing = [p for p in ("job:localhost", "replica:0", "task:0") if p not in answer]
        why = f"{', '.join(missing)} is missing" if missing else f"the device is not {last}"
        if not missing and devices.short(answer) == last:
            part = tf.DeviceSpec.from_string(last).to_string()
            why = f"in a full name the device part is written {part}"
        return _not_yet(f"{answer!r}: {why}")
    print(f"yes: {right}")


def variables_on_host(choose: Callable[[Any], str]) -> None:
    """Check exercise 2 of lesson 01: a device function that keeps variables on the host."""
    import tensorflow as tf

    plan = devices.current()
    graph = tf.Graph()

    def place(op: Any) -> str:
        device = choose(op)
        return device if isinstance(device, str) else ""

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
        return _not_yet("an operation that reads or assigns the variable is not where it is")
    for row in sorted(log.rows, key=lambda row: row.type != "VarHandleOp"):  # others follow it
        wanted = plan.host if "Var" in row.type else plan.devices[0]
        if row.device != wanted:
            return _not_yet(f"{row.name}, a {row.type}, is on {row.device}, not on {wanted}")
    print(f"yes: variables on {plan.host}, the rest on {plan.devices[0]}")


def add_entries(function: Callable[[Any], Any]) -> None:
    """Check exercise 3 of lesson 01: one number from each device instead of a matrix."""
    plan = devices.current()
    x = np.random.default_rng(seed=2).integers(-3, 4, [60, 60]).astype("float32")
    try:
        value, step = trace.function_step(function, x)
    except Exception as error:
        return _raised(error)
    if value is None or np.shape(value) != ():
        return _not_yet(f"the result has shape {np.shape(value)}; one number is wanted")
    if value != len(plan) * (x @ x).sum():
        return _not_yet(f"the sum is {value:.0f}, not {len(plan) * (x @ x).sum():.0f}")
    idle = set(plan.devices) - {op.device for op in step.ops if op.type == "MatMul"}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} multiplied nothing")
    for (source, target), size in step.bytes_between().items():
        if source in plan.devices and size > 4:
            return _not_yet(f"{source} sent {size:,} bytes to {target}: add up in its own block")
    print("yes: the same number, and each device sent 4 bytes")
