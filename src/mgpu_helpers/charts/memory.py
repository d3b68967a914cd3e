"""What a step or a process holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgpu_helpers._formatting import size_text
from mgpu_helpers.charts.base import DARK, IDEAL, SMALL, UP, axes, colour, label, note, rows, sizes

if TYPE_CHECKING:
    from mgpu_helpers.memory import MemoryUse, Monitor
    from mgpu_helpers.trace.step import Trace

PARTS = {  # of memory, on every device
    "weights": "#33373d", "slots": "#717780", "gradients": "#b4b9c0", "activations": "#e8cf9f",
    "scratch": "#f4f4f4",
}  # fmt: skip


def live_bytes(trace: Trace, ax: Any = None, *, by: Literal["time", "tensor"] = "time") -> Any:
    """Draw the bytes that one step holds on each device.

    By time, a dashed line is drawn where the backward pass begins, if the step has one. By tensor,
    each place to the right is a large tensor made or freed, scratch left out; names above the curve
    are of the layers whose outputs are made, and a dot is the peak.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = live_bytes(step)
    """
    from mgpu_helpers.trace.step import traced

    ax = axes(ax)
    if by == "tensor":
        return _by_tensor(traced(trace), ax)
    for device, curve in traced(trace).memory.items():
        times, live = zip(*curve, (trace.length, curve[-1][1]), strict=True)
        ax.step([t * 1e3 for t in times], [b / 1e6 for b in live], where="post",
                color=colour(device), label=f"{device}, peak {size_text(trace.peak(device))}")
    ax.set_xlim(0, trace.length * 1e3 or 1)
    ax.set_ylim(bottom=0)
    if begins := backward_begins(trace):
        mark_backward(ax, begins * 1e3)
    return label(ax, "What one step holds on each device", "time in the step, ms",
                 "live memory, MB", legend=bool(trace.memory))  # fmt: skip


def _by_tensor(trace: Trace, ax: Any) -> Any:
    kept = [a for a in trace.allocations if not a.scratch]
    events = [(a.start, a.bytes, a.op, a.device) for a in kept]
    events += [(a.end, -a.bytes, "", a.device) for a in kept if a.end is not None]
    large = max((a.bytes for a in kept), default=0) / 100
    live = {a.device: 0.0 for a in sorted(kept, key=lambda each: each.device)}
    reached = {device: [0.0] for device in live}
    places, begins, named = 1, None, ""
    for _, size, op, device in sorted(events):
        live[device] += size / 1e6
        if abs(size) < large:
            continue
        for each, curve in reached.items():
            curve.append(live[device] if each == device else curve[-1])
        if begins is None and "gradient" in op:
            begins = places - 0.5
        scopes = op.split("/")  # Keras writes the model's name before the layer's, which it numbers
        name = re.sub(r"_\d+$", "", scopes[1]) if len(scopes) > 2 else scopes[0]
        if begins is None and size > 0 and name != named:  # a pool makes places, too
            named = name
            note(ax, name, (places, live[device]), (0, 4), rotation=90, ha="center", va="bottom",
                 size=8)  # fmt: skip
        places += 1
    for device, curve in reached.items():
        top = int(np.argmax(curve))
        ax.step(range(places), curve, where="mid", color=colour(device),
                label=f"{device}, peak {size_text(round(curve[top] * 1e6))}")  # fmt: skip
        ax.plot([top], [curve[top]], "o", color=colour(device))
        note(ax, "the peak", (top, curve[top]), (-6, 4), ha="right")
    if begins is not None:
        mark_backward(ax, begins)
    ax.set_xlim(0, max(places - 1, 1))
    ax.set_ylim(0, 1.2 * max(map(max, reached.values()), default=0) or 1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return label(ax, "What one step holds on each device", "large tensors made or freed",
                 "live memory, MB", legend=bool(reached))  # fmt: skip


def mark_backward(ax: Any, at: float) -> None:
    """Draw a line where the backward pass begins."""
    ax.axvline(at, **IDEAL)
    note(ax, "backward pass", (at, 0.03), (5, 0), xycoords=UP, **SMALL)


def backward_begins(trace: Trace) -> float | None:
    """Give the seconds at which a step begins to compute gradients; None where it does not.

    Constants and shapes of the backward pass may be made earlier, so they do not count.
    """
    back, product = r"(^|/)gradient(_tape|s(_\d+)?)/", r"MatMul|Backprop|Grad(?!ientArgs)"
    starts = (o.start for o in trace.ops if re.search(back, o.name) and re.search(product, o.type))
    return min(starts, default=None)


def held(parts: Mapping[str, MemoryUse], ax: Any = None) -> Any:
    """Draw what a step holds, a bar for each name, by what the bytes are for; the total beside.

    >>> from mgpu_helpers.memory import MemoryUse
    >>> ax = held({"batch 64": MemoryUse(8_000_000, 16_000_000, 8_000_000, 40_000_000)})
    """
    ax = axes(ax, size=(8, 1.3 + 0.45 * len(parts)))
    reached = np.zeros(len(parts))
    for part, shade in PARTS.items():
        lengths = np.array([getattr(each, part) / 1e6 for each in parts.values()])
        if lengths.any():
            ax.barh(range(len(parts)), lengths, 0.68, reached, color=shade, label=part,
                    edgecolor="#8f949c", linewidth=0.5)  # fmt: skip
            reached += lengths
    rows(ax, list(parts))
    for row, each in enumerate(parts.values()):
        note(ax, size_text(each.total), (reached[row], row), (4, 0), va="center", size=9)
    ax.set_xlim(0, 1.18 * max(reached, default=0) or 1)
    return label(ax, "What a training step holds", "memory, MB", legend=len(parts) > 0)


def monitor(monitor: Monitor, ax: Any = None) -> Any:
    """Draw what a monitor saw over the seconds, with its phases as bands under their names.

    >>> from mgpu_helpers.memory import Monitor
    >>> with Monitor() as seen, seen.phase("a product"):
    ...     product = tf.ones([500, 500]) @ tf.ones([500, 500])
    >>> ax = monitor(seen)
    """
    ax, samples = axes(ax, size=(8, 3.6)), monitor.samples
    end = samples[-1].at if samples else 1
    on_gpus = bool(samples and samples[0].allocator)

    def draw(seen: list[int | None], shade: str, name: str, line: str = "-") -> None:
        megabytes = np.array(seen, float) / 1e6  # a None leaves a gap
        if on_gpus and (known := [held for held in seen if held is not None]):
            name += f", at most {size_text(max(known))}"
        ax.plot([sample.at for sample in samples], megabytes, line, color=shade, label=name)

    draw([sample.process for sample in samples], DARK, "this process")
    for gpu in samples[0].driver if samples else ():
        seen = [sample.driver.get(gpu) for sample in samples]
        draw(seen, colour(f"/GPU:{gpu}"), f"GPU {gpu}, all processes", ":")
    for device in samples[0].allocator if samples else ():
        seen = [sample.allocator.get(device) for sample in samples]
        draw(seen, colour(device), f"{device}, handed out")
    ax.set_xlim(0, end)
    ax.margins(y=0.1)
    ax.set_ylim(bottom=0)
    if on_gpus and (top := max(max(sample.allocator.values()) for sample in samples)):
        ax.set_ylim(top=1.2 * top / 1e6)  # beside all that processes hold, it would lie flat
    label(ax, "What is held over time", "time, s", "memory, MB", legend=True)
    phases = sorted(monitor.phases, key=lambda phase: phase.start)
    wide = sizes(ax, (phase.name for phase in phases), 8.5)
    reached: list[float] = []  # how far the names of each line above the picture go
    for i, phase in enumerate(phases):
        ax.axvspan(phase.start, phase.end, color="#eceef1" if i % 2 else "#dfe3e8", linewidth=0)
        room = wide[phase.name][0]
        left = max(0.0, min(end - room, (phase.start + phase.end - room) / 2))
        row = next((r for r, x in enumerate(reached) if x <= left), len(reached))
        reached[row : row + 1] = [left + room]
        ax.text(left + room / 2, 1.02 + 0.065 * row, phase.name, size=8.5, color="#444444",
                transform=ax.get_xaxis_transform(), ha="center", va="bottom")  # fmt: skip
    ax.set_title(ax.get_title("left"), loc="left", pad=6 + 15 * len(reached))
    return ax
