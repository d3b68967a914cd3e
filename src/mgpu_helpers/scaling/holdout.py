"""Ask a fit about steps that were measured: those it was fitted to, and rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mgpu_helpers.scaling.estimate import Estimate
from mgpu_helpers.scaling.fit import Fit, fit
from mgpu_helpers.scaling.model import TERMS, Layout, Measurement, Workload


class Answer(NamedTuple):
    """A measured step and the seconds predicted for it, with their interval and doubts."""

    measurement: Measurement
    seconds: Estimate

    @property
    def error(self) -> float:
        """Return predicted over measured, less 1."""
        return self.seconds / self.measurement.seconds - 1


def asked(fit: Fit, measurements: Iterable[Measurement]) -> list[Answer]:
    """Ask a fit for the step of each row, in seconds, beside what was measured.

    >>> work = Workload("mine", 1000, 5e6)
    >>> rows = [Measurement(Layout(1, b), 0.003 + 0.001 * b) for b in (8, 16, 32, 64)]
    >>> found = fit(work, rows[:3], ["arithmetic", "fixed"])
    >>> [round(float(answer.seconds), 4) for answer in asked(found, rows[3:])]
    [0.067]
    """
    return [Answer(m, fit.predict(m.layout).total) for m in measurements]


def errors(answers: Iterable[Answer]) -> tuple[float, ...]:
    """Give predicted over measured, less 1, for each answer.

    >>> work = Workload("mine", 1000, 5e6)
    >>> rows = [Measurement(Layout(1, b), 0.003 + 0.001 * b) for b in (8, 16, 32, 64)]
    >>> answers = asked(fit(work, rows[:3], ["arithmetic", "fixed"]), rows)
    >>> max(map(abs, errors(answers))) < 1e-6
    True
    """
    return tuple(answer.error for answer in answers)


def holdout(
    workload: Workload,
    measurements: Iterable[Measurement],
    by: str = "layout",
    terms: Sequence[str] = TERMS[:4],
) -> list[Answer]:
    """Predict each row, in seconds, from a fit to the others.

    Rows that agree in `by` are left out together: "layout", so that repeats do not help each
    other, or one of a layout's fields, as in `holdout(work, rows, "devices")`.

    >>> work = Workload("mine", 1000, 5e6)
    >>> rows = [Measurement(Layout(1, b), 0.003 + 0.001 * b) for b in (8, 16, 32, 64)]
    >>> answers = holdout(work, rows, terms=["arithmetic", "fixed"])
    >>> max(abs(answer.error) for answer in answers) < 1e-6
    True
    """
    measurements = tuple(measurements)
    known = ("layout", *Layout.__dataclass_fields__)
    if by not in known:
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(known)}.")

    def key(m: Measurement) -> object:
        return m.layout if by == "layout" else getattr(m.layout, by)

    fits = {
        out: fit(workload, [m for m in measurements if key(m) != out], terms)
        for out in dict.fromkeys(map(key, measurements))
    }
    return [answer for m in measurements for answer in asked(fits[key(m)], [m])]
