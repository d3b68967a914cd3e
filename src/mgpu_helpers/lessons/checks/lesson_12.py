"""The checks of lesson 12's exercises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import pipeline, trace
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import networks
from mgpu_helpers.lessons.checks.judge import exercise, expect, same_as
from mgpu_helpers.trace.records import curve


@exercise
def within_budget(starts: Any) -> str:
    """Check exercise 1 of lesson 12: a cut whose larger part holds 62 MB at most, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = planned(), 62_000_000, networks.jang(hidden=7200, width=0.25)
    one = isinstance(starts, Sequence) and not isinstance(starts, str) and len(starts) == 1
    expect(one, f'two parts need one name in a list, such as ["fc1"], not {starts!r}')
    known = starts[0] in ("conv2", "conv3", "fc1", "output")
    expect(known, f"name one of conv2, conv3, fc1 and output, not {starts[0]!r}")
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
        expect(held <= budget, f"part {i + 1} holds more than 62 MB")
    return "both parts hold less than 62 MB"


def _models() -> Iterator[tuple[Any, str, int]]:
    import keras

    for drawn, other in ((1, "pool"), (None, "flat")):  # the first always gives the same hints
        layers, rng = keras.layers, np.random.default_rng(drawn)
        side, filters, units = (int(n) for n in rng.permutation(range(5, 12))[:3])
        model = keras.Sequential([
            keras.Input([2 * side, 2 * side, 3]),
            layers.Conv2D(filters, 3, padding="same", name="conv"),
            layers.MaxPooling2D(name="pool"), layers.Flatten(name="flat"),
            layers.Dense(units, name="dense"), layers.Dense(2, name="end"),
        ])
        for name in ("dense", other, "end"):
            yield model, name, int(rng.integers(2, 9))


def _there(model: Any, name: str) -> int:
    return math.prod(model.get_layer(name).input.shape[1:])


def _crosses(right: int, got: Any, model: Any, name: str, batch: int) -> str:
    given = f"{got:,.3f}".rstrip("0").rstrip(".")
    shape = "x".join(map(str, model.get_layer(name).input.shape[1:]))
    return (
        f"in front of {name!r}, which takes {shape} numbers an example, and at a batch of "
        f"{batch}, it is {right:,} bytes, not {given}"
    )


#: Check exercise 2 of lesson 12: the bytes that cross a cut, of models that it draws.
crossing = same_as(
    lambda model, name, batch: 8 * batch * _there(model, name),
    _models,
    told=_crosses,
    way=lambda right, model, name, batch: f"one number of bytes, for the cut in front of {name!r}",
    wrong={
        "their gradient comes back over the cut: count both ways":
            lambda model, name, batch: 4 * batch * _there(model, name),
        "float32 takes 4 bytes, and the gradient comes back":
            lambda model, name, batch: 2 * batch * _there(model, name),
        "that is one example: a batch has more": lambda model, name, batch: 8 * _there(model, name),
        "these are numbers of one example: count bytes of a batch":
            lambda model, name, batch: _there(model, name),
        "that is what the layer gives: what crosses is what it takes": lambda model, name, batch: (
            8 * batch * math.prod(model.get_layer(name).output.shape[1:])
        ),
    },
    unknown="what does the layer take, and how often does it cross?",
    yes="right for six cuts of two models, one of them drawn by lot",
)
