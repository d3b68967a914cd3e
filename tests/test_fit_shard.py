"""A model whose state is shared out, against itself on one device: `fit`, bytes, and files."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_models
from conftest import run_python
from mgpu_helpers import fit, trace

UNITS = 200


@functools.cache
def alone(case):
    return fit_models.trained(case)


def places(variables):
    return [variable.value.device.partition("device:")[2] for variable in variables]


def slots(model):
    """List the places of what the optimizer has for each weight: two, for Adam."""
    return places(v for v in model.optimizer.variables if v.shape.rank)


# The others are in `make thorough`.
QUICK = {"normalized"}


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case in QUICK else pytest.mark.thorough)
    for case in fit_models.CASES
])  # fmt: skip
def test_fit_is_that_of_one_device(keras, plan, double, case):
    """Clipped by the global norm, decayed, averaged, embedded, with several outputs."""
    got = fit_models.trained(
        case, lambda model: fit.parallel(fit.shard(model, plan.devices), plan.devices)
    )
    fit_models.near(got, alone(case), 1e-6 if case == "masked_normal" else 1e-12)
    assert {*places(got[0].trainable_variables)} == {"CPU:1", "CPU:2"}


@pytest.mark.parametrize("case", [
    "averaged", *(pytest.param(case, marks=pytest.mark.thorough) for case in
                  ("normalized", "places", "regularized", "keras_accumulates", "own_step")),
])  # fmt: skip
def test_a_device_computes_and_the_host_updates(keras, plan, double, case):
    got = fit_models.trained(
        case, lambda model: fit.parallel(fit.shard(model, [plan.devices[1]]), plan.devices[:1])
    )
    fit_models.near(got, alone(case), 1e-12)
    assert {*places(got[0].weights), *slots(got[0])} == {"CPU:2"}


@pytest.mark.parametrize("case", ["own_step", "places"])
@pytest.mark.thorough
def test_pieces_are_shared_out_too(keras, plan, double, case):
    def change(model):
        fit.accumulate(fit.parallel(fit.shard(model, plan.devices), plan.devices), 3)

    fit_models.near(fit_models.trained(case, change), alone(case), 1e-11)


def network(keras, optimizer, devices=None, owners=None):
    """Make six equal layers, which two devices can share out evenly."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(UNITS, "relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((UNITS,)), *layers])
    model.compile(optimizer, "mse")
    if owners:
        fit.shard(model, owners)
    return fit.parallel(model, devices) if devices else model


BATCH = tuple(np.random.default_rng(0).normal(size=(2, 8, UNITS)).astype("float32"))
OPTIMIZERS = {
    "adam": lambda keras: keras.optimizers.Adam(),
    "clipped": lambda keras: keras.optimizers.Adam(clipnorm=1.0),
    "decayed": lambda keras: keras.optimizers.AdamW(global_clipnorm=1.0),
    "averaged": lambda keras: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2),
    "scaled": lambda keras: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(global_clipnorm=1.0)
    ),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name == "scaled" else pytest.mark.thorough)
    for name in OPTIMIZERS
])  # fmt: skip
def test_what_crosses_is_a_weight_and_its_gradient_once(keras, plan, name):
    """Of each weight the device that does not own it is sent the value, and sends its gradient."""
    model = network(keras, OPTIMIZERS[name](keras), plan.devices, plan.devices)
    step = trace.fit_step(model, BATCH)
    size = sum(4 * np.prod(v.shape) for v in model.weights)
    between = step.bytes_between()
    assert size < sum(between[pair] for pair in [plan.devices, plan.devices[::-1]]) < 2.02 * size
    assert sum(between.values()) < 2.1 * size  # the host cuts the batch, and counts the steps
    owned = [slots(model).count(f"CPU:{i}") for i in (1, 2)]
    assert owned[0] == owned[1] > 0 == slots(model).count("CPU:0")
    others = ("tower_", "gradients/", "average/")
    big = [op for op in step.ops if op.bytes >= 4 * UNITS**2
           and not any(word in op.name for word in others)]  # fmt: skip
    assert {op.device for op in big} == {*plan.devices}  # of the optimizer


