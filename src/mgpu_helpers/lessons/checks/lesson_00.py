"""The checks of lesson 00's exercises."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import exercise, expect, numbers, products_on_all, traced


@exercise
def default_device(answer: Any) -> str:
    """Check exercise 1 of lesson 00: the device that TensorFlow chooses unasked."""
    import tensorflow as tf

    expect(answer is not None, "put a device name into answer; a tensor has one in .device")
    expect(not tf.is_tensor(answer), "that is the tensor: write its .device")
    a_name = isinstance(answer, str)
    expect(a_name, f"a device name is a string such as '/CPU:0', not {answer!r}")
    expect(devices.short(answer).upper() == devices.short(tf.ones([2, 2]).device),
           f"it is not on {answer or 'nothing'}; make it and look at its .device")
    return "that is where TensorFlow puts what nobody places"


@exercise
def multiply_columns(function: Any) -> str:
    """Check exercise 2 of lesson 00: value, places and bytes of a product shared by columns."""
    plan, rng = planned(), np.random.default_rng(seed=1)
    left = rng.integers(-3, 4, [60, 40]).astype("float32")
    right = rng.integers(-3, 4, [40, 840]).astype("float32")
    value, step = traced(function, left, right)
    value = numbers(value, (60, 840), "columns are joined along axis 1")
    in_order = np.array_equal(value, left @ right)
    expect(in_order, "the shape is right and the numbers are not: are the pieces in order?")
    products_on_all(step, "{} multiplied nothing: is tf.device in the loop?")
    wanted = left.nbytes + right.nbytes // len(plan)
    for copy in step.copies:
        expect(not {copy.source, copy.target} <= {*plan.devices}, f"{copy.source} sends to "
               f"{copy.target}: cut and join in a block of {plan.host}")
    for device in plan.devices:
        got = sum(copy.bytes or 0 for copy in step.copies if copy.target == device)
        way = "cut right on the host, outside the device's block"
        if got < right.nbytes:
            way = "cut right into equal parts"
        elif got < left.nbytes + right.nbytes:
            way = "send all of left, and cut right, not left"
        expect(got <= wanted, f"{device} got {got:,} bytes, where all of left and its columns of "
               f"right are {wanted:,}: {way}")
    return f"the same product, and each device got {wanted:,} bytes"
