"""The checks of lesson 20's exercises."""

from __future__ import annotations

import math

import numpy as np

from mgpu_helpers.lessons.checks.judge import same_as


def _servers() -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed=0)
    drawn = (int(1e7 * rng.uniform(1, 9)), rng.uniform(0.1, 0.9), 7, rng.uniform(0.6, 0.9))
    return [
        (100_000_000, 0.4, 2, 0.8), (100_000_000, 0.4, 2, 0.6), (100_000_000, 0.4, 4, 0.8), drawn,
    ]  # fmt: skip


def _slowest(
    parameters: int, step: float, servers: int, efficiency: float, factor: float = 1
) -> float:
    sent = 2 * (servers - 1) / servers * 4 * parameters
    return factor * sent / (step / efficiency - step)


#: Check exercise 1 of lesson 20: the slowest link with which servers reach an efficiency.
slowest = same_as(
    _slowest,
    _servers,
    told=lambda right, got, parameters, step, servers, efficiency: (
        f"{parameters:,} parameters, a step of {step:.3g} s, {servers} servers and an efficiency "
        f"of {efficiency:.3g} want {right:.6g} bytes a second, not {got:.6g}"
    ),
    way="one number is wanted",
    wrong={
        "in a ring each server sends 2(n - 1)/n times the bytes of the gradients":
            lambda count, step, n, share: _slowest(count, step, n, share, n / (n - 1) / 2),
        "divide by the number of servers: each sends 2(n - 1)/n times the gradients":
            lambda count, step, n, share: _slowest(count, step, n, share, n),
        "a step with its exchange takes step / efficiency: subtract step":
            lambda count, step, n, share: _slowest(count, step, n, 0.5),
        "a step takes longer with the exchange: divide step by efficiency":
            lambda count, step, n, share: _slowest(count, step, n, share, 1 / share),
    },
    unknown="the exchange may take step / efficiency - step",
    yes="four links, and no faster than they have to be",
)  # fmt: skip


def _exact(parameters: int, step: float, bandwidth: float, gain: float) -> float:
    return gain * 4 * parameters / bandwidth / (2 - gain) / step


def _links() -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed=0)
    drawn = int(1e7 * rng.uniform(1, 9)), rng.uniform(0.1, 0.9), 1e9 * rng.uniform(0.1, 0.4), 1.8
    return [
        (138_000_000, 0.474, 1.19e9, 1.7), (138_000_000, 0.474, 1.19e9, 1.5),
        (25_600_000, 0.295, 1.19e9, 1.7), (138_000_000, 0.474, 7.5e9, 1.7), drawn,
        (70_000_000, 0.3, 1.25e9, 1.5),  # 2.24 batches
        (300_000_000, 0.5, 4e8, 1.0),  # 6 batches, to the bit: 2 / 1.5 would be rounded
    ]  # fmt: skip


#: Check exercise 2 of lesson 20: the fewest batches after which gradients may cross.
batches = same_as(
    lambda *link: math.ceil(_exact(*link)),
    _links,
    told=lambda right, got, parameters, step, bandwidth, gain: (
        f"{parameters:,} parameters, a step of {step:.3g} s, {bandwidth:.3g} bytes a second and a "
        f"gain of {gain}: the number of batches is {right}, not {got:.6g}"
    ),
    way="one number is wanted",
    wrong={
        "round up: after fewer batches the gain is below that":
            lambda *link: max(1, round(_exact(*link))),
        "there is no part of a batch: round up": _exact,
        "the gain is reached, so one more is too many": lambda *link: math.floor(_exact(*link)) + 1,
    },
    yes="VGG16 x 64 reaches 1.7 over 10 Gbit after 6 batches, and ResNet-50 x 64 after 2",
)
