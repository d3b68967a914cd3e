"""The operations of a step, and the order in which TensorFlow starts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from mgpu_helpers.graph.walk import Values
from mgpu_helpers.trace.layers import layer

DEVICE = "/ONE:0"  # a device for all, which nobody chose yet
# What gives something that is there anyway: a weight, an input, an element of a list, a shape.
FREE = {
    "BroadcastGradientArgs", "Const", "NoOp", "Placeholder", "Rank", "ReadVariableOp", "Shape",
    "ShapeN", "Size", "TensorListGetItem", "TensorListPopBack", "VarHandleOp", "VariableShape",
}  # fmt: skip
# What gives its input, seen in another way.
SAME = {
    "Bitcast", "CheckNumerics", "ExpandDims", "Identity", "PreventGradient", "Reshape",
    "Snapshot", "Squeeze", "StopGradient", "TensorListPushBack", "TensorListResize",
    "TensorListSetItem",
}  # fmt: skip


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


def in_order(
    nodes: list[Node], broad: bool, updates: str = "", last: Set[Node] = frozenset()
) -> list[Node]:
    """List operations as TensorFlow's executor starts them.

    What costs nothing runs at once, and what waits for nothing first. Then a thread goes on with
    the first operation that became ready by the last one, and leaves the others for later: above
    all the gradients of weights. To the executor a GPU's operations cost nothing: each waits its
    turn. What only updates need may come "early", before all else, or "late", after it, as if other
    threads were quick or slow at it. Where it comes early, what waits for no gradient, as a slot
    times a number, comes when an update wants it. In a loop the last that it does is the update.
    """
    of_updates = _for_updates(nodes, last) if updates else set[Node]()
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
                (ahead if n.op.type in FREE | SAME else ready).append(n)
        return ready

    first = waiting.get_ready()
    free = [n for n in first if n.op.type in FREE]
    ready = run(free) + [n for n in first if n.op.type not in FREE]
    new = run(ready)
    later, rests = deque[Node](), deque[Node]()
    while new or later or rests:
        soon = [node for node in new if (node in of_updates) == (updates == "early")]
        rest = [node for node in new if (node in of_updates) != (updates == "early")]
        for queue, several in ((later, soon), (rests, rest)):
            queue.extend(several) if broad else queue.extendleft(reversed(several))
        new = run([(later or rests).popleft()]) if later or rests else []
    return _when_wanted(order, of_updates) if updates == "early" else order


def _when_wanted(order: Sequence[Node], of_updates: set[Node]) -> list[Node]:
    """Move what needs neither data nor gradients to just before the first that uses it."""
    known, used = set[Node](), {before for node in order for before in node.after}
    for node in order:
        if known.issuperset(node.after) and (node.op.type in FREE or node in of_updates & used):
            known.add(node)
    moved: dict[Node, None] = {}

    def take(node: Node) -> None:
        for before in node.after:
            if before in known and before not in moved:
                take(before)
        moved[node] = None

    for node in order:
        if node not in known:
            take(node)
    return [*moved, *(node for node in order if node not in moved)]


def _for_updates(nodes: Sequence[Node], last: Set[Node]) -> set[Node]:
    """Find what updates do, and what is needed for the gradient of one weight only."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for before in node.after:
            users.setdefault(before, []).append(node)
    of: dict[Node, Node | None] = {}  # the gradient that a node is for; None in an update
    for node in reversed(nodes):  # those that wait for a node come after it
        if node in last or layer(node.name) == "optimizer":
            of[node] = None
        elif (by := users.get(node)) and all(user in of for user in by):
            several = {of[user] or node for user in by}
            if len(several) == 1:
                (of[node],) = several
    return {*of}
