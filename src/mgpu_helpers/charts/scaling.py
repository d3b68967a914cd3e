"""What a step costs, and what more devices give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.charts.base import IDEAL, axes, label, rows, stack

if TYPE_CHECKING:
    from mgpu_helpers.scaling.fitting import Fit
    from mgpu_helpers.scaling.model import Breakdown, Measurement

COSTS = {  # of a step, on any number of devices
    "arithmetic": "#2f4b5c", "fixed": "#9fb3bd", "update": "#d9b26f", "moving": "#a8483a",
    "input": "#75658c", "latency": "#e3d7cc",
}  # fmt: skip
WAYS = ("#1b4965", "#a8483a", "#6a8d3a", "#75658c", "#b08900", "#5fa8a0")  # none is a device
_SHADE = "#dfe3e8"


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
        group = groups[devices, path, variables]
        shade, hollow = shades[counts.index(devices)], variables == "host"
        name = "model split over 2 devices" if path == "split" else counted(devices, "device")
        batches = [m.layout.per_device_batch for m in group]
        ax.plot(batches, [m.seconds * 1e3 for m in group], "^" if path == "split" else "o",
                color=shade, markerfacecolor="white" if hollow else shade, zorder=3,
                label=name + kept.get(variables, ""))  # fmt: skip
        if fit:
            ends = [1, max(*batches, 2)]
            layouts = [replace(group[0].layout, per_device_batch=batch) for batch in ends]
            ax.plot(ends, [fit.predict(layout).total * 1e3 for layout in layouts], color=shade,
                    linewidth=1.2, linestyle=":" if hollow else "-")  # fmt: skip
    ax.set(xlim=(0, None), ylim=(0, None))
    title = "What a step takes" + (", measured and fitted" if fit else "")
    return label(ax, title, "per-device batch", "time of a step, ms", legend=bool(groups))


def breakdown(
    parts: Mapping[str, Breakdown],
    measured: Mapping[str, float] | None = None,
    ax: Any = None,
    *,
    source: str | None = None,
) -> Any:
    """Draw the parts of a step, a bar for each name; a tick where its measured seconds are.

    >>> from mgpu_helpers.scaling.model import Breakdown
    >>> ax = breakdown({"1 device": Breakdown(arithmetic=0.02, fixed=0.004)}, {"1 device": 0.025})
    """
    ax = axes(ax, size=(8, 1.3 + 0.36 * len(parts)), source=source)
    reached = stack(ax, parts, COSTS, 1e-3)
    ticks = [1e3 * (measured or {}).get(name, math.nan) for name in parts]
    if measured:
        ax.plot(ticks, range(len(parts)), "|", color="black", markersize=17, markeredgewidth=2,
                label="measured")  # fmt: skip
    ends = np.fmax(reached, ticks)
    for row, end in enumerate(ends):
        ax.annotate(f"{reached[row]:.3g} ms", (end, row), (5, 0), va="center", size=9,
                    textcoords="offset points")  # fmt: skip
    ax.set_xlim(0, 1.18 * max(ends, default=0) or 1)
    return label(ax, "What a step spends its time on", "time of a step, ms", legend=len(parts) > 0)


def rates(measurements: Sequence[Measurement], ax: Any = None) -> Any:
    """Draw the examples a second against the global batch, a line for each number of devices.

    Straight up is strong scaling; the dots of one place in their lines are weak scaling.

    >>> from mgpu_helpers.scaling import Layout, Measurement
    >>> ax = rates([Measurement(Layout(1, 64), 0.011), Measurement(Layout(2, 32), 0.008)])
    """
    ax = axes(ax)
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in measurements:
        size = row.layout.global_batch_size
        found[row.layout.devices].append((size, size / row.seconds))
    for i, (n, points) in enumerate(sorted(found.items())):
        across, up = zip(*sorted(points), strict=True)
        ax.plot(across, up, marker="os^"[i % 3], color=WAYS[i % len(WAYS)],
                label=counted(n, "device"))  # fmt: skip
    sizes = sorted({int(size) for points in found.values() for size, _ in points})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, sizes)
    ax.set_ylim(bottom=0)
    return label(ax, "What more devices give", "global batch", "examples a second",
                 legend=bool(found))  # fmt: skip


def held_out(
    pairs: Sequence[tuple[Measurement, float]], ax: Any = None, *, source: str | None = None
) -> Any:
    """Draw how far predicted seconds are from measured ones; hollow where it is over 10 %.

    >>> from mgpu_helpers.scaling import Layout, Measurement
    >>> ax = held_out([(Measurement(Layout(2, 128), 0.040), 0.042)])
    """
    names = list(dict.fromkeys(repr(measurement.layout) for measurement, _ in pairs))
    ax = axes(ax, size=(8, 1.2 + 0.3 * len(names)), source=source)
    ax.axvline(0, **IDEAL, label="predicted as measured")
    ax.axvspan(-10, 10, color=_SHADE, linewidth=0, label="within 10 %")
    for measurement, seconds in pairs:
        error = 100 * (seconds / measurement.seconds - 1)
        ax.plot(error, names.index(repr(measurement.layout)), "o", color="#1b4965",
                markerfacecolor="#1b4965" if abs(error) <= 10 else "white")  # fmt: skip
    rows(ax, names)
    ax.margins(x=0.1)
    return label(ax, "Asked about rows that were held out", "predicted, against measured, %",
                 legend=True)  # fmt: skip
