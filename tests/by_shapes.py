"""Count by hand, from the layers' shapes, what training a lesson's network holds.

Lesson 09 counts the largest tensors so. `memory.predict` is compared with it.
"""

from __future__ import annotations

import math
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers.lessons import networks
from mgpu_helpers.memory import MemoryUse

_TRAINED = (networks.Conv, networks.Dense)


def predict(network: networks.Network, batch: int) -> MemoryUse:
    """Count the bytes that training on one device with Adam holds at its peak, from the shapes.

    Nothing is dropped, and the batch that is fed is not counted. With oneDNN a pool keeps a note of
    what it took, and without it needs less for its gradient.
    """
    weights = 4 * networks.parameters(network)
    onednn = _private.uses_onednn()
    return MemoryUse(weights, 2 * weights, weights, batch * _per_example(network, onednn))


def _per_example(network: networks.Network, onednn: bool) -> int:
    """Count the bytes that one example holds at the peak, the way forward and back."""
    layers = list(networks.walk(network))
    kept = [_kept(layer, 4 * math.prod(after), onednn) for layer, _, after in layers]
    trained = [i for i, (layer, *_) in enumerate(layers) if isinstance(layer, _TRAINED)]
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
