"""The checks of lesson 06's exercises."""

from __future__ import annotations

import contextlib
import functools
import inspect
import queue
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent import futures
from multiprocessing.pool import MapResult
from types import FrameType
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, same_as, truth

LIMIT = 10.0  # seconds that functions wait for each other: those that run at once need none
# What waits for a thread, for one future, for all calls of a pool, or for several futures.
WAITS = [each.__code__ for each in (threading.Thread.join, futures.Future.result, MapResult.wait,
                                    futures.wait, futures.as_completed)]  # fmt: skip


@exercise
def trains(function: Any) -> str:
    """Check exercise 1 of lesson 06: does a run move any trainable variable?"""
    import tensorflow as tf

    tf1, rng = tf.compat.v1, np.random.default_rng()
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
        # A step of 1 makes [2, 1] of [1, 2], and every sum and norm stays.
        train = moves.assign_add(x * tf.constant([[1.0, -1.0]] * size)).op
        count = counter.assign_add(1).op
        start = tf1.global_variables_initializer()
    config = planned().session_config(soft_placement=True)
    with contextlib.closing(tf1.Session(graph=graph, config=config)) as session:
        run, together = session.run, False

        def watched(fetches: Any, *args: Any, **named: Any) -> Any:
            nonlocal together
            asked = {getattr(each, "name", each) for each in tf.nest.flatten(fetches)}
            others = asked - {loss.name, train.name, count.name}
            together = together or bool(train.name in asked and others)
            return run(fetches, *args, **named)

        for fetches, value, right, what in (
            (loss, 1.0, False, "fetching the loss alone moves no trainable variable"),
            ([loss, train], 1.0, True, "fetching the training too moves a weight"),
            ([loss, count], 1.0, False, "only counters moved, which nobody trains"),
            ({"loss": loss, "train": train}, -1.0, True, "fetches in a dictionary move a weight"),
            ([loss, train], 1e-6, True, "a step of a millionth is a move"),
            ([loss, train], 0.0, False, "a step of zero moves nothing"),
        ):
            run(start)
            session.run = watched
            got = call(function, session, fetches, {x: value})
            session.run = run
            times = int(run(runs))
            expect(times == 1, f"the fetches were run {counted(times, 'time')}")
            got = truth(got)
            # Whether they are read before the step or after it is a matter of luck.
            expect(not together, f"{what}, and it says False if the weights, fetched in the same "
                   "run, are read before that: fetch them in a run of their own")
            expect(got == right, f"{what}, and it says {got}")
    return "six runs told apart"


def _predictions() -> Iterator[tuple[dict[str, np.ndarray]]]:
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
        yield (dict(zip(names, (1 - sure) / 10 + sure * np.eye(10)[said], strict=True)),)


def _said(predicted: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack([rows.argmax(axis=1) for rows in predicted.values()])


def _agreed(predicted: dict[str, np.ndarray]) -> np.ndarray:
    said = _said(predicted)
    return np.where((said == said[0]).all(axis=0), said[0], -1)


def _disagreed(right: Any, got: Any, predicted: dict[str, np.ndarray]) -> str:
    if len(predicted) > 1 and -1 not in got:
        return "members that disagree give no -1"
    at = np.flatnonzero(got != right)[0]
    labels = _said(predicted)[:, at].tolist()
    do = f"agree on {right[at]}" if right[at] >= 0 else "do not agree, which is -1"
    return f"members that say {labels} {do}, and it gives {got[at]}"


#: Check exercise 2 of lesson 06: the label that all members say, or -1.
agreed = same_as(
    _agreed,
    _predictions,
    told=_disagreed,
    way=lambda right, predicted: f"{counted(len(right), 'digit')} need as many labels",
    changed="it changed the predictions that it was given: leave them as they are",
    yes="a label where all agree, -1 where they do not, for 1, 2, 4 and 5 members",
)


@exercise
def run_all(function: Any) -> str:
    """Check exercise 3 of lesson 06: functions at once, results in order."""
    for places in ([0, 1, 2, 3, 4], [1, 0], np.random.default_rng().permutation(40).tolist()):
        _judge_run(function, places)
    return "five at once and two at once, their results in order"


def _judge_run(function: Any, places: list[int]) -> None:
    n, caller, meet = len(places), threading.current_thread(), threading.Barrier(len(places))
    order = sorted(places, key=lambda i: (n - i) ^ 1)  # of five, 4 ends first, then 2, 3, 0 and 1
    ends = [threading.Event() for _ in places]
    ended: list[int] = []
    awaited: queue.SimpleQueue[Any] = queue.SimpleQueue()  # by the caller, and None at its return
    before = sys.getprofile()

    def watched(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in WAITS:
            several, one = (frame.f_locals.get(name) for name in ("fs", "self"))
            for each in several if isinstance(several, Collection) else [one]:
                awaited.put(each)

    def work(i: int) -> str:
        if threading.current_thread() is caller:
            meet.abort()
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(LIMIT)  # passes when all are here
            if before := order[: order.index(i)]:
                ends[before[-1]].wait(LIMIT)
            if i == order[-1]:  # it ends when the caller waits for it, or does not any more
                own = [None, threading.current_thread(), *_futures()]
                with contextlib.suppress(queue.Empty):
                    while not isinstance(each := awaited.get(timeout=LIMIT), MapResult):
                        if each in own:
                            break
        ended.append(i)
        ends[i].set()
        return f"result {i}"

    given = [functools.partial(work, i) for i in places]
    asked = list(given)
    sys.setprofile(watched)
    try:
        got = listed(call(function, asked), f"return a list of the {n} results")
    finally:
        sys.setprofile(before)
        early = len(ended) < n
        awaited.put(None)
    if meet.broken:
        raise NotYet("the functions did not run at the same time, each in a thread of its own: "
                     "start all, then join all")
    expect(asked == given,
           "it changed the list of functions that it was given: leave it as it is")
    expect(not early, "it returned before all functions had ended: start a thread for each, and "
           "join them")
    expect(len(ended) == n, f"{n} functions were called {len(ended)} times")
    expect(len(got) == n, f"{n} functions have {n} results, not {len(got)}")
    in_order = all(isinstance(each, str) for each in got) and got == [f"result {i}" for i in places]
    expect(in_order, f"the results should be in the order of the functions, not {got!r}")


def _futures() -> Iterator[Any]:
    """Give the future that this thread of a pool calls a function for."""
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        if future := getattr(frame.f_locals.get("self"), "future", None):
            yield future
