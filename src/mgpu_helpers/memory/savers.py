"""What a step would hold on each device if it were taken another way: in parts, again, apart.

A step's graph is made once, for a batch that no size of a layer is a multiple of. So what a buffer
takes for each example is known, and all the rest is counted: its operations are put into another
order, run again, in half precision, or on other devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers.graph.counting import of_one
from mgpu_helpers.graph.walk import Values
from mgpu_helpers.memory.liveness import entered, traced
from mgpu_helpers.memory.order import Node, Tensor, in_order
from mgpu_helpers.memory.scratch import ASKS_SHAPE, Buffer, beside, buffers
from mgpu_helpers.trace.both_passes import passes
from mgpu_helpers.trace.layers import layer

PROBE = 1009
# What these compute of half precision, they compute in float32 inside.
_FULL = {"BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization"}
_BESIDE = {"loss", "optimizer", "other", "variables"}  # and so does what is no layer
_SOFTMAX = {"LogSoftmax", "Softmax"}  # Keras's layer and its attention take it in float32
_WHOLE = {*_SOFTMAX, "Placeholder", "ReadVariableOp", "VarHandleOp"}
# A weight is where it is used, a constant everywhere, and the batch is fed to whoever wants it.
_THERE = {"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"}


@dataclass(frozen=True)
class Curve:
    """Bytes held at each moment of a step: those of any batch, and more for each example."""

    fixed: np.ndarray
    each: np.ndarray

    def peak(self, batch: int, start: int = 0) -> float:
        """Give the most bytes that are held at once, from a moment on."""
        return float(np.max((self.fixed + batch * self.each)[start:], initial=0.0))


@dataclass(frozen=True)
class Order:
    """The operations of a step in the order in which they run.

    place is the part of the model that each belongs to, by its number; back is what runs in the
    backward pass, and updates what the optimizer does.
    """

    nodes: Sequence[Node]
    outputs: Sequence[Tensor | None]
    place: Mapping[Node, int]
    back: frozenset[Node]
    updates: frozenset[Node]
    early: bool = False  # updates come as soon as they can, and copy no weight

    @property
    def forward(self) -> list[Node]:
        """List what runs in the forward pass."""
        late = self.back | self.updates
        return [node for node in self.nodes if node not in late]

    def curve(self, threads: int = 0) -> Curve:
        """Count what is held over time; by other threads too, if asked, at a batch of so many."""
        (held,) = self.curves(dict.fromkeys(self.nodes, 0), 1, bool(threads))

        def taken(buffer: Buffer) -> int:
            fixed, each = _sizes(buffer)
            return int(fixed + each * (threads / PROBE))

        if threads:
            held.fixed[: len(self.nodes)] += beside(self.nodes, taken)
        return held

    def curves(self, device: Mapping[Node, int], n: int, threads: bool = False) -> list[Curve]:
        """Count what is held over time on each of n devices."""
        held = np.zeros((n, 2, len(self.nodes) + 1))
        made, _ = buffers(self.nodes, self.outputs, threads=threads, copying=not self.early)
        for buffer in made:
            if buffer.bytes:
                sizes, here = np.array(_sizes(buffer)), held[device[buffer.node]]
                here[:, int(buffer.start)] += sizes
                here[:, len(self.nodes) if buffer.end is None else int(buffer.end) + 1] -= sizes
        return [Curve(fixed, each / PROBE) for fixed, each in np.cumsum(held, axis=2)]


def ordered(graph: Any, groups: Sequence[Sequence[str]], overlap: float = 0.75) -> Order:
    """Put the operations of a step's graph in order, and find the group of layers of each."""
    nodes, outputs = entered(graph, overlap)
    nodes = in_order(nodes, False)
    place, back = passes(traced(nodes), groups, all_ran=False)
    updates = frozenset(n for n in nodes if layer(n.name) == "optimizer")
    for node in reversed(nodes):  # what nobody knows of is where it is used first: a slot
        for given in node.inputs:
            if given and node.name in place:
                place.setdefault(given[0].name, place[node.name])
    return Order(
        nodes, outputs, {n: place.get(n.name, 0) for n in nodes},
        frozenset(n for n in nodes if n.name in back) - updates, updates,
    )  # fmt: skip


def on_gpu(order: Order) -> Order:
    """Take a graph's operations in the order in which TensorFlow starts them on a GPU."""
    return replace(order, nodes=in_order([*order.nodes], True))


def with_updates(order: Order, when: str) -> Order:
    """Take what only updates need "early" or "late", as other threads might do it."""
    return replace(order, nodes=in_order([*order.nodes], False, when), early=when == "early")


def grows(size: int) -> bool:
    """Say whether bytes that are counted at a batch of PROBE are proportional to the batch."""
    return size % PROBE == 0


def work(node: Node) -> int:
    """Count the FLOP of an operation at a batch of PROBE."""
    used, values = node.around or (set(), Values(None))
    return 0 if isinstance(node.op, _Made) else of_one(node.op, used, values).total()


