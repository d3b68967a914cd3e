"""Rows measured here, and a Keras model counted."""

from __future__ import annotations

import time

import pytest

from mgpu_helpers.scaling import Setting, Workload, fit, measure

pytestmark = pytest.mark.usefixtures("tf")  # of the plan, before anything starts another


def test_each_setting_has_the_median_of_its_timed_runs(monkeypatch):
    made, ran, now = [], [], [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def step_of(n, batch):
        made.append((n, batch))
        # The first runs take long, and one of the timed ones does.
        lengths = iter([9.0, 9.0, *(1e-3 * batch + 5e-3 * n + more for more in (0, 7, 0))])

        def step(name, more):
            ran.append(name)
            now[0] += next(lengths) + more

        return step, f"{n}x{batch}", 0.25

    rows = measure(step_of, (1, 2), (10, 20), variables="ring", warmup=2, repeats=3)
    assert made == [(1, 10), (1, 20), (2, 10), (2, 20)]
    assert ran == ["1x10", "1x20", "2x10", "2x20"] * 5  # all made before the first run, in turn
    assert [row.setting for row in rows] == [Setting(n, b, "ring") for n, b in made]
    assert [row.seconds for row in rows] == pytest.approx([0.265, 0.275, 0.27, 0.28])
    (of_ten,) = measure(step_of, [1], [10], steps=10, warmup=2, repeats=3)
    assert of_ten.seconds == pytest.approx(0.0265)
    found = fit(Workload("made up", 250), rows, ["arithmetic", "fixed", "moving"])
    assert found.predict(Setting(4, 40, "ring")).total == pytest.approx(0.3025)


def test_more_devices_than_the_plan_has_are_named():
    """plan.devices[:4] of a plan of 2 is 2 devices, and their time would count as that of 4."""
    with pytest.raises(ValueError, match=r"devices=\[1, 4\], and the plan has 2"):
        measure(lambda n, batch: pytest.fail("made"), devices=(1, 4))


def test_a_session_is_measured_inside_its_graph(tf):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        doubled = 2 * tf.ones([4])
        (row,) = measure(lambda n, batch: (session.run, doubled), [1], [4], repeats=1)
    assert row.setting == Setting(1, 4)


def test_what_is_trained_crosses_and_moving_averages_do_not(keras):
    normal = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input([7]), keras.layers.Dense(5), normal])
    counted = Workload.of(model, "mine")
    assert counted.name == "mine" and counted.parameters == 7 * 5 + 5 + 2 * 5 and counted.flops
    assert counted.bytes == sum(w.numpy().nbytes for w in model.trainable_weights)
    still = keras.Sequential([keras.Input([7]), keras.layers.Embedding(9, 2)])
    assert Workload.of(still).flops is None  # it looks up and multiplies nothing
    model.trainable = False
    with pytest.raises(ValueError, match="parameters=0"):
        Workload.of(model)
