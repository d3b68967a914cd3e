"""How numbers are written for people."""

from __future__ import annotations


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
