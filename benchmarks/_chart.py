"""The chart of all result cards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mgpu_helpers.charts.base import IDEAL, axes

MACHINES = ("#222222", "#b8860b", "#717780", "#6b4423", "#5b7a3d")  # none is a device's colour
MARKERS = "os^Dv<>"  # their number and that of the colours share no divisor: 35 pairs


def cards(cards: Iterable[Any], ax: Any = None, *, relative: bool = False) -> Any:
    """Draw the ratios of result cards: a row each, a marker for each machine, targets dashed.

    A bar is the middle half of the rounds; a marker is crossed out where the target is not met.
    relative divides by the target, and leaves out what has none.
    """
    from matplotlib.transforms import ScaledTranslation

    cards = list(cards)
    shown = [(c.name, c.where, r) for c in cards for r in c.ratios if r.target or not relative]
    rows: dict[tuple[str, str], str] = {}
    for name, _, ratio in shown:
        label = ratio.name if len({card.name for card in cards}) == 1 else f"{name}: {ratio.name}"
        rows[name, ratio.name] = "\n".join(filter(None, (label, ratio.cells()[3])))
    machines = list(dict.fromkeys(where for _, where, _ in shown))
    legend = 0.2 * (len(machines) + 2)  # in inches, below the axes
    ax = axes(ax, size=(8, 1.1 + 0.46 * len(rows) + legend))
    place = {row: i for i, row in enumerate(rows)}
    marks = {
        where: {"color": MACHINES[i % len(MACHINES)], "marker": MARKERS[i % len(MARKERS)]}
        for i, where in enumerate(machines)
    }
    for name, where, ratio in shown:
        i, row = machines.index(where), place[name, ratio.name]
        y = row + (i - (len(machines) - 1) / 2) * min(0.22, 0.7 / len(machines))
        shade, unit = marks[where]["color"], (ratio.target if relative else None) or 1
        if ratio.low is not None and ratio.high is not None:
            ax.plot([ratio.low / unit, ratio.high / unit], [y, y], color=shade, alpha=0.5)
        ax.plot(ratio.value / unit, y, **marks[where], zorder=3)
        if ratio.met is False:
            ax.plot(ratio.value / unit, y, "x", color=shade, markersize=12, zorder=3)
        if ratio.target:
            ax.plot([ratio.target / unit] * 2, [row - 0.4, row + 0.4], **IDEAL, zorder=1)
    keys = [ax.plot([], [], ls="", label=where, **mark)[0] for where, mark in marks.items()]
    if any(ratio.target for *_, ratio in shown):
        keys += ax.plot([], [], **IDEAL, label="target")
    if any(ratio.met is False for *_, ratio in shown):
        keys += ax.plot([], [], "x", color=MACHINES[0], markersize=12, label="target not met")
    below = ax.transAxes + ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)  # in inches
    ax.legend(handles=keys, loc="upper right", bbox_to_anchor=(1, 0), bbox_transform=below,
              frameon=False, borderpad=0, borderaxespad=0)  # fmt: skip
    ax.set_yticks(range(len(rows)), list(rows.values()), size=8.5)
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_xlim(left=min(0, ax.get_xlim()[0]))
    ax.set_xlabel("ratio, in parts of its target" if relative else "ratio")
    ax.set_title("What the benchmarks found", loc="left")
    return ax
