"""The boxes of a placement map: the column of each, and the inches of them all."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from mgpu_helpers.names import order
from mgpu_helpers.wording import counted

WIDE, HIGH = 12.0, 10.0  # inches of a page
Box = tuple[str, str]  # device and name


@dataclass(frozen=True)
class Boxes:
    """The boxes of a map: the name of each operation's box, and how far each box is from the start.

    folded is True where "others" stand for what is small.
    """

    ops: list[tuple[str, str]]  # name and device
    group: dict[str, str]  # an operation's name -> its box
    depth: dict[Box, int]
    folded: bool = False

    @cached_property
    def members(self) -> Counter[Box]:
        """Count the operations of each box."""
        return Counter((device, self.group[name]) for name, device in self.ops)

    @cached_property
    def lanes(self) -> list[str]:
        """Name the devices, in order."""
        return sorted({device for device, _ in self.members}, key=order)

    @cached_property
    def columns(self) -> list[list[Box]]:
        """Put boxes of the same depth into a column; a folded map has as many as a page is wide."""
        found = defaultdict(list)
        for box in sorted(self.members, key=lambda box: box[1]):
            found[self.depth[box]].append(box)
        columns = [found[depth] for depth in sorted(found)]
        while self.folded and len(columns) > 1 and self._width(columns) > WIDE - 0.9:
            tall = [self._tallest(a + b) for a, b in zip(columns, columns[1:], strict=False)]
            at = tall.index(min(tall))
            columns[at : at + 2] = [columns[at] + columns[at + 1]]
        return columns

    def label(self, box: Box) -> str:
        """Write what stands in a box: its name, or the end of it, and how many operations it is."""
        text, count = box[1], self.members[box]
        most = 22 if self.folded else 20
        text = text if len(text) <= most else "…" + text[1 - most :]
        return f"{text} ({count})" if count > 1 else text

    def title(self, box: Box) -> str:
        """Write what a box is: its whole name, its device and how many operations."""
        return f"{box[1]} on {box[0]}: {counted(self.members[box], 'operation')}"

    def room(self, column: list[Box]) -> float:
        """Give the inches of a column: the room of its widest box."""
        return 0.085 * max(len(self.label(box)) for box in column) + 0.55

    @property
    def wide(self) -> float:
        """Give the inches of all columns."""
        return self._width(self.columns)

    @property
    def size(self) -> tuple[float, float]:
        """Give the inches of the figure."""
        rows = sum(0.4 * tall + 0.3 for tall in self.tall.values())
        return max(8, 0.9 + self.wide), 0.9 + rows

    @cached_property
    def tall(self) -> dict[str, int]:
        """Count the rows of each device: its boxes in the fullest column."""
        counts = [Counter(device for device, _ in column) for column in self.columns]
        return {device: max(count[device] for count in counts) for device in self.lanes}

    def _width(self, columns: list[list[Box]]) -> float:
        return sum(map(self.room, columns))

    @staticmethod
    def _tallest(column: list[Box]) -> int:
        return max(Counter(device for device, _ in column).values())
