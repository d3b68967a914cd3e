"""Charts that one lesson draws once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers._formatting import size_text
from mgpu_helpers.charts.base import DARK, HOST, axes, colour, label, rows, write

if TYPE_CHECKING:
    from mgpu_helpers.trace.records import Op
    from mgpu_helpers.trace.step import Trace


def from_gpus(lesson: str, folder: str | os.PathLike[str] = "../results") -> None:
    """Show the pictures that `make gpu` kept of a lesson on machines with GPUs, or say none is."""
    from IPython.display import Image, display

    pictures = sorted(Path(folder).glob(f"gpu-*/{lesson}_*.png"))
    for picture in pictures:
        print(picture.parent.name)
        display(Image(picture, alt=f"the same on {picture.parent.name}"))
    if not pictures:
        print("none yet: make gpu, on a machine with GPUs, keeps one")


def against_pieces(ways: Mapping[str, Mapping[int, int]], ax: Any = None) -> Any:
    """Draw the bytes that a step holds against the number of micro-batches, a line for each way."""
    ax = axes(ax)
    for i, (name, sizes) in enumerate(ways.items()):
        ax.plot([*sizes], [size / 1e6 for size in sizes.values()], label=name,
                color=("#333333", "#b8860b", "#4f8f4f")[i % 3], marker="os^"[i % 3])  # fmt: skip
    counts = sorted({m for sizes in ways.values() for m in sizes})
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, counts)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("micro-batches")
    ax.set_ylabel("held at most, MB")
    ax.set_title("What the first device holds", loc="left")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def lab(
    records: Sequence[Mapping[str, Any]], ax: Any = None, *, source: str | None = None
) -> Any:
    """Draw what each memory option takes, as scripts/hold_memory.py reports it.

    source stands in the corner where the numbers are not of this machine.

    A record has an option, and bytes, or those of several moments, for driver, allocator and
    process, or what was calculated: the most is drawn. What no record has is left out.
    """
    named = {"driver": "given by the driver", "allocator": "tensors at most", "process": "process",
             "calculated": "calculated"}  # fmt: skip
    kinds = [kind for kind in named if any(record.get(kind) is not None for record in records)]
    shades = {"driver": "#333333", "allocator": "#b8860b", "process": HOST}
    shades["calculated"] = "#8a8f98"
    ax = axes(ax, size=(8, 0.9 + (0.16 + 0.17 * len(kinds)) * len(records)), source=source)
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


def accuracies(shares: Mapping[str, float], ax: Any = None, *, of: int | None = None) -> Any:
    """Draw the share of right answers, 0 to 1, a point for each name.

    `of` says how many answers there were: then a line reaches one standard error to each side, and
    the label names it.
    """
    ax = axes(ax, size=(6, 0.9 + 0.34 * len(shares)))
    errors = [100 * (share * (1 - share) / of) ** 0.5 if of else 0.0 for share in shares.values()]
    least = min(100 * share - error for share, error in zip(shares.values(), errors, strict=True))
    wide = 102 - least  # as far as 100 %, and beside it a third as much for the numbers
    for row, (share, error) in enumerate(zip(shares.values(), errors, strict=True)):
        ax.errorbar(100 * share, row, xerr=error or None, fmt="o", color="#333333", capsize=3)
        text = f"{100 * share:.1f} %" + (f" ± {error:.1f}" if of else "")
        ax.text(100 + wide * 0.06, row, text, va="center", size=9)
    ax.set_yticks(range(len(shares)), list(shares))
    ax.set_xlim(least - 0.06 * wide, 100 + 0.4 * wide)
    ax.set_xticks([tick for tick in ax.get_xticks() if least - 0.06 * wide <= tick <= 100])
    ax.set_ylim(len(shares) - 0.5, -0.5)
    ax.set_xlabel("right answers, %")
    ax.set_title("Accuracy on unseen digits", loc="left")
    return ax


def against_rate(curves: Mapping[str, Mapping[float, float]], ax: Any = None, *, of: int) -> Any:
    """Draw the share of right answers, 0 to 1, against the learning rate, a line for each name.

    Of `of` answers: a bar reaches one standard error to each side.
    """
    ax = axes(ax, size=(5.2, 3.2))
    for i, (name, shares) in enumerate(curves.items()):
        errors = [100 * (share * (1 - share) / of) ** 0.5 for share in shares.values()]
        ax.errorbar([*shares], [100 * share for share in shares.values()], errors, label=name,
                    color=("#333333", "#b8860b", "#4f8f4f")[i % 3], fmt="os^"[i % 3] + "-",
                    ms=5 + 3 * i, mfc="none" if i else None, capsize=7)  # fmt: skip
    rates = sorted({rate for shares in curves.values() for rate in shares})
    ax.set_xscale("log")
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.minorticks_off()
    ax.set_ylim(0, 100)
    ax.legend(loc="upper right", frameon=False)
    return label(ax, "Accuracy on unseen digits", "learning rate", "right answers, %")


def ranges(
    found: Mapping[str, tuple[float, float]],
    measured: Mapping[str, float] | None = None,
    ax: Any = None,
    *,
    title: str,
    across: str,
    source: str | None = None,
) -> Any:
    """Draw a bar from the least to the most for each name, and a dot where one was measured."""
    ax = axes(ax, size=(6.4, 1.1 + 0.26 * len(found)), source=source)
    lows, highs = zip(*found.values(), strict=True)
    widths = [high - low for low, high in found.values()]
    ax.barh(range(len(found)), widths, 0.5, left=lows, color="#5f87a3", label="predicted")
    for row, (low, high) in enumerate(found.values()):
        ax.annotate(f"{low:.2f} to {high:.2f}", (max(highs), row), (8, 0), va="center", size=8.5,
                    textcoords="offset points", annotation_clip=False)  # fmt: skip
    if measured:
        at = [row for row, name in enumerate(found) if name in measured]
        ax.plot([measured[name] for name in found if name in measured], at, "o", color="#a8483a",
                label="measured")  # fmt: skip
    rows(ax, list(found))
    ax.set_xlim(min(lows) - 0.05, max(highs) + 0.02)
    return label(ax, title, across)


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


def steps(traces: Mapping[str, Trace], ax: Any = None) -> Any:
    """Draw steps on one clock: convolutions dark, the rest pale, a line where gradients are added.

    A bar of half the height ran while another one of the same device did.
    """
    from matplotlib.patches import Patch

    computed = [sorted({op.device for op in step.ops if _convolves(op)})
                for step in traces.values()]  # fmt: skip
    ax = axes(ax, size=(8, 1.4 + 0.42 * (len(traces) + sum(map(len, computed)))))
    names: dict[float, str] = {}
    boxes, row = [], 0.0
    for (title, step), devices in zip(traces.items(), computed, strict=True):
        ax.text(0, row + 0.3, f"{title}: {1e3 * step.length:.0f} ms", weight="bold", va="bottom")
        for number, device in enumerate(devices, 1):
            names[row + number] = device
            for op, low, high in _beside(step, device):
                low, shade = low + row + number, colour(device)
                ax.broken_barh([(1e3 * op.start, 1e3 * op.length)], (low, high), facecolor=shade,
                               alpha=1 if _convolves(op) else 0.4, edgecolor="white",
                               linewidth=0.5)  # fmt: skip
                if _convolves(op):
                    way = "backward" if "Backprop" in op.type else "forward"
                    boxes.append((1e3 * op.start, low, 1e3 * op.length, high, way, "white"))
        if len(devices) > 1:
            added = [1e3 * op.end for op in step.ops if _adds_up(op)]
            ax.vlines(added, row + 0.5, row + len(devices) + 0.5, color=DARK, linewidth=1.2)
        row += len(devices) + 1
    ax.set_yticks([*names], [*names.values()])
    ax.set(ylim=(row - 0.4, 0), xlim=(0, 1e3 * max(step.length for step in traces.values())))
    handles = [Patch(color="#555", label="convolution"), Patch(color="#bbb", label="other work")]
    handles += ax.plot([], [], color=DARK, linewidth=1.2, label="a gradient is added up")
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
    label(ax, "", "time in the step, ms")
    write(ax, boxes, size=8)
    return ax


def _convolves(op: Op) -> bool:
    return "Conv2D" in op.type


def _adds_up(op: Op) -> bool:
    """Say whether an operation adds up the gradients of several devices."""
    kinds = "AddN", "AllReduce", "CollectiveReduce"
    return any(kind in op.type for kind in kinds) and op.bytes != 4  # which is a loss


def _beside(step: Trace, device: str) -> list[tuple[Op, float, float]]:
    """Give a device's operations, each with its place and height about 0: those at once share."""
    from mgpu_helpers.trace.records import lanes
    from mgpu_helpers.trace.step import working

    ops = [op for op in working(step) if op.device == device]
    long = [op for op in ops if op.length > 0.01 * step.length]
    laid = [(op, -0.4, 0.8) for op in ops if op not in long]
    for lane, those in enumerate(lanes(long)):
        for op in those:
            at_once = sum(op.start < each.end and each.start < op.end for each in long) > 1
            high = 0.4 if at_once else 0.8
            laid.append((op, -0.4 + high * min(lane, 1) * at_once, high))
    return laid


def _has_kernel() -> bool:
    """Say whether this code runs in a notebook's kernel."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
