"""What lesson 15 times in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from mgpu_helpers.timing import Timing

Name = TypeVar("Name")


def in_turn(ways: Mapping[Name, Callable[[], float]], repeats: int = 20) -> dict[Name, Timing]:
    """Ask several ways in turn for the seconds that each gives, once more to warm up.

    `timing.several` times whole calls; here each way says what it took.

    >>> found = in_turn({"one": lambda: 1.0, "two": lambda: 2.0}, repeats=3)
    >>> found["two"].median
    2.0
    """
    repeats = min(repeats, int(os.environ.get("MGPU_REPEATS") or repeats))
    seconds: dict[Name, list[float]] = {name: [] for name in ways}
    for _ in range(1 + repeats):
        for name, way in ways.items():
            seconds[name].append(way())
    return {name: Timing(tuple(each[1:])) for name, each in seconds.items()}
