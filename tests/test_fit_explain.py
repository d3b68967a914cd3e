"""What a step of `fit` spends its time on, found by leaving each thing out."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest

from conftest import later
from mgpu_helpers import devices, fit

LONG = 0.05  # seconds


class Clock:
    """Stands in for `time`: what waits lets its seconds pass, and all else nearly none."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    """Let `explain` read a clock that a busy machine does not change."""
    made = Clock()
    monkeypatch.setattr(sys.modules["mgpu_helpers.fit.explaining"], "time", made)
    return made


def model_of(keras, **settings):
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse", **settings)
    return model


@pytest.fixture
def batch(tf):
    """Give a batch in memory, which has no input to leave out."""
    x = tf.random.stateless_normal([8, 8], [0, 0])
    return x, x[:, :4]


@pytest.fixture
def data(tf, batch):
    return tf.data.Dataset.from_tensors(batch).repeat(8)


@pytest.mark.parametrize("replicas", [False, later(True)])
def test_a_slow_input_and_a_slow_callback_are_named_with_what_they_cost(
    tf, plain, keras, data, clock, replicas
):
    def wait(x):
        clock.sleep(LONG)
        return x

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape), y

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.sleep(LONG)

    class Quick(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    saves = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: clock.sleep(4 * LONG))
    if not replicas:
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # nothing is fetched ahead
        data = data.map(slow).with_options(options)
    with plain.scope() if replicas else contextlib.nullcontext():
        model = model_of(keras)
    found = fit.explain(model, data, callbacks=[Quick(), Slow(), saves], steps=4)
    dear = {cost.name for cost in found.costs if cost.seconds > 0.9 * LONG}
    assert dear == {"callback Slow"} | ({"input"} if not replicas else set())
    assert found.step > LONG * len(dear) and not any("XLA" in note for note in found.notes)
    assert any("LambdaCallback" in note for note in found.notes) and found.between > 3 * LONG
    assert "Slow" in str(found) and "Quick" not in str(found)


def test_a_step_without_a_graph_is_named_or_told_why_it_needs_none(tf, keras, batch, clock):
    class Waits(keras.Sequential):
        def train_step(self, data):
            if tf.executing_eagerly():
                clock.sleep(LONG)
            return super().train_step(data)

    class Floats(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            float(logs["loss"])
            return logs

    model = Waits([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse", run_eagerly=True)
    found = fit.explain(model, batch, steps=4)
    assert model.run_eagerly and found.costs[0].name == "run_eagerly"
    assert sum(cost.seconds for cost in found.costs) <= found.step  # nothing counts twice
    model = Floats([keras.layers.Dense(4)])  # with weights from its first step on
    model.compile("sgd", "mse", run_eagerly=True)
    found = fit.explain(model, batch, steps=4)
    assert model.run_eagerly and any("float" in note for note in found.notes)


def test_metrics_are_named_where_some_were_compiled(tf, keras, batch, clock):
    class Dear(keras.Sequential):
        def compute_metrics(self, *given, **named):
            tf.numpy_function(lambda: clock.sleep(LONG), [], [])
            return super().compute_metrics(*given, **named)

    for compiled in (["mae"], None):
        model = Dear([keras.Input([8]), keras.layers.Dense(4)])
        model.compile("sgd", "mse", metrics=compiled)
        costs = fit.explain(model, batch, steps=4).costs
        assert ("metrics" in [cost.name for cost in costs]) == bool(compiled)


def test_the_model_and_its_callbacks_are_as_they_were(keras, batch):
    model, logger = fit.use(model_of(keras), pieces=2), keras.callbacks.LambdaCallback()
    model.fit(*batch, verbose=0, shuffle=False)
    history, attributes = model.history, set(vars(model))
    before = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    fit.explain(model, batch, callbacks=[logger], steps=4)
    after = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    assert all(map(np.array_equal, before, after))
    assert model.history is history and set(vars(model)) == attributes


def test_a_training_that_stops_is_too_short_to_time(keras, batch):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    with pytest.raises(ValueError, match="12"):
        fit.explain(model_of(keras), batch, callbacks=[Stops()], steps=4)


@pytest.mark.parametrize("xla", [False, True])
def test_on_gpus_a_step_without_xla_is_told(keras, batch, monkeypatch, xla):
    """Because one GPU alone, with XLA, may be faster than several without."""
    trainings = []
    counts = keras.callbacks.LambdaCallback(on_train_begin=trainings.append)
    plan = devices.Plan("gpus", "/CPU:0", ("/GPU:0",), ("a",), 2, "", "")
    monkeypatch.setattr(devices.plan, "_plan", plan)
    found = fit.explain(model_of(keras, jit_compile=xla), batch, callbacks=[counts], steps=4)
    assert any("XLA" in note for note in found.notes) != xla
    assert len(trainings) == 2  # as it is, and the same again: a batch has no input to leave out
