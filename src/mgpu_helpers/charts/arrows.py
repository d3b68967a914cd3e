"""Arrows between boxes that go round other boxes, with labels where there is room."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

_BENDS = [0, *(side * bend for bend in (0.1, 0.18, 0.28, 0.4, 0.55, 0.75, 1, 1.3, 1.7)
               for side in (1, -1))]  # away from straight, by the length  # fmt: skip
_PLACES = (0.55, 0.45, 0.65, 0.36, 0.74, 0.28, 0.82, 0.2)  # of a label, along its arrow


class Arrows:
    """Draws arrows between texts in boxes, which are in place, by the texts' keys."""

    def __init__(self, ax: Any, texts: dict[Any, Any]) -> None:
        ax.figure.canvas.figure.draw_without_rendering()  # only then a box knows where it is
        self.ax, self.at = ax, {key: text.get_position() for key, text in texts.items()}
        self.boxes = {key: text.get_bbox_patch().get_window_extent().extents
                       for key, text in texts.items()}  # fmt: skip
        self.page = ax.get_window_extent().extents
        self.bends: dict[Any, float] = {}  # by the ends of an arrow, seen from its end
        # No place for a label: the boxes, and what else is written.
        self.taken = [_wider(box, 1) for box in self.boxes.values()]
        self.taken += [text.get_window_extent().extents for text in ax.texts]

    def draw(self, start: Any, end: Any, color: str, width: float) -> np.ndarray:
        """Draw an arrow that meets the fewest boxes, as straight as it can be; return its way."""
        others = [_wider(box, 3) for key, box in self.boxes.items() if key not in (start, end)]
        begin, stop = ((self.boxes[key][:2] + self.boxes[key][2:]) / 2 for key in (start, end))
        back = self.bends.get((end, start))  # the other way: not on the same line
        ways = {bend: _curve(begin, stop, bend) for bend in _BENDS if bend != back}
        bend = min(ways, key=lambda bend: self._met(ways[bend], others))
        way, self.bends[start, end] = ways[bend], -bend
        self.ax.annotate("", self.at[end], self.at[start], zorder=2, arrowprops={
            "arrowstyle": "-|>", "color": color, "linewidth": width,
            "connectionstyle": f"arc3,rad={bend}", "shrinkA": self._reach(way, start),
            "shrinkB": self._reach(way[::-1], end),
        })  # fmt: skip
        return way

    def write(self, way: np.ndarray, words: str) -> None:
        """Write on an arrow: where nothing else stands, or else where the least does."""
        text = self.ax.text(0, 0, words, size=7.5, ha="center", va="center", zorder=4, bbox={
            "boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85,
        })  # fmt: skip
        extent = text.get_window_extent()
        half = np.array([extent.width, extent.height]) / 2 + 1
        places = [way[int(place * (len(way) - 1))] for place in _PLACES]
        spots = [np.concatenate([place - half, place + half]) for place in places]
        free = min(range(len(spots)), key=lambda i: _overlap(spots[i], np.array(self.taken)))
        self.taken.append(spots[free])
        text.set_position(self.ax.transData.inverted().transform(places[free]))

    def _met(self, way: np.ndarray, boxes: Collection[np.ndarray]) -> int:
        """Count the boxes that a way meets, and the edge of the picture."""
        return int(_inside(way, boxes).any(axis=1).sum()) + (not _inside(way, [self.page]).all())

    def _reach(self, way: np.ndarray, box: Any) -> float:
        """Give the points from the middle of a box to where a way leaves it, and a little more."""
        outside = ~_inside(way, [self.boxes[box]])[0]
        left = way[int(np.argmax(outside))]
        return 72 / self.ax.figure.dpi * float(np.hypot(*(left - way[0]))) + 2


def _curve(start: np.ndarray, end: np.ndarray, bend: float) -> np.ndarray:
    """List points along Matplotlib's arc3."""
    (across, up), t = end - start, np.linspace(0, 1, 200)[:, None]
    middle = (start + end) / 2 + bend * np.array([up, -across])
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end


def _wider(box: np.ndarray, pixels: float) -> np.ndarray:
    return box + pixels * np.array([-1, -1, 1, 1])


def _inside(way: np.ndarray, boxes: Collection[np.ndarray]) -> np.ndarray:
    """Say for each box, a row, which points of a way are in it."""
    left, low, right, high = np.reshape(list(boxes), (-1, 4)).T[:, :, None]
    x, y = way.T
    return (left < x) & (x < right) & (low < y) & (y < high)


def _overlap(spot: np.ndarray, taken: np.ndarray) -> float:
    """Add up the pixels on which a spot lies over others."""
    sides = np.minimum(spot[2:], taken[:, 2:]) - np.maximum(spot[:2], taken[:, :2])
    return float(np.clip(sides, 0, None).prod(axis=1).sum())
