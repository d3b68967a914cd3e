"""Every picture of the series: takes data and `ax`, returns `ax`. One colour per device.

Lesson 00 draws the first timeline, lesson 01 the first placement map, lesson 02 what is held,
lesson 03 the first jobs, lesson 05 the first pipeline, lesson 08 what a step costs.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers.devices import current, order
from mgpu_helpers.memory import Held, Monitor
from mgpu_helpers.pipeline import spans as pipeline_spans
from mgpu_helpers.pipeline import task_of
from mgpu_helpers.placement import Placement
from mgpu_helpers.timing import Timing
from mgpu_helpers.trace import Trace
from mgpu_helpers.wording import counted, size_text

if TYPE_CHECKING:
    from mgpu_helpers.jobs import Report
    from mgpu_helpers.results import Card
    from mgpu_helpers.scaling import Curve, Fit, Measurement, Parts

HOST = "#8a8a8a"
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e6a100", "#56b4e9", "#7a4fbf", "#8c5a3c",
)  # fmt: skip
IDEAL = {"color": "#444444", "linestyle": "--", "linewidth": 1.2}
PARTS = {  # of memory, on every device
    "weights": "#33373d", "slots": "#717780", "gradients": "#b4b9c0", "activations": "#e8cf9f",
    "scratch": "#f4f4f4",
}  # fmt: skip
MACHINES = ("#222222", "#b8860b", "#717780", "#6b4423", "#5b7a3d")  # none is a device's colour
MARKERS = "os^Dv<>"  # their number and that of the colours share no divisor: 35 pairs
COSTS = {  # of a step, on any number of devices
    "arithmetic": "#2f4b5c", "fixed": "#9fb3bd", "update": "#d9b26f", "moving": "#a8483a",
    "input": "#75658c", "latency": "#e3d7cc",
}  # fmt: skip
WAYS = ("#1b4965", "#a8483a", "#6a8d3a", "#75658c", "#b08900", "#5fa8a0")  # none is a device
_BOXES, _INCHES = 24, 12  # a larger map cannot be read: operations are drawn by scope instead


def colour(device: str) -> str:
    """Return the colour of a device, the same in every chart; grey for the host."""
    kind, index = order(device)
    if device == "/CPU:0":
        return HOST
    return PALETTE[(index - (kind == "/CPU")) % len(PALETTE)]


def style() -> str:
    """Return the path of the style file, for `plt.style.use`."""
    return str(resources.files("mgpu_helpers") / "mgpu.mplstyle")


def axes(
    ax: Any = None, *, size: tuple[float, float] | None = None, source: str | None = None
) -> Any:
    """Return ax, or new axes in the style of the series, with mode and machine in the corner.

    source stands there instead where the numbers are not of this machine.
    """
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        figure, ax = plt.subplots(figsize=size)
        figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))
        corner(figure, source)
    return ax


def corner(figure: Any, source: str | None = None) -> None:
    """Write into the corner of a figure: the source, or the plan's mode and machine."""
    if text := source or (current().corner if current() else ""):
        figure.text(0.995, 0.01, text, ha="right", va="bottom", size=7.5, color="#666")


def timeline(trace: Trace, ax: Any = None) -> Any:
    """Draw when each device ran an operation; beside its name, the share of the step it worked."""
    ax = axes(ax, size=(8, 1.2 + 0.5 * len(trace.devices)))
    for row, device in enumerate(trace.devices):
        lanes: list[float] = []  # operations of a logical CPU may overlap: each takes a free lane
        placed = []
        for op in trace.ops:
            if op.device != device:
                continue
            lane = next((i for i, end in enumerate(lanes) if end <= op.start), len(lanes))
            lanes[lane : lane + 1] = [op.start + op.length]
            placed.append((lane, op))
        high = 0.76 / max(1, len(lanes))
        for lane, op in placed:
            ax.broken_barh(
                [(op.start * 1e3, op.length * 1e3)],
                (row - 0.38 + lane * high, high * 0.94),
                facecolor=colour(device), edgecolor="white", linewidth=0.4,
            )  # fmt: skip
    ax.set_yticks(
        range(len(trace.devices)),
        [f"{device}\n{1 - trace.idle(device):.0%} busy" for device in trace.devices],
    )
    ax.invert_yaxis()
    ax.set_xlim(0, trace.length * 1e3 or 1)
    ax.set_xlabel("time in the step, ms")
    ax.set_title("When each device worked", loc="left")
    _say_launches(trace, ax)
    return ax


