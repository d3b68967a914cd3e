"""What a step would hold over time, from its graph: each operation in turn, nothing runs.

An operation takes a buffer for each result, unless it hands on one that it was given, or writes
over one that nobody else needs. A buffer is given back after the last operation that needs it.
A round of a loop begins before the last one has ended; how many overlap, nobody knows before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mgpu_helpers.graph import walk
from mgpu_helpers.graph.values import Values
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown, called
from mgpu_helpers.trace.step import Allocation, Op, Trace, curve

DEVICE = "/ONE:0"  # a device for all, which nobody chose yet
# What gives something that is there anyway: a weight, an input, an element of a list, a shape.
_FREE = {
    "BroadcastGradientArgs", "Const", "NoOp", "Placeholder", "Rank", "ReadVariableOp", "Shape",
    "ShapeN", "Size", "TensorListGetItem", "TensorListPopBack", "VarHandleOp", "VariableShape",
}  # fmt: skip
# What gives its input, seen in another way.
_SAME = {
    "CheckNumerics", "ExpandDims", "Identity", "IdentityN", "PreventGradient", "Reshape",
    "Snapshot", "Squeeze", "StopGradient", "TensorListPushBack", "TensorListResize",
    "TensorListSetItem",
}  # fmt: skip
# What writes over an input of the size of its result: number by number.
_OVER = {
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc",
    "Exp", "Inv", "InvGrad", "LeakyRelu", "LeakyReluGrad", "Log", "Log1p", "LogicalNot",
    "LogSoftmax", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal",
    "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Select",
    "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Softmax", "Softplus",
    "SoftplusGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad",
}  # fmt: skip
_PUSHES = {"TensorListPushBack", "TensorListSetItem"}


@dataclass(eq=False)
class _Buffer:
    maker: str
    bytes: int
    start: float
    users: int = 0  # operations that still need it
    end: float | None = None


def counted(graph: Any, overlap: float = 0.75) -> Trace:
    """Give a function's graph as the trace of a step: one tick an operation, all on one device.

    overlap is the share, 0 to 1, of the rounds that may run at once in a loop and do. In an LSTM's
    way back it was two thirds to all of them, less at a batch of 8 or fewer.
    """
    ops = walk.live(graph).ops
    names = {op.name for op in ops}
    edges = [(t.op.name, op.name) for op in ops for t in op.inputs if t.op.name in names]
    waits = [(b.name, op.name) for op in ops for b in op.control_inputs if b.name in names]
    found = [
        Allocation(b.maker, DEVICE, b.bytes, b.start, b.end)
        for b in _buffers(graph, None, Values(graph), overlap)[0]
        if b.bytes
    ]
    return Trace(
        tuple(Op(op.name, op.type, DEVICE, i, 1.0) for i, op in enumerate(ops)), (),
        {DEVICE: curve(found)}, tuple(edges + waits), tuple(found), tuple(waits),
    )  # fmt: skip


def _buffers(
    graph: Any, outputs: set[int] | None, values: Values, overlap: float
) -> tuple[list[_Buffer], dict[str, Any]]:
    """List the buffers in the order in which they are taken; and the one of each tensor."""
    alive, made = walk.live(graph, outputs), list[_Buffer]()
    of: dict[str, _Buffer | None] = {}
    users = Counter(tensor.name for op in alive.ops for tensor in op.inputs)
    users.update(t.name for i, t in enumerate(graph.outputs) if outputs is None or i in outputs)
    for now, op in enumerate(alive.ops):
        given = [of.get(tensor.name) for tensor in op.inputs]
        inside, grown = _inside(op, alive.outputs.get(op.name, set()), values, overlap)
        made.append(_Buffer(f"{op.name}/inside", inside, now, end=now))
        for i, tensor in enumerate(op.outputs):
            new = _Buffer(op.name, _bytes(tensor) + grown.get(i, 0), now)
            if op.type == "TensorListFromTensor":  # its elements are copies
                new.bytes = _bytes(op.inputs[0])
            kept = _handed_on(op, i, new, given)
            if kept is new:
                made.append(new)
            if kept:
                kept.users += users[tensor.name]
            of[tensor.name] = kept
        if op.type in _PUSHES:  # the list has it now
            given.pop()
        for buffer in given:
            if buffer:
                buffer.users -= 1
        for buffer in {*given, *(of[tensor.name] for tensor in op.outputs)}:
            if buffer and not buffer.users:
                buffer.end = now + 0.5
    return made, of


def _handed_on(op: Any, i: int, new: _Buffer, given: list[_Buffer | None]) -> _Buffer | None:
    """Give the buffer of an output: one that it was given, the new one, or None of its own."""
    if op.type in _FREE:
        return None
    if op.type in _SAME:
        return given[i if op.type == "IdentityN" else 0]
    if op.type in LOOPS and op.inputs[i].dtype.name == "variant" and not new.bytes:
        return given[i]  # a list that goes round as it is
    if op.type in _OVER:
        for buffer in given:
            if buffer and buffer.users == 1 and buffer.bytes == new.bytes:
                return buffer
    return new


def _inside(
    op: Any, outputs: set[int], values: Values, overlap: float
) -> tuple[int, dict[int, int]]:
    """Count what an operation takes only while it runs a function; and what its lists grow by."""
    if op.type in CALLS | BRANCHES:
        given = op.inputs[1:] if op.type in BRANCHES else op.inputs
        inner = [(graph, values.inside(graph, given)) for graph in called(op)]
        most = max(_most(_buffers(g, outputs, known, overlap)[0]) for g, known in inner)
        return max(0, most - sum(map(_bytes, op.outputs))), {}
    if op.type not in LOOPS:
        return 0, {}
    body, around = called(op)[1], walk.carried(op, outputs)
    made, of = _buffers(body, around, values.round(op), overlap)
    grown = {i: sum(b.bytes for b in each) for i, each in _pushed(body, around, of).items()}
    rounds, _ = values.loop(op)
    if rounds is None:
        raise Unknown(f"the loop {op.name} runs as often as its data say.")
    several = 1 + overlap * max(0, min(rounds, op.get_attr("parallel_iterations")) - 1)
    once = _most(made) - sum(grown.values())
    return int(several * once), {i: rounds * each for i, each in grown.items()}


def _pushed(body: Any, around: set[int], of: dict[str, Any]) -> dict[int, list[_Buffer]]:
    """Find what a round of a loop adds to its lists; what several of them get is one buffer."""
    found: dict[int, list[_Buffer]] = {}
    seen: set[_Buffer] = set()
    state = {tensor.name: i for i, tensor in enumerate(body.inputs)}
    for i in sorted(around):
        tensor = body.outputs[i]
        while tensor.op.type in _SAME:
            if tensor.op.type in _PUSHES:
                last = tensor.op.inputs[-1]
                if last.name in state:  # what the round before made
                    last = body.outputs[state[last.name]]
                buffer = of.get(last.name)
                if buffer and buffer not in seen:
                    seen.add(buffer)
                    found.setdefault(i, []).append(buffer)
            tensor = tensor.op.inputs[0]
    return found


def _most(buffers: list[_Buffer]) -> int:
    spans = (Allocation(b.maker, DEVICE, b.bytes, b.start, b.end) for b in buffers)
    return max(live for _, live in curve(spans))


def _bytes(tensor: Any) -> int:
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    size = tensor.shape.num_elements()
    if size is None:
        if tensor.shape.rank == 1:  # a shape, or a list of axes
            return 0
        raise Unknown(f"{tensor.op.name} gives a tensor of shape {tensor.shape}.")
    return size * tensor.dtype.size
