"""What a step held at its peak, by what it is for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mgpu_helpers._formatting import size_text
from mgpu_helpers.trace.records import Allocation, curve
from mgpu_helpers.trace.step import Trace, traced

# What changes a gradient number by number, or only its shape, on its way to the optimizer.
_PASSING = {
    "Identity", "IdentityN", "Reshape", "Cast", "CheckNumerics", "AddN", "Add", "AddV2", "Sub",
    "Mul", "RealDiv", "Square", "Sqrt", "Rsqrt", "Neg", "Sign", "Maximum", "Minimum", "ConcatV2",
    "Split", "SplitV",
}  # fmt: skip
_UPDATES = ("ResourceApply", "ResourceSparseApply", "Apply", "SparseApply", "AssignSub",
            "AssignAdd")  # fmt: skip


@dataclass(frozen=True, repr=False)
class MemoryUse:
    """The bytes that a training step holds at its peak, by what they are for."""

    weights: int
    #: what the optimizer keeps for each weight: Adam two numbers, momentum one, one more where it
    #: accumulates gradients
    slots: int
    gradients: int  #: those of weights, and what the optimizer makes of them
    activations: int  #: what the backward pass needs, and the gradients on their way through
    scratch: int = 0  #: what a library borrows while an operation runs

    @property
    def uses(self) -> dict[str, int]:
        """Give the bytes by name; scratch only where there is some."""
        names = ["weights", "slots", "gradients", "activations", *["scratch"] * bool(self.scratch)]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        """Add up the bytes."""
        return sum(self.uses.values())

    def __repr__(self) -> str:
        rows = [*self.uses.items(), ("total", self.total)]
        return "\n".join(f"{name:11} {size_text(size):>8}" for name, size in rows)


def at_peak(trace: Trace, device: str, scratch: bool = True) -> tuple[Allocation, ...]:
    """List what the step held on the device when it held most, the largest first.

    Without scratch the peak may be at another moment.

    >>> held = (Allocation("a", "/CPU:1", 400, 0.0, 2.0), Allocation("b", "/CPU:1", 800, 1.0, None))
    >>> [each.op for each in at_peak(Trace((), (), {}, (), held), "/CPU:1")]
    ['b', 'a']
    """
    held = [a for a in traced(trace).allocations
            if a.device == device and (scratch or not a.scratch)]  # fmt: skip
    if not held:
        raise ValueError(f"the trace has no memory of {device}: it has {', '.join(trace.memory)}.")
    moment = max(curve(held), key=lambda point: point[1])[0]
    live = [a for a in held if a.start <= moment and (a.end is None or a.end > moment or
                                                      a.start == moment)]  # fmt: skip
    return tuple(sorted(live, key=lambda a: -a.bytes))


def by_use(
    trace: Trace, device: str, *, weights: int = 0, slots: int = 0, scratch: bool = True
) -> MemoryUse:
    """Split what the step held on the device at its peak; the weights' and slots' bytes are given.

    They were there before the step, so its trace omits them. Gradients are what flows into an
    optimizer's operation, as it was made or on its way (averaged, scaled, reshaped). A new value
    counts with them while another operation still reads the old one beside it. All the rest is
    activations, also what comes from other devices.

    >>> held = (Allocation("a", "/CPU:1", 4000, 0.0, 2.0),)
    >>> by_use(Trace((), (), {}, (), held), "/CPU:1", weights=600)
    weights        600 B
    slots            0 B
    gradients        0 B
    activations     4 kB
    total         4.6 kB
    """
    feeds = _into_optimizer(traced(trace))
    sizes: dict[str, int] = defaultdict(int)
    for each in at_peak(trace, device, scratch):
        kind = "gradients" if each.op in feeds else "activations"
        sizes["scratch" if each.scratch else kind] += each.bytes
    return MemoryUse(weights, slots, sizes["gradients"], sizes["activations"], sizes["scratch"])


def _into_optimizer(trace: Trace) -> set[str]:
    """Name the optimizer's operations, and those whose results flow there number by number.

    A plain assignment is the optimizer's where a gradient flows into it: in Lion and where
    gradients are accumulated, but not in the averages of a BatchNormalization.
    """
    kinds = {op.name: op.type for op in trace.ops}
    makers = defaultdict(list)
    for maker, user in set(trace.edges) - set(trace.waits):
        makers[user].append(maker)
    found: set[str] = set()
    for name, kind in kinds.items():
        if not kind.startswith(("AssignVariableOp", *_UPDATES)):
            continue
        fed, ahead = {name}, [name]
        while ahead:
            new = [maker for maker in makers[ahead.pop()] if maker not in fed]
            fed |= {*new}
            ahead += [maker for maker in new if kinds.get(maker) in _PASSING]
        if kind != "AssignVariableOp" or any("gradient" in each for each in fed):
            found |= fed
    return found
