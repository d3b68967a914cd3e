"""What a step or a process holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers.charts.base import IDEAL, axes, colour
from mgpu_helpers.names import order
from mgpu_helpers.wording import size_text

if TYPE_CHECKING:
    from mgpu_helpers.memory.count import Held
    from mgpu_helpers.memory.watch import Monitor
    from mgpu_helpers.trace.step import Trace

PARTS = {  # of memory, on every device
    "weights": "#33373d", "slots": "#717780", "gradients": "#b4b9c0", "activations": "#e8cf9f",
    "scratch": "#f4f4f4",
}  # fmt: skip


def live_bytes(trace: Trace, ax: Any = None) -> Any:
    """Draw the bytes that one step holds on each device, over time.

    A dashed line is drawn where the backward pass begins, if the step has one.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = live_bytes(step)
    """
    from mgpu_helpers.trace.step import traced

    traced(trace)
    ax = axes(ax)
    for device, curve in trace.memory.items():
        times, live = zip(*curve, (trace.length, curve[-1][1]), strict=True)
        ax.step(
            [t * 1e3 for t in times],
            [b / 1e6 for b in live],
            where="post",
            color=colour(device),
            label=f"{device}, peak {size_text(trace.peak(device))}",
        )
    ax.set_xlim(0, trace.length * 1e3 or 1)
    ax.set_ylim(bottom=0)
    if begins := _backward(trace):
        ax.axvline(begins * 1e3, **IDEAL)
        ax.annotate("backward pass", (begins * 1e3, 0.03), (5, 0), size=9, color="#444444",
                    xycoords=("data", "axes fraction"), textcoords="offset points")  # fmt: skip
    ax.set_xlabel("time in the step, ms")
    ax.set_ylabel("live memory, MB")
    ax.set_title("What one step holds on each device", loc="left")
    if trace.memory:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def _backward(trace: Trace) -> float | None:
    """Give the seconds at which a step begins to compute gradients; None where it does not.

    Constants and shapes of the backward pass may be made earlier, so they do not count.
    """
    starts = (
        op.start
        for op in trace.ops
        if re.search(r"(^|/)gradient(_tape|s(_\d+)?)/", op.name)
        and re.search(r"MatMul|Backprop|Grad(?!ientArgs)", op.type)
    )
    return min(starts, default=None)


def held(parts: Mapping[str, Held], ax: Any = None) -> Any:
    """Draw what a step holds, a bar for each name, by what the bytes are for; the total beside.

    >>> from mgpu_helpers.memory import Held
    >>> ax = held({"batch 64": Held(8_000_000, 16_000_000, 8_000_000, activations=40_000_000)})
    """
    if not isinstance(parts, Mapping):
        raise TypeError(
            f"a {type(parts).__name__} is no mapping of names to what is held: give one, as in "
            'held({"batch 64": memory.predict(model, 64)}).'
        )
    ax = axes(ax, size=(8, 1.3 + 0.45 * len(parts)))
    reached = np.zeros(len(parts))
    for part, shade in PARTS.items():
        sizes = np.array([getattr(each, part) / 1e6 for each in parts.values()])
        if sizes.any() or part != "scratch":
            ax.barh(range(len(parts)), sizes, left=reached, color=shade, label=part, height=0.7,
                    edgecolor="#8f949c", linewidth=0.5)  # fmt: skip
            reached += sizes
    for row, each in enumerate(parts.values()):
        ax.annotate(size_text(each.total), (reached[row], row), (4, 0), va="center", size=9,
                    textcoords="offset points")  # fmt: skip
    ax.set_yticks(range(len(parts)), list(parts))
    ax.invert_yaxis()
    ax.set_xlim(0, 1.18 * max(reached, default=0) or 1)
    ax.set_xlabel("memory, MB")
    ax.set_title("What a training step holds", loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def device_bars(peaks: Mapping[str, int], ax: Any = None) -> Any:
    """Draw the most bytes that each device held, a bar for each.

    >>> ax = device_bars({"/GPU:0": 16_800_000, "/GPU:1": 16_800_000})
    """
    ax = axes(ax)
    devices = sorted(peaks, key=order)
    sizes = [peaks[device] / 1e6 for device in devices]
    bars = ax.bar(devices, sizes, color=[colour(device) for device in devices], width=0.6)
    ax.bar_label(bars, [size_text(peaks[device]) for device in devices], padding=3, size=9)
    ax.set_ylim(0, 1.12 * max(sizes, default=0) or 1)
    ax.set_ylabel("peak memory, MB")
    ax.set_title("What each device holds at its peak", loc="left")
    return ax


def monitor(monitor: Monitor, ax: Any = None) -> Any:
    """Draw what a monitor saw over the seconds, with its phases as bands under their names.

    >>> from mgpu_helpers.memory import Monitor
    >>> with Monitor() as seen, seen.phase("a product"):
    ...     product = tf.ones([500, 500]) @ tf.ones([500, 500])
    >>> ax = monitor(seen)
    """
    ax = axes(ax, size=(8, 3.6))
    samples = monitor.samples
    end = samples[-1].at if samples else 0
    curves: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "this process": ([s.process for s in samples], {"color": "#222222"})
    }
    for index in samples[0].driver if samples else ():
        style = {"color": colour(f"/GPU:{index}"), "linestyle": ":"}
        curves[f"GPU {index}, all processes"] = [s.driver.get(index) for s in samples], style
    for device in samples[0].allocator if samples else ():
        style = {"color": colour(device)}
        curves[f"{device}, handed out"] = [s.allocator.get(device) for s in samples], style
    for label, (sizes, style) in curves.items():
        drawn = [math.nan if size is None else size / 1e6 for size in sizes]
        ax.plot([s.at for s in samples], drawn, label=label, **style)
    reached: list[float] = []  # how far the names of each line above the picture go, 0 to 1
    for i, phase in enumerate(sorted(monitor.phases, key=lambda phase: phase.start)):
        ax.axvspan(phase.start, phase.end, color="#eceef1" if i % 2 else "#dfe3e8", linewidth=0)
        room = 0.0125 * len(phase.name)
        middle = (phase.start + phase.end) / 2 / end
        left = max(0.0, min(1 - room, middle - room / 2))
        row = next((r for r, x in enumerate(reached) if x <= left), len(reached))
        reached[row : row + 1] = [left + room + 0.01]
        ax.text(left + room / 2, 1.02 + 0.065 * row, phase.name, transform=ax.transAxes, size=8.5,
                color="#444444", ha="center", va="bottom")  # fmt: skip
    ax.set_xlim(0, end or 1)
    ax.margins(y=0.1)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("time, s")
    ax.set_ylabel("memory, MB")
    ax.set_title("What is held over time", loc="left", pad=6 + 15 * len(reached))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax
