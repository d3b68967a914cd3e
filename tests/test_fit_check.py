"""What `fit` under a strategy would do wrong without a word, told before."""

from __future__ import annotations

import re
from unittest import mock

import pytest

from conftest import later
from mgpu_helpers import fit
from mgpu_helpers.fit.checks import _of_devices, _shuffles_without_seed, replica_sizes


def model_of(keras, *, synchronized=True, optimizer="sgd", loss="mse"):
    model = keras.Sequential([
        keras.Input([3]), keras.layers.Dense(4),
        keras.layers.BatchNormalization(synchronized=synchronized, name="norm"),
        keras.layers.Dense(2),
    ])  # fmt: skip
    model.compile(optimizer, loss)
    return model


@pytest.fixture
def examples(tf):
    """Make a Dataset of so many examples, which differ: of equal ones a norm is rounding alone."""
    return lambda n: tf.data.Dataset.from_tensor_slices(
        tuple(tf.random.stateless_uniform([n, size], [n, size]) for size in (3, 2))
    )


def test_what_is_right_is_told_nothing(keras, plan, plain, examples):
    one = fit.strategy(plan.devices[:1])
    for strategy, data in ((one, examples(21).batch(8)), (plain, examples(24).batch(8))):
        with strategy.scope():
            model = model_of(keras, synchronized=strategy is plain)
        assert fit.check(model, data) == []


@pytest.mark.parametrize("make, named", [
    (lambda data: data(21).batch(8), ["batch 3 .* 5 .* 3 and 2: .*count alike.* 6 or more"]),
    (lambda data: data(17).batch(8), ["batch 3 .* 1 .* 1 and 0: .*NaN.* 2 or more"]),
    (lambda data: data(10).batch(5), ["batch 1 .* 5 .* 3 and 2, .*use 4 or 6"]),
    (lambda data: data(24).batch(8).concatenate(data(7).batch(7)), ["batch 4 .* 7 "]),
    later(lambda data: data(13).repeat().batch(8, drop_remainder=True), []),
    later(lambda data: data(17).batch(8).repeat(), ["batch 3 "]),
    (lambda data: data(24).map(lambda x, y: (x, y[0])), ["are examples and no batches"]),
    (lambda data: tuple(next(iter(data(9).batch(9)))), ["batch 1 .* use 8 or 10"]),
])  # fmt: skip
def test_a_batch_that_leaves_a_replica_short_has_its_sentence(keras, plain, examples, make, named):
    with plain.scope():
        model = model_of(keras)
    data = make(examples)  # of a batch alone, a step of what divides is compared, too
    sentences = fit.check(model, data, proof=isinstance(data, tuple))
    assert len(sentences) == len(named)
    for sentence, pattern in zip(sentences, named, strict=True):
        assert re.search(pattern, sentence)


def test_the_sizes_are_those_that_the_replicas_get(tf, plain):
    for size in range(1, 8):
        data = tf.data.Dataset.range(size).batch(size)
        (parts,) = plain.experimental_distribute_dataset(data)
        got = [len(part) for part in plain.experimental_local_results(parts)]
        assert got == replica_sizes(size, 2)


def test_a_layer_and_a_loss_that_see_one_replica_have_a_sentence(keras, plain, examples):
    with plain.scope():
        summed = model_of(keras, loss=keras.losses.MeanSquaredError(reduction="sum"))
        apart = model_of(keras, synchronized=False)
    (sentence, *_), (other, *proof) = (fit.check(each, examples(24).batch(8))
                                       for each in (summed, apart))  # fmt: skip
    assert "1/2" in sentence and "'norm'" in other and proof


def test_an_optimizer_from_outside_and_a_rate_of_another_batch(keras, plain, examples):
    optimizer, data = keras.optimizers.SGD(0.01), examples(24).batch(8)
    with plain.scope():
        model = model_of(keras, optimizer=optimizer)
    sentence, *_ = fit.check(model, data)
    assert optimizer.name in sentence
    with plain.scope():
        model.compile(keras.optimizers.SGD(0.01), "mse")
    (sentence,) = fit.check(model, data, rate_for=4, proof=False)
    assert "0.02" in sentence and "0.0141" in sentence
    assert fit.check(model, data, rate_for=8, proof=False) == []


def test_devices_that_come_twice_or_are_not_there(tf):
    strategy = mock.Mock()
    strategy.extended.worker_devices = "/device:CPU:1", "/device:CPU:1", "/device:GPU:7"
    twice, missing = _of_devices(strategy)
    assert "/CPU:1 2 times" in twice and "/GPU:7" in missing


def test_a_shuffle_without_a_seed_is_found_in_the_graph_of_a_dataset(tf, keras):
    data = tf.data.Dataset.range(8)
    tf.random.set_seed(None)
    assert _shuffles_without_seed(data.shuffle(8).map(lambda i: i + 1).batch(2))
    assert not _shuffles_without_seed(data.shuffle(8, seed=1).batch(2))
    assert not _shuffles_without_seed(data.batch(2))
    keras.utils.set_random_seed(3)
    assert not _shuffles_without_seed(data.shuffle(8).batch(2))
