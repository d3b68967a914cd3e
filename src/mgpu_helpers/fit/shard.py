"""Keep a built Keras model's weights, and what the optimizer has for each, on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mgpu_helpers._models import ready
from mgpu_helpers._train import update_at_owners
from mgpu_helpers.fit._moving import moved
from mgpu_helpers.fit.parallel import replace


def shard(model: Any, devices: Iterable[Any]) -> Any:
    """Move the weights of a built model to these devices, shared out by bytes; give the model.

    Each weight lies on one of them, its owner, with what the optimizer keeps for it: there its
    gradients are added up, scaled, clipped and applied. It is the same model with the same values,
    the optimizer's too, compiled before or after. So with

        fit.parallel(fit.shard(model, plan.devices), plan.devices)

    n devices hold a copy of the weights for the step, and the rest shared out: ZeRO 2. And with

        fit.parallel(fit.shard(model, [plan.host]), plan.devices[:1])

    the device holds that copy only, and the host does the updates. What is saved is the model as it
    was. A weight stays whole. Functions that were traced with the model before raise an error,
    those of `fit` are traced again. `fit.alone` moves all back. XLA is not used.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> [weight.value.device[-5:] for weight in shard(model, plan.devices[:1]).weights]
    ['CPU:1', 'CPU:1']
    """
    from mgpu_helpers.devices.plan import checked

    devices = checked(devices)
    ready(model)
    if "sharded" in vars(model):
        raise ValueError(f"the weights of {model.name} are moved already: use fit.alone first.")
    held = dict.fromkeys(devices, 0)
    owned = []
    # What is trained first: the optimizer keeps as much again for it, once or more often.
    for weight in sorted(model.weights, key=lambda v: (v.trainable, _bytes(v)), reverse=True):
        owner = min(held, key=held.__getitem__)
        held[owner] += _bytes(weight)
        owned.append((weight, owner))

    def sharded() -> None:
        """Do nothing: it is there to be undone."""

    vars(sharded)["homes"] = [(weight, weight.value.device) for weight, _ in owned]
    update_at_owners(model.weights)
    replace(model, "sharded", sharded)
    return moved(model, owned)


def _bytes(variable: Any) -> int:
    return int(variable.value.dtype.size * variable.shape.num_elements())
