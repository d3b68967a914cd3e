"""What more devices give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mgpu_helpers._formatting import counted
from mgpu_helpers.charts.base import axes, label

if TYPE_CHECKING:
    from mgpu_helpers.scaling.model import Measurement

WAYS = ("#1b4965", "#a8483a", "#6a8d3a", "#75658c", "#b08900", "#5fa8a0")  # none is a device


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
