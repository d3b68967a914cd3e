"""Fit what a step costs to measured steps, and say how far the fit can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_helpers.scaling.estimate import Prediction, doubts, interval, no_spread
from mgpu_helpers.scaling.model import TERMS, Cost, Layout, Measurement, Workload
from mgpu_helpers.scaling.solve import (
    NOISE,
    asks,
    leanest,
    matrix,
    norms,
    solve,
    student,
    terms_for,
)
from mgpu_helpers.wording import counted, size_text

_ABSENT = {
    "update": "no row has its variables on the host: measure one that has",
    "moving": "no row moves anything between devices: measure one on 2 devices",
    "latency": "no row sends anything between devices: measure one on 2 devices",
}


@dataclass(frozen=True, repr=False)
class Fit:
    """A cost fitted to measured steps.

    `unidentified` has the reason for each term that the rows cannot tell, fitted or not.
    """

    workload: Workload
    measurements: tuple[Measurement, ...]
    terms: tuple[str, ...]
    cost: Cost
    unidentified: Mapping[str, str]

    def __repr__(self) -> str:
        rows, terms = len(self.measurements), len(self.terms)
        head = (
            f"{self.workload.name}: {counted(rows, 'row')}, {counted(terms, 'coefficient')}; "
            f"error {self.median:.1%} in the median, {self.worst:.1%} at most"
        )
        if rows - terms < 2:
            more = counted(rows - terms, "row") if rows > terms else "no row"
            head += f"\n{more} more than coefficients: a description, not a test"
        flops, bandwidth = self.flops, self.bandwidth
        said = {
            "arithmetic": f"{self.cost.arithmetic * 1e3:.3g} ms an example"
            + ("" if flops is None else f" ({flops / 1e12:.3g} TFLOP/s)"),
            "fixed": f"{self.cost.fixed * 1e3:.3g} ms",
            "update": f"{self.cost.update * 1e3:.3g} ms with the variables on the host",
            "moving": "0" if bandwidth is None else f"{size_text(round(bandwidth))}/s",
            "input": f"{self.cost.input * 1e3:.3g} ms an example of the global batch",
            "latency": f"{self.cost.latency * 1e6:.3g} µs a message",
        }  # fmt: skip
        lines = [f"{term:11}{said[term]}" for term in self.terms]
        lines += [f"not determined: {term}; {why}" for term, why in self.unidentified.items()]
        return "\n".join([head, *lines])

    @property
    def errors(self) -> tuple[float, ...]:
        """Return predicted over measured, less 1, for each row."""
        return tuple(sum(self.parts(m.layout)) / m.seconds - 1 for m in self.measurements)

    @property
    def median(self) -> float:
        """Return the median size of the errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """Return the largest size of the errors."""
        return float(np.max(np.abs(self.errors)))

    @property
    def flops(self) -> float | None:
        """Return the FLOP/s of one device that the arithmetic implies.

        None if it costs nothing, or if the workload has no FLOP.
        """
        flops, seconds = self.workload.flops, self.cost.arithmetic
        return flops / seconds if flops and seconds else None

    @property
    def bandwidth(self) -> float | None:
        """Return the bytes a second that moving implies; None if it costs nothing."""
        return 1 / self.cost.moving if self.cost.moving else None

    def predict(self, layout: Layout) -> Prediction:
        """Predict the parts of a step, in seconds, with their interval and what speaks against it.

        Raises ValueError where the rows do not tell what such a layout takes.
        """
        wanted = asks(self.workload, layout, self.terms)
        self.check(wanted, repr(layout))
        low, high = (None, None) if no_spread(self) else interval(self, layout)
        against = doubts(self, layout.devices, layout.per_device_batch, wanted)
        parts = dict(zip(self.terms, self.parts(layout), strict=True))
        return Prediction(**parts, low=low, high=high, doubts=tuple(against))

    def parts(self, layout: Layout) -> list[float]:
        """Give the seconds that each of the fitted terms takes, whether the rows tell it or not."""
        wanted = asks(self.workload, layout, self.terms).tolist()
        return [each * getattr(self.cost, t) for t, each in zip(self.terms, wanted, strict=True)]

    def check(self, wanted: np.ndarray, what: str) -> None:
        """Raise ValueError if the rows say nothing of terms in the proportions that are wanted."""
        measured = matrix(self.workload, self.measurements, self.terms)
        scale = norms(measured)
        known = np.linalg.pinv(measured / scale, rcond=NOISE) @ (measured / scale)
        wanted = wanted / scale
        off = np.abs(wanted - wanted @ known) > 1e-6 * np.linalg.norm(wanted)
        missing = [term for term, far in zip(self.terms, off, strict=True) if far]
        if missing:
            why = "; ".join(f"{t} ({self.unidentified.get(t, 'not determined')})" for t in missing)
            raise ValueError(f"the rows cannot say what {what} takes: they do not determine {why}.")


