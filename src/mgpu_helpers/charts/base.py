"""The style of every chart: one colour for each device, mode and machine in the corner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

from mgpu_helpers._names import order

HOST = "#8a8a8a"
PALETTE = (  # of the devices, in their order; the ninth device has the first again
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e6a100", "#56b4e9", "#7a4fbf", "#8c5a3c",
)  # fmt: skip
IDEAL = {"color": "#444444", "linestyle": "--", "linewidth": 1.2}
DARK = "#222222"  # of letters
SMALL = {"size": 9, "color": "#444444"}  # letters that name a line
ACROSS, UP = ("axes fraction", "data"), ("data", "axes fraction")  # what a place is counted in


def colour(device: str) -> str:
    """Return the colour of a device, the same in every chart; grey for the host.

    >>> colour("/GPU:0") == colour("/CPU:1"), colour("/CPU:0") == HOST
    (True, True)
    """
    kind, index = order(device)
    if device == "/CPU:0":
        return HOST
    return PALETTE[(index - (kind == "/CPU")) % len(PALETTE)]


def pale(colour: str) -> str:
    """Return a lighter shade of a colour, on which white letters can still be read."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.72 * part + 0.28 * 255):02x}" for part in (red, green, blue))


def style() -> str:
    """Return the path of the style file, for `plt.style.use`."""
    return str(resources.files("mgpu_helpers") / "mgpu.mplstyle")


def axes(
    ax: Any = None, *, size: tuple[float, float] | None = None, source: str | None = None
) -> Any:
    """Return ax, or new axes in the style of the series, with mode and machine in the corner.

    Where the numbers are not of this machine, `source` says in the corner where they are from.
    """
    if ax is not None:
        return ax
    with panels(1, 1, source=source, figsize=size) as (_, grid):
        return grid[0, 0]


@contextlib.contextmanager
def panels(
    high: int, wide: int, *, low: float | None = None, source: str | None = None, **drawn: Any
) -> Iterator[tuple[Any, Any]]:
    """Give a figure and a grid of axes, and the style of the series for the block.

    low is the share of the figure's height that is left to the corner.
    """
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        figure, grid = plt.subplots(high, wide, squeeze=False, **drawn)
        low = min(0.06, 0.3 / figure.get_figheight()) if low is None else low
        layout: Any = figure.get_layout_engine()
        layout.set(rect=(0, low, 1, 1 - low))
        corner(figure, source)
        yield figure, grid


def note(
    ax: Any, text: str, at: tuple[Any, Any], by: tuple[float, float] = (0, 0), **how: Any
) -> Any:
    """Write a text, so many points beside a place."""
    return ax.annotate(text, at, by, textcoords="offset points", **how)


def corner(figure: Any, source: str | None = None) -> None:
    """Write into the corner of a figure: the source, or the plan's mode and machine."""
    from mgpu_helpers.devices.plan import current

    plan = current()
    if text := source or (plan.corner if plan else ""):
        figure.text(0.995, 0.01, text, ha="right", va="bottom", size=7.5, color="#666")


def label(
    ax: Any, title: str, across: str, up: str = "", *, right: str = "", legend: bool = False
) -> Any:
    """Write a chart's title, the units of its axes, a remark and a legend; return the axes."""
    ax.set(xlabel=across, ylabel=up)
    ax.set_title(title, loc="left")
    ax.set_title(right, loc="right", size=7.5, color="#666")
    if legend:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def rows(ax: Any, names: Sequence[str]) -> None:
    """Name the rows of a chart, the first at the top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(1, len(names)) - 0.5, -0.5)


def sizes(ax: Any, texts: Iterable[str], size: float) -> dict[str, tuple[float, float]]:
    """Measure texts in the units of the axes: how wide, with a little room, and how high."""
    ax.figure.canvas.figure.draw_without_rendering()  # it gives the axes their final size
    ruler, found = ax.text(0, 0, "", size=size), {}
    for text in set(texts):
        ruler.set_text(text)
        box = ruler.get_window_extent().padded(0.3 * size, 0)
        taken = ax.transData.inverted().transform_bbox(box)
        found[text] = abs(taken.width), abs(taken.height)
    ruler.remove()
    return found


def write(
    ax: Any, boxes: Iterable[tuple[float, float, float, float, str, str]], size: float = 7,
    upright: bool = False,
) -> None:  # fmt: skip
    """Write into boxes, each (left, low, width, height, text, colour), what has room there.

    With upright from below to above, too, where a box is too narrow and high enough.
    """
    boxes = list(boxes)
    room = sizes(ax, (box[4] for box in boxes), size)
    right, down = abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))
    for left, low, wide, high, text, shade in boxes:
        across, up = room[text]
        fits = across < wide and up < high
        if fits or upright and up * down / right < wide and across * right / down < high:
            ax.text(left + wide / 2, low + high / 2, text, size=size, color=shade, ha="center",
                    va="center", rotation=0 if fits else 90, clip_on=True)  # fmt: skip
