"""Which boxes stand for the operations of a step, so that a map of it fits a page."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mgpu_helpers.charts.boxes import HIGH, WIDE, Box, Boxes

if TYPE_CHECKING:
    from mgpu_helpers.trace.log import Placement
    from mgpu_helpers.trace.step import Trace

_SHARE = re.compile(r"(?:^|/)((?:tower|replica|stage)_\d+)/")
_MANY = 20  # operations a box; of more, the widest scopes say too little
_SMALL = 0.01  # of a step's time and bytes: too little for a box of what stands in no scope


def boxes_of(step: Trace | Placement, most: int) -> tuple[Boxes, list[tuple[str, str]]]:
    """Choose the boxes: single operations, wider and wider scopes, or the largest and "others".

    Give them, and who feeds whom. No constants, as they only name numbers.
    """
    from mgpu_helpers.trace.step import traced

    edges: Sequence[tuple[str, str]] = ()
    found: Sequence[Any]
    if hasattr(step, "rows"):  # TensorFlow's placement log
        found = step.rows
    else:
        found, edges = traced(step).ops, step.edges
    rows = [r for r in found if r.type != "Const"]
    ops = list(dict.fromkeys((r.name, r.device) for r in rows))
    names = dict(ops)
    edges = [(a, b) for a, b in edges if a in names and b in names]
    depth = _depths(list(names), edges)
    for group in _by_scope(list(names)) if len(ops) <= _MANY * most else ():
        first: dict[Box, int] = {}
        for name, device in ops:
            box = device, group[name]
            first[box] = min(first.get(box, depth[name]), depth[name])
        made = Boxes(ops, group, first)
        if len(first) <= most and made.size[0] <= WIDE + 0.9 and made.size[1] <= HIGH:
            return made, edges
    return _folded(rows, ops, edges, depth, most), edges


def _by_scope(names: list[str]) -> Iterator[dict[str, str]]:
    """Group by scope, from single operations to the widest; all variables of a function are one."""
    from mgpu_helpers.trace.layers import layer

    short = {name: re.sub(r"((Func|(Stateful)?PartitionedCall)(_\d+)?/)*", "", name, count=1)
             for name in names}  # fmt: skip
    short |= {name: "variables" for name in names if layer(name) == "variables"}
    for depth in range(max((name.count("/") for name in names), default=0) + 1, 0, -1):
        yield {name: "/".join(text.split("/")[:depth]) for name, text in short.items()}


def _folded(
    rows: list[Any], ops: list[tuple[str, str]], edges: list[tuple[str, str]],
    depth: dict[str, int], most: int,
) -> Boxes:  # fmt: skip
    """Group by layer, or by tower and stage where these are too many, and fold what is small."""
    group, weight = _weighed(rows, edges, wide=False)
    if len(weight) > most and any(_SHARE.search(row.name) for row in rows):
        group, weight = _weighed(rows, edges, wide=True)
    entry = _entries(group, ops, edges, depth)
    counts = Counter(lane for lane, _ in weight)
    for quota in range(_quota(counts, most), 0, -1):
        kept: set[Box] = set()
        for lane, count in counts.items():
            own = [box for box in weight if box[0] == lane]
            own.sort(key=lambda box: (quota < 3 or box[1] != "variables", -weight[box], box))
            kept |= set(own if count <= quota else own[: quota - 1])
        shown, at = {}, {}
        for name, device in ops:
            box = device, group[name]
            shown[name] = box[1] if box in kept else "others"
            at[device, shown[name]] = 0 if shown[name] == "others" else entry[box]
        made = Boxes(ops, shown, at, folded=True)
        if made.size[1] <= HIGH:
            break
    return made


def _weighed(
    rows: list[Any], edges: list[tuple[str, str]], wide: bool
) -> tuple[dict[str, str], Counter[Box]]:
    """Name the box of each operation; give each box its share of time, of bytes, of what crosses.

    What is in no scope has a box of its own name, if it is not too small for one.
    """
    group, lone = _named(rows, edges, wide)
    device = {row.name: row.device for row in rows}
    crossing = [ends for ends in edges if device[ends[0]] != device[ends[1]]]
    time, size = (sum(getattr(r, what, 1) for r in rows) or 1 for what in ("length", "bytes"))
    weight: Any = Counter()  # of parts; the type of a Counter knows whole numbers only
    sends: Any = Counter()
    for row in rows:
        weight[row.device, group[row.name]] += getattr(row, "length", 1) / time
        weight[row.device, group[row.name]] += getattr(row, "bytes", 1) / size
    for name in (name for ends in crossing for name in ends):
        sends[device[name], group[name]] += 1 / len(crossing)
    lanes = Counter(lane for lane, _ in weight)
    small = {box for box in weight if weight[box] < _SMALL and lanes[box[0]] > 6}
    small &= lone - sends.keys()
    for box in small:
        weight[box[0], "others"] += weight.pop(box)
    group = {
        name: "others" if (device[name], box) in small else box for name, box in group.items()
    }
    return group, weight + sends


def _named(
    rows: list[Any], edges: list[tuple[str, str]], wide: bool
) -> tuple[dict[str, str], set[Box]]:
    """Name the box of each operation, and tell the boxes of operations that are in no scope."""
    from mgpu_helpers.trace.layers import layer

    types, group, lone = {row.type for row in rows}, {}, set()
    for row in rows:
        share = _SHARE.search(row.name) if wide else None
        box = share[1] if share else layer(row.name)
        if row.type in {"VarHandleOp", "VariableV2", "ReadVariableOp"}:
            box = "variables"
        elif box == "other" or re.sub(r"_\d+$", "", box) in types:  # of an operation by itself
            last = row.name.rpartition("/")[2] if box == "other" else box
            box = re.sub(r"_\d*$", "", last) or "others"
            lone.add((row.device, box))
        group[row.name] = box
    for maker, user in edges:  # what a function is given belongs to what uses it
        if maker.startswith("Func/") and "/input/" in maker:
            group[maker] = group[user]
    return group, lone


def _quota(counts: Counter[str], most: int) -> int:
    """Give how many boxes each device may have, at least one, for there to be `most` in all."""
    quota = 1
    while quota < max(counts.values()) and (
        sum(min(count, quota + 1) for count in counts.values()) <= most
    ):
        quota += 1
    return quota


def _entries(
    group: dict[str, str], ops: list[tuple[str, str]], edges: list[tuple[str, str]],
    depth: dict[str, int],
) -> dict[Box, int]:  # fmt: skip
    """Give how far from the start each box is first fed by another, or first works if by none."""
    first: dict[Box, int] = {}
    fed: dict[Box, int] = {}
    device_of = dict(ops)
    for name, device in ops:
        key = device, group[name]
        first[key] = min(first.get(key, depth[name]), depth[name])
    for maker, user in edges:
        source, key = (device_of[maker], group[maker]), (device_of[user], group[user])
        if source != key and source[1] != "variables":
            fed[key] = min(fed.get(key, depth[user]), depth[user])
    return {box: 0 if box[1] == "variables" else fed.get(box, first[box]) for box in first}


def _depths(names: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Count for each operation how many others have to run before it, one after the other."""
    makers = defaultdict(list)
    for source, target in edges:
        makers[target].append(source)
    depth: dict[str, int] = {}

    def walk(name: str, path: frozenset[str]) -> int:
        if name not in depth:
            before = [walk(m, path | {name}) for m in makers[name] if m not in path]
            depth[name] = 1 + max(before, default=-1)
        return depth[name]

    for name in names:
        walk(name, frozenset({name}))
    return depth
