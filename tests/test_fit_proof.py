"""`fit.check` trains a step on all devices and on one: what it finds, and that nothing is left."""

from __future__ import annotations

import random
import re
from unittest import mock

import numpy as np
import pytest

import fit_models
from conftest import later
from fit_models import X, Y
from mgpu_helpers import fit
from test_fit_ways import WAYS

LONG = {*fit_models.CASES} - {"keras_accumulates", "averaged", "own_step"}


def batch_of(tf, given):
    parts = [given[name] for name in ("x", "y", "sample_weight") if name in given]
    return tuple(tf.nest.map_structure(lambda a: tf.constant(a[:10]), each) for each in parts)


def made(case, strategy, keras):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, given = fit_models.CASES[case]()
    given = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "verbose": 0} | given
    if case == "normalized":  # oneDNN gives a convolution of no examples the channels of its input
        given["batch_size"] = 12
    return model, given


def bits(strategy, model):
    """Give the bits of each copy of each variable of a model and its optimizer."""
    return [
        copy.numpy().tobytes() for each in [*model.variables, *model.optimizer.variables]
        for copy in strategy.experimental_local_results(each.value)
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["own_step", *map(later, sorted(LONG))])
def test_a_step_of_all_devices_is_one_devices_and_leaves_no_trace(tf, keras, plan, case):
    """A twin that is made after the step, and never compared, trains as the model before and after.
    """
    strategy = fit.strategy(plan)
    model, given = made(case, strategy, keras)
    seen = [model.fit(**given | {"epochs": 1}).history]
    before, drawn = bits(strategy, model), (random.getstate(), np.random.get_state()[1].tolist())
    assert fit.check(model, batch_of(tf, given)) == []
    assert bits(strategy, model) == before
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn
    seen.append(model.fit(**given).history)
    twin, given = made(case, strategy, keras)
    assert [twin.fit(**given | {"epochs": 1}).history, twin.fit(**given).history] == seen


@pytest.mark.parametrize("way, case", [
    ("shares", "normalized"), later("pieces", "masks"), later("recompute", "dropped"),
    later("stages in pieces", "two_of_each"), later("owners, pieces", "positions"),
    later("layers", "gated"),
])  # fmt: skip
def test_a_changed_model_is_compared_with_itself_unchanged(tf, keras, plan, way, case):
    strategy = fit.strategy(plan.devices[:1])
    model, given = fit_models.CASES[case]()
    WAYS[way].change(model, plan.devices)
    model.optimizer.build(model.trainable_variables)
    before = bits(strategy, model)
    assert fit.check(model, batch_of(tf, {"x": X, "y": Y} | given)) == []
    assert bits(strategy, model) == before


def test_what_replicas_add_up_is_not_searched_for_variables_and_a_custom_gradient_is(
    tf, keras, plan, monkeypatch, numbers
):
    from tensorflow.python.ops import op_selector

    class Doubled(keras.layers.Layer):
        """Has a gradient of its own, of what it uses without being given it."""

        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, x):
            @tf.custom_gradient
            def times(x):
                def back(of, variables):
                    return of, [tf.reduce_sum(of * x)]

                return x * self.scale.value, back

            return times(x)

    searched = mock.Mock(wraps=op_selector.get_backward_walk_ops)
    monkeypatch.setattr(op_selector, "get_backward_walk_ops", searched)
    times = [0]
    for first in (keras.layers.BatchNormalization, keras.layers.ReLU):
        with fit.strategy(plan).scope():
            layers = first(), Doubled(), keras.layers.Dense(2)
            model = keras.Sequential([keras.Input([3]), *layers])
            model.compile("sgd", "mse")
        model.train_on_batch(*numbers)
        times.append(searched.call_count)
    assert times[2] == 2 * times[1] > 0
    assert fit.check(model, numbers) == []


@pytest.mark.thorough
def test_own_statistics_of_each_device_are_another_training(tf, keras, plan):
    model, given = fit_models.CASES["dropped"]()
    fit.use(model, plan, synchronized=False)
    sentences = fit.check(model, batch_of(tf, {"x": X, "y": Y} | given))
    assert any("shows loss" in each for each in sentences)
    assert re.search("of 12 gradients .* by [0-9.]+ times its size", sentences[-1])


@pytest.fixture
def own(keras, tf, plan):
    """Give what makes a model with a train_step of its own, by a loss of the squared errors."""

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                value = self.loss_of((self(x) - y) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(value, weights), weights)
            return {"loss": value}

    def made(loss, strategy=None):
        with (strategy or fit.strategy(plan)).scope():
            model = Own([keras.Input([3]), keras.layers.Dense(2)])
            model.compile("sgd")
        model.loss_of = loss
        return model

    return made


