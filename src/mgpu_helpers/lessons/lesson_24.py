"""What lesson 24 says of a step beside its own code: where it convolved."""

from __future__ import annotations

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.trace.step import Trace


def convolved(step: Trace) -> str:
    """Say on which devices the convolutions of a step ran, forward and backward."""
    ran: dict[bool, set[str]] = {False: set(), True: set()}
    for op in step.ops:
        if "Conv2D" in op.type:
            ran["Backprop" in op.type].add(op.device)
    places = [*planned().devices, planned().host]
    forward, backward = (" ".join(p for p in places if p in ran[back]) for back in ran)
    return f"convolutions forward on {forward}, backward on {backward}"
