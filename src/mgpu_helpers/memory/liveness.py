"""What a step would hold over time, from its graph: each operation in turn, nothing runs.

Operations run in the order in which TensorFlow starts them. One takes a buffer for each result,
unless it hands on one that it was given, or writes over one that nobody else needs. A buffer is
given back after the last operation that needs it. A round of a loop begins before the last one has
ended; how many overlap, nobody knows before, nor which of two branches is taken.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from mgpu_helpers.graph import walk
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown, Values, called
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import Allocation, Op, curve
from mgpu_helpers.trace.step import Trace

DEVICE = "/ONE:0"  # a device for all, which nobody chose yet
# What gives something that is there anyway: a weight, an input, an element of a list, a shape.
_FREE = {
    "BroadcastGradientArgs", "Const", "NoOp", "Placeholder", "Rank", "ReadVariableOp", "Shape",
    "ShapeN", "Size", "TensorListGetItem", "TensorListPopBack", "VarHandleOp", "VariableShape",
}  # fmt: skip
# What gives its input, seen in another way.
_SAME = {
    "Bitcast", "CheckNumerics", "ExpandDims", "Identity", "PreventGradient", "Reshape",
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
_OVER_ON_CPU = {"MaxPoolGrad"}  # with oneDNN, and not on a GPU
# What writes its second result, the gradient, over its first input.
_OVER_SECOND = {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
# What has no more numbers than the largest of its inputs.
_NO_MORE = _OVER | _SAME | {"Cast", "IsFinite", "UnsortedSegmentSum"}
# What has no more rows than one of its inputs has numbers, and which of them that is.
_ROWS = {"GatherV2": 1, "Where": 0}
# What cuDNN keeps of a recurrent layer for its way back, by number of the layer's output: the four
# gates and the cell of an LSTM, as an H100 did; less of a GRU. And a handle on the host.
_CUDNN_KEEPS = {3: 5, 4: 0}
_PUSHES = {"TensorListPushBack", "TensorListSetItem"}
# What writes into some rows of a weight. From then on whoever reads the weight gets a copy of it.
_INTO_ROWS = ("ResourceScatter", "ResourceSparseApply")
# What changes a weight where it is, unless somebody still reads it: then a copy of it, beside it.
_INTO_WEIGHT = {"AssignAddVariableOp", "AssignSubVariableOp"}
ASKS_SHAPE = {"Rank", "Shape", "ShapeN", "Size"}  # and the weight is not read for it


@dataclass(eq=False, repr=False)  # or an error would write all that it was made from
class Node:
    """An operation as it runs: functions and branches are entered, a loop is one operation."""

    name: str
    op: Any
    inputs: list[Tensor | None]  # None: a loop's state
    after: list[Node]  # what it waits for
    numbers: list[int]  # of each output
    bytes: list[int] = field(default_factory=list)  # likewise; a loop's lists with what they hold
    inside: int = 0  # bytes that it takes only while it runs
    inside_of: Sequence[int] = ()  # what it takes most of in one round of a loop
    around: tuple[set[int], Values] | None = None  # of a loop: what is used of it, and is known


Tensor = tuple[Node, int]  # what makes it, and which of its outputs it is


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


def counted(
    graph: Any, overlap: float = 0.75, broad: bool = False, threads: bool = False,
    updates: str = "",
) -> Trace:  # fmt: skip
    """Give a function's graph as the trace of a step: one tick an operation, all on one device.

    overlap is the share, 0 to 1, of the rounds that may run at once in a loop and do. In an LSTM's
    way back it was two thirds to all of them, less at a batch of 8 or fewer. At 0 the smaller of
    two branches is taken too, else the larger. broad is the order in which TensorFlow starts
    operations on a GPU, instead of that on a CPU. threads adds what others may hold beside the
    one that takes operations in this order, and lets two of them work at one update. updates is
    when others make the gradients of weights and use them up: "early", as soon as they can, or
    "late", when all else is done.
    """
    nodes, outputs = entered(graph, None, Values(graph), overlap)
    nodes = in_order(nodes, broad, updates)
    edges = {(given[0].name, n.name) for n in nodes for given in n.inputs if given}
    waits = {(before.name, n.name) for n in nodes for before in n.after} - edges
    over = _OVER if broad or threads else _OVER | _OVER_ON_CPU
    found = [
        Allocation(b.node.name + "/body" * b.loops, DEVICE, b.bytes, b.start, b.end)
        for b in buffers(nodes, outputs, over, threads)[0]
        if b.bytes
    ]
    if threads:
        others = beside(nodes)
        ends = [0, *(1 + np.flatnonzero(np.diff(others))).tolist(), len(nodes)]
        found += [
            Allocation("others", DEVICE, int(others[a]), a, b - 0.5)
            for a, b in itertools.pairwise(ends) if others[a]
        ]  # fmt: skip
    return Trace(
        tuple(Op(n.name, n.op.type, DEVICE, i, 1.0) for i, n in enumerate(nodes)), (),
        {DEVICE: curve(found)}, tuple(edges | waits), tuple(found), tuple(waits),
    )  # fmt: skip


def entered(
    graph: Any, outputs: set[int] | None, values: Values, overlap: float,
    given: Sequence[Tensor | None] = (), before: Sequence[Node] = (), within: str = "",
) -> tuple[list[Node], list[Tensor | None]]:  # fmt: skip
    """List what runs in a graph, functions and one branch entered, and what it gives."""
    nodes: list[Node] = []
    alive = walk.live(graph, outputs)
    of = {t.name: each for t, each in zip(graph.inputs, given)}  # noqa: B905  a loop has none
    ends: dict[str, Sequence[Node]] = {}
    for op in alive.ops:
        if op.outputs and op.outputs[0].name in of:  # what the function was given
            continue
        inputs = [of.get(tensor.name) for tensor in op.inputs]
        after = [*before, *(n for b in op.control_inputs for n in ends.get(b.name, ()))]
        used = alive.outputs.get(op.name, set())
        if op.type in CALLS | BRANCHES:
            first = int(op.type in BRANCHES)  # which is chosen before anything in them begins
            after += [tensor[0] for tensor in inputs[:first] if tensor]
            ways = [
                entered(inner, used, known, overlap, inputs[first:], after,
                         f"{within}{op.name}/{i}/")
                for i, (inner, known) in enumerate(values.inside(op))
            ]  # fmt: skip
            chosen = max if overlap else min
            found, made = chosen(ways, key=lambda way: sum(sum(n.bytes) for n in way[0]))
            nodes += found
            waited = {each for n in found for each in n.after}
            ends[op.name] = [n for n in found if n not in waited] or after
            of.update(zip((t.name for t in op.outputs), made, strict=True))
            continue
        after += [tensor[0] for tensor in inputs if tensor]
        if op.type == "IdentityN":  # TensorFlow takes it out, and what it joins goes on alone
            of.update(zip((t.name for t in op.outputs), inputs, strict=True))
            ends[op.name] = after
            continue
        node = Node(within + op.name, op, inputs, after, [_numbers(t, inputs) for t in op.outputs])
        node.bytes = [n * t.dtype.size for n, t in zip(node.numbers, op.outputs, strict=True)]
        if op.type in LOOPS:
            node.around = used, values
            node.inside, node.inside_of, grown = _loop(op, used, values, overlap)
            node.bytes = [size + grown.get(i, 0) for i, size in enumerate(node.bytes)]
        elif op.type == "TensorListFromTensor":  # its elements are copies
            node.bytes = [_numbers(op.inputs[0], ()) * op.inputs[0].dtype.size]
        nodes.append(node)
        ends[op.name] = [node]
        of.update({tensor.name: (node, i) for i, tensor in enumerate(op.outputs)})
    return nodes, [of.get(tensor.name) for tensor in graph.outputs]


def in_order(nodes: list[Node], broad: bool, updates: str = "") -> list[Node]:
    """List operations as TensorFlow's executor starts them.

    What costs nothing runs at once, and what waits for nothing first. Then a thread goes on with
    the first operation that became ready by the last one, and leaves the others for later: above
    all the gradients of weights. To the executor a GPU's operations cost nothing: each waits its
    turn. What only updates need may come "early", before all else, or "late", after it, as if other
    threads were quick or slow at it.
    """
    of_updates = _for_updates(nodes) if updates else set[Node]()
    waiting = TopologicalSorter({n: n.after for n in nodes})
    waiting.prepare()
    order: list[Node] = []

    def run(several: Iterable[Node]) -> list[Node]:
        """Run these, and after each what costs nothing; give what becomes ready."""
        ahead, ready = deque(several), list[Node]()
        while ahead:
            order.append(node := ahead.popleft())
            waiting.done(node)
            for n in waiting.get_ready():
                (ahead if n.op.type in _FREE | _SAME else ready).append(n)
        return ready

    first = waiting.get_ready()
    free = [n for n in first if n.op.type in _FREE]
    ready = run(free) + [n for n in first if n.op.type not in _FREE]
    new = run(ready)
    later, last = deque[Node](), deque[Node]()
    while new or later or last:
        soon = [node for node in new if (node in of_updates) == (updates == "early")]
        rest = [node for node in new if (node in of_updates) != (updates == "early")]
        for queue, several in ((later, soon), (last, rest)):
            queue.extend(several) if broad else queue.extendleft(reversed(several))
        new = run([(later or last).popleft()]) if later or last else []
    return order


def _for_updates(nodes: Sequence[Node]) -> set[Node]:
    """Find what updates do, and what is needed for the gradient of one weight only."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for before in node.after:
            users.setdefault(before, []).append(node)
    of: dict[Node, Node | None] = {}  # the gradient that a node is for; None in an update
    for node in reversed(nodes):  # those that wait for a node come after it
        if layer(node.name) == "optimizer":
            of[node] = None
        elif (by := users.get(node)) and all(user in of for user in by):
            several = {of[user] or node for user in by}
            if len(several) == 1:
                (of[node],) = several
    return {*of}


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
        if at[n] == ready or n.op.type in _FREE | _SAME:
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
                if node.op.type in _SAME:
                    weight[node, 0] = weight[read]
    return readers, sizes