def _say_launches(trace: Trace, ax: Any) -> None:
    if trace.launches_only:
        ax.set_title("GPU: launches, not kernels", loc="right", size=7.5, color="#666")


def from_gpus(lesson: str, folder: str | os.PathLike[str] = "../results") -> None:
    """Show the pictures that `make gpu` kept of a lesson on machines with GPUs, or say none is."""
    from IPython.display import Image, display

    pictures = sorted(Path(folder).glob(f"gpu-*/{lesson}_*.png"))
    for picture in pictures:
        print(picture.parent.name)
        display(Image(picture, alt=f"the same on {picture.parent.name}"))
    if not pictures:
        print("none yet: make gpu, on a machine with GPUs, keeps one")


def pipeline(trace: Trace, ax: Any = None) -> Any:
    """Draw a step of `pipeline.gradients`: forward dark, backward pale, by the piece's number.

    Beside each device is the share of the step in which it was idle.
    """
    spans = pipeline_spans(trace)
    devices = sorted({span.device for span in spans}, key=order)
    stages = {device: sorted({s.stage for s in spans if s.device == device}) for device in devices}
    ax = axes(ax, size=(8, 1.35 + 0.6 * len(devices)))
    wide = 440 / trace.length if trace.length else 0  # points a second, about
    for row, device in enumerate(devices):
        ops = [op for op in trace.ops if op.device == device and task_of(op)]
        for before, op in zip([None, *ops[:-1]], ops, strict=True):
            stage, task = task_of(op)
            shade = {"facecolor": colour(device), "alpha": 1.0 if task[0] == "F" else 0.45}
            ax.broken_barh([(op.start * 1e3, op.length * 1e3)], (row - 0.36, 0.72), linewidth=0,
                           **shade)  # fmt: skip
            if before and task_of(before) != (stage, task):
                ax.vlines(op.start * 1e3, row - 0.36, row + 0.36, color="white", linewidth=1)
        for span in (span for span in spans if span.device == device):
            own = [op for op in ops if task_of(op) == (span.stage, span.task)]
            longest = max(own, key=lambda op: op.length)
            text = f"{span.stage}:{span.task[1:]}" if len(stages[device]) > 1 else span.task[1:]
            if wide * sum(op.length for op in own) > 4.3 * len(text) + 2:
                ax.text((longest.start + longest.length / 2) * 1e3, row, text, ha="center",
                        va="center", size=8,
                        color="white" if span.task[0] == "F" else "#222222")  # fmt: skip
    names = []
    for device in devices:
        stage = ", ".join(map(str, stages[device]))
        head = f"{device}, stage{'s' if len(stages[device]) > 1 else ''} {stage}"
        names.append(f"{head}\n{trace.idle(device):.0%} idle")
    ax.set_yticks(range(len(devices)), names)
    ax.set_ylim(len(devices) - 0.5, -0.5)
    ax.set_xlim(0, trace.length * 1e3 or 1)
    ax.set_xlabel("time in the step, ms")
    ax.set_title("Micro-batches: forward dark, backward pale", loc="left")
    _say_launches(trace, ax)
    return ax


