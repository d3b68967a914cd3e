"""The algebra under a fit: what the rows ask of each term, solved with no cost below zero.

SciPy is imported where it is used: its import takes longer than all of this room's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgpu_helpers.scaling.model import TERMS, Layout, Measurement, Workload, used_by

ALWAYS = tuple(term for term in TERMS if term != "input")  # what is not asked for by name

NOISE = 1e-9  # relative errors below this are rounding


def asks(workload: Workload, layout: Layout, terms: Sequence[str]) -> np.ndarray:
    """Count what one step of a layout asks of each term."""
    uses = used_by(workload, layout)
    return np.array([uses[term] for term in terms], float)


def matrix(
    workload: Workload, measurements: Sequence[Measurement], terms: Sequence[str]
) -> np.ndarray:
    """Give what each row asks of each term, over its seconds: times the cost it should be 1."""
    return np.array([asks(workload, m.layout, terms) / m.seconds for m in measurements])


def terms_for(
    workload: Workload,
    measurements: Sequence[Measurement],
    terms: Sequence[str] = ALWAYS,
) -> tuple[str, ...]:
    """List the terms that rows can tell apart, for `fit`: none of them is made of those before it.

    With one batch, for instance, arithmetic and fixed are one; only a ring's bytes and messages do
    not grow alike. "input" is asked for by name.

    >>> rows = [Measurement.of_rate(Layout(n, 64, "ring"), 150 * n**0.9) for n in (1, 2, 4)]
    >>> terms_for(Workload("mine", 10_000_000), rows)
    ('arithmetic', 'moving', 'latency')
    """
    found: list[str] = []
    for term in terms if measurements else ():
        columns = matrix(workload, measurements, [*found, term])
        if np.linalg.matrix_rank(columns / norms(columns), NOISE) > len(found):
            found.append(term)
    return tuple(found)


def norms(matrix: np.ndarray) -> np.ndarray:
    """Give the length of each column, 1 for an empty one."""
    lengths = np.linalg.norm(matrix, axis=0)
    return np.where(lengths > 0, lengths, 1.0)


def solve(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Give the x of 0 or more with the least |matrix x - 1|, and the sum of its squares."""
    # Not nnls: SciPy 1.15's can miss the minimum of a square system.
    from scipy.optimize import lsq_linear

    ones, scale = np.ones(len(matrix)), norms(matrix)
    if not matrix.size:
        return np.zeros(matrix.shape[1]), float(len(matrix))
    found = lsq_linear(matrix / scale, ones, (0, np.inf), method="bvls", tol=1e-15).x
    costs = np.where(found > 1e-12, found, 0) / scale  # what is 0 may come back as 1e-17 or -1e-32
    return costs, float(np.sum((matrix @ costs - 1) ** 2))


def leanest(matrix: np.ndarray) -> np.ndarray:
    """Give the x of `solve` in which a column that only repeats others stays at 0.

    Of columns that can stand for each other the first ones are used.
    """
    used = list(range(matrix.shape[1]))
    x, least = solve(matrix)
    for column in reversed(used[1:]):
        fewer = [other for other in used if other != column]
        found, squares = solve(matrix[:, fewer])
        if squares * (1 - NOISE) - len(matrix) * NOISE**2 <= least:
            used, x = fewer, found
    costs = np.zeros(matrix.shape[1])
    costs[used] = x
    return costs


def student(spare: int) -> float:
    """Give the t below which 97.5 % of Student's distribution lies, for so many spare rows."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf is this function, and slow to import

    return float(stdtrit(spare, 0.975))
