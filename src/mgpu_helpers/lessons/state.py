"""What lessons 11 and 12 count: weights and slots on each device, and what a step adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_helpers import memory, trace
from mgpu_helpers.devices import short
from mgpu_helpers.devices.plan import planned


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


def apart(ours: Iterable[Any], theirs: Iterable[Any]) -> float:
    """Give the largest difference of two lists of arrays, as a share of an array's largest number.

    >>> apart([[1.0, 2.0]], [[1.0, 4.0]])
    0.5
    """
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def fullest(state: Sequence[tuple[Any, Any, str]], step: trace.Trace) -> memory.MemoryUse:
    """Give what the fullest device holds at the peak of a step, for a million parameters, by use.

    state lists each weight with its optimizer and its owner. A fetched copy counts as a weight.
    """
    uses = [_held(state, step, device) for device in planned().devices]
    most = max(uses, key=lambda use: use.total)
    parameters = sum(weight.value.shape.num_elements() for weight, *_ in state)
    sizes = {name: round(10**6 * size / parameters) for name, size in most.uses.items()}
    return memory.MemoryUse(**sizes)


def _held(state: Sequence[Any], step: trace.Trace, device: str) -> memory.MemoryUse:
    """Split what a device holds at the peak of a step by use."""
    weights = at_rest(weight for weight, *_ in state)[device]
    slots = at_rest(slot for _, adam, _ in state for slot in adam.variables)[device]
    copies = sum(each.bytes for each in memory.at_peak(step, device) if "Snapshot" in each.op)
    use = memory.by_use(step, device, weights=weights + copies, slots=slots)
    return replace(use, activations=use.activations - copies)
