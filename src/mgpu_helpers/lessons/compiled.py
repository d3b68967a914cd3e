"""What lesson 08 counts: the functions that XLA compiles of a step, and what they leave."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mgpu_helpers import trace
from mgpu_helpers.charts.base import HOST, colour, label, pale, panels, rows, write
from mgpu_helpers.trace.step import working

MOVES = ("VariableOp", "Iterator", "Optional", "StridedSlice", "Identity", "VarHandle")
IDLE = {"Const", "Placeholder", "Identity"}
_CALL = re.compile(r"(?:Stateful)?PartitionedCall(?:_(\d+))?(?=/|$)")


def functions(model: Any, x: Any, y: Any, **options: Any) -> tuple[list[tuple[str, int]], int]:
    """Fit a model; give the device and the operations of each compiled function of its step.

    The number is of the operations that compute and are in none of them.
    """
    from mgpu_helpers.fit import _islands

    kept: list[Any] = []
    of_fit = _islands.Compiled
    _islands.Compiled = lambda *of: kept.append(of_fit(*of)) or kept[-1]  # type: ignore
    try:
        model.fit(x, y, **options)
    finally:
        _islands.Compiled = of_fit  # type: ignore
    islands = max((each.islands for each in kept), key=lambda each: len(each.sizes))
    alone = (n for kind, n in islands.alone.items() if not any(each in kind for each in MOVES))
    return islands.sizes, sum(alone)


def traced(step: Callable[..., Any], *data: Any) -> trace.Trace:
    """Trace a step, a compiled function as one operation; give the shortest of five traces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XLA compiles")
        every = [trace.function_step(step, *data)[1] for _ in range(5)]
    return min(every, key=lambda each: each.length)


def started(step: trace.Trace) -> str:
    """Say how many operations of a step compute, by device."""
    idle = (op.type in IDLE or "Var" in op.type for op in step.ops)
    found = Counter(op.device for op, each in zip(step.ops, idle, strict=True) if not each)
    return ", ".join(f"{n} on {device}" for device, n in sorted(found.items()))


def draw(steps: Mapping[str, trace.Trace], dark: str, light: str) -> None:
    """Draw steps one below the other: what each device's first function starts, and its second.

    A step calls the first function on every device and then the second, and TensorFlow numbers its
    calls. What is in neither, such as writing variables, is grey.
    """
    with panels(len(steps), 1, figsize=(8, 4.8), sharex=True) as (_, grid):
        for ax, (title, step) in zip(grid.flat, steps.items(), strict=True):
            calls = {int(found[1] or 0) for op in step.ops if (found := _CALL.match(op.name))}
            half, boxes = (max(calls) + 1) // 2, []
            for op in sorted(working(step), key=lambda op: "Var" not in op.type):
                call = _CALL.match(op.name)
                first = call and int(call[1] or 0) < half
                shade = colour(op.device) if call else HOST
                bar = 1e3 * op.start, step.devices.index(op.device) - 0.38, 1e3 * op.length, 0.76
                ax.broken_barh([bar[::2]], bar[1::2], linewidth=0.2, edgecolor="white",
                               facecolor=shade if first or not call else pale(shade))  # fmt: skip
                if "Call" in op.type:
                    boxes.append((*bar, dark if first else light, "white"))
            rows(ax, [f"{each}\n{1 - step.idle(each):.0%} busy" for each in step.devices])
            label(ax, f"{title}. Dark: {dark}. Pale: {light}. Grey: other work",
                  "time in the step, ms" if ax is grid.flat[-1] else "")  # fmt: skip
            write(ax, boxes)
        ax.set_xlim(0, 1e3 * max(step.length for step in steps.values()))


def kernels(function: Callable[..., Any], *args: Any) -> str:
    """Compile a function; say by kind what it then runs: products, fused loops."""
    import tensorflow as tf

    given = tf.nest.map_structure(tf.constant, args)
    compiled = tf.function(function, jit_compile=True)
    text = compiled.experimental_get_compiler_ir(*given)(stage="optimized_hlo")
    kinds = re.findall(r"(?m)^ .*? = \S+ ([\w-]+)\(", text[text.index("\nENTRY") :])
    found = Counter(kind for kind in kinds if kind not in ("parameter", "constant", "bitcast"))
    return ", ".join(f"{n} {kind}" for kind, n in found.most_common())
