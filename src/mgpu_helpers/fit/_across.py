"""A layout on several workers: each lays its share of every batch out over its own devices.

To TensorFlow a worker is one replica, for which holds what `fit` does for replicas: its losses,
masks and statistics count as shares of the whole batch, and gradients are added up before an
optimizer sees them. The weights are each worker's own, where its layout has them, and stay the same
since all begin with the first one's and update by the same sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.fit._moving import optimizers_of
from mgpu_helpers.fit._workers import compare
from mgpu_helpers.fit.strategies import by_worker

SAME = "Let each worker call fit.use with the same model and the same layout."


def join(model: Any, layout: Any) -> None:
    """Let a model train its share of each batch, with the first weights of worker 0."""
    strategy = by_worker()
    compare(strategy, {
        "number of weights": sum(math.prod(v.shape) for v in model.weights),
        "number of devices": len(layout.devices),
        "rows": len(layout.rows), "pieces": layout.pieces,
    }, SAME)  # fmt: skip
    _send_state(model, strategy)
    _private.trained_by(model, strategy)


def leave(model: Any) -> None:
    """Let a model train alone again, with metrics of its own."""
    _private.trained_by(model, None)
    for variable in _of_metrics(model):
        _private.keep_alone(variable)


def share_metrics(model: Any) -> None:
    """Let what metrics keep be added up over the workers where it is read."""
    for variable in _of_metrics(model):
        _private.keep_sums(variable, model.distribute_strategy)


def _of_metrics(model: Any) -> Iterator[Any]:
    for metric in model.metrics:
        yield from metric.variables


def _send_state(model: Any, strategy: Any) -> None:
    """Give all workers the numbers that worker 0 has."""
    kept = [model.variables, *(each.variables for each in optimizers_of(model))]
    by_type: dict[str, dict[int, Any]] = {}  # those of one type go in one pack
    for variable in itertools.chain(*kept):
        by_type.setdefault(variable.value.dtype.name, {})[id(variable)] = variable

    @tf.function
    def sent(values: list[Any]) -> Any:
        context = tf.distribute.get_replica_context()
        first = tf.equal(context.replica_id_in_sync_group, 0)
        return context.all_reduce("SUM", [tf.where(first, x, tf.zeros_like(x)) for x in values])

    for variables in by_type.values():
        values = [tf.convert_to_tensor(each.value) for each in variables.values()]
        wide = [x if x.dtype.is_floating else tf.cast(x, tf.int64) for x in values]
        for variable, value in zip(variables.values(), strategy.run(sent, (wide,)), strict=True):
            variable.assign(tf.cast(value, variable.value.dtype))
