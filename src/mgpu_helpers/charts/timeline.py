"""Who worked when: a step by device, a pipeline by task, jobs, and named spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers.charts.bars import lay, write
from mgpu_helpers.charts.base import axes, colour, pale
from mgpu_helpers.charts.pointer import name_boxes
from mgpu_helpers.names import order
from mgpu_helpers.wording import counted

if TYPE_CHECKING:
    from mgpu_helpers.jobs import Report
    from mgpu_helpers.trace.step import Trace


def timeline(
    trace: Trace, ax: Any = None, by: str | None = None, layers: Collection[str] | None = None
) -> Any:
    """Draw when each device ran an operation; beside its name, the share of the step it worked.

    by="layer", "type" or "operation" makes one bar of neighbours with the same name, in two shades
    in turn, and writes it in where there is room; a wait in a bar is shorter than a pixel. For
    layers see `Trace.top`. `pointer` shows every name.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = timeline(step, by="layer")
    """
    from mgpu_helpers.trace.step import traced
    from mgpu_helpers.trace.summary import naming

    lanes = list(lay(traced(trace), naming(by, layers) if by else None))
    rows = len(trace.devices)
    ax = axes(ax, size=(11, 1.2 + 0.8 * rows) if by else (8, 1.2 + 0.5 * rows))
    for device, bars in lanes:  # a call for each operation would take half a minute
        dark: Any = colour(device)
        style = {"facecolor": dark, "edgecolor": "white", "linewidth": 0.4}
        if by:
            style = {"facecolor": ([dark, pale(dark)] * len(bars))[: len(bars)], "linewidth": 0}
        ax.broken_barh([bar[:2] for bar in bars], bars[0][2:4], **style)
    ax.set_yticks(
        range(rows), [f"{device}\n{1 - trace.idle(device):.0%} busy" for device in trace.devices]
    )
    ax.invert_yaxis()
    ax.set_xlim(0, trace.length * 1e3 or 1)
    ax.set_xlabel("time in the step, ms")
    ax.set_title("When each device worked", loc="left")
    _say_launches(trace, ax)
    drawn = [bar for _, bars in lanes for bar in bars]
    name_boxes(ax, ((b.start, b.low, b.start + b.length, b.low + b.high, b.title) for b in drawn))
    if by:
        write(ax, drawn)
    return ax


def _say_launches(trace: Trace, ax: Any) -> None:
    if trace.launches_only:
        ax.set_title("GPU: launches, not kernels", loc="right", size=7.5, color="#666")


def pipeline(trace: Trace, ax: Any = None) -> Any:
    """Draw a step of `pipeline.gradients`: forward dark, backward pale, by the piece's number.

    Beside each device is the share of the step in which it was idle.

    >>> from mgpu_helpers.pipeline import Stage, gradients
    >>> from mgpu_helpers.trace import function_step
    >>> double = Stage("/CPU:1", lambda weights, x: weights["w"] * x, {"w": tf.Variable(2.0)})
    >>> mean = lambda y, out: tf.reduce_mean(out - y)
    >>> result, step = function_step(lambda x: gradients([double], mean, x, x), tf.ones([4]))
    >>> ax = pipeline(step)
    """
    from mgpu_helpers.pipeline import spans as spans_of
    from mgpu_helpers.pipeline.tasks import task_of

    spans = spans_of(trace)
    devices = sorted({span.device for span in spans}, key=order)
    stages = {device: sorted({s.stage for s in spans if s.device == device}) for device in devices}
    ax = axes(ax, size=(8, 1.35 + 0.6 * len(devices)))
    wide = 440 / trace.length if trace.length else 0  # points a second, about
    for row, device in enumerate(devices):
        ops = [op for op in trace.ops if op.device == device and task_of(op)]
        for op in ops:
            _, task = task_of(op) or (None, "")
            shade = {"facecolor": colour(device), "alpha": 1.0 if task[0] == "F" else 0.45}
            ax.broken_barh([(op.start * 1e3, op.length * 1e3)], (row - 0.36, 0.72), linewidth=0,
                           **shade)  # fmt: skip
        for span in (span for span in spans if span.device == device):
            ax.vlines(span.start * 1e3, row - 0.36, row + 0.36, color="white", linewidth=1)
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


def jobs(report: Report, ax: Any = None) -> Any:
    """Draw which job ran where and when, a row for each device and in it a lane for each slot.

    A job with several devices has a bar in each of their rows. What did not end well is hatched
    and says its status. A name that finds no room is left out.

    >>> import sys
    >>> from mgpu_helpers.jobs import run
    >>> report = run([[sys.executable, "-c", f"print({i})"] for i in range(3)], progress=False)
    >>> ax = jobs(report)
    """
    drawn = [job for job in report.jobs if job.start is not None]
    # Who did not end well gets room for its name first.
    drawn.sort(key=lambda job: job.status == "done")
    slots = Counter[tuple[str, int]]()  # of each device
    bars = [(job, number) for job in drawn for number in job.devices]
    for job, number in bars:
        slots[job.kind, number] = max(slots[job.kind, number], job.slot + 1)
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
    others = Counter(job.status for job in report.jobs if job.start is None)
    left_out = "".join(f"; {counted(n, 'job')} {status}" for status, n in others.items())
    ax.set_title(f"Which job ran where{left_out}", loc="left")
    ax.figure.draw_without_rendering()  # it gives the axes their final width
    second = ax.get_window_extent().width / length  # in pixels
    taken: dict[tuple[float, bool], list[tuple[float, float]]] = defaultdict(list)
    for job, number in bars:
        row, good = devices.index((job.kind, number)), job.status == "done"
        shade, low = colour(f"/CPU:{row + 1}"), tops[row] + job.slot
        worked = (length if job.end is None else job.end) - (job.start or 0.0)
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
    """Draw when each model trained: a row each, a bar for each step, in its device's colour.

    >>> steps = {"small": [(0.0, 0.2), (0.3, 0.5)], "large": [(0.0, 0.5)]}
    >>> ax = spans(steps, {"small": "/CPU:1", "large": "/CPU:2"})
    """
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
