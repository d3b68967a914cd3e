"""The checks of lesson 09's exercises."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import devices, pipeline, trace
from mgpu_helpers.lessons import networks
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.wording import counted


@exercise
def within_budget(starts: Any) -> str:
    """Check exercise 1 of lesson 09: a cut whose larger part holds 62 MB at most, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = devices.current(), 62_000_000, networks.jang(hidden=7200, width=0.25)
    if isinstance(starts, str) or not isinstance(starts, Sequence) or len(starts) != 1:
        raise NotYet(f'two parts need one name in a list, such as ["fc1"], not {starts!r}')
    parts = call(networks.cut, network, starts)
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
        held = 3 * 4 * networks.parameters(part) + max(size for _, size in trace.curve(own))
        if held > budget:
            raise NotYet(f"part {i + 1} holds more than 62 MB")
    return "both parts hold less than 62 MB"


@exercise
def two_at_most(function: Callable[[int, int], Any]) -> str:
    """Check exercise 2 of lesson 09: an order in which no stage holds more than two pieces."""
    for stages, pieces in ((2, 3), (3, 4), (4, 6), (3, 1)):
        said = f"with {counted(stages, 'stage')} and {counted(pieces, 'piece')}"
        way = f"{said}, give each stage a list of its tasks"
        schedule = [listed(steps, way) for steps in listed(call(function, stages, pieces), way)]
        found = call(pipeline.check, schedule)
        if (len(schedule), found) != (stages, pieces):
            raise NotYet(f"{said}: a schedule for {len(schedule)} and {found}")
        for stage, steps in enumerate(schedule):
            held = np.cumsum([1 if step[0] == "F" else -1 for step in steps]).max()
            if held > 2:
                raise NotYet(f"{said}, stage {stage} holds {held} pieces at once")
        columns = max(end for _, end in pipeline.run_times(schedule).values())
        if pieces > 1 and columns >= 2 * stages * pieces:
            raise NotYet(f"{said} it takes as long as one piece after the other")
    return "never more than two pieces, and faster than one after the other"


@exercise
def accumulate(function: Callable[[Callable[[Any, Any], Any], Any], Any]) -> str:
    """Check exercise 3 of lesson 09: gradients of pieces added up, weighted, few at a time."""
    import tensorflow as tf

    sizes, most, largest = (4, 3, 1, 2, 4, 2), 0, 0
    x, y = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
    length = 1237  # of a gradient, so that whatever is made from one is known by it

    def gradient_of(x: Any, y: Any) -> Any:
        nonlocal most, largest
        gc.collect()
        held = (o for o in gc.get_objects() if isinstance(o, tf.Tensor) and o.shape == [length])
        most, largest = max(most, 1 + len(list(held))), max(largest, len(x))
        return tf.fill([length], tf.reduce_mean(tf.convert_to_tensor(x) * y))

    cuts = np.cumsum(sizes)[:-1]
    pieces = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    way = f"one gradient like those of gradient_of, of {length} numbers alike"
    got = numbers(call(function, gradient_of, pieces), (length,), way)
    means = [part.mean() for part in np.split(x, cuts)]
    wrong = {
        float(np.mean(means)): "pieces of 4 and of 1 count the same: weigh each by its size",
        float(np.sum(means)): "the gradients are added, and not divided",
        float(means[-1]): "only the last piece is left: add",
    }
    if np.ptp(got):
        raise NotYet(way)
    got = got[0]
    for value, why in wrong.items():
        if np.isclose(got, value):
            raise NotYet(why)
    if not np.isclose(got, x.mean()):
        raise NotYet(f"pieces of {sizes} should give {x.mean():g}, not {got:g}")
    if largest > max(sizes):
        raise NotYet(f"right, but one call had {largest} examples: a piece has 4 at most")
    if most > 3:
        raise NotYet(f"right, but {most} gradients were held at once: add each as it comes")
    return "right for pieces of 4, 3, 2 and 1, and never all gradients at once"
