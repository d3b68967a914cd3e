"""Move the variables of a built Keras model, each with its slots, to other devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras
from mgpu_helpers._names import short


def moved(model: Any, places: Iterable[tuple[Any, str]]) -> Any:
    """Move variables of a model, each given with its device, and what its optimizer keeps of each.

    Slots that the optimizer makes later come to lie where their variable does. What the model has
    compiled is forgotten, since it knows the old places.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> weight = model.layers[0].kernel
    >>> moved(model, [(weight, plan.devices[1])]).layers[0].kernel is weight
    True
    >>> weight.value.device[-5:]
    'CPU:2'
    """
    slots = [_private.slots_of(optimizer) for optimizer in optimizers_of(model)]
    for variable, device in places:
        for each in (variable, *(x for kept in slots for x in kept.get(id(variable), ()))):
            if short(each.value.device) != short(device):
                _private.move(each, device)
    model.train_function = model.test_function = model.predict_function = None
    if hasattr(model, "generate_function"):  # of KerasHub
        model.generate_function = None
    return model


def optimizers_of(model: Any) -> list[Any]:
    """List a model's optimizer, and those that it hands its work on to, as one that scales does."""
    return list(within(getattr(model, "optimizer", None)))


def within(optimizer: Any) -> Iterator[Any]:
    """List an optimizer and those that it hands its work on to."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        yield optimizer
        for value in vars(optimizer).values():
            for each in value if isinstance(value, list | tuple) else [value]:
                yield from within(each)
