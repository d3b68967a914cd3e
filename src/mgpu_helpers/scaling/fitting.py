"""Fit what a step costs to measured steps, and say how far the fit can be trusted.

SciPy is imported where it is used: its import takes longer than all of this room's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_helpers._formatting import counted, size_text
from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.model import (
    TERMS,
    Breakdown,
    Cost,
    Estimate,
    Measurement,
    Setting,
    Workload,
    step_time,
    used_by,
)

ALWAYS = tuple(term for term in TERMS if term != "input")  # what is not asked for by name
NOISE = 1e-9  # relative errors below this are rounding
Rows = Sequence[Measurement]


@dataclass(frozen=True, repr=False)
class Fit:
    """A cost fitted to measured steps.

    `terms` are those that were fitted, of those that were `asked` for; `unidentified` has the
    reason for each term that the rows cannot tell, fitted or not.
    """

    workload: Workload
    measurements: tuple[Measurement, ...]
    asked: tuple[str, ...]
    terms: tuple[str, ...]
    cost: Cost
    unidentified: Mapping[str, str]

    def __repr__(self) -> str:
        cost, off = self.cost, np.abs(self.errors)
        head = f"{self.workload.name}: {_size(len(off), len(self.terms), ', ')}; error "
        head += f"{np.median(off):.1%} in the median, {off.max():.1%} at most"
        flops = (self.workload.flops or 0) / cost.arithmetic if cost.arithmetic else 0
        values = {
            "arithmetic": f"{cost.arithmetic * 1e3:.3g} ms an example"
            + (f" ({flops / 1e12:.3g} TFLOP/s)" if flops else ""),
            "fixed": f"{cost.fixed * 1e3:.3g} ms",
            "update": f"{cost.update * 1e3:.3g} ms with the variables on the host",
            "moving": f"{size_text(round(1 / cost.moving))}/s" if cost.moving else "0",
            "input": f"{cost.input * 1e3:.3g} ms an example of the global batch",
            "latency": f"{cost.latency * 1e6:.3g} µs a message",
        }  # fmt: skip
        lines = [f"{term:11}{values[term]}" for term in self.terms]
        lines += [f"not determined: {term}; {why}" for term, why in self.unidentified.items()]
        return "\n".join([head, *lines])

    @property
    def errors(self) -> tuple[float, ...]:
        """Return predicted over measured, less 1, for each row."""
        return tuple(
            step_time(self.workload, m.setting, self.cost).total / m.seconds - 1
            for m in self.measurements
        )

    def predict(self, setting: Setting) -> Breakdown:
        """Predict the parts of a step, in seconds, with their interval and what speaks against it.

        The interval comes from the scatter of the rows and from what they leave open of the
        coefficients, so it is wider the further a setting lies from the rows. It knows nothing of
        what the model leaves out. Raises ValueError where the rows do not tell what such a setting
        takes.
        """
        parts = step_time(self.workload, setting, self.cost)
        _check(self, setting)
        low = high = None
        if _spare(self) > 0:
            factor = _factor(self, asks(self.workload, setting, self.terms) / parts.total, 1)
            low, high = parts.total / factor, parts.total * factor
        return replace(parts, low=low, high=high, doubts=_doubts(self, setting))


def _spare(fit: Fit) -> int:
    """Count the rows beyond those that the terms need."""
    return len(fit.measurements) - len(fit.terms)


def _factor(fit: Fit, slope: np.ndarray, fresh: int) -> float:
    """Give the factor by which a prediction may be off, either way.

    slope is the derivative of its logarithm by each fitted cost. fresh is how many new steps
    it is compared with, each with the scatter of a row: 1 for a time, 2 for a ratio of times.
    """
    measured, scale = matrix(fit.workload, fit.measurements, fit.terms)
    leverage = np.linalg.norm(slope / scale @ np.linalg.pinv(measured, rcond=NOISE))
    scatter = math.sqrt(sum(e**2 for e in fit.errors) / _spare(fit))
    return math.exp(student(_spare(fit)) * scatter * math.sqrt(fresh + leverage**2))


def _check(fit: Fit, setting: Setting, given: Sequence[str] = ()) -> None:
    """Raise ValueError if the rows say nothing of what a setting asks, but for given terms."""
    terms = [term for term in fit.asked if term not in given]
    measured, scale = matrix(fit.workload, fit.measurements, terms)
    wanted = asks(fit.workload, setting, terms) / scale
    known = wanted @ np.linalg.pinv(measured, rcond=NOISE) @ measured
    off = np.abs(wanted - known) > 1e-6 * np.linalg.norm(wanted)
    missing = [term for term, far in zip(terms, off, strict=True) if far]
    if missing:
        why = "; ".join(f"{t} ({fit.unidentified.get(t, 'not determined')})" for t in missing)
        told = f"the rows cannot say what {setting} takes: they do not determine"
        raise ValueError(f"{told} {why}.")


def _doubts(fit: Fit, setting: Setting, given: Sequence[str] = ()) -> tuple[str, ...]:
    """List what speaks against a prediction; the given terms are not the rows' to tell."""
    most = max(m.setting.devices for m in fit.measurements)
    batches = sorted({m.setting.per_device_batch for m in fit.measurements})
    devices, batch, doubts = setting.devices, setting.per_device_batch, []
    if devices > most:
        doubts.append(f"{counted(devices, 'device')}, where the rows have {most} at most")
    if not batches[0] <= batch <= batches[-1]:
        span = f"{batches[0]} to {batches[-1]}"
        doubts.append(f"a per-device batch of {batch:g}, where the rows have {span}")
    uses = used_by(fit.workload, setting)
    vague = [t for t in fit.terms if t in fit.unidentified and uses[t] and t not in given]
    if _spare(fit) <= 0:
        size = _size(len(fit.measurements), len(fit.terms))
        doubts.append(f"{size} leave nothing to tell the spread by")
    elif vague:
        doubts.append(f"the rows do not determine {', '.join(vague)}")
    return tuple(doubts)


