"""The checks of lesson 00's exercises."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers import fit, trace
from mgpu_helpers._models import is_model
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, same_as


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
    other = " ".join(fit.check(model, batch, proof=False))
    expect(not other, f"its numbers are not those of one device, take fit.strategy: {other}")
    return f"a step computed its convolutions on {', '.join(sorted(worked))}"


def _steps() -> Iterator[tuple[trace.Trace]]:
    devices = planned().devices
    kinds = "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"
    yield (_step(dict.fromkeys(devices, "Conv2D")),)
    yield (_step({devices[-1]: "Conv2DBackpropInput"}),)
    yield (_step({devices[0]: "Conv2D"} | dict.fromkeys(devices[1:], "MatMul")),)
    yield (_step({}),)
    draw = np.random.default_rng()
    for _ in range(5):  # so that nothing can be wired in
        yield (_step({on: draw.choice([*kinds, "Add", ""]) for on in devices}),)


def _step(types: dict[str, str]) -> trace.Trace:
    """Make a step in which devices ran an operation of these types, and the host its own two."""
    host = planned().host
    ran = [(host, "IteratorGetNext"), (host, "Add"), *types.items(), *types.items()]
    return trace.Trace(tuple(
        trace.Op(f"op_{place}", str(kind), device, 1e-3 * place, 1e-3)
        for place, (device, kind) in enumerate(ran) if kind
    ), (), {}, ())  # fmt: skip


def _idle(step: trace.Trace) -> list[str]:
    return _not_in({op.device for op in step.ops if "Conv2D" in op.type})


def _not_in(worked: set[str]) -> list[str]:
    return sorted(device for device in planned().devices if device not in worked)


def _told(right: list[str], got: Any, step: trace.Trace) -> str:
    ran = sorted({f"{op.type} on {op.device}" for op in step.ops})
    return f"in a step that ran {', '.join(ran)} the answer is {right}, and yours is {got!r:.80}"


_WAY = "give a list of names from plan.devices"

_judged = same_as(
    _idle,
    _steps,
    told=_told,
    wrong={
        "list the devices that computed none, not those that did":
            lambda step: _not_in({*_idle(step)}),
        "not every operation is a convolution: look at its type":
            lambda step: _not_in({op.device for op in step.ops}),
        'the type may be longer, as in the backward pass: ask whether "Conv2D" is in it':
            lambda step: _not_in({op.device for op in step.ops if op.type == "Conv2D"}),
        "a device that ran nothing is in no operation: go through plan.devices":
            lambda step: [on for on in _idle(step) if on in {op.device for op in step.ops}],
        "the host is no device of the plan":
            lambda step: sorted([planned().host, *_idle(step)]),
    },
    unknown=_WAY,
    yes="right for nine steps",
)


@functools.wraps(_judged)
def idle(function: Any) -> None:
    """Check exercise 2 of lesson 00: the devices that computed no convolution, in any order."""
    # a set has another order in each process, so that an answer would be right by chance
    _judged(lambda step: sorted(map(str, listed(call(function, step), _WAY))))
