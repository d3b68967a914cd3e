"""Count by hand, from the layers' shapes, what training a lesson's network holds.

Lesson 03 counts the largest tensors so. `memory.predict` is compared with it.
"""

from __future__ import annotations

import math
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import whole_number
from mgpu_helpers.lessons import networks
from mgpu_helpers.memory import MemoryUse

_TRAINED = (networks.Conv, networks.Dense)


def predict(
    network: networks.Network, batch: int, *, slots: int = 2, onednn: bool | None = None
) -> MemoryUse:
    """Count the bytes that training on one device holds at its peak, from the layers' shapes.

    slots: numbers that the optimizer keeps for each weight: 2 for Adam, 1 for momentum, 0 for
    plain descent. Nothing is dropped (keep=1.0), and the batch that is fed is not counted.
    onednn: whether TensorFlow computes with that library, as on Intel's and AMD's processors
    unless TF_ENABLE_ONEDNN_OPTS=0, and never on a GPU; None asks TensorFlow and the plan.
    """
    batch = whole_number("batch", batch, "a number of examples", 1)
    slots = whole_number("slots", slots, "a number", 0)
    if onednn is None:
        from mgpu_helpers.devices import current

        plan = current()
        onednn = _private.uses_onednn() and (plan is None or not plan.on_gpus)
    weights = 4 * networks.parameters(network)
    return MemoryUse(weights, slots * weights, weights, batch * _per_example(network, onednn))


def _per_example(network: networks.Network, onednn: bool) -> int:
    """Count the bytes that one example holds at the peak, the way forward and back."""
    layers = list(networks.walk(network))
    kept = [_kept(layer, 4 * math.prod(after), onednn) for layer, _, after in layers]
    trained = [i for i, (layer, *_) in enumerate(layers) if isinstance(layer, _TRAINED)]
    if not trained:
        raise ValueError(f"{network.name} has no weights to train: add a layer that has some.")
    held = sum(kept)
    peak = held + 4 * math.prod(layers[-1][2])  # the whole way forward, and the loss's gradient
    for i in range(len(layers) - 1, trained[0] - 1, -1):
        layer, before, after = layers[i]
        if isinstance(layer, networks.Dropout):
            continue
        pool = isinstance(layer, networks.Pool)
        needed = held if pool else held - kept[i]  # a pool looks again at what it chose
        gradients = 4 * math.prod(after)
        free = pool and not onednn and getattr(layers[i - 1][0], "activation", "relu") != "relu"
        if i > trained[0] and not free:
            gradients += 4 * math.prod(before)
        peak = max(peak, needed + gradients)
        held -= kept[i]
    return peak


def _kept(layer: Any, output: int, onednn: bool) -> int:
    """Count the bytes that a layer keeps for the backward pass, an example, given its output's."""
    if isinstance(layer, networks.Dropout):
        return 0
    if isinstance(layer, networks.Pool):
        return output + (output // 4 if onednn else 0)  # and a byte to say which one it took
    # The bias and a ReLU are written over what they are given; a leaky ReLU keeps both sides.
    return 2 * output if layer.activation == "leaky_relu" else output
