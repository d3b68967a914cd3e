"""What ran where, and the bytes that crossed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from mgpu_helpers._formatting import size_text
from mgpu_helpers.charts.arrows import Arrows
from mgpu_helpers.charts.base import axes, colour
from mgpu_helpers.charts.grouping import Box, Boxes, boxes_of

if TYPE_CHECKING:
    from mgpu_helpers.trace.log import Placement
    from mgpu_helpers.trace.step import Trace


def placement_map(step: Trace | Placement, ax: Any = None, most: int = 24) -> Any:
    """Draw operations in the lane of their device, and what crosses between lanes with its bytes.

    Many operations are grouped by name scope, into at most so many boxes. Where that does not
    fit a page, each device shows its largest layers by time and bytes (of a model inside the model,
    where that is most of all; or towers or stages, where there are many devices), its variables as
    one box, and the rest as "others". The arrow of a copy ends at the box that uses it first. A
    Placement knows no tensors: it gives no arrows.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = placement_map(step)
    """
    boxes = boxes_of(step, most)
    ax = axes(ax, size=boxes.size)
    texts, copies = _draw_boxes(boxes, ax), getattr(step, "copies", ())
    crossed = " and what crosses between devices" if copies else ""
    ax.set_title(f"Where operations run{crossed}", loc="left")
    arrows = Arrows(ax, texts)
    for start, end in _inner(boxes):
        arrows.draw(start, end, "#b0b0b0", 0.9)
    crossing = _crossing(boxes, copies)
    ways = [arrows.draw(start, end, colour(start[0]), 1.6) for start, end in crossing]
    for way, size in zip(ways, crossing.values(), strict=True):
        arrows.write(way, size_text(size))
    return ax


def _draw_boxes(boxes: Boxes, ax: Any) -> dict[Box, Any]:
    """Draw a lane for each device, and its boxes in their columns; give their texts."""
    texts, top = {}, 0.0
    for lane in boxes.lanes:
        left, height = 0.0, boxes.tall[lane] + 0.6
        ax.axhspan(top, top + height, color=colour(lane), alpha=0.10, linewidth=0)
        ax.text(-0.1, top + height / 2, lane, color=colour(lane), weight="bold", ha="right",
                va="center")  # fmt: skip
        for column in boxes.columns:
            own = [box for box in column if box[0] == lane]
            for i, box in enumerate(own):
                texts[box] = ax.text(
                    left + boxes.room(column) / 2, top + (height - len(own) + 1) / 2 + i,
                    boxes.label(box), ha="center", va="center", size=8, color="white", zorder=3,
                    bbox={"boxstyle": "round,pad=0.3", "facecolor": colour(lane),
                          "edgecolor": "white"},
                )  # fmt: skip
            left += boxes.room(column)
        top += height + 0.15
    ax.set_xlim(0, sum(map(boxes.room, boxes.columns)) or 1)
    ax.set_ylim(top - 0.15, 0)
    ax.axis("off")
    return texts


def _inner(boxes: Boxes) -> list[tuple[Box, Box]]:
    """List which boxes feed which on the same device; on a folded map only which the next one."""
    place = {box: i for i, column in enumerate(boxes.columns) for box in column}
    inner = [(a, b) for a, b in boxes.feeds if a != b and a[0] == b[0]]
    if boxes.folded:
        many = {"variables", "others", "optimizer"}
        inner = [(a, b) for a, b in inner if place[b] - place[a] == 1 and not {a[1], b[1]} & many]
    return inner


def _crossing(boxes: Boxes, copies: Any) -> Counter[tuple[Box, Box]]:
    """Add up the bytes that cross from box to box.

    A copy that several boxes use goes to the one that feeds the others, or else to the first.
    """
    users = defaultdict(set)
    for maker, user in boxes.edges:
        users[maker].add(boxes.of[user])
    crossing: Counter[tuple[Box, Box]] = Counter()
    for copy in copies:
        maker = copy.tensor.partition(":")[0]
        used = {box for box in users[maker] if box[0] == copy.target}
        if used:
            first = min(used, key=lambda box: (
                sum((other, box) in boxes.feeds for other in used - {box}), boxes.depth[box], box
            ))  # fmt: skip
            crossing[(copy.source, boxes.group[maker]), first] += copy.bytes or 0
    return crossing
