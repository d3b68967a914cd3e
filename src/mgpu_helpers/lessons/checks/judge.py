"""How an exercise is judged: it prints "yes: …", or "not yet: …" with the way on.

A check returns what it says to a right answer and raises `NotYet` with the hint to a wrong one.
What the reader wrote runs in `call` or `traced`, and what it returned goes through `numbers` or
`listed`: they make a hint of whatever goes wrong there. Any other error is a bug in the check, and
stays one.
"""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers.devices.plan import planned


class NotYet(Exception):
    """An answer is not right yet; the message is the hint."""


def exercise(check: Callable[..., str]) -> Callable[..., None]:
    """Print what a check says, in one line: "yes: …" or "not yet: …"."""

    @functools.wraps(check)
    def judged(*answer: Any) -> None:
        try:
            said = f"yes: {check(*answer)}"
        except NotYet as hint:
            said = f"not yet: {hint}"
        print(textwrap.shorten(said, width=500, placeholder=" …"))

    return judged


def call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call what the reader wrote; NotYet with the last line of what it raises."""
    _check_callable(function)
    try:
        return function(*args, **named)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
        if text.startswith("Binding inputs to tf.function"):  # then it prints every argument
            text = text.partition(". Received args")[0]
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("[[{{node")]
        last = lines[-1].removeprefix(f"{kind}: ") if lines else ""  # AutoGraph repeats the kind
        if last.startswith("{{function_node"):  # of which TensorFlow says where it ran
            last = last.partition("}} ")[2]
        raise NotYet(f"it raises {kind}: {last}") from error


def traced(function: Callable[..., Any], *args: Any) -> tuple[Any, trace.Trace]:
    """Trace a function as a GPU machine places it: what it leaves open is on the first device."""
    import tensorflow as tf

    _check_callable(function)
    with tf.device(planned().devices[0]):
        return call(trace.function_step, function, *args)


PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum")  # what a matrix product can be written as


def idle(step: trace.Trace, kinds: Collection[str] = ()) -> str:
    """Name the plan's devices that did nothing of these kinds (none: any); "" if all worked."""
    busy = {op.device for op in step.ops if not kinds or op.type in kinds}
    return ", ".join(device for device in planned().devices if device not in busy)


def numbers(value: Any, shape: tuple[int, ...], way: str) -> np.ndarray:
    """Give what a function returned as numbers of this shape; NotYet with the way on if not."""
    _check_returned(value, way)
    if isinstance(value, (Decimal, Fraction)):  # exact numbers, which NumPy takes for objects
        value = float(value)
    try:
        array = np.asarray(value)
    except Exception:  # rows of different lengths, a symbolic tensor
        array = np.array("")
    if array.dtype.kind in "bcOSU":  # bfloat16 is of kind "V"
        raise NotYet(f"it returns a value of type {type(value).__name__}: {way}")
    if array.shape != shape:
        raise NotYet(f"the result has shape {array.shape}, not {shape}: {way}")
    return array


def listed(value: Any, way: str) -> list[Any]:
    """Give what a function returned as a list; NotYet with the way on if it is none."""
    _check_returned(value, way)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise NotYet(f"it returns a value of type {type(value).__name__}: {way}")
    return call(list, itertools.islice(value, 1_000_000))  # it may have no end


def _check_callable(answer: Any) -> None:
    if not callable(answer):
        raise NotYet(f"a function is wanted, its name without brackets, not {answer!r}")


def _check_returned(value: Any, way: str) -> None:
    if value is None:
        raise NotYet(f"the function returns nothing: {way}")
