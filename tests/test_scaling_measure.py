"""Rows measured here, and a Keras model counted."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mgpu_helpers import towers
from mgpu_helpers.scaling import Layout, Workload, fit, measure

pytestmark = pytest.mark.usefixtures("plan")  # before anything starts TensorFlow


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that moves only when told: call it with the seconds that passed."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(length: float) -> None:
        now[0] += length

    return passes


def test_each_layout_has_the_median_of_its_timed_runs(clock):
    made, ran = [], []

    def step_of(n, batch):
        made.append((n, batch))
        # The first runs take long, and one of the timed ones does.
        lengths = iter([9.0, 9.0, *(1e-3 * batch + 5e-3 * n + more for more in (0, 7, 0))])

        def step(name, more):
            ran.append(name)
            clock(next(lengths) + more)

        return step, f"{n}x{batch}", 0.25

    rows = measure(step_of, (1, 2), (10, 20), variables="ring", warmup=2, repeats=3)
    assert made == [(1, 10), (1, 20), (2, 10), (2, 20)]
    assert ran == ["1x10", "1x20", "2x10", "2x20"] * 5  # all made before the first run, in turn
    assert [row.layout for row in rows] == [Layout(n, b, "ring") for n, b in made]
    assert [row.seconds for row in rows] == pytest.approx([0.265, 0.275, 0.27, 0.28])
    found = fit(Workload("made up", 250), rows, ["arithmetic", "fixed", "moving"])
    assert found.predict(Layout(4, 40, "ring")).total == pytest.approx(0.3025)


def test_what_is_no_step_is_named():
    with pytest.raises(TypeError, match=r"step_of\(2, 8\) gave a ndarray"):
        measure(lambda n, batch: np.ones(3) if n == 2 else lambda: None, batches=[8])


def test_more_devices_than_the_plan_has_are_named():
    """plan.devices[:4] of a plan of 2 is 2 devices, and their time would count as that of 4."""
    with pytest.raises(ValueError, match="4 devices and the plan has 2"):
        measure(lambda n, batch: pytest.fail("made"), devices=(1, 4))


@pytest.mark.parametrize("name", ["devices", "batches"])
def test_one_number_instead_of_a_list_is_named(name):
    with pytest.raises(TypeError, match=rf"give a list, {name}=\[2\]"):
        measure(lambda n, batch: lambda: None, **{name: 2})


def test_a_session_is_measured_inside_its_graph():
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        doubled = 2 * tf.ones([4])
        (row,) = measure(lambda n, batch: (session.run, doubled), [1], [4], repeats=1)
    assert row.layout == Layout(1, 4)


def test_steps_of_a_keras_model_become_rows_that_are_fitted(plan):
    import keras
    import tensorflow as tf

    steps = []

    def step_of(n, batch):
        where = plan.devices[:n]
        with tf.device(where[0]):
            layers = [keras.Input([20]), keras.layers.Dense(30), keras.layers.BatchNormalization()]
            model = keras.Sequential([*layers, keras.layers.Dense(1)])
        data = tf.random.stateless_normal([n * batch, 20], (n, batch))

        def tower(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        @tf.function
        def step(*shards):
            gradients = towers.average(towers.run(tower, where, shards), device=where[0])
            for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
                weight.assign_sub(0.01 * gradient)

        steps.append((step, [weight.numpy() for weight in model.trainable_variables], model))
        return (step, *towers.split(data, n))

    rows = measure(step_of, devices=(1, 2), batches=(8, 32), warmup=1, repeats=3)
    assert [row.layout for row in rows] == [Layout(n, b) for n in (1, 2) for b in (8, 32)]
    for step, before, model in steps:
        assert step.experimental_get_tracing_count() == 1
        assert not np.allclose(before[0], model.trainable_variables[0])
    found = fit(Workload("dense", 20 * 30 + 30 + 60 + 31), rows, ["arithmetic", "fixed", "moving"])
    assert found.predict(Layout(2, 16)).high > found.predict(Layout(2, 16)).low > 0


# Workload.of


@pytest.fixture(scope="module")
def residual():
    from keras_models import built

    return built("residual", 2)[0]


def test_a_model_that_is_not_built_has_nothing_to_count():
    import keras

    with pytest.raises(ValueError, match="'waiting' was not built"):
        Workload.of(keras.Sequential([keras.layers.Dense(3)], name="waiting"))
    with pytest.raises(TypeError, match="not a Keras model"):
        Workload.of(lambda x: x)
    frozen = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)], name="frozen")
    frozen.trainable = False
    with pytest.raises(ValueError, match="'frozen' trains none of its 9 parameters"):
        Workload.of(frozen)


def test_what_is_trained_crosses_and_moving_averages_do_not(residual):
    pytest.importorskip("mgpu_helpers.graph")
    counted = Workload.of(residual)
    moving = 2 * sum(np.size(layer.moving_mean) for layer in residual.layers
                     if hasattr(layer, "moving_mean"))  # fmt: skip
    assert moving and counted.parameters == residual.count_params() - moving
    assert counted.name == "residual" and Workload.of(residual, "mine").name == "mine"
    assert counted.bytes == sum(w.numpy().nbytes for w in residual.trainable_weights)


def test_flop_are_those_of_a_training_step_of_one_example():
    pytest.importorskip("mgpu_helpers.graph")
    import keras

    model = keras.Sequential([keras.Input([7]), keras.layers.Dense(5), keras.layers.Dense(3)])
    # Forward, for the kernel, and for the input, which the first layer is spared.
    assert Workload.of(model).flops == 2 * (2 * 7 * 5 + 3 * 5 * 3)
    still = keras.Sequential([keras.Input([7]), keras.layers.Embedding(9, 2)])
    assert Workload.of(still).flops is None  # it looks up and multiplies nothing
