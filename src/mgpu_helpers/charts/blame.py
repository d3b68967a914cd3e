"""Where the time of a step went on each device: work, and waiting by what it waited for."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mgpu_helpers.charts.base import axes, colour, pale

if TYPE_CHECKING:
    from mgpu_helpers.trace.step import Trace

_GREY = {"copies": "#c8c8c8", "a free core": "#dadada", "overhead": "#ececec"}


def blame(
    step: Trace, ax: Any = None, layers: Collection[str] | None = None, shown: int = 4
) -> Any:
    """Draw a bar for each device: its work, then what it waited for, the longest first.

    A wait has the pale colour of the device that was waited for; copies, a free core and overhead
    are grey. Beside `shown` waits by name the rest are "others (n)". For layers see `Trace.top`. A
    step that `whatif.explain` cannot explain is drawn as work alone, and the title says so.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> two = Op("conv/Add", "Add", "/CPU:1", 0.0, 0.01), Op("b", "Add", "/CPU:2", 0.01, 0.01)
    >>> ax = blame(Trace(two, (), {}, (("conv/Add", "b"),)))
    """
    from mgpu_helpers.whatif import explain

    said = explain(step, layers)
    ax = axes(ax, size=(9, 1.2 + 0.55 * len(said.accounts)))
    ax.set_xlim(0, step.length * 1e3 or 1)
    bars: list[tuple[float, float, int, str, str]] = []  # left, width, row, what, colour of letters
    for row, account in enumerate(said.accounts):
        waits = account.waits or ()
        named = [wait for wait in waits if wait.device]
        parts = [("works", account.worked, colour(account.device), "white")]
        parts += [(wait.what, wait.seconds, pale(colour(wait.device)), "white")
                  for wait in named[:shown]]  # fmt: skip
        if rest := named[shown:]:
            parts.append((f"others ({len(rest)})", sum(w.seconds for w in rest), "#b0b0b0", "#222"))
        parts += [(w.what, w.seconds, _GREY[w.what], "#222") for w in waits if not w.device]
        left = 0.0
        for what, seconds, shade, letters in parts:
            width = seconds * 1e3
            ax.barh(row, width, 0.66, left, color=shade, edgecolor="white", linewidth=0.8)
            bars.append((left, width, row, what, letters))
            left += width
    ax.set_yticks(range(len(said.accounts)),
                  [f"{a.device}\n{a.worked / a.length:.0%} at work" for a in said.accounts])
    ax.set_ylim(max(1, len(said.accounts)) - 0.5, -0.5)
    ax.set_xlabel("time of the step, ms")
    ax.set_title("What each device waited for", loc="left")
    if not said.accounts or any(account.waits is None for account in said.accounts):
        ax.set_title("waits not known", loc="right", size=7.5, color="#666")
    ax.figure.canvas.figure.draw_without_rendering()  # it gives the axes their final width
    wide = 72 / ax.figure.dpi * ax.get_window_extent().width / ax.get_xlim()[1]
    for left, width, row, what, letters in bars:
        if 4.4 * len(what) + 4 < wide * width:
            ax.text(left + width / 2, row, what, size=7, ha="center", va="center", color=letters)
    return ax
