"""Charts that one lesson draws once."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers import timing
from mgpu_helpers._formatting import counted, size_text
from mgpu_helpers.charts.base import (
    ACROSS,
    DARK,
    HOST,
    IDEAL,
    PALETTE,
    SMALL,
    UP,
    axes,
    colour,
    label,
    note,
    pale,
    panels,
    rows,
    write,
)
from mgpu_helpers.charts.base import sizes as text_sizes
from mgpu_helpers.charts.memory import backward_begins
from mgpu_helpers.charts.steps import timeline
from mgpu_helpers.devices.plan import planned

if TYPE_CHECKING:
    from mgpu_helpers.memory.predicting import Predicted
    from mgpu_helpers.trace.records import Op
    from mgpu_helpers.trace.step import Trace


TENSORS, KEPT = "#b8860b", "#f0e3c0"  # as in pictures/05_who_holds_what.svg


SHADE, LIMIT = "#e6e8eb", "#9a9ea5"  # what runs forward, and the most that is held
COPY = "#d55e00"  # as in pictures/11_one_copy.svg


def weights_along(runs: Mapping[str, tuple[Sequence[Any], Trace]], device: str) -> None:
    """Draw the weights that a device holds along each step: its own, and on top fetched copies.

    Of each name, runs has the state (each weight with its optimizer and its owner) and the step.
    Across are the moments at which a copy comes or goes, without their times. The dashed line is
    where the loss is computed.
    """
    from mgpu_helpers.lessons.state import weights_held

    with panels(1, len(runs), low=0.05, figsize=(8, 3.6), sharey=True) as (figure, grid):
        for ax, (name, (state, step)) in zip(grid.flat, runs.items(), strict=True):
            whole = sum(weight.value.dtype.size * weight.value.shape.num_elements()
                        for weight, *_ in state)  # fmt: skip
            times, sizes = zip(*weights_held(state, step, device), strict=True)
            held = 100 * np.array([*sizes, sizes[-1]]) / whole
            places = np.arange(len(held))
            own = ax.fill_between(places, held[0], color=colour(device), lw=0)
            copies = ax.fill_between(places, held[0], held, step="post", color=COPY, lw=0)
            ax.axhline(100, color=LIMIT, linewidth=1)
            lost = [op.end for op in step.ops
                    if "CrossEntropy" in op.type and op.device == device]  # fmt: skip
            if lost and len(times) > 1:
                begins = int(np.searchsorted(times, max(lost)))
                ax.axvline(begins, **IDEAL)
                note(ax, "backward", (begins, 105), (4, 0), **SMALL)
            label(ax, name, "copies come and go,\nin their order" if len(held) > 2 else "no copies",
                  f"weights on {device}, % of all" if ax in grid[:, 0] else "")  # fmt: skip
            ax.set(xticks=[], xlim=(0, max(len(held) - 1, 1)), ylim=(0, 115))
        names = f"owned by {device}", "copies that it fetched"
        figure.legend([own, copies], names, loc="outside upper left", ncols=2, frameon=False)


def hills(steps: Mapping[str, Any], device: str) -> None:
    """Draw what each of four steps holds, and the most of the first as a grey line.

    Across are the moments at which that changes, without their times; what runs forward is shaded.
    Where it does so several times, the hill of each is numbered.
    """
    from matplotlib.patches import Patch

    most = next(iter(steps.values())).peak(device) / 1e6
    with panels(2, 2, low=0.04, figsize=(8, 5.2), sharey=True) as (figure, grid):
        for ax, (name, step) in zip(grid.flat, steps.items(), strict=True):
            times, held = np.array(step.memory[device]).T
            held = held / 1e6
            ax.step(range(len(held)), held, where="post", color=colour(device))
            ax.axhline(most, color=LIMIT, zorder=0)
            runs = _forward(step, times)
            for first, last in runs:
                ax.axvspan(first, last, color=SHADE, lw=0, zorder=-1)
            ends = [*(first for first, _ in runs[1:]), len(held)]
            for number, ((first, _), end) in enumerate(zip(runs, ends, strict=False), 1):
                top = first + int(np.argmax(held[first:end]))
                if len(runs) > 1:
                    note(ax, f"{number}", (top, held[top]), (0, 3), weight="bold", ha="center")
            share = f", {held.max() / most:.0%}" if held.max() < most else ""
            label(ax, f"{name}: {held.max():.1f} MB{share}", "operations, in their order",
                  "held, MB" if ax in grid[:, 0] else "")  # fmt: skip
            ax.set(xticks=[], xlim=(0, len(held) - 1), ylim=(0, 1.15 * most))
        handles = [Patch(color=SHADE, label="runs forward"), Patch(fc="white", ec=SHADE, lw=1,
                   label="runs backward")]  # fmt: skip
        handles += ax.plot([], [], color=LIMIT, label="peak of the step as it is")
        figure.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)


def _forward(step: Trace, times: Sequence[float]) -> list[tuple[int, int]]:
    """Find the stretches of moments in which the product that began last is of no gradient."""
    products = sorted((op.start, "gradient" in op.name) for op in step.ops if "MatMul" in op.type)
    if not products:
        return []
    last = np.searchsorted([start for start, _ in products], times, "right") - 1
    runs = [not products[max(i, 0)][1] for i in last]
    edges = [i for i in range(len(runs)) if runs[i] != (i > 0 and runs[i - 1])]
    return [(a, b) for a, b in zip(edges[::2], [*edges[1::2], len(runs)], strict=False)]


def within(ax: Any, predicted: Predicted) -> Any:
    """Add the range that the peak should be in to a chart of `charts.live_bytes`."""
    low, high = predicted.low / 1e6, predicted.high / 1e6
    ax.set_title("What one step holds", loc="left")
    ax.axhspan(low, high, color=KEPT, linewidth=0, zorder=0)
    ax.set_ylim(0, max(1.05 * high, ax.get_ylim()[1]))
    note(ax, "range of the predicted peak", (0.99, high), (0, -4), ha="right", va="top",
         xycoords=ACROSS, **SMALL)  # fmt: skip
    return ax


def lab(records: Sequence[Mapping[str, Any]], growth: int, ax: Any = None) -> Any:
    """Draw what TensorFlow takes of a GPU with each setting, and how much of it the tensors hold.

    As scripts/hold_memory.py measured it; where it found no GPU, as calculated for one of 16 GiB,
    the dashed line, of which growth takes so much.
    """
    held, gib = 600_000_000, 2**30
    source: str | None = "all but growth calculated for 16 GiB, without the CUDA context"
    bars = [("nothing set", held, 16 * gib - 1536 * 2**20), ("growth", held, growth),
            ("memory_limit=2048", held, 2 * gib),
            ("TF_GPU_ALLOCATOR=cuda_malloc_async", held, held),
            ("every GPU hidden", 0, 0)]  # fmt: skip
    if measured := [record for record in records if record["driver"]]:
        source = None
        bars = [(each["option"], each["allocator"] or 0, max(each["driver"])) for each in measured]
    names, tensors, taken = zip(*bars, strict=True)
    places, own = range(len(bars)), np.array(tensors) / 1e9
    ax = axes(ax, size=(8, 0.9 + 0.3 * len(bars)), source=source)
    ax.barh(places, own, 0.6, color=TENSORS, label="tensors")
    ends = ax.barh(places, np.maximum(0, np.array(taken) / 1e9 - own), 0.6, left=own, color="white",
                   edgecolor=TENSORS, linewidth=0.8, label="also taken")  # fmt: skip
    ax.bar_label(ends, [size_text(size) for size in taken], padding=4, size=8)
    rows(ax, list(names))
    ax.set_xlim(0, 1.2 * max(taken) / 1e9)
    if source:
        ax.axvline(16 * gib / 1e9, 0, 0.8, **IDEAL)  # below the size of the longest bar
        note(ax, "the whole GPU", (16 * gib / 1e9, len(bars) - 1), (-6, 0), ha="right",
             va="center", **SMALL)  # fmt: skip
    title = "What TensorFlow takes of a GPU with each setting"
    return label(ax, title, "GB", legend=True)


def limit(ax: Any, size: int | float) -> Any:
    """Add what a device may hold, in bytes, as a dashed line to a chart of `charts.held`."""
    ax.axvline(size / 1e6, **IDEAL)
    note(ax, f"limit {size_text(round(size))}", (size / 1e6, 1), (3, 2), va="bottom",
         xycoords=UP, **SMALL)  # fmt: skip
    return ax


def attributions(images: Any, values: Any, ax: Any = None) -> Any:
    """Draw images, and below each how much every pixel speaks for a class or against it."""
    import matplotlib as mpl

    ink, parts = (np.hstack([*np.squeeze(each, -1)]) for each in (images, values))
    most = np.repeat(np.abs(values).max((1, 2, 3)), np.shape(values)[2])
    shades = mpl.colormaps["PRGn"]((1 + parts / most) / 2)
    ax = axes(ax, size=(8, 2.1))
    ax.imshow(np.vstack([mpl.colormaps["gray_r"](ink), shades]))
    ax.axis("off")
    ax.set_title("Which pixels speak for the class (green), and which against (purple)", loc="left")
    return ax


def speedups(ways: Mapping[str, Mapping[int, Any]], ax: Any = None, *, devices: int) -> Any:
    """Draw how many times as fast several devices are as one, a row for each way and batch.

    A way is strong or weak scaling, with a `timing.Comparison` of one device with all for each
    per-device batch. A bar reaches from its low to its high; the median of the pairs stands beside.
    A row that cannot be told apart from one device is grey. Rows name the global batches.
    """
    found = {(way, batch): pairs for way, each in ways.items() for batch, pairs in each.items()}
    ax = axes(ax, size=(6.6, 1.4 + 0.34 * len(found)))
    furthest = float(devices)
    for row, ((way, _), pairs) in enumerate(found.items()):
        times = devices if way == "weak" else 1  # as many images as one device has
        one = timing.Timing(tuple(times * each for each in pairs.a.seconds))
        pairs = timing.Comparison(one, pairs.b)
        shade, text, size = "#888888", "cannot be\ntold apart", 8.5
        if pairs.distinguishable:
            shade, text, size = {"strong": "#1b4965"}.get(way, "#a8483a"), f"{pairs.ratio:.2f}", 10
        spread = [[pairs.ratio - pairs.low], [pairs.high - pairs.ratio]]
        ax.errorbar([pairs.ratio], [row], xerr=spread, fmt="o", color=shade, capsize=4)
        note(ax, text, (1, row), (8, 0), va="center", size=size, xycoords=ACROSS)
        furthest = max(furthest, pairs.high)
    small = {way: "{} \N{RIGHTWARDS ARROW} " if way == "weak" else "" for way in ways}
    rows(ax, [f"{way}, batch of {small[way].format(batch)}{devices * batch}"
              for way, batch in found])  # fmt: skip
    top = ax.get_ylim()[1]
    for at, text in {devices: f"ideal: {devices}", 1: "one device: 1"}.items():
        ax.axvline(at, **IDEAL)
        note(ax, text, (at, top), (-4, -2), va="top", ha="right", **SMALL | {"size": 8.5})
    ax.set_xlim(0, 1.05 * furthest)
    title = f"Images a second of {counted(devices, 'device')}, times those of one"
    return label(ax, title, "speed-up")


def stacked(steps: Mapping[str, Trace]) -> Any:
    """Draw when the devices of each step worked, below each other over the same milliseconds.

    Dotted lines stand where results of several devices have been added up. A step without such
    sums has a dashed line where the backward pass begins. A device's waits are grey. What runs on
    the host is left out, and what is too short to be seen beside a longer operation.
    """
    import matplotlib.pyplot as plt

    own = {name: _without_host(step) for name, step in steps.items()}
    counts = [1.3 * len(step.devices) + 0.4 for step in own.values()]
    figure, grid = plt.subplots(
        len(own), 1, figsize=(8, 0.6 * sum(counts)), sharex=True, height_ratios=counts,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    pixel = max(step.length for step in own.values()) / 500
    for ax, (name, step) in zip(grid.flat, own.items(), strict=True):
        timeline(_without_specks(step, pixel), ax=ax)
        for bars in ax.collections:  # a white edge would cover short ones
            wide = [1e-3 * path.get_extents().width for path in bars.get_paths()]
            bars.set_linewidths([0.4 if each > 2 * pixel else 0.0 for each in wide])
        ax.set_title(f"{name}: {1e3 * step.length:.1f} ms", loc="left")
        ax.set_xlabel("")
        for row, device in enumerate(step.devices):
            ax.broken_barh([(start, end - start) for start, end in _waits(step, device)],
                           (row - 0.38, 0.76), facecolor=HOST, alpha=0.25)  # fmt: skip
        marks, labelled = [], -step.length
        for at in sorted(_sums(step)):  # where two are near, the first one has the word
            near = at - labelled < 40 * pixel
            marks.append((at, "" if near else "sum", -3, "right", ":"))
            labelled = labelled if near else at
        if not marks and (begins := backward_begins(step)) is not None:
            marks.append((begins, "backward pass", 3, "left", "--"))
        for at, text, x, align, line in marks:
            tone = DARK if line == ":" else LIMIT
            ax.axvline(1e3 * at, color=tone, linestyle=line, linewidth=1.2, zorder=3)
            note(ax, text, (1e3 * at, 0), (x, 3), xycoords=UP, ha=align, **SMALL | {"size": 8.5})
        ax.set_ylim(len(step.devices) - 0.2, -0.5)
    grid[-1, 0].set_xlabel("time in the step, ms")
    grid[-1, 0].set_xlim(0, 1e3 * max(step.length for step in own.values()))
    return figure


def _without_host(step: Trace) -> Trace:
    return replace(step, ops=tuple(op for op in step.ops if op.device != planned().host))


def _without_specks(step: Trace, least: float) -> Trace:
    """Leave out what takes less time, while its device also runs something that takes more."""
    seen = [op for op in step.ops if op.length >= least]

    def covered(op: Op) -> bool:
        return any(o.device == op.device and o.start <= op.start and op.end <= o.end for o in seen)

    kept = (op for op in step.ops if op.length >= least or not covered(op))
    return replace(step, ops=tuple(kept))


def _sums(step: Trace) -> list[float]:
    """List when an addition ended that used results of several devices, made in the same way.

    Others add gradients that come from the next stage to those of this one.
    """
    parts = _parts(step)

    def meets(op: Op) -> bool:
        made = {(each.type, each.device) for each in parts[op.name]}
        return len(made) > len({kind for kind, _ in made})

    return [op.end for op in step.ops if "Add" in op.type and meets(op)]


def _parts(step: Trace) -> Mapping[str, list[Op]]:
    """List the operations whose results each operation uses."""
    made, parts = {op.name: op for op in step.ops}, defaultdict[str, list["Op"]](list)
    for maker, user in step.edges:
        if maker in made:
            parts[user].append(made[maker])
    return parts


def _waits(step: Trace, device: str) -> list[tuple[float, float]]:
    """List when a device ran nothing, in milliseconds, for over a hundredth of the step."""
    waits, reached = [], 0.0
    # What launches no kernel on a GPU has no length, and ends no wait.
    own = sorted((op.start, op.end) for op in step.ops if op.device == device and op.length)
    for start, end in [*own, (step.length, step.length)]:
        if start - reached > step.length / 100:
            waits.append((1e3 * reached, 1e3 * start))
        reached = max(reached, end)
    return waits


def ranges(
    found: Mapping[str, tuple[float, float]],
    measured: Mapping[str, float] | None = None,
    ax: Any = None,
    *,
    title: str,
    across: str,
    source: str | None = None,
    limit: float | None = None,
) -> Any:
    """Draw a bar from the least to the most for each name, and a dot where one was measured.

    Without dots both numbers stand beside the bar. A limit is a dashed line with its value; then
    what it decides stands there, too: to buy from the least on, to rent from the most on.
    """
    ax = axes(ax, size=(6.4, 1.1 + 0.26 * len(found)), source=source)
    lows, highs = zip(*found.values(), strict=True)
    widths = [high - low for low, high in found.values()]
    ax.barh(range(len(found)), widths, 0.5, left=lows, color="#5f87a3", label="predicted")
    if measured:
        at = [row for row, name in enumerate(found) if name in measured]
        ax.plot([measured[name] for name in found if name in measured], at, "o", color="#a8483a",
                label="measured")  # fmt: skip
    else:  # where a dot says it, numbers beside the bars say it again
        for row, (low, high) in enumerate(found.values()):
            text = f"{low:.2f} to {high:.2f}"
            if limit is not None:
                text += ": buy" if low >= limit else ": rent" if high >= limit else ": do not buy"
            note(ax, text, (max(highs), row), (8, 0), va="center", size=8.5, annotation_clip=False)
    rows(ax, list(found))
    ax.set_xlim(min(lows) - 0.05, max(highs) + 0.02)
    if limit is not None:
        ax.axvline(limit, color="#222222", linestyle="--")
        note(ax, f"limit {limit:.2f}", (limit, 1), (3, 2), xycoords=UP, va="bottom", size=8.5)
    return label(ax, title, across)


def workers(times: Sequence[Sequence[Sequence[float]]], ax: Any = None) -> Any:
    """Draw when each worker was in its steps, and when it did something else before them.

    Of each worker, times has its steps: when it got there, when it began, and when it ended. A step
    is pale until all workers have begun it.
    """
    ax = axes(ax, size=(8, 1.6), source="two workers on one machine, a core each")
    first = min(steps[0][0] for steps in times)
    last = [max(began for _, began, _ in step) for step in zip(*times, strict=True)]
    for index, steps in enumerate(times):
        lane, shade = (index - 0.35, 0.7), PALETTE[index]
        cut = [(*step, joined) for step, joined in zip(steps, last, strict=True)]
        before = [(got - first, began - got) for got, began, _, _ in cut]
        alone = [(began - first, joined - began) for _, began, _, joined in cut]
        together = [(joined - first, end - joined) for _, _, end, joined in cut]
        ax.broken_barh(before, lane, color=HOST, linewidth=0)
        ax.broken_barh(alone, lane, color=shade, alpha=0.4, linewidth=0)
        ax.broken_barh(together, lane, color=shade, linewidth=0)
    rows(ax, [f"worker {index}" for index in range(len(times))])
    title = "Grey: worker 1 pauses 0.05 s. Pale: worker 0 is in a step alone. Full: both are"
    return label(ax, title, "time, s")


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


def both_ways(step: Trace, model: Any, ax: Any = None) -> Any:
    """Draw when each device was in the passes of a model, did other work of the step, or waited.

    Keras names an operation after its model; in the backward pass TensorFlow adds "gradient".
    What runs on the host is left out.
    """

    def name(op: Op) -> str:
        if "gradient" in op.name:
            return "backward"
        return "forward" if model.name in op.name else "other"

    return _in_two_shades(step, name, ("forward", "backward"), ax)


def networks(step: Trace, dark: str, light: str, ax: Any = None) -> Any:
    """Draw when each device computed either of two networks, forward or backward, or waited.

    A line stands where a gradient has been added up; small ones, as of biases, have none. What
    runs on the host is left out.
    """
    from mgpu_helpers.trace.layers import layer

    def name(op: Op) -> str:
        found = layer(op.name, (dark, light), 1)
        return found if found in (dark, light) else "other"

    lines = [1e3 * op.end for op in _large(_meetings(step))]
    ax = _in_two_shades(step, name, (dark, light), ax, lines)
    ax.set_title(f"{ax.get_title('left')}.\nBlack line: the gradients of all devices are added up",
                 loc="left")  # fmt: skip
    for end in lines:
        ax.axvline(end, color=DARK, linewidth=1.2)
    return ax


def _in_two_shades(
    step: Trace, name: Callable[[Op], str], names: tuple[str, str], ax: Any = None,
    lines: Sequence[float] = (),
) -> Any:  # fmt: skip
    """Draw what has the first name dark, what has the second pale, and waits hatched.

    What ran at once on a device has half the height. A name is written beside what lies on its bar,
    and beside the lines.
    """
    step = _without_host(step)
    ax = axes(ax, size=(8, 1.4 + 0.6 * len(step.devices)))
    boxes, (dark, light) = [], names
    for row, device in enumerate(step.devices):
        shades = {dark: colour(device), light: pale(colour(device)), "other": HOST}
        bars = _joined(step, device, name)
        for place, (start, end, low, high, word) in enumerate(bars):
            ax.broken_barh([(start, end - start)], (row + low, high), facecolor=shades[word],
                           edgecolor="white", linewidth=0.4)  # fmt: skip
            if word != "other":
                over = [(a, b) for a, b, *_ in bars[place + 1 :]] + [(at, at) for at in lines]
                left, right = _free(start, end, over)
                boxes.append((left, row + low, right - left, high, word, "white"))
    for row, device in enumerate(step.devices):
        for start, end in _waits(step, device):
            ax.broken_barh([(start, end - start)], (row - 0.4, 0.8), facecolor="none",
                           edgecolor="#bbbbbb", hatch="//", linewidth=0.5)  # fmt: skip
    rows(ax, [f"{each}\n{1 - step.idle(each):.0%} busy" for each in step.devices])
    ax.set_xlim(0, 1e3 * step.length)
    title = f"Dark: {dark}. Pale: {light}. Grey: other work. Hatched: may be waiting"
    label(ax, title, "time in the step, ms")
    write(ax, boxes, size=8)
    return ax


def steps(
    traces: Mapping[str, Trace], ax: Any = None, *, line: str = "a gradient is added up",
    last: bool = False, numbered: bool = False, devices: Sequence[str] = (), dense: bool = False,
) -> Any:  # fmt: skip
    """Draw steps on one clock: convolutions dark, the rest pale, a line where gradients are added.

    A bar of half the height ran, for a tenth of it or more, while another of the same device did.
    `line` says in the legend what the lines are, or "" for no lines; small sums, as of biases,
    have none. With `last` there is one line, where the last gradient has been added. With
    `numbered` a device's convolutions have numbers, in the order of their starts, on the left of
    what is too narrow for one, and the lines are short, between the rows of devices. Each step has
    a row for each of `devices`, or for those that computed a convolution. With `dense` the matrix
    products of dense layers are dark as well, and have a word.
    """
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    def dark(op: Op) -> bool:
        return _convolves(op) or dense and "MatMul" in op.type

    computed = [devices or sorted({op.device for op in step.ops if _convolves(op)})
                for step in traces.values()]  # fmt: skip
    ax = axes(ax, size=(8, 1.4 + 0.42 * (len(traces) + sum(map(len, computed)))))
    names: dict[float, str] = {}
    boxes, row = [], 0.0
    for (title, step), places in zip(traces.items(), computed, strict=True):
        took = f"{1e3 * step.length:.{int(step.length < 0.01)}f} ms"
        ax.text(0.006, row + 0.3, f"{title}: {took}", weight="bold", va="bottom",
                transform=ax.get_yaxis_transform())  # fmt: skip
        for number, device in enumerate(places, 1):
            names[row + number] = device
            starts = sorted(op.start for op in step.ops if _convolves(op) and op.device == device)
            for op, low, high in _beside(step, device):
                low, shade = low + row + number, colour(device)
                ax.broken_barh([(1e3 * op.start, 1e3 * op.length)], (low, high), facecolor=shade,
                               alpha=1 if dark(op) else 0.4, edgecolor="white",
                               linewidth=0.5)  # fmt: skip
                if word := _kind(op) or "dense" * dark(op):
                    if numbered and _convolves(op):
                        word = f"{starts.index(op.start) + 1} {word}"
                    ink = "white" if dark(op) else DARK
                    boxes.append((1e3 * op.start, low, 1e3 * op.length, high, word, ink))
        if line and len(places) > 1:
            sums = [op for op in step.ops if _adds_up(op)]
            if numbered:  # and none that adds up what one replica has made
                ends = {*_sums(step)}
                sums = [op for op in sums if op.end in ends or "Reduce" in op.type]
            added = sorted(1e3 * op.end for op in (sums if last else _large(sums)))
            added = added[-1:] if last else added
            gaps = [(row + n + 0.36, row + n + 0.64) for n in range(1, len(places))]
            for low, high in gaps if numbered else [(row + 0.5, row + len(places) + 0.5)]:
                ax.vlines(added, low, high, color=DARK, linewidth=1.6 if numbered else 1.2)
        row += len(places) + 1
    ax.set_yticks([*names], [*names.values()])
    ax.set(ylim=(row - 0.4, 0), xlim=(0, 1005 * max(step.length for step in traces.values())))
    shades = [colour(device) for device in dict.fromkeys(names.values())]
    handles: list[Any] = [
        tuple(Patch(color=shade, alpha=alpha, lw=0) for shade in shades) for alpha in (1, 0.4)
    ]
    words = ["convolution or dense layer" if dense else "convolution", "other work"]
    if line:
        handles += ax.plot([], [], color=DARK, linewidth=1.2)
        words.append(line)
    ax.legend(handles, words, loc="lower left", ncols=3, bbox_to_anchor=(0, 1), frameon=False,
              handler_map={tuple: HandlerTuple(ndivide=None, pad=0)})  # fmt: skip
    label(ax, "", "time in the step, ms")
    room = text_sizes(ax, (text for box in boxes for text in (box[4], box[4].split(" ")[0])), 8)
    boxes = [(*box[:4], box[4] if room[box[4]][0] < box[2] else box[4].split(" ")[0], box[5])
             for box in boxes]  # fmt: skip
    thin = [box for box in boxes if box[4].isdigit() and room[box[4]][0] >= box[2]]
    write(ax, [box for box in boxes if box not in thin], size=8, upright=True)
    tight = [box for box in thin if 0.55 * room[box[4]][0] < box[2]]  # with no room around it
    for left, low, wide, high, word, ink in tight:
        ax.text(left + wide / 2, low + high / 2, word, size=7, color=ink, ha="center", va="center")
    begun: dict[float, list[Any]] = defaultdict(list)  # by row: texts, where their box ends
    for left, low, wide, high, word, _ in sorted({*thin} - {*tight}):
        if begun[low] and left - begun[low][-1][1] < room[word][0]:  # no room between the two
            text = begun[low].pop()[0]
            text.set_text(f"{text.get_text()}{word} ")
        else:
            text = ax.text(left, low + high / 2, f"{word} ", size=8, ha="right", va="center")
        begun[low].append((text, left + wide))
    return ax


def _convolves(op: Op) -> bool:
    return "Conv2D" in op.type


def _kind(op: Op) -> str:
    """Say in a word what an operation of a convolutional network does, "" where it needs none."""
    if _convolves(op):
        return "backward" if "Backprop" in op.type else "forward"
    words = {"PoolGrad": "pool\N{NO-BREAK SPACE}back", "ReluGrad": "ReLU\N{NO-BREAK SPACE}back",
             "Pool": "pool", "Relu": "ReLU"}  # fmt: skip
    return next((word for part, word in words.items() if part in op.type), "")


def _adds_up(op: Op) -> bool:
    """Say whether an operation adds up the gradients of several devices."""
    kinds = "AddN", "AllReduce", "CollectiveReduce"
    return any(kind in op.type for kind in kinds) and op.bytes != 4  # which is a loss


def _meetings(step: Trace) -> list[Op]:
    """List the additions of gradients of several devices, and none of what one device has made.

    TensorFlow may make one addition of that of a device's own gradients and that of all devices'.
    """
    parts = _parts(step)
    return [op for op in step.ops if _adds_up(op) and (
        "Reduce" in op.type or len({each.device for each in parts[op.name]}) > 1
    )]  # fmt: skip


def _large(sums: Sequence[Op]) -> list[Op]:
    least = max((op.bytes for op in sums), default=0) / 10
    return [op for op in sums if op.bytes >= least]


def _free(start: float, end: float, over: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Give the longest part of a stretch that none of others covers."""
    free, reached = [], start
    for a, b in [*sorted((a, b) for a, b in over if a < end and b > start), (end, end)]:
        free.append((reached, max(a, reached)))
        reached = max(reached, b)
    return max(free, key=lambda part: part[1] - part[0])


