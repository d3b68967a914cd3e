"""What to try when a model's training step does not fit, cheapest first, and what each costs."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, size_text, table, whole_number
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.graph.cuts import bytes_of
from mgpu_helpers.memory.borrowing import sentence
from mgpu_helpers.memory.how import How
from mgpu_helpers.memory.predicting import or_measured
from mgpu_helpers.memory.ways import Step, Way

NO_LESS = 1.02  # times the least that pieces can hold: more of them are not worth their time


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
    shorter: Mapping[int, tuple[Way, ...]] = field(default_factory=dict, hash=False)
    #: the same ways at each length that is not the longest

    def __getitem__(self, name: str) -> Way:
        """Give the way of this name, which `fit.use` takes."""
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(f"{name!r} is none of {', '.join(repr(way.name) for way in self.ways)}")

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
            *table([("", "held, about", *(f"at {length}" for length in self.shorter),
                     *["fits"] * limited, "crosses", "work", "write"), *self._rows(limited)]),
            *self.notes,
        ]  # fmt: skip
        if any("set_dtype_policy" in way.write for way in self.ways):
            lines.append("The dtype policy is set before the model is made.")
        if any(way.layout.devices for way in self.ways):  # and not this Plan
            lines.append(f"In these lines, plan is devices.setup({self.devices}).")
        if not self.fitting:
            least = min(self.ways, key=lambda way: way.high)
            lines.append(
                f"nothing fits{' for certain' * (least.low <= self.budget)}: the weights alone are "
                f"{size_text(self.weights)}, and the least that is held is "
                f"{size_text(least.low)} to {size_text(least.high)}, with {least.name}."
            )
        return "\n".join(lines)

    def _rows(self, limited: bool) -> Iterator[list[str]]:
        for i, way in enumerate(self.ways):
            low, high = way.low <= self.budget, way.high <= self.budget
            held = {length: ways[i] for length, ways in self.shorter.items()}
            up_to = max((n for n, one in held.items() if one.high <= self.budget), default=0)
            fits = "yes" if high else "perhaps" if low else "no"
            yield [
                way.name,
                f"{size_text(way.held)} ({size_text(way.low)} to {size_text(way.high)})",
                *(size_text(one.held) for one in held.values()),
                *[f"to {up_to}" if up_to and not high else fits] * limited,
                size_text(way.crossing) if way.crossing else "-",
                f"{way.work:.2f}",
                way.write,
            ]


def plan(
    model: Any, batch: Any, devices: int = 1, budget: float = math.inf, optimizer: Any = None,
    *, length: Any = None,
) -> Plan:  # fmt: skip
    """List what to try when a step of `fit` does not fit into a budget of bytes a device.

    batch is the whole batch of a step, and devices how many may share it. The ways come cheapest
    first, in this order, as far as there are such devices and layers:

    1. the step as it is;
    2. in half precision, which changes the numbers;
    3. the batch over all devices;
    4. in pieces, as few as fit, which change the numbers where a BatchNormalization sees one;
    5. with parts of the forward pass run again;
    6. weights and slots on the host, for one device;
    7. the batch over all devices, and weights and slots shared out over them;
    8. layers in stages, one for each device;
    9. rows of fewer stages that share the batch, with the most stages first;
    10. where none that gives the same numbers fits, combinations until two fit.

    What a way holds is counted from the graph of one step, as `predict` does it, with its
    operations in another order, run again or on other devices; nothing runs. `held` is of the
    device that holds most, the first where the model was built on one. The batch that is fed is not
    in it: leave room for it in the budget. Optimizer and length, and data in place of a number for
    the batch, are as in `predict`. Several lengths, as length=[128, 512], show how each way grows:
    the plan is for the longest, and the same ways are counted at each other one.

    >>> import keras
    >>> from mgpu_helpers import memory
    >>> model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])
    >>> advice = memory.plan(model, batch=64, devices=2, budget=2000)
    >>> [way.name for way in advice.ways[:3]], advice.fitting
    (['as it is', 'mixed_bfloat16', 'batch over 2 devices'], ())
    """
    several = isinstance(length, list | tuple | range) and all(isinstance(n, int) for n in length)
    lengths = sorted({*length}) if several and length else [length]
    devices = whole_number("devices", devices, "a number of devices", 1)
    if not budget > 0:
        raise ValueError(f"budget={budget!r} is no number of bytes: use one above 0.")
    with or_measured(model):
        *others, step = [Step(model, batch, _names(devices), optimizer, n) for n in lengths]
    ways = dict(_alone(step, budget))
    if not any(same and way.high <= budget for way, same in ways.items()):
        ways |= dict.fromkeys(_together(step, budget), True)
    fits = any(way.high <= budget for way in ways)
    return Plan(
        model.name, step.batch, devices, budget, tuple(ways), step.weights,
        (*_notes(step, ways), *([] if fits else _fewer(step, next(iter(ways)).held))),
        {n: tuple(map(other.like, ways)) for n, other in zip(lengths, others, strict=False)},
    )  # fmt: skip


def _names(devices: int) -> tuple[str, ...]:
    """Name so many devices: those of the plan there is, or GPUs."""
    from mgpu_helpers.devices.plan import current

    plan = current()
    there = plan.devices if plan is not None else ()
    if len(there) >= devices:
        return tuple(there[:devices])
    return tuple(f"/GPU:{i}" for i in range(devices))


def _alone(step: Step, budget: float) -> Iterator[tuple[Way, bool]]:
    """Give each way alone, and whether it gives the numbers of the step as it is."""
    several, every, first = step.devices > 1, step.names, step.names[:1]
    yield step.way(How()), True
    if not step.not_halved:
        yield step.way(How(half=True)), False
    if several:
        yield step.way(How(Layout(every))), True
    if step.batch > 1:
        yield _in_pieces(step, How(), budget), not step.normalizes
    if len(step.groups) > 1:
        yield step.way(How(Layout(recompute=True))), True
    yield step.way(How(Layout(first, state="host"))), True
    if several:
        yield step.way(How(Layout(every, state="owners"))), True
    for rows in range(1, step.devices):
        stages, left = divmod(step.devices, rows)
        if not left and stages <= len(step.groups):
            yield step.split(stages), True


def _together(step: Step, budget: float) -> list[Way]:
    """Give the cheapest two combinations that fit, in half precision only where others do not.

    Where none fits, those that hold least without and with half precision.
    """
    several = step.devices > 1
    hows = [
        How(Layout(
            step.names if several else step.names[: state == "host"], state=state, pieces=pieces,
            recompute=parts, synchronized=not (parts and several and step.normalizes),
        ))
        for state in (("home", "owners", "host") if several else ("home", "host"))
        for parts, pieces in ((False, 2), (True, 1), (True, 2))
        if (several or state != "home" or parts and pieces > 1)
        and (len(step.groups) > 1 or not parts)
        and (pieces == 1 or step.batch > step.devices)
    ]  # fmt: skip
    found: list[Way] = []
    least: list[Way] = []
    for half in (False, True)[: 2 - step.not_halved]:
        ways = []
        for how in hows:
            how = replace(how, half=half)
            ways.append(_in_pieces(step, how, budget) if how.layout.pieces > 1 else step.way(how))
            found += [way for way in ways[-1:] if way.high <= budget]
            if len(found) == 2:
                return found
        least += [min(ways, key=lambda way: way.high)] if ways else []
    return found or least


def _in_pieces(step: Step, how: How, budget: float) -> Way:
    """Take as few pieces as fit; where none do, as few as hold about the least there can be."""
    most = how.of_row(step.batch)
    pieces = functools.cache(lambda k: step.way(replace(how, layout=how.layout.changed(pieces=k))))
    enough = max(budget, NO_LESS * pieces(most).high)
    # What is held becomes less with more pieces.
    return pieces(2 + bisect_left(range(2, most), True, key=lambda k: pieces(k).high <= enough))


def _notes(step: Step, ways: Iterable[Way]) -> Iterator[str]:
    """Say which ways are not there and why, and what one of them changes."""
    if step.took:
        yield f"An example has {step.took}."
    if 2 * step.trained < step.weights:
        yield (
            f"Of {size_text(step.weights)} of weights {size_text(step.trained)} are trained: the "
            "others have no gradients and no slots."
        )
    if len(step.groups) < 2:
        reason = step.uncut or f"there is no place in {step.model.name} where one tensor crosses."
        yield f"recompute and stages are left out: {reason}"
    if step.groups and step.devices > 1:
        yield from _too_large(step)
    if step.borrowed:
        yield sentence(step.borrowed)
    if step.normalizes and step.batch > 1:
        yield "pieces change the numbers: a BatchNormalization sees a piece at a time."
    yield from (_faster_link(way) for way in ways if 0 < way.within < way.crossing)
    if any(not way.layout.synchronized for way in ways):
        yield (
            "recompute over several devices changes the numbers: a BatchNormalization sees a "
            "device's share at a time. synchronized=True keeps them, and what each is given."
        )


def _fewer(step: Step, held: int) -> Iterator[str]:
    """Say what it would save to train fewer weights, where that may be most of what is held."""
    if 2 * (step.slots + step.trained) > held:
        yield (
            f"Slots take {size_text(step.slots)} and gradients up to {size_text(step.trained)}, "
            "only of what is trained: train less, by layer.trainable = False, or by "
            "layer.enable_lora(4) of Keras's layers or backbone.enable_lora(4) of KerasHub's."
        )


def _faster_link(way: Way) -> str:
    """Say where more crosses in rows of stages: within all rows, or between them."""
    between = way.crossing - way.within
    larger = "within rows" if way.within > between else "between rows"
    return (
        f"{way.name}: {size_text(way.within)} cross within the rows, {size_text(between)} between "
        f"them: give the larger, {larger}, the faster link. Devices of one row are neighbours in "
        "plan.devices."
    )


def _too_large(step: Step) -> Iterator[str]:
    """Name a layer of which no owner of whole weights can have a fair share."""
    kernels = {layer.name: bytes_of([layer.kernel]) for layer in _private.layers_of(step.model)
               if type(layer).__name__ == "Dense" and layer.trainable}  # fmt: skip
    name = max(kernels, key=kernels.__getitem__, default="")
    if name and kernels[name] * step.devices > step.weights:
        yield (
            f"{name!r} has {kernels[name] / step.weights:.0%} of the weights, more than a device's "
            "share: layers={…} cuts such a layer, with the Dense layer next to it."
        )
