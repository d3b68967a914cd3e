"""Drawings of an idea, before there is any data: boxes and arrows in the devices' colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import HOST, colour, style


def canvas(width: float, height: float) -> Any:
    """Make empty axes of so many inches, in which one unit is one inch and y grows downwards."""
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        figure, ax = plt.subplots(figsize=(width, height))
    figure.get_layout_engine().set(w_pad=0, h_pad=0)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    return ax


def box(
    ax: Any, at: tuple[float, float], size: tuple[float, float], text: str = "", fill: str = HOST
) -> None:
    """Draw a box with its upper left corner at a place, and a text in its middle."""
    from matplotlib.patches import Rectangle

    (x, y), (width, height) = at, size
    ax.add_patch(Rectangle(at, width, height, facecolor=fill, edgecolor="white", linewidth=1.5))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", size=9, color="white")


def arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    """Draw an arrow from one place to another, with a text above its middle."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#555555"})
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    ax.text(x, y - 0.06, text, ha="center", va="bottom", size=8.5, color="#333333")


def label(ax: Any, at: tuple[float, float], text: str, **kind: Any) -> None:
    """Write a text whose middle is at a place."""
    ax.text(*at, text, **({"ha": "center", "va": "center", "size": 9.5, "color": "#333333"} | kind))


def shared_product(devices: Sequence[str]) -> Any:
    """Sketch a product of two matrices, the rows of the left one shared out over the devices."""
    n = len(devices)
    ax, side = canvas(8, 2.1), 1.5
    rows = [(0.35 + i * side / n, side / n) for i in range(n)]
    label(ax, (1.0, 0.17), "left, in shards of rows")
    label(ax, (3.4, 0.17), "right, whole")
    label(ax, (6.4, 0.17), "the product, joined again")
    for device, (top, high) in zip(devices, rows, strict=True):
        box(ax, (0.25, top), (side, high), device if n < 7 else "", colour(device))
        box(ax, (5.65, top), (side, high), f"by {device}" if n < 7 else "", colour(device))
    box(ax, (2.65, 0.35), (side, side))
    label(ax, (2.2, 1.1), "×", size=20)
    label(ax, (4.9, 1.1), "=", size=20)
    return ax
