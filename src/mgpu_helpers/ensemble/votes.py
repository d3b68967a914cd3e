"""One answer from the predictions of several members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mgpu_helpers.wording import counted


def vote(predictions: Any) -> np.ndarray:
    """Give the labels [n] that most members vote for, each with its highest probability.

    A tie goes to the label with the largest sum of probabilities, then to the smallest label.
    `predictions` is what `predictions` gives, or a sequence of arrays [n, classes].

    >>> vote([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]])
    array([1])
    """
    given = _stacked(predictions)
    votes = (given.argmax(2)[..., None] == np.arange(given.shape[2])).sum(0)
    leads = votes == votes.max(1, keepdims=True)
    return np.where(leads, given.sum(0), -np.inf).argmax(1)


def mean(predictions: Any) -> np.ndarray:
    """Give the labels [n] whose average probability is highest; takes what `vote` takes.

    >>> mean([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]])
    array([0])
    """
    return _stacked(predictions).mean(0).argmax(1)


def _stacked(predictions: Any) -> np.ndarray:
    """Check predictions, and give them as one array [members, n, classes]."""
    if not isinstance(predictions, Mapping):
        predictions = {f"member {i}": given for i, given in enumerate(predictions)}
    if not predictions:
        raise ValueError("there are no predictions: give those of one member or more.")
    given = {name: np.asarray(rows, np.float64) for name, rows in predictions.items()}
    first = next(iter(given))
    for name, rows in given.items():
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(
                f"{name} has predictions of shape {rows.shape}: give probabilities [n, classes]."
            )
        if rows.shape != given[first].shape:
            axis, what = (1, "label") if rows.shape[1] != given[first].shape[1] else (0, "row")
            counts = [counted(x.shape[axis], what) for x in (given[first], rows)]
            raise ValueError(
                f"{first} has {counts[0]} and {name} has {counts[1]} (shapes "
                f"{given[first].shape} and {rows.shape}): give predictions of the same images "
                "and labels."
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{name} has predictions that are not finite: leave this member out.")
    return np.stack(list(given.values()))