def fit(
    workload: Workload, measurements: Iterable[Measurement], terms: Sequence[str] = TERMS[:4]
) -> Fit:
    """Fit a cost to measured steps: least squares of the relative errors, no coefficient below 0.

    The rows tell a term if without it they are fitted worse than their scatter allows: the sum of
    squares then grows by more than t squared times the variance of a row, with Student's t at 95 %.
    `terms_for` lists the terms that can be told apart at all.

    >>> rows = [Measurement(Layout(1, 64), 0.011), Measurement(Layout(1, 128), 0.019)]
    >>> found = fit(Workload("mine", 1000, 5e6), rows, ["arithmetic", "fixed"])
    >>> found.predict(Layout(1, 256))
    35 ms: arithmetic 32, fixed 3; in doubt: a per-device batch of 256, ...
    """
    measurements, terms = tuple(measurements), tuple(terms)
    _check_rows(measurements)
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms or len(set(terms)) < len(terms):
        raise ValueError(f"terms={terms} cannot be fitted: use some of {', '.join(TERMS)}, once.")
    if len(measurements) < len(terms):
        fewer = terms_for(workload, measurements, terms)
        raise ValueError(
            f"{counted(len(measurements), 'row')} cannot tell "
            f"{counted(len(terms), 'coefficient')}: measure {len(terms) - len(measurements)} more"
            + (f", or fit fewer, terms={fewer}." if fewer else ".")
        )
    found = leanest(matrix(workload, measurements, terms)).tolist()
    cost = Cost(**({"arithmetic": 0.0, "fixed": 0.0} | dict(zip(terms, found, strict=True))))
    reasons = {term: _why_not(workload, measurements, terms, term) for term in TERMS}
    return Fit(workload, measurements, terms, cost, {t: why for t, why in reasons.items() if why})


def _check_rows(measurements: Sequence[Measurement]) -> None:
    ends: dict[Layout, tuple[float, float]] = {}
    for row in measurements:
        if not isinstance(row, Measurement):
            raise TypeError(
                f"a row is a {type(row).__name__}: give a Measurement(layout, seconds), or "
                "Measurement.of_rate(layout, examples_per_second)."
            )
        low, high = ends.get(row.layout, (math.inf, 0.0))
        low, high = ends[row.layout] = min(low, row.seconds), max(high, row.seconds)
        if high > 2 * low:
            raise ValueError(
                f"{row.layout} took {low:.3g} s in one row and {high:.3g} s in another: fit the "
                "rows of one network on one machine."
            )


def _why_not(
    workload: Workload, measurements: Sequence[Measurement], terms: Sequence[str], term: str
) -> str | None:
    """Say why the rows cannot tell a term beside the others; None if they can."""
    others = [other for other in terms if other != term]
    full = matrix(workload, measurements, [*others, term])
    full = full / norms(full)
    rest, column = full[:, :-1], full[:, -1]
    if not column.any():
        return _ABSENT[term]
    weights = np.linalg.lstsq(rest, column, rcond=NOISE)[0]
    if np.linalg.norm(rest @ weights - column) < 1e-6:
        same = [other for other, w in zip(others, weights, strict=True) if abs(w) > 1e-6]
        return f"it changes from row to row as {' and '.join(same)} {'do' if same[1:] else 'does'}"
    rows, columns = full.shape
    if rows <= columns:
        return f"{counted(rows, 'row')} and {counted(columns, 'coefficient')} leave no scatter"
    with_it, without = solve(full)[1], solve(rest)[1]
    allowed = student(rows - columns) ** 2 * with_it / (rows - columns) + rows * NOISE**2
    if without - with_it > allowed:
        return None
    worse, better = (f"{math.sqrt(each / rows):.1%}" for each in (without, with_it))
    if worse == better:
        return f"root-mean-square error {better} with it and without it"
    return (
        f"root-mean-square error {worse} without it and {better} with it: in "
        f"{counted(rows, 'row')} that may be chance"
    )