@pytest.fixture
def numbers():
    draw = np.random.default_rng(1).normal
    return draw(size=[20, 3]).astype("f"), draw(size=[20, 2]).astype("f")


@pytest.mark.parametrize("ours, of, times", [
    (False, "mean", 2), (True, "sum", 2), (True, "mean", 0.5), (True, None, 0),
])  # fmt: skip
def test_the_factor_says_what_was_taken_for_what(tf, own, plain, numbers, ours, of, times):
    reduce = tf.reduce_sum if (ours, of) == (True, "mean") else tf.reduce_mean

    def loss(errors):
        return fit.loss(reduce(errors), of) if ours and of else reduce(errors)

    sentences = fit.check(own(loss, None if ours else plain), numbers)
    said = f"^2 of 2 gradients .* {times} times as large, as where"
    assert re.search(said, sentences[-1]) if times else sentences == []


def test_what_depends_on_the_order_in_a_batch_is_not_compared(tf, own, numbers):
    model = own(lambda e: fit.loss(tf.reduce_sum(e[0]) * 1.0, "sum"))
    (sentence,) = fit.check(model, numbers)
    assert "in another order, which" in sentence


def test_an_error_in_a_step_leaves_no_trace_either(tf, plan, own, numbers):
    def loss(errors):
        with tf.control_dependencies([tf.debugging.Assert(len(numbers[0]) > 20, ["no"])]):
            return tf.reduce_mean(errors)

    strategy, model = fit.strategy(plan), own(loss)
    before = bits(strategy, model)
    with pytest.raises(tf.errors.InvalidArgumentError):
        fit.check(model, numbers)
    assert bits(strategy, model) == before
    assert model.steps_per_execution == 1 and model.train_function is None


def test_a_batch_too_large_for_one_device_is_made_small(tf, own, numbers):
    seen = []

    def allocated(errors):
        """Stand in for a large array: TensorFlow waits ten seconds for memory to become free."""
        if len(errors) > 12:
            raise MemoryError
        return np.float32(0)

    def loss(errors):
        seen.append(errors.shape[0])
        much = tf.numpy_function(allocated, [tf.stop_gradient(errors)], tf.float32)
        return fit.loss(tf.reduce_mean(errors) + tf.ensure_shape(much, []), "mean")

    assert fit.check(own(loss), numbers) == []
    assert seen[0] == 20 and 4 in seen


@pytest.mark.parametrize("what, value", [("x", np.nan), ("y", np.inf)])
def test_numbers_that_are_none_are_named_with_their_batch(tf, own, numbers, what, value):
    numbers[what == "y"][13, 1] = value
    halves = [tf.cast(each, "bfloat16") for each in numbers]
    data = tf.data.Dataset.from_tensor_slices((*halves,)).batch(8)
    (sentence,) = fit.check(own(tf.reduce_mean), data)
    assert re.search(f"^{what} of batch 2 has 1 number .* example 5", sentence)


def test_a_loss_that_is_none_on_one_device_too_is_no_difference(
    tf, keras, plan, own, plain, numbers
):
    with fit.strategy(plan).scope():
        none = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        none.compile("sgd", lambda y, p: tf.math.log(-tf.abs(p) - 1))
    steep = own(lambda errors: tf.reduce_mean(tf.sqrt(0 * errors)), plain)
    for model, named in ((none, "a loss, loss"), (steep, "a weight, own")):
        (sentence,) = fit.check(model, numbers)
        assert named in sentence and "one device as well" in sentence


def test_equal_examples_behind_a_norm_are_no_difference(keras, plan):
    """It normalizes rounding alone, which replicas round otherwise."""
    layers = keras.layers
    with fit.strategy(plan).scope():
        norm = layers.BatchNormalization()
        model = keras.Sequential([keras.Input([3]), layers.Dense(4), norm, layers.Dense(2)])
        model.compile("adam", "mse")
    draw = np.random.default_rng(0).normal
    assert fit.check(model, tuple(np.tile(draw(size=k), (10, 1)).astype("f") for k in (3, 2))) == []


def test_a_model_outside_and_a_batch_that_is_too_small_are_named(tf, own, numbers):
    (sentence,) = fit.check(own(tf.reduce_mean, tf.distribute.get_strategy()), numbers)
    assert "in no scope" in sentence
    (sentence,) = fit.check(own(tf.reduce_mean), tuple(each[:1] for each in numbers))
    assert "1 example for 2 replicas" in sentence
