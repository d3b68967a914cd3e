"""Real models in real threads, bit for bit."""

from __future__ import annotations

import _thread
import collections
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import wait_for
from mgpu_helpers import ensemble

ONE = iter([(1,)] * 9)


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def plain(name, step=lambda *batch: 0.0, predict=None):
    return ensemble.Member(name, step, predict)


def dense_model(seed, jit_compile="auto", compiled_on="/CPU:0"):
    """Build two layers of one shape, dropout and a normalization."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4, activation="relu") for _ in range(2)]
    layers += [keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.device(compiled_on):
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"],
                      jit_compile=jit_compile)  # fmt: skip
    return model


def batches(count):
    random = np.random.default_rng(0)
    return [(random.random((8, 4), "float32"), random.integers(0, 3, 8)) for _ in range(count)]


# Building


def test_xla_wants_all_variables_where_the_step_runs(plan):
    """It says so only when it runs; elsewhere each variable may be away."""
    import tensorflow as tf

    here, other = plan.devices[1], plan.devices[0]
    with tf.device(here):
        whole, late = dense_model(0, True, here), dense_model(0, True, other)
        apart = dense_model(0, False, other)
    assert [ensemble.from_keras("a", each, here).name for each in (whole, apart)] == ["a", "a"]
    for model, device, says in (
        (late, here, "XLA .*/CPU:2, and adam.* is on /CPU:1"),
        (whole, other, "XLA .*/CPU:1, and .*kernel is on /CPU:2"),
        (whole, "/GPU:7", "'/GPU:7'.*/CPU:0, /CPU:1, /CPU:2"),
    ):
        with pytest.raises(ValueError, match=says):
            ensemble.from_keras("a", model, device)
    late.optimizer = whole.optimizer  # the metrics are still away
    with pytest.raises(ValueError, match="XLA .*/CPU:2, and loss/total is on /CPU:1"):
        ensemble.from_keras("a", late, here)


# Training


def test_models_train_and_predict_at_once_as_alone(plan):
    import tensorflow as tf

    alone = dense_model(1)
    losses = []
    for batch in batches(3):
        alone.reset_metrics()  # before Keras 3.15, the mean since the last reset comes
        losses.append(float(alone.train_on_batch(*batch)[0]))
    models = []
    for place in (0, 1):
        with tf.device(plan.devices[place]):
            models.append(dense_model(place))
    together = [ensemble.from_keras(f"m{place}", model) for place, model in enumerate(models)]
    run = ensemble.train(together, batches(3))
    assert run.losses["m1"] == losses and run.losses["m0"] != losses
    for one, other in zip(models[1].variables, alone.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    slots = [v for v in models[1].optimizer.variables if "momentum" in v.path]
    assert slots and all(plan.devices[1][1:] in v.value.device for v in slots)
    images = batches(1)[0][0]
    with ThreadPoolExecutor() as pool:
        _, found = pool.map(lambda member: member.predict(images), together)
    np.testing.assert_array_equal(found, alone.predict_on_batch(images))
    assert repr(run).startswith(f"2 members in {run.wall:.2f} s\nm0      3 steps  loss ")


def test_members_see_the_same_batches_or_their_own():
    seen = collections.defaultdict(list)

    def members():
        seen.clear()
        return [plain(name, lambda x, n=name: seen[n].append(x) or x / 2) for name in "abc"]

    run = ensemble.train(members(), ((i,) for i in range(5)))
    assert dict(seen) == {name: [0, 1, 2, 3, 4] for name in "abc"}
    assert run.losses == {name: [0.0, 0.5, 1.0, 1.5, 2.0] for name in "abc"}
    ensemble.train(members(), lambda place: ((place * 10 + i,) for i in range(place + 1)))
    assert dict(seen) == {"a": [0], "b": [10, 11], "c": [20, 21, 22]}


def works(thread):
    """Say whether a thread is in a member's steps, or notes how they ended."""
    stack = traceback.walk_stack(sys._current_frames()[thread])
    return any(frame.f_code.co_filename == ensemble.__file__ for frame, _ in stack)


def test_a_failed_step_stops_the_others_whole_and_a_second_failure_is_told():
    # The third step of each is at the same time as that of the others.
    third, counts, of_b = threading.Barrier(3, timeout=20), collections.Counter(), []

    def step(name):
        counts[f"{name} began"] += 1
        if counts[f"{name} began"] == 3:
            if name == "b":
                of_b.append(threading.get_ident())
            third.wait()
            if name == "b":
                raise ArithmeticError("many\nlines")
            wait_for(lambda: not works(of_b[0]))  # b fails while the others are in step 3
            assert name != "c"
        counts[f"{name} ended"] += 1
        return 0.0

    members = [plain(name, lambda x, n=name: step(n)) for name in "abc"]
    with pytest.raises(ensemble.MemberError, match="b .*step 3 .*many.* c failed too") as error:
        ensemble.train(members, [(i,) for i in range(9)])
    assert "\n" not in str(error.value) and (error.value.name, error.value.step) == ("b", 3)
    assert type(error.value.__cause__) is ArithmeticError
    for found in (error.value.run.losses, error.value.run.spans):
        assert {name: len(each) for name, each in found.items()} == {"a": 3, "b": 2, "c": 2}
    assert counts["a ended"] == counts["a began"] == counts["c began"] == 3


@pytest.mark.parametrize("times, interrupt", [
    (1, _thread.interrupt_main), (2, lambda: os.kill(os.getpid(), signal.SIGINT)),
])  # fmt: skip
def test_an_interrupt_ends_the_steps_and_comes_back(interrupt, times):
    done = collections.Counter()

    def step(name):
        done[f"{name} began"] += 1
        if name == "a" and done["a began"] == 3:  # the main thread waits by now
            for _ in range(times):
                interrupt()
                time.sleep(0.2)
        time.sleep(0.1)
        done[f"{name} ended"] += 1
        return 0.0

    members = [plain(name, lambda x, n=name: step(n)) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        ensemble.train(members, [(i,) for i in range(50)])
    assert 3 <= done["a began"] == done["a ended"] < 50
    assert done["b began"] == done["b ended"]


@pytest.mark.parametrize("names, given, named", [
    ("", [(1,)], r"\[\]"), ("aba", [(1,)], "'a', 'b', 'a'"),
    ("ab", lambda place: [(1,)] * (1 - place), "b got no batches"),
    ("ab", lambda place, one=ONE: one, "one iterator"),
    ("ab", (np.zeros(3), np.zeros(3)), "a got a batch that is one ndarray"),
])  # fmt: skip
def test_what_would_train_on_other_batches_is_refused_before_any_step(names, given, named):
    ran = []
    with pytest.raises(ValueError, match=named):
        ensemble.train([plain(name, ran.append) for name in names], given)
    assert not ran


@pytest.mark.parametrize("given_as", [
    lambda x: [x, 9.0], lambda x: {"accuracy": 9.0, "loss": x}, lambda x: (np.float32(x),),
])  # fmt: skip
def test_the_loss_of_a_step_with_metrics_is_the_first_or_named(given_as):
    assert ensemble.train([plain("a", given_as)], [(0.5,)]).losses == {"a": [0.5]}