def against_pieces(
    ways: Mapping[str, Mapping[int, Timing | int]],
    predicted: Mapping[int, float] | None = None,
    ax: Any = None,
) -> Any:
    """Draw what a step costs against the number of micro-batches, a line for each way.

    The cost is a Timing, or bytes; what is predicted is seconds, or bytes, by number of pieces.
    """
    ax = axes(ax)
    timed = any(isinstance(cost, Timing) for costs in ways.values() for cost in costs.values())
    factor, counts = 1e3 if timed else 1e-6, sorted({m for costs in ways.values() for m in costs})
    for i, (name, costs) in enumerate(ways.items()):
        style = {"color": ("#333333", "#b8860b", "#4f8f4f")[i % 3], "marker": "os^"[i % 3]}
        if timed:
            low, middle, high = (
                np.array([getattr(costs[m], which) for m in sorted(costs)]) * factor
                for which in ("low", "median", "high")
            )
            ax.errorbar(sorted(costs), middle, np.stack([middle - low, high - middle]), capsize=3,
                        label=name, **style)  # fmt: skip
        else:
            ax.plot(sorted(costs), [costs[m] * factor for m in sorted(costs)], label=name, **style)
    if predicted:
        ax.plot(sorted(predicted), [predicted[m] * factor for m in sorted(predicted)], **IDEAL,
                label="predicted")  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, counts)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("micro-batches")
    ax.set_ylabel("step, ms" if timed else "held at most, MB")
    ax.set_title("What a step takes" if timed else "What the first device holds", loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def live_bytes(trace: Trace, ax: Any = None) -> Any:
    """Draw the bytes that one step holds on each device, over time."""
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
    ax.set_xlabel("time in the step, ms")
    ax.set_ylabel("live memory, MB")
    ax.set_title("What one step holds on each device", loc="left")
    if trace.memory:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def held(parts: Mapping[str, Held], ax: Any = None) -> Any:
    """Draw what a step holds, a bar for each name, by what the bytes are for; the total beside."""
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
    """Draw the most bytes that each device held, a bar for each."""
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
    """Draw what a monitor saw over the seconds, with its phases as bands under their names."""
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


def per_example(seconds: Mapping[int, Sequence[float]], ax: Any = None) -> Any:
    """Draw the seconds an example takes against the number of devices, with the ideal line.

    Each number of devices has its runs: the dot is their median, the bar their middle half.
    """
    ax = axes(ax)
    counts = sorted(seconds)
    low, middle, high = np.quantile([seconds[n] for n in counts], [0.25, 0.5, 0.75], axis=1) * 1e3
    # One array and not a list of two: Matplotlib takes each of a list for a number first.
    ax.errorbar(counts, middle, np.stack([middle - low, high - middle]), fmt="o",
                color=PALETTE[0], capsize=3, label="measured")  # fmt: skip
    ideal = [middle[0] * counts[0] / n for n in counts]
    ax.plot(counts, ideal, **IDEAL, label="ideal: one device, divided")
    ax.set_xticks(counts)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("devices")
    ax.set_ylabel("time an example, ms")
    ax.set_title("What an example costs", loc="left")
    ax.legend(frameon=False)
    return ax


def step_times(measurements: Sequence[Measurement], fit: Fit | None = None, ax: Any = None) -> Any:
    """Draw the time of a step against the per-device batch: what was measured, and a fit's lines.

    A colour for each number of devices; with the variables on the host the markers are hollow and
    the lines dotted.
    """
    import matplotlib

    ax = axes(ax)
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
            label=label + (", variables on the host" if hollow else ""),
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


def parts(
    rows: Mapping[str, Parts],
    measured: Mapping[str, float] | None = None,
    ax: Any = None,
    *,
    source: str | None = None,
) -> Any:
    """Draw the parts of a step, a bar for each name; a tick where its measured seconds are."""
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
    curves: Mapping[str, Curve],
    measured: tuple[int, int] | None = None,
    ax: Any = None,
    *,
    source: str | None = None,
) -> Any:
    """Draw the efficiency against the number of devices: a curve and its band for each name.

    `measured` is the range of devices that somebody measured: what is outside is extrapolation.
    """
    ax = axes(ax, size=(8, 3.6), source=source)
    ax.axhline(100, **IDEAL, label="ideal")
    if measured:
        low, high = measured
        ax.axvspan(low, max(high, low * 1.06), color="#dfe3e8", linewidth=0,
                   label=f"measured: {low} to {counted(high, 'device')}")  # fmt: skip
    for i, (name, curve) in enumerate(curves.items()):
        low, middle, high = (100 * np.array(y) for y in (curve.low, curve.middle, curve.high))
        shade = WAYS[i % len(WAYS)]
        ax.fill_between(curve.counts, low, high, color=shade, alpha=0.18, linewidth=0)
        ax.plot(curve.counts, middle, color=shade, label=name)
    counts = sorted({n for curve in curves.values() for n in curve.counts}) or [1024]
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
    """Draw predicted against measured seconds; hollow where they differ by more than 10 %."""
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