def fit(
    workload: Workload, measurements: Iterable[Measurement], terms: Iterable[str] | None = None
) -> Fit:
    """Fit a cost to measured steps: least squares of the relative errors, no coefficient below 0.

    A term that grows from row to row as those before it do is not fitted: with one batch, for
    instance, arithmetic and fixed are one. terms None asks for all but "input". A fitted term is
    told by the rows if without it they are fitted worse than their scatter allows: the sum of
    squares then grows by more than t squared times the variance of a row, with Student's t at 95 %.

    >>> rows = [Measurement(Setting(1, 64), 0.011), Measurement(Setting(1, 128), 0.019)]
    >>> fitted = fit(Workload("mine", 1000, 5e6), rows)
    >>> fitted.predict(Setting(1, 256))
    35 ms: arithmetic 32, fixed 3; in doubt: a per-device batch of 256, ...
    """
    rows, asked = tuple(measurements), ALWAYS if terms is None else tuple(terms)
    if not rows:
        raise ValueError(f"there is no row of {workload.name} to fit: measure some steps.")
    for row in rows:
        slowest = max(other.seconds for other in rows if other.setting == row.setting)
        if slowest > 2 * row.seconds:
            raise ValueError(
                f"{row.setting} took {row.seconds:.3g} s in one row and {slowest:.3g} s in "
                "another: fit the rows of one network on one machine."
            )
    fitted: tuple[str, ...] = ()
    for term in asked:
        table = matrix(workload, rows, [*fitted, term])[0]
        if np.linalg.matrix_rank(table, NOISE) > len(fitted):
            fitted = (*fitted, term)
    table, scale = matrix(workload, rows, fitted)
    cost = Cost(**dict(zip(fitted, (solve(table)[0] / scale).tolist(), strict=True)))
    beside = fitted if terms is None else asked
    reasons = ((term, _why_not(workload, rows, beside, term)) for term in TERMS)
    if terms is None:  # a latency that is not told counts as nothing, unlike the others
        asked = TERMS[:4]
    return Fit(workload, rows, asked, fitted, cost, {term: why for term, why in reasons if why})


