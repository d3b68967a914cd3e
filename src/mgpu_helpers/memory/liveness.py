"""What a step would hold over time, from its graph: each operation in turn, nothing runs.

A round of a loop begins before the last one has ended; how many overlap, nobody knows before, nor
which of two branches is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_helpers.graph import walk
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown, Values, called
from mgpu_helpers.memory.order import DEVICE, SAME, Node, Tensor, in_order
from mgpu_helpers.memory.scratch import OVER, OVER_ON_CPU, PUSHES, Buffer, beside, buffers
from mgpu_helpers.trace.records import Allocation, Op, curve
from mgpu_helpers.trace.step import Trace

# What has no more numbers than the largest of its inputs.
_NO_MORE = OVER | SAME | {"Cast", "IsFinite", "UnsortedSegmentSum"}
# What has no more rows than one of its inputs has numbers, and which of them that is.
_ROWS = {"GatherV2": 1, "Where": 0}
# What cuDNN keeps of a recurrent layer for its way back, by number of the layer's output: the four
# gates and the cell of an LSTM, as an H100 did; less of a GRU. And a handle on the host.
_CUDNN_KEEPS = {3: 5, 4: 0}


def counted(
    graph: Any, overlap: float = 0.75, broad: bool = False, threads: bool = False,
    updates: str = "", made: tuple[list[Node], Sequence[Tensor | None]] | None = None,
) -> Trace:  # fmt: skip
    """Give a function's graph as the trace of a step: one tick an operation, all on one device.

    overlap is the share, 0 to 1, of the rounds that may run at once in a loop and do. In an LSTM's
    way back it was two thirds to all of them, less at a batch of 8 or fewer. At 0 the smaller of
    two branches is taken too, else the larger. broad is the order in which TensorFlow starts
    operations on a GPU, instead of that on a CPU. threads adds what others may hold beside the
    one that takes operations in this order, and lets two of them work at one update. updates is
    when others make the gradients of weights and use them up: "early", as soon as they can and
    without a copy of a weight, or "late", when all else is done. made is what `entered` gave.
    """
    nodes, outputs = made or entered(graph, overlap)
    nodes = in_order(nodes, broad, updates)
    over = OVER if broad or threads else OVER | OVER_ON_CPU
    found = [
        Allocation(b.node.name + "/body" * b.loops, DEVICE, b.bytes, b.start, b.end)
        for b in buffers(nodes, outputs, over, threads, updates != "early")[0]
        if b.bytes
    ]
    if threads:
        others = beside(nodes)
        ends = [0, *(1 + np.flatnonzero(np.diff(others))).tolist(), len(nodes)]
        found += [
            Allocation("others", DEVICE, int(others[a]), a, b - 0.5)
            for a, b in itertools.pairwise(ends) if others[a]
        ]  # fmt: skip
    return traced(nodes, found)


def traced(nodes: Sequence[Node], held: Sequence[Allocation] = ()) -> Trace:
    """Give operations as the trace of a step, one tick each."""
    edges = {(given[0].name, n.name) for n in nodes for given in n.inputs if given}
    waits = {(before.name, n.name) for n in nodes for before in n.after} - edges
    return Trace(
        tuple(Op(n.name, n.op.type, DEVICE, i, 1.0) for i, n in enumerate(nodes)), (),
        {DEVICE: curve(held)} if held else {}, tuple(edges | waits), tuple(held), tuple(waits),
    )  # fmt: skip


def entered(
    graph: Any, overlap: float, outputs: set[int] | None = None, values: Values | None = None,
    given: Sequence[Tensor | None] = (), before: Sequence[Node] = (), within: str = "",
) -> tuple[list[Node], list[Tensor | None]]:  # fmt: skip
    """List what runs in a graph, functions and one branch entered, and what it gives.

    outputs numbers those that are wanted, None all, and values are what is known beforehand. A
    function that is entered was given some tensors, waits for what ran before it, and names its
    operations within the operation that calls it.
    """
    nodes: list[Node] = []
    values = values or Values(graph)
    alive = walk.live(graph, outputs)
    of = {t.name: each for t, each in zip(graph.inputs, given)}  # noqa: B905  a loop has none
    last: dict[str, Sequence[Node]] = {}  # by operation: whom to wait for
    for op in alive.ops:
        if op.outputs and op.outputs[0].name in of:  # what the function was given
            continue
        inputs = [of.get(tensor.name) for tensor in op.inputs]
        after = [*before, *(n for b in op.control_inputs for n in last.get(b.name, ()))]
        fed = [*after, *(tensor[0] for tensor in inputs if tensor)]
        used, name = alive.outputs.get(op.name, set()), within + op.name
        new: list[Node] = []
        gives: Sequence[Tensor | None] = inputs
        last[op.name] = fed
        if op.type in CALLS | BRANCHES:
            new, gives = _inside(op, used, values, overlap, inputs, after, name)
            waited = {each for n in new for each in n.after}
            last[op.name] = [n for n in new if n not in waited] or after
        elif op.type != "IdentityN":  # TensorFlow takes it out, and what it joins goes on alone
            new = [_node(op, used, values, overlap, inputs, fed, name)]
            gives = [(new[0], i) for i in range(len(op.outputs))]
            last[op.name] = new
        nodes += new
        of.update(zip((tensor.name for tensor in op.outputs), gives, strict=True))
    return nodes, [of.get(tensor.name) for tensor in graph.outputs]


def _inside(
    op: Any, outputs: set[int], values: Values, overlap: float, inputs: Sequence[Tensor | None],
    after: list[Node], name: str,
) -> tuple[list[Node], list[Tensor | None]]:  # fmt: skip
    """Enter a function, or of branches the one that makes most; with no overlap, least."""
    first = int(op.type in BRANCHES)  # which is chosen before anything in them begins
    after += [tensor[0] for tensor in inputs[:first] if tensor]
    ways = [
        entered(inner, overlap, outputs, known, inputs[first:], after, f"{name}/{i}/")
        for i, (inner, known) in enumerate(values.inside(op))
    ]
    chosen = max if overlap else min
    return chosen(ways, key=lambda way: sum(sum(node.bytes) for node in way[0]))


def _node(
    op: Any, outputs: set[int], values: Values, overlap: float, inputs: list[Tensor | None],
    after: list[Node], name: str,
) -> Node:  # fmt: skip
    """Make the node of one operation, with the bytes of what it gives."""
    node = Node(name, op, inputs, after, [_numbers(t, inputs, values) for t in op.outputs])
    node.bytes = _bytes(node)
    if op.type in LOOPS:
        node.around = outputs, values
        node.inside, node.inside_of, grown = _loop(node, overlap)
        node.bytes = [size + grown.get(i, 0) for i, size in enumerate(node.bytes)]
    elif op.type == "TensorListFromTensor":  # its elements are copies
        node.bytes = [_numbers(op.inputs[0], (), values) * op.inputs[0].dtype.size]
    return node


def _bytes(node: Node) -> list[int]:
    return [n * t.dtype.size for n, t in zip(node.numbers, node.op.outputs, strict=True)]


def _loop(node: Node, overlap: float) -> tuple[int, list[int], dict[int, int]]:
    """Count what a loop takes only while it runs, which sizes are in it, and its lists' growth."""
    assert node.around
    op, (outputs, values) = node.op, node.around
    body, around = called(op)[1], walk.carried(op, outputs)
    rounds, _ = values.loop(op)
    if rounds is None:
        raise Unknown(f"the loop {op.name} runs as often as its data say.")
    begins = node.bytes
    state = _state(node, around, rounds, overlap) if walk.one_by_one(op) else None
    given = [(state, i) for i in range(len(op.outputs))] if state else []
    nodes, gives = entered(body, overlap, around, values.round(op), given)
    ends = [gives[i] for i in around]
    if state:
        nodes = [state, *nodes]
        if not overlap:  # other threads add up each gradient as it comes
            nodes = in_order(nodes, False, "early", {end[0] for end in ends if end} - {state})
    made, of = buffers(nodes, ends)
    by_name = {t.name: of[n, i] for n in nodes for i, t in enumerate(n.op.outputs)}
    pushed = _pushed(body, around, by_name)
    grown = {i: sum(b.bytes for b in each) for i, each in pushed.items()}
    several = 1 + overlap * max(0, min(rounds, op.get_attr("parallel_iterations")) - 1)
    spans = [Allocation(b.node.name, DEVICE, b.bytes, b.start, b.end) for b in made]
    moment, most = max(curve(spans), key=lambda point: point[1])
    kept = {id(b) for each in pushed.values() for b in each} | {id(of[t]) for t in given}
    sizes = [b.bytes for b in made
             if b.start <= moment and (b.end is None or b.end >= moment) and id(b) not in kept]
    once = most - sum(grown.values())
    if state:  # what goes round is counted beside the loop, and what it begins with as well
        both = zip(begins, node.bytes, strict=True)
        once = max(0, once - sum(end + begin * (end > begin) for begin, end in both))
    return int(several * once), sizes, {i: rounds * each for i, each in grown.items()}