def lab(records: Sequence[Mapping[str, Any]], ax: Any = None) -> Any:
    """Draw what each memory option takes, as scripts/hold_memory.py reports it.

    A record has an option, and bytes, or those of several moments, for driver, allocator and
    process: the most is drawn. What no record has is left out.
    """
    named = {"driver": "given by the driver", "allocator": "tensors at most", "process": "process"}
    kinds = [kind for kind in named if any(record.get(kind) is not None for record in records)]
    shades = {"driver": "#333333", "allocator": "#b8860b", "process": HOST}
    ax = axes(ax, size=(8, 0.9 + (0.16 + 0.17 * len(kinds)) * len(records)))
    for i, kind in enumerate(kinds):
        rows = [row + (i - (len(kinds) - 1) / 2) * 0.26 for row in range(len(records))]
        sizes = [int(np.max(record.get(kind) or 0)) for record in records]
        bars = ax.barh(rows, [s / 1e6 for s in sizes], 0.24, color=shades[kind], label=named[kind])
        ax.bar_label(bars, [size_text(s) for s in sizes], padding=3, size=8)
    ax.set_yticks(range(len(records)), [record["option"] for record in records])
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set_xlabel("held, MB")
    ax.set_title("What each option takes", loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def jobs(report: Report, ax: Any = None) -> Any:
    """Draw which job ran where and when, a row for each device and in it a lane for each slot.

    What did not end well is hatched and says its status. A name that finds no room is left out.
    """
    drawn = [job for job in report.jobs if job.start is not None]
    # Who did not end well gets room for its name first.
    drawn.sort(key=lambda job: job.status == "done")
    slots = Counter[tuple[str, int]]()  # of each device
    for job in drawn:
        slots[job.kind, job.device] = max(slots[job.kind, job.device], job.slot + 1)
    devices = sorted(slots)
    tops = np.cumsum([0, *(slots[device] + 0.25 for device in devices)])
    length = max(report.wall, *(job.end or 0 for job in drawn), 0) or 1
    ax = axes(ax, size=(8, 1.2 + 0.5 * sum(slots.values()) + 0.12 * len(devices)))
    ax.set_yticks(
        [top + slots[device] / 2 + 0.13 for top, device in zip(tops, devices, strict=False)],
        [f"{kind} {number}" for kind, number in devices],
    )
    ax.set_ylim(max(tops[-1] - 0.15, 0.1), 0)
    ax.set_xlim(0, length)
    ax.set_xlabel("time, s")
    waiting = len(report.jobs) - len(drawn)
    left_out = f"; {counted(waiting, 'job')} not started" if waiting else ""
    ax.set_title(f"Which job ran where{left_out}", loc="left")
    ax.figure.draw_without_rendering()  # it gives the axes their final width
    second = ax.get_window_extent().width / length  # in pixels
    taken: dict[tuple[float, bool], list[tuple[float, float]]] = defaultdict(list)
    for job in drawn:
        row, good = devices.index((job.kind, job.device)), job.status == "done"
        shade, low = colour(f"/CPU:{row + 1}"), tops[row] + job.slot
        worked = (length if job.end is None else job.end) - job.start
        ax.broken_barh(
            [(job.start, worked)], (low + 0.3, 0.66), facecolor=shade if good else "white",
            edgecolor="white" if good else shade, linewidth=0.6, hatch="" if good else "////",
        )  # fmt: skip
        name = job.name if len(job.name) <= 30 else job.name[:29] + "…"
        text = ax.text(0, 0, name if good else f"{name}: {job.status}", size=8, va="center")
        room = text.get_window_extent().width / second
        if inside := room + 6 / second < worked:
            left, height = job.start + (worked - room) / 2, low + 0.63
        else:
            left = max(3 / second, min(job.start, length - room))
            height = low + 0.16
        if any(left < b and a < left + room for a, b in taken[low, inside]):
            text.remove()
            continue
        taken[low, inside].append((left, left + room + 6 / second))
        text.set(position=(left, height), color="white" if good and inside else "#222222")
        if inside and not good:
            text.set_bbox({"pad": 1, "facecolor": "white", "edgecolor": "none"})
    return ax


def spans(
    spans: Mapping[str, Sequence[tuple[float, float]]],
    devices: Mapping[str, str],
    ax: Any = None,
) -> Any:
    """Draw when each model trained: a row each, a bar for each step, in its device's colour."""
    ax = axes(ax, size=(8, 1.0 + 0.42 * len(spans)))
    for row, (name, steps) in enumerate(spans.items()):
        bars = [(start, end - start) for start, end in steps]
        ax.broken_barh(bars, (row - 0.35, 0.7), facecolor=colour(devices[name]),
                       edgecolor="white", linewidth=0.6)  # fmt: skip
    ax.set_yticks(range(len(spans)), [f"{name} on {devices[name]}" for name in spans])
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("time, s")
    ax.set_title("When each model trained", loc="left")
    return ax


def accuracies(shares: Mapping[str, float], ax: Any = None) -> Any:
    """Draw the share of right answers, 0 to 1, of members and of what joins them."""
    ax = axes(ax, size=(6, 0.9 + 0.34 * len(shares)))
    bars = ax.barh(list(shares), [100 * share for share in shares.values()], color=HOST, height=0.7)
    ax.bar_label(bars, [f"{100 * share:.1f} %" for share in shares.values()], padding=3, size=9)
    ax.set_xlim(0, 115)
    ax.set_xticks(range(0, 101, 20))
    ax.invert_yaxis()
    ax.set_xlabel("right answers, %")
    ax.set_title("Accuracy on digits that none has seen", loc="left")
    return ax


def cards(cards: Iterable[Card], ax: Any = None, *, relative: bool = False) -> Any:
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
        shade, unit = marks[where]["color"], ratio.target if relative else 1
        if ratio.low is not None:
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


def digits(images: Any, titles: Sequence[str]) -> Any:
    """Draw images [n, size, size, 1] in a row, each under its title; give the last axes."""
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        wide = max(1, len(images))
        figure, row = plt.subplots(1, wide, figsize=(1.25 * wide, 1.75), squeeze=False)
    figure.get_layout_engine().set(rect=(0, 0.12, 1, 0.88))
    corner(figure)
    for ax in row[0]:
        ax.axis("off")
    for ax, image, title in zip(row[0], images, titles, strict=False):
        ax.imshow(np.squeeze(image), cmap="gray_r")
        ax.set_title(title, size=9)
    return row[0][-1]


def placement_map(step: Trace | Placement, ax: Any = None) -> Any:
    """Draw operations in the lane of their device, and what crosses between lanes with its bytes.

    Many operations are grouped by name scope. A Placement knows no tensors: it gives no arrows.
    """
    ops, edges, copies = _ops(step)
    lanes = sorted({device for _, device in ops}, key=order)
    deepest = max((name.count("/") for name, _ in ops), default=0) + 1
    for depth in range(deepest, 0, -1):  # from single operations to the widest scopes
        group = {name: "/".join(name.split("/")[:depth]) for name, _ in ops}
        column = _columns(ops, edges, group)
        members = Counter((device, group[name]) for name, device in ops)
        label = {key: _label(key[1], members[key]) for key in members}
        cells: dict[tuple[str, int], list[str]] = defaultdict(list)  # lane, column -> boxes
        for device, box in members:
            cells[device, column[device, box]].append(box)
        centre, wide = _spread(cells, label)
        if len(members) <= _BOXES and wide <= _INCHES:
            break
    tall = {d: max(len(b) for (lane, _), b in cells.items() if lane == d) for d in lanes}
    ax = axes(ax, size=(max(8, 0.9 + wide), 0.9 + sum(0.4 * tall[d] + 0.3 for d in lanes)))
    top, where = 0.0, {}
    for device in lanes:
        height = tall[device] + 0.6
        ax.axhspan(top, top + height, color=colour(device), alpha=0.10, linewidth=0)
        ax.text(-0.1, top + height / 2, device, color=colour(device), weight="bold", ha="right",
                va="center")  # fmt: skip
        for (lane, x), boxes in cells.items():
            for i, box in enumerate(sorted(boxes) if lane == device else ()):
                at = where[device, box] = centre[x], top + (height - len(boxes) + 1) / 2 + i
                ax.text(*at, label[device, box], ha="center", va="center", size=8, color="white",
                        zorder=3, bbox={"boxstyle": "round,pad=0.3", "facecolor": colour(device),
                                        "edgecolor": "white"})  # fmt: skip
        top += height + 0.15

    def arrow(start: tuple[str, str], end: tuple[str, str], color: str, width: float) -> None:
        (x0, y0), (x1, y1) = where[start], where[end]
        run = (x1 - x0) * max(1, 7.1 / wide), (y1 - y0) * 0.4  # in inches, as the size above has it
        ax.annotate("", where[end], where[start], zorder=2, arrowprops={
            "arrowstyle": "-|>", "color": color, "linewidth": width,
            "shrinkA": _reach(label[start], *run), "shrinkB": _reach(label[end], *run),
        })  # fmt: skip

    device_of = dict(ops)
    seen = set()
    for source, target in edges:
        ends = (device_of[source], group[source]), (device_of[target], group[target])
        if ends[0] != ends[1] and ends[0][0] == ends[1][0] and ends not in seen:
            seen.add(ends)
            arrow(*ends, "#b0b0b0", 0.9)
    crossing: Counter[Any] = Counter()
    for copy in copies:
        maker = copy.tensor.partition(":")[0]
        users = {
            group[user] for source, user in edges
            if source == maker and device_of[user] == copy.target
        }  # fmt: skip
        for box in sorted(users, key=lambda box: (column[copy.target, box], box))[:1]:
            crossing[(copy.source, group[maker]), (copy.target, box)] += copy.bytes or 0
    for (start, end), size in crossing.items():
        arrow(start, end, colour(start[0]), 1.6)
        (x0, y0), (x1, y1) = where[start], where[end]
        ax.text(x0 + 0.55 * (x1 - x0), y0 + 0.55 * (y1 - y0), size_text(size), size=7.5,
                ha="center", va="center", zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none",
                      "alpha": 0.85})  # fmt: skip
    ax.set_xlim(0, wide or 1)
    ax.set_ylim(top - 0.15, 0)
    ax.axis("off")
    crossed = " and what crosses between devices" if copies else ""
    ax.set_title(f"Where operations run{crossed}", loc="left")
    return ax


