"""What lesson 06 watches: how long models train, and when each step of `fit` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras


class Run(NamedTuple):
    """The seconds that a training of several models took, and when each step of each model ran."""

    wall: float
    spans: list[list[tuple[float, float]]]


def watched(way: Callable[..., Any], train: Callable[..., Any], *given: Sequence[Any]) -> Run:
    """Train models in a way, in turn or at once; each train gets a callback that notes its steps.

    >>> run = watched(lambda *each: [*map(*each)], lambda n, clock: clock.set_params({}), [1, 2])
    >>> run.spans
    [[], []]
    """
    begin = time.perf_counter()
    clocks = [_Clock(begin) for _ in given[0]]
    way(train, *given, clocks)
    return Run(time.perf_counter() - begin, [clock.spans for clock in clocks])


class _Clock(keras.callbacks.Callback):
    def __init__(self, since: float) -> None:
        super().__init__()
        self.since, self.begun = since, since
        self.spans: list[tuple[float, float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        self.spans.append((self.begun - self.since, now - self.since))
