"""What ran where, and the bytes that crossed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from mgpu_helpers.charts.base import axes, colour
from mgpu_helpers.names import order
from mgpu_helpers.wording import size_text

if TYPE_CHECKING:
    from mgpu_helpers.placement import Placement
    from mgpu_helpers.trace.step import Trace

_BOXES, _INCHES = 24, 12  # a larger map cannot be read: operations are drawn by scope instead


def placement_map(step: Trace | Placement, ax: Any = None) -> Any:
    """Draw operations in the lane of their device, and what crosses between lanes with its bytes.

    Many operations are grouped by name scope. A Placement knows no tensors: it gives no arrows.
    """
    ops, edges, copies = _ops(step)
    lanes = sorted({device for _, device in ops}, key=order)
    deepest = max((name.count("/") for name, _ in ops), default=0) + 1
    for depth in range(deepest, 0, -1):  # from single operations to the widest scopes
        group = {name: "/".join(name.split("/")[:depth]) for name, _ in ops}
        column = _columns(ops, edges, group)
        members = Counter((device, group[name]) for name, device in ops)
        label = {key: _label(key[1], members[key]) for key in members}
        cells: dict[tuple[str, int], list[str]] = defaultdict(list)  # lane, column -> boxes
        for device, box in members:
            cells[device, column[device, box]].append(box)
        centre, wide = _spread(cells, label)
        if len(members) <= _BOXES and wide <= _INCHES:
            break
    tall = {d: max(len(b) for (lane, _), b in cells.items() if lane == d) for d in lanes}
    ax = axes(ax, size=(max(8, 0.9 + wide), 0.9 + sum(0.4 * tall[d] + 0.3 for d in lanes)))
    top, where = 0.0, {}
    for device in lanes:
        height = tall[device] + 0.6
        ax.axhspan(top, top + height, color=colour(device), alpha=0.10, linewidth=0)
        ax.text(-0.1, top + height / 2, device, color=colour(device), weight="bold", ha="right",
                va="center")  # fmt: skip
        for (lane, x), boxes in cells.items():
            for i, box in enumerate(sorted(boxes) if lane == device else ()):
                at = where[device, box] = centre[x], top + (height - len(boxes) + 1) / 2 + i
                ax.text(*at, label[device, box], ha="center", va="center", size=8, color="white",
                        zorder=3, bbox={"boxstyle": "round,pad=0.3", "facecolor": colour(device),
                                        "edgecolor": "white"})  # fmt: skip
        top += height + 0.15

    def arrow(start: tuple[str, str], end: tuple[str, str], color: str, width: float) -> None:
        (x0, y0), (x1, y1) = where[start], where[end]
        run = (x1 - x0) * max(1, 7.1 / wide), (y1 - y0) * 0.4  # in inches, as the size above has it
        ax.annotate("", where[end], where[start], zorder=2, arrowprops={
            "arrowstyle": "-|>", "color": color, "linewidth": width,
            "shrinkA": _reach(label[start], *run), "shrinkB": _reach(label[end], *run),
        })  # fmt: skip

    device_of = dict(ops)
    seen = set()
    for source, target in edges:
        ends = (device_of[source], group[source]), (device_of[target], group[target])
        if ends[0] != ends[1] and ends[0][0] == ends[1][0] and ends not in seen:
            seen.add(ends)
            arrow(*ends, "#b0b0b0", 0.9)
    crossing: Counter[Any] = Counter()
    for copy in copies:
        maker = copy.tensor.partition(":")[0]
        users = {
            group[user] for source, user in edges
            if source == maker and device_of[user] == copy.target
        }  # fmt: skip
        for box in sorted(users, key=lambda box: (column[copy.target, box], box))[:1]:
            crossing[(copy.source, group[maker]), (copy.target, box)] += copy.bytes or 0
    for (start, end), size in crossing.items():
        arrow(start, end, colour(start[0]), 1.6)
        (x0, y0), (x1, y1) = where[start], where[end]
        ax.text(x0 + 0.55 * (x1 - x0), y0 + 0.55 * (y1 - y0), size_text(size), size=7.5,
                ha="center", va="center", zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none",
                      "alpha": 0.85})  # fmt: skip
    ax.set_xlim(0, wide or 1)
    ax.set_ylim(top - 0.15, 0)
    ax.axis("off")
    crossed = " and what crosses between devices" if copies else ""
    ax.set_title(f"Where operations run{crossed}", loc="left")
    return ax


def _ops(step: Trace | Placement) -> tuple[list[tuple[str, str]], list[tuple[str, str]], tuple]:
    """Take what a map shows: no constants, as they only name numbers."""
    placed = hasattr(step, "rows")  # TensorFlow's placement log
    rows = step.rows if placed else step.ops
    ops = list(dict.fromkeys((r.name, r.device) for r in rows if r.type != "Const"))
    names = {name for name, _ in ops}
    if placed:
        return ops, [], ()
    edges = [(a, b) for a, b in step.edges if a in names and b in names]
    copies = tuple(c for c in step.copies if c.tensor.partition(":")[0] in names)
    return ops, edges, copies


def _columns(
    ops: list[tuple[str, str]], edges: list[tuple[str, str]], group: dict[str, str]
) -> dict[tuple[str, str], int]:
    """Put each box in the column of its earliest operation, counted in steps from the start."""
    makers = defaultdict(list)
    for source, target in edges:
        makers[target].append(source)
    depth: dict[str, int] = {}

    def walk(name: str, path: frozenset[str]) -> int:
        if name not in depth:
            before = [walk(m, path | {name}) for m in makers[name] if m not in path]
            depth[name] = 1 + max(before, default=-1)
        return depth[name]

    first: dict[tuple[str, str], int] = {}
    for name, device in ops:
        key = device, group[name]
        first[key] = min(first.get(key, 10**9), walk(name, frozenset({name})))
    ranks = {d: i for i, d in enumerate(sorted(set(first.values())))}
    return {key: ranks[d] for key, d in first.items()}


def _label(box: str, count: int) -> str:
    text = box if len(box) <= 20 else "…" + box[-19:]
    return f"{text} ({count})" if count > 1 else text


def _spread(
    cells: dict[tuple[str, int], list[str]], label: dict[tuple[str, str], str]
) -> tuple[dict[int, float], float]:
    """Give every column the room of its widest box: centres, and the whole width, in inches."""
    widest: dict[int, int] = defaultdict(int)
    for (lane, x), boxes in cells.items():
        widest[x] = max(widest[x], *(len(label[lane, box]) for box in boxes))
    centre, reached = {}, 0.0
    for x in sorted(widest):
        room = 0.085 * widest[x] + 0.55
        centre[x] = reached + room / 2
        reached += room
    return centre, reached


def _reach(label: str, across: float, down: float) -> float:
    """Give the way from the middle of a box to its edge in a direction, in points."""
    half_width, half_height = 0.034 * len(label) + 0.07, 0.12
    ways = [half / abs(way) for half, way in ((half_width, across), (half_height, down)) if way]
    return 72 * min(ways, default=0) * math.hypot(across, down)
