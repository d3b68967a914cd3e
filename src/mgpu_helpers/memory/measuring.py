"""What a step holds at a large batch, from traces of the same step at small ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_helpers._formatting import size_text
from mgpu_helpers._later import tf
from mgpu_helpers._names import short
from mgpu_helpers.memory.use import at_peak
from mgpu_helpers.trace import Trace, function_step
from mgpu_helpers.trace.function import concrete_of

FAR = 4  # so many times the largest traced batch is as far as a line is trusted
_CERTAIN, _SAME, _LEAST = 0.95, 0.6, 0.05


@dataclass(frozen=True, repr=False)
class Estimate:
    """What a step of a batch holds on a device by the line, in bytes, give or take `error`.

    variables is what lies there between the steps too, so that no trace of one has it.
    """

    batch: int
    bytes: int
    error: int
    variables: int
    doubts: tuple[str, ...] = ()

    @property
    def low(self) -> int:
        """Give what the step may hold at least."""
        return max(0, self.bytes - self.error)

    @property
    def high(self) -> int:
        """Give what the step may hold at most."""
        return self.bytes + self.error

    @property
    def total(self) -> int:
        """Add the variables to what the step holds."""
        return self.bytes + self.variables

    def __repr__(self) -> str:
        own = f"; {size_text(self.total)} with the variables there" if self.variables else ""
        first = (
            f"batch {self.batch}: a step holds {size_text(self.bytes)}, give or take "
            f"{size_text(self.error)}{own}"
        )
        return "\n".join([first, *self.doubts])


@dataclass(frozen=True, repr=False)
class Measured:
    """The peaks of traced steps on a device, in bytes by batch, and a line through them.

    variables are the bytes of the variables that the step uses there; traces are the traced steps
    by batch.
    """

    device: str
    peaks: dict[int, tuple[int, ...]]
    variables: int
    doubts: tuple[str, ...] = ()
    traces: dict[int, tuple[Trace, ...]] = field(default_factory=dict, compare=False)

    def at(self, batch: int) -> Estimate:
        """Estimate what a step of a batch holds, from the line.

        The error is what 95 of 100 such steps stay within, by the scatter of the traces around the
        line; it is no less than what traces of one batch differ by, nor than 5 %.
        """
        from scipy import stats

        points = [(b, peak) for b, peaks in self.peaks.items() for peak in peaks]
        batches, held = np.array(points, float).T
        line, spread = np.polyfit(batches, held, 1, cov="unscaled")
        value, doubts = float(np.polyval(line, batch)), self.doubts
        if len(points) == 2:
            error = value
            doubts += ("two traces do not say how far they scatter: trace a third batch.",)
        else:
            left = held - np.polyval(line, batches)
            scatter = left @ left / (len(points) - 2)
            far = 1 + [batch, 1] @ spread @ [batch, 1]
            error = math.sqrt(scatter * far) * stats.t.ppf((1 + _CERTAIN) / 2, len(points) - 2)
        differ = max(max(p) / max(1, min(p)) - 1 for p in self.peaks.values())
        error, most = max(error, max(differ, _LEAST) * value), max(self.peaks)
        if batch > FAR * most:
            doubts += (
                f"batch {batch} is {batch / most:.3g} times the largest that was traced: trace "
                f"batch {math.ceil(batch / FAR)} or more.",
            )
        return Estimate(batch, round(value), math.ceil(error), self.variables, doubts)

    def __repr__(self) -> str:
        seen = ", ".join(f"{size_text(max(p))} at {b}" for b, p in self.peaks.items())
        return f"measured on {self.device}: {seen}\n{self.at(FAR * max(self.peaks))!r}"


def measure(
    step_of: Callable[[int], Any],
    batches: Sequence[int] = (4, 8, 16),
    device: str | None = None,
    *,
    repeats: int = 2,
    scratch: bool = True,
) -> Measured:
    """Trace a step at some small batches and lay a line through the bytes that it held at its peak.

    `step_of(batch)` gives what one step of that batch is: a function, or a tuple of a function and
    its arguments, as `trace.function_step` takes them. Each is traced `repeats` times, for two
    steps need not run in the same order; what they assign does not reach the variables. device None
    is the one that holds most. With scratch=False what libraries borrow while an operation runs
    does not count.

    `.at(256)` says what a step of that batch holds, with its error. It holds for a batch up to four
    times the largest traced one, while the moment of the peak stays the same; both are watched.

    >>> w = tf.Variable(tf.ones([100, 50]))
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.square(x @ w) * tf.sin(x @ w)))
    >>> found = measure(lambda batch: (step, tf.ones([batch, 100])), batches=(200, 400), repeats=1)
    >>> estimate = found.at(800)  # two products of 800 x 50 floats are held at once
    >>> abs(estimate.bytes - 2 * 800 * 50 * 4) <= 0.1 * estimate.bytes
    True
    """
    if len(set(batches)) < 2:
        raise ValueError(f"batches={batches} give no line: name two different batches or more.")
    traces: dict[int, tuple[Trace, ...]] = {}
    for batch in sorted(set(batches)):
        step = step_of(batch)
        function, *arguments = step if isinstance(step, tuple) else (step,)
        traces[batch] = tuple(function_step(function, *arguments)[1] for _ in range(repeats))
    last = traces[max(batches)][0]
    device = device or max(last.memory, key=lambda name: last.peak(name, scratch), default="")
    for batch, each in traces.items():
        if any(device not in trace.memory for trace in each):
            raise ValueError(
                f"a step of batch {batch} held nothing on {device or 'any device'}: name one of "
                f"{', '.join(last.memory) or 'none'}. What XLA compiles is one operation and shows "
                "nothing: measure it with jit_compile=False."
            )
    peaks = {b: tuple(t.peak(device, scratch) for t in each) for b, each in traces.items()}
    variables = _variables(function, arguments, device)
    return Measured(device, peaks, variables, _moved(traces, device, scratch), traces)


def _variables(function: Any, arguments: Sequence[Any], device: str) -> int:
    """Add up the bytes of the variables on the device that a function uses."""
    found = {id(v): v for v in concrete_of(function, arguments, {})[0].variables}
    found |= {id(a): a for a in tf.nest.flatten(arguments) if isinstance(a, tf.Variable)}
    there = [variable for variable in found.values() if short(variable.device) == device]
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in there)


def _moved(traces: dict[int, tuple[Trace, ...]], device: str, scratch: bool) -> tuple[str, ...]:
    """Say between which batches the peak came at another moment, with other tensors held."""
    shares: dict[int, dict[str, float]] = {}  # of the peak, by operation
    for batch, (trace, *_) in traces.items():
        shares[batch] = defaultdict(float)
        for each in at_peak(trace, device, scratch):
            shares[batch][each.op] += each.bytes / trace.peak(device, scratch)
    largest = shares[max(shares)]
    moved = [
        str(batch)
        for batch, share in shares.items()
        if sum(min(part, largest.get(op, 0)) for op, part in share.items()) < _SAME
    ]
    if not moved:
        return ()
    return (
        f"at batch {', '.join(moved)} the peak was at another moment than at {max(shares)}, with "
        "other tensors held: do not trust the line; trace larger batches.",
    )
