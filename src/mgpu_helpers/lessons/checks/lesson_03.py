"""The checks of lesson 03's exercises."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import count, networks
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.wording import counted, size_text

CLOSE = 0.1  # what a traced step and a count may differ by


@exercise
def peak_of_a_stack(function: Callable[[list[int], int], Any]) -> str:
    """Check exercise 1 of lesson 03: the bytes of a step, from what each layer keeps."""
    rng = np.random.default_rng(seed=3)
    for falling in (True, False, None):
        for _ in range(3):
            kept = rng.choice(np.arange(50, 900), rng.integers(3, 8), replace=False).tolist()
            _judge_peak(function, kept if falling is None else sorted(kept, reverse=falling), rng)
    for kept in ([700, 20, 300], [500]):  # where kept[-1] is before kept[0], or there is no other
        _judge_peak(function, kept, rng)
    return "the bytes at the peak, of eleven networks"


def _judge_peak(function: Callable[..., Any], kept: list[int], rng: np.random.Generator) -> None:
    batch, moments = int(rng.integers(2, 40)), _moments(kept)
    way = "return the bytes of the moment that holds most, one number"
    got = float(numbers(call(function, list(kept), batch), (), way))
    if got != 4 * batch * max(moments):
        raise NotYet(_why(got, kept, batch, moments))


def _moments(kept: Sequence[int]) -> list[int]:
    """Count the numbers of one example that are held at each layer of the backward pass."""
    return [sum(kept[: i + 1]) + kept[i] + (kept[i - 1] if i else 0) for i in range(len(kept))]


def _why(got: float, kept: Sequence[int], batch: int, moments: Sequence[int]) -> str:
    right = 4 * batch * max(moments)
    said = f"for kept={list(kept)} and batch={batch} it is {right:,} bytes, not {got:,.10g}: "
    if got == batch * max(moments):
        return said + "a float32 number takes 4 bytes"
    if got == 4 * batch * max(moments[0] + kept[-1], *moments):
        return said + "layer 0 has no output before it, and kept[-1] is that of the last layer"
    if got == 4 * max(moments):
        return said + "that is one example, and there are as many as the batch has"
    if got == 4 * batch * sum(kept):
        return said + "that is what the forward pass keeps; gradients come on top"
    if got in (4 * batch * (moments[-1] - kept[-1]), 4 * batch * moments[-1]):
        return said + "the backward pass may hold more at an earlier layer than at the last one"
    if got in [4 * batch * each for each in moments]:
        return said + "that is another moment of the backward pass; take the one that holds most"
    return said + "add the outputs up to layer i and the gradients of outputs i and i - 1"


@exercise
def batch_that_fits(function: Callable[[networks.Network, int], Any]) -> str:
    """Check exercise 2 of lesson 03: the largest batch of a network within a budget, measured."""
    rng = np.random.default_rng(seed=3)
    for _ in range(2):
        network = networks.jang(hidden=int(rng.integers(32, 41)) * 400, width=0.25)
        fixed = 3 * 4 * networks.parameters(network)  # weights, slots and gradients
        budget = round(fixed / 1e6 + int(rng.integers(12, 20))) * 1_000_000
        batch = call(function, network, budget)
        batch = batch.numpy() if hasattr(batch, "numpy") else batch
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise NotYet(f"a batch is a whole number of examples, not {batch!r}")
        if batch > 10 * count.fits(network, budget, slots=1):
            raise NotYet(f"a batch of {batch:,} is not run: {size_text(budget)} hold far less")
        if batch == count.fits(network, budget, slots=2):
            raise NotYet("that is the answer for Adam's two slots; momentum has one")
        total = _traced(network, int(batch))
        of = f"a budget of {size_text(budget)}"
        if total > (1 + CLOSE) * budget:
            raise NotYet(f"a batch of {batch} holds {size_text(total)}, too much for {of}")
        if total < (1 - CLOSE) * budget:
            raise NotYet(f"a batch of {batch} leaves over a tenth of {of} free: use a larger one")
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
def lets_go(train: Callable[[Callable[[], Any], int], Any]) -> str:
    """Check exercise 3 of lesson 03: a list of losses that keeps no tape alive."""
    rng = np.random.default_rng(seed=3)
    for steps in rng.choice(np.arange(3, 9), 2, replace=False).tolist():
        _judge_losses(train, rng.integers(1, 1000, steps).astype(float).tolist())
    return "the losses of two trainings, and no tape was alive when the next step began"


def _judge_losses(train: Callable[[Callable[[], Any], int], Any], values: list[float]) -> None:
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
    if inspect.isgenerator(losses):
        raise NotYet("it returns a generator, which has not run a step yet: return a list")
    if kept():
        gc.collect()
    left = kept()
    if len(tapes) != steps:
        raise NotYet(f"step was called {counted(len(tapes), 'time')} in {steps} steps")
    if left:
        raise NotYet(f"{counted(left, 'tape')} of {steps} outlived the training: do not keep them")
    if alive:
        earlier = counted(alive, "earlier tape")
        raise NotYet(f"{earlier} of {steps} still lived when a step began: free it before")
    way = f"it should return the {steps} losses in order, as numbers"
    losses = listed(losses, way)
    if any(tf.is_tensor(loss) for loss in losses):
        raise NotYet("these are tensors, which stay on the device; float(loss) makes a number")
    if numbers(losses, (steps,), way).tolist() != values:
        raise NotYet(way)
