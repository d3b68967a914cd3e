"""What lesson 06 watches: when each step of `fit` runs, and each pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras


class Run(NamedTuple):
    """When each step of several models ran, and each pass over their data, in seconds."""

    spans: list[list[tuple[float, float]]]
    passes: list[list[tuple[float, float]]]


def watched(way: Callable[..., Any], train: Callable[..., Any], *given: Sequence[Any]) -> Run:
    """Train models in a way, in turn or at once; each train gets a callback in a list, its clock.

    >>> run = watched(lambda *each: [*map(*each)], lambda n, clock: clock[0].set_params({}), [1, 2])
    >>> run.spans, run.passes
    ([[], []], [[], []])
    """
    begin = time.perf_counter()
    clocks = [_Clock(begin) for _ in given[0]]
    way(train, *given, [[clock] for clock in clocks])
    return Run([clock.spans for clock in clocks], [clock.passes for clock in clocks])


class _Clock(keras.callbacks.Callback):
    def __init__(self, since: float) -> None:
        super().__init__()
        self.since, self.begun, self.opened = since, since, since
        self.spans: list[tuple[float, float]] = []
        self.passes: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.opened = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.passes.append((self.opened - self.since, time.perf_counter() - self.since))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        self.spans.append((self.begun - self.since, now - self.since))
