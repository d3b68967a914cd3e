"""The checks of lesson 00's exercises."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers._models import is_model
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks.judge import (
    call,
    exercise,
    expect,
    numbers,
    products_on_all,
    traced,
)  # fmt: skip


@exercise
def on_all(build: Any) -> str:
    """Check exercise 1 of lesson 00: a step of `fit` that works on every device."""
    expect(not is_model(build), "a function is wanted, its name without brackets, not a model")
    plan, model = planned(), call(build)
    expect(is_model(model), f"build_on_all gave {model!r}: return the model")
    n = len(plan)
    batch = digits.load(4 * n * (n + 1))  # a multiple of n, and of n and the host
    step = call(lambda: trace.fit_step(model, batch))
    worked = {op.device for op in step.ops if "Conv2D" in op.type}
    expect(worked, "the step computed no convolution: return the model of build()")
    expect(worked >= {*plan.devices}, "not every device of the plan computed a convolution: build "
           "the model in the scope of a strategy that has them all; a block of tf.device says only "
           "where weights are made")
    others = ", ".join(sorted(worked - {*plan.devices}))
    expect(not others, f"{others} computed convolutions, too: give the strategy plan.devices")
    return f"a step computed its convolutions on {', '.join(sorted(worked))}"


@exercise
def multiply_columns(function: Any) -> str:
    """Check exercise 2 of lesson 00: value, places and bytes of a product shared by columns."""
    plan, rng = planned(), np.random.default_rng(seed=1)
    left = rng.integers(-3, 4, [60, 40]).astype("float32")
    right = rng.integers(-3, 4, [40, 840]).astype("float32")
    value, step = traced(function, left, right)
    value = numbers(value, (60, 840), "return the pieces, joined along axis 1")
    in_order = np.array_equal(value, left @ right)
    expect(in_order, "the shape is right and the numbers are not: are the pieces in order?")
    products_on_all(step, "{} multiplied nothing: is tf.device in the loop?")
    wanted = left.nbytes + right.nbytes // len(plan)
    for copy in step.copies:
        expect(not {copy.source, copy.target} <= {*plan.devices}, f"{copy.source} sends to "
               f"{copy.target}: cut and join in a block of {plan.host}")
    sizes = {device: sum(copy.bytes or 0 for copy in step.copies if copy.target == device)
             for device in plan.devices}
    for device, got in sizes.items():
        way = "cut right on the host, outside the device's block"
        if got < right.nbytes:
            way = "cut right into equal parts"
        elif got < left.nbytes + right.nbytes:
            way = "send all of left, and cut right, not left"
        expect(got <= wanted, f"{device} got {got:,} bytes, where all of left and its columns of "
               f"right are {wanted:,}: {way}")
    least = min(sizes.values())
    expect(least == wanted, f"a device got {least:,} bytes, where all of left and its columns of "
           f"right are {wanted:,}: cut only right, and along axis 1")
    return f"the same product, and each device got {wanted:,} bytes"
