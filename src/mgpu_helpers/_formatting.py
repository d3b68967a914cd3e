"""How numbers, tables and errors are written for people, and whole numbers read from them."""

from __future__ import annotations

import operator
import re
import signal
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from typing import Any


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: "1 device", "2 devices".

    >>> counted(1, "device"), counted(2, "device")
    ('1 device', '2 devices')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def size_text(size: int) -> str:
    """Write a number of bytes for people: 16 B, 2.4 kB, 1.2 MB, 3.1 GB, 16 TB.

    >>> size_text(2_400_000), size_text(16_000_000_000_000)
    ('2.4 MB', '16 TB')
    """
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lay out rows of texts in columns two spaces apart; return a line for each row.

    >>> table([("operation", "device"), ("a", "/CPU:1")])
    ['operation  device', 'a          /CPU:1']
    """
    rows = list(rows)
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, wide)).rstrip() for row in rows]


def signal_name(number: int) -> str:
    """Name a signal by its number.

    >>> signal_name(9)
    'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def with_options(text: str, names: Iterable[str]) -> str:
    """Write a function's arguments in a sentence as a terminal's options.

    >>> with_options("per_device=0 is not a number of jobs.", ["per_device"])
    '--per-device 0 is not a number of jobs.'
    """
    for name in names:
        text = re.sub(rf"\b{name}=", f"--{name.replace('_', '-')} ", text)
    return text


def whole(text: str) -> int:
    """Read a whole number from a terminal, for argparse.

    >>> whole("2")
    2
    """
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no whole number: write it as 2") from None


def number(text: str) -> float:
    """Read a number from a terminal, for argparse.

    >>> number("1.5")
    1.5
    """
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number: write it as 1.5") from None


def error_line(error: BaseException) -> str:
    """Return the one line of an error that says what is wrong; its type where it says nothing.

    TensorFlow's line stands above the name of the node that failed, AutoGraph's at the end, and
    Keras's in bold type.
    """
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.strerror:  # without its number
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if bold := re.search(r"\x1b\[1m(.+?)\x1b\[0m", text, re.S):
        return " ".join(bold[1].split())
    if text.startswith("in user code:"):
        return text.splitlines()[-1].strip()
    above = r"^(?:\s*\(\d+\) [A-Z_]+: +)?(.+)\n(?: Cf\. .+\n)?\s*\[\[\{\{node"
    found = re.search(above, text, re.M)
    return found[1].strip() if found else text.splitlines()[0]


def whole_number(
    what: str, value: Any, kind: str, least: int, also: str = "", most: int | None = None
) -> int:
    """Return the value as an int; raise ValueError if it is no whole number in the range.

    True and False do not count as numbers. The error names `what`, its value, the `kind` of number
    that is wanted, the range, and `also`, which is another value that the caller accepts.

    >>> whole_number("repeats", 20, "a number of runs", 1)
    20
    """
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
