"""The checks of lesson 11's exercises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks import judge
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers, same_as

SHARED = (8, 4, 4)  # bytes a parameter: Adam's slots, the gradient, the weight


def _cases() -> Iterator[tuple[list[int], int, int]]:
    rng = np.random.default_rng()
    drawn = [1000]
    # else whoever looks at the first, takes the sizes as they come, or shares equally, is right, or
    # taken for another
    while len({_fullest(drawn, 3), _held(drawn, 3)[0], _fullest(drawn, 3, order=False),
               sum(drawn) / 3}) < 4:  # fmt: skip
        drawn = [int(size) for size in rng.integers(10, 1000, 9)]
    for sizes, n in (([100, 300, 200, 90, 40], 2), ([10, 500, 30], 4), (drawn, 3)):
        for stage in range(4):
            yield sizes, n, stage


def _held(sizes: Sequence[int], n: int, order: bool = True) -> list[int]:
    held = [0] * n
    for size in sorted(sizes, reverse=True) if order else sizes:
        held[held.index(min(held))] += size
    return held


def _fullest(sizes: Sequence[int], n: int, order: bool = True) -> int:
    return max(_held(sizes, n, order))


def _holds(sizes: Sequence[int], own: float, stage: int) -> float:
    shared = sum(SHARED[:stage])
    return (16 - shared) * sum(sizes) + shared * own


#: Check exercise 1 of lesson 11: what the fullest device holds, of lists of sizes, one drawn.
fullest_holds = same_as(
    lambda sizes, n, stage: _holds(sizes, _fullest(sizes, n), stage),
    _cases,
    told=lambda right, got, sizes, n, stage: (
        f"weights of {sizes} numbers on {n} devices leave the fullest {right:,} bytes at stage "
        f"{stage}, not {got:,.10g}"
    ),
    way=lambda right, sizes, n, stage: f"one number of bytes, for {len(sizes)} weights",
    wrong={
        "that is an equal share, and a weight stays whole":
            lambda sizes, n, stage: _holds(sizes, sum(sizes) / n, stage),
        "the owners take the weights as they come, and not the largest first":
            lambda sizes, n, stage: _holds(sizes, _fullest(sizes, n, order=False), stage),
        "that is what the first device holds, and another one may hold more":
            lambda sizes, n, stage: _holds(sizes, _held(sizes, n)[0], stage),
        "that is only what is shared out: the rest is held on every device for all weights":
            lambda sizes, n, stage: _holds(sizes, _fullest(sizes, n), 3) * sum(SHARED[:stage]) / 16,
        "the whole state of its own weights is stage 3 at every stage":
            lambda sizes, n, stage: 16 * _fullest(sizes, n),
        "the gradients are shared out before the slots": lambda sizes, n, stage: (
            _holds(sizes, _fullest(sizes, n), stage)
            + (stage == 1) * 4 * (sum(sizes) - _fullest(sizes, n))
        ),
        "these are numbers: float32 has 4 bytes each":
            lambda sizes, n, stage: _holds(sizes, _fullest(sizes, n), stage) / 4,
    },
    unknown="which weights does the fullest device own, and what does it hold for the others?",
    yes="right for three models at four stages, one of them drawn at random",
)  # fmt: skip


@exercise
def clipped(function: Any) -> str:
    """Check exercise 2 of lesson 11: gradients clipped by the norm of all, each where it is."""
    import tensorflow as tf

    places, rng = planned().devices, np.random.default_rng(0)
    values = {device: [rng.normal(size=shape) for shape in ((30, 20), (50,))] for device in places}
    owned: dict[str, list[Any]] = {}
    for device in places:
        with tf.device(device):
            owned[device] = [tf.Variable(value, dtype=tf.float32) for value in values[device]]
    norm = float(np.sqrt(sum(np.sum(g**2) for each in values.values() for g in each)))
    way = "a dictionary with a list of gradients for each device"

    def given() -> dict[str, list[Any]]:
        found = {}
        for device in places:
            with tf.device(device):
                found[device] = [tf.identity(each) for each in owned[device]]
        return found

    def used(limit: float) -> list[Any]:
        sums = []
        for device, each in call(function, given(), limit).items():
            with tf.device(device):  # what a function hands out crosses to the host
                sums += [tf.reduce_sum(gradient) for gradient in each]
        return sums

    for limit in (norm / 10, 10 * norm):
        got = call(function, given(), limit)
        expect(isinstance(got, Mapping) and {*got} == {*places}, f"return {way}")
        lists = {at: listed(got[at], way) for at in places}
        expect(all(len(lists[at]) == len(values[at]) for at in places), f"return {way}")
        ours = {at: [numbers(gradient, value.shape, way)
                     for gradient, value in zip(lists[at], values[at], strict=True)]
                for at in places}  # fmt: skip
        _scaled(ours, values, norm, limit)
        step = judge.traced(used, limit)[1]
        for at in places:
            away = judge.sent(step, at)
            expect(away < 100, f"{away:,} bytes leave {at}: let only single numbers leave it")
    return "the norm of all, and only numbers left a device"


def _scaled(
    ours: Mapping[str, list[Any]], values: Mapping[str, list[Any]], norm: float, limit: float
) -> None:
    """Expect every gradient times the right factor, and say what a wrong one is."""

    def factors(each: Any) -> list[float]:
        return [float(np.sum(o * v) / np.sum(v * v)) for o, v in each]

    pairs = [pair for at in values for pair in zip(ours[at], values[at], strict=True)]
    right = min(1.0, limit / norm)
    if all(np.allclose(o, right * v, rtol=1e-3, atol=1e-6) for o, v in pairs):
        return
    found = factors(pairs)
    same = np.allclose(found, found[0], rtol=1e-3)
    said = f"with a norm of {norm:.1f} and a limit of {limit:.1f} the factor is {right:.3g}"
    for hint, wrong in {
        "all are scaled up: the norm is below the limit": lambda: same and found[0] > 1.001,
        "the lengths of the devices are added: add their squares": lambda: same and np.isclose(
            found[0], limit / sum(_norm(each) for each in values.values()), rtol=1e-3),
        "that is limit / norm squared: take the root": lambda: same and np.isclose(
            found[0], limit / norm**2, rtol=1e-3),
        "nothing is scaled": lambda: same and np.isclose(found[0], 1, rtol=1e-3),
        "that is the norm of one device's gradients, and not of all": lambda: same and any(
            np.isclose(found[0], limit / _norm(each), rtol=1e-3) for each in values.values()),
        "each gradient is clipped by its own norm": lambda: np.allclose(
            found, [min(1, limit / _norm([v])) for _, v in pairs], rtol=1e-3),
        "each device clips by the norm of its own gradients": lambda: np.allclose(
            found, [min(1, limit / _norm(each)) for each in values.values() for _ in each],
            rtol=1e-3),
    }.items():  # fmt: skip
        expect(not wrong(), f"{said}: {hint}")
    expect(False, f"{said}, and the first gradient is scaled by {found[0]:.3g}")


def _norm(gradients: Sequence[Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(each)) for each in gradients)))
