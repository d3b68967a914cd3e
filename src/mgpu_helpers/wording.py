"""How numbers are written for people, and read from them."""

from __future__ import annotations

import operator
from typing import Any


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: "1 device", "2 devices"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def size_text(size: int) -> str:
    """Write a number of bytes for people: 16 B, 2.4 kB, 1.2 MB, 3.1 GB."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def whole(
    what: str, value: Any, kind: str, least: int, also: str = "", most: int | None = None
) -> int:
    """Return the value as an int; a sentence when it is not a whole number in the range."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(
            f"{what}={value!r} is not {kind}: use a whole number, {limits}"
            + (f", or {also}." if also else ".")
        )
    return number
