"""What a step of `fit` spends its time on, found by leaving each thing out."""

from __future__ import annotations

import sys

import numpy as np
import pytest

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
    monkeypatch.setattr(sys.modules["mgpu_helpers.fit.explain"], "time", made)
    return made


def model_of(keras, **settings):
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("adam", "mse", metrics=["mae"], **settings)
    return model


@pytest.fixture
def data(tf):
    x = np.random.default_rng(0).normal(size=[64, 8]).astype("f")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :4])).batch(8)


def waits(tf, clock):
    """Make a function for `Dataset.map` that waits."""

    def wait(x):
        clock.sleep(LONG)
        return x

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape), y

    return slow


def test_a_slow_input_and_a_slow_callback_are_named_with_what_they_cost(
    tf, plain, keras, data, clock
):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.sleep(LONG)

    class Quick(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            clock.sleep(2 * LONG)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # nothing is fetched ahead
    slow = data.map(waits(tf, clock)).with_options(options)
    assert fit.explain(model_of(keras), slow, steps=4).costs[0].name == "input"
    with plain.scope():
        model = model_of(keras)
    found = fit.explain(model, data, callbacks=[Quick(), Slow(), Saves()], steps=4)
    assert found.costs[0].name == "callback Slow" and found.step > LONG
    assert any("Saves" in note for note in found.notes) and found.between > 2 * LONG
    assert "Slow" in str(found) and "Quick" not in str(found)


def test_a_step_without_a_graph_is_named_or_told_why_it_needs_none(tf, keras, data, clock):
    class Waits(keras.Sequential):
        def train_step(self, batch):
            if tf.executing_eagerly():
                clock.sleep(LONG)
            return super().train_step(batch)

    class Floats(keras.Sequential):
        def train_step(self, batch):
            logs = super().train_step(batch)
            float(logs["loss"])
            return logs

    model = Waits([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse", run_eagerly=True)
    found = fit.explain(model, data, steps=4)
    assert model.run_eagerly and found.costs[0].name == "run_eagerly"
    assert sum(cost.seconds for cost in found.costs) <= found.step  # nothing counts twice
    model = Floats([keras.layers.Dense(4)])  # with weights from its first step on
    model.compile("sgd", "mse", run_eagerly=True)
    found = fit.explain(model, data, steps=4)
    assert model.run_eagerly and any("float" in note for note in found.notes)


def test_metrics_are_named_where_some_were_compiled(tf, keras, data, clock):
    class Dear(keras.Sequential):
        def compute_metrics(self, *given, **named):
            if tf.executing_eagerly():
                clock.sleep(LONG)
            return super().compute_metrics(*given, **named)

    for compiled in (["mae"], None):
        model = Dear([keras.Input([8]), keras.layers.Dense(4)])
        model.compile("sgd", "mse", metrics=compiled, run_eagerly=True)
        costs = fit.explain(model, data, steps=4).costs
        assert ("metrics" in [cost.name for cost in costs]) == bool(compiled)


def test_the_model_and_its_callbacks_are_as_they_were(keras, data):
    keras.utils.set_random_seed(1)
    model, logger = fit.accumulate(model_of(keras), 2), keras.callbacks.LambdaCallback()
    model.fit(data, epochs=1, verbose=0, shuffle=False)
    history, attributes = model.history, set(vars(model))
    before = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    fit.explain(model, data, callbacks=[logger], steps=4)
    after = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    assert all(map(np.array_equal, before, after))
    assert model.history is history and set(vars(model)) == attributes


def test_a_batch_in_memory_has_no_input_to_leave_out(keras, data):
    """Its steps would be timed twice, and what differs by chance would be called the input."""
    trainings = []

    class Counts(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            trainings.append(1)

    model = model_of(keras)
    fit.explain(model, data, callbacks=[Counts()], steps=4)
    of_a_dataset = len(trainings)
    fit.explain(model, next(iter(data)), callbacks=[Counts()], steps=4)
    assert len(trainings) - of_a_dataset == of_a_dataset - 1


def test_a_training_that_stops_is_too_short_to_time(keras, data):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    with pytest.raises(ValueError, match="12"):
        fit.explain(model_of(keras), data, callbacks=[Stops()], steps=4)


@pytest.mark.parametrize("kind, xla, told", [("GPU", False, True), ("GPU", True, False),
                                             ("CPU", False, False)])  # fmt: skip
def test_on_gpus_a_step_without_xla_is_told(keras, data, monkeypatch, kind, xla, told):
    """Because one GPU alone, with XLA, may be faster than several without."""
    plan = devices.Plan("gpus", "/CPU:0", (f"/{kind}:0",), ("a",), 2, "", "")
    monkeypatch.setattr(devices.plan, "_plan", plan)
    found = fit.explain(model_of(keras, jit_compile=xla), data, steps=4)
    assert any("XLA" in note for note in found.notes) == told
