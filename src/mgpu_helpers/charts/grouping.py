"""Which boxes stand for the operations of a step, and in which column, so that they fit a page."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mgpu_helpers._names import order

if TYPE_CHECKING:
    from mgpu_helpers.trace.log import Placement
    from mgpu_helpers.trace.step import Trace

_WIDE, _HIGH = 12.0, 10.0  # inches of a page
_SHARE = re.compile(r"(?:^|/)((?:tower|replica|stage)_\d+)/")
_MANY = 20  # operations a box; of more, the widest scopes say too little
_SMALL = 0.01  # of a step's time and bytes: too little for a box of what stands in no scope
Box = tuple[str, str]  # device and name
Edges = list[tuple[str, str]]


@dataclass(frozen=True)
class Boxes:
    """The boxes of a map. folded is True where "others" stand for what is small."""

    ops: list[tuple[str, str]]  # name and device
    edges: Edges
    group: dict[str, str]  # an operation's name -> that of its box
    before: dict[str, int]  # an operation's name -> how many have to run before it, one by one
    folded: bool = False

    @cached_property
    def of(self) -> dict[str, Box]:
        """Give the box of each operation."""
        return {name: (device, self.group[name]) for name, device in self.ops}

    @cached_property
    def feeds(self) -> dict[tuple[Box, Box], None]:
        """Name which boxes feed which, once each, in the order of the edges."""
        return dict.fromkeys((self.of[maker], self.of[user]) for maker, user in self.edges)

    @cached_property
    def members(self) -> Counter[Box]:
        """Count the operations of each box."""
        return Counter((device, self.group[name]) for name, device in self.ops)

    @cached_property
    def lanes(self) -> list[str]:
        """Name the devices, in order."""
        return sorted({device for device, _ in self.members}, key=order)

    @cached_property
    def depth(self) -> dict[Box, int]:
        """Give how far from the start each box is first fed by another, or works if by none.

        By what nothing feeds, such as a batch of labels, it is fed only where nothing else does.
        """
        first: dict[Box, int] = {}
        fed: dict[Box, int] = {}
        late = {self.of[user] for _, user in self.edges}
        for name, box in self.of.items():
            first[box] = min(first.get(box, self.before[name]), self.before[name])
        for maker, user in self.edges:
            source, box = self.of[maker], self.of[user]
            if source != box and source[1] != "variables" and source in late:
                fed[box] = min(fed.get(box, self.before[user]), self.before[user])
        return {box: 0 if box[1] in ("variables", "others") else depth
                for box, depth in (first | fed).items()}  # fmt: skip

    @cached_property
    def columns(self) -> list[list[Box]]:
        """Put boxes of the same depth into a column; a folded map has as many as a page is wide."""
        columns = [
            sorted((box for box in self.members if self.depth[box] == depth), key=lambda b: b[1])
            for depth in sorted({*self.depth.values()})
        ]
        while self.folded and len(columns) > 1 and sum(map(self.room, columns)) > _WIDE - 0.9:
            pairs = [a + b for a, b in zip(columns, columns[1:], strict=False)]
            tall = [max(Counter(device for device, _ in pair).values()) for pair in pairs]
            at = tall.index(min(tall))
            columns[at : at + 2] = [pairs[at]]
        return columns

    def label(self, box: Box) -> str:
        """Write what stands in a box: its name, or the end of it, and how many operations it is."""
        text, count = box[1], self.members[box]
        most = 22 if self.folded else 20
        text = text if len(text) <= most else "…" + text[1 - most :]
        return f"{text} ({count})" if count > 1 else text

    def room(self, column: list[Box]) -> float:
        """Give the inches of a column: the room of its widest box."""
        return 0.085 * max(len(self.label(box)) for box in column) + 0.55

    @cached_property
    def tall(self) -> dict[str, int]:
        """Count the rows of each device: its boxes in the fullest column."""
        counts = [Counter(device for device, _ in column) for column in self.columns]
        return {device: max(count[device] for count in counts) for device in self.lanes}

    @cached_property
    def size(self) -> tuple[float, float]:
        """Give the inches of the figure."""
        high = 0.9 + sum(0.4 * tall + 0.3 for tall in self.tall.values())
        return max(8, 0.9 + sum(map(self.room, self.columns))), high


def boxes_of(step: Trace | Placement, most: int) -> Boxes:
    """Choose the boxes: single operations, wider and wider scopes, or the largest and "others".

    No constants, as they only name numbers.
    """
    from mgpu_helpers.trace.step import traced

    # TensorFlow's placement log has rows, and no edges.
    found: Sequence[Any] = step.rows if hasattr(step, "rows") else traced(step).ops
    rows = [row for row in found if row.type != "Const"]
    ops = list(dict.fromkeys((row.name, row.device) for row in rows))
    names = dict(ops)
    edges = [(a, b) for a, b in getattr(step, "edges", ()) if a in names and b in names]
    before = _before(list(names), edges)
    for group in _by_scope(list(names)) if len(ops) <= _MANY * most else ():
        made = Boxes(ops, edges, group, before)
        if len(made.members) <= most and made.size[0] <= _WIDE + 0.9 and made.size[1] <= _HIGH:
            return made
    for depth in (1, 2, 3):  # of models in the model: one that is most of all is shown in parts
        group, weight = _weighed(rows, edges, depth)
        shares = [sum(x for (_, n), x in weight.items() if n == name) for name in {*group.values()}]
        if 2 * max(shares) <= sum(shares):
            break
    if len(weight) > most and any(_SHARE.search(row.name) for row in rows):
        group, weight = _weighed(rows, edges, 0)
    counts = Counter(lane for lane, _ in weight)
    for quota in range(max(counts.values()), 0, -1):  # boxes that a device may have
        if quota > 1 and sum(min(count, quota) for count in counts.values()) > most:
            continue
        kept: set[Box] = set()
        for lane, count in counts.items():
            own = [box for box in weight if box[0] == lane]
            own.sort(key=lambda box: (quota < 3 or box[1] != "variables", -weight[box], box))
            kept |= set(own if count <= quota else own[: quota - 1])
        shown = {n: group[n] if (lane, group[n]) in kept else "others" for n, lane in ops}
        made = Boxes(ops, edges, shown, before, folded=True)
        if made.size[1] <= _HIGH:
            break
    return made


def _by_scope(names: list[str]) -> Iterator[dict[str, str]]:
    """Group by scope, from single operations to the widest; all variables of a function are one."""
    from mgpu_helpers.trace.layers import layer

    short = {name: re.sub(r"((Func|(Stateful)?PartitionedCall)(_\d+)?/)*", "", name, count=1)
             for name in names}  # fmt: skip
    short |= {name: "variables" for name in names if layer(name) == "variables"}
    for depth in range(max((name.count("/") for name in names), default=0) + 1, 0, -1):
        yield {name: "/".join(text.split("/")[:depth]) for name, text in short.items()}


def _weighed(rows: list[Any], edges: Edges, depth: int) -> tuple[dict[str, str], dict[Box, float]]:
    """Name the box of each operation: its layer of a depth, at 0 its tower or stage, or its type.

    Give each box its share of time, of bytes, and of what crosses.
    """
    from mgpu_helpers.trace.layers import layer

    types, device = {row.type for row in rows}, {row.name: row.device for row in rows}
    group, lone = {}, set()
    for row in rows:
        share = None if depth else _SHARE.search(row.name)
        box = share[1] if share else layer(row.name, depth=depth or 1)
        if row.type in {"VarHandleOp", "VariableV2", "ReadVariableOp"}:
            box = "variables"
        elif box == "other" or re.sub(r"_\d+$", "", box) in types:  # of an operation by itself
            box = row.type
            lone.add((row.device, box))
        group[row.name] = box
    for maker, user in edges:  # what a function is given belongs to what uses it
        if maker.startswith("Func/") and "/input/" in maker:
            group[maker] = group[user]
    weight: dict[Box, float] = defaultdict(float)
    for what in ("length", "bytes"):
        total = sum(getattr(row, what, 1) for row in rows) or 1
        for row in rows:
            weight[row.device, group[row.name]] += getattr(row, what, 1) / total
    crossing = [ends for ends in edges if device[ends[0]] != device[ends[1]]]
    for name in itertools.chain(*crossing):
        weight[device[name], group[name]] += 1 / len(crossing)
    small = {box for box in lone if weight[box] < _SMALL}
    for box in small:
        weight[box[0], "others"] += weight.pop(box)
    return {n: "others" if (device[n], box) in small else box for n, box in group.items()}, weight


def _before(names: list[str], edges: Edges) -> dict[str, int]:
    """Count for each operation how many others have to run before it, one after the other."""
    makers = defaultdict(list)
    for source, target in edges:
        makers[target].append(source)
    depth: dict[str, int] = {}

    def walk(name: str) -> int:
        if name not in depth:
            depth[name] = -1  # to what comes round a loop: this is where it began
            depth[name] = 1 + max(map(walk, makers[name]), default=-1)
        return depth[name]

    return {name: walk(name) for name in names}
