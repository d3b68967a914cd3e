"""The sources' networks: counted, compared with Keras, the same bits in a graph and today."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from keras_models import lesson
from mgpu_helpers.lessons import networks

NETWORKS = {"tensorlight": networks.tensorlight(0.1), "p40": networks.p40(0.1),
            "jang": networks.jang(240, 0.1)}  # fmt: skip


def examples(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, 28, 28, 1), np.float32), rng.integers(0, 10, n)


def session(tf, plan):
    opened = tf.compat.v1.Session(config=plan.session_config())
    opened.run(tf.compat.v1.global_variables_initializer())
    return opened


# What is counted


@pytest.mark.parametrize("network, parameters, mflop", [
    (networks.tensorlight(), 6_640_394, 284.5), (networks.p40(), 619_146, 65.4),
    (networks.jang(), 576 + 36_864 + 73_728 + 2048 * 2400 + 24_000, 96.5),
    (networks.jang(4800), 576 + 36_864 + 73_728 + 2048 * 4800 + 48_000, 126.1),
])  # fmt: skip
def test_counts(network, parameters, mflop):
    assert networks.parameters(network) == parameters
    assert round(networks.flops(network) / 1e6, 1) == mflop
    shown = repr(network)
    assert f"{parameters:,} parameters" in shown and f"{mflop} MFLOP" in shown
    own = [row.split()[-1] for row in shown.splitlines()[2:]]
    assert sum(int(count.replace(",", "")) for count in own if count != "-") == parameters


# The weights


def test_initial_gives_the_same_bits_everywhere():
    """These are the bits on any processor and any NumPy; a change here changes every lesson."""
    network = networks.tensorlight(0.25)
    drawn = networks.initial(network, seed=3)
    assert {name: value.shape for name, value in drawn.items()} == networks.shapes(network)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in drawn.values())).hexdigest()
    assert digest[:16] == "92f244039d2ccf38"


def test_classic_and_todays_weights_are_equal_bit_for_bit(tf, plan):
    network = NETWORKS["tensorlight"]
    wanted = networks.initial(network, seed=5)
    today = networks.variables(network, device=plan.devices[1], seed=5)
    with tf.Graph().as_default(), tf.device(plan.devices[0]):
        classic = networks.classic(network, device=plan.devices[1], seed=5)
        here = networks.variables(network, seed=5)
        with session(tf, plan) as opened:
            values = opened.run(classic)
    assert list(wanted) == list(today) == list(classic)
    for weight, value in wanted.items():
        assert value.tobytes() == values[weight].tobytes() == today[weight].numpy().tobytes()
        assert today[weight].name == classic[weight].name == f"{weight}:0"
        assert today[weight].device.endswith(plan.devices[1][1:])
        assert classic[weight].device.endswith(plan.devices[1][1:])
        assert here[weight].device.endswith(plan.devices[0][1:])


# The forward function


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_and_gradients_are_those_of_keras(tf, plan, name):
    network, (images, labels) = NETWORKS[name], examples(12)
    keras = lesson(name, 0.1, 240)
    weights = networks.variables(network, seed=1)
    rng = np.random.default_rng(2)
    for weight in weights.values():  # so that a forgotten bias shows
        weight.assign_add(0.02 * rng.standard_normal(weight.shape).astype(np.float32))
    values = {weight: variable.numpy() for weight, variable in weights.items()}
    keras.set_weights(list(values.values()))
    cross = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        theirs = keras(images)
        their_loss = cross(labels, theirs)
    their_gradients = tape.gradient(their_loss, keras.trainable_variables)
    ours = networks.logits(network, weights, images)  # today, and below in a graph
    with tf.Graph().as_default():
        classic = networks.classic(network)
        x = tf.compat.v1.placeholder(tf.float32, [None, 28, 28, 1])
        scores = networks.logits(network, classic, x)
        cost = networks.loss(labels, scores)
        slopes = tf.gradients(cost, list(classic.values()))
        with session(tf, plan) as opened:
            for weight, variable in classic.items():
                variable.load(values[weight], opened)
            got = opened.run([scores, cost, slopes], {x: images})
    near = {"rtol": 1e-5, "atol": 1e-5}
    for one, other in zip((ours, *got[:2], *got[2]), (theirs, theirs, their_loss, *their_gradients),
                          strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other, **near)


# Dropout


def test_dropout_follows_the_seed_and_nothing_else(tf, plan):
    network, (images, _) = NETWORKS["p40"], examples(4)
    weights = networks.variables(network)

    def scores(seed, keep=None):
        return networks.logits(network, weights, images, keep=keep, seed=seed).numpy()

    assert np.array_equal(scores((3, 1)), scores((3, 1)))
    assert np.array_equal(scores((3, 1)), scores(tf.constant([3, 1])))
    assert np.array_equal(scores((3, 1), 1.0), networks.logits(network, weights, images))
    different = [scores(seed) for seed in ((3, 1), (3, 2), (4, 1), (1, 3))]
    different += [scores((3, 1), 0.6), scores((3, 1), 1.0)]
    assert len({value.tobytes() for value in different}) == 6
    np.testing.assert_allclose(scores((3, 1), tf.constant(0.6)), different[4], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="0.3 needs a seed"):
        networks.logits(network, weights, images, keep=None)


def test_dropout_keeps_the_share_and_the_mean(tf):
    ones, kept = np.ones((1, 10_000), np.float32), []
    for keep, name in ((0.15, "drop1"), (0.15, "drop2"), (None, "own")):
        network = networks.Network("drop", (networks.Dropout(name, 0.3),), (10_000,))
        kept.append(networks.logits(network, {}, ones, keep=keep, seed=(7, 63)).numpy())
        assert (kept[-1] > 0).mean() == pytest.approx(keep or 0.3, abs=0.025)
        assert kept[-1].max() == pytest.approx(1 / (keep or 0.3), rel=1e-5)
    both = ((kept[0] > 0) & (kept[1] > 0)).mean()  # each layer drops others
    assert both == pytest.approx(0.15**2, abs=0.01)


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="5, 784"):  # a Dense would reshape them
        networks.logits(networks.tensorlight(), {}, np.zeros([5, 784], np.float32))