def test_the_fullest_device_holds_less(keras, tf, plan):
    """By the formulas 4 P on one device, 2.5 P on two, and P where another one owns all.

    That one is where the optimizer was made, so that all its variables lie in one place.
    """
    held = {}
    for name, devices, owners in (
        ("one", plan.devices[:1], None), ("two", plan.devices, plan.devices),
        ("offloaded", plan.devices[1:], [plan.devices[0]]),
    ):  # fmt: skip
        with tf.device(plan.devices[0]):
            model = network(keras, keras.optimizers.Adam(), devices, owners)
            if not owners:
                model.optimizer.build(model.trainable_variables)
        step = trace.fit_step(model, BATCH)
        size = sum(4 * np.prod(v.shape) for v in model.weights)
        assert not owners or sum(step.bytes_between().values()) < 2.1 * size
        held[name] = max(
            sum(4 * np.prod(v.shape) for v in [*model.weights, *model.optimizer.variables]
                if v.value.device.endswith(device[1:])) + step.peak(device)
            for device in devices
        )  # fmt: skip
    assert held["offloaded"] < size < held["two"] < 3 * size < held["one"]


@pytest.mark.parametrize("owners, crossing", [
    ("host", 4), pytest.param("devices", 2, marks=pytest.mark.thorough),
])
def test_pieces_are_added_up_where_the_weights_are(keras, tf, plan, owners, crossing):
    """Nothing goes where the step was made; and what the optimizer keeps is made at the owners."""
    owners = {"host": [plan.host], "devices": plan.devices}[owners]
    model = network(keras, keras.optimizers.Adam(), plan.devices, owners)
    with tf.device(plan.devices[1]):
        step = trace.fit_step(fit.accumulate(model, 2), BATCH)
    size = sum(4 * np.prod(v.shape) for v in model.weights)
    assert 2 * crossing * size < sum(step.bytes_between().values()) < 2.1 * crossing * size
    assert slots(model) == [place for place in places(model.trainable_variables) for _ in "mv"]


@pytest.mark.thorough
def test_three_and_four_devices_own_parts():
    """Of which some get no example of a last batch, and some own a bias alone."""
    done = run_python("""
        import fit_models
        from mgpu_helpers import devices, fit
        plan = devices.setup(4)
        with fit_models.double():
            for case in ("last_of_one", "normalized", "averaged"):
                wanted = fit_models.trained(case)
                for owners in (plan.devices[:3], plan.devices):
                    change = lambda model: fit.parallel(fit.shard(model, owners), plan.devices)
                    fit_models.near(fit_models.trained(case, change), wanted, 1e-12)
                    print(case)
    """.replace("\n        ", "\n"), timeout=400, MGPU_MODE="cores")  # fmt: skip
    assert done.stdout.split() == [case for case in ("last_of_one", "normalized", "averaged")
                                   for _ in range(2)]  # fmt: skip


@pytest.mark.thorough
def test_a_built_optimizer_goes_on_and_moves_back(keras, plan, double, tmp_path):
    """With its slots and its count; `set_weights` and `load_weights` keep the places."""
    seen = []
    for owners in (None, plan.devices):
        keras.utils.set_random_seed(0)
        model = fit_models.dense()
        given = {"x": fit_models.X, "y": fit_models.Y, "epochs": 2, "verbose": 0, "shuffle": False}
        model.fit(**given)
        if owners:
            fit.parallel(fit.shard(model, owners), owners)
        model.fit(**given)
        seen.append([*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)])
        model.save(tmp_path / f"{owners is None}.keras")
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert {*places(model.weights)} == {*slots(model)} == {"CPU:1", "CPU:2"}
    where, kernel = places(model.weights), model.layers[0].kernel
    model.load_weights(tmp_path / "False.keras")
    model.set_weights([2 * value for value in model.get_weights()])
    assert places(model.weights) == where and kernel.numpy()[0, 0] == 2 * seen[1][0][0, 0]
    with pytest.raises(ValueError, match="fit.alone"):
        fit.shard(model, plan.devices)
    assert fit.alone(model) is model and model.supports_jit
    assert {*places(model.weights)} == {*slots(model)} == {"CPU:0"}
    assert model.layers[0].kernel is kernel
    np.testing.assert_array_equal(kernel.numpy(), 2 * seen[1][0])
    model.fit(**given)
    said = run_python(f"""
        import keras
        model = keras.saving.load_model({str(tmp_path / "False.keras")!r})
        print(model.layers[0].kernel.value.device, "call" in vars(model))
        print(int(model.optimizer.iterations), *map(float, model.get_weights()[0][0]))
    """.replace("\n        ", "\n")).stdout.split()  # fmt: skip
    assert said[0].endswith("CPU:0") and said[1:3] == ["False", "4"]
    np.testing.assert_allclose([float(x) for x in said[3:]], seen[1][0][0], atol=1e-12)


