"""The checks of lesson 05's exercises."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.wording import counted


@exercise
def trains(function: Callable[[Any, Any, Any], Any]) -> str:
    """Check exercise 1 of lesson 05: does a run move any trainable variable?"""
    import tensorflow as tf

    tf1 = tf.compat.v1
    rng = np.random.default_rng()
    size, others = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [])
        tf1.get_variable("still", initializer=tf.ones([size, 3]))
        for other in range(others):
            tf1.get_variable(f"other_{other}", initializer=[5.0])
        moves = tf1.get_variable("moves", initializer=tf.constant([[1.0, 2.0]] * size))
        tf1.get_variable("last", initializer=[5.0])
        counter = tf1.get_variable("counter", initializer=0, trainable=False)
        runs = tf1.get_variable("runs", initializer=0, trainable=False)
        with tf.control_dependencies([runs.assign_add(1)]):  # how often the loss was run
            loss = tf.reduce_sum(x * tf.ones([]))
        signs = tf.numpy_function(_late, [np.tile([[1.0, -1.0]], [size, 1])], tf.float64)
        # A step of 1 makes [2, 1] of [1, 2], and every sum and norm stays.
        change = x * tf.cast(tf.ensure_shape(signs, [size, 2]), tf.float32)
        train = moves.assign_add(change).op
        count = counter.assign_add(1).op
        start = tf1.global_variables_initializer()
    config = planned().session_config(soft_placement=True)
    with contextlib.closing(tf1.Session(graph=graph, config=config)) as session:
        for fetches, value, right, what in (
            (loss, 1.0, False, "fetching the loss alone moves no trainable variable"),
            ([loss, train], 1.0, True, "fetching the training too moves a weight"),
            ([loss, count], 1.0, False, "only counters moved, which nobody trains"),
            ({"loss": loss, "train": train}, -1.0, True, "fetches in a dictionary move a weight"),
            ([loss, train], 1e-6, True, "a step of a millionth is a move"),
            ([loss, train], 0.0, False, "a step of zero moves nothing"),
        ):
            session.run(start)
            got = call(function, session, fetches, {x: value})
            times = int(session.run(runs))
            if times != 1:
                raise NotYet(f"the fetches were run {counted(times, 'time')}")
            if not isinstance(got, bool | np.bool_):
                raise NotYet(f"return True or False, not {got!r}")
            if got != right:
                raise NotYet(f"{what}, and it says {got}")
    return "six runs told apart"


def _late(array: np.ndarray) -> np.ndarray:
    time.sleep(0.03)  # weights that are fetched beside the step are read before it
    return array


@exercise
def agreed(function: Callable[[Any], Any]) -> str:
    """Check exercise 2 of lesson 05: the label that all members say, or -1."""
    rng = np.random.default_rng(seed=5)
    for members, n in ((4, 9), (2, 30), (5, 17), (1, 3)):
        names = [f"model {name}" for name in rng.choice(90, members, replace=False)]
        said = np.tile(rng.integers(0, 10, n), (members, 1))
        for digit in rng.choice(n, n // 2, replace=False):  # one member says something else
            said[rng.integers(members), digit] += rng.integers(1, 10)
        said %= 10
        if members > 2:
            said[:3, 0] = [4, 3, 5]  # their mean is the first's
            said[3:, 0] = 4
        sure = rng.uniform(0.1, 0.95, [members, n, 1])  # how far the choice is above the rest
        rows = (1 - sure) / 10 + sure * np.eye(10)[said]
        right = np.where((said == said[0]).all(axis=0), said[0], -1)
        given = dict(zip(names, rows.copy(), strict=True))
        got = call(function, given)
        way = f"{counted(n, 'digit')} need as many labels"
        got = numbers(got, (n,), way)
        if list(given) != names or not np.array_equal(list(given.values()), rows):
            raise NotYet("it changed the predictions that it was given: leave them as they are")
        if members > 1 and -1 not in got:
            raise NotYet("members that disagree give no -1")
        for column, label, wanted in zip(said.T, got.tolist(), right.tolist(), strict=True):
            if label != wanted:
                all_say = f"members that say {column.tolist()} agree on {wanted}"
                if wanted == -1:
                    all_say = f"members that say {column.tolist()} do not agree, which is -1"
                raise NotYet(f"{all_say}, and it gives {label}")
    return "a label where all agree, -1 where they do not, for 1, 2, 4 and 5 members"


@exercise
def run_all(function: Callable[[list[Callable[[], Any]]], Any]) -> str:
    """Check exercise 3 of lesson 05: functions at once, results in order."""
    caller = threading.current_thread()
    for places in ([0, 1, 2, 3, 4], [1, 0], np.random.default_rng().permutation(40).tolist()):
        n = len(places)
        ended: list[int] = []
        meet = threading.Barrier(n)

        def work(i: int, n: int, meet: threading.Barrier, ended: list[int]) -> str:
            if threading.current_thread() is caller:
                meet.abort()
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(timeout=3)  # passes when all are here
                time.sleep(0.15 / n * ((n - i) ^ 1))  # of five, 4 ends first, then 2, 3, 0 and 1
            ended.append(i)
            return f"result {i}"

        given = [functools.partial(work, i, n, meet, ended) for i in places]
        asked = list(given)
        got = listed(call(function, asked), f"return a list of the {n} results")
        if meet.broken:
            raise NotYet("the functions did not run at the same time, each in a thread of its own: "
                         "start all, then join all")  # fmt: skip
        if asked != given:
            raise NotYet("it changed the list of functions that it was given: leave it as it is")
        if len(ended) < n:
            raise NotYet("it returned before all functions had ended: start a thread for each, "
                         "and join them")  # fmt: skip
        if len(ended) > n:
            raise NotYet(f"{n} functions were called {len(ended)} times")
        if len(got) != n:
            raise NotYet(f"{n} functions have {n} results, not {len(got)}")
        wanted = [f"result {i}" for i in places]
        if not all(isinstance(result, str) for result in got) or got != wanted:
            raise NotYet(f"the results should be in the order of the functions, not {got!r}")
    return "five at once and two at once, their results in order"
