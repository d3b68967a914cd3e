"""`fit` on replicas is that of one device, in every number; and Keras alone is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fit_packs
from conftest import ROOT, run_python
from mgpu_helpers import fit
from mgpu_helpers.fit import shares as parts
from mgpu_helpers.fit.strategies import PACK, _of

CASES = ROOT / "tests" / "fit_cases.py"
# Of a case: how far a number may be off as a share of the largest, and 0.001 at least.
EXACT = {"cnn": 1e-9, "transformer": 1e-6, "two": 1e-9, "averaged": 1e-9,
         "own": 1e-5, "mixed": 2e-3}  # fmt: skip


def largest_difference(found: Any, one: Any, case: str, n: int) -> float:
    """Compare what a case gave on n replicas with what it gave on one device."""
    differences = []
    for name in (name for name in one if name.startswith(f"{case}/1/")):
        ours, theirs = found[name.replace("/1/", f"/{n}/")], one[name]
        assert ours.shape == theirs.shape, name
        if case == "mixed" and " loss" not in name:  # an example may be judged another way
            continue
        differences.append(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3))
    assert len(differences) > 1
    return max(differences)


def run_cases(file: Any, cases: str, replicas: str) -> Any:
    """Fit cases in a Python of its own, which has as many devices as they ask for."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MGPU_MODE": "cores"}
    command = [sys.executable, CASES, file, cases, replicas]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(file)


@pytest.mark.thorough
def test_a_fit_on_three_replicas_is_that_of_one_device(tmp_path):
    """Batches of 16, 13, 7 and 3 examples: one does not divide, and one leaves parts of one."""
    found = run_cases(tmp_path / "found.npz", "cnn", "1,3")
    assert largest_difference(found, found, "cnn", 3) < EXACT["cnn"]


@pytest.mark.thorough
def test_every_case_on_two_to_four_replicas_is_that_of_one_device(tmp_path):
    found = run_cases(tmp_path / "found.npz", ",".join(EXACT), "1,2,3,4")
    for case, bound in EXACT.items():
        for n in (2, 3, 4):
            assert largest_difference(found, found, case, n) < bound, (case, n)


def fitted(model: Any, batch_size: int = 4, examples: int = 6) -> list[np.ndarray]:
    """Fit a model for a pass on examples that grow, and give its weights."""
    x = np.linspace(1, 6, examples, dtype="float32")[:, None]
    model.fit(x, 2 * x, batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights()


def line(keras: Any, *layers: Any, **settings: Any) -> Any:
    """Make a compiled model of one weight, after other layers."""
    keras.utils.set_random_seed(0)
    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([1]), *layers, weight])
    model.compile(keras.optimizers.SGD(0.01, **settings), "mse", metrics=["mae"])
    return model


def seen_by(replicas: Any, keras: Any) -> list[np.ndarray]:
    """Give what each replica drops out of the same ones."""
    import tensorflow as tf

    with replicas.scope():
        drop = keras.layers.Dropout(0.5, seed=0)
        drop.build((None, 64))
    step = tf.function(lambda: replicas.run(lambda: drop(tf.ones([1, 64]), training=True)))
    return [each.numpy() for each in replicas.experimental_local_results(step())]


@pytest.mark.parametrize("cores, chosen, tunes", [
    (1, None, False), (16, None, False), (16, True, True), (17, None, None), (17, False, False),
])  # fmt: skip
def test_on_few_cores_no_thread_tunes_unless_somebody_asks(plan, monkeypatch, cores, chosen, tunes):
    import tensorflow as tf

    monkeypatch.setattr(parts, "cores", lambda: cores)
    options, data = tf.data.Options(), tf.data.Dataset.range(2).batch(2)
    if chosen is not None:
        options.autotune.enabled = chosen
    shared = fit.strategy(plan).experimental_distribute_dataset(data.with_options(options))
    assert shared.whole.options().autotune.enabled is tunes
    assert [whole.batch.numpy().tolist() for whole in shared] == [[0, 1]]


FAULTS: dict[str, Callable[[Any, Any], bool]] = {}


def fault(name: str) -> Callable:
    def keep(function: Callable) -> Callable:
        FAULTS[name] = function
        return function

    return keep


