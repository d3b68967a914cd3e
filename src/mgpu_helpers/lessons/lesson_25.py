"""What lesson 25 needs beside its own code: the network in Keras, and when each graph trained."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mgpu_helpers import charts

Spans = Sequence[tuple[float, float]]


def build(hidden: int, weights: Sequence[Any], device: str) -> Any:
    """Make the network of the article in Keras, an eighth as wide, with these weights."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    stack: list[Any] = [keras.Input([28, 28, 1])]
    for filters in (8, 8, 16):
        stack.append(layers.Conv2D(filters, 3, 1, "same", activation="relu", use_bias=False))
        stack.append(layers.MaxPooling2D(padding="same"))
    stack += [layers.Flatten(), layers.Dense(hidden // 8, "relu", use_bias=False)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.device(device):
        model = keras.Sequential([*stack, layers.Dense(10, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.125), loss, jit_compile=False)
    model.set_weights(weights)
    return model


def timed(session: Any, batches: Iterable[tuple[Any, Any]]) -> Spans:
    """Train a graph with each batch, and give when each of the steps began and ended."""
    spans = []
    for x, y in batches:
        begun = time.perf_counter()
        session.run("train_step", {"input:0": x, "label:0": y})
        spans.append((begun, time.perf_counter()))
    return spans


def show(passes: Mapping[str, Sequence[Spans]], homes: Sequence[str]) -> Any:
    """Draw when each graph trained, in each way to make a pass, from the beginning of the pass."""
    rows: dict[str, Spans] = {}
    for way, graphs in passes.items():
        zero = graphs[0][0][0]
        for number, spans in enumerate(graphs, 1):
            rows[f"{way}: graph {number}"] = [(begun - zero, end - zero) for begun, end in spans]
    places = dict(zip(rows, itertools.cycle(homes), strict=False))
    return charts.spans(rows, places)
