"""The tower of lesson 11 that fetches each weight twice, so that it never keeps two copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Fetch = Callable[[Any, Any, str], Any]


def layer_by_layer(fetch_after: Fetch, loss: Callable[[Any, Any], Any]) -> Callable[..., list[Any]]:
    """Make a tower for dense layers with a relu between them, which returns their gradients.

    fetch_after(after, weight, device) copies a weight to a device once the tensor `after` is there.
    """

    def tower(state: Sequence[Any], device: str, x: Any, y: Any) -> list[Any]:
        with tf.device(device):
            inputs, product = forward(state, device, x)
            with tf.GradientTape() as tape:  # of the loss alone: it would keep all copies
                tape.watch(product)
                value = loss(y, product)
            return backward(state, device, inputs, tape.gradient(value, product))

    def forward(state: Sequence[Any], device: str, h: Any) -> tuple[list[Any], Any]:
        inputs, product = [], h
        for entry in state:
            inputs.append(h)
            product = h @ fetch_after(h, entry.weight, device)
            h = tf.nn.relu(product)
        return inputs, product

    def backward(state: Sequence[Any], device: str, inputs: list[Any], slope: Any) -> list[Any]:
        """Go from the last layer to the first; slope is the gradient of the layer's product."""
        gradients: list[Any] = []
        for entry, h in zip(reversed(state), reversed(inputs), strict=True):
            copy = fetch_after(slope, entry.weight, device)  # the second copy
            before = tf.matmul(slope, copy, transpose_b=True)  # the gradient of the input h
            before *= tf.cast(h > 0, h.dtype)  # back through the relu
            with tf.control_dependencies([before]):  # the copy is free now
                gradients.insert(0, tf.matmul(h, slope, transpose_a=True))  # of the weight
            slope = before
        return gradients

    return tower