@fault("a last batch that leaves parts of other sizes counts each of them alike")
def shares(keras, scope):
    alone = fitted(line(keras), examples=7)
    with scope():
        model = line(keras)
    return np.allclose(fitted(model, examples=7), alone, rtol=1e-6)


@fault("gradients are clipped before they are added up")
def clips(keras, scope):
    alone = fitted(line(keras, clipnorm=1.0))
    with scope():
        model = line(keras, clipnorm=1.0)
    return np.allclose(fitted(model), alone, rtol=1e-6)


@fault("a BatchNormalization takes the statistics of its replica")
def statistics(keras, scope):
    alone = fitted(line(keras, keras.layers.BatchNormalization()))
    with scope():
        model = line(keras, keras.layers.BatchNormalization())
    return all(np.allclose(a, b, atol=1e-6) for a, b in zip(fitted(model), alone, strict=True))


@fault("a first batch that does not divide fails")
def first(keras, scope):
    with scope():
        model = line(keras)
    import tensorflow as tf

    try:
        return fitted(model, batch_size=3)[0] > 1
    except tf.errors.InvalidArgumentError:
        return False


@fault("a position embedding's rows are there once for each replica, and Adam squares them")
def rows(keras, scope):
    class Places(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(1, 1)

        def call(self, x):
            return x + self.table(keras.ops.arange(1))

    def made():
        model = line(keras, Places())
        model.compile("adam", "mse")
        return model

    alone = fitted(made())
    with scope():
        model = made()
    return all(np.allclose(a, b, atol=1e-6) for a, b in zip(fitted(model), alone, strict=True))


@fault("a train_step of one's own shows a replica's share of a loss")
def shows(keras, scope):
    import tensorflow as tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights))
            self.metrics[0].update_state(loss)
            self.seen.update_state(keras.losses.MeanAbsoluteError()(y, y_pred))
            return {"loss": self.metrics[0].result(), "seen": self.seen.result(), "raw": loss}

    def history():
        model = line(keras)
        model = Own(model.inputs, model.outputs)
        model.seen = keras.metrics.Mean(name="seen")
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.optimizer.build(model.trainable_weights)
        x = np.linspace(1, 6, 6, dtype="float32")[:, None]
        found = model.fit(x, 2 * x, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        return [found["loss"], found["seen"], found["raw"]]

    alone = history()
    with scope():
        return np.allclose(history(), alone, rtol=1e-6)


@fault("the learning rate and the number of steps are no numbers")
def counts(keras, scope):
    with scope():
        optimizer = line(keras).optimizer
    try:
        return float(optimizer.learning_rate) == np.float32(0.01) and int(optimizer.iterations) == 0
    except TypeError:
        return False


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_keras_is_mended_and_is_still_there_without_us(keras, plan, plain, name):
    """Where this fails on the second line, Keras is mended, and our mend can go."""
    assert FAULTS[name](keras, fit.strategy(plan).scope)
    assert not FAULTS[name](keras, plain.scope)


def test_each_replica_drops_out_other_places_and_the_same_in_every_run(keras, plan, plain):
    ours = seen_by(fit.strategy(plan), keras)
    assert not np.array_equal(*ours)
    for one, other in zip(ours, seen_by(fit.strategy(plan), keras), strict=True):
        np.testing.assert_array_equal(one, other)
    theirs = seen_by(plain, keras)
    assert np.array_equal(*theirs)  # as Keras has it
    assert np.array_equal(theirs[0], ours[0])


def test_synchronized_false_leaves_each_replica_its_statistics(keras, plan):
    alone = fitted(line(keras, keras.layers.BatchNormalization()))
    with fit.strategy(plan, synchronized=False).scope():
        model = line(keras, keras.layers.BatchNormalization())
    fit.strategy(plan)  # what another model asks for does not change this one
    apart = fitted(model)
    assert not np.allclose(apart[2], alone[2], atol=1e-3)


def test_the_same_devices_have_one_strategy(plan):
    assert fit.strategy(plan) is fit.strategy(plan)
    assert fit.strategy(plan).num_replicas_in_sync == len(plan)
    assert fit.strategy(plan.devices) is fit.strategy(plan)
    assert fit.strategy(plan.devices[:1]).num_replicas_in_sync == 1
    with pytest.raises(ValueError, match="there is no device '/CPU:9'"):
        fit.strategy(["/CPU:9"])
    assert json.loads(json.dumps([*fit.strategy(plan).extended.worker_devices]))


def test_gradients_are_exchanged_while_the_backward_pass_runs(tf, plan):
    """Of a ring, as GPUs have one: it is traced, and not run. Of 11 products packs wait for few."""
    fit.strategy(plan)  # which mends Keras
    ring = _of(tf.distribute.MirroredStrategy)(list(plan.devices))
    assert ring.packs.bytes_per_pack == PACK
    assert fit_packs.waits(ring, 0) == [11, 11]
    assert fit_packs.waits(ring, 8000) == [3, 7, 11] * 2


SEVERAL = """
import dataclasses
import numpy as np
from mgpu_helpers import _private, devices, fit
plan = devices.setup(4)
import tensorflow as tf
import keras
from mgpu_helpers.fit.strategies import _of
from test_fit import fitted, line

def part(first, last):
    return dataclasses.replace(plan, devices=plan.devices[first:last], real=plan.real[first:last])

models = [line(keras)]
for some in (part(0, 2), plan, part(2, 4), part(0, 1), part(0, 2)):
    with fit.strategy(some).scope():
        models.append(line(keras))
for _ in range(2):
    first, *others = [fitted(model)[0] for model in models]
    np.testing.assert_allclose(others, [first] * len(others), rtol=1e-6)

kind, rings = _of(tf.distribute.MirroredStrategy), []
for n in (2, 4, 2):  # a ring of as many, which adds up so many numbers and one more
    rings.append(_private.numbered(kind, 90 + len(rings))(list(plan.devices[:n])))
for i in (0, 1, 2, 0):
    def add():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([i + 1]))
    added = tf.function(lambda: rings[i].run(add))()
    print(rings[i].experimental_local_results(added)[0].numpy().tolist())
"""


@pytest.mark.thorough
def test_models_of_several_strategies_train_in_turn():
    """And several rings add up, as GPUs have them: each numbers what it exchanges for itself."""
    done = run_python(SEVERAL, MGPU_MODE="cores")
    assert done.stdout.split("\n")[-5:-1] == ["[2.0]", "[4.0, 4.0]", "[2.0, 2.0, 2.0]", "[2.0]"]


def test_several_steps_in_a_call_and_one_batch_by_hand(keras, plan):
    alone, batch = line(keras), np.ones([4, 1], "float32")
    with fit.strategy(plan).scope():
        model = line(keras)
    model.steps_per_execution = 2
    np.testing.assert_allclose(fitted(model, 2), fitted(alone, 2), rtol=1e-6)
    ours, theirs = (m.train_on_batch(batch, 3 * batch, return_dict=True) for m in (model, alone))
    assert ours == pytest.approx(theirs, rel=1e-5)
    np.testing.assert_allclose(model.get_weights(), alone.get_weights(), rtol=1e-6)


@pytest.mark.parametrize(  # of four batches
    "steps", [None, pytest.param(2, marks=pytest.mark.thorough), 3]
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_what_was_interrupted_goes_on_as_if_it_had_not_been(keras, plan, tmp_path, steps):
    """The order of a shuffle, the masks of a dropout and the optimizer's state are those it had."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def train(*callbacks):
        keras.utils.set_random_seed(0)
        with fit.strategy(plan).scope():
            model = line(keras, keras.layers.Dense(4), keras.layers.Dropout(0.5))
        x = np.linspace(0.1, 1, 7, dtype="float32")[:, None]
        data = fit.batches(x, 2 * x, batch_size=2, shuffle=True)
        again = {"epochs": 4, "steps_per_epoch": steps, "verbose": 0, "callbacks": callbacks}
        passes.append(model.fit(data, **again).epoch)
        return model.get_weights()

    passes: list[list[int]] = []

    through = train()
    assert all(np.isfinite(weight).all() for weight in through)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(backup, Stop())
    for one, other in zip(train(keras.callbacks.BackupAndRestore(tmp_path)), through, strict=True):
        np.testing.assert_array_equal(one, other)
    assert passes == [[0, 1, 2, 3], [2, 3]]


@pytest.mark.parametrize("outside", ["model", "optimizer"])
def test_what_was_made_outside_of_the_scope_is_named(keras, plan, outside):
    def parts():
        return line(keras), keras.optimizers.SGD(0.01)

    model, optimizer = parts()
    with fit.strategy(plan).scope():
        inside = parts()
        model, optimizer = (model, inside[1]) if outside == "model" else (inside[0], optimizer)
        model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match=f"its {outside} was not"):
        fitted(model)
    np.testing.assert_array_equal(model.get_weights()[0], [[1.0]])


def test_a_strategy_of_one_replica_is_left_alone(keras, tf, plan):
    found = []
    for strategy in (tf.distribute.MirroredStrategy(plan.devices[:1]), fit.strategy(plan)):
        with strategy.scope():
            found.append(line(keras))
    np.testing.assert_allclose(*(fitted(model) for model in found), rtol=1e-6)


@pytest.mark.parametrize("settings", [
    {"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 3},
])  # fmt: skip
def test_an_optimizer_that_does_something_sometimes_is_named(keras, plan, plain, settings):
    """As of Keras 3.15 it fails under any strategy (keras-team/keras#20582)."""
    name, value = [*settings.items()][-1]
    with fit.strategy(plan).scope():
        model = line(keras, **settings)
    with pytest.raises(ValueError, match=f"{name}={value}"):
        fitted(model)
    with plain.scope():
        model = line(keras, **settings)
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            model.train_on_batch(np.ones([4, 1]), np.ones([4, 1]))  # which nobody has mended


def test_averages_of_weights_are_those_of_one_device(keras, tf, plan):
    found = []
    for scope in (tf.device(plan.host), fit.strategy(plan).scope()):
        with scope:
            model = line(keras, use_ema=True, ema_momentum=0.5)
        swap = keras.callbacks.SwapEMAWeights()
        x = np.linspace(1, 6, 6, dtype="float32")[:, None]
        model.fit(x, 2 * x, batch_size=4, shuffle=False, verbose=0)
        trained = model.get_weights()[0]
        model.fit(x, 2 * x, batch_size=4, shuffle=False, verbose=0, callbacks=[swap])
        found.append((trained, model.get_weights()[0]))
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert not np.isclose(*found[0])


@pytest.mark.parametrize("endless", ["x", "validation_data"])
def test_data_without_an_end_is_refused_and_taken_with_a_number_of_steps(keras, plan, endless):
    x = np.ones([4, 1], "float32")
    data = fit.batches(x, x)
    given = {"x": data, "validation_data": data, endless: data.repeat()}
    with fit.strategy(plan).scope():
        model = line(keras)
    steps = {"x": "steps_per_epoch", "validation_data": "validation_steps"}[endless]
    with pytest.raises(ValueError, match=steps):
        model.fit(**given, verbose=0)
    history = model.fit(**given, **{steps: 2}, epochs=2, verbose=0).history
    assert len(history["val_loss"]) == 2


class TestBatches:
    def test_arrays_tuples_and_dicts_become_batches(self, plan):
        x, y = np.arange(5.0), np.arange(5)
        for given in ((x, y), ({"a": x}, y), ((x, x), y)):
            sizes = [len(labels) for _, labels in fit.batches(given, batch_size=2)]
            assert sizes == [2, 2, 1]
        assert [len(one) for one in fit.batches(x)] == [5]
        (only,) = fit.batches(x, y, 2 * x)
        np.testing.assert_array_equal(only[2], 2 * x)

    def test_a_shuffle_is_one_order_for_a_seed_and_another_in_each_pass(self, plan):
        def passes(seed):
            data = fit.batches(np.arange(50), batch_size=50, shuffle=True, seed=seed)
            return [next(iter(data)).numpy().tolist() for _ in range(2)]

        one, other = passes(1), passes(2)
        assert one == passes(1) and one[0] != one[1] and one != other
        assert sorted(one[0]) == sorted(one[1]) == list(range(50))

    def test_what_it_cannot_batch_is_said(self, plan):
        import tensorflow as tf

        with pytest.raises(ValueError, match="batch_size"):
            fit.batches(tf.data.Dataset.range(4))
        with pytest.raises(ValueError, match=r"3.*4"):
            fit.batches(np.arange(3), np.arange(4))
        assert len(fit.batches(tf.data.Dataset.range(5), batch_size=2)) == 3