def _joined(
    step: Trace, device: str, name: Callable[[Op], str]
) -> list[tuple[float, float, float, float, str]]:
    """Make one bar of neighbours of a device with one name: start, end, place, height, the name."""
    gap = 1e3 * step.length / 600  # about a pixel
    lanes: dict[tuple[float, float, str], list[list[float]]] = defaultdict(list)
    for op, low, high in sorted(_beside(step, device), key=lambda each: each[0].start):
        bars, start, end = lanes[low, high, name(op)], 1e3 * op.start, 1e3 * op.end
        if bars and start - bars[-1][1] <= gap:
            bars[-1][1] = max(end, bars[-1][1])
        elif op.length:
            bars.append([start, end])
    found = [(start, end, *lane) for lane, bars in lanes.items() for start, end in bars]
    return sorted(found, key=lambda bar: (bar[0] - bar[1], bar[0]))  # short ones lie on top


def _beside(step: Trace, device: str) -> list[tuple[Op, float, float]]:
    """Give a device's operations, each with its place and height about 0: those at once share."""
    from mgpu_helpers.trace.records import lanes
    from mgpu_helpers.trace.step import working

    ops = [op for op in working(step) if op.device == device]
    long = [op for op in ops if op.length > 0.01 * step.length]
    laid = [(op, -0.4, 0.8) for op in ops if op not in long]
    for lane, those in enumerate(lanes(long)):
        for op in those:
            beside = sum(max(0.0, min(op.end, each.end) - max(op.start, each.start))
                         for each in long if each is not op)  # fmt: skip
            at_once = beside > 0.1 * op.length
            high = 0.4 if at_once else 0.8
            laid.append((op, -0.4 + high * min(lane, 1) * at_once, high))
    return sorted(laid, key=lambda each: -each[0].length)  # the short ones lie on top


def _has_kernel() -> bool:
    """Say whether this code runs in a notebook's kernel."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
