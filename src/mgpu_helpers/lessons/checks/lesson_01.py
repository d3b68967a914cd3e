"""The checks of lesson 01's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices, trace
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


@exercise
def full_name(function: Callable[[str], str]) -> str:
    """Check exercise 1 of lesson 01: the full name of a device, from its short name."""
    import tensorflow as tf

    numbered = [0, *np.random.default_rng(seed=3).choice(np.arange(2, 60), 2, replace=False)]
    ways = [
        form.format(kind, i) for form in ("/{}:{}", "/device:{}:{}") for kind in ("GPU", "cpu")
        for i in numbered
    ]  # fmt: skip
    for name in [*planned().devices, *ways]:
        device = tf.DeviceSpec.from_string(name).to_string()
        right = f"/job:localhost/replica:0/task:0{device}"
        answer = call(function, name)
        if answer is None:
            raise NotYet("the function returns nothing: return the full name")
        if isinstance(answer, tf.DeviceSpec):
            raise NotYet("it returns a spec; the name is in its to_string()")
        if not isinstance(answer, str):
            raise NotYet(f"a device name is a string, not {answer!r}")
        if answer == right:
            continue
        missing = [p for p in ("job:localhost", "replica:0", "task:0") if p not in answer]
        if missing:
            why = f"{', '.join(missing)} is missing"
        elif devices.short(answer) == devices.short(device):
            why = f"in a full name the device part is written {device}"
        else:
            why = f"the device is not {devices.short(device)}"
        raise NotYet(f"for {name} it gives {answer!r}: {why}")
    return f"{len(ways)} names of devices, each in full"


@exercise
def variables_on_host(choose: Callable[[Any], str]) -> str:
    """Check exercise 2 of lesson 01: a device function that keeps variables on the host."""
    import tensorflow as tf

    plan, tf1 = planned(), tf.compat.v1
    graph, unnamed = tf.Graph(), {}

    def place(op: Any) -> str:
        device = call(choose, op)
        if isinstance(device, tf.DeviceSpec):
            device = device.to_string()
        if not isinstance(device, str) or not device:
            unnamed[op.name] = device
            device = ""
        return call(tf.DeviceSpec.from_string, device).to_string()

    # Names that say nothing about what an operation is, or the opposite of it.
    with graph.as_default(), tf1.device(place):
        product = tf1.placeholder(tf.float32, [None, 3], name="weights_of_the_batch")
        stored = []
        for name, shape in [("product", [3, 4]), ("layer/kernel", [4, 5]), ("b", [5, 2])]:
            stored.append(tf1.get_variable(name, initializer=tf.ones(shape)))
            product = tf.matmul(product, stored[-1], name=f"variable_{len(stored)}")
        product = tf.identity(product, name="VarHandle")
    config = plan.session_config(log_placement=True)
    try:
        with trace.placement() as log, tf1.Session(graph=graph, config=config) as session:
            session.run([variable.initializer for variable in stored])
            session.run(product, {"weights_of_the_batch:0": np.ones([1, 3])})
    except tf.errors.InvalidArgumentError:
        raise NotYet(
            "TensorFlow cannot place what it asks for: a variable, what reads it and what assigns "
            "it belong on one device, and the device has to be there"
        ) from None
    for row in sorted(log.rows, key=lambda row: row.type != "VarHandleOp"):  # others follow it
        wanted = plan.host if "Var" in row.type else plan.devices[0]
        if row.name in unnamed and "Var" not in row.type:
            raise NotYet(f"for {row.name} ({row.type}) it gives {unnamed[row.name]!r}, no device")
        if row.device != wanted:
            raise NotYet(f"{row.name} ({row.type}) is on {row.device}, not on {wanted}")
    return f"{len(stored)} variables on {plan.host}, the rest on {plan.devices[0]}"


@exercise
def add_entries(function: Callable[[Any], Any]) -> str:
    """Check exercise 3 of lesson 01: one number from each device instead of a matrix."""
    plan, rng = planned(), np.random.default_rng(seed=2)
    size = int(rng.integers(50, 80))
    x = rng.integers(-3, 4, [size, size]).astype("float32")
    value, step = traced(function, x)
    value, right = numbers(value, (), "one number is wanted"), len(plan) * (x @ x).sum()
    if value != right:
        raise NotYet(f"the sum is {value:.0f}, not {right:.0f}")
    if rest := idle(step, PRODUCTS):
        raise NotYet(f"no matrix product ran on {rest}")
    if any(op.type in PRODUCTS and op.device == plan.host for op in step.ops):
        raise NotYet(f"{plan.host} multiplies: leave the products to the devices")
    for device, share in _shares(function, x).items():
        if not np.isclose(share, right / len(plan)):
            raise NotYet(
                f"the products on {device} add {share:.0f} to the sum, not {right / len(plan):.0f}"
            )
    for device in plan.devices:
        sent = sum(copy.bytes or 0 for copy in step.copies if copy.source == device)
        if sent > 4:
            way = "add up its entries in its own block" if sent > 16 else "a float32 has only 4"
            raise NotYet(f"{device} sent {sent:,} bytes: {way}")
    return "the same number, and no device sent more than 4 bytes"


def _shares(function: Callable[[Any], Any], x: np.ndarray) -> dict[str, float]:
    """Give what the matrix products of each device add to the number that a function returns.

    It is the sum of their entries, each times its gradient. Of a product of products the last
    one counts. A device is left out where this cannot be told: it has whole numbers, or a loop.
    """
    import tensorflow as tf

    def parts(x: Any) -> dict[str, Any]:
        value = function(x)
        found: dict[str, Any] = {}
        ops = tf.compat.v1.get_default_graph().get_operations()
        products = [op.outputs[0] for op in ops if op.type in PRODUCTS]
        products = [product for product in products if product.dtype.is_floating]
        slopes = tf.gradients(value, products, stop_gradients=products)
        for product, slope in zip(products, slopes, strict=True):
            part = 0.0 if slope is None else tf.reduce_sum(tf.cast(product * slope, tf.float32))
            device = devices.short(product.device)
            found[device] = found.get(device, tf.constant(0.0)) + part
        return found

    tf.config.run_functions_eagerly(True)  # the function's own parts then stand in this graph, too
    try:
        with tf.device(planned().devices[0]):
            added = tf.function(parts).get_concrete_function(tf.constant(x))
    except Exception:  # a loop over a tensor; what is wrong without this, the trace has met before
        return {}
    finally:
        tf.config.run_functions_eagerly(False)
    return {device: float(part) for device, part in added(tf.constant(x)).items()}
