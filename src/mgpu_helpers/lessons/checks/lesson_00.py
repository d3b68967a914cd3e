"""The checks of lesson 00's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import PRODUCTS, NotYet, exercise, idle, numbers, traced


@exercise
def default_device(answer: Any) -> str:
    """Check exercise 1 of lesson 00: the device that TensorFlow chooses unasked."""
    import tensorflow as tf

    right = devices.short(tf.ones([2, 2]).device)
    if answer is None:
        raise NotYet("put a device name into answer; a tensor has one in .device")
    if tf.is_tensor(answer):
        raise NotYet("that is the tensor: write its .device")
    if not isinstance(answer, str):
        raise NotYet(f"a device name is a string such as '/CPU:0', not {answer!r}")
    if devices.short(answer).upper() != right:
        raise NotYet(f"it is not on {answer or 'nothing'}; make it and look at its .device")
    return "that is where TensorFlow puts what nobody places"


@exercise
def multiply_columns(function: Callable[[Any, Any], Any]) -> str:
    """Check exercise 2 of lesson 00: value, places and bytes of a product shared by columns."""
    plan = planned()
    rng = np.random.default_rng(seed=1)
    left = rng.integers(-3, 4, [60, 40]).astype("float32")
    right = rng.integers(-3, 4, [40, 840]).astype("float32")
    value, step = traced(function, left, right)
    value = numbers(value, (60, 840), "columns are joined along axis 1")
    if not np.array_equal(value, left @ right):
        raise NotYet("the shape is right and the numbers are not: are the pieces in order?")
    if rest := idle(step, PRODUCTS):
        raise NotYet(f"{rest} multiplied nothing: is tf.device in the loop?")
    if any(op.type in PRODUCTS and op.device == plan.host for op in step.ops):
        raise NotYet(f"{plan.host} multiplies: leave the products to the devices")
    wanted = left.nbytes + right.nbytes // len(plan)
    for copy in step.copies:
        if copy.source in plan.devices and copy.target in plan.devices:
            raise NotYet(
                f"{copy.source} sends to {copy.target}: cut and join in a block of {plan.host}"
            )
    for device in plan.devices:
        got = sum(c.bytes or 0 for c in step.copies if c.target == device)
        if got > wanted:
            way = "cut right on the host, outside the device's block"
            if got < right.nbytes:
                way = "cut right into equal parts"
            elif got < left.nbytes + right.nbytes:
                way = "send all of left, and cut right, not left"
            raise NotYet(
                f"{device} got {got:,} bytes, where all of left and its columns of right are "
                f"{wanted:,}: {way}"
            )
    return f"the same product, and each device got {wanted:,} bytes"
