"""What a training step of a Keras model would hold, counted from its graph before anything runs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_helpers._formatting import size_text
from mgpu_helpers._given import given
from mgpu_helpers._models import laid_out
from mgpu_helpers.graph.cuts import bytes_of
from mgpu_helpers.graph.step import replicas_of, training_step
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown
from mgpu_helpers.memory.borrowing import borrowed, sentence
from mgpu_helpers.memory.liveness import counted, entered
from mgpu_helpers.memory.order import DEVICE
from mgpu_helpers.memory.use import MemoryUse, by_use
from mgpu_helpers.trace.step import Trace

# Threads may take operations in a slightly different order. The cards of benchmarks/predictions.py
# and benchmarks/ranges.py have what was traced of many models and optimizers beside the ranges.
MARGIN, BESIDE = 0.2, 0.1  # of one thread, and with others, whose most is counted
_PROBES = 13, 29  # no size of a layer, which might be taken for that of a batch


@dataclass(frozen=True, repr=False)
class Predicted(MemoryUse):
    """What a step was counted to hold, and from how much to how much it may really be, in bytes.

    trace is the step as it was counted, one tick an operation, for `at_peak` and the charts.
    """

    batch: int = 0
    low: int = 0
    high: int = 0
    trace: Trace | None = field(default=None, compare=False)
    #: what convolutions borrow at most while they run on this machine's CPU, without oneDNN
    borrowed: int = 0
    took: str = ""  #: the sizes of an example, where the model alone does not say them

    def __repr__(self) -> str:
        return (
            f"{super().__repr__()}\ncounted for a batch of {self.batch} on a device, not run: "
            f"about {size_text(self.total)}, in a range of {size_text(self.low)} to "
            f"{size_text(self.high)}"
            + f"\nan example has {self.took}" * bool(self.took)
            + f"\n{sentence(self.borrowed)}" * bool(self.borrowed)
        )


def predict(model: Any, batch: Any, optimizer: Any = None, *, length: Any = None) -> Predicted:
    """Count the bytes that a step of `fit` on one device would hold at its peak; nothing runs.

    batch is what one device gets: where several train together, its share of the whole batch.
    Where inputs have open sizes, as those of language models, length is the one number that all of
    them are. In place of the number, batch may be what `fit` takes: a batch (x, y) or
    (x, y, sample_weight), or a dataset, whose first batch is looked at; or length may be that, for
    as many examples as batch says. `took` has the sizes then.

    A model that was made in the scope of `fit.strategy` is counted as one of its replicas, and one
    that `fit.use` has laid out as on one device: in its pieces, the larger of which count where
    they are not even, and with its recompute; stages and owners are left to `plan`. The step
    is what the model was compiled for, with its loss, metrics, precision and own optimizer; Adam
    where it was not compiled. optimizer overrules it: "adam", "sgd", "momentum", another name that
    Keras knows, or a keras.optimizers.Optimizer.

    Weights and slots are exact; what `gradient_accumulation_steps` adds up counts with the slots,
    which are held all the time. The rest is what the step's graph holds when its operations run in
    the order in which TensorFlow starts them on a CPU. The range begins a fifth below the least of
    what they hold in that order, in the one on a GPU, and where other threads use each gradient up
    as it comes, with the smaller branch where a step has two (one that only accumulates, or is
    skipped for its loss scale) and no overlap of a loop's rounds. It ends a fifth above the most in
    the first two, with the larger branch and all rounds at once; or, if that is more, a tenth above
    what is held where other threads update two weights while the first still goes back and reads
    them, so that a weight is there twice, where two of them make something of one gradient at once,
    or where they come to the gradients of weights late.

    Not in it: the batch that is fed, sample weights, what a library borrows while an operation runs
    (cuDNN's workspace; where this machine's CPU computes without oneDNN, `borrowed` says what
    convolutions take, a second line), what a GPU's allocator adds (3 to 9 % on an H100),
    and what XLA saves or adds. A model made in a `keras.RematScope` is refused, as `fit` refuses
    it: Keras's recomputation does not work in a TensorFlow graph. That of `fit.use` does.
    Where a step can be run, `measure` is nearer.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> predict(model, batch=64, optimizer="momentum")
    weights      2.48 kB
    slots        2.49 kB
    gradients    ...
    counted for a batch of 64 on a device, not run: about ...
    """
    data = given(model, batch, length)
    traces, (weights, slots, states), taken = _steps(model, data, optimizer)
    held = by_use(traces[0], DEVICE, weights=weights, slots=slots)
    fixed = weights + slots + states
    peaks = [trace.peak(DEVICE) for trace in traces]
    low = (1 - MARGIN) * min(peaks)
    # Replicas exchange gradients beside those that are used already; pieces add them up.
    laid = laid_out(model)
    several = replicas_of(model) > 1 or laid is not None and laid.layout.pieces > 1
    high = highest(peaks, MARGIN if several else BESIDE)
    return Predicted(
        weights, slots, held.gradients, held.activations + states, batch=data.batch,
        low=fixed + round(low), high=fixed + round(high), trace=traces[0],
        borrowed=taken, took=data.took,
    )  # fmt: skip


@contextlib.contextmanager
def or_measured(model: Any) -> Iterator[None]:
    """Say what else there is for a model whose graph does not tell what it holds."""
    try:
        yield
    except Unknown as reason:
        raise ValueError(
            f"what {model.name} holds cannot be counted: {reason} Trace steps of it, with "
            "memory.measure."
        ) from None


def highest(peaks: Sequence[float], beside: float = BESIDE) -> float:
    """Give the upper end from what is held in several orders.

    The last three are with other threads, and the one before is for the lower end.
    """
    return max((1 + MARGIN) * max(peaks[:-4]), (1 + beside) * max(peaks[-3:]))


def fits(model: Any, budget: float, optimizer: Any = None, *, length: Any = None) -> int:
    """Give the largest batch on a device whose step of `fit` fits into a budget of bytes.

    It is what one device may get; n devices that train together take n times as many. What counts
    is the upper end of the range that `predict` gives. At each moment a step holds a number of
    bytes, and so many more for each example; two batches tell both numbers. length is as in
    `predict`: what open sizes are, or data.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> batch = fits(model, 10**6)
    >>> predict(model, batch).high <= 10**6 < predict(model, batch + 1).high
    True
    """
    budget = int(budget)  # there is no largest batch for an infinite one
    data = given(model, 1, length)
    probes = [_steps(model, replace(data, batch=batch), optimizer) for batch in _PROBES]
    (small, held, _), (large, *_) = probes
    moments = [(_moments(a), _moments(b)) for a, b in zip(small, large, strict=True)]

    def high(batch: int) -> int:
        return sum(held) + round(highest([_at(batch, *pair) for pair in moments]))

    if (least := high(1)) > budget:
        raise ValueError(
            f"{size_text(budget)} do not hold {model.name}: a batch of 1 may take "
            f"{size_text(least)}. Slots take {size_text(held[1])}, which optimizer='sgd' does "
            "without; keras.config.set_dtype_policy('mixed_bfloat16') halves most of the other "
            f"{size_text(least - sum(held))}; fit.use(model, plan, stages=2) splits the "
            "layers over devices."
        )
    guess = bisect_right(range(1, sys.maxsize), budget, key=high)
    most = lambda batch: predict(model, replace(data, batch=batch), optimizer).high  # noqa: E731
    return _boundary(most, budget, guess)


def _boundary(high: Callable[[int], int], budget: int, guess: int) -> int:
    """Give the largest batch with high(batch) <= budget; as a rule that is the guess.

    At other sizes a step may hold most at a moment that neither of two small batches shows.
    """
    low, beyond = 1, guess + 1
    while (most := high(beyond)) <= budget:
        low, beyond = beyond, 2 * beyond
    least = high(low)
    turns = itertools.cycle((False, False, True))
    while beyond - low > 1:
        batch = min(max(guess, low + 1), beyond - 1)
        if (held := high(batch)) <= budget:
            low, least = batch, held
        else:
            beyond, most = batch, held
        share = 0.5 if next(turns) else (budget - least) / (most - least)
        guess = low + int(share * (beyond - low))
    return low


def _steps(model: Any, batch: Any, optimizer: Any) -> tuple[list[Trace], tuple[int, ...], int]:
    """Count a step as it is likely to run, with the least and most at once, and with other threads.

    What stays is the bytes of the weights, of the slots, and of the metrics' states; the last
    number is what is borrowed.
    """
    if (laid := laid_out(model)) is not None:  # larger pieces count, where they are not even
        pieces = min(laid.layout.pieces, batch.batch)
        batch = replace(batch, batch=pieces * math.ceil(batch.batch / pieces))
    step = training_step(model, batch, optimizer)
    graph = step.concrete.graph
    varies = {op.type for op in graph.get_operations()} & (LOOPS | CALLS | BRANCHES)

    shares = (0, 1) if varies else (0.75,)  # of a loop's rounds at once: the least, the most

    @functools.cache
    def made(overlap: float) -> Any:
        return entered(graph, overlap)

    @functools.cache
    def of(overlap: float, broad: bool, threads: bool = False, updates: str = "") -> Trace:
        return counted(graph, overlap, broad, threads, updates, made(overlap))

    with or_measured(model):
        traces = [of(0.75, False)]
        traces += [of(share, broad) for share in shares for broad in (False, True)]
        traces.append(of(shares[0], False, updates="early"))
        others = ((False, "late"), (True, ""), (False, ""))  # orders of the first thread
        traces += [of(shares[-1], broad, True, updates) for broad, updates in others]
        taken = borrowed(made(0.75)[0])
    return traces, tuple(map(bytes_of, (step.weights, step.slots, step.states))), taken


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
