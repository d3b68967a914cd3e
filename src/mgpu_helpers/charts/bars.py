"""The bars of a timeline: an operation each, or neighbours with the same name together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mgpu_helpers.trace.records import Op
    from mgpu_helpers.trace.step import Trace


class Bar(NamedTuple):
    """A bar: its start and length in ms, its place in the rows, its name and its operations."""

    start: float
    length: float
    low: float
    high: float
    name: str
    count: int = 1  # type: ignore[assignment]  # it hides the method of a tuple, unused here

    @property
    def title(self) -> str:
        """Write what the bar is: its name, the milliseconds, and how many operations."""
        many = f", {self.count} operations" if self.count > 1 else ""
        return f"{self.name}: {self.length:.3g} ms{many}"


def lay(trace: Trace, name: Callable[[Op], str] | None) -> Iterator[tuple[str, list[Bar]]]:
    """Give the bars of each lane of each device; None lets every operation be a bar."""
    from mgpu_helpers.trace.records import lanes
    from mgpu_helpers.trace.step import working

    gap = trace.length * 1e3 / 600 if name else -1.0  # about a pixel
    name = name or (lambda op: op.name)
    for row, device in enumerate(trace.devices):
        beside = lanes(op for op in working(trace) if op.device == device)  # a CPU's may overlap
        high = 0.76 / max(1, len(beside))
        for i, lane in enumerate(beside):
            bars: list[Bar] = []
            for op in lane:
                bar = Bar(op.start * 1e3, op.length * 1e3, row - 0.38 + i * high, high * 0.94,
                          name(op))  # fmt: skip
                last = bars[-1] if bars else None
                if last and last.name == bar.name and bar.start - last.start - last.length <= gap:
                    length = bar.start + bar.length - last.start
                    bars[-1] = last._replace(length=length, count=last.count + 1)
                else:
                    bars.append(bar)
            yield device, bars


def write(ax: Any, bars: list[Bar]) -> None:
    """Write the names into the bars that have room for them."""
    ax.figure.canvas.figure.draw_without_rendering()  # it gives the axes their final width
    extent, points = ax.get_window_extent(), 72 / ax.figure.dpi
    wide = points * extent.width / abs(ax.get_xlim()[1] - ax.get_xlim()[0])
    high = points * extent.height / abs(ax.get_ylim()[1] - ax.get_ylim()[0])
    for bar in bars:
        if 4.4 * len(bar.name) + 3 < wide * bar.length and high * bar.high > 8:
            ax.text(bar.start + bar.length / 2, bar.low + bar.high / 2, bar.name, size=7,
                    ha="center", va="center", color="white", clip_on=True)  # fmt: skip
