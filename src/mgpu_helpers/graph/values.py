"""Numbers that are known before a function runs, above all how often its loops do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mgpu_helpers.graph.walk import CALLS, LOOPS, called, carried

MOST_ROUNDS = 100_000  # a loop that counts further is not followed to its end
_BY_VALUE: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "AddV2": operator.add, "Sub": operator.sub, "Mul": operator.mul,
    "FloorDiv": operator.floordiv, "Minimum": np.minimum, "Maximum": np.maximum,
    "Less": operator.lt, "LessEqual": operator.le, "Greater": operator.gt,
    "GreaterEqual": operator.ge, "Equal": operator.eq, "NotEqual": operator.ne,
    "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "LogicalNot": np.logical_not,
    "Identity": lambda x: x, "Squeeze": np.squeeze,
    "Max": lambda x, _: np.max(x), "Min": lambda x, _: np.min(x), "Prod": lambda x, _: np.prod(x),
}  # fmt: skip


class Values:
    """Small numbers that are known before a function runs, above all those that count loops."""

    def __init__(self, graph: Any, inputs: dict[int, Any] | None = None) -> None:
        self.known = {graph.inputs[i].name: value for i, value in (inputs or {}).items()}

    def of(self, tensor: Any) -> Any:
        """Give a tensor's value; None where it depends on data."""
        if tensor.name not in self.known:
            self.known[tensor.name] = self._find(tensor)
        return self.known[tensor.name]

    def _find(self, tensor: Any) -> Any:
        import tensorflow as tf

        op = tensor.op
        if op.type in LOOPS:
            return self.loop(op, {tensor.value_index})[1].get(tensor.value_index)
        if op.type in CALLS:
            graph = called(op)[0]
            return self.inside(graph, op.inputs).of(graph.outputs[tensor.value_index])
        if op.type in ("Placeholder", "VarHandleOp") or (tensor.shape.num_elements() or 0) > 1000:
            return None
        if op.type not in _BY_VALUE and op.type not in ("Cast", "StridedSlice"):
            return tf.get_static_value(tensor)
        given = [self.of(each) for each in op.inputs]
        if any(each is None for each in given):
            return None
        if op.type == "Cast":
            return tensor.dtype.as_numpy_dtype(given[0])
        if op.type != "StridedSlice":
            return _BY_VALUE[op.type](*given)
        taken = np.ndim(given[0]) == 1 and op.get_attr("shrink_axis_mask")
        return given[0][given[1][0]] if taken else None

    def inside(self, graph: Any, tensors: Iterable[Any]) -> Values:
        """Take along what is known of these tensors into a function that gets them."""
        return Values(graph, {i: self.of(each) for i, each in enumerate(tensors)})

    def loop(self, op: Any, outputs: Iterable[int] = ()) -> tuple[int | None, dict[int, Any]]:
        """Count a loop's rounds and give what it ends with, by output; None where data decide."""
        condition, body = called(op)
        state = {i: self.of(op.inputs[i]) for i in carried(op, outputs)}
        fixed = _constants(condition), _constants(body)
        for rounds in range(MOST_ROUNDS + 1):
            go = _again(condition, state, fixed[0]).of(condition.outputs[0])
            if go is None:
                return None, {}
            if not go:
                return rounds, state
            values = _again(body, state, fixed[1])
            state = {i: values.of(body.outputs[i]) for i in state}
        return None, {}

    def round(self, op: Any) -> Values:
        """Take along into a loop's body what stays the same in every round."""
        _, body = called(op)
        return Values(body, {
            i: self.of(op.inputs[i])
            for i, tensor in enumerate(body.outputs)
            if _through(tensor) == body.inputs[i].name
        })  # fmt: skip


def _through(tensor: Any) -> str:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.name


def _constants(graph: Any) -> dict[str, Any]:
    values = Values(graph)
    return {
        op.outputs[0].name: values.of(op.outputs[0])
        for op in graph.get_operations()
        if op.type == "Const"
    }


def _again(graph: Any, state: dict[int, Any], constants: dict[str, Any]) -> Values:
    values = Values(graph, state)
    values.known |= constants
    return values