def again(order: Order, parts: Sequence[int], soon: bool = False) -> Order:
    """Run the forward pass of each part but the last again, right before its backward pass.

    parts has the number of the part for each group of layers. Updates come last, or with soon
    each after the part that has made its gradient.
    """
    first, last = order.forward, parts[-1]
    updated = _each_update_at_its_gradient(order).place
    part = {n: parts[order.place[n]] for n in order.back}
    part |= {n: parts[updated[n]] if soon else -1 for n in order.updates}  # -1 comes last
    nodes, place, now = [*first], dict(order.place), dict[Node, Node]()

    def run(node: Node, by: Mapping[Node, Node]) -> Node:
        """Run an operation with what stands for those whose results it uses."""
        nodes.append(replace(node, inputs=_with(node.inputs, by)))
        place[nodes[-1]] = order.place[node]
        return nodes[-1]

    for k in range(last, -2, -1):
        own = [n for n in order.nodes if part.get(n) == k]
        here = dict(now)  # what runs again stands for the first run in this part only
        if 0 <= k < last:
            needed = _needed(own, {n for n in first if parts[order.place[n]] == k})
            for node in filter(needed.__contains__, first):
                here[node] = run(node, here)
        for node in own:
            now[node] = here[node] = run(node, here)
    return replace(
        order, nodes=nodes, place=place, outputs=_with(order.outputs, now),
        back=frozenset(map(now.__getitem__, order.back)),
        updates=frozenset(map(now.__getitem__, order.updates)),
    )  # fmt: skip


def averaged(order: Order, come: float = 0.0, owners: int = 1) -> Order:
    """Update weights when all gradients are there, and so many times their bytes came to them.

    Of several owners, among whom the weights are shared out, this is what the first does: it sends
    the gradients of the others' weights to them. Where it owns none it sends them all.
    """
    mine = gradients(order, owners)
    late, own = [n for n in order.nodes if n in order.updates], set[Node]()
    for node in late:  # its updates, and what uses them
        if any(given in mine or given and given[0] in own for given in node.inputs):
            own.add(node)
    own |= _needed(own, order.updates)  # of slots alone
    came = dict[Node, int]()
    for node, i in mine:
        size = node.bytes[i]
        several = int(come * size / PROBE) * PROBE if grows(size) else int(come * size)
        came[Node("average", _Made("Average"), [(node, i)], [], [], [several])] = order.place[node]
    # And nothing of it goes before all of it has come.
    done = Node("averaged", _Made("Average"), [*((n, 0) for n in came), *mine], [], [], [])
    place = {**order.place, **came, done: 0}
    first = [n for n in order.nodes if n not in order.updates]
    return replace(order, nodes=[*first, *came, done, *filter(own.__contains__, late)], place=place)


def joined(order: Order, model: Any, n: int) -> Order:
    """Take losses and metrics of n times the examples, of outputs that come from elsewhere."""
    names = {each.name for each in _private.layers_of(model)}
    row = {*names, "optimizer", "variables"}  # what a row or an owner does for itself
    whole = {}
    for node in order.nodes:
        kind, late = layer(node.name, names), node in order.back or node in order.updates
        whole[node] = kind == "loss" or not (kind in row or late)

    def larger(size: int) -> int:
        return n * size if grows(size) else size

    def copied(node: Node, i: int, there: int) -> int | None:
        size = node.bytes[i]
        return None if not grows(size) else larger(size) if there else size

    def of_all(node: Node) -> Node:
        if not whole[node]:
            return node
        return replace(node, bytes=[*map(larger, node.bytes)], inside=larger(node.inside))

    return _crossed(order, whole, "Copy", copied, of_all)


def _each_update_at_its_gradient(order: Order) -> Order:
    """Let each update be in the part of the model in which its weight's gradient is made."""
    known = dict[Node, int]()
    for node in order.nodes:
        for maker, _ in filter(None, node.inputs if node in order.updates else ()):
            if maker in order.back or maker in known:
                known[node] = known[maker] if maker in known else order.place[maker]
    for node in reversed(order.nodes):  # a slot is where it is used with a gradient
        for t in node.inputs if node in known else ():
            if t and t[0] not in known and t[0] not in order.back:
                known[t[0]] = known[node]
    return replace(order, place={**order.place, **known})


def gradients(order: Order, owners: int = 1) -> list[Tensor]:
    """List what the optimizer is given; of several owners what the first gets, and none for 0.

    Shared out as owners get the weights: the next largest to who has least.
    """
    found = {t for n in order.updates for t in n.inputs if t and t[0] in order.back}
    held, mine = [0] * owners, []
    for node, i in sorted(found, key=lambda t: (-t[0].bytes[t[1]], t[0].name)):
        owner = min(range(owners), key=held.__getitem__, default=-1)
        if owner == 0:
            mine.append((node, i))
        if owner >= 0:
            held[owner] += node.bytes[i]
    return mine


def apart(order: Order, device: Sequence[int]) -> Order:
    """Put each group of layers on its device; what another device needs is copied there.

    The place of an operation is then the number of its device.
    """
    order = _each_update_at_its_gradient(order)
    order = replace(order, place={node: device[place] for node, place in order.place.items()})
    return _crossed(order, order.place, "Copy", lambda node, i, there: node.bytes[i], moved=True)


