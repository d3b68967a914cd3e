"""The checks of lesson 03's exercises."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers._formatting import counted, size_text
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import count, networks
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers, same_as

CLOSE = 0.1  # what a traced step and a count may differ by


def _stacks() -> Iterator[tuple[list[int], int]]:
    rng = np.random.default_rng(seed=3)
    for falling in (True, False, None):
        for _ in range(3):
            kept = rng.choice(np.arange(50, 900), rng.integers(3, 8), replace=False).tolist()
            kept = kept if falling is None else sorted(kept, reverse=falling)
            yield kept, int(rng.integers(2, 40))
    for kept in ([700, 20, 300], [500]):  # where kept[-1] is before kept[0], or there is no other
        yield kept, int(rng.integers(2, 40))


def _moments(kept: list[int]) -> list[int]:
    """Count the numbers of one example that are held at each layer of the backward pass."""
    return [sum(kept[: i + 1]) + kept[i] + (kept[i - 1] if i else 0) for i in range(len(kept))]


#: Check exercise 1 of lesson 03: the bytes of a step, from what each layer keeps.
peak_of_a_stack = same_as(
    lambda kept, batch: 4 * batch * max(_moments(kept)),
    _stacks,
    told=lambda right, got, kept, batch: (
        f"for kept={kept} and batch={batch} it is {right:,} bytes, not {got:,.10g}"
    ),
    way="return the bytes of the moment that holds most, one number",
    wrong={
        "a float32 number takes 4 bytes": lambda kept, batch: batch * max(_moments(kept)),
        "layer 0 has no output before it, and kept[-1] is that of the last layer":
            lambda kept, batch: 4 * batch * max(2 * kept[0] + kept[-1], *_moments(kept)),
        "that is one example, and there are as many as the batch has":
            lambda kept, batch: 4 * max(_moments(kept)),
        "that is what the forward pass keeps; gradients come on top":
            lambda kept, batch: 4 * batch * sum(kept),
        "the backward pass may hold more at an earlier layer than at the last one":
            lambda kept, batch: 4 * batch * _moments(kept)[-1],
        "that is another moment of the backward pass; take the one that holds most":
            lambda kept, batch: 4 * batch * _moments(kept)[:2][-1],
    },
    unknown="add the outputs up to layer i and the gradients of outputs i and i - 1",
    yes="the bytes at the peak, of eleven networks",
)


@exercise
def batch_that_fits(function: Any) -> str:
    """Check exercise 2 of lesson 03: the largest batch of a network within a budget, measured."""
    rng = np.random.default_rng(seed=3)
    for _ in range(2):
        network = networks.jang(hidden=int(rng.integers(32, 41)) * 400, width=0.25)
        fixed = 3 * 4 * networks.parameters(network)  # weights, slots and gradients
        budget = round(fixed / 1e6 + int(rng.integers(12, 20))) * 1_000_000
        batch = call(function, network, budget)
        batch = batch.numpy() if hasattr(batch, "numpy") else batch
        whole = isinstance(batch, int | np.integer) and not isinstance(batch, bool)
        expect(whole and batch > 0, f"a batch is a whole number of examples, not {batch!r}")
        expect(batch <= 10 * count.fits(network, budget, slots=1),
               f"a batch of {batch:,} is not run: {size_text(budget)} hold far less")
        expect(batch != count.fits(network, budget, slots=2),
               "that is the answer for Adam's two slots; momentum has one")
        total, of = _traced(network, int(batch)), f"a budget of {size_text(budget)}"
        expect(total <= (1 + CLOSE) * budget,
               f"a batch of {batch} holds {size_text(total)}, too much for {of}")
        expect(total >= (1 - CLOSE) * budget,
               f"a batch of {batch} leaves over a tenth of {of} free: use a larger one")
    return "of two networks, traced, with weights and slots: within 10 % of the budgets"


def _traced(network: networks.Network, batch: int) -> int:
    """Trace a step of a training with momentum; give what it holds, with weights and slots."""
    import tensorflow as tf

    tf1, plan = tf.compat.v1, planned()
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        loss = networks.loss(y, networks.logits(network, networks.classic(network), x))
        tf1.train.MomentumOptimizer(1e-3, 0.9).minimize(loss, name="train")
        start = tf1.global_variables_initializer()
    config = plan.session_config(devices=1, soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(start)
        feed = {"x:0": np.zeros([batch, 28, 28, 1]), "y:0": np.zeros([batch])}
        train = graph.get_operation_by_name("train")
        session.run(train, feed)
        _, step = trace.session_step(session, train, feed)
    return 2 * 4 * networks.parameters(network) + step.peak(plan.devices[0], scratch=False)


@exercise
def lets_go(train: Any) -> str:
    """Check exercise 3 of lesson 03: a list of losses that keeps no tape alive."""
    rng = np.random.default_rng(seed=3)
    for steps in rng.choice(np.arange(3, 9), 2, replace=False).tolist():
        _judge_losses(train, rng.integers(1, 1000, steps).astype(float).tolist())
    return "the losses of two trainings, and no tape was alive when the next step began"


def _judge_losses(train: Any, values: list[float]) -> None:
    import tensorflow as tf

    tapes: list[weakref.ref[Any]] = []
    alive, steps = 0, len(values)

    def kept() -> int:
        return sum(tape() is not None for tape in tapes)

    def step() -> tuple[Any, Any]:
        nonlocal alive
        alive = max(alive, kept())
        with tf.GradientTape() as tape:
            loss = tf.constant(values[len(tapes)] if len(tapes) < steps else 0.0)
        tapes.append(weakref.ref(tape))
        return loss, tape

    losses = call(train, step, steps)
    lazy = inspect.isgenerator(losses)
    expect(not lazy, "it returns a generator, which has not run a step yet: return a list")
    if kept():
        gc.collect()
    left, ran = counted(kept(), "tape"), counted(len(tapes), "time")
    expect(len(tapes) == steps, f"step was called {ran} in {steps} steps")
    expect(not kept(), f"{left} of {steps} outlived the training: do not keep them")
    earlier = counted(alive, "earlier tape")
    expect(not alive, f"{earlier} of {steps} still lived when a step began: free it before")
    way = f"it should return the {steps} losses in order, as numbers"
    losses = listed(losses, way)
    expect(not any(tf.is_tensor(loss) for loss in losses),
           "these are tensors, which stay on the device; float(loss) makes a number")
    expect(numbers(losses, (steps,), way).tolist() == values, way)