def test_what_an_optimizer_hands_on_to_another_one_moves_too(keras, plan):
    model = network(keras, OPTIMIZERS["scaled"](keras))
    model.optimizer.build(model.trainable_variables)
    assert {*slots(fit.shard(model, plan.devices))} == {"CPU:1", "CPU:2"}
    assert {*slots(fit.alone(model))} == {"CPU:0"}


def test_what_was_traced_before_raises(keras, tf, plan, double):
    model = fit_models.dense()
    step = tf.function(lambda x: model(x))
    step(tf.constant(fit_models.X))
    fit.shard(model, plan.devices)
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant(fit_models.X))
    with pytest.raises(ValueError, match="gpu:9"):
        fit.shard(fit_models.dense(), ["/gpu:9"])


def test_a_checkpoint_of_tensorflow_keeps_the_places(keras, tf, plan, double, tmp_path):
    model = fit.shard(fit_models.dense(), plan.devices)
    model.fit(fit_models.X, fit_models.Y, verbose=0)
    saver = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path, before = saver.save(tmp_path / "all"), model.get_weights()
    where = places(model.weights)
    model.set_weights([0 * value for value in before])
    saver.restore(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert places(model.weights) == where
    whole = fit_models.dense()
    tf.train.Checkpoint(model=whole).restore(path).expect_partial()
    np.testing.assert_array_equal(whole.get_weights()[0], before[0])


@pytest.mark.thorough
def test_halves_skip_the_same_steps(keras, plan):
    """A loss that is scaled too much first: the scale is halved until the gradients are finite."""
    seen = []
    for owners in (None, plan.devices):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = keras.Sequential([keras.Input((6,)), *map(keras.layers.Dense, (8, 3))])
        finally:
            keras.config.set_dtype_policy("float32")
        adam = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        model.compile(keras.optimizers.LossScaleOptimizer(adam, 2.0**20), fit_models.cross())
        if owners:
            fit.parallel(fit.shard(model, owners), owners)
        history = model.fit(fit_models.X, fit_models.Y, epochs=20, verbose=0, shuffle=False)
        seen.append([*model.get_weights(), history.history["loss"], model.optimizer.dynamic_scale])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)
    assert seen[0][-1].numpy() < 2.0**20 and model.optimizer.iterations.numpy() > 10


@pytest.mark.parametrize("weights", [
    (100, 60, 60, 20), (7, 7, 7, 1, 1, 1),
])  # fmt: skip
def test_the_largest_come_first(keras, plan, weights):
    """So no device has more than half of all, but for one that is larger alone."""
    given = keras.Input((1,))
    heads = [keras.layers.Dense(n, use_bias=False, trainable=n > 1)(given) for n in weights]
    model = fit.shard(keras.Model(given, heads), plan.devices)
    held = {at: sum(n for n, own in zip(weights, places(model.weights), strict=True) if own == at)
            for at in ("CPU:1", "CPU:2")}  # fmt: skip
    assert sorted(held.values()) == sorted({(100, 60, 60, 20): [120, 120],
                                            (7, 7, 7, 1, 1, 1): [10, 14]}[weights])  # fmt: skip
