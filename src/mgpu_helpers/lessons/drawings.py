"""Charts that one lesson draws once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_helpers._formatting import size_text
from mgpu_helpers.charts.base import HOST, IDEAL, axes, colour, corner, label, rows, style
from mgpu_helpers.charts.memory import _backward as backward_begins


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


def hills(steps: Mapping[str, Any], device: str) -> None:
    """Draw what each of four steps holds, and the most of the first as a grey line.

    Across are the moments at which that changes, without their times. Several hills are numbered.
    """
    import matplotlib.pyplot as plt

    most = next(iter(steps.values())).peak(device) / 1e6
    with plt.style.context(style()):
        figure, grid = plt.subplots(2, 2, figsize=(8, 5.2), sharey=True)
        layout: Any = figure.get_layout_engine()
        layout.set(rect=(0, 0.04, 1, 0.96))
        for ax, (name, step) in zip(grid.flat, steps.items(), strict=True):
            times, held = np.array(step.memory[device]).T
            held, begins = held / 1e6, np.searchsorted(times, backward_begins(step) or 0.0)
            ax.step(range(len(held)), held, where="post", color=colour(device))
            ax.axhline(most, color="#b9bcc1", zorder=0)
            ax.axvline(begins, **IDEAL)
            ax.annotate("backward pass", (begins, 1.14 * most), (5, 0), size=9, va="top",
                        color="#444444", textcoords="offset points")  # fmt: skip
            tops = _tops(held)
            for number, (middle, high) in enumerate(tops if len(tops) > 1 else [], 1):
                ax.annotate(f"{number}", (middle, high), (0, 3), weight="bold", ha="center",
                            textcoords="offset points")  # fmt: skip
            share = f", {held.max() / most:.0%}" if held.max() < most else ""
            label(ax, f"{name}: {held.max():.1f} MB{share}", "operations, in their order",
                  "held, MB" if ax in grid[:, 0] else "")  # fmt: skip
            ax.set(xticks=[], xlim=(0, len(held) - 1), ylim=(0, 1.15 * most))
        corner(figure)


def _tops(held: Sequence[float]) -> list[tuple[float, float]]:
    """Find the middle and the height of each hill: over half of the peak, between two valleys."""
    peak, found, hill = max(held), [], list[int]()
    for i, size in enumerate([*held, 0]):
        if hill and size < 0.35 * peak:
            found.append(((hill[0] + i) / 2, max(held[hill[0] : i])))
            hill = []
        elif hill or size > 0.5 * peak:
            hill.append(i)
    return found


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


def _has_kernel() -> bool:
    """Say whether this code runs in a notebook's kernel."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