def buffers(
    nodes: Sequence[Node], outputs: Iterable[Tensor | None], over: Set[str] = _OVER | _OVER_ON_CPU,
    threads: bool = False,
) -> tuple[list[Buffer], dict[Tensor | None, Any]]:  # fmt: skip
    """List the buffers in the order in which they are taken; and the one of each tensor.

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
            if late:
                made.append(Buffer(node, late[0].node.bytes[0], now, end=now))
                copies.append((made[-1], late))
        for i, size in enumerate(node.bytes):
            loops = node.op.type in LOOPS and node.op.outputs[i].dtype.name == "variant"
            new = Buffer(node, size, now, loops=loops)
            kept = new if copied else _handed_on(node.op, i, new, given, free, over)
            if kept is new:
                made.append(new)
            elif node.op.type == "ReadVariableOp":  # takes nothing, but sees the weight as it is
                kept = Buffer(node, 0, now)
                reads.setdefault(node.inputs[0], []).append(kept)
            if kept:
                kept.users += users[node, i]
            of[node, i] = kept
        if node.op.type in _PUSHES:  # the list has it now
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
    if op.type in _FREE:
        return None
    if op.type in _SAME:
        return given[0]
    if op.type in LOOPS and op.inputs[i].dtype.name == "variant" and not new.bytes:
        return given[i]  # a list that goes round as it is
    if op.type in over or op.type in _OVER_SECOND and i == 1:
        for buffer in free:
            if buffer and buffer.users == 1 and buffer.bytes == new.bytes:
                return buffer
    return new


def _loop(
    op: Any, outputs: set[int], values: Values, overlap: float
) -> tuple[int, list[int], dict[int, int]]:
    """Count what a loop takes only while it runs, which sizes are in it, and its lists' growth."""
    body, around = called(op)[1], walk.carried(op, outputs)
    nodes, gives = entered(body, around, values.round(op), overlap)
    made, of = buffers(nodes, [gives[i] for i in around])
    by_name = {t.name: of[n, i] for n in nodes for i, t in enumerate(n.op.outputs)}
    pushed = _pushed(body, around, by_name)
    grown = {i: sum(b.bytes for b in each) for i, each in pushed.items()}
    rounds, _ = values.loop(op)
    if rounds is None:
        raise Unknown(f"the loop {op.name} runs as often as its data say.")
    several = 1 + overlap * max(0, min(rounds, op.get_attr("parallel_iterations")) - 1)
    spans = [Allocation(b.node.name, DEVICE, b.bytes, b.start, b.end) for b in made]
    moment, most = max(curve(spans), key=lambda point: point[1])
    kept = {id(b) for each in pushed.values() for b in each}
    sizes = [b.bytes for b in made
             if b.start <= moment and (b.end is None or b.end >= moment) and id(b) not in kept]
    once = most - sum(grown.values())
    return int(several * once), sizes, {i: rounds * each for i, each in grown.items()}


