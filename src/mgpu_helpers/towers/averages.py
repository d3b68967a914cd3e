"""Average the gradients of towers in one place: the average of lesson 07."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers._train import HOST

# Operations that make the same of every batch, by how many of their inputs count for that.
OF_NO_EXAMPLE = {"Const": 0, "Range": 3, "AddV2": 2, "Cast": 1, "ExpandDims": 1, "Identity": 1,
                 "Less": 2, "ReadVariableOp": 0, "Reshape": 1, "SelectV2": 3,
                 "StridedSlice": 4}  # fmt: skip


def average(
    tower_gradients: Sequence[Sequence[Any]],
    *,
    weights: Sequence[Any] | None = None,
    device: str | None = HOST,
) -> list[Any]:
    """Average each variable's gradient over the towers, on `device`: the host, unless you say so.

    None leaves the place to the surrounding `tf.device`.

    Weights, one a tower, are those of `numpy.average`, such as the sizes of the shards. A
    gradient that is None counts as zero; it stays None where every tower has none. Sparse ones
    (`tf.IndexedSlices`) stay sparse unless a tower has a dense one.

    >>> average([[np.array([1.0, 2.0])], [np.array([3.0, 6.0])]])[0].numpy().tolist()
    [2.0, 4.0]
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import placed

    columns = list(zip(*tower_gradients, strict=True))
    if any(isinstance(g, tuple) and len(g) == 2 for column in columns for g in column):
        raise ValueError(
            "the towers hold pairs of gradient and variable: give the gradients only, "
            "[gradient for gradient, variable in pairs]."
        )
    with placed(device):
        if weights is None:
            return [times(1 / len(tower_gradients), _added(column)) for column in columns]
        known = [weight for weight in weights if not tf.is_tensor(weight)]
        if min(known, default=0) < 0 or known and len(known) == len(weights) and not sum(known):
            raise ValueError(f"weights={list(weights)}: none may be below 0, and not all 0.")
        whole = sum(weights)
        shares = [weight / whole for weight in weights]
        scaled = ([times(*each) for each in zip(shares, c, strict=True)] for c in columns)
        return [_added(column) for column in scaled]


def total(tower_gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Add up each variable's gradient over the towers; None and sparse ones are as in `average`."""
    return [_added(column) for column in zip(*tower_gradients, strict=True)]


def _added(column: Sequence[Any]) -> Any:
    import tensorflow as tf

    each = [gradient for gradient in column if gradient is not None]
    if not each:
        return None
    if not all(isinstance(g, tf.IndexedSlices) for g in each):
        return tf.add_n([tf.convert_to_tensor(g) for g in each])
    values, indices = [g.values for g in each], [g.indices for g in each]
    if alike := [g for g in each if same_rows(g)]:
        return tf.IndexedSlices(tf.add_n(values), alike[0].indices, each[0].dense_shape)
    # What stands there twice for a row adds up when it is used.
    joined = tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), each[0].dense_shape)
    once = len(each) > 1 and any(map(has_rows_once, each))
    return each_row_once(joined) if once else joined


def same_rows(gradient: Any) -> bool:
    """Say whether a gradient in a graph is sparse with the same rows for every batch.

    So it is for a position embedding. Its rows have to be added up, as one device has each of
    them once: Keras's optimizers square and clip what stands there twice before they add it up.
    """
    import tensorflow as tf

    looked_up: list[Any] = [getattr(gradient, "indices", None)]
    while looked_up:
        each = looked_up.pop()
        if not tf.is_symbolic_tensor(each) or each.op.type not in OF_NO_EXAMPLE:
            return False
        if each.op.type == "StridedSlice" and each.op.inputs[0].op.type == "Shape":
            rank = each.op.inputs[0].op.inputs[0].shape.rank
            begin = tf.get_static_value(each.op.inputs[1])
            if not rank or begin is None or begin[0] % rank == 0:  # a number of examples
                return False
            continue
        looked_up += each.op.inputs[: OF_NO_EXAMPLE[each.op.type]]
    return True


def has_rows_once(gradient: Any) -> bool:
    """Say whether a gradient in a graph has each row once, as that of a sparse batch's columns.

    One device has so for the whole batch; `each_row_once` makes it of what parts have together.
    """
    import tensorflow as tf

    def made_by(rows: Any) -> Any:
        while tf.is_symbolic_tensor(rows) and rows.op.type in ("Identity", "Reshape", "Cast"):
            rows = rows.op.inputs[0]
        return rows.op if tf.is_symbolic_tensor(rows) else None

    op, once = made_by(getattr(gradient, "indices", None)), ("Unique", "UniqueV2")
    if op is not None and op.type == "ConcatV2":
        if any(made is not None and made.type in once for made in map(made_by, op.inputs)):
            raise ValueError(
                "a weight is multiplied by several sparse tensors, and an optimizer takes its rows "
                "apart for each of them, which it cannot for parts of a batch: give the layer what "
                "tf.sparse.to_dense makes of them, or each a layer of its own."
            )
    return op is not None and op.type in once


def each_row_once(gradient: Any) -> Any:
    """Add up what a sparse gradient has for the same row."""
    import tensorflow as tf

    rows, which = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, which, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def times(share: Any, gradient: Any) -> Any:
    """Multiply a gradient, which may be None or sparse, by a number or a tensor."""
    import tensorflow as tf

    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
    share = tf.cast(share, gradient.dtype) if tf.is_tensor(share) else float(share)
    return tf.math.scalar_mul(share, gradient)
