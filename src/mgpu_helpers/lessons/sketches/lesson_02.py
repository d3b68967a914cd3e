"""The sketches of lesson 02."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import HOST, PALETTE
from mgpu_helpers.lessons.sketches.base import box, canvas, label

_TENSOR, _FREE, _TAKEN = "#b8860b", "#f0e3c0", "#4b5058"


def who_holds_what() -> Any:
    """Sketch the memory of a GPU: what the driver gave to processes, and what tensors use of it."""
    ax, y, high = canvas(8, 2.5), 0.95, 0.6
    label(ax, (0.1, y + high / 2), "a GPU", ha="left", weight="bold")
    parts = [(1.0, 0.55, "context", _TAKEN), (1.55, 1.0, "tensors", _TENSOR)]
    parts += [(4.2, 0.55, "context", _TAKEN), (4.75, 0.55, "tensors", _TENSOR)]
    for x, wide, text, fill in parts:
        box(ax, (x, y), (wide, high), fill=fill)
        label(ax, (x + wide / 2, y + high / 2), text, size=8, color="white")
    for x, wide in ((2.55, 1.45), (5.3, 0.7)):
        box(ax, (x, y), (wide, high), fill=_FREE)
        label(ax, (x + wide / 2, y + high / 2), "kept" if wide < 1 else "kept for later", size=8)
    box(ax, (6.2, y), (1.7, high), fill="#f4f4f4")
    label(ax, (7.05, y + high / 2), "free", size=8.5)
    for x, wide, text, shade in (
        (1.0, 3.0, "process 1", PALETTE[0]), (4.2, 1.8, "process 2", PALETTE[1]),
    ):  # fmt: skip
        _brace(ax, x, wide, y - 0.08, -0.1, shade)
        label(ax, (x + wide / 2, y - 0.33), text, color=shade, weight="bold")
    _brace(ax, 1.0, 5.0, y + high + 0.12, 0.1, HOST)
    label(ax, (3.5, y + high + 0.4), "given away, as the driver and nvidia-smi see it")
    _brace(ax, 1.55, 2.45, y + high + 0.62, 0.1, _TENSOR)
    label(ax, (2.78, y + high + 0.86), "TensorFlow's allocator in process 1", color=_TENSOR)
    return ax


def _brace(ax: Any, x: float, wide: float, y: float, deep: float, shade: str) -> None:
    ax.plot([x, x, x + wide, x + wide], [y, y + deep, y + deep, y], color=shade, linewidth=1.3)
