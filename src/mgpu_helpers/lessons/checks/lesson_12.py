"""The checks of lesson 12's exercises."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import same_as
from mgpu_helpers.pipeline.cutting import Cut, StageCost


def _crosses_least(cuts: Iterable[Cut], border: slice = slice(None)) -> Cut | None:
    return min(cuts, key=lambda cut: sum(p.crossing for p in cut.parts[border]), default=None)


def _fitting(cuts: list[Cut], budget: int) -> list[Cut]:
    return [cut for cut in cuts if max(p.bytes for p in cut.parts) <= budget]


def _choose(cuts: list[Cut], budget: int) -> Cut | None:
    return _crosses_least(_fitting(cuts, budget))


NOT_CHOSEN: dict[str, Callable[[list[Cut], int], Cut | None]] = {
    "there a part holds more than the budget": lambda cuts, budget: _crosses_least(cuts),
    "its fullest part holds least, but more crosses":
        lambda cuts, budget: min(cuts, key=lambda cut: max(p.bytes for p in cut.parts)),
    "each device has the budget, so do not add the parts up":
        lambda cuts, budget: _crosses_least(
            cut for cut in cuts if sum(p.bytes for p in cut.parts) <= budget
        ),
    "every part has to fit, not only the first":
        lambda cuts, budget: _crosses_least(cut for cut in cuts if cut.parts[0].bytes <= budget),
    "with more than two parts, add up what crosses over each border":
        lambda cuts, budget: _crosses_least(_fitting(cuts, budget), slice(1)),
    "with more than two parts, add up what crosses; the largest alone does not tell":
        lambda cuts, budget: min(_fitting(cuts, budget), default=None,
                                 key=lambda cut: max(p.crossing for p in cut.parts)),
    "that is the first that fits; of the cuts that fit, take the one with least to cross":
        lambda cuts, budget: next(iter(_fitting(cuts, budget)), None),
    "a part that holds just the budget fits":
        lambda cuts, budget: _choose(cuts, budget - 1),
}  # fmt: skip


def _drawn(rng: np.random.Generator, stages: int) -> tuple[list[Cut], int]:
    """Draw cuts and a budget by which each usual mistake chooses another cut."""
    many = 12 if stages == 2 else 40  # of fewer, mistakes often choose the same
    while True:
        size, crossing = rng.integers(1, 60, [2, many, stages]) * 1_000_000
        crossing[:, -1] = 0
        budget = int(np.sort(size.max(1))[many // 2])
        totals = np.where(size.max(1) <= budget, crossing.sum(1), np.inf)
        if size.max(1)[totals.argmin()] < budget:  # found at once, without cuts: "just the budget"
            continue
        cuts = [
            Cut(tuple(f"layer{n}" for n in range(i + 2, i + 1 + stages)),
                tuple(StageCost((), 0.1, int(a), int(b)) for a, b in zip(*row, strict=True)))
            for i, row in enumerate(zip(size, crossing, strict=True))
        ]  # fmt: skip
        chosen = [other(cuts, budget) for hint, other in NOT_CHOSEN.items()
                  if stages > 2 or "two parts" not in hint]  # fmt: skip
        right = _choose(cuts, budget)
        tied = right != _choose(cuts[::-1], budget)  # more than one is right
        if not tied and len({right, *chosen}) > len(chosen):
            return cuts, budget


@functools.cache
def _known() -> list[tuple[list[Cut], int]]:
    rng = np.random.default_rng(1)  # they always give the same hints
    return [_drawn(rng, stages) for stages in (2, 3)]


def _cuts() -> Iterator[tuple[list[Cut], int]]:
    rng = np.random.default_rng()
    for cuts, budget in itertools.chain(_known(), (_drawn(rng, stages) for stages in (2, 3))):
        yield cuts, budget
        yield cuts, min(max(p.bytes for p in cut.parts) for cut in cuts) - 1


def _said(right: Cut | None, got: Any, cuts: list[Cut], budget: int) -> str:
    wanted = "none fits" if right is None else f"it is the one before {', '.join(right.starts)}"
    given = f"the one before {', '.join(got.starts)}" if isinstance(got, Cut) else repr(got)
    return f"of {len(cuts)} cuts, with {budget:,} bytes a device, {wanted}, not {given}"


#: Check exercise 1 of lesson 12: the cut that fits and where the least crosses, of cuts it draws.
choose = same_as(
    _choose, _cuts, told=_said, wrong=NOT_CHOSEN,
    changed="it changes the list that it is given: make a new one",
    yes="right for eight lists of cuts, of two and of three parts, four of them drawn at random",
)  # fmt: skip


def _models() -> Iterator[tuple[Any, list[str], int]]:
    import keras

    for drawn, other in ((1, "pool"), (None, "flat")):  # the first always gives the same hints
        layers, rng = keras.layers, np.random.default_rng(drawn)
        side, filters, units = (int(n) for n in rng.permutation(range(5, 12))[:3])
        model = keras.Sequential([
            keras.Input([2 * side, 2 * side + 2, 3]),
            layers.Conv2D(filters, 3, padding="same", name="conv"),
            layers.MaxPooling2D(name="pool"), layers.Flatten(name="flat"),
            layers.Dense(units, name="dense"), layers.Dense(2, name="end"),
        ])
        for names in (["dense"], [other], [other, "end"], ["pool", "dense", "end"]):
            yield model, names, int(rng.integers(2, 9))


def _takes(model: Any, names: Iterable[str], what: str = "input") -> int:
    return sum(math.prod(getattr(model.get_layer(name), what).shape[1:]) for name in names)


def _crosses(right: int, got: Any, model: Any, names: list[str], batch: int) -> str:
    given = f"{got:,.3f}".rstrip("0").rstrip(".")
    shapes = (model.get_layer(name).input.shape[1:] for name in names)
    taken = " and ".join("x".join(map(str, shape)) for shape in shapes)
    return (
        f"in front of {' and '.join(map(repr, names))}, with {taken} numbers an example, and at a "
        f"batch of {batch}, it is {right:,} bytes, not {given}"
    )


#: Check exercise 2 of lesson 12: the bytes that cross all cuts, of models that it draws.
crossing = same_as(
    lambda model, names, batch: 8 * batch * _takes(model, names),
    _models,
    told=_crosses,
    way=lambda right, model, names, batch: f"one number of bytes, for the cuts at {names}",
    wrong={
        "their gradient comes back over the cut: count both ways":
            lambda model, names, batch: 4 * batch * _takes(model, names),
        "float32 takes 4 bytes, and the gradient comes back":
            lambda model, names, batch: 2 * batch * _takes(model, names),
        "that is one example: a batch has more":
            lambda model, names, batch: 8 * _takes(model, names),
        "these are numbers of one example: count bytes of a batch":
            lambda model, names, batch: _takes(model, names),
        "that is what the layer gives: what crosses is what it takes":
            lambda model, names, batch: 8 * batch * _takes(model, names, "output"),
        "that is the first cut only: add up what crosses over each":
            lambda model, names, batch: 8 * batch * _takes(model, names[:1]),
        "that is the last cut only: add up what crosses over each":
            lambda model, names, batch: 8 * batch * _takes(model, names[-1:]),
    },
    unknown="what does each layer take, and how often does it cross?",
    yes="right for eight lists of cuts, of two models, one of them drawn at random",
)  # fmt: skip
