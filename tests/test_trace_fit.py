"""One step of what fit runs, against fit itself."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter

import numpy as np
import pytest

import fit_models
from conftest import later
from mgpu_helpers import fit
from mgpu_helpers.trace import fit_step, function_step
from mgpu_helpers.trace.layers import layer


def kinds(step):
    return Counter((op.type, op.device) for op in step.ops)


def state(model):
    return [*model.variables, *model.optimizer.variables]


def matmuls(step):
    return sum("MatMul" in op.type for op in step.ops)


@pytest.fixture
def dense(keras):
    """Make a small model that is not built."""
    model = keras.Sequential([keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse")
    return model


def test_a_step_of_fit_is_a_step_of_fit_and_leaves_the_model(tf, keras, plan):
    """What was not built is built as fit does, and what was trained stays as it is."""
    x, y, built = np.ones([8, 3], "f"), np.ones([8, 1], "f"), []
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    fitted = functools.partial(keras.Model.fit, x=data, verbose=0, shuffle=False)
    for first in fitted, lambda model: fit_step(model, data):
        keras.utils.set_random_seed(0)
        with tf.device(plan.devices[0]):
            layers = [keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="last")]
            model = keras.Sequential(layers, name="net")
            model.compile(keras.optimizers.Adam(0.0), "mse", metrics=["mae"])  # changes no weight
            step = first(model)
        weights = [v.numpy() for v in model.trainable_variables]
        built.append((model.input_shape, [v.name for v in state(model)], weights))
    np.testing.assert_equal(*built)
    assert built[1][0] == (None, 3)
    assert all(np.all(v.numpy() == 0) for v in state(model) if "momentum" in v.path)
    with tf.device(plan.devices[0]):
        _, plain = function_step(
            lambda x, y: model.train_step((x, y)), tf.constant(x), tf.constant(y)
        )
    assert matmuls(step) == matmuls(plain) == 2 + 3  # the first has no gradient of its inputs
    assert len([c for c in step.copies if c.bytes == x.nbytes]) == 1  # the batch
    fitted(model)
    before = [v.numpy() for v in state(model)]
    fit_step(model, data)
    np.testing.assert_equal([v.numpy() for v in state(model)], before)


def test_it_takes_what_fit_takes_and_warns_of_what_fit_does_besides(tf, dense):
    x, y = np.ones([4, 3], "f"), np.ones([4, 1], "f")
    both = [(x, y), (x[1:], y[1:])]
    ways = (x, y), iter(both), tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    steps = [fit_step(dense, data) for data in ways]
    for more in {"jit_compile": True, "steps_per_execution": 5}, {"run_eagerly": True}:
        dense.compile("sgd", "mse", **more)
        with pytest.warns(UserWarning, match=".*".join(more)):
            steps.append(fit_step(dense, (x, y)))
    assert all(kinds(step) == kinds(steps[0]) for step in steps)
    dense.compile("sgd", "mse")
    weighted = fit_step(dense, (x, y, np.ones(4, "f")))
    fed = [op.bytes for op in weighted.ops if op.type == "Placeholder"]
    assert sorted(fed) == [16, y.nbytes, x.nbytes]


def test_a_model_is_traced_as_it_is_laid_out(keras, plan):
    """Two stages take two pieces each way, and the model and its layout stay."""
    layers = [keras.layers.Dense(6, name=name) for name in ("first", "last")]
    model = keras.Sequential([keras.Input([6]), *layers])
    model.compile("sgd", "mse")
    fit.use(model, plan, stages=["last"], pieces=2)
    layout, before = fit.layout(model), [v.numpy() for v in state(model)]
    step = fit_step(model, (np.ones([8, 6], "f"), np.ones([8, 6], "f")))
    ran = Counter((layer(op.name), op.device) for op in step.ops if "MatMul" in op.type)
    assert ran == {("first", plan.devices[0]): 2 + 2, ("last", plan.devices[1]): 2 + 2 + 2}
    home = {op.device for op in step.ops if op.type == "AssignSubVariableOp"}
    assert home == {*plan.devices}
    assert fit.layout(model) == layout
    np.testing.assert_equal([v.numpy() for v in state(model)], before)


def test_what_a_step_made_before_it_failed_has_its_values(keras):
    """Weights, slots and metrics; or they could never be used again."""

    class Late(keras.Sequential):
        fails = True

        def train_step(self, data):
            made = super().train_step(data)
            if self.fails:
                raise KeyError("late")
            return made

    x, y = np.ones([4, 3], "f"), np.ones([4, 1], "f")
    model = Late([keras.layers.Dense(1)], name="net")
    model.compile("adam", "mse", metrics=["mae"])
    with pytest.raises(ValueError, match="'net' fails on the first batch.*: 'late'"):
        fit_step(model, (x, y))
    assert model.built and model.optimizer.built
    model.fails = False
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()


def test_a_train_step_of_ones_own_builds_what_it_wants(keras):
    """What calls its parts alone is not called, which might not even take such a batch."""

    class Half(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            raise NotImplementedError

        def train_step(self, data):
            return {"loss": keras.ops.mean(self.dense(data))}

    half = Half()
    half.compile("sgd")
    step = fit_step(half, (np.ones([4, 3], "f"),))  # as from fit(x), the batch is x itself
    assert matmuls(step) == 1 and not half.built and half.dense.built


def test_what_only_its_author_knows_is_traced_before_the_first_fit(keras, plan):
    """On replicas fit asks by the first batch what such losses are; a trace leaves it that."""
    x, y = np.random.default_rng(0).normal(size=[7, 6]).astype("f"), np.arange(7) % 3
    found = []
    for first in True, False:
        keras.utils.set_random_seed(0)
        with fit.strategy(plan).scope():
            model, _ = fit_models.own_step()
        steps = [fit_step(model, (x, y))] if first else []
        found.append(model.fit(x, y, batch_size=7, shuffle=False, epochs=2, verbose=0))
        steps.append(fit_step(model, (x[:5], y[:5])))
        found.append(model.fit(x[:5], y[:5], batch_size=5, verbose=0, shuffle=False))
        assert len({matmuls(step) for step in steps}) == 1
        assert {*plan.devices} <= {*steps[0].devices}
        updates = [op.device for op in steps[0].ops if op.type == "AssignSubVariableOp"]
        assert updates.count(plan.devices[0]) == updates.count(plan.devices[1]) > 0
    for a, b in zip(found[:2], found[2:], strict=True):
        assert a.history == b.history


def test_data_that_fit_would_not_take_for_a_batch_is_refused(tf, dense):
    x, y = np.ones([4, 3], "f"), np.ones([4, 1], "f")
    for data in ([x, y], x, None):
        with pytest.raises(TypeError):
            fit_step(dense, data)
    assert not dense.built
    fit_step(dense, (x, y))
    for empty in ([], tf.data.Dataset.from_tensors(x).take(0), (x[:0], y[:0])):
        with pytest.raises(ValueError, match="0 batches|0 examples"):
            fit_step(dense, empty)
    with pytest.raises(ValueError, match="'net' fails on .*: .*3 and 4"):
        fit_step(dense, (x, y[:3]))
    with pytest.raises(ValueError, match=r"fails on the first batch, of \(3,\) and \(1,\): "):
        fit_step(dense, tf.data.Dataset.from_tensor_slices((x, y)))


@pytest.mark.parametrize("several", [True, later(False)])
def test_what_looks_words_up_is_traced(tf, keras, plan, several):
    from keras import layers

    words = np.array([["red fish"], ["blue fish"], ["one"], ["two red"]])
    numbers, y = np.array([[3], [4], [3], [9]]), np.ones([4, 1], "f")
    with fit.strategy(plan).scope() if several else contextlib.nullcontext():
        given, number = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
        texts = layers.TextVectorization(output_sequence_length=3)
        texts.adapt(words)
        x = layers.Flatten()(layers.Embedding(9, 2)(texts(given)))
        one = layers.StringLookup(vocabulary=["one", "red fish"], output_mode="one_hot")(given)
        known = layers.IntegerLookup(vocabulary=[3, 4], output_mode="one_hot")(number)
        model = keras.Model([given, number], layers.Dense(1)(layers.concatenate([x, one, known])))
        model.compile("sgd", "mse")
    batch = ((tf.constant(words), tf.constant(numbers)), tf.constant(y))
    weights = model.get_weights()
    step = fit_step(model, batch)
    assert sum(op.type == "LookupTableFindV2" for op in step.ops) == 3 * (1 + several)
    np.testing.assert_equal(model.get_weights(), weights)
    assert np.isfinite(model.train_on_batch(*batch))
