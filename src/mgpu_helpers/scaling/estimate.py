"""What a fit predicts, with the interval that its rows leave open and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mgpu_helpers.scaling.model import TERMS, Breakdown, Layout
from mgpu_helpers.scaling.solve import NOISE, asks, matrix, norms, student
from mgpu_helpers.wording import counted

if TYPE_CHECKING:
    from mgpu_helpers.scaling.fit import Fit


class Estimate(float):
    """A predicted number, between low and high in about 95 % of cases, and the doubts about it.

    low and high are None where the rows leave nothing to tell the spread by; a doubt says so.

    >>> Estimate(3.8, 3.0, 4.9, ("8 devices, where the rows have 3 at most",))
    3.8 (3 to 4.9); in doubt: 8 devices, where the rows have 3 at most
    """

    low: float | None
    high: float | None
    doubts: tuple[str, ...]

    def __new__(
        cls,
        value: float,
        low: float | None = None,
        high: float | None = None,
        doubts: Iterable[str] = (),
    ) -> Estimate:
        made = super().__new__(cls, value)
        made.low, made.high, made.doubts = low, high, tuple(doubts)
        return made

    def __repr__(self) -> str:
        return _between(self, self.low, self.high) + _said(self.doubts)


@dataclass(frozen=True, repr=False)
class Prediction(Breakdown):
    """The seconds of each part of a step; about 95 % of such steps take from low to high seconds.

    low and high are None where the rows leave nothing to tell the spread by; a doubt says so.
    """

    low: float | None = None
    high: float | None = None
    doubts: tuple[str, ...] = ()

    @property
    def total(self) -> Estimate:
        """Return the seconds of the whole step, with their interval and doubts."""
        return Estimate(super().total, self.low, self.high, self.doubts)

    def __repr__(self) -> str:
        ends = (None if end is None else 1e3 * end for end in (self.low, self.high))
        parts = ((term, getattr(self, term)) for term in TERMS)
        named = ", ".join(f"{term} {1e3 * part:.3g}" for term, part in parts if part)
        return f"{_between(1e3 * self.total, *ends)} ms: {named}{_said(self.doubts)}"


def interval(fit: Fit, layout: Layout) -> tuple[float, float]:
    """Give the seconds, (low, high), between which about 95 % of new steps of a layout lie.

    The interval comes from the scatter of the rows and from what they leave open of the
    coefficients, so it is wider the further a layout lies from the rows. It knows nothing of what
    the model leaves out.

    >>> from mgpu_helpers.scaling import Measurement, Workload, fit
    >>> times = {8: 0.0112, 16: 0.0189, 32: 0.0351, 64: 0.0668}
    >>> rows = [Measurement(Layout(1, batch), seconds) for batch, seconds in times.items()]
    >>> found = fit(Workload("mine", 1000, 5e6), rows, ["arithmetic", "fixed"])
    >>> low, high = interval(found, Layout(1, 48))
    >>> low < 0.051 < high
    True
    """
    if why := no_spread(fit):
        more = len(fit.terms) + 1 - len(fit.measurements)
        raise ValueError(f"{why}: measure {counted(more, 'more row')}.")
    seconds = sum(fit.parts(layout))
    factor = math.exp(reach(fit, asks(fit.workload, layout, fit.terms) / seconds, 1))
    return seconds / factor, seconds * factor


def no_spread(fit: Fit) -> str | None:
    """Say why the rows leave no scatter to make an interval of; None if they leave some."""
    rows, terms = len(fit.measurements), len(fit.terms)
    if rows > terms:
        return None
    return (
        f"{counted(rows, 'row')} and {counted(terms, 'coefficient')} leave nothing to tell the "
        "spread by"
    )


def reach(fit: Fit, slope: np.ndarray, fresh: int) -> float:
    """Give how far off the logarithm of a prediction may be.

    slope is its derivative by each coefficient. fresh is how many new steps it is compared with,
    each with the scatter of a row: 1 for a time, 2 for a ratio of times.
    """
    measured = matrix(fit.workload, fit.measurements, fit.terms)
    scale = norms(measured)
    leverage = float(np.linalg.norm(slope / scale @ np.linalg.pinv(measured / scale, rcond=NOISE)))
    spare = len(fit.measurements) - len(fit.terms)
    scatter = math.sqrt(sum(e**2 for e in fit.errors) / spare)
    return student(spare) * scatter * math.sqrt(fresh + leverage**2)


def doubts(fit: Fit, devices: int, batch: float, wanted: np.ndarray) -> list[str]:
    """List what speaks against a prediction; wanted is what it asks of each term."""
    counts = [m.layout.devices for m in fit.measurements]
    batches = [m.layout.per_device_batch for m in fit.measurements]
    found = []
    if devices > max(counts):
        found.append(f"{counted(devices, 'device')}, where the rows have {max(counts)} at most")
    if not min(batches) <= batch <= max(batches):
        span = " to ".join(f"{b}" for b in sorted({min(batches), max(batches)}))
        found.append(f"a per-device batch of {batch:g}, where the rows have {span}")
    if why := no_spread(fit):
        return [*found, why]
    told = zip(fit.terms, wanted, strict=True)
    vague = [term for term, asked in told if asked and term in fit.unidentified]
    return found + ([f"the rows do not determine {', '.join(vague)}"] if vague else [])


def _between(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3g}" + ("" if low is None else f" ({low:.3g} to {high:.3g})")


def _said(doubts: tuple[str, ...]) -> str:
    return "; in doubt: " + "; ".join(doubts) if doubts else ""
