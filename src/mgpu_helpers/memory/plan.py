"""What to try when a model's training step does not fit, cheapest first, and what each costs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, size_text, table, whole_number
from mgpu_helpers._models import first_calls, graph_of, ready
from mgpu_helpers.graph import cuts
from mgpu_helpers.graph.step import slot_bytes, training_step
from mgpu_helpers.graph.walk import LOOPS, Unknown
from mgpu_helpers.memory import savers
from mgpu_helpers.memory.borrowed import borrowed, sentence
from mgpu_helpers.memory.predict import BESIDE, MARGIN, highest

AGAIN = 1.15  # times what is counted of parts that run again; a trace of 38 held 1.08 times
NO_LESS = 1.02  # times the least that pieces can hold: more of them are not worth their time
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


@dataclass(frozen=True, repr=False)
class Plan:
    """The ways to train a model with a batch, cheapest first, and which of them fit."""

    model: str
    batch: int
    devices: int
    budget: float  #: bytes a device may hold
    ways: tuple[Way, ...]
    weights: int  #: bytes of the weights alone
    notes: tuple[str, ...] = ()  #: sentences: which ways are not there and why, what one changes

    @property
    def fitting(self) -> tuple[Way, ...]:
        """List the ways whose whole range fits into the budget."""
        return tuple(way for way in self.ways if way.high <= self.budget)

    def __repr__(self) -> str:
        limited = self.budget < math.inf
        of = f" of {size_text(int(self.budget))}" if limited else ""
        lines = [
            f"{self.model}, {counted(self.batch, 'example')} a step, "
            f"{counted(self.devices, 'device')}{of}:",
            *table([("", "held, about", *["fits"] * limited, "crosses", "work", "write"),
                    *(_row(way, self.budget, limited) for way in self.ways)]),
            *self.notes,
        ]  # fmt: skip
        if any("plan." in way.write for way in self.ways):  # and not this Plan
            lines.append(f"In these lines, plan is devices.setup({self.devices}).")
        if not self.fitting:
            least = min(self.ways, key=lambda way: way.high)
            lines.append(
                f"nothing fits{' for certain' * (least.low <= self.budget)}: the weights alone are "
                f"{size_text(self.weights)}, and the least that is held is "
                f"{size_text(least.low)} to {size_text(least.high)}, with {least.name}."
            )
        return "\n".join(lines)


def _row(way: Way, budget: float, limited: bool) -> list[str]:
    fits = "yes" if way.high <= budget else "no" if way.low > budget else "perhaps"
    return [
        way.name,
        f"{size_text(way.held)} ({size_text(way.low)} to {size_text(way.high)})",
        *[fits] * limited,
        size_text(way.crossing) if way.crossing else "-",
        f"{way.work:.2f}",
        way.write,
    ]


def plan(
    model: Any, batch: int, devices: int = 1, budget: float = math.inf, optimizer: Any = None
) -> Plan:
    """List what to try when a step of `fit` does not fit into a budget of bytes a device.

    batch is the whole batch of a step, and devices how many may share it. The ways come cheapest
    first: the step as it is, in half precision, shared over the devices, in pieces, with parts of
    the forward pass run again, with weights and slots moved. Where none that gives the same numbers
    fits, combinations follow until two fit. Half precision changes the numbers, and so do pieces
    where a BatchNormalization sees one at a time.

    What a way holds is counted from the graph of one step, as `predict` does it, with its
    operations in another order, run again or on other devices; nothing runs. `held` is of the
    device that holds most, the first where the model was built on one. The batch that is fed is not
    in it: leave room for it in the budget. The optimizer is the model's own, or Adam: see
    `predict`.

    >>> import keras
    >>> from mgpu_helpers import memory
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> advice = memory.plan(model, batch=64, devices=2, budget=2000)
    >>> [way.name for way in advice.ways[:3]], advice.fitting
    (['as it is', 'mixed_bfloat16', 'batch over 2 devices'], ())
    """
    batch = whole_number("batch", batch, "a number of examples", 1)
    devices = whole_number("devices", devices, "a number of devices", 1)
    if not budget > 0:
        raise ValueError(f"budget={budget!r} is no number of bytes: use one above 0.")
    try:
        step = _Step(model, batch, devices, optimizer)
    except Unknown as reason:
        raise ValueError(
            f"what {model.name} holds cannot be counted: {reason} Trace steps of it, with "
            "memory.measure."
        ) from None
    ways = dict(step.alone(budget))
    if not any(same and way.high <= budget for way, same in ways.items()):
        ways |= dict.fromkeys(step.together(budget), True)
    if any("batch_norm" in way.write for way in ways):
        step.notes.append(
            "recompute over several devices changes the numbers: a BatchNormalization sees a "
            "device's share at a time."
        )
    return Plan(
        model.name, batch, devices, budget, tuple(ways), step.weights, tuple(step.notes)
    )


@dataclass(frozen=True)
class _How:
    """What is done to a step; where: "" on one device, or "batch" or "state" over all, or "host".

    The state on the host leaves the batch on one device, and "hosts" shares it over all.
    """

    half: bool = False
    parts: bool = False
    where: str = ""
    pieces: int = 1


class _Step:
    """A training step, and what it holds where it is taken another way."""

    def __init__(self, model: Any, batch: int, devices: int, optimizer: Any) -> None:
        ready(model)
        self.model, self.batch, self.devices = model, batch, devices
        self.few = len(model.trainable_variables) <= FEW
        made = training_step(model, savers.PROBE, optimizer if self.few else "sgd")
        self.weights, self.states = _bytes(made.weights), _bytes(made.states)
        self.slots = _bytes(made.slots) if self.few else slot_bytes(model, optimizer)
        sizes = {id(v): _bytes([v.value]) for v in model.trainable_variables}
        self.trained = sum(sizes.values())
        self.slots_each = self.slots / max(1, self.trained)
        self.largest = max(sizes.values())
        self.beside = 0 if self.few else (1 + round(self.slots_each)) * self.largest
        self.notes: list[str] = []
        self.groups = self._groups()
        if self.groups and devices > 1:
            self._name_the_largest()
        graph = made.concrete.graph
        self.order = savers.ordered(graph, self.groups)
        if taken := borrowed(self.order.nodes, batch / savers.PROBE):
            self.notes.append(sentence(taken))
        orders = [self.order]
        if any(node.op.type in LOOPS for node in self.order.nodes):
            orders += [savers.ordered(graph, self.groups, overlap) for overlap in (0, 1)]
        early = savers.with_updates(self.order, "early")
        self.orders = [*orders, *map(savers.on_gpu, orders[-2:]), early]
        outputs = getattr(model, "outputs", None) or []
        self.outputs = cuts.bytes_of(outputs)
        layers = {layer.name: layer for layer in _private.layers_of(model)}
        kinds = [getattr(layers.get(name), "activation", None)
                 for name in getattr(model, "output_names", ())]  # fmt: skip
        self.softmax = sum(
            cuts.bytes_of([t]) for t, kind in zip(outputs, kinds, strict=False)
            if getattr(kind, "__name__", "") in ("softmax", "sigmoid")
        )  # fmt: skip

    def _name_the_largest(self) -> None:
        """Say where no owner of whole weights can have a fair share of them."""
        kernels = {layer.name: layer for layer in _private.layers_of(self.model)
                   if type(layer).__name__ == "Dense" and layer.trainable}  # fmt: skip
        name = max(kernels, key=lambda each: _bytes([kernels[each].kernel.value]), default="")
        size = _bytes([kernels[name].kernel.value]) if name else 0
        if size * self.devices > self.trained:
            self.notes.append(
                f"{name!r} has {size / self.trained:.0%} of the weights, more than a device's "
                "share: fit.split_layers cuts such a layer, with the Dense layer next to it."
            )

    def _groups(self) -> list[list[str]]:
        """List the layers from one place where one tensor crosses to the next; none if unknown."""
        try:
            ready(self.model, functional=True)
        except TypeError as reason:
            self.notes.append(f"fit.recompute and fit.split are left out: {reason}")
            return []
        graph = graph_of(self.model)
        calls = _private.calls_of(graph)
        first = first_calls(calls)
        ends = [*cuts.narrow(graph, calls), len(calls)]
        self.starts = ends[:-1]
        return [
            [name for name, i in first.items() if a <= i < b] for a, b in itertools.pairwise(ends)
        ]

    @cached_property
    def parts(self) -> list[int]:
        """Number the part of `fit.recompute` that each group is in."""
        graph = graph_of(self.model)
        calls, parts = _private.calls_of(graph), max(2, round(len(self.groups) ** 0.5))
        starts = cuts.even(calls, cuts.narrow(graph, calls), parts)
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
            ((_bytes([v.value]), id(v) in trained) for v in self.model.weights),
            key=lambda pair: pair[::-1], reverse=True,
        ):  # fmt: skip
            held.sort()
            held[0] = held[0][0] + size, held[0][1] + size * mine
        return max(own for _, own in held)

    def alone(self, budget: float) -> Iterator[tuple[Way, bool]]:
        """Give each way alone, and whether it gives the numbers of the step as it is."""
        n = self.devices
        yield self.way(_How()), True
        if not self.not_halved:
            yield self.way(_How(half=True)), False
        if n > 1:
            yield self.way(_How(where="batch")), True
        if self.batch > 1:
            if self.normalizes:
                self.notes.append(
                    "accumulate changes the numbers: a BatchNormalization sees a piece at a time."
                )
            yield self.in_pieces(_How(), budget), not self.normalizes
        if len(self.groups) > 1:
            yield self.way(_How(parts=True)), True
        elif self.groups:
            self.notes.append(
                f"fit.recompute and fit.split are left out: there is no place in {self.model.name} "
                "where one tensor crosses."
            )
        yield self.way(_How(where="host")), True
        if n > 1:
            yield self.way(_How(where="state")), True
        if 1 < n <= len(self.groups):
            yield self.split(), True

    def together(self, budget: float) -> list[Way]:
        """Give the cheapest two combinations that fit, in half precision only where others do not.

        Where none fits, those that hold least without and with half precision.
        """
        several = self.devices > 1
        hows = [
            _How(False, parts, where, pieces)
            for where in (("batch", "state", "hosts") if several else ("", "host"))
            for parts, pieces in ((False, 2), (True, 1), (True, 2))
            if (where or parts and pieces > 1)
            and (len(self.groups) > 1 or not parts)
            and (pieces == 1 or self.batch > self.count(where))
        ]
        found: list[Way] = []
        least: list[Way] = []
        for half in (False, True)[: 2 - self.not_halved]:
            ways = []
            for how in hows:
                how = replace(how, half=half)
                ways.append(self.in_pieces(how, budget) if how.pieces > 1 else self.way(how))
                found += [way for way in ways[-1:] if way.high <= budget]
                if len(found) == 2:
                    return found
            least += [min(ways, key=lambda way: way.high)] if ways else []
        return found or least

    def count(self, where: str) -> int:
        """Count the devices that share the batch."""
        return self.devices if where in ("batch", "state", "hosts") else 1

    def in_pieces(self, how: _How, budget: float) -> Way:
        """Take as few pieces as fit; where none do, as few as hold about the least there can be."""
        most = math.ceil(self.batch / self.count(how.where))
        pieces = functools.cache(lambda k: self.way(replace(how, pieces=k)))
        enough = max(budget, NO_LESS * pieces(most).high)
        few, many = 1, most
        while many - few > 1:  # what is held becomes less with more pieces
            middle = (few + many) // 2
            few, many = (few, middle) if pieces(middle).high <= enough else (middle, many)
        return pieces(many)

    def way(self, how: _How) -> Way:
        """Count one way to take the step."""
        n = self.count(how.where)
        share = math.ceil(math.ceil(self.batch / n) / how.pieces)
        fixed: float = self.weights
        if how.where == "state":
            fixed += self.states + self.shard * self.slots_each
        elif how.where not in ("host", "hosts"):
            fixed += self.states + self.slots
        owners = {"state": n, "host": 0, "hosts": 0}.get(how.where, 1)  # of 0 the host updates all
        barrier, twice = how.where or how.pieces > 1, how.pieces > 1
        others = n - 1 if owners else 0
        curve = self._curve(
            how.half, how.parts, others, owners if barrier else None, n if how.where else 0
        )
        peak = curve.peak(share)
        whole, sparse = self._gradients(owners)
        # Keras takes the loss of a softmax from its logits only where no cast comes between.
        softmax = share * self.softmax
        peak += 3 * softmax * how.half
        if how.where not in ("host", "hosts"):
            peak += self.beside
        if how.pieces > 1:  # the sums of gradients; of sparse ones there are more at each piece
            peak += whole + 2 * self.batch * sparse
        crossing = 0.0
        if how.where in ("host", "hosts"):
            crossing = n * (self.weights + self.trained)
        elif how.where:
            crossing = (n - 1) * (self.weights + self.trained)
        if how.where:  # outputs are joined on the host, for a loss on the first device; and back
            crossing = how.pieces * crossing + 4 * self.batch * self.outputs
        repeated = self.repeated if how.parts else 0
        least, most = self._range(peak, share, bool(barrier or how.parts))
        # What is updated may be so before the last gradient is made.
        soon = self._order(how.half, how.parts, n if how.where else 0, soon=True).curve()
        least = min(least, soon.peak(share) + whole * twice)
        # Devices that share few cores go one after the other, and free more meanwhile; as a piece
        # does that waits for another one.
        if n > 1 or how.parts and twice:
            least *= 1 - MARGIN
        elif twice:
            least *= 1 - BESIDE
        if how.where in ("state", "host", "hosts"):  # gradients may leave as they come
            least = max(0.0, least - self.trained / (1 - MARGIN))
        if how.parts:  # what a part has left for later may be held while the next one is run again
            most *= AGAIN
        if barrier and owners == 1 and sparse:  # an Embedding's rows are those of the whole batch
            most = max(most, (self.updating + twice * whole) * (1 + BESIDE) / (1 + MARGIN))
        return self._made(
            self._name(how), fixed, peak, crossing,
            (1 + repeated) * math.ceil(self.batch / n) / self.batch, self._write(how),
            (least, most),
            # Pieces and parts may make all gradients of others' weights before they send one.
            beside=(1 + twice) * min(whole, self.largest)
            + (twice or how.parts) * max(0.0, self.trained - whole)
            + twice * 2 * self.batch * sparse + 2 * softmax
            # A metric may look at joined outputs late.
            + bool(how.where) * math.ceil(self.batch / how.pieces) * self.outputs
            if barrier else 2 * softmax * (how.half or how.parts) + self.threads,
        )  # fmt: skip

    @functools.cache  # noqa: B019  a step lives as long as its plan is made
    def _order(
        self, half: bool, parts: bool, joined: int, soon: bool = False
    ) -> savers.Order:
        if parts:
            return savers.again(self._order(half, False, joined, soon), self.parts, soon)
        if joined:
            return savers.joined(self._order(half, False, 0, soon), self.model, joined)
        if half:
            return savers.halved(self._order(False, False, 0, soon), self.model)
        return savers.with_updates(self.order, "early") if soon else self.order

    @functools.cache  # noqa: B019
    def _curve(
        self, half: bool, parts: bool, others: int, owners: int | None, joined: int
    ) -> savers.Curve:
        order = self._order(half, parts, joined)
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

    def _made(
        self, name: str, fixed: float, peak: float, crossing: float, work: float, write: str,
        ends: tuple[float, float], beside: float = 0.0,
    ) -> Way:  # fmt: skip
        """Make a line; beside is what may be held twice, sums of gradients and what they are of."""
        low = fixed + (1 - MARGIN) * ends[0]
        high = fixed + (1 + MARGIN) * ends[1] + beside
        return Way(
            name, round(fixed + peak), round(low), round(high), round(crossing), work, write
        )

    def _name(self, how: _How) -> str:
        over = f"over {counted(self.devices, 'device')}"
        said = [
            *["mixed_bfloat16"] * how.half,
            *{"": [], "host": ["state on the host"], "batch": [f"batch {over}"],
              "state": [f"batch and state {over}"],
              "hosts": [f"batch {over}", "state on the host"]}[how.where],
            *[f"recompute in {self.parts[-1] + 1} parts" for _ in range(how.parts)],
            *[f"accumulate {how.pieces}"] * (how.pieces > 1),
        ]  # fmt: skip
        return " + ".join(said) or "as it is"

    def _write(self, how: _How) -> str:
        code = "model"
        # A part that runs alone cannot meet those of other devices in each BatchNormalization.
        own = ', batch_norm="average"' * (how.parts and self.normalizes)
        if how.parts:
            code = f"fit.recompute({code})"
        if how.where in ("host", "hosts"):
            first = "[:1]" * (how.where == "host" and self.devices > 1)
            code = f"fit.parallel(fit.shard({code}, [plan.host]), plan.devices{first}{own})"
        elif how.where == "state":
            code = f"fit.parallel(fit.shard({code}, plan.devices), plan.devices{own})"
        elif how.where == "batch":
            code = f"fit.parallel({code}, plan.devices{own})"
        if how.pieces > 1:
            code = f"fit.accumulate({code}, {how.pieces})"
        code = "" if code == "model" else code
        if how.half:
            before = 'keras.config.set_dtype_policy("mixed_bfloat16")'
            said = f"of a model that is made after {before}"
            code = f"{code}  # {said}" if code else f"{before}  # before the model is made"
        return code

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
            sum(_bytes([v.value]) * (1 + self.slots_each * (key in trained))
                for key, v in each.items())
            for each in owned
        ]  # fmt: skip
        sizes = [a + b for a, b in zip(kept, state, strict=True)]
        starts = cuts.balanced(sizes, [0] * len(sizes), n)
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
        return self._made(
            f"split over {n} devices at {', '.join(map(repr, at))}", fixed, peak, crossing,
            max(by) / max(1, sum(by)), f"fit.split(model, plan.devices, at={at})",
            self._range(peak, self.batch),
            # A loss that is elsewhere; and a device may begin an update before one has ended, and
            # goes forward or back when another one is ready, which no order on one device tells.
            beside=self.batch * self.outputs + self.largest + 0.1 * peak,
        )  # fmt: skip


def _bytes(variables: Any) -> int:
    import tensorflow as tf

    return sum(v.shape.num_elements() * tf.as_dtype(v.dtype).size for v in variables)
