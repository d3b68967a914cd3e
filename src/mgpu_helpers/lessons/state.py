"""What lessons 11 and 12 count: weights and slots on each device, and what a step adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import memory, trace
from mgpu_helpers.devices import short
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.trace.records import Allocation, curve


def at_rest(variables: Iterable[Any]) -> dict[str, int]:
    """Count the bytes of variables on the host and on each device of the plan.

    >>> import keras
    >>> with tf.device(plan.devices[1]):
    ...     at_rest([keras.Variable([1.0, 2.0])])
    {'/CPU:0': 0, '/CPU:1': 0, '/CPU:2': 8}
    """
    held = dict.fromkeys([planned().host, *planned().devices], 0)
    for each in variables:
        held[short(each.value.device)] += each.value.dtype.size * each.value.shape.num_elements()
    return held


def show(model: Any, history: Any) -> None:
    """Print the losses of a training, and the bytes of weights and slots on each device."""
    print("losses", *(f"{loss:.1f}" for loss in history.history["loss"]))
    for device, size in at_rest([*model.weights, *model.optimizer.variables]).items():
        print(f"{device}  {size / 1e6:4.1f} MB of weights and slots")


def use_of(model: Any, step: trace.Trace, device: str) -> memory.MemoryUse:
    """Tell what fills a device at the peak of a step: its weights and slots, and what `step` adds.

    A layer's own scratch space does not count.
    """
    weights, slots = at_rest(model.weights), at_rest(model.optimizer.variables)
    return memory.by_use(step, device, weights=weights[device], slots=slots[device], scratch=False)


def uses_of(model: Any, step: trace.Trace, name: str) -> dict[str, memory.MemoryUse]:
    """Tell what fills each device that a step works on; name has braces for the device."""
    devices = [device for device in planned().devices if device in step.memory]
    return {name.format(device): use_of(model, step, device) for device in devices}


def show_crossing(step: trace.Trace) -> None:
    """Print the bytes that cross from the first device of the plan to the last, and back."""
    first, second = planned().devices[0], planned().devices[-1]
    for a, b in ((first, second), (second, first)):
        print(f"from {a} to {b}: {step.bytes_between().get((a, b), 0):,} bytes")


def show_step(model: Any, step: trace.Trace) -> None:
    """Print the most bytes that each device holds in a step of fit, and what crosses in it."""
    for name, use in uses_of(model, step, "{} holds up to").items():
        print(f"{name} {use.total / 1e6:.0f} MB")
    show_crossing(step)


def apart(ours: Iterable[Any], theirs: Iterable[Any]) -> float:
    """Give the largest difference of two lists of arrays, as a share of an array's largest number.

    >>> apart([[1.0, 2.0]], [[1.0, 4.0]])
    0.5
    """
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def weights_held(
    state: Sequence[tuple[Any, Any, str]], step: trace.Trace, device: str
) -> tuple[tuple[float, int], ...]:
    """Give the bytes of weights that a device holds in a step: moments, and what it has from then.

    state lists each weight with its optimizer and its owner. A fetched copy counts until its last
    use ends.
    """
    own = at_rest(weight for weight, *_ in state)[device]
    return tuple((moment, own + size) for moment, size in curve(_copies(step, device)))


def share_of_weights(state: Sequence[tuple[Any, Any, str]], step: trace.Trace) -> float:
    """Give the most that one device holds of the weights in a step, as a share of all of them."""
    whole = sum(at_rest(weight for weight, *_ in state).values())
    held = (weights_held(state, step, device) for device in planned().devices)
    return max(size for curve in held for _, size in curve) / whole


def _copies(step: trace.Trace, device: str) -> list[Allocation]:
    """List the copies of weights that a device fetched, until the last use of each."""
    made = {op.name: op for op in step.ops if op.type == "Snapshot" and op.device == device}
    ends = {op.name: op.end for op in step.ops}
    over = {name: max((ends.get(b, op.end) for a, b in step.edges if a == name), default=op.end)
            for name, op in made.items()}  # fmt: skip
    return [Allocation(op.name, device, op.bytes, op.start, over[op.name]) for op in made.values()]
