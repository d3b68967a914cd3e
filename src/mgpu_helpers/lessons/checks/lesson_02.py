"""The checks of lesson 02's exercises."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import lesson_02
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, same_as
from mgpu_helpers.timing import Timing

Ops = Mapping[str, tuple[str, float, str]]
LOOK = {  # how each of the three shows
    1: "ask fit.explain(model, data), or time a pass over the data alone",
    4: "ask fit.explain(model, data), or look at what the model was compiled with",
    5: "trace a step of the model and look at which devices worked",
}


def _steps() -> Iterator[tuple[Ops, float]]:
    five = {"a": ("first", 4, ""), "b": ("second", 6, "a"), "c": ("first", 2, "a"),
            "d": ("first", 3, "bc"), "e": ("second", 2, "d")}
    # In `busy`, a arrives while c runs. In `late`, a ends before b and arrives after it.
    # In `apart`, b starts last and ends first. In `sent`, first works on while a's result crosses.
    busy = {"a": ("first", 2, ""), "b": ("second", 3, ""), "c": ("second", 2, ""),
            "d": ("second", 1, "ab")}
    late = {"a": ("first", 2, ""), "b": ("second", 3, ""), "c": ("second", 1, "ab")}
    apart = {"a": ("first", 9, ""), "b": ("second", 2, "")}
    sent = {"a": ("first", 2, ""), "b": ("second", 1, "a"), "c": ("first", 4, "")}
    known: list[tuple[Ops, float]] = [
        (five, 0.0), (five, 1.0), (five, 5.0), (busy, 2.0), (late, 2.0), (apart, 2.0),
        (sent, 2.0),
    ]
    yield from known
    for scale in np.random.default_rng().uniform(0.5, 4, 4):  # so that nothing can be wired in
        for ops, link in known[1:]:
            yield {name: (on, seconds * scale, needs) for name, (on, seconds, needs) in ops.items()
                   }, float(link * scale)


def _step(right: float, ops: Ops, link: float) -> str:
    return f"with a link of {link:.2g} s a step takes {right:.4g} s if it has " + ", ".join(
        f"{name} on {device} for {seconds:.2g} s" + f" after {' and '.join(needs)}" * bool(needs)
        for name, (device, seconds, needs) in ops.items()
    )


def _over_link(ops: Ops, link: float, always: bool = False, held: bool = False) -> float:
    """Replay over a link; always: on one device as well; held: sending takes the device's time."""
    ends: dict[str, float] = {}
    free: dict[str, float] = {}
    for name, (device, seconds, needs) in ops.items():
        ready = [ends[n] + (link if always or ops[n][0] != device else 0.0) for n in needs]
        ends[name] = max([free.get(device, 0.0), *ready]) + seconds
        sends = any(name in needs and on != device for on, _, needs in ops.values())
        free[device] = ends[name] + (link if held and sends else 0.0)
    return max(ends.values())


#: Check exercise 1 of lesson 02: a replay in which results take time to cross.
replay_over_link = same_as(
    _over_link,
    _steps,
    told=lambda right, got, ops, link: f"{_step(right, ops, link)}; yours gives {got:.4g} s",
    way=_step,
    wrong={
        "nothing takes time to cross yet": lambda ops, link: _over_link(ops, 0.0),
        "only what another device made has to cross":
            lambda ops, link: _over_link(ops, link, always=True),
        "a device works on while its result crosses":
            lambda ops, link: _over_link(ops, link, held=True),
    },
    changed="it changes the operations that it is given",
    yes="31 steps; with a link of 1 s the five operations take 18 s",
)


@exercise
def treated(function: Any, causes: Any) -> str:
    """Check exercise 2 of lesson 02: three causes named, and a pass without any of them."""
    named = _named(causes)
    model, data, seen = lesson_02.watched()
    one_pass = call(function, model, data)
    kind = type(one_pass).__name__
    a_pass = callable(one_pass)
    expect(a_pass, f"return a function that makes one pass over the data, not {kind}")
    _check_causes(named)
    sick, its_data = lesson_02.patient()
    draw, fresh = np.random.default_rng(), sick.get_weights()
    slow: list[float] = []
    fast: list[float] = []
    for warm in (False, True, True):  # the first pass may read and make its graph
        start = [draw.permutation(weight.ravel()).reshape(weight.shape) for weight in fresh]
        slow.append(_seconds(lambda: lesson_02.fit(sick, its_data), start, sick))
        before = replace(seen)
        fast.append(_seconds(lambda: call(one_pass), start, model))
        _check_same(start, sick, model)
        if warm:
            _check_cured(before, seen)
    times = [Timing(tuple(each[1:])) for each in (slow, fast)]
    return f"three causes, all cured; a pass took {times[0]} before and {times[1]} after"


def _seconds(one_pass: Any, start: list[Any], model: Any) -> float:
    """Time a pass from these weights: it is told and not judged, as other programs have a part."""
    import tensorflow as tf

    model.set_weights(start)
    began = time.perf_counter()
    one_pass()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - began


def _check_cured(before: lesson_02.Seen, after: lesson_02.Seen) -> None:
    """Judge what was done in a pass, and not how long it took."""
    first, *_ = devices = planned().devices
    used = {device or first for device in after.devices}  # as a GPU machine places it
    idle = ", ".join(device for device in devices if device not in used)
    expect(not idle, f"cause 5 is left: the model is never called on {idle}")
    reads, calls = after.reads - before.reads, after.eager - before.eager
    batches = f"{reads} of its {lesson_02.PASS} batches"
    expect(not reads, f"cause 1 is left: a later pass reads {batches} again")
    expect(not calls, f"cause 4 is left: in a pass Python calls the model "
           f"{counted(calls, 'time')}, where a graph would run")


def _named(causes: Any) -> set[int]:
    try:
        return {operator.index(cause) for cause in causes}
    except TypeError:
        raise NotYet(f"causes has to hold whole numbers, not {causes!r:.60}") from None


def _check_causes(named: set[int]) -> None:
    for cause in sorted(named):
        there = 1 <= cause <= 8
        expect(there, f"the causes have the numbers 1 to 8, and {cause} is none of them")
    known = len(lesson_02.CAUSES & named)
    for cause in sorted(lesson_02.CAUSES - named):
        are = "is" if known == 1 else "are"
        raise NotYet(f"{known} of the three causes {are} named: {LOOK[cause]}")
    for cause in sorted(named - lesson_02.CAUSES):
        raise NotYet(f"three causes slow it down, and cause {cause} is none of them")


def _check_same(before: list[np.ndarray], sick: Any, model: Any) -> None:
    """Compare how far a pass has moved two models from the same weights."""
    for start, one, other in zip(before, sick.weights, model.weights, strict=True):
        wanted, got = one.numpy() - start, other.numpy() - start
        moved = np.any(got)
        expect(moved, "the weights of the model stay as they are: a pass has to train it")
        expect(np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max(),
               f"the weights are not those of a pass of fit: {one.path} moved by "
               f"{np.linalg.norm(got):.3g} in place of {np.linalg.norm(wanted):.3g}")