def _ops(step: Trace | Placement) -> tuple[list[tuple[str, str]], list[tuple[str, str]], tuple]:
    """Take what a map shows: no constants, as they only name numbers."""
    rows = step.rows if isinstance(step, Placement) else step.ops
    ops = list(dict.fromkeys((r.name, r.device) for r in rows if r.type != "Const"))
    names = {name for name, _ in ops}
    if isinstance(step, Placement):
        return ops, [], ()
    edges = [(a, b) for a, b in step.edges if a in names and b in names]
    copies = tuple(c for c in step.copies if c.tensor.partition(":")[0] in names)
    return ops, edges, copies


def _columns(
    ops: list[tuple[str, str]], edges: list[tuple[str, str]], group: dict[str, str]
) -> dict[tuple[str, str], int]:
    """Put each box in the column of its earliest operation, counted in steps from the start."""
    makers = defaultdict(list)
    for source, target in edges:
        makers[target].append(source)
    depth: dict[str, int] = {}

    def walk(name: str, path: frozenset[str]) -> int:
        if name not in depth:
            before = [walk(m, path | {name}) for m in makers[name] if m not in path]
            depth[name] = 1 + max(before, default=-1)
        return depth[name]

    first: dict[tuple[str, str], int] = {}
    for name, device in ops:
        key = device, group[name]
        first[key] = min(first.get(key, 10**9), walk(name, frozenset({name})))
    ranks = {d: i for i, d in enumerate(sorted(set(first.values())))}
    return {key: ranks[d] for key, d in first.items()}


