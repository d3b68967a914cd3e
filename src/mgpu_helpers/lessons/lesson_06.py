"""What lesson 06 watches: when each step of a training runs, and each call of `fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from mgpu_helpers import timing


class Run(NamedTuple):
    """When each step of several models ran, and the call around all steps of each, in seconds."""

    spans: list[list[tuple[float, float]]]
    calls: list[tuple[float, float]]


def watched(way: Callable[..., Any], train: Callable[..., Any], *given: Sequence[Any]) -> Run:
    """Train models in a way, in turn or at once; each train gets a callback in a list, its clock.

    >>> run = watched(lambda *each: [*map(*each)], lambda n, clock: clock[0].set_params({}), [1, 2])
    >>> run.spans, len(run.calls)
    ([[], []], 2)
    """
    clocks = [_Clock() for _ in given[0]]
    since = time.perf_counter()

    def clocked(clock: _Clock, *each: Any) -> None:
        begun = time.perf_counter()
        train(*each, [clock])
        clock.call = begun - since, time.perf_counter() - since

    way(clocked, clocks, *given)
    spans = [[(a - since, b - since) for a, b in clock.spans] for clock in clocks]
    return Run(spans, [clock.call for clock in clocks])


def stepped(batches: Iterable[Sequence[Any]], *functions: Callable[..., Any]) -> Run:
    """Call functions in turn, each once a batch: one for each of two models, or one for both.

    >>> run = stepped([[1], [2]], lambda x: x)
    >>> run.spans[0] == run.spans[1], len(run.spans[0])
    (True, 2)
    """
    since, spans = time.perf_counter(), list[list[tuple[float, float]]]()
    for function in functions:
        spans.append([])
        for batch in batches:
            begun = time.perf_counter()
            np.array(function(*batch))  # waits for the step
            spans[-1].append((begun - since, time.perf_counter() - since))
    spans *= 2 // len(functions)
    return Run(spans, [(steps[0][0], steps[-1][1]) for steps in spans])


def timed(
    ways: Mapping[str, Callable[[], Run]], *, repeats: int
) -> tuple[dict[str, timing.Timing], dict[str, Run]]:
    """Time ways in turn, A B C A B C; give of each the timing and the run nearest to its median.

    >>> took, runs = timed({"a": lambda: stepped([[1]], lambda x: x)}, repeats=5)
    >>> len(took["a"].seconds), len(runs["a"].calls)
    (5, 2)
    """
    runs: dict[str, list[Run]] = {name: [] for name in ways}

    def keep(name: str) -> None:
        runs[name].append(ways[name]())

    took = timing.several({name: partial(keep, name) for name in ways}, warmup=0, repeats=repeats)
    nearest = {name: np.argmin(np.abs(np.array(each.seconds) - each.median))
               for name, each in took.items()}  # fmt: skip
    return took, {name: runs[name][at] for name, at in nearest.items()}


class _Clock(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.begun = 0.0
        self.spans: list[tuple[float, float]] = []
        self.call = (0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.spans.append((self.begun, time.perf_counter()))
