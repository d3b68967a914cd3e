"""What ran where, and the bytes that crossed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from mgpu_helpers.charts.arrows import Arrows
from mgpu_helpers.charts.base import axes, colour
from mgpu_helpers.charts.boxes import Box, Boxes
from mgpu_helpers.charts.grouping import boxes_of
from mgpu_helpers.charts.pointer import name_boxes
from mgpu_helpers.wording import size_text, whole_number

if TYPE_CHECKING:
    from mgpu_helpers.trace.log import Placement
    from mgpu_helpers.trace.step import Trace


def placement_map(step: Trace | Placement, ax: Any = None, most: int = 24) -> Any:
    """Draw operations in the lane of their device, and what crosses between lanes with its bytes.

    Many operations are grouped by name scope, into at most so many boxes. Where that does not
    fit a page, each device shows its largest layers by time and bytes (or towers or stages, where
    there are many devices), its variables as one box, and the rest as "others". The arrow of a copy
    ends at the box that uses it first. A Placement knows no tensors: it gives no arrows.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = placement_map(step)
    """
    made, edges = boxes_of(step, whole_number("most", most, "a number of boxes", 1))
    ax = axes(ax, size=made.size)
    texts = _draw_boxes(made, ax)
    crossing = _crossing(step, made, edges)
    ax.axis("off")
    crossed = " and what crosses between devices" if getattr(step, "copies", ()) else ""
    ax.set_title(f"Where operations run{crossed}", loc="left")
    arrows = Arrows(ax, texts)
    for start, end in _inner(made, edges):
        arrows.draw(start, end, "#b0b0b0", 0.9)
    ways = [arrows.draw(start, end, colour(start[0]), 1.6) for start, end in crossing]
    for way, size in zip(ways, crossing.values(), strict=True):
        arrows.write(way, size_text(size))
    inverse = ax.transData.inverted()
    name_boxes(ax, (
        (*inverse.transform(extent[:2]), *inverse.transform(extent[2:]), made.title(box))
        for box, extent in arrows.boxes.items()
    ))  # fmt: skip
    return ax


def _draw_boxes(made: Boxes, ax: Any) -> dict[Box, Any]:
    """Draw a lane for each device, and its boxes in their columns; give their texts."""
    cells: dict[tuple[str, float], list[Box]] = defaultdict(list)  # lane, middle -> boxes
    left = 0.0
    for column in made.columns:
        room = made.room(column)
        for box in column:
            cells[box[0], left + room / 2].append(box)
        left += room
    texts, top = {}, 0.0
    for lane in made.lanes:
        height = made.tall[lane] + 0.6
        ax.axhspan(top, top + height, color=colour(lane), alpha=0.10, linewidth=0)
        ax.text(-0.1, top + height / 2, lane, color=colour(lane), weight="bold", ha="right",
                va="center")  # fmt: skip
        for (device, x), column in cells.items():
            for i, box in enumerate(column if device == lane else ()):
                texts[box] = ax.text(
                    x, top + (height - len(column) + 1) / 2 + i, made.label(box), ha="center",
                    va="center", size=8, color="white", zorder=3,
                    bbox={"boxstyle": "round,pad=0.3", "facecolor": colour(lane),
                          "edgecolor": "white"},
                )  # fmt: skip
        top += height + 0.15
    ax.set_xlim(0, made.wide or 1)
    ax.set_ylim(top - 0.15, 0)
    return texts


def _inner(made: Boxes, edges: list[tuple[str, str]]) -> list[tuple[Box, Box]]:
    """List which boxes feed which on the same device; on a folded map only which the next one."""
    place = {box: i for i, column in enumerate(made.columns) for box in column}
    box_of = {name: (device, made.group[name]) for name, device in made.ops}
    ends = dict.fromkeys((box_of[source], box_of[target]) for source, target in edges)
    return [
        (a, b) for a, b in ends
        if a != b and a[0] == b[0] and not (
            made.folded and (
                {a[1], b[1]} & {"variables", "others", "optimizer"} or place[b] - place[a] != 1
            )
        )
    ]  # fmt: skip


def _crossing(
    step: Trace | Placement, made: Boxes, edges: list[tuple[str, str]]
) -> Counter[tuple[Box, Box]]:
    """Add up the bytes that cross from box to box.

    A copy that several boxes use goes to the one that feeds the others, or else to the first.
    """
    box_of = {name: (device, made.group[name]) for name, device in made.ops}
    users, feeds = defaultdict(list), set()
    for maker, user in edges:
        users[maker].append(user)
        feeds.add((box_of[maker], box_of[user]))
    crossing: Counter[tuple[Box, Box]] = Counter()
    for copy in getattr(step, "copies", ()):
        maker = copy.tensor.partition(":")[0]
        used = {box_of[user] for user in users[maker] if box_of[user][0] == copy.target}
        if maker in box_of and used:
            first = min(used, key=lambda box: (
                sum((other, box) in feeds for other in used - {box}), made.depth[box], box
            ))  # fmt: skip
            crossing[(copy.source, made.group[maker]), first] += copy.bytes or 0
    return crossing
