"""Average the gradients of towers in one place: the average of lesson 07."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_helpers.towers.split import HOST
from mgpu_helpers.wording import counted


def _average(tower_gradients: Sequence[Sequence[Any]]) -> list[Any]:
    import tensorflow as tf

    return [tf.add_n(each) / len(each) for each in zip(*tower_gradients, strict=True)]


def _weighted_mean(column: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Average what `_average` cannot: with weights, with None, and sparse gradients."""
    import tensorflow as tf

    each = []
    for gradient, share in zip(column, shares, strict=True):
        if gradient is not None:
            share = tf.cast(share, gradient.dtype) if tf.is_tensor(share) else float(share)
            each.append(tf.math.scalar_mul(share, gradient))
    return _added(each)


def total(tower_gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Add up each variable's gradient over the towers; None and sparse ones are as in `average`."""
    columns = by_variable(tower_gradients)
    return [_added([g for g in column if g is not None]) for column in columns]


def _added(each: Sequence[Any]) -> Any:
    import tensorflow as tf

    if not each:
        return None
    if not all(isinstance(g, tf.IndexedSlices) for g in each):
        return tf.add_n([tf.convert_to_tensor(g) for g in each])
    values, indices = [g.values for g in each], [g.indices for g in each]
    # What stands there twice for a row adds up when it is used.
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), each[0].dense_shape)


def average(
    tower_gradients: Sequence[Sequence[Any]],
    *,
    weights: Sequence[Any] | None = None,
    device: str | None = HOST,
) -> list[Any]:
    """Average each variable's gradient over the towers, on `device`: the host, unless you say so.

    None leaves the place to the surrounding `tf.device`.

    Weights, one a tower, are those of `numpy.average`: the sizes of the shards, or `shares`. A
    gradient that is None counts as zero; it stays None where every tower has none. Sparse ones
    (`tf.IndexedSlices`) stay sparse unless a tower has a dense one.

    >>> average([[np.array([1.0, 2.0])], [np.array([3.0, 6.0])]])[0].numpy().tolist()
    [2.0, 4.0]
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import placed

    columns, n = by_variable(tower_gradients), len(tower_gradients)
    known = [w for w in (() if weights is None else weights) if not tf.is_tensor(w)]
    if weights is not None and (
        len(weights) != n or min(known, default=0) < 0 or len(known) == n and sum(known) == 0
    ):
        raise ValueError(
            f"weights {list(weights)} do not fit {counted(n, 'tower')}: give one for each, none "
            "below 0 and not all 0."
        )

    with placed(device):
        if weights is None and all(isinstance(g, tf.Tensor) for column in columns for g in column):
            return _average(tower_gradients)
        shares = [1 / n] * n if weights is None else [w / sum(weights) for w in weights]
        return [_weighted_mean(column, shares) for column in columns]


def by_variable(tower_gradients: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Check the gradients of each tower, and give those of each variable."""
    import tensorflow as tf

    counts = [len(tower) for tower in tower_gradients]
    if len(set(counts)) != 1:
        raise ValueError(
            f"the towers hold {', '.join(map(str, counts)) or 'no'} gradients: give each tower's "
            "for the same variables, in the same order."
        )
    tower_gradients = [
        [tf.convert_to_tensor(g) if isinstance(g, np.ndarray | np.generic) else g for g in tower]
        for tower in tower_gradients
    ]
    columns = list(zip(*tower_gradients, strict=True))
    for index, column in enumerate(columns):
        if any(isinstance(g, tuple | list) for g in column):
            raise ValueError(
                "the towers hold pairs of gradient and variable: give the gradients only, "
                "[gradient for gradient, variable in pairs]."
            )
        known = [g for g in column if g is not None]
        if not all(known[0].shape.is_compatible_with(g.shape) for g in known):
            raise ValueError(
                f"gradient {index} has shapes {' and '.join(str(g.shape) for g in known)} in the "
                "towers: give the same variables in the same order."
            )
    if all(g is None for column in columns for g in column):
        raise ValueError(
            "every gradient is None: the loss does not depend on these variables, or a tape did "
            "not watch them."
        )
    return columns
