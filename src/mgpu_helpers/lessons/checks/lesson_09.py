"""The checks of lesson 09's exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import pipeline, trace
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import networks
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.trace.records import curve


@exercise
def within_budget(starts: Any) -> str:
    """Check exercise 1 of lesson 09: a cut whose larger part holds 62 MB at most, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = planned(), 62_000_000, networks.jang(hidden=7200, width=0.25)
    if isinstance(starts, str) or not isinstance(starts, Sequence) or len(starts) != 1:
        raise NotYet(f'two parts need one name in a list, such as ["fc1"], not {starts!r}')
    if starts[0] not in ("conv2", "conv3", "fc1", "output"):
        raise NotYet(f"name one of conv2, conv3, fc1 and output, not {starts[0]!r}")
    parts = networks.cut(network, starts)
    where = [plan.devices[0], plan.devices[-1]]
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [512, 28, 28, 1])
        y = tf1.placeholder(tf.int64, [512])
        stages = networks.stages(network, starts, where)
        _, gradients = pipeline.gradients(stages, networks.loss, x, y)
        pairs = [(gradients[n], w) for stage in stages for n, w in stage.weights.items()]
        train = tf1.train.AdamOptimizer(1e-3).apply_gradients(pairs)
        start = tf1.global_variables_initializer()
    config = plan.session_config(soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(start)
        feed = {x: np.zeros([512, 28, 28, 1]), y: np.zeros([512])}
        session.run(train, feed)
        _, step = trace.session_step(session, train, feed)
    for i, part in enumerate(parts):
        own = [a for a in step.allocations if a.op.startswith(f"stage_{i}/") and not a.scratch]
        held = 3 * 4 * networks.parameters(part) + max(size for _, size in curve(own))
        if held > budget:
            raise NotYet(f"part {i + 1} holds more than 62 MB")
    return "both parts hold less than 62 MB"


@exercise
def crossing(function: Callable[[Any, str, int], Any]) -> str:
    """Check exercise 2 of lesson 09: the bytes that cross a cut, of models that it draws."""
    for drawn, other in ((1, "pool"), (None, "flat")):  # the first always gives the same hints
        _check_cuts(function, np.random.default_rng(drawn), ("dense", other, "end"))
    return "right for six cuts of two models, one of them drawn by lot"


def _check_cuts(
    function: Callable[[Any, str, int], Any], rng: np.random.Generator, names: Sequence[str]
) -> None:
    import keras

    layers = keras.layers
    side, filters, units = (int(n) for n in rng.permutation(range(5, 12))[:3])
    model = keras.Sequential([
        keras.Input([2 * side, 2 * side, 3]),
        layers.Conv2D(filters, 3, padding="same", name="conv"), layers.MaxPooling2D(name="pool"),
        layers.Flatten(name="flat"), layers.Dense(units, name="dense"), layers.Dense(2, name="end"),
    ])  # fmt: skip
    for name in names:
        batch = int(rng.integers(2, 9))
        way = f"one number of bytes, for the cut in front of {name!r}"
        got = float(numbers(call(function, model, name, batch), (), way))
        layer = model.get_layer(name)
        there = 4 * batch * math.prod(layer.input.shape[1:])
        behind = 8 * batch * math.prod(layer.output.shape[1:])
        if got == 2 * there:
            continue
        hints = {
            there: "their gradient comes back over the cut: count both ways",
            there / 2: "float32 takes 4 bytes, and the gradient comes back",
            2 * there / batch: "that is one example: a batch has more",
            there / (4 * batch): "these are numbers of one example: count bytes of a batch",
            behind: "that is what the layer gives: what crosses is what it takes",
        }
        given = f"{got:,.3f}".rstrip("0").rstrip(".")
        shape = "x".join(map(str, layer.input.shape[1:]))
        said = hints.get(got, "what does the layer take, and how often does it cross?")
        raise NotYet(
            f"in front of {name!r}, which takes {shape} numbers an example, and at a batch of "
            f"{batch}, it is {2 * there:,} bytes, not {given}: {said}"
        )