def _label(box: str, count: int) -> str:
    text = box if len(box) <= 20 else "…" + box[-19:]
    return f"{text} ({count})" if count > 1 else text


def _spread(
    cells: dict[tuple[str, int], list[str]], label: dict[tuple[str, str], str]
) -> tuple[dict[int, float], float]:
    """Give every column the room of its widest box: centres, and the whole width, in inches."""
    widest: dict[int, int] = defaultdict(int)
    for (lane, x), boxes in cells.items():
        widest[x] = max(widest[x], *(len(label[lane, box]) for box in boxes))
    centre, reached = {}, 0.0
    for x in sorted(widest):
        room = 0.085 * widest[x] + 0.55
        centre[x] = reached + room / 2
        reached += room
    return centre, reached


def _reach(label: str, across: float, down: float) -> float:
    """Give the way from the middle of a box to its edge in a direction, in points."""
    half_width, half_height = 0.034 * len(label) + 0.07, 0.12
    ways = [half / abs(way) for half, way in ((half_width, across), (half_height, down)) if way]
    return 72 * min(ways, default=0) * math.hypot(across, down)


def panel(draw: Callable[..., Any], **choices: Sequence[Any]) -> None:
    """Draw a picture, and in a live notebook a panel below that draws it for other choices.

    `draw` takes each choice by name, and is called with the first of each; the panel sorts them.
    Where no kernel runs, and where a lesson's outputs are stored, there is the picture alone.
    """
    import matplotlib.pyplot as plt

    def picture(**chosen: Any) -> None:
        draw(**chosen)
        plt.show()

    picture(**{name: options[0] for name, options in choices.items()})
    if "PYTEST_CURRENT_TEST" in os.environ or not _has_kernel():
        return
    import ipywidgets

    ipywidgets.interact(picture, **{
        name: ipywidgets.SelectionSlider(
            options=sorted(options), value=options[0], continuous_update=False
        )
        for name, options in choices.items()
    })  # fmt: skip


def _has_kernel() -> bool:
    """Say whether this code runs in a notebook's kernel."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
