"""What a model's training step would hold, send and multiply where it is taken another way."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._given import given
from mgpu_helpers._later import keras
from mgpu_helpers._layers import LayerGraph, variables_of
from mgpu_helpers._models import as_made, ready
from mgpu_helpers.fit._segments import normalizes
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.graph.cuts import balanced, bytes_of, even, narrow
from mgpu_helpers.graph.step import outputs_of, slot_bytes, training_step
from mgpu_helpers.graph.walk import LOOPS
from mgpu_helpers.memory import savers
from mgpu_helpers.memory.borrowing import borrowed
from mgpu_helpers.memory.how import How, line
from mgpu_helpers.memory.predicting import BESIDE, MARGIN, highest

# Times what is counted of parts that run again. Traces of one of nine models, three convolutions,
# held 1.08 to 1.10 times the upper end without it; the others held at most 0.84 times theirs.
AGAIN = 1.15
WAITED = 0.03  # of pieces alone: 2.4 % was seen beside other work
FEW = 64  # weights; of more, most of the time would go into the graph of the optimizer


@dataclass(frozen=True)
class Way:
    """A way to train, and what it would hold on the device that holds most.

    held is the likely number of bytes, and low to high the range. crossing are the bytes that go
    from one device to another in a step, or to the host and back, and within those of them that go
    between stages, in all rows; work is what the busiest device multiplies, as a share of the step
    as it is. layout is what `fit.use` takes, of a model in mixed_bfloat16 where half says so, and
    write is the line of code.
    """

    name: str
    held: int
    low: int
    high: int
    crossing: int
    work: float
    write: str
    layout: Layout
    half: bool = False
    within: int = 0


class Step:
    """A training step, and what it holds where it is taken another way.

    A device holds what lies there all the time, `_always`, and what the step holds at its `_peak`.
    The range is that of the peak: from the `_least` to the `_most`, and what is there `_perhaps`.
    What crosses does so `_between` rows, and where rows have stages within them.
    """

    def __init__(
        self, model: Any, batch: Any, devices: Sequence[str], optimizer: Any, length: Any = None
    ) -> None:
        ready(model, single=False)
        model = as_made(model)
        data = given(model, batch, length)
        self.model, self.batch, self.took = model, data.batch, data.took
        self.names, self.devices = devices, len(devices)
        self.few = len(model.trainable_variables) <= FEW
        probe = replace(data, batch=savers.PROBE)
        made = training_step(model, probe, optimizer if self.few else "sgd")
        self.weights, self.states = bytes_of(made.weights), bytes_of(made.states)
        self.slots = bytes_of(made.slots) if self.few else slot_bytes(model, optimizer)
        sizes = {id(v): bytes_of([v]) for v in model.trainable_variables}
        self.trained = sum(sizes.values())
        self.slots_each = self.slots / max(1, self.trained)
        self.largest = max(sizes.values())
        # What the optimizer makes of one weight, where its graph is not there to say it.
        self.beside = 0 if self.few else (1 + round(self.slots_each)) * self.largest
        self.uncut = ""  # why the layers are in no groups
        self.groups = self._groups()
        graph = made.concrete.graph
        self.order = savers.ordered(graph, self.groups)
        self.borrowed = borrowed(self.order.nodes, self.batch / savers.PROBE)
        orders = [self.order]
        if any(node.op.type in LOOPS for node in self.order.nodes):
            orders += [savers.ordered(graph, self.groups, overlap) for overlap in (0, 1)]
        early = savers.with_updates(self.order, "early")
        self.orders = [*orders, *map(savers.on_gpu, orders[-2:]), early]
        outputs = []  # of a subclassed model nobody knows which
        if getattr(model, "outputs", None):
            outputs = keras.tree.flatten(outputs_of(model, data.example[0]))
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
            ready(self.model, functional=True, single=False)
        except TypeError as reason:
            self.uncut = str(reason)
            return []
        self.graph = LayerGraph(self.model)
        calls = self.graph.calls
        ends = [*narrow(self.graph), len(calls)]
        self.starts = ends[:-1]
        return [[*dict.fromkeys(call.operation.name for call in calls[a:b] if not call.enters)]
                for a, b in itertools.pairwise(ends)]  # fmt: skip

    @cached_property
    def parts(self) -> list[int]:
        """Number the part that runs again that each group is in."""
        parts = max(2, round(len(self.groups) ** 0.5))
        starts = even(self.graph.calls, narrow(self.graph), parts)
        return [sum(i >= start for start in starts) for i in self.starts]

    @cached_property
    def normalizes(self) -> bool:
        return any(map(normalizes, _private.layers_of(self.model)))

    @cached_property
    def not_halved(self) -> bool:
        """Say whether the step is counted in half precision already, or in double."""
        kinds = [getattr(each, "compute_dtype", "") for each in _private.layers_of(self.model)]
        return any(str(kind).endswith(("float16", "float64")) for kind in kinds)

    @cached_property
    def shard(self) -> int:
        """Give the bytes of trained weights that the fullest of their owners has."""
        trained = {id(v) for v in self.model.trainable_variables}
        held = [(0, 0)] * self.devices  # as owners get them: what is trained first
        for size, mine in sorted(
            ((bytes_of([v]), id(v) in trained) for v in self.model.weights),
            key=lambda pair: pair[::-1], reverse=True,
        ):  # fmt: skip
            held.sort()
            held[0] = held[0][0] + size, held[0][1] + size * mine
        return max(own for _, own in held)

    def way(self, how: How) -> Way:
        """Count one way to take the step."""
        share, peak = how.share(self.batch), self._peak(how)
        least, most = self._range(peak, share, how.waits or how.again)
        early = self._curve(*how.rewritten, soon=True).peak(share)
        early += how.in_pieces * self._gradients(how.owners)[0]
        work = (1 + (self.repeated if how.again else 0)) * how.of_row(self.batch) / self.batch
        return self._line(
            how, self._always(how), peak, self._between(how), work,
            (self._least(how, least, early), self._most(how, most), self._perhaps(how)),
        )  # fmt: skip

    def _always(self, how: How) -> float:
        """Count what lies there all the time: weights, slots and the states of metrics."""
        updated = {"host": 0, "owners": self.states + self.shard * self.slots_each}
        return self.weights + updated.get(str(how.layout.state), self.states + self.slots)

    def _peak(self, how: How) -> float:
        """Count the most that the step holds at once beside what lies there all the time."""
        share = how.share(self.batch)
        come = how.rows - 1 if how.owners else 0  # gradients of others, for an owner's weights
        curve = self._curve(*how.rewritten, how.owners if how.waits else None, come)
        # Keras takes the loss of a softmax from its logits only where no cast comes between.
        casts = 3 * share * self.softmax * how.half
        updated = self.beside if how.owners else 0
        # Sums of gradients over pieces; of sparse ones there are more at each piece.
        whole, sparse = self._gradients(how.owners)
        sums = how.in_pieces * (whole + 2 * self.batch * sparse)
        return curve.peak(share) + casts + updated + sums

    def _between(self, how: How) -> float:
        """Count what crosses between rows, or from and to the host.

        At each piece these are weights and their gradients. Outputs are joined on the first device,
        for a loss, and gradients go back.
        """
        n = how.rows
        weights = (n if how.owners == 0 else n - 1) * (self.weights + self.trained)
        return how.layout.pieces * weights + 2 * self.batch * self.outputs * (n - 1) / n

    def _least(self, how: How, least: float, early: float) -> float:
        """Lower the least by what may go sooner; early is with updates as soon as they can be."""
        least, elsewhere = min(least, early), how.layout.state != "home"
        # Where ways are combined, devices that share few cores go one after the other, and free
        # more meanwhile; as a piece does that waits for another one, now and then.
        several = sum((how.rows > 1, how.again, how.in_pieces, how.layout.staged, elsewhere)) > 1
        if several and (how.rows > 1 or how.again and how.in_pieces):
            least *= 1 - MARGIN
        elif how.in_pieces:
            least *= 1 - (BESIDE if several else WAITED)
        if elsewhere:  # gradients may leave as they come
            least = max(0.0, least - self.trained / (1 - MARGIN))
        return least

    def _most(self, how: How, most: float) -> float:
        """Raise the most by what the order of operations does not tell."""
        if how.again:  # what a part has left may be held while the next one is run again
            most *= AGAIN
        whole, sparse = self._gradients(how.owners)
        if how.waits and how.owners == 1 and sparse:  # an Embedding's rows are of the whole batch
            updating = self.updating + how.in_pieces * whole
            most = max(most, updating * (1 + BESIDE) / (1 + MARGIN))
        return most

    def _perhaps(self, how: How) -> float:
        """Count what may be held twice: gradients and their sums, a softmax, outputs."""
        softmax = 2 * how.share(self.batch) * self.softmax
        if not how.waits:
            return softmax * (how.half or how.again) + self.threads
        whole, sparse = self._gradients(how.owners)
        sent = (1 + how.in_pieces) * min(whole, self.largest)
        if how.in_pieces or how.again:  # they may make all gradients of others' weights first
            sent += max(0.0, self.trained - whole)
        sums = how.in_pieces * 2 * self.batch * sparse
        # A metric may look at joined outputs late.
        joined = math.ceil(self.batch / how.layout.pieces) * self.outputs
        return sent + sums + softmax + bool(how.layout.devices) * joined

    @functools.cache  # noqa: B019  a step lives as long as its plan is made
    def _order(self, half: bool, again: bool, joined: int, soon: bool = False) -> savers.Order:
        """Rewrite the step, and list it in its order; soon is with early updates."""
        if again:
            return savers.again(self._order(half, False, joined, soon), self.parts, soon)
        if joined:
            return savers.joined(self._order(half, False, 0, soon), self.model, joined)
        if half:
            return savers.halved(self._order(False, False, 0, soon), self.model)
        return savers.with_updates(self.order, "early") if soon else self.order

    @functools.cache  # noqa: B019
    def _curve(
        self, half: bool, again: bool, joined: int, owners: int | None = None, come: int = 0,
        soon: bool = False,
    ) -> savers.Curve:  # fmt: skip
        """Count what is held over time; owners, if given, wait for gradients that come to them."""
        order = self._order(half, again, joined, soon)
        return (order if owners is None else savers.averaged(order, come, owners)).curve()

    @functools.cache  # noqa: B019
    def _curves(self, waits: bool) -> list[savers.Curve]:
        """Count the step as it is in several orders, also where updates wait for all gradients."""
        orders = map(savers.averaged, self.orders) if waits else self.orders
        return [order.curve() for order in orders]

    def _range(self, peak: float, share: int, waits: bool = False) -> tuple[float, float]:
        """Give the least and the most that a peak may be where operations start in another order.

        That is as many times less or more as the step as it is, and no more bytes beyond.
        """
        peaks = [curve.peak(share) for curve in self._curves(waits)]
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
        sparse = sum(filter(savers.grows, sizes))
        return sum(sizes) - sparse, sparse / savers.PROBE

    @cached_property
    def flops(self) -> dict[Any, int]:
        return {node: savers.work(node) for node in self.order.nodes}

    @cached_property
    def repeated(self) -> float:
        """Give the share of the step's products that recomputation repeats."""
        twice = sum(map(savers.work, self._order(False, True, 0).nodes))
        return twice / max(1, sum(self.flops.values())) - 1

    def like(self, way: Way) -> Way:
        """Count the way of another step of the model."""
        begin = way.layout.stages  # by name, as `split` gives them
        if not isinstance(begin, int) and begin:
            return self.split(1 + len(begin), begin)
        return self.way(How(way.layout, way.half))

    def split(self, stages: int, begin: Sequence[str] = ()) -> Way:
        """Count the layers in so many stages, and rows of devices with a stage each.

        begin names the layers at which stages begin; without it the fullest has least. Several
        rows share the batch; then the first, which has the weights, holds most.
        """
        rows = self.devices // stages
        names = [self.graph.calls[i].name for i in self.starts]
        starts = [*map(names.index, begin)] or self._starts(stages, math.ceil(self.batch / rows))
        stage = [sum(i >= start for start in starts) for i in range(len(names))]
        begin = [names[start] for start in starts]
        how = How(Layout(self.names, stages=begin))
        share = how.share(self.batch)

        def peaks(order: savers.Order) -> list[float]:
            return [c.peak(share) + self.beside for c in order.curves(order.place, stages)]

        order = one = savers.apart(self.order, stage)
        if rows > 1:
            order = savers.averaged(savers.apart(self._order(*how.rewritten), stage), rows - 1)
        always = [sum(size for size, of in zip(self.lies, stage, strict=True) if of == i)
                  for i in range(stages)]  # fmt: skip
        fixed, peak = max(zip(always, peaks(order), strict=True), key=sum)
        least, most = self._range(peak, share, rows > 1)
        # A loss that is elsewhere; and a device may begin an update before one has ended, and goes
        # forward or back when another one is ready, which no order on one device tells.
        perhaps = share * self.outputs + self.largest + 0.1 * peak
        if rows > 1:
            early = peaks(savers.apart(self._order(*how.rewritten, True), stage))
            least, most = self._least(how, least, max(early)), self._most(how, most)
            perhaps += self._perhaps(how)
        within = sum(
            size / savers.PROBE * self.batch if savers.grows(size) else size * rows
            for node in one.nodes if node.op.type == "Copy" for size in node.bytes
        )  # fmt: skip
        work = [0] * stages
        for node, flops in self.flops.items():
            work[stage[self.order.place[node]]] += flops
        busiest = max(work) / max(1, sum(work)) * (how.of_row(self.batch) / self.batch)
        ends = least, most, perhaps
        return self._line(how, fixed, peak, self._between(how), busiest, ends, within)

    @cached_property
    def lies(self) -> list[float]:
        """Give the bytes of the weights and slots of each group of layers."""
        trained = {id(v) for v in self.model.trainable_variables}
        ends = [*self.starts, len(self.graph.calls)]
        owned = [{id(v): v for v in variables_of(self.graph.calls[a:b])}
                 for a, b in itertools.pairwise(ends)]  # fmt: skip
        return [sum(bytes_of([v]) * (1 + self.slots_each * (key in trained))
                    for key, v in each.items()) for each in owned]  # fmt: skip

    def _starts(self, stages: int, share: int) -> list[int]:
        """Find the groups of layers at which stages begin, so that the fullest has least."""
        kept = [0.0] * len(self.groups)
        for node in self.order.forward:
            each = sum(filter(savers.grows, node.bytes)) / savers.PROBE
            kept[self.order.place[node]] += each * share
        sizes = [a + b for a, b in zip(kept, self.lies, strict=True)]
        return balanced(sizes, [0] * len(sizes), stages)

    def _line(
        self, how: How, fixed: float, peak: float, between: float, work: float,
        ends: tuple[float, float, float], within: float = 0,
    ) -> Way:  # fmt: skip
        """Make a line of a plan; ends are of the peak: the least, the most, and what is beside."""
        least, most, perhaps = ends
        return Way(
            how.name(self.parts[-1] + 1 if how.again else 1), held=round(fixed + peak),
            low=round(fixed + (1 - MARGIN) * least),
            high=round(fixed + (1 + MARGIN) * most + perhaps), crossing=round(between + within),
            work=work, write=line(how.layout, how.half, self.names), layout=how.layout,
            half=how.half, within=round(within),
        )  # fmt: skip
