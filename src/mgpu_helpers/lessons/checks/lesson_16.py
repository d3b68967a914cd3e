"""The checks of lesson 16's exercises."""

from __future__ import annotations

import numpy as np

from mgpu_helpers.lessons import networks, published
from mgpu_helpers.lessons.checks.judge import same_as


def _servers() -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed=0)
    drawn = (int(1e7 * rng.uniform(1, 9)), rng.uniform(0.1, 0.9), 7, rng.uniform(0.6, 0.9))
    return [
        (100_000_000, 0.4, 2, 0.5), (100_000_000, 0.4, 2, 0.8), (100_000_000, 0.4, 4, 0.8), drawn,
    ]  # fmt: skip


#: Check exercise 1 of lesson 16: the slowest link with which servers reach an efficiency.
slowest = same_as(
    lambda parameters, step, servers, efficiency: (
        2 * (servers - 1) / servers * 4 * parameters / (step / efficiency - step)
    ),
    _servers,
    told=lambda right, got, parameters, step, servers, efficiency: (
        f"{parameters:,} parameters, a step of {step:.3g} s, {servers} servers and an efficiency "
        f"of {efficiency:.3g} want {right:.6g} bytes a second, not {got:.6g}"
    ),
    way="one number is wanted",
    yes="four links, and no faster than they have to be",
)


def _claims() -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed=0)
    drawn = (1e6 * rng.uniform(1, 9), int(1e7 * rng.uniform(1, 9)), 7, 3.5, 1e13)
    note, (vgg16, rows) = networks.workload(networks.p40()), published.DGX_1[-1]
    took = published.P40[0].total
    assert note.flops and vgg16.flops and took  # all were counted
    return [
        (50e6, 55_000, 20, 1.0, 11e12), (1e9, 1000, 2, 4.0, 1e12), drawn,
        (note.flops, 40_000, 1000, took, published.P40_FLOPS),
        (note.flops, 50_000, 10, took, published.P40_FLOPS),
        (vgg16.flops, 64, 1, rows[0].seconds, published.P100_FLOPS),
    ]  # fmt: skip


#: Check exercise 2 of lesson 16: what share of a GPU's peak a claim needs.
share_of_peak = same_as(
    lambda flops, examples, epochs, seconds, peak: flops * examples * epochs / seconds / peak,
    _claims,
    told=lambda right, got, flops, examples, epochs, seconds, peak: (
        f"{flops:g} FLOP, {examples:,.0f} examples, {epochs} epochs, {seconds:g} s and a peak of "
        f"{peak:g} give {right:.6g}, not {got:.6g}"
    ),
    way="one number is wanted",
    yes="the note's program takes 10.0 times the peak, so it cannot have run in this time; its "
    "original takes 0.1 times, and VGG16 1.3 times",
)
