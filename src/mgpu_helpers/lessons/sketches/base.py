"""What sketches are drawn with: a page in inches, boxes, arrows, labels."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import HOST, style


def canvas(width: float, height: float) -> Any:
    """Make empty axes of so many inches, in which one unit is one inch and y grows downwards."""
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        figure, ax = plt.subplots(figsize=(width, height))
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0, h_pad=0)
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
