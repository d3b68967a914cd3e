"""Ask a fit about steps that were measured: rows left out, and how far a prediction may be off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mgpu_helpers.scaling.fit import Fit, fit
from mgpu_helpers.scaling.model import TERMS, Layout, Measurement, Workload
from mgpu_helpers.scaling.solve import NOISE, asks, matrix, norms, student
from mgpu_helpers.wording import counted


class Answer(NamedTuple):
    """A measured step and the seconds predicted for it."""

    measurement: Measurement
    seconds: float

    @property
    def error(self) -> float:
        """Return predicted over measured, less 1."""
        return self.seconds / self.measurement.seconds - 1


def asked(fit: Fit, measurements: Iterable[Measurement]) -> list[Answer]:
    """Ask a fit for the step of each row, in seconds, beside what was measured."""
    return [Answer(m, fit.predict(m.layout).total) for m in measurements]


def errors(answers: Iterable[Answer]) -> tuple[float, ...]:
    """Give predicted over measured, less 1, for each answer."""
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


def interval(fit: Fit, layout: Layout) -> tuple[float, float]:
    """Give the seconds, (low, high), between which about 95 % of new steps of a layout lie.

    The interval comes from the scatter of the rows and from what they leave open of the
    coefficients, so it is wider the further a layout lies from the rows. It knows nothing of what
    the model leaves out.
    """
    rows, terms = len(fit.measurements), len(fit.terms)
    if rows <= terms:
        raise ValueError(
            f"{counted(rows, 'row')} and {counted(terms, 'coefficient')} leave nothing to tell the "
            f"spread by: measure {counted(terms + 1 - rows, 'more row')}."
        )
    seconds = fit.predict(layout).total
    measured = matrix(fit.workload, fit.measurements, fit.terms)
    scale = norms(measured)
    wanted = asks(fit.workload, layout, fit.terms) / scale / seconds
    leverage = float(np.linalg.norm(wanted @ np.linalg.pinv(measured / scale, rcond=NOISE)))
    scatter = math.sqrt(sum(e**2 for e in fit.errors) / (rows - terms))
    reach = student(rows - terms) * scatter * math.sqrt(1 + leverage**2)
    return seconds * math.exp(-reach), seconds * math.exp(reach)