def halved(order: Order, model: Any) -> Order:
    """Compute in half precision what the layers of the model would, and cast between the two."""
    half = _in_half(order, model)

    def cast(node: Node, i: int, there: int) -> int | None:
        if node.op.outputs[i].dtype.name != "float32":
            return None
        return _half(node.bytes[i]) if there else node.bytes[i]

    def smaller(node: Node) -> Node:
        if not half[node]:
            return node
        kinds = [output.dtype.name in ("float32", "variant") for output in node.op.outputs]
        sizes = [_half(n) if is_float else n for n, is_float in zip(node.bytes, kinds, strict=True)]
        return replace(node, bytes=sizes, inside=_half(node.inside))

    return _crossed(order, half, "Cast", cast, smaller)


def _in_half(order: Order, model: Any) -> dict[Node, bool]:
    """Say of each operation whether half precision computes it so."""
    full = {each.name for each in _private.layers_of(model) if type(each).__name__ in _FULL}
    half: dict[Node, bool] = {}
    for node in order.nodes:
        if node.op.type == "AddN":  # of gradients, in no scope
            half[node] = all(half[given[0]] for given in node.inputs if given)
        elif any(g and g[0].op.type in _SOFTMAX for g in node.inputs) and node in order.back:
            half[node] = False
        else:
            half[node] = node.op.type not in _WHOLE and layer(node.name, full) not in full | _BESIDE
    return half


def _crossed(
    order: Order, where: Mapping[Node, int], kind: str,
    size: Callable[[Node, int, int], int | None], made: Callable[[Node], Node] = lambda node: node,
    moved: bool = False,
) -> Order:  # fmt: skip
    """Let what is made on one side and used on another become a tensor of its own there.

    where gives the side of each operation, and size what a tensor takes on another one, None where
    nothing is brought there. made gives an operation as it is on its side. If it moved, its place
    is its side from now on.
    """
    wanted = set[tuple[Tensor, int]]()
    for node in order.nodes:
        if node.op.type not in ASKS_SHAPE:
            wanted |= {(given, where[node]) for given in node.inputs if given}
    sides = sorted({*where.values()})
    now, brought = dict[Node, Node](), dict[tuple[Tensor, int], Tensor]()
    new: dict[Node, list[Node]] = {}  # by operation: what stands for it, and brings its results
    place = dict[Node, int]()

    def bring(node: Node, i: int, there: int, taken: int) -> None:
        """Bring a result to another side."""
        given = now[node], i
        if kind == "Copy":  # when it comes, what was sent need not be there any more
            given = add(node, Node(f"{node.name}/Send", _Made("Send"), [given], [], [], [0]))
        copy = Node(f"{node.name}/{kind}", _Made(kind), [given], [], [], [taken])
        brought[(node, i), there] = add(node, copy, there)

    def add(node: Node, one: Node, there: int | None = None) -> Tensor:
        new.setdefault(node, []).append(one)
        place[one] = there if moved and there is not None else order.place[node]
        return one, 0

    for node in order.nodes:
        here = where[node]
        inputs = [
            given and brought.get((given, here), (now[given[0]], given[1])) for given in node.inputs
        ]
        now[node] = replace(made(node), inputs=inputs)
        add(node, now[node])
        for i, there in itertools.product(range(len(node.bytes)), sides):
            there_anyway = there == here or kind == "Copy" and node.op.type in _THERE
            if ((node, i), there) in wanted and not there_anyway:
                if (taken := size(node, i, there)) is not None:
                    bring(node, i, there, taken)
    return replace(
        order, nodes=[*itertools.chain(*new.values())], place=place,
        outputs=_with(order.outputs, now),
        back=frozenset(each for node in order.back for each in new[node]),
        updates=frozenset(each for node in order.updates for each in new[node]),
    )  # fmt: skip


class _Made:
    """What stands for an operation that the graph does not have."""

    def __init__(self, kind: str) -> None:
        self.type = kind


def _half(size: int) -> int:
    """Halve bytes, so that what is proportional to the batch stays so."""
    return size // PROBE // 2 * PROBE if grows(size) else size // 2


def _sizes(buffer: Buffer) -> tuple[float, float]:
    """Give the bytes of a buffer at any batch, and those that are proportional to it, at PROBE."""
    sizes = buffer.of or [buffer.bytes]
    each = sum(filter(grows, sizes)) / max(1, sum(sizes)) * buffer.bytes
    return buffer.bytes - each, each


def _needed(by: Iterable[Node], among: Collection[Node]) -> set[Node]:
    """Find what these operations need of some others, and what those need of each other."""
    found, ahead = set[Node](), [*by]
    while ahead:
        new = {g[0] for g in ahead.pop().inputs if g and g[0] in among} - found
        found |= new
        ahead += new
    return found


def _with(inputs: Iterable[Tensor | None], now: Mapping[Node, Node]) -> list[Tensor | None]:
    return [given and (now.get(given[0], given[0]), given[1]) for given in inputs]