def _state(node: Node, around: set[int], rounds: int, overlap: float) -> Node:
    """Make what is handed from round to round, as the last one gets it; let the loop give it.

    What each round makes longer, as it does the rows of a sparse gradient, is longest then.
    """
    op, (_, values) = node.op, node.around or (set(), Values(None))
    body, same = called(op)[1], values.round(op)
    stays = {i for i in range(len(op.outputs)) if walk.stays(body, i)}
    state = Node("state", op, [None] * len(op.inputs), [], [*node.numbers])
    open_ = [i for i in around if op.outputs[i].shape.num_elements() is None and i not in stays]
    if any(node.numbers[i] for i in open_):
        _, gives = entered(body, overlap, around, same, [(state, i) for i in range(len(op.inputs))])
        for i in open_:
            made, k = gives[i] or (state, i)
            more = max(0, made.numbers[k] - node.numbers[i])
            state.numbers[i] += max(0, rounds - 1) * more
            node.numbers[i] += rounds * more
    node.bytes, state.bytes = (
        [0 if i in stays else size for i, size in enumerate(_bytes(each))] for each in (node, state)
    )
    return state


def _pushed(body: Any, around: set[int], of: dict[str, Any]) -> dict[int, list[Buffer]]:
    """Find what a round of a loop adds to its lists; what several of them get is one buffer."""
    found: dict[int, list[Buffer]] = {}
    seen: set[Buffer] = set()
    state = {tensor.name: i for i, tensor in enumerate(body.inputs)}
    for i in sorted(around):
        tensor = body.outputs[i]
        while tensor.op.type in SAME:
            if tensor.op.type in PUSHES:
                last = tensor.op.inputs[-1]
                if last.name in state:  # what the round before made
                    last = body.outputs[state[last.name]]
                buffer = of.get(last.name)
                if buffer and buffer not in seen:
                    seen.add(buffer)
                    found.setdefault(i, []).append(buffer)
            tensor = tensor.op.inputs[0]
    return found


