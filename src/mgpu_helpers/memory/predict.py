"""What a training step of a Keras model would hold, counted from its graph before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_helpers.graph.step import training_step
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown
from mgpu_helpers.memory.count import Held, by_use
from mgpu_helpers.memory.liveness import DEVICE, counted
from mgpu_helpers.trace.step import Trace
from mgpu_helpers.wording import size_text, whole_number

# The order in which a step runs is not that of its graph: traced steps of MobileNetV2, a residual
# network and a Transformer held up to 14 % more than was counted (benchmarks/predictions.py).
MARGIN = 0.2
_PROBES = 13, 29  # no size of a layer, which might be taken for that of a batch


@dataclass(frozen=True, repr=False)
class Predicted(Held):
    """What a step was counted to hold, and from how much to how much it may really be, in bytes.

    trace is the step as it was counted, one tick an operation, for `at_peak` and the charts.
    """

    batch: int = 0
    low: int = 0
    high: int = 0
    trace: Trace | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return (
            f"{super().__repr__()}\ncounted for a batch of {self.batch}, not run: about "
            f"{size_text(self.total)}, in a range of {size_text(self.low)} to "
            f"{size_text(self.high)}"
        )


def predict(model: Any, batch: int, optimizer: Any = "adam") -> Predicted:
    """Count the bytes that a training step on one device would hold at its peak; nothing runs.

    optimizer is "adam", "sgd", "momentum", another that Keras knows, or None for the model's own.
    Weights and slots are exact. The rest is what the step's graph holds when its operations run
    one after another, in the order in which they were made. A real step runs them in another
    order, so this is about what it holds. The range is the weights' bytes (a gradient may be used
    up early, or have to wait) and a fifth of the rest to both sides, and what the rounds of a loop
    hold when none or all of them overlap.

    Not in it: the batch that is fed, what a library borrows while an operation runs (im2col
    without oneDNN, cuDNN's workspace), and what a `train_step` of your own does besides. Where a
    step can be run, `measure` is nearer.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> predict(model, batch=64, optimizer="momentum")
    weights      2.48 kB
    slots        2.49 kB
    gradients    ...
    counted for a batch of 64, not run: about ...
    """
    traces, own = _steps(model, batch, optimizer)
    held = by_use(traces[1], DEVICE, **own)
    fixed = sum(own.values())
    low, high = _range([trace.peak(DEVICE) for trace in traces], held.weights)
    return Predicted(
        **held.uses, batch=batch, low=fixed + max(0, round(low)), high=fixed + round(high),
        trace=traces[1],
    )  # fmt: skip


def fits(model: Any, budget: float, optimizer: Any = "adam") -> int:
    """Give the largest batch whose training step fits into a budget of bytes, by `predict`.

    What counts is the upper end of the range that `predict` gives. At each moment a step holds a
    number of bytes, and so many more for each example; two batches tell both numbers.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> batch = fits(model, 10**6)
    >>> predict(model, batch).high <= 10**6 < predict(model, batch + 1).high
    True
    """
    if isinstance(budget, float) and budget.is_integer():  # 16e9
        budget = int(budget)
    budget = whole_number("budget", budget, "a number of bytes", 0)
    probes = [_steps(model, batch, optimizer) for batch in _PROBES]
    own = probes[0][1]
    fixed = own["weights"] + own["slots"]
    moments = [[_moments(trace) for trace in traces] for traces, _ in probes]

    def high(batch: int) -> int:
        peaks = [_at(batch, a, b) for a, b in zip(*moments, strict=True)]
        return fixed + round(_range(peaks, own["weights"])[1])

    if high(1) > budget:
        raise ValueError(
            f"{size_text(budget)} do not hold {model.name}: a batch of 1 may take "
            f"{size_text(high(1))}, weights and slots {size_text(fixed)} of it: use a smaller "
            "model, or an optimizer with fewer slots."
        )
    batch = 1
    while high(2 * batch) <= budget:
        batch *= 2
    step = batch
    while step := step // 2:
        batch += step if high(batch + step) <= budget else 0
    return batch


def _steps(model: Any, batch: int, optimizer: Any) -> tuple[list[Trace], dict[str, Any]]:
    """Count a step whose loops overlap not at all, mostly and wholly; and what stays between."""
    import tensorflow as tf

    step = training_step(model, batch, optimizer)
    try:
        traces = [counted(step.concrete.graph)] * 3
        if {op.type for op in traces[0].ops} & (LOOPS | CALLS | BRANCHES):
            traces = [counted(step.concrete.graph, overlap) for overlap in (0, 0.75, 1)]
    except Unknown as reason:
        raise ValueError(
            f"what {model.name} holds cannot be counted: {reason} Trace steps of it, with "
            "memory.measure."
        ) from None
    weights, slots = (
        sum(v.shape.num_elements() * tf.as_dtype(v.dtype).size for v in each)
        for each in (step.weights, step.slots)
    )
    return traces, {"weights": weights, "slots": slots}


def _range(peaks: Sequence[float], weights: int) -> tuple[float, float]:
    return (1 - MARGIN) * peaks[0] - weights, (1 + MARGIN) * peaks[-1] + weights


def _moments(trace: Trace) -> np.ndarray:
    most: dict[float, int] = {}
    for moment, held in trace.memory[DEVICE]:
        most[moment] = max(held, most.get(moment, 0))
    return np.array([*most.values()])


def _at(batch: int, a: np.ndarray, b: np.ndarray) -> float:
    """Give the peak at a batch from the moments of the two probes."""
    if a.shape != b.shape:  # a buffer was written over in one of them only
        a, b = a.max(), b.max()
    share = (batch - _PROBES[0]) / (_PROBES[1] - _PROBES[0])
    return float(np.max(a + share * (b - a)))
