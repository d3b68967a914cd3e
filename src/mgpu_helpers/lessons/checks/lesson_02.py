"""The checks of lesson 02's exercises."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices, trace
from mgpu_helpers.lessons import count, networks
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.wording import counted


@exercise
def quarter_and_growth(answer: Any) -> str:
    """Check exercise 1 of lesson 02: a ConfigProto with growth and a quarter of each GPU."""
    from tensorflow.compat.v1 import ConfigProto

    if not isinstance(answer, ConfigProto):
        raise NotYet(f"a configuration is a tf1.ConfigProto, not a {type(answer).__name__}")
    options = answer.gpu_options
    if options.per_process_gpu_memory_fraction > 1:
        raise NotYet(
            f"{options.per_process_gpu_memory_fraction:g} is a share, so it means "
            f"{options.per_process_gpu_memory_fraction:g} times the card; a quarter is 0.25"
        )
    if options.per_process_gpu_memory_fraction != 0.25:
        raise NotYet(f"the share is {options.per_process_gpu_memory_fraction:g}, not a quarter")
    if not options.allow_growth:
        raise NotYet("the session takes its quarter at once: let it grow")
    return "it starts small and takes a quarter of each GPU at most"


@exercise
def batch_that_fits(answer: Any) -> str:
    """Check exercise 2 of lesson 02: the largest batch of a network within 60 MB, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = devices.current(), 60_000_000, networks.jang(hidden=9600, width=0.25)
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer) or answer < 1:
        raise NotYet(f"a batch is a number of examples, not {answer!r}")
    if answer > 10_000:
        raise NotYet(f"a batch of {answer:,} is not run here: it is far more than fits")
    weights = 4 * networks.parameters(network)
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        loss = networks.loss(networks.logits(network, networks.classic(network), x), y)
        tf1.train.MomentumOptimizer(1e-3, 0.9).minimize(loss, name="train")
        start = tf1.global_variables_initializer()
    config = plan.session_config(devices=1, soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(start)
        feed = {"x:0": np.zeros([answer, 28, 28, 1]), "y:0": np.zeros([answer])}
        train = graph.get_operation_by_name("train")
        session.run(train, feed)
        _, step = trace.session_step(session, train, feed)
    total = 2 * weights + step.peak(plan.devices[0], scratch=False)
    said = f"a batch of {answer} holds {total / 1e6:.1f} MB"
    if total > budget:
        raise NotYet(f"{said}, above the budget of 60 MB")
    if answer == count.fits(network, budget, slots=2):
        raise NotYet("that is the answer for Adam's two slots; momentum has one")
    if total < 0.95 * budget:
        raise NotYet(f"it holds {total / 1e6:.0f} MB: there is room for more within 60 MB")
    return f"it holds {total / 1e6:.0f} MB of 60, weights and slots included"


@exercise
def lets_go(train: Callable[[Callable[[], Any], int], Any]) -> str:
    """Check exercise 3 of lesson 02: a list of losses that keeps no tape alive."""
    import tensorflow as tf

    tapes: list[weakref.ref[Any]] = []
    alive = 0

    def count() -> int:
        gc.collect()
        return sum(tape() is not None for tape in tapes)

    def step() -> tuple[Any, Any]:
        nonlocal alive
        alive = max(alive, count())
        with tf.GradientTape() as tape:
            loss = tf.constant(float(len(tapes)))
        tapes.append(weakref.ref(tape))
        return loss, tape

    losses = call(train, step, 4)
    alive = max(alive, count())
    if alive > 1:
        raise NotYet(f"{alive} of {counted(len(tapes), 'tape')} were alive at the same time")
    if len(tapes) != 4:
        raise NotYet(f"step was called {counted(len(tapes), 'time')} in 4 steps")
    way = "it should return the four losses in order, as numbers"
    if numbers(losses, (4,), way).tolist() != [0, 1, 2, 3]:
        raise NotYet(way)
    return "four losses, and no tape was kept"
