"""What a model's training step would hold, send and multiply where it is taken another way."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import first_calls, graph_of, ready
from mgpu_helpers.graph.cuts import balanced, bytes_of, even, narrow
from mgpu_helpers.graph.step import slot_bytes, training_step
from mgpu_helpers.graph.walk import LOOPS
from mgpu_helpers.memory import savers
from mgpu_helpers.memory.borrowed import borrowed
from mgpu_helpers.memory.how import How
from mgpu_helpers.memory.predict import BESIDE, MARGIN, highest

# Times what is counted of parts that run again. Traces of one of nine models, three convolutions,
# held 1.08 to 1.10 times the upper end without it; the others held at most 0.84 times theirs.
AGAIN = 1.15
FEW = 64  # weights; of more, most of the time would go into the graph of the optimizer


@dataclass(frozen=True)
class Way:
    """A way to train, and what it would hold on the device that holds most.

    held is the likely number of bytes, and low to high the range. crossing are the bytes that go
    from one device to another in a step, or to the host and back; work is what the busiest device
    multiplies, as a share of the step as it is. write is the code.
    """

    name: str
    held: int
    low: int
    high: int
    crossing: int
    work: float
    write: str


class Step:
    """A training step, and what it holds where it is taken another way."""

    def __init__(self, model: Any, batch: int, devices: int, optimizer: Any) -> None:
        ready(model)
        self.model, self.batch, self.devices = model, batch, devices
        self.few = len(model.trainable_variables) <= FEW
        made = training_step(model, savers.PROBE, optimizer if self.few else "sgd")
        self.weights, self.states = bytes_of(made.weights), bytes_of(made.states)
        self.slots = bytes_of(made.slots) if self.few else slot_bytes(model, optimizer)
        sizes = {id(v): bytes_of([v]) for v in model.trainable_variables}
        self.trained = sum(sizes.values())
        self.slots_each = self.slots / max(1, self.trained)
        self.largest = max(sizes.values())
        self.beside = 0 if self.few else (1 + round(self.slots_each)) * self.largest
        self.uncut = ""  # why the layers are in no groups
        self.groups = self._groups()
        graph = made.concrete.graph
        self.order = savers.ordered(graph, self.groups)
        self.borrowed = borrowed(self.order.nodes, batch / savers.PROBE)
        orders = [self.order]
        if any(node.op.type in LOOPS for node in self.order.nodes):
            orders += [savers.ordered(graph, self.groups, overlap) for overlap in (0, 1)]
        early = savers.with_updates(self.order, "early")
        self.orders = [*orders, *map(savers.on_gpu, orders[-2:]), early]
        outputs = getattr(model, "outputs", None) or []
        self.outputs = bytes_of(outputs)
        layers = {layer.name: layer for layer in _private.layers_of(model)}
        kinds = [getattr(layers.get(name), "activation", None)
                 for name in getattr(model, "output_names", ())]  # fmt: skip
        self.softmax = sum(
            bytes_of([t]) for t, kind in zip(outputs, kinds, strict=False)
            if getattr(kind, "__name__", "") in ("softmax", "sigmoid")
        )  # fmt: skip

    def _groups(self) -> list[list[str]]:
        """List the layers from one place where one tensor crosses to the next; none if unknown."""
        try:
            ready(self.model, functional=True)
        except TypeError as reason:
            self.uncut = str(reason)
            return []
        graph = graph_of(self.model)
        calls = _private.calls_of(graph)
        first = first_calls(calls)
        ends = [*narrow(graph, calls), len(calls)]
        self.starts = ends[:-1]
        return [
            [name for name, i in first.items() if a <= i < b] for a, b in itertools.pairwise(ends)
        ]

    @cached_property
    def parts(self) -> list[int]:
        """Number the part of `fit.recompute` that each group is in."""
        graph = graph_of(self.model)
        calls, parts = _private.calls_of(graph), max(2, round(len(self.groups) ** 0.5))
        starts = even(calls, narrow(graph, calls), parts)
        return [sum(i >= start for start in starts) for i in self.starts]

    @cached_property
    def normalizes(self) -> bool:
        kinds = [type(layer).__name__ for layer in _private.layers_of(self.model)]
        return "BatchNormalization" in kinds

    @cached_property
    def not_halved(self) -> bool:
        """Say whether the step is counted in half precision already, or in double."""
        kinds = [getattr(each, "compute_dtype", "") for each in _private.layers_of(self.model)]
        return any(str(kind).endswith(("float16", "float64")) for kind in kinds)

    @cached_property
    def shard(self) -> int:
        """Give the bytes of trained weights that the fullest of their owners has."""
        trained = {id(v) for v in self.model.trainable_variables}
        held = [(0, 0)] * self.devices  # as fit.shard gives them out: what is trained first
        for size, mine in sorted(
            ((bytes_of([v]), id(v) in trained) for v in self.model.weights),
            key=lambda pair: pair[::-1], reverse=True,
        ):  # fmt: skip
            held.sort()
            held[0] = held[0][0] + size, held[0][1] + size * mine
        return max(own for _, own in held)

    def count(self, how: How) -> int:
        """Count the devices that share the batch."""
        return self.devices if how.shared else 1

    def way(self, how: How) -> Way:
        """Count one way to take the step."""
        n, host = self.count(how), how.state == "host"
        share = math.ceil(math.ceil(self.batch / n) / how.pieces)
        twice, barrier = how.pieces > 1, how.elsewhere or how.pieces > 1
        owners = {"host": 0, "shared": n}.get(how.state, 1)  # of 0 the host updates all
        own = {"host": 0, "shared": self.states + self.shard * self.slots_each}
        fixed = self.weights + own.get(how.state, self.states + self.slots)
        done = how.half, how.parts, n if how.elsewhere else 0
        others = n - 1 if owners else 0
        peak = self._curve(done, owners if barrier else None, others).peak(share)
        whole, sparse = self._gradients(owners)
        # Keras takes the loss of a softmax from its logits only where no cast comes between.
        softmax = share * self.softmax
        peak += 3 * softmax * how.half
        if not host:
            peak += self.beside
        if twice:  # the sums of gradients; of sparse ones there are more at each piece
            peak += whole + 2 * self.batch * sparse
        crossing = (n if host else n - 1) * (self.weights + self.trained)
        if (
            how.elsewhere
        ):  # outputs are joined on the host, for a loss on the first device; and back
            crossing = how.pieces * crossing + 4 * self.batch * self.outputs
        repeated = self.repeated if how.parts else 0
        least, most = self._range(peak, share, barrier or how.parts)
        # What is updated may be so before the last gradient is made.
        least = min(least, self._curve(done, soon=True).peak(share) + whole * twice)
        # Devices that share few cores go one after the other, and free more meanwhile; as a piece
        # does that waits for another one.
        if n > 1 or how.parts and twice:
            least *= 1 - MARGIN
        elif twice:
            least *= 1 - BESIDE
        if how.state:  # gradients may leave as they come
            least = max(0.0, least - self.trained / (1 - MARGIN))
        if how.parts:  # what a part has left for later may be held while the next one is run again
            most *= AGAIN
        if barrier and owners == 1 and sparse:  # an Embedding's rows are those of the whole batch
            most = max(most, (self.updating + twice * whole) * (1 + BESIDE) / (1 + MARGIN))
        work = (1 + repeated) * math.ceil(self.batch / n) / self.batch
        return _made(
            how.name(self.devices, self.parts[-1] + 1 if how.parts else 1), fixed, peak, crossing,
            work, how.write(self.devices, self.normalizes),
            (least, most),
            # Pieces and parts may make all gradients of others' weights before they send one.
            beside=(1 + twice) * min(whole, self.largest)
            + (twice or how.parts) * max(0.0, self.trained - whole)
            + twice * 2 * self.batch * sparse + 2 * softmax
            # A metric may look at joined outputs late.
            + how.elsewhere * math.ceil(self.batch / how.pieces) * self.outputs
            if barrier else 2 * softmax * (how.half or how.parts) + self.threads,
        )  # fmt: skip

    @functools.cache  # noqa: B019  a step lives as long as its plan is made
    def _order(self, half: bool, parts: bool, joined: int, soon: bool = False) -> savers.Order:
        if parts:
            return savers.again(self._order(half, False, joined, soon), self.parts, soon)
        if joined:
            return savers.joined(self._order(half, False, 0, soon), self.model, joined)
        if half:
            return savers.halved(self._order(False, False, 0, soon), self.model)
        return savers.with_updates(self.order, "early") if soon else self.order

    @functools.cache  # noqa: B019
    def _curve(
        self, done: tuple[bool, bool, int], owners: int | None = None, others: int = 0,
        soon: bool = False,
    ) -> savers.Curve:  # fmt: skip
        order = self._order(*done, soon)
        return (order if owners is None else savers.averaged(order, others, owners)).curve()

    @functools.cache  # noqa: B019
    def _curves(self, barrier: bool) -> list[savers.Curve]:
        """Count the step as it is in several orders, also where updates wait for all gradients."""
        orders = map(savers.averaged, self.orders) if barrier else self.orders
        return [order.curve() for order in orders]

    def _range(self, peak: float, share: int, barrier: bool = False) -> tuple[float, float]:
        """Give the least and the most that a peak may be where operations start in another order.

        That is as many times less or more as the step as it is, and no more bytes beyond.
        """
        peaks = [curve.peak(share) for curve in self._curves(barrier)]
        likely, least, most = peaks[0], min(peaks), max(peaks[:-1])  # the last is "early"
        return peak * least / likely, min(peak * most / likely, peak + most - likely)

    @cached_property
    def threads(self) -> float:
        """Give what other threads may hold beyond the margin of the step as it is."""
        peaks = [curve.peak(self.batch) for curve in self._curves(False)]
        late = savers.with_updates(self.order, "late")
        orders = late, savers.on_gpu(self.order), self.order
        with_them = [each.curve(threads=self.batch).peak(self.batch) for each in orders]
        return highest([*peaks, *with_them]) - (1 + MARGIN) * max(peaks[:-1])

    @cached_property
    def updating(self) -> float:
        """Give what is held from when all gradients of the whole batch are there."""
        order = savers.averaged(savers.on_gpu(self.order))
        start = next(i for i, node in enumerate(order.nodes) if node.name == "averaged")
        return order.curve(threads=self.batch).peak(self.batch, start)

    @functools.cache  # noqa: B019
    def _gradients(self, owners: int) -> tuple[float, float]:
        """Give the bytes of the first owner's gradients, and of sparse ones for each example."""
        sizes = [node.bytes[i] for node, i in savers.gradients(self.order, owners)]
        sparse = sum(size for size in sizes if size % savers.PROBE == 0)
        return sum(sizes) - sparse, sparse / savers.PROBE

    @cached_property
    def flops(self) -> dict[Any, int]:
        return {node: savers.work(node) for node in self.order.nodes}

    @cached_property
    def repeated(self) -> float:
        """Give the share of the step's products that recomputation repeats."""
        late = self.order.back | self.order.updates
        again = sum(
            n for node, n in self.flops.items()
            if node not in late and self.parts[self.order.place[node]] < self.parts[-1]
        )  # fmt: skip
        return again / max(1, sum(self.flops.values()))

    def split(self) -> Way:
        """Count the layers in a stage for each device, cut so that the fullest has least."""
        n = self.devices
        kept = [0.0] * len(self.groups)
        for node in self.order.nodes:
            if node not in self.order.back | self.order.updates:
                each = sum(size for size in node.bytes if size % savers.PROBE == 0)
                kept[self.order.place[node]] += each / savers.PROBE * self.batch
        layers = {layer.name: layer for layer in graph_of(self.model).layers}
        owned = [
            {id(v): v for name in group if name in layers for v in layers[name].variables}
            for group in self.groups
        ]
        trained = {id(v) for v in self.model.trainable_variables}
        state = [
            sum(bytes_of([v]) * (1 + self.slots_each * (key in trained))
                for key, v in each.items())
            for each in owned
        ]  # fmt: skip
        sizes = [a + b for a, b in zip(kept, state, strict=True)]
        starts = balanced(sizes, [0] * len(sizes), n)
        device = [sum(i >= start for start in starts) for i in range(len(sizes))]
        order = savers.apart(self.order, device)
        own = [sum(s for s, d in zip(state, device, strict=True) if d == i) for i in range(n)]
        peaks = [curve.peak(self.batch) + self.beside for curve in order.curves(order.place, n)]
        fixed, peak = max(zip(own, peaks, strict=True), key=sum)
        crossing = sum(
            sum(node.bytes) / savers.PROBE * self.batch if node.bytes[0] % savers.PROBE == 0
            else sum(node.bytes)
            for node in order.nodes if node.op.type == "Copy"
        )  # fmt: skip
        by = [0] * n
        for node, flops in self.flops.items():
            by[device[self.order.place[node]]] += flops
        at = [self.groups[device.index(i)][0] for i in range(1, max(device) + 1)]
        return _made(
            f"split over {n} devices at {', '.join(map(repr, at))}", fixed, peak, crossing,
            max(by) / max(1, sum(by)), f"fit.split(model, plan.devices, at={at})",
            self._range(peak, self.batch),
            # A loss that is elsewhere; and a device may begin an update before one has ended, and
            # goes forward or back when another one is ready, which no order on one device tells.
            beside=self.batch * self.outputs + self.largest + 0.1 * peak,
        )  # fmt: skip


def _made(
    name: str, fixed: float, peak: float, crossing: float, work: float, write: str,
    ends: tuple[float, float], beside: float = 0.0,
) -> Way:  # fmt: skip
    """Make a line; beside is what may be held twice, sums of gradients and what they are of."""
    low = fixed + (1 - MARGIN) * ends[0]
    high = fixed + (1 + MARGIN) * ends[1] + beside
    return Way(name, round(fixed + peak), round(low), round(high), round(crossing), work, write)
