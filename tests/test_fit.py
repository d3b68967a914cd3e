"""`fit` on replicas is that of one device, in every number; and Keras alone is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fit_packs
from conftest import later, run_python
from keras_models import tf
from mgpu_helpers import fit
from mgpu_helpers.fit import shares as parts
from mgpu_helpers.fit.strategies import PACK, _of


def fitted(model: Any, batch: int = 4, examples: int = 6) -> Any:
    """Fit a model for a pass on examples that grow, and give its weights."""
    x = np.linspace(1, 6, examples, dtype="float32")[:, None]
    model.fit(x, 2 * x, batch, shuffle=False, verbose=0)
    return model.get_weights()


def by_hand(batch: int = 4, examples: int = 6, clip: float | None = None) -> float:
    """Give the weight of `line` that `fitted` comes to, by the slope of the mean of each batch."""
    x, weight = np.linspace(1, 6, examples), 1.0
    for first in range(0, examples, batch):
        slope = 2 * (weight - 2) * np.mean(x[first : first + batch] ** 2)
        weight -= 0.01 * (np.clip(slope, -clip, clip) if clip else slope)
    return weight


def line(keras: Any, *layers: Any, loss: Any = "mse", **settings: Any) -> Any:
    """Make a compiled model of one weight, after other layers."""
    keras.utils.set_random_seed(0)
    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([1]), *layers, weight])
    model.compile(keras.optimizers.SGD(0.01, **settings), loss, metrics=["mae"])
    return model


@pytest.mark.parametrize("cores, chosen, tunes", [
    (1, None, False), (16, None, False), (16, True, True), (17, None, None), (17, False, False),
])  # fmt: skip
def test_on_few_cores_no_thread_tunes_unless_somebody_asks(plan, monkeypatch, cores, chosen, tunes):
    monkeypatch.setattr(parts, "cores", lambda: cores)
    options, data = tf.data.Options(), tf.data.Dataset.range(2).batch(2)
    if chosen is not None:
        options.autotune.enabled = chosen
    shared = fit.strategy(plan).experimental_distribute_dataset(data.with_options(options))
    assert shared.whole.options().autotune.enabled is tunes
    assert [whole.batch.numpy().tolist() for whole in shared] == [[0, 1]]


@pytest.mark.parametrize("given, clip", [
    ({"examples": 7}, None), ({"batch": 3}, None), ({}, 1.0),
], ids=["last", "first", "clipped"])  # fmt: skip
def test_a_step_is_that_of_one_device_computed_by_hand(keras, plan, given, clip):
    """With the loss scaled, too, as mixed_float16 does."""
    for scaled in (False, True):
        with fit.strategy(plan).scope():
            model = line(keras, clipnorm=clip)
            if scaled:
                model.compile(keras.optimizers.LossScaleOptimizer(model.optimizer, 2.0**10), "mse")
        found = fitted(model, **given)[0].item()
        assert found == pytest.approx(by_hand(**given, clip=clip), rel=1e-5)


def test_what_several_replicas_keep_of_one_number_is_a_number(keras, plan):
    with fit.strategy(plan).scope():
        optimizer = line(keras).optimizer
    assert float(optimizer.learning_rate) == np.float32(0.01)
    assert int(optimizer.iterations) == 0
    assert float(optimizer.iterations) == 0.0 and int(optimizer.learning_rate) == 0
    assert int(optimizer.iterations.value) == 0
    with fit.strategy(plan).scope():
        np.testing.assert_allclose(optimizer.learning_rate.value, np.float32(0.01))


def test_each_replica_drops_out_other_places_and_the_same_in_every_run(keras, tf, plan):
    """The first one drops what one device does."""
    strategy, found = fit.strategy(plan), []
    for _ in range(2):
        with strategy.scope():
            drop = keras.layers.Dropout(0.5, seed=0)
            drop.build((None, 64))
        step = tf.function(lambda: strategy.run(lambda: drop(tf.ones([1, 64]), training=True)))  # noqa: B023
        found.append([each.numpy() for each in strategy.experimental_local_results(step())])
    assert not np.array_equal(*found[0])
    np.testing.assert_array_equal(*found)
    alone = keras.layers.Dropout(0.5, seed=0)(tf.ones([1, 64]), training=True)
    np.testing.assert_array_equal(found[0][0], alone)


def test_statistics_that_are_not_synchronized_are_each_replicas_and_their_averages_all(keras, plan):
    """Or `predict` gives an example another number on another replica."""
    with fit.strategy(plan, synchronized=False).scope():
        layer = keras.layers.BatchNormalization(momentum=0.0, epsilon=1e-9)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile("sgd", "mse")
    fit.strategy(plan)  # what another model asks for is not ours
    x, y = np.array([[0.0], [2.0], [2.0], [4.0]]), np.array([[-1.0], [1.0], [-1.0], [1.0]])
    loss = model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history["loss"]
    assert loss == [pytest.approx(0, abs=1e-9)]
    means = [float(copy[0]) for copy in layer.moving_mean.value.values]
    assert means == [2.0] * len(plan) and np.ptp(model.predict(np.ones((4, 1)), verbose=0)) == 0


@settings(max_examples=8)
@given(
    size=st.integers(1, 9), kinds=st.permutations(["dense", "ragged", "sparse"]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_parts_of_a_batch_are_the_batch(tf, plan, size, kinds, seed):
    """Whatever tells its size comes first; parts differ by one example at most."""
    rows = np.random.default_rng(seed).integers(0, 3, (size, 4))
    known = {
        "dense": rows, "sparse": tf.sparse.from_dense(rows),
        "ragged": tf.RaggedTensor.from_tensor(rows, padding=0),
    }  # fmt: skip

    def read(part):
        found = dict(zip(kinds, part, strict=True))
        ragged = tf.reshape(found["ragged"].to_tensor(0, shape=(None, 4)), (-1, 4))
        return tf.stack([found["dense"], tf.sparse.to_dense(found["sparse"]), ragged])

    strategy = fit.strategy(plan)
    data = tf.data.Dataset.from_tensors(tuple(known[kind] for kind in kinds))
    (whole,) = strategy.experimental_distribute_dataset(data)
    parts = [part.numpy() for part in strategy.experimental_local_results(
        strategy.run(read, (whole,)))]  # fmt: skip
    assert [part.shape[1] for part in parts] == [size // 2, size - size // 2]
    np.testing.assert_array_equal(np.concatenate(parts, 1), [rows] * 3)


def test_replicas_of_two_workers_take_parts_in_the_order_of_predict(tf, plan, monkeypatch):
    """Keras joins the first replicas of all workers, then the second ones; a worker of cores has
    one only, so three replicas of this one stand for two workers of two."""
    strategy = fit.strategy([plan.host, *plan.devices])
    monkeypatch.setattr(type(strategy), "local", 2)
    monkeypatch.setattr(type(strategy), "workers", 2)
    (whole,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(3).batch(3))
    parts = strategy.experimental_local_results(strategy.run(lambda x: x, (whole,)))
    assert [part.numpy().tolist() for part in parts] == [[0], [2], [1]]


def test_the_same_devices_have_one_strategy(plan):
    assert fit.strategy(plan) is fit.strategy(plan)
    assert fit.strategy(plan).num_replicas_in_sync == len(plan)
    assert fit.strategy(plan.devices) is fit.strategy(plan)
    assert fit.strategy(plan.devices[:1]).num_replicas_in_sync == 1
    with pytest.raises(ValueError, match="there is no device '/CPU:9'"):
        fit.strategy(["/CPU:9"])


def test_gradients_are_exchanged_while_the_backward_pass_runs(tf, plan):
    """Of a ring, as GPUs have one: it is traced, and not run. Of 11 products packs wait for few."""
    fit.strategy(plan)  # which mends Keras
    ring = _of(tf.distribute.MirroredStrategy)(list(plan.devices))
    assert ring.packs.bytes_per_pack == PACK
    assert fit_packs.waits(ring, 8000) == [3, 7, 11] * 2
    assert fit_packs.waits(ring, 2 * 2**20, compiled=True) == [1, 2, 3] * 2


SEVERAL = """
import numpy as np
from mgpu_helpers import _private, devices, fit
plan = devices.setup(4)
import tensorflow as tf
import keras
from mgpu_helpers.fit.strategies import _of
from test_fit import fitted, line