def speedup(fit: Fit, setting: Setting, *, link: Link | None = None) -> Estimate:
    """Give how many times as many examples a second a setting trains as one device.

    The one device has the batch of each device of the setting (weak scaling). About 95 % of the
    speed-ups that are measured lie from low to high. link is another link between the devices than
    that of the rows; its band is in low and high.

    >>> seconds = {1: 0.30, 2: 0.32, 4: 0.325}
    >>> rows = [Measurement(Setting(n, 64, "ring"), s) for n, s in seconds.items()]
    >>> fitted = fit(Workload("mine", 10_000_000), rows, ["arithmetic", "moving"])
    >>> speedup(fitted, Setting(8, 64, "ring"))
    7.27 (5.8 to 9.11); in doubt: 8 devices, where the rows have 4 at most; ...
    """
    one = replace(setting, devices=1, path="data")
    given = ("moving", "latency") if link else ()
    for each in (one, setting):
        _check(fit, each, given)

    def seconds(each: Setting, road: Link | None) -> float:
        return step_time(fit.workload, each, fit.cost.over(road)).total

    def gain(road: Link | None) -> float:
        examples = setting.global_batch_size / one.global_batch_size
        return examples * seconds(one, road) / seconds(setting, road)

    doubts = _doubts(fit, setting, given)
    if _spare(fit) <= 0:
        return Estimate(gain(link), doubts=doubts)
    told = np.array([term not in given for term in fit.terms])
    slopes = [told * asks(fit.workload, e, fit.terms) / seconds(e, link) for e in (one, setting)]
    factor = 1.0 if one == setting else _factor(fit, slopes[0] - slopes[1], 2)
    ends = [replace(link, bandwidth=end) for end in (link.low, link.high)] if link else [None] * 2
    low, high = map(gain, ends)
    return Estimate(gain(link), low / factor, high * factor, doubts)


def asks(workload: Workload, setting: Setting, terms: Sequence[str]) -> np.ndarray:
    """Count what one step of a setting asks of each term."""
    uses = used_by(workload, setting)
    return np.array([uses[term] for term in terms], float)


def matrix(workload: Workload, rows: Rows, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Give what each row asks of each term, over its seconds, and each column's length.

    The columns are divided by their lengths, 1 for an empty one. Times the costs it should be 1.
    """
    table = np.array([asks(workload, row.setting, terms) / row.seconds for row in rows])
    lengths = np.linalg.norm(table, axis=0)
    scale = np.where(lengths > 0, lengths, 1.0)
    return table / scale, scale


def solve(table: np.ndarray) -> tuple[np.ndarray, float]:
    """Give the x of 0 or more with the least |table x - 1|, and the sum of its squares."""
    # Not nnls: SciPy 1.15's can miss the minimum of a square system.
    from scipy.optimize import lsq_linear

    if not table.size:
        return np.zeros(table.shape[1]), float(len(table))
    x = lsq_linear(table, np.ones(len(table)), (0, np.inf), method="bvls", tol=1e-15).x
    x = np.where(x > 1e-12, x, 0)  # what is 0 may come back as 1e-17 or -1e-32
    return x, float(np.sum((table @ x - 1) ** 2))


def student(spare: int) -> float:
    """Give the t below which 97.5 % of Student's distribution lies, for so many spare rows."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf is this function, and slow to import

    return float(stdtrit(spare, 0.975))


def _size(rows: int, coefficients: int, between: str = " and ") -> str:
    return f"{counted(rows, 'row')}{between}{counted(coefficients, 'coefficient')}"


def _why_not(workload: Workload, rows: Rows, terms: Sequence[str], term: str) -> str | None:
    """Say why the rows cannot tell a term beside the others; None if they can."""
    others = [other for other in terms if other != term]
    full, _ = matrix(workload, rows, [*others, term])
    rest, column = full[:, :-1], full[:, -1]
    if not column.any():
        return "no row has it: measure some on 2 devices, and with the variables on the host"
    weights = np.linalg.lstsq(rest, column, rcond=NOISE)[0]
    if np.linalg.norm(rest @ weights - column) < 1e-6:
        same = [other for other, w in zip(others, weights, strict=True) if abs(w) > 1e-6]
        return f"it changes from row to row as {' and '.join(same)} {'do' if same[1:] else 'does'}"
    count, columns = full.shape
    if (spare := count - columns) <= 0:
        return f"{_size(count, columns)} leave no scatter"
    with_it, without = solve(full)[1], solve(rest)[1]
    if without - with_it > student(spare) ** 2 * with_it / spare + count * NOISE**2:
        return None
    errors = "{:.1%} without it and {:.1%}".format(*np.sqrt([without / count, with_it / count]))
    told = f"root-mean-square error {errors} with it"
    return f"{told}: in {counted(count, 'row')} that may be chance"
