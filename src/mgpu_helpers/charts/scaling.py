"""What a step costs, and what more devices give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers.charts.base import IDEAL, axes
from mgpu_helpers.wording import counted

if TYPE_CHECKING:
    from mgpu_helpers.scaling.fitting import Fit
    from mgpu_helpers.scaling.model import Breakdown, Measurement

COSTS = {  # of a step, on any number of devices
    "arithmetic": "#2f4b5c", "fixed": "#9fb3bd", "update": "#d9b26f", "moving": "#a8483a",
    "input": "#75658c", "latency": "#e3d7cc",
}  # fmt: skip
WAYS = ("#1b4965", "#a8483a", "#6a8d3a", "#75658c", "#b08900", "#5fa8a0")  # none is a device


def step_times(measurements: Sequence[Measurement], fit: Fit | None = None, ax: Any = None) -> Any:
    """Draw the time of a step against the per-device batch: what was measured, and a fit's lines.

    A colour for each number of devices; with the variables on the host the markers are hollow and
    the lines dotted.

    >>> from mgpu_helpers.scaling import Layout, Measurement
    >>> ax = step_times([Measurement(Layout(1, 64), 0.011), Measurement(Layout(1, 128), 0.019)])
    """
    import matplotlib

    ax, kept = axes(ax), {"host": ", variables on the host", "ring": ", averaged in a ring"}
    groups: dict[Any, list[Measurement]] = defaultdict(list)
    for m in sorted(measurements, key=lambda m: m.layout.per_device_batch):
        groups[m.layout.devices, m.layout.path, m.layout.variables].append(m)
    counts = sorted({devices for devices, _, _ in groups})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(counts)))
    for devices, path, variables in sorted(groups):
        rows = groups[devices, path, variables]
        shade, hollow = shades[counts.index(devices)], variables == "host"
        label = "model split over 2 devices" if path == "split" else counted(devices, "device")
        batches = [m.layout.per_device_batch for m in rows]
        ax.plot(
            batches, [m.seconds * 1e3 for m in rows], "^" if path == "split" else "o", color=shade,
            markerfacecolor="white" if hollow else shade, zorder=3,
            label=label + kept.get(variables, ""),
        )  # fmt: skip
        if fit:
            ends = [replace(rows[0].layout, per_device_batch=b) for b in (1, max(*batches, 2))]
            ax.plot(
                [layout.per_device_batch for layout in ends],
                [fit.predict(layout).total * 1e3 for layout in ends],
                color=shade, linewidth=1.2, linestyle=":" if hollow else "-",
            )  # fmt: skip
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("per-device batch")
    ax.set_ylabel("time of a step, ms")
    ax.set_title("What a step takes" + (", measured and fitted" if fit else ""), loc="left")
    if groups:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def breakdown(
    rows: Mapping[str, Breakdown],
    measured: Mapping[str, float] | None = None,
    ax: Any = None,
    *,
    source: str | None = None,
) -> Any:
    """Draw the parts of a step, a bar for each name; a tick where its measured seconds are.

    >>> from mgpu_helpers.scaling.model import Breakdown
    >>> ax = breakdown({"1 device": Breakdown(arithmetic=0.02, fixed=0.004)}, {"1 device": 0.025})
    """
    ax = axes(ax, size=(8, 1.3 + 0.36 * len(rows)), source=source)
    measured = measured or {}
    reached = np.zeros(len(rows))
    for part, shade in COSTS.items():
        lengths = np.array([getattr(each, part) * 1e3 for each in rows.values()])
        if lengths.any():
            ax.barh(range(len(rows)), lengths, left=reached, color=shade, label=part, height=0.66)
            reached += lengths
    ticks = [(measured[name] * 1e3, row) for row, name in enumerate(rows) if name in measured]
    if ticks:
        ax.plot(*zip(*ticks, strict=True), "|", color="black", markersize=17, markeredgewidth=2,
                label="measured")  # fmt: skip
    for row, name in enumerate(rows):
        end = max(reached[row], measured.get(name, 0) * 1e3)
        ax.annotate(f"{reached[row]:.3g} ms", (end, row), (5, 0), va="center", size=9,
                    textcoords="offset points")  # fmt: skip
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set_xlim(0, 1.18 * max([*reached, *(at for at, _ in ticks)], default=0) or 1)
    ax.set_xlabel("time of a step, ms")
    ax.set_title("What a step spends its time on", loc="left")
    if rows:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def efficiency(
    curves: Mapping[str, Sequence[Sequence[float]]],
    measured: tuple[int, int] | None = None,
    ax: Any = None,
    *,
    source: str | None = None,
) -> Any:
    """Draw the efficiency against the number of devices: a curve and its band for each name.

    A curve is four lists: numbers of devices, efficiencies of 0 to 1, and the lower and the upper
    end of the band. `measured` is the range of devices that somebody measured: what is outside is
    extrapolation.

    >>> curve = (1, 2, 4), (1, 0.9, 0.7), (1, 0.8, 0.6), (1, 0.95, 0.8)
    >>> ax = efficiency({"ring": curve}, measured=(1, 2))
    """
    ax = axes(ax, size=(8, 3.6), source=source)
    ax.axhline(100, **IDEAL, label="ideal")
    if measured:
        low, high = measured
        ax.axvspan(low, max(high, low * 1.06), color="#dfe3e8", linewidth=0,
                   label=f"measured: {low} to {counted(high, 'device')}")  # fmt: skip
    for i, (name, (at, *band)) in enumerate(curves.items()):
        middle, lowest, highest = (100 * np.array(each) for each in band)
        shade = WAYS[i % len(WAYS)]
        ax.fill_between(at, lowest, highest, color=shade, alpha=0.18, linewidth=0)
        ax.plot(at, middle, color=shade, label=name)
    counts = sorted({int(n) for at, *_ in curves.values() for n in at}) or [1024]
    ticks = [2**i for i in range(max(1, math.ceil(math.log2(counts[-1]))) + 1)]
    if 1 < len(counts) <= 4:
        ticks = counts
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.set_xlim(1, ticks[-1])
    ax.set_ylim(0, 105)
    ax.set_xlabel("devices")
    ax.set_ylabel("efficiency, %")
    ax.set_title("Efficiency with more devices", loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def held_out(
    pairs: Sequence[tuple[Measurement, float]], ax: Any = None, *, source: str | None = None
) -> Any:
    """Draw predicted against measured seconds; hollow where they differ by more than 10 %.

    >>> from mgpu_helpers.scaling import Layout, Measurement
    >>> ax = held_out([(Measurement(Layout(2, 128), 0.040), 0.042)])
    """
    from matplotlib.ticker import LogLocator

    names = sorted({(seconds, repr(m.layout)) for m, seconds in pairs}, reverse=True)
    ax = axes(ax, size=(8, max(4.2, 1.2 + 0.24 * len(names))), source=source)
    times = [1e3 * t for m, seconds in pairs for t in (m.seconds, seconds)] or [1.0, 10.0]
    ends = np.array([min(times) / 1.3, max(times) * 1.3])
    ax.plot(ends, ends, **IDEAL, label="predicted as measured")
    ax.fill_between(ends, 0.9 * ends, 1.1 * ends, color="#dfe3e8", linewidth=0, label="within 10 %")
    for m, seconds in pairs:
        shade = "#1b4965" if abs(seconds / m.seconds - 1) <= 0.1 else "white"
        ax.plot(1e3 * m.seconds, 1e3 * seconds, "o", color="#1b4965", markerfacecolor=shade)
    for row, (seconds, name) in enumerate(names):
        beside = 0.98 - 0.96 * (row + 0.5) / len(names)
        ax.text(1.05, beside, name, transform=ax.transAxes, size=8.5, va="center")
        for m in (m for m, s in pairs if (s, repr(m.layout)) == (seconds, name)):
            ax.annotate("", (1e3 * m.seconds, 1e3 * seconds), (1.04, beside), zorder=1,
                        textcoords="axes fraction", annotation_clip=False, arrowprops={
                            "arrowstyle": "-", "color": "#b0b0b0", "linewidth": 0.7,
                        })  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    ax.set_xlabel("measured time of a step, ms")
    ax.set_ylabel("predicted, ms")
    ax.set_title("Asked about rows that were held out", loc="left")
    ax.legend(loc="upper left", frameon=False)
    return ax
