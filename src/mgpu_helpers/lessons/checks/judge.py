"""How an exercise is judged: it prints "yes: …", or "not yet: …" with the way on.

A check returns what it says to a right answer and raises `NotYet` with the hint to a wrong one.
What the reader wrote runs in `call` or `traced`, and what it returned goes through `numbers`,
`listed` or `truth`: they make a hint of whatever goes wrong there. Any other error is a bug in the
check, and stays one.

Most checks compare the reader's function with ours on some cases: `same_as` makes those, from the
right function, the cases, and functions with the usual mistakes. The tests answer with these, too.
"""

from __future__ import annotations

import copy
import functools
import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
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


def expect(right: Any, hint: str) -> None:
    """Raise NotYet with the hint unless this is so."""
    if not right:
        raise NotYet(hint)


def same_as(
    reference: Callable[..., Any],
    cases: Callable[[], Iterable[tuple[Any, ...]]],
    *,
    told: Callable[..., str],
    way: str | Callable[..., str] = "",
    yes: str,
    wrong: Mapping[str, Callable[..., Any]] | None = None,
    unknown: str = "",
    changed: str = "",
) -> Callable[[Any], None]:
    """Make a check: the reader's function has to give what the reference gives, in every case.

    told(right, got, *case) says both results; the first mistake of `wrong` that gives what the
    reader's function gave adds its hint, and `unknown` is the hint where none does. `way` says what
    is to be returned, or way(right, *case); without it any object may be, such as None. `changed`
    is the hint for a function that changes what it is given; without it, it may.
    """
    mistakes = wrong or {}

    @exercise
    def check(function: Any) -> str:
        for case in cases():
            given = [copy.deepcopy(one) if isinstance(one, list | dict) else one for one in case]
            right, got = reference(*case), call(function, *given)
            if isinstance(right, bool):
                got = truth(got)
            elif way:
                text = isinstance(got, str) and got.strip() == str(right)
                expect(not text, f"{got!r} is right, but text: make it a number")
                what = way if isinstance(way, str) else way(right, *case)
                got = numbers(got, np.shape(right), what)
            if changed:
                try:
                    np.testing.assert_equal(given, list(case))
                except AssertionError:
                    raise NotYet(changed) from None
            if not _same(got, right):
                said = told(right, got, *case)
                others = ((hint, other(*case)) for hint, other in mistakes.items())
                hints = (hint for hint, other in others if other is not None and _same(got, other))
                hint = next(hints, unknown)
                raise NotYet(f"{said}: {hint}" if hint else said)
        return yes

    vars(check)["wrong"] = mistakes
    return check


def _same(got: Any, right: Any) -> bool:
    if isinstance(got, np.ndarray) and got.dtype.kind not in "OSU" and got.shape == np.shape(right):
        return bool(np.allclose(got, right, atol=1e-12))
    return np.array_equal(got, np.asarray(right))


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
        inner = isinstance(error, NotYet)  # of a call within this one
        raise NotYet(last if inner else f"it raises {kind}: {last}") from error


def traced(function: Callable[..., Any], *args: Any) -> tuple[Any, trace.Trace]:
    """Trace a function as a GPU machine places it: what it leaves open is on the first device."""
    import tensorflow as tf

    _check_callable(function)
    with tf.device(planned().devices[0]):
        return call(trace.function_step, function, *args)


# What a matrix product can be written as; TensorFlow joins it with what follows it.
PRODUCTS = ("MatMul", "FusedMatMul", "BatchMatMulV2", "Einsum")


def idle(step: trace.Trace, kinds: Collection[str] = ()) -> str:
    """Name the plan's devices that did nothing of these kinds (none: any); "" if all worked."""
    busy = {op.device for op in step.ops if not kinds or op.type in kinds}
    return ", ".join(device for device in planned().devices if device not in busy)


def products_on_all(step: trace.Trace, hint: str) -> None:
    """Expect matrix products on each of the plan's devices, and none on the host."""
    host, rest = planned().host, idle(step, PRODUCTS)
    expect(not rest, hint.format(rest))
    strays = [op for op in step.ops if op.type in PRODUCTS and op.device == host]
    expect(not strays, f"{host} multiplies: leave the products to the devices")


def sent(step: trace.Trace, device: str) -> int:
    """Count the bytes that left a device in a step."""
    return sum(copy.bytes or 0 for copy in step.copies if copy.source == device)


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
    expect(array.shape == shape, f"the result has shape {array.shape}, not {shape}: {way}")
    return array


def listed(value: Any, way: str) -> list[Any]:
    """Give what a function returned as a list; NotYet with the way on if it is none."""
    _check_returned(value, way)
    single = getattr(value, "shape", None) == ()  # a tensor, which says it can be gone through
    if single or isinstance(value, str) or not isinstance(value, Iterable):
        raise NotYet(f"it returns a value of type {type(value).__name__}: {way}")
    return call(list, itertools.islice(value, 1_000_000))  # it may have no end


def truth(value: Any) -> bool:
    """Give what a function returned as True or False; NotYet if it is neither."""
    expect(isinstance(value, bool | np.bool_), f"return True or False, not {value!r}")
    return bool(value)


def _check_callable(answer: Any) -> None:
    expect(callable(answer), f"a function is wanted, its name without brackets, not {answer!r}")


def _check_returned(value: Any, way: str) -> None:
    expect(value is not None, f"the function returns nothing: {way}")
