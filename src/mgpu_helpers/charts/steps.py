"""What each device did in a step: every operation, who waited for whom, the tasks of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mgpu_helpers._names import order
from mgpu_helpers.charts.base import DARK, axes, colour, label, pale, rows, write

if TYPE_CHECKING:
    from mgpu_helpers.trace.records import Op
    from mgpu_helpers.trace.step import Trace

_GREY = {"copies": "#c8c8c8", "a free core": "#dadada", "overhead": "#ececec"}


class _Bar(NamedTuple):
    start: float  # and end, in ms
    end: float
    name: str


def timeline(
    trace: Trace, ax: Any = None, by: str | None = None, layers: Collection[str] | None = None,
    depth: int = 1,
) -> Any:  # fmt: skip
    """Draw when each device ran an operation; beside its name, the share of the step it worked.

    by="layer", "type" or "operation" makes one bar of neighbours with the same name, in two shades
    in turn, and writes it in where there is room; a wait in a bar is shorter than a pixel. For
    layers and depth see `Trace.top`.

    >>> from mgpu_helpers import trace
    >>> result, step = trace.function_step(lambda x: x @ x, tf.ones([200, 200]))
    >>> ax = timeline(step, by="layer")
    """
    from mgpu_helpers.trace.layers import naming
    from mgpu_helpers.trace.step import traced

    lanes = list(bars_of(traced(trace), naming(by, layers, depth) if by else None))
    count = len(trace.devices)
    ax = axes(ax, size=(11, 1.2 + 0.8 * count) if by else (8, 1.2 + 0.5 * count))
    for device, place, bars in lanes:  # a call for each operation would take half a minute
        dark: Any = colour(device)
        style = {"facecolor": dark, "edgecolor": "white", "linewidth": 0.4}
        if by:
            style = {"facecolor": ([dark, pale(dark)] * len(bars))[: len(bars)], "linewidth": 0}
        ax.broken_barh([(bar.start, bar.end - bar.start) for bar in bars], place, **style)
    rows(ax, [f"{each}\n{1 - trace.idle(each):.0%} busy" for each in trace.devices])
    _finish(ax, trace, "When each device worked")
    if by:  # a model inside is the same for most
        write(ax, ((bar.start, low, bar.end - bar.start, high,
                    depth > 1 and bar.name.partition("/")[2] or bar.name, "white")
                   for _, (low, high), bars in lanes for bar in bars))  # fmt: skip
    return ax


def bars_of(
    trace: Trace, name: Callable[[Op], str] | None
) -> Iterator[tuple[str, tuple[float, float], list[_Bar]]]:
    """Give each lane: its device, its place and height in the rows, its bars.

    With name None every operation is a bar.
    """
    from mgpu_helpers.trace.records import lanes
    from mgpu_helpers.trace.step import working

    gap = trace.length * 1e3 / 600 if name else -1.0  # about a pixel
    for row, device in enumerate(trace.devices):
        # A CPU's may overlap. What has no length, as what launches no kernel, would take a lane.
        beside = lanes(op for op in working(trace) if op.device == device and op.length)
        high = 0.76 / max(1, len(beside))
        for i, lane in enumerate(beside):
            bars: list[_Bar] = []
            for op in lane:
                start, end, called = op.start * 1e3, op.end * 1e3, name(op) if name else op.name
                if bars and bars[-1].name == called and start - bars[-1].end <= gap:
                    bars[-1] = bars[-1]._replace(end=end)
                else:
                    bars.append(_Bar(start, end, called))
            yield device, (row - 0.38 + i * high, high * 0.94), bars


def _finish(
    ax: Any, trace: Trace, title: str, right: str = "", across: str = "time in the step, ms"
) -> Any:
    if trace.launches_only:
        right = "GPU: launches, not kernels"
    ax.set_xlim(0, trace.length * 1e3 or 1)
    return label(ax, title, across, right=right)


def blame(
    step: Trace, ax: Any = None, layers: Collection[str] | None = None, shown: int = 4
) -> Any:
    """Draw a bar for each device: all its work, then what it waited for, the longest first.

    These are sums, so a place in the bar is no moment of the step. A wait has the pale colour of
    the device that was waited for; copies, a free core and overhead are grey. Beside `shown` waits
    by name the rest are "others (n)", grey if they are for several devices. For layers see
    `Trace.top`. A step that `whatif.explain` cannot explain is drawn as work alone, and the title
    says so.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> two = Op("conv/Add", "Add", "/CPU:1", 0.0, 0.01), Op("b", "Add", "/CPU:2", 0.01, 0.01)
    >>> ax = blame(Trace(two, (), {}, (("conv/Add", "b"),)))
    """
    from mgpu_helpers.whatif import explain

    accounts = explain(step, layers).accounts
    ax = axes(ax, size=(9, 1.2 + 0.55 * len(accounts)))
    boxes, known = [], {""}
    for row, account in enumerate(accounts):
        waits = account.waits or ()
        named, left = [wait for wait in waits if wait.device], 0.0
        parts = [("works", "", account.worked, colour(account.device), "white")]
        parts += [(w.what, f"waits for {w.device}", w.seconds, pale(colour(w.device)), "white")
                  for w in named[:shown]]  # fmt: skip
        if rest := named[shown:]:
            seconds, they = sum(w.seconds for w in rest), {w.device for w in rest}
            kind, shade, letters = "other waits", "#b0b0b0", DARK
            if len(they) == 1:
                (at,) = they
                kind, shade, letters = f"waits for {at}", pale(colour(at)), "white"
            parts.append((f"others ({len(rest)})", kind, seconds, shade, letters))
        parts += [(w.what, w.what, w.seconds, _GREY[w.what], DARK) for w in waits if not w.device]
        for what, kind, seconds, shade, letters in parts:
            width = seconds * 1e3
            seen = kind if kind not in known and seconds > 0.003 * step.length else ""
            ax.barh(row, width, 0.66, left, color=shade, edgecolor="white", linewidth=0.8,
                    label=seen)  # fmt: skip
            known.add(seen)
            boxes.append((left, row - 0.33, width, 0.66, what, letters))
            left += width
    rows(ax, [f"{a.device}\n{a.worked / a.length:.0%} at work" for a in accounts])
    told = accounts and all(account.waits is not None for account in accounts)
    _finish(ax, step, "How long each device worked and waited", "" if told else "waits not known",
            "added up, not in order: ms of the step")  # fmt: skip
    if len(known) > 1:
        pairs = sorted(zip(*ax.get_legend_handles_labels(), strict=True),
                       key=lambda pair: (not pair[1].startswith("waits"), pair[1]))  # fmt: skip
        ax.legend(*zip(*pairs, strict=True), loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    write(ax, boxes)
    return ax


def pipeline(trace: Trace, ax: Any = None) -> Any:
    """Draw a step of a model in stages: each task in a frame, forward dark and backward pale.

    Above a task is its name, where there is room. Beside each device is the share of the step in
    which it was idle.

    >>> import keras
    >>> from mgpu_helpers import fit, trace
    >>> layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
    >>> model = keras.Sequential([keras.Input([3]), *layers])
    >>> model.compile("sgd", "mse")
    >>> fit.use(model, plan, stages=2, pieces=2) is model
    True
    >>> ax = pipeline(trace.fit_step(model, (np.ones([4, 3]), np.ones([4, 1]))))
    """
    from mgpu_helpers.pipeline.tasks import task_of
    from mgpu_helpers.trace.step import traced

    tasks: dict[tuple[str, int, str], list[Op]] = defaultdict(list)
    for op in traced(trace).ops:
        if at := task_of(op):
            tasks[op.device, *at].append(op)
    stages = defaultdict(set)
    for device, stage, _ in tasks:
        stages[device].add(stage)
    devices, boxes = sorted(stages, key=order), []
    ax = axes(ax, size=(8, 1.35 + 0.7 * len(devices)))
    for (device, stage, task), ops in tasks.items():
        row, forward = devices.index(device) - 0.26, task[0] == "F"
        ax.broken_barh(_joined(ops), (row, 0.7), linewidth=0, facecolor=colour(device),
                       alpha=1.0 if forward else 0.45)  # fmt: skip
        longest = max(op.length for op in ops)
        # What looks at shapes alone may run long before the rest of its task.
        start = min(op.start for op in ops if op.length > 0.01 * longest) * 1e3
        wide = max(op.end for op in ops) * 1e3 - start
        ax.broken_barh([(start, wide)], (row, 0.7), facecolor="none", edgecolor=DARK, linewidth=0.6)
        text = f"{stage}:{task}" if len(stages[device]) > 1 else task
        boxes.append((start, row - 0.2, wide, 0.2, text, DARK))
    rows(ax, [
        f"{device}, stage{'s' if len(stages[device]) > 1 else ''} "
        f"{', '.join(map(str, sorted(stages[device])))}\n{trace.idle(device):.0%} idle"
        for device in devices
    ])  # fmt: skip
    _finish(ax, trace, "Micro-batches: forward dark, backward pale")
    write(ax, boxes, size=7)
    return ax


def _joined(ops: Iterable[Op]) -> list[tuple[float, float]]:
    """Give starts and lengths, in ms, of when any of these ran: pale bars may not overlap."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((1e3 * op.start, 1e3 * op.end) for op in ops):
        if found and start <= sum(found[-1]):
            start, length = found.pop()
            end = max(end, start + length)
        found.append((start, end - start))
    return found
