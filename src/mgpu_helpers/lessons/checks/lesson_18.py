"""The checks of lesson 18's exercises."""

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
from unittest.mock import Mock

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, truth

LIMIT = 10.0  # seconds that functions wait for each other: those that run at once need none
# What waits for a thread, for one future, for all calls of a pool, or for several futures.
WAITS = [each.__code__ for each in (threading.Thread.join, futures.Future.result,
                                    futures.Future.exception, MapResult.wait, futures.wait,
                                    futures.as_completed)]  # fmt: skip
APART = ("the functions did not run at the same time, each in a thread of its own: start all, then "
         "join all")  # fmt: skip


@exercise
def trains(function: Any) -> str:
    """Check exercise 1 of lesson 18: does a step move any trainable weight?"""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng()
    rows, units = rng.normal(size=(8, 3)), int(rng.integers(2, 6))
    with tf.device(planned().devices[0]):
        frozen, norm = keras.layers.Dense(units, trainable=False), keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input([3]), frozen, norm, keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)

        def train() -> Any:
            return model.train_on_batch(rows, np.ones([8, 2]))

        kernel = model.layers[-1].kernel
        eighths = rng.permutation(2 * units).reshape([units, 2]) / 8  # their sums are exact

        def run_alone() -> Any:
            frozen.bias.assign_add(tf.ones([units]))
            return model(rows, training=True)

        def run(step: Any, after: list[Any]) -> Any:
            result = step()
            after.extend(model.get_weights())
            return result

        for step, rate, right, what in (
            (lambda: model.test_on_batch(rows, np.ones([8, 2])), 0.1, False,
             "a test moves no weight"),
            (train, 0.1, True,
             "a training step moves weights (were the numbers copied before the step?)"),
            (run_alone, 0.1, False,
             "only moving averages and a frozen bias moved, which nobody trains"),
            (lambda: norm.gamma.assign(-norm.gamma.value), 0.1, True,
             "a weight of the first layer that trains moved, and no other"),
            (lambda: kernel.assign(tf.reverse(kernel.value, [1])), 0.1, True,  # every sum stays
             "two columns of the last kernel change places (is each number compared?)"),
            (lambda: model.layers[-1].bias.assign_add([0.0, 1e-6]), 0.1, True,
             "one number of the last bias moved, by a millionth"),
            (train, 0.0, False, "a training step with a learning rate of 0 moves no weight"),
        ):
            model.optimizer.learning_rate.assign(rate)
            kernel.assign(eighths)
            after: list[Any] = []
            counter = Mock(side_effect=functools.partial(run, step, after))
            got, times = truth(call(function, model, counter)), counter.call_count
            expect(times == 1, f"the step was called {counted(times, 'time')}")
            expect(got == right, f"{what}, and it says {got}")
            kept = all(map(np.array_equal, after, model.get_weights()))
            expect(kept, "it changed the model's weights after the step: leave what the step made")
    return "seven steps told apart"


@exercise
def run_all(function: Any) -> str:
    """Check exercise 2 of lesson 18: functions at once, results and errors in order."""
    for places in ([0, 1, 2, 3, 4], [1, 0], np.random.default_rng().permutation(40).tolist()):
        _judge_run(function, places)
    return "five at once and two at once, results and exceptions in order"


def _judge_run(function: Any, places: list[int]) -> None:
    n, caller, meet = len(places), threading.current_thread(), threading.Barrier(len(places))
    order = sorted(places, key=lambda i: (n - i) ^ 1)  # of five, 4 ends first, then 2, 3, 0 and 1
    ends = [threading.Event() for _ in places]
    ended: list[int] = []
    awaited: queue.SimpleQueue[Any] = queue.SimpleQueue()  # by the caller, and None at its return
    wanted = [_outcome(i) for i in places]
    before = sys.getprofile()

    def watched(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in WAITS:
            several, one = (frame.f_locals.get(name) for name in ("fs", "self"))
            for each in several if isinstance(several, Collection) else [one]:
                awaited.put(each)

    def work(i: int) -> Any:
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
        result = wanted[places.index(i)]
        if isinstance(result, Exception):
            raise result
        return result

    given = [functools.partial(work, i) for i in places]
    asked = list(given)
    sys.setprofile(watched)
    try:
        got = listed(call(function, asked), f"return a list of the {n} results")
    except NotYet as hint:
        if hint.__cause__ not in wanted:
            raise
        if meet.broken:  # a function was called in this thread, before any other could start
            raise NotYet(APART) from None
        raise NotYet("one function raised an error, and the results of the others are lost: put "
                     "the exception in its place of the list") from None
    finally:
        sys.setprofile(before)
        early = len(ended) < n
        awaited.put(None)
    expect(not meet.broken, APART)
    expect(asked == given,
           "it changed the list of functions that it was given: leave it as it is")
    expect(not early, "it returned before all functions had ended: start a thread for each, and "
           "join them")
    expect(len(ended) == n, f"{n} functions were called {len(ended)} times")
    expect(len(set(ended)) == n, "one function was called again in the place of another (does a "
           "lambda look its function up when the loop has ended?)")
    expect(len(got) == n, f"{n} functions have {n} results, not {len(got)}")
    for result, one in zip(wanted, got, strict=True):
        expect(not isinstance(one, futures.Future), "the list holds futures: ask each of them for "
               "its exception() or its result()")
        error = isinstance(result, Exception)
        did = "raised an error, that exception" if error else f"returned {result!r}, {result!r}"
        more = one is None is not result and got.count(None) > wanted.count(None)
        expect(one in wanted and not more, f"where a function {did} is wanted, not {one!r}")
    in_order = all(one is result or one == result for one, result in zip(got, wanted, strict=True))
    expect(in_order, f"the results should be in the order of the functions, not {got!r}")


def _outcome(i: int) -> Any:
    """Give what function i returns or raises: results, a None, and errors of two kinds."""
    if i % 3 == 1:
        return ValueError(f"error {i}") if i % 2 else OSError(f"error {i}")
    return None if i == 2 else f"result {i}"


def _futures() -> Iterator[Any]:
    """Give the future that this thread of a pool calls a function for."""
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        if future := getattr(frame.f_locals.get("self"), "future", None):
            yield future