def _numbers(tensor: Any, inputs: Sequence[Tensor | None], values: Values) -> int:
    """Count the numbers in a tensor; where data decide, as in a sparse gradient, at most."""
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    size = tensor.shape.num_elements()
    if tensor.op.type == "CudnnRNNV3" and tensor.value_index in _CUDNN_KEEPS:
        whole = tensor.op.outputs[0].shape.num_elements()
        size = None if whole is None else _CUDNN_KEEPS[tensor.value_index] * whole
    if size is None and tensor.op.type == "UnsortedSegmentSum" and tensor.shape.rank:
        rows, each = values.of(tensor.op.inputs[2]), tensor.shape[1:].num_elements()
        size = None if rows is None or each is None else int(rows) * each
    if size is None and tensor.op.type in _NO_MORE:
        size = max((node.numbers[i] for node, i in filter(None, inputs)), default=None)
    if size is None and tensor.op.type in _ROWS and (given := inputs[_ROWS[tensor.op.type]]):
        size = given[0].numbers[given[1]] * math.prod(tensor.shape[1:])
    if size is None and tensor.op.type == "ConcatV2" and all(inputs[:-1]):
        size = sum(node.numbers[i] for node, i in filter(None, inputs[:-1]))
    if size is None and walk.one_by_one(tensor.op) and (begins := inputs[tensor.value_index]):
        size = begins[0].numbers[begins[1]]
    if size is None and tensor.shape.rank == 1:  # a shape, or a list of axes
        return 0
    if size is None:
        raise Unknown(f"{tensor.op.name} gives a tensor of shape {tensor.shape}.")
    return size
