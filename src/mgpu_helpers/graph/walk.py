"""Which operations of a function's graph run: dead ones left out, and functions entered.

A graph here is a FuncGraph: that of a concrete function, of a branch, or of a loop's body.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mgpu_helpers import private

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}


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
    if op.type in CALLS:
        names = [op.get_attr("f")]
    elif op.type in LOOPS:
        names = [op.get_attr("cond"), op.get_attr("body")]
    elif op.type in ("Case", "StatelessCase"):
        names = op.get_attr("branches")
    elif op.type in BRANCHES:
        names = [op.get_attr("then_branch"), op.get_attr("else_branch")]
    else:
        return []
    return [private.function_graph(op.graph, each.name) for each in names]


def live(graph: Any, outputs: Iterable[int] | None = None) -> Live:
    """Find what runs for the outputs with these numbers, and for side effects; None is all.

    The operations come in the order of creation, each after those that it waits for.
    """
    wanted = graph.outputs if outputs is None else [graph.outputs[i] for i in outputs]
    used: dict[str, set[int]] = {}
    ran = {op.name for op in getattr(graph, "control_outputs", ())}
    for tensor in wanted:
        used.setdefault(tensor.op.name, set()).add(tensor.value_index)
    kept = []
    for op in reversed(ordered(graph)):
        if op.name not in used and op.name not in ran:
            continue
        kept.append(op)
        ran |= {before.name for before in op.control_inputs}
        tensors = op.inputs
        if (needed := _needed(op, used.get(op.name, set()))) is not None:
            tensors = [tensors[i] for i in sorted(needed)]
        for tensor in tensors:
            used.setdefault(tensor.op.name, set()).add(tensor.value_index)
    inputs = {i for i, tensor in enumerate(graph.inputs) if tensor.op.name in used}
    return Live(kept[::-1], inputs, used)


def ordered(graph: Any) -> list[Any]:
    """List all operations in the order of creation, but each after those that it waits for.

    A loop that is differentiated is made anew, after what uses it.
    """
    done, order = set(), []
    for first in graph.get_operations():
        ahead = [first]
        while ahead:
            op = ahead[-1]
            missing = []
            if op.name not in done:
                before = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
                missing = [each for each in before if each.name not in done]
            if missing:
                ahead += missing
                continue
            ahead.pop()
            if op.name not in done:
                done.add(op.name)
                order.append(op)
    return order


def _needed(op: Any, outputs: set[int]) -> set[int] | None:
    """Number the inputs that an operation needs for these outputs; None is all."""
    if op.type in CALLS:
        return live(called(op)[0], outputs).inputs
    if op.type in BRANCHES:
        each = [live(graph, outputs).inputs for graph in called(op)]
        return {0} | {i + 1 for i in set().union(*each)}
    return carried(op, outputs) if op.type in LOOPS else None


def carried(op: Any, outputs: Iterable[int] = ()) -> set[int]:
    """Number what a loop has to carry round for these outputs, and to know when to stop."""
    condition, body = called(op)
    known = set(outputs) | live(condition).inputs
    while more := live(body, known).inputs - known:
        known |= more
    return known
