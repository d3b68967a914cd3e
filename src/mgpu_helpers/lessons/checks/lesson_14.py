"""The checks of lesson 14's exercises."""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import lesson_14
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.timing import Timing
from mgpu_helpers.wording import counted

Ops = Mapping[str, tuple[str, float, str]]
LOOK = {  # how each of the three shows
    1: "trace a step of the model and look at which devices worked",
    2: "time a pass over the data alone",
    6: "compare the time of a step on a batch that lies ready with the length of its trace",
}


@exercise
def replay_over_link(function: Callable[[Ops, float], Any]) -> str:
    """Check exercise 1 of lesson 14: a replay in which results take time to cross."""
    five = {"a": ("first", 4, ""), "b": ("second", 6, "a"), "c": ("first", 2, "a"),
            "d": ("first", 3, "bc"), "e": ("second", 2, "d")}  # fmt: skip
    # In `busy`, a arrives while c runs. In `late`, a ends before b and arrives after it.
    # In `apart`, b starts last and ends first.
    busy = {"a": ("first", 2, ""), "b": ("second", 3, ""), "c": ("second", 2, ""),
            "d": ("second", 1, "ab")}  # fmt: skip
    late = {"a": ("first", 2, ""), "b": ("second", 3, ""), "c": ("second", 1, "ab")}
    apart = {"a": ("first", 9, ""), "b": ("second", 2, "")}
    cases: list[tuple[Ops, float]] = [
        (five, 0.0), (five, 1.0), (five, 5.0), (busy, 2.0), (late, 2.0), (apart, 2.0),
    ]  # fmt: skip
    draw = np.random.default_rng()
    for devices in 5 * (1, 3, 5, 2):
        link = float(draw.uniform(0.5, 4))
        cases.append((_in_order(_drawn(draw, devices), link), link))
    for ops, link in cases:
        given, right = copy.deepcopy(ops), _over_link(ops, link)
        hint = (
            f"with a link of {link:.2g} s a step takes {right:.4g} s if it has "
            + ", ".join(_said(name, *op) for name, op in ops.items())
        )
        got = float(numbers(call(function, given, link), (), hint))
        if given != ops:
            raise NotYet("it changes the operations that it is given")
        if not np.isclose(got, right):
            if link and np.isclose(got, _over_link(ops, 0.0)):
                hint = f"nothing takes time to cross yet: {hint}"
            elif link and np.isclose(got, _over_link(ops, link, always=True)):
                hint = f"only what another device made has to cross: {hint}"
            raise NotYet(f"{hint}; yours gives {got:.4g} s")
    return f"{len(cases)} steps; with a link of 1 s the five operations take 18 s"


def _said(name: str, device: str, seconds: float, needs: str) -> str:
    after = f" after {' and '.join(needs)}" if needs else ""
    return f"{name} on {device} for {seconds:.2g} s{after}"


def _over_link(ops: Ops, link: float, always: bool = False) -> float:
    ends: dict[str, float] = {}
    free: dict[str, float] = {}
    for name, (device, seconds, needs) in ops.items():
        ready = [
            ends[other] + (link if always or ops[other][0] != device else 0.0) for other in needs
        ]
        ends[name] = free[device] = max([free.get(device, 0.0), *ready]) + seconds
    return max(ends.values())


def _drawn(draw: np.random.Generator, devices: int) -> Ops:
    names = "abcdefgh"
    return {
        name: (f"device_{draw.integers(devices)}", float(draw.uniform(1, 9)),
               "".join(draw.permutation(list(names[:i]))[: draw.integers(0, 3)]))
        for i, name in enumerate(names)
    }  # fmt: skip


def _in_order(ops: Ops, link: float) -> Ops:
    """Sort a step by when its operations start if each device takes what is ready first."""
    ends: dict[str, float] = {}
    free: dict[str, float] = {}
    ordered: dict[str, tuple[str, float, str]] = {}
    while len(ordered) < len(ops):
        starts = {
            name: max([free.get(device, 0.0),
                       *(ends[other] + link * (ops[other][0] != device) for other in needs)])
            for name, (device, _, needs) in ops.items()
            if name not in ordered and ends.keys() >= set(needs)
        }  # fmt: skip
        name = min(starts, key=starts.__getitem__)
        ordered[name] = ops[name]
        ends[name] = free[ops[name][0]] = starts[name] + ops[name][1]
    return ordered


