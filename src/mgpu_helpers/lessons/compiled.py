"""What lesson 08 counts: the functions that XLA compiles of a step, and what they leave."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mgpu_helpers import charts, trace
from mgpu_helpers.charts.base import panels

MOVES = ("VariableOp", "Iterator", "Optional", "StridedSlice", "Identity", "VarHandle")
IDLE = {"Const", "Placeholder", "Identity"}


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


def draw(steps: Mapping[str, trace.Trace], *names: str) -> None:
    """Draw steps one below the other; in each, name a device's compiled functions, in order."""
    with panels(len(steps), 1, figsize=(8, 4.6), sharex=True) as (_, grid):
        for ax, (title, step) in zip(grid.flat, steps.items(), strict=True):
            left = {device: iter(names) for device in step.devices}
            ops = (  # which have the order of their starts
                replace(op, name=next(left[op.device], op.name)) if "Call" in op.type else op
                for op in step.ops
            )
            charts.timeline(replace(step, ops=tuple(ops)), ax, by="operation")
            ax.set_title(title, loc="left")
            ax.label_outer()
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