def _pushed(body: Any, around: set[int], of: dict[str, Any]) -> dict[int, list[Buffer]]:
    """Find what a round of a loop adds to its lists; what several of them get is one buffer."""
    found: dict[int, list[Buffer]] = {}
    seen: set[Buffer] = set()
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


def _numbers(tensor: Any, inputs: Sequence[Tensor | None]) -> int:
    """Count the numbers in a tensor; where data decide, as in a sparse gradient, at most."""
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    size = tensor.shape.num_elements()
    if tensor.op.type == "CudnnRNNV3" and tensor.value_index in _CUDNN_KEEPS:
        whole = tensor.op.outputs[0].shape.num_elements()
        size = None if whole is None else _CUDNN_KEEPS[tensor.value_index] * whole
    if size is None and tensor.op.type in _NO_MORE:
        size = max((node.numbers[i] for node, i in filter(None, inputs)), default=None)
    if size is None and tensor.op.type in _ROWS and (given := inputs[_ROWS[tensor.op.type]]):
        size = given[0].numbers[given[1]] * math.prod(tensor.shape[1:])
    if size is None and tensor.shape.rank == 1:  # a shape, or a list of axes
        return 0
    if size is None:
        raise Unknown(f"{tensor.op.name} gives a tensor of shape {tensor.shape}.")
    return size
