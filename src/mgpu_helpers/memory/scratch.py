"""Which buffers the operations of a step take, in an order, and until when.

An operation takes one for each result, unless it hands on one that it was given, or writes over one
that nobody else needs. A buffer is given back after the last operation that needs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_helpers._later import tf
from mgpu_helpers.graph.walk import LOOPS, one_by_one
from mgpu_helpers.memory.order import DEVICE, FREE, SAME, Node, Tensor
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import Allocation, curve

# What writes over an input of the size of its result: number by number.
OVER = {
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc",
    "Exp", "Inv", "InvGrad", "LeakyRelu", "LeakyReluGrad", "Log", "Log1p", "LogicalNot",
    "LogSoftmax", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal",
    "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Select",
    "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Softmax", "Softplus",
    "SoftplusGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad",
}  # fmt: skip
OVER_ON_CPU = {"MaxPoolGrad"}  # with oneDNN, and not on a GPU
# What writes its second result, the gradient, over its first input.
_OVER_SECOND = {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
PUSHES = {"TensorListPushBack", "TensorListSetItem"}
# What writes into some rows of a weight. From then on whoever reads the weight gets a copy of it.
_INTO_ROWS = ("ResourceScatter", "ResourceSparseApply")
# What changes a weight where it is, unless somebody still reads it: then a copy of it, beside it.
_INTO_WEIGHT = {"AssignAddVariableOp", "AssignSubVariableOp"}
ASKS_SHAPE = {"Rank", "Shape", "ShapeN", "Size"}  # and the weight is not read for it


@dataclass(eq=False, repr=False)
class Buffer:
    """What a tensor lies in, or several one after the other."""

    node: Node  # what took it
    bytes: int
    start: float
    users: int = 0  # operations that still need it
    end: float | None = None
    of: Sequence[int] = ()  # the sizes that it is made of, where there are several
    loops: bool = False  # a loop works with it, and does not give it as a tensor


def buffers(
    nodes: Sequence[Node], outputs: Iterable[Tensor | None], over: Set[str] = OVER | OVER_ON_CPU,
    threads: bool = False, copying: bool = True,
) -> tuple[list[Buffer], dict[Tensor | None, Any]]:  # fmt: skip
    """List the buffers in the order in which they are taken; and the one of each tensor.

    Without copying a weight is updated where it is, as if whoever still reads it had come before.

    With threads, what an optimizer makes of a gradient does not lie in the gradient's buffer where
    it makes several things of it: two threads may be at them, and neither can write over it. Where
    it adds up rows of a gradient several times, all of these rows are there until the last one.
    """
    made: list[Buffer] = []
    of: dict[Tensor | None, Buffer | None] = {None: None}
    users = Counter(tensor for node in nodes for tensor in node.inputs)
    users.update(outputs)
    in_rows = {node.inputs[0] for node in nodes if node.op.type.startswith(_INTO_ROWS)}
    wanted = {t for node in nodes if node.op.type not in ASKS_SHAPE for t in node.inputs}
    alone = {t for node in nodes if node.op.type != "MatMul" for t in node.inputs}
    reads: dict[Tensor | None, list[Buffer]] = {}  # of a weight, since it was changed
    copies: list[tuple[Buffer, list[Buffer]]] = []  # of a weight, until these have been read
    for now, node in enumerate(nodes):
        given = [of.get(tensor) for tensor in node.inputs]
        free: Sequence[Buffer | None] = given  # to be written over
        if threads and layer(node.name) == "optimizer":
            free = [of.get(tensor) for tensor in node.inputs if users[tensor] == 1]
        copied = (node, 0) in wanted and node.op.type == "ReadVariableOp" and (
            node.inputs[0] in in_rows
        )  # fmt: skip
        made.append(Buffer(node, node.inside, now, end=now, of=node.inside_of, loops=True))
        if node.op.type in _INTO_WEIGHT:
            late = [r for r in reads.pop(node.inputs[0], ()) if r.users > given.count(r)]
            if late and copying:
                made.append(Buffer(node, late[0].node.bytes[0], now, end=now))
                copies.append((made[-1], late))
        for i, size in enumerate(node.bytes):
            loops = node.op.type in LOOPS and node.op.outputs[i].dtype.name == "variant"
            new = Buffer(node, size, now, loops=loops)
            folded = node.op.type == "Transpose" and (node, i) not in alone
            if folded and node.op.outputs[i].shape.rank == 2:  # by TensorFlow, into the MatMul
                kept = given[0]
            else:
                kept = new if copied else _handed_on(node.op, i, new, given, free, over)
            if kept is new:
                made.append(new)
            elif node.op.type == "ReadVariableOp":  # takes nothing, but sees the weight as it is
                kept = Buffer(node, 0, now)
                reads.setdefault(node.inputs[0], []).append(kept)
            if kept:
                kept.users += users[node, i]
            of[node, i] = kept
        if node.op.type in PUSHES:  # the list has it now
            given.pop()
        for buffer in given:
            if buffer:
                buffer.users -= 1
        for buffer in {*given, *(of[node, i] for i in range(len(node.bytes)))}:
            if buffer and not buffer.users:
                buffer.end = now + 0.5
    if threads:
        summed: dict[Tensor | None, list[Buffer]] = {}
        for node in nodes:
            if node.op.type == "UnsortedSegmentSum" and (rows := of.get(node.inputs[0])):
                summed.setdefault(node.inputs[1], []).append(rows)
        for several in summed.values():
            last = max((rows.end or math.inf for rows in several), default=math.inf)
            for rows in several:
                rows.end = None if last == math.inf else last
    for copy, late in copies:
        ends = [read.end for read in late]
        copy.end = None if None in ends else max(end for end in ends if end is not None)
    return made, of


def _handed_on(
    op: Any, i: int, new: Buffer, given: Sequence[Buffer | None], free: Sequence[Buffer | None],
    over: Set[str],
) -> Buffer | None:  # fmt: skip
    """Give the buffer of an output: one that it was given, the new one, or None of its own."""
    if op.type in FREE:
        return None
    if op.type in SAME or op.type == "StridedSlice" and _whole_rows(op):
        return given[0]
    if op.type in LOOPS and not new.bytes:
        return given[i]  # what goes round as it is
    if op.type in over or one_by_one(op) or op.type in _OVER_SECOND and i == 1:
        for buffer in free:
            if buffer and buffer.users == 1 and buffer.bytes == new.bytes:
                return buffer
    return new


def _whole_rows(op: Any) -> bool:
    """Say whether a slice is of whole rows, one after the other, which TensorFlow does not copy."""
    x, y, steps = op.inputs[0], op.outputs[0], tf.get_static_value(op.inputs[3])
    if not x.shape.rank or y.shape.rank != x.shape.rank or steps is None or steps[0] != 1:
        return False
    row = x.shape[1:].num_elements()  # begins where a processor reads fast, or it is copied
    return x.shape[1:] == y.shape[1:] and row is not None and row * x.dtype.size % 64 == 0


def beside(
    nodes: Sequence[Node], taken: Callable[[Buffer], int] = lambda buffer: buffer.bytes
) -> np.ndarray:
    """Count the bytes that other threads may hold while one takes operations in this order.

    They begin a gradient that the one leaves for later, and update its weight, at any moment until
    the one would have come to it. Threads leave one update for another, so that two are counted:
    of those that may have begun, the two that hold most. An update that comes while the one has
    still to read the weight holds a copy of it until then. taken gives what a buffer takes.
    """
    at = {n: i for i, n in enumerate(nodes)}
    readers, sizes = _readers(nodes)
    users: dict[Node, list[Node]] = {}
    for n in nodes:
        if layer(n.name) == "optimizer":
            for before in n.after:
                users.setdefault(before, []).append(n)
    most = np.zeros((2, len(nodes)), np.int64)
    for n in users.keys() - {n for each in users.values() for n in each}:
        ready = 1 + max((at[before] for before in n.after), default=-1)
        if at[n] == ready or n.op.type in FREE | SAME:
            continue
        update, ahead = {n}, [n]
        while ahead:
            new = [
                user for user in users.get(ahead.pop(), ()) if user not in update
                and all(before in update or at[before] < ready for before in user.after)
            ]  # fmt: skip
            update.update(new)
            ahead += new
        made, _ = buffers(sorted(update, key=at.__getitem__), ())
        spans = [Allocation(b.node.name, DEVICE, taken(b), b.start, b.end) for b in made]
        held = np.zeros(at[n] - ready, np.int64)
        held += max((size for _, size in curve(spans)), default=0)
        for weight in {u.inputs[0] for u in update if u.op.type in _INTO_WEIGHT}:
            last = max((at[r] for r in readers.get(weight, set()) - update), default=-1)
            held[: max(0, last + 1 - ready)] += sizes.get(weight, 0)
        first, next_ = most[:, ready : at[n]]
        np.maximum(next_, np.minimum(first, held), out=next_)
        np.maximum(first, held, out=first)
    return most.sum(axis=0)


def _readers(nodes: Iterable[Node]) -> tuple[dict[Any, set[Node]], dict[Any, int]]:
    """Find by weight what reads it, and its bytes."""
    weight: dict[Tensor | None, Any] = {}
    readers: dict[Any, set[Node]] = {}
    sizes: dict[Any, int] = {}
    for node in nodes:
        if node.op.type == "ReadVariableOp":
            weight[node, 0] = node.inputs[0]
            sizes[node.inputs[0]] = node.bytes[0]
        elif node.op.type not in ASKS_SHAPE:
            for read in filter(weight.__contains__, node.inputs):
                readers.setdefault(weight[read], set()).add(node)
                if node.op.type in SAME:
                    weight[node, 0] = weight[read]
    return readers, sizes