models, of = [line(keras)], plan.devices
for some in (of[:2], of, of[2:], of[:1], of[:2]):
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


class Stop(BaseException):
    """What ends a training in the middle, as Ctrl-C does."""


@pytest.mark.parametrize("steps, at_once, which", [  # of eight batches
    later(3, 2, "known"), later(None, 1, "unknown"), (3, 2, "unknown"), later(None, 1, "known"),
    later(3, 1, "known"), later(None, 3, "known"), later(5, 1, "unknown"), later(3, 1, "endless"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_what_was_interrupted_goes_on_as_if_it_had_not_been(
    keras, plan, tmp_path, steps, at_once, which
):
    """The order of a shuffle, the masks of a dropout and the optimizer's state are those it had."""

    def stop(epoch, logs):
        if epoch == 2:
            raise Stop

    with fit.strategy(plan).scope():
        model = line(keras, keras.layers.Dense(4), keras.layers.Dropout(0.5), momentum=0.5)
        model.optimizer.build(model.trainable_variables)
    model.steps_per_execution = at_once
    variables = [*model.variables, *model.optimizer.variables]
    first = [each.numpy() for each in variables]

    def train(*callbacks):
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)
        x = np.linspace(0.1, 1, 15, dtype="float32")[:, None]
        data = fit.batches(x, 2 * x, batch_size=2, shuffle=True)
        if which != "known":
            data = data.repeat() if which == "endless" else data.filter(lambda x, y: True)
        passes = model.fit(data, epochs=4, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
        return passes.epoch, [each.numpy() for each in variables]

    passes, through = train()
    assert passes == [0, 1, 2, 3] and all(np.isfinite(value).all() for value in through)
    each = keras.callbacks
    with pytest.raises(Stop):
        train(each.BackupAndRestore(tmp_path), each.LambdaCallback(on_epoch_end=stop))
    passes, again = train(each.BackupAndRestore(tmp_path))
    assert passes == [3]
    for one, other in zip(again, through, strict=True):
        np.testing.assert_array_equal(one, other)


def test_saving_makes_no_variable_in_the_scope(keras, tf, plan, tmp_path):
    """On several workers the chief would wait for the others to make it."""
    made = []

    def creator(make, **named):
        made.append(named)
        return make(**named)

    keras.utils.clear_session()  # with what was seen of an optimizer before
    with fit.strategy(plan).scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile("adam", "mse")
        with tf.variable_creator_scope(creator):
            model.save(tmp_path / "model.keras")
    assert not made


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


@pytest.mark.parametrize("trained", [True, False])
def test_a_layer_from_outside_of_the_scope_is_named_if_it_is_trained(keras, plan, trained):
    inner = line(keras)
    inner.trainable = trained
    with fit.strategy(plan).scope():
        model = keras.Sequential([keras.Input([1]), inner, keras.layers.Dense(1, name="top")])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    if trained:
        with pytest.raises(ValueError, match=inner.weights[0].path):
            fitted(model)
    else:
        fitted(model)
        np.testing.assert_array_equal(inner.get_weights()[0], [[1.0]])


def test_a_scope_that_nobody_keeps_lasts():
    """As TensorFlow's does, for who enters it in one cell of a notebook for all that follow."""
    said = run_python(
        "import gc; from mgpu_helpers import devices, fit; import tensorflow as tf\n"
        "fit.strategy(devices.setup(2)).scope().__enter__()\n"
        "gc.collect(); print(tf.distribute.get_strategy().num_replicas_in_sync)"
    )
    assert said.stdout == "2\n"


def test_a_strategy_of_one_replica_is_left_alone(keras, tf, plan):
    with tf.distribute.MirroredStrategy(plan.devices[:1]).scope():
        model = line(keras)
    assert fitted(model)[0].item() == pytest.approx(by_hand(), rel=1e-5)


def test_what_another_strategy_says_is_its_own(keras, tf, plan):
    """Of a step that only sometimes updates: our sentence is for our strategy."""
    fit.strategy(plan)  # which mends what a user calls
    with tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice()).scope():
        model = line(keras, gradient_accumulation_steps=2)
    with pytest.raises(RuntimeError, match="merge_call"):
        fitted(model)


@pytest.mark.parametrize("chosen", [
    {"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 3},
])  # fmt: skip
def test_an_optimizer_that_does_something_sometimes_is_named(keras, plan, chosen):
    """As of Keras 3.15 it fails under any strategy (keras-team/keras#20582)."""
    name, value = [*chosen.items()][-1]
    with fit.strategy(plan).scope():
        model = line(keras, **chosen)
    with pytest.raises(ValueError, match=f"{name}={value}"):
        fitted(model)


def test_data_without_an_end_is_refused_and_taken_with_a_number_of_steps(keras, plan):
    x = np.ones([4, 1], "float32")
    data = fit.batches(x, x)
    with fit.strategy(plan).scope():
        model = line(keras)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(data.repeat(), validation_data=data)
    with pytest.raises(ValueError, match="validation_steps"):
        model.fit(data, validation_data=data.repeat())
    steps = {"steps_per_epoch": 2, "validation_steps": 2}
    seen = model.fit(data.repeat(), validation_data=data.repeat(), epochs=2, verbose=0, **steps)
    assert len(seen.history["val_loss"]) == 2


class TestBatches:
    def test_arrays_tuples_and_dicts_become_batches(self, plan):
        x, y = np.arange(5.0), np.arange(5)
        for arrays in ((x, y), ({"a": x}, y), ((x, x), y)):
            sizes = [len(labels) for _, labels in fit.batches(arrays, batch_size=2)]
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
        with pytest.raises(ValueError, match="batch_size"):
            fit.batches(tf.data.Dataset.range(4))
        with pytest.raises(ValueError, match=r"3.*4"):
            fit.batches(np.arange(3), np.arange(4))
        assert len(fit.batches(tf.data.Dataset.range(5), batch_size=2)) == 3
