"""The sketches of lesson 07."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import HOST, PALETTE, pale
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

CELL = (0.36, 0.22)  # inches


def two_towers() -> Any:
    """Sketch one step in two towers: a batch in two shards, two gradients, one average."""
    ax = canvas(8, 2.3)
    for at, text in ((0.9, "the batch"), (3.35, "two towers"), (5.75, "the host")):
        label(ax, (at, 0.15), text)
    for i in range(2):
        top = 0.4 + 0.85 * i
        box(ax, (0.3, top), (1.2, 0.65), f"shard {i}", HOST)
        box(ax, (2.3, top), (2.1, 0.65), f"device {i}\nforward and backward pass", PALETTE[i])
        arrow(ax, (1.55, top + 0.32), (2.25, top + 0.32))
        arrow(ax, (4.45, top + 0.32), (5.15, 1.0 + 0.24 * i))
    label(ax, (4.87, 0.5), "gradients", size=8.5)
    box(ax, (5.2, 0.8), (1.1, 0.65), "average")
    box(ax, (7.0, 0.8), (0.9, 0.65), "weights", "#444444")
    arrow(ax, (6.35, 1.12), (6.95, 1.12), "update")
    ax.plot([7.45, 7.45, 3.35], [1.5, 2.15, 2.15], color="#555555", linewidth=1)
    arrow(ax, (3.35, 2.17), (3.35, 1.92))
    label(ax, (5.4, 2.03), "read by both towers in the next step", size=8.5)
    return ax


def ring_of_four() -> Any:
    """Sketch four devices in a ring, and what each holds at the start and after every round."""
    ax = canvas(8, 3.05)
    spots = ((0.12, 0.35), (0.92, 0.35), (0.92, 0.95), (0.12, 0.95))
    for i, spot in enumerate(spots):
        box(ax, spot, (0.5, 0.32), str(i), PALETTE[i])
    for start, end in (
        ((0.64, 0.51), (0.9, 0.51)), ((1.17, 0.69), (1.17, 0.93)),
        ((0.9, 1.11), (0.64, 1.11)), ((0.37, 0.93), (0.37, 0.69)),
    ):  # fmt: skip
        arrow(ax, start, end)
    label(ax, (0.77, 0.12), "the ring")
    held = [[10**i] * 4 for i in range(4)]
    _table(ax, (1.75, 0.3), "start", held, [])
    for turn in range(6):
        sent = [((i + 1) % 4, (i - turn) % 4, held[i][(i - turn) % 4]) for i in range(4)]
        for neighbour, piece, came in sent:
            held[neighbour][piece] = came + (held[neighbour][piece] if turn < 3 else 0)
        adds = turn < 3
        at = (3.35 + 1.6 * turn, 0.3) if adds else (3.35 + 1.6 * (turn - 3), 1.85)
        title = f"round {turn + 1}: {'add' if adds else 'pass on'}"
        _table(ax, at, title, held, [(row, piece) for row, piece, _ in sent])
    label(ax, (0.12, 2.0), "a row: a device", ha="left", size=8.5)
    label(ax, (0.12, 2.22), "a column: a piece", ha="left", size=8.5)
    label(ax, (0.12, 2.44), "framed: just received", ha="left", size=8.5)
    label(ax, (0.12, 2.66), "dark: the sum over all devices, 1111", ha="left", size=8.5)
    return ax


def _table(ax: Any, at: tuple[float, float], title: str, held: Any, new: Any) -> None:
    from matplotlib.patches import Rectangle

    (left, top), (wide, high) = at, CELL
    label(ax, (left + 2 * wide, top - 0.14), title, size=8.5)
    for row, numbers in enumerate(held):
        for piece, number in enumerate(numbers):
            done = number == 1111
            corner = (left + piece * wide, top + row * high)
            box(ax, corner, CELL, "", PALETTE[row] if done else pale(pale(pale(PALETTE[row]))))
            ink = "white" if done else "#333333"
            label(ax, (corner[0] + wide / 2, corner[1] + high / 2), str(number), size=7, color=ink)
            if (row, piece) in new:
                frame = Rectangle(
                    corner, wide, high, fill=False, edgecolor="#222222", linewidth=1.2, zorder=3
                )
                ax.add_patch(frame)
