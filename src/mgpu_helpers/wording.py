"""How numbers are written for people."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: "1 device", "2 devices"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
