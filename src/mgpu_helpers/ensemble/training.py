"""Train and predict with several members at once, a thread for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from mgpu_helpers.ensemble.members import Member, checked
from mgpu_helpers.wording import counted, error_line, whole_number


@dataclass(frozen=True, repr=False)
class Run:
    """What a training gave by member: the losses in order, and each step's start and end.

    Times are in seconds since the run began.
    """

    losses: dict[str, list[float]]
    spans: dict[str, list[tuple[float, float]]]
    wall: float

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.losses), 'member')} in {self.wall:.2f} s"]
        for name, losses in self.losses.items():
            said = f"  loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else ""
            lines.append(f"{name:8}{counted(len(losses), 'step')}{said}")
        return "\n".join(lines)


class MemberError(RuntimeError):
    """A member failed: its `name`, the `step` (the first is 1), and the `run` as far as it went."""

    def __init__(self, said: str, name: str, step: int, run: Run) -> None:
        super().__init__(said)
        self.name, self.step, self.run = name, step, run


def train(members: Iterable[Member], batches: Any, *, at_once: bool = True) -> Run:
    """Train each member on its batches, each in a thread, or one after another if not at_once.

    `batches` is what every member gets whole (all but a list is made one first, so that all see the
    same), or a function of the member's place, 0 and up, that gives it batches of its own. A batch
    is a tuple of what a step takes. When a member fails, the others end the step they are in, and
    MemberError is raised. On KeyboardInterrupt all members end their step before it goes on to the
    caller. No thread stays behind.

    >>> from mgpu_helpers.ensemble import from_functions
    >>> falling = from_functions("falling", lambda x: 1 / x, None, [])
    >>> train([falling], [(1.0,), (2.0,)]).losses
    {'falling': [1.0, 0.5]}
    """
    members = checked(members)
    if callable(batches):
        given = [batches(place) for place in range(len(members))]
    else:
        given = [batches if isinstance(batches, list) else list(batches)] * len(members)
    streams = [iter(() if own is None else own) for own in given]
    if len(set(map(id, streams))) < len(streams):
        raise ValueError(
            "the members got one iterator, and each would see a part of it: make a list of it, or "
            "an iterator for each member."
        )
    firsts = [next(stream, None) for stream in streams]
    for member, first in zip(members, firsts, strict=True):
        if first is None:
            raise ValueError(f"{member.name} got no batches: give every member at least one.")
        if not isinstance(first, tuple | list):
            raise TypeError(
                f"{member.name} got a batch that is one {type(first).__name__}: give tuples of "
                "what a step takes, such as (images, labels)."
            )
    streams = [itertools.chain([first], rest) for first, rest in zip(firsts, streams, strict=True)]
    return run_all(members, lambda m, batch: _loss(m.step(*batch)), streams, "step", at_once)


def _loss(given: Any) -> float:
    """Take the loss from what a step gives; Keras' `train_on_batch` gives its metrics as well."""
    if isinstance(given, Mapping):
        given = given["loss"]
    return float(given[0] if isinstance(given, list | tuple) else given)


def predictions(
    members: Iterable[Member], images: Any, *, batch: int = 256
) -> dict[str, np.ndarray]:
    """Predict with all members at once, `batch` images a time; probabilities [n, classes] by name.

    images is an array, or a dict of them for models with several inputs, which have one output.
    When a member fails, the others stop too, and MemberError is raised.

    >>> from mgpu_helpers.ensemble import from_functions
    >>> sure = from_functions("sure", None, lambda images: np.eye(2)[images], [])
    >>> predictions([sure], np.array([1]))
    {'sure': array([[0., 1.]])}
    """
    members = checked(members)
    batch = whole_number("batch", batch, "a number of images at a time", 1)
    n = min(map(len, images.values()), default=0) if isinstance(images, Mapping) else len(images)
    if not n:
        raise ValueError("there are 0 images to predict: give one or more.")
    pieces = [_rows(images, slice(at, at + batch)) for at in range(0, n, batch)]
    work = [pieces] * len(members)
    run = run_all(members, lambda m, piece: _one(m.predict(piece)), work, "piece", True)
    return {name: np.concatenate(parts) for name, parts in run.losses.items()}


def _rows(images: Any, rows: slice) -> Any:
    if isinstance(images, Mapping):
        return {name: part[rows] for name, part in images.items()}
    return images[rows]


def _one(predicted: Any) -> np.ndarray:
    if isinstance(predicted, Mapping):
        raise TypeError(f"it predicts {', '.join(predicted)}: give members that have one output")
    return np.asarray(predicted)


def run_all(
    members: list[Member],
    call: Callable[[Member, Any], Any],
    work: Sequence[Iterable[Any]],
    noun: str,
    at_once: bool,
) -> Run:
    """Call with every member and each piece of its work; keep what the calls give as losses."""
    run = Run({m.name: [] for m in members}, {m.name: [] for m in members}, 0.0)
    stop, began = Event(), time.perf_counter()
    failed: list[tuple[str, int, BaseException]] = []

    def go(member: Member, items: Iterable[Any]) -> None:
        losses, spans = run.losses[member.name], run.spans[member.name]
        try:
            for item in items:
                if stop.is_set():
                    return
                start = time.perf_counter() - began
                losses.append(call(member, item))
                spans.append((start, time.perf_counter() - began))
        except BaseException as error:
            failed.append((member.name, len(losses) + 1, error))
            stop.set()

    jobs: list[Future[None]] = []
    ahead, interrupted = zip(members, work, strict=True), None
    with ThreadPoolExecutor(len(members) if at_once else 1) as pool:
        # A KeyboardInterrupt reaches this thread only, and may come again before the steps end. It
        # waits in short turns: not every interrupt wakes a thread that waits for good. And it waits
        # here: interrupted while it joins a thread, Python 3.11 takes the running thread for ended.
        while True:
            try:
                jobs.extend(pool.submit(go, *each) for each in ahead)
                while wait(jobs, timeout=0.1).not_done:
                    pass
                break
            except BaseException as error:
                stop.set()
                interrupted = interrupted or error
    if interrupted:
        raise interrupted
    run = Run(run.losses, run.spans, time.perf_counter() - began)
    if failed:
        name, step, first = failed[0]
        others = "; the others ended the step they were in" if len(members) > 1 else ""
        said = f"{name} failed in {noun} {step} ({error_line(first)}){others}."
        for also, at, other in failed[1:]:
            said += f" {also} failed too, in {noun} {at} ({error_line(other)})."
        raise MemberError(said, name, step, run) from first
    return run
