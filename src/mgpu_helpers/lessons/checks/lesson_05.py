"""The checks of lesson 05's exercises."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.wording import counted


@exercise
def trains(function: Callable[[Any, Any, Any], Any]) -> str:
    """Check exercise 1 of lesson 05: does a run move any trainable variable?"""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [])
        still = tf1.get_variable("still", initializer=[1.0, 2.0])
        moves = tf1.get_variable("moves", initializer=[3.0, 4.0])
        last = tf1.get_variable("last", initializer=[5.0])
        counter = tf1.get_variable("counter", initializer=0, trainable=False)
        loss = tf.reduce_sum(still) + x * (moves[0] - moves[1]) + tf.reduce_sum(last)
        train = moves.assign_sub(0.5 * tf1.gradients(loss, moves)[0]).op  # its sum stays
        count = counter.assign_add(1).op
        start = tf1.global_variables_initializer()
    calls = []

    class Counting(tf1.Session):
        def run(self, fetches: Any, *args: Any, **more: Any) -> Any:
            calls.append(fetches)
            return super().run(fetches, *args, **more)

    config = devices.current().session_config(soft_placement=True)
    with contextlib.closing(Counting(graph=graph, config=config)) as session:
        for fetches, value, right, what in (
            (loss, 1.0, False, "fetching the loss alone moves nothing"),
            ([loss, train], 1.0, True, "fetching the training too moves a weight"),
            ([loss, count], 1.0, False, "only a counter moved, which nobody trains"),
            ([loss, train], 0.0, False, "a gradient of zero moves nothing"),
        ):
            session.run(start)
            calls.clear()
            got = call(function, session, fetches, {x: value})
            if calls.count(fetches) != 1:
                raise NotYet(f"the fetches were run {counted(calls.count(fetches), 'time')}")
            if got is None or call(bool, got) != right:
                raise NotYet(f"{what}, and it says {got!r}")
    return "four runs told apart"


@exercise
def agreed(function: Callable[[Any], Any]) -> str:
    """Check exercise 2 of lesson 05: the label that all members say, or -1."""
    said = np.array([[3, 1, 0, 2, 9, 4], [3, 1, 1, 2, 0, 7], [3, 2, 0, 2, 8, 7]])
    sure = (0.9, 0.2, 0.5)  # how far above the rest each member's choice is
    predicted = {f"g{i + 1}": (1 - s) / 10 + s * np.eye(10)[said[i]] for i, s in enumerate(sure)}
    right = [3, -1, -1, 2, -1, -1]
    got = numbers(call(function, predicted), (6,), "six digits need six labels").tolist()
    if -1 not in got:
        raise NotYet("members that disagree give no -1")
    if got != right:
        raise NotYet(f"members that say {said.T.tolist()} agree on {right}, not on {got}")
    return "a label where all agree, -1 where they do not"


@exercise
def run_all(function: Callable[[list[Callable[[], Any]]], Any]) -> str:
    """Check exercise 3 of lesson 05: functions at once, results in order."""
    meet = threading.Barrier(3)

    def work(i: int) -> Any:
        try:
            meet.wait(timeout=1)  # passes when all three are here
        except threading.BrokenBarrierError:
            return None
        time.sleep(0.02 * (3 - i))  # the first ends last
        return 10 * i

    before = threading.active_count()
    got = call(function, [lambda i=i: work(i) for i in range(3)])
    got = listed(got, "give the three results in a list")
    if meet.broken:
        raise NotYet("the functions did not run at the same time: start all, then join all")
    if threading.active_count() > before:
        raise NotYet("it came back before the threads had ended: join them")
    if got != [0, 10, 20]:
        raise NotYet(f"the results should be [0, 10, 20], in order, not {got!r}")
    return "three at once, and their results in order"
