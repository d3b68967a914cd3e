"""Which operations of a function's graph run, how often, and with which small numbers.

Dead ones are left out, and functions entered.

A graph here is a FuncGraph: that of a concrete function, of a branch, or of a loop's body.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import tf

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
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


class Unknown(Exception):
    """Say in a sentence why something cannot be counted from the graph."""


@dataclass
class Live:
    """What runs in a graph for some of its outputs: operations in order, and inputs by number."""

    ops: list[Any]
    inputs: set[int]
    outputs: dict[str, set[int]] = field(repr=False)  # by operation: the outputs somebody uses


def called(op: Any) -> list[Any]:
    """Give the graphs that an operation calls: of a function, of branches, or (cond, body)."""
    functions = [op.get_attr(each.name) for each in op.op_def.attr if "func" in each.type]
    if op.type in ("Case", "StatelessCase"):  # which have a list of them
        (functions,) = functions
    return [_private.function_graph(op.graph, each.name) for each in functions]


def live(graph: Any, outputs: Iterable[int] | None = None) -> Live:
    """Find what runs for the outputs with these numbers, and for side effects; None is all.

    The operations come in the order of creation, each after those that it waits for.
    """
    used: dict[str, set[int]] = defaultdict(set)
    for i in range(len(graph.outputs)) if outputs is None else outputs:
        used[graph.outputs[i].op.name].add(graph.outputs[i].value_index)
    ran = {op.name for op in graph.control_outputs}
    kept = []
    for op in reversed(ordered(graph)):
        if op.name not in used and op.name not in ran:
            continue
        kept.append(op)
        ran |= {before.name for before in op.control_inputs}
        for i in _needed(op, used.get(op.name, set())):
            used[op.inputs[i].op.name].add(op.inputs[i].value_index)
    inputs = {i for i, tensor in enumerate(graph.inputs) if tensor.op.name in used}
    return Live(kept[::-1], inputs, used)


def ordered(graph: Any) -> list[Any]:
    """List all operations in the order of creation, but each after those that it waits for.

    A loop that is differentiated is made anew, after what uses it.
    """
    order: dict[str, Any] = {}

    def visit(op: Any) -> None:
        if op.name not in order:
            for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
                visit(before)
            order[op.name] = op

    for op in graph.get_operations():
        visit(op)
    return list(order.values())


def _needed(op: Any, outputs: set[int]) -> Iterable[int]:
    """Number the inputs that an operation needs for these outputs."""
    if op.type in CALLS:
        return live(called(op)[0], outputs).inputs
    if op.type in BRANCHES:
        each = [live(graph, outputs).inputs for graph in called(op)]
        return {0} | {i + 1 for i in set().union(*each)}
    return carried(op, outputs) if op.type in LOOPS else range(len(op.inputs))


def carried(op: Any, outputs: Iterable[int] = ()) -> set[int]:
    """Number what a loop has to carry round for these outputs, and to know when to stop."""
    condition, body = called(op)
    known = set(outputs) | live(condition).inputs
    while more := live(body, known).inputs - known:
        known |= more
    return known


class Values:
    """Small numbers that are known before a function runs, above all those that count loops."""

    def __init__(
        self, graph: Any, inputs: Mapping[int, Any] = {}, constants: Mapping[str, Any] = {}
    ) -> None:
        self.known = {**constants, **{graph.inputs[i].name: x for i, x in inputs.items()}}

    def of(self, tensor: Any) -> Any:
        """Give a tensor's value; None where it depends on data."""
        if tensor.name not in self.known:
            self.known[tensor.name] = self._find(tensor)
        return self.known[tensor.name]

    def _find(self, tensor: Any) -> Any:
        op = tensor.op
        if op.type in LOOPS:
            return self.loop(op, {tensor.value_index})[1].get(tensor.value_index)
        if op.type in CALLS:
            ((graph, values),) = self.inside(op)
            return values.of(graph.outputs[tensor.value_index])
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

    def inside(self, op: Any) -> list[tuple[Any, Values]]:
        """Give the function or branches that an operation enters, and what is known in each."""
        handed = op.inputs[op.type in BRANCHES :]  # the first input of branches chooses
        known = dict(enumerate(map(self.of, handed)))
        return [(graph, Values(graph, known)) for graph in called(op)]

    def loop(self, op: Any, outputs: Iterable[int] = ()) -> tuple[int | None, dict[int, Any]]:
        """Count a loop's rounds and give what it ends with, by output; None where data decide."""
        condition, body = called(op)
        state = {i: self.of(op.inputs[i]) for i in carried(op, outputs)}
        fixed = _constants(condition), _constants(body)
        for rounds in range(MOST_ROUNDS + 1):
            go = Values(condition, state, fixed[0]).of(condition.outputs[0])
            if go is None:
                return None, {}
            if not go:
                return rounds, state
            values = Values(body, state, fixed[1])
            state = {i: values.of(body.outputs[i]) for i in state}
        return None, {}

    def round(self, op: Any) -> Values:
        """Take along into a loop's body what stays the same in every round."""
        _, body = called(op)
        return Values(body, {
            i: self.of(op.inputs[i])
            for i in range(len(body.outputs))
            if stays(body, i)
        })  # fmt: skip


def one_by_one(op: Any) -> bool:
    """Say whether it is a loop of which a round begins when the one before has ended."""
    return op.type in LOOPS and op.get_attr("parallel_iterations") == 1


def stays(body: Any, i: int) -> bool:
    """Say whether a loop hands on what has this number as it is, in every round."""
    tensor = body.outputs[i]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return bool(tensor.name == body.inputs[i].name)


def _constants(graph: Any) -> dict[str, Any]:
    values = Values(graph)
    return {
        op.outputs[0].name: values.of(op.outputs[0])
        for op in graph.get_operations()
        if op.type == "Const"
    }
