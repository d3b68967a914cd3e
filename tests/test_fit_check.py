"""What `fit` under a strategy would do wrong without a word, told before."""

from __future__ import annotations

import pytest

from mgpu_helpers import fit


@pytest.fixture(scope="module")
def tf(plan):
    import tensorflow

    return tensorflow


@pytest.fixture
def strategy(tf, plan):
    """Two replicas that train, on logical CPUs."""
    return tf.distribute.MirroredStrategy(
        plan.devices[:2], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def model_of(keras, *, synchronized=True, optimizer="sgd", loss="mse"):
    model = keras.Sequential([
        keras.Input([3]), keras.layers.Dense(4),
        keras.layers.BatchNormalization(synchronized=synchronized, name="norm"),
        keras.layers.Dense(2),
    ])  # fmt: skip
    model.compile(optimizer, loss)
    return model


def dataset(tf, examples, batch=8):
    return tf.data.Dataset.from_tensor_slices(
        (tf.ones([examples, 3]), tf.ones([examples, 2]))
    ).batch(batch)


def test_what_is_right_is_told_nothing(tf, plan, strategy):
    import keras

    assert fit.check(model_of(keras, synchronized=False), dataset(tf, 21)) == []  # one device
    with strategy.scope():
        model = model_of(keras)
    assert fit.check(model, dataset(tf, 24)) == []


@pytest.mark.parametrize("settings, examples, named", [
    ({}, 21, "5"),  # 3 and 2
    ({"synchronized": False}, 24, "'norm'"),
    ({"loss": "sum"}, 24, "1/2"),
], ids=["short", "norm", "sum"])  # fmt: skip
def test_each_trap_has_its_sentence(tf, strategy, settings, examples, named):
    import keras

    if "loss" in settings:
        settings = {"loss": keras.losses.MeanSquaredError(reduction="sum")}
    with strategy.scope():
        model = model_of(keras, **settings)
    (sentence,) = fit.check(model, dataset(tf, examples))
    assert named in sentence


def test_an_optimizer_from_outside_and_a_rate_of_another_batch(tf, strategy):
    import keras

    optimizer = keras.optimizers.SGD(0.01)
    with strategy.scope():
        model = model_of(keras, optimizer=optimizer)
    (sentence,) = fit.check(model, dataset(tf, 24))
    assert optimizer.name in sentence
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.01), "mse")
    (sentence,) = fit.check(model, dataset(tf, 24), rate_for=4)
    assert "0.02" in sentence and "0.0141" in sentence
    assert fit.check(model, dataset(tf, 24), rate_for=8) == []


def test_devices_that_come_twice_or_are_not_there(tf, plan):
    from mgpu_helpers.fit.check import _of_devices

    class Extended:
        worker_devices = ("/device:CPU:1", "/device:CPU:1", "/device:GPU:7")

    class Strategy:
        extended = Extended

    twice, missing = _of_devices(Strategy)
    assert "/CPU:1 2 times" in twice and "/GPU:7" in missing


def test_a_shuffle_without_a_seed_is_found_in_the_graph_of_a_dataset(tf):
    import keras

    from mgpu_helpers.fit.check import _shuffles_without_seed

    data = tf.data.Dataset.range(8)
    tf.random.set_seed(None)
    assert _shuffles_without_seed(data.shuffle(8).map(lambda i: i + 1).batch(2))
    assert not _shuffles_without_seed(data.shuffle(8, seed=1).batch(2))
    assert not _shuffles_without_seed(data.batch(2))
    keras.utils.set_random_seed(3)
    assert not _shuffles_without_seed(data.shuffle(8).batch(2))