@exercise
def treated(function: Callable[[Any, Any], Any], causes: Iterable[int]) -> str:
    """Check exercise 2 of lesson 14: three causes named, and a pass without any of them."""
    named = _named(causes)
    model, data, seen = lesson_14.watched()
    one_pass = call(function, model, data)
    if not callable(one_pass):
        raise NotYet(
            f"return a function that makes one pass over the data, not {type(one_pass).__name__}"
        )
    _check_causes(named)
    sick, its_data = lesson_14.patient()
    draw, fresh = np.random.default_rng(), sick.get_weights()
    slow: list[float] = []
    fast: list[float] = []
    for warm in (False, True, True, True):  # the first pass may read and make its graph
        start = [draw.permutation(weight.ravel()).reshape(weight.shape) for weight in fresh]
        slow.append(_seconds(lambda: lesson_14.fit(sick, its_data), start, sick))
        before = replace(seen)
        fast.append(_seconds(lambda: call(one_pass), start, model))
        _check_same(start, sick, model)
        if warm:
            _check_cured(before, seen)
    times = [Timing(tuple(each[1:])) for each in (slow, fast)]
    return f"three causes, all cured; a pass took {times[0]} before and {times[1]} after"


def _seconds(one_pass: Callable[[], Any], start: list[Any], model: Any) -> float:
    """Time a pass from these weights: it is told and not judged, as other programs have a part."""
    import tensorflow as tf

    model.set_weights(start)
    began = time.perf_counter()
    one_pass()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - began


def _check_cured(before: lesson_14.Seen, after: lesson_14.Seen) -> None:
    """Judge what was done in a pass, and not how long it took."""
    first, *_ = devices = planned().devices
    used = {device or first for device in after.devices}  # as a GPU machine places it
    if idle := [device for device in devices if device not in used]:
        raise NotYet(f"cause 1 is left: the model is never called on {', '.join(idle)}")
    if reads := after.reads - before.reads:
        raise NotYet(
            f"cause 2 is left: a later pass reads {reads} of its {lesson_14.PASS} batches again"
        )
    if calls := after.eager - before.eager:
        raise NotYet(
            f"cause 6 is left: in a pass Python calls the model {counted(calls, 'time')}, where a "
            "graph would run"
        )


def _named(causes: Any) -> set[int]:
    try:
        return {operator.index(cause) for cause in causes}
    except TypeError:
        raise NotYet(f"causes has to hold numbers of patients, not {causes!r:.60}") from None


def _check_causes(named: set[int]) -> None:
    strange = sorted(cause for cause in named if not 1 <= cause <= 12)
    if strange:
        raise NotYet(f"the patients have the numbers 1 to 12, and {strange[0]} is none of them")
    missing = sorted(lesson_14.CAUSES - named)
    if missing:
        known = len(lesson_14.CAUSES & named)
        are = "is" if known == 1 else "are"
        raise NotYet(f"{known} of the three causes {are} named: {LOOK[missing[0]]}")
    if extra := sorted(named - lesson_14.CAUSES):
        raise NotYet(f"three causes are wanted, and patient {extra[0]} has another")


def _check_same(before: list[np.ndarray], sick: Any, model: Any) -> None:
    """Compare how far a pass has moved two models from the same weights."""
    for start, one, other in zip(before, sick.weights, model.weights, strict=True):
        wanted, got = one.numpy() - start, other.numpy() - start
        if not np.any(got):
            raise NotYet("the weights of the model stay as they are: a pass has to train it")
        if np.abs(got - wanted).max() > 0.02 * np.abs(wanted).max():
            raise NotYet(
                f"the weights are not those of a pass of fit: {one.path} moved by "
                f"{np.linalg.norm(got):.3g} in place of {np.linalg.norm(wanted):.3g}"
            )
