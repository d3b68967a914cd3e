"""A model with layers in parts on several devices, against itself on one: `fit`, bytes, files."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_models
from conftest import run_python
from mgpu_helpers import fit, trace

PAIRS, HEADS = {"up_.*": "columns", "down_.*": "rows"}, {"heads_.*": "heads"}
ROWS, WIDE = 64, 32  # of a batch, and of what goes into a pair


def places(variables):
    return [v.value.device.partition("device:")[2] for v in variables]


def last_two(model):
    return {model.layers[-2].name: "columns", model.layers[-1].name: "rows"}


DENSE = ["sequential", "class_weights", "mean_of_weights", "last_of_one", "several_steps",
         "keras_accumulates", "averaged", "watched"]  # fmt: skip
CASES = dict.fromkeys(DENSE, last_two) | {
    "gated": lambda model: PAIRS,
    "causal": lambda model: PAIRS | HEADS,
    "attention": lambda model: {"multi_head_attention.*": "heads"},
    "sure": lambda model: {model.layers[-3].name: "columns", "kind|is": "rows"},
}
# The others are in `make thorough`.
QUICK = {"gated"}


def is_that_of_one_device(case, devices):
    wanted = fit_models.trained(case)
    model, seen, _, predicted = fit_models.trained(
        case, lambda model: fit.split_layers(model, devices, CASES[case](model))
    )
    assert {*places(model.weights)} == {device[1:] for device in devices}
    assert fit.alone(model) is model
    weights = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    fit_models.near((model, seen, weights, predicted), wanted)


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case in QUICK else pytest.mark.thorough) for case in CASES
])  # fmt: skip
def test_fit_is_that_of_one_device(keras, plan, double, case):
    """Gated, with a product; masked, with attention; behind a softmax and a sigmoid."""
    is_that_of_one_device(case, plan.devices)


@pytest.mark.thorough
def test_three_and_four_devices_have_parts_of_any_size():
    """Of four heads, five, seven and twelve units."""
    done = run_python("""
        import fit_models, test_fit_split_layers
        from mgpu_helpers import devices
        plan = devices.setup(4)
        with fit_models.double():
            for case in ("gated", "causal"):
                for n in (3, 4):
                    test_fit_split_layers.is_that_of_one_device(case, plan.devices[:n])
                    print(case, n)
    """.replace("\n        ", "\n"), timeout=500, MGPU_MODE="cores")  # fmt: skip
    assert done.stdout.split() == "gated 3 gated 4 causal 3 causal 4".split()


def pairs(keras, n=2, heads=0):
    """Make residual pairs, or attention, of which all keeps the batch's shape."""
    keras.utils.set_random_seed(0)
    x = given = keras.Input((4, WIDE // 4) if heads else (WIDE,))
    for i in range(n):
        y = keras.layers.LayerNormalization()(x)
        if heads:
            y = keras.layers.MultiHeadAttention(heads, 8, name=f"heads_{i}")(y, y)
        else:
            y = keras.layers.Dense(8 * WIDE, "relu", name=f"up_{i}")(y)
            y = keras.layers.Dense(WIDE, name=f"down_{i}")(y)
        x = keras.layers.Add()([x, y])
    model = keras.Model(given, x)
    model.compile("adam", "mse")
    return model, np.random.default_rng(0).normal(size=(2, ROWS, *given.shape[1:])).astype("f")


def crosses(keras, plan, devices):
    """Check what crosses by the formula of Megatron-LM, in bytes, for pairs and for attention."""
    for heads in (0, 4):
        model, batch = pairs(keras, heads=heads)
        cut = fit.split_layers(model, devices, HEADS if heads else PAIRS)
        step = trace.fit_step(cut, tuple(batch))
        between = {way: n for way, n in step.bytes_between().items() if plan.host not in way}
        wanted = 2 * 2 * ROWS * WIDE * 4  # there and back, in two layers
        first, *others = devices
        ways = [(first, each) for each in others] + [(each, first) for each in others]
        assert between == dict.fromkeys(ways, wanted)
        from_host = sum(n for way, n in step.bytes_between().items() if plan.host in way)
        assert from_host < 1.2 * (2 * ROWS * WIDE * 4)  # the batch


def test_what_crosses_is_the_input_of_a_pair_four_times(keras, plan):
    crosses(keras, plan, plan.devices)


@pytest.mark.thorough
def test_it_crosses_to_each_of_three_and_four_devices():
    run_python("""
        import keras, test_fit_split_layers
        from mgpu_helpers import devices
        plan = devices.setup(4)
        for n in (3, 4):
            test_fit_split_layers.crosses(keras, plan, plan.devices[:n])
    """.replace("\n        ", "\n"), MGPU_MODE="cores")  # fmt: skip


def test_each_device_holds_and_computes_its_part(keras, plan):
    model, batch = pairs(keras, 4)
    whole = trace.fit_step(model, tuple(batch)).peak(plan.host)
    step = trace.fit_step(fit.split_layers(model, plan.devices, PAIRS), tuple(batch))
    kept = [*model.weights, *model.optimizer.variables]
    held = [sum(4 * int(np.prod(v.shape)) for v in kept if v.value.device.endswith(device[1:]))
            for device in plan.devices]  # fmt: skip
    pair = 4 * 3 * 4 * (8 * WIDE * (2 * WIDE + 1))  # bytes: of weights with two slots, in four
    assert pair / 2 == held[1] < held[0] < 1.05 * held[1]
    assert step.peak(plan.devices[1]) < step.peak(plan.devices[0]) < 0.75 * whole
    assert step.peak(plan.host) < 0.1 * whole
    products = [op.device for op in step.ops if op.type.endswith("MatMul")]
    assert len({*products}) == 2 and products.count(plan.devices[0]) == len(products) / 2 >= 24


def test_dropout_draws_for_each_part(keras, plan):
    """The first output counts what is left in the one part, the second in the other."""
    keras.utils.set_random_seed(0)
    up, down = keras.layers.Dense(20, name="up_0"), keras.layers.Dense(2, name="down_0")
    model = keras.Sequential([keras.Input((1,)), up, keras.layers.Dropout(0.5), down])
    up.set_weights([np.ones((1, 20)), np.zeros(20)])
    down.set_weights([np.repeat(np.eye(2), 10, 0), np.zeros(2)])
    fit.split_layers(model, plan.devices, PAIRS)
    one, other = model(np.ones((50, 1)), training=True).numpy().T
    assert 5 < one.mean() < 15 > other.mean() > 5 and np.sum(one != other) > 20
    assert model.get_layer(index=1).seed_generator.state.numpy()[1] == 2
    np.testing.assert_array_equal(model(np.ones((1, 1))), [[10, 10]])


@pytest.mark.parametrize("seed", [None, 0])
def test_heads_of_two_devices_drop_other_places(keras, plan, seed):
    heads = keras.layers.MultiHeadAttention(2, 1, dropout=0.5, seed=seed, name="heads_0")
    given = keras.Input((30, 1))
    model = keras.Model(given, heads(given, given))
    query, key, value, out = (np.ones(v.shape) for v in heads.weights[::2])
    out[1] = -1  # what both heads leave alike is nothing
    for variable, number in zip(heads.weights[::2], (query, key, value, out), strict=True):
        variable.assign(number)
    fit.split_layers(model, plan.devices, HEADS)
    x = np.ones((1, 30, 1))
    assert np.abs(model(x)).max() < 1e-6 < 0.01 < np.abs(model(x, training=True)).mean()


@pytest.mark.parametrize("scale", [
    pytest.param(2.0**10, marks=pytest.mark.thorough), 2.0**24,
])  # fmt: skip
def test_a_model_of_halves_has_its_loss_scaled(keras, plan, scale):
    seen = []
    for devices in (None, plan.devices):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model, batch = pairs(keras)
        finally:
            keras.config.set_dtype_policy("float32")
        sgd = keras.optimizers.SGD(0.1, global_clipnorm=0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd, scale), "mse")
        if devices:
            fit.split_layers(model, devices, PAIRS)
        loss = model.fit(*batch, epochs=9, verbose=0, shuffle=False).history["loss"]
        scaled = float(fit.alone(model).optimizer.dynamic_scale)
        seen.append((int(sgd.iterations), scaled, loss, *model.get_weights()))
    assert seen[0][:2] == seen[1][:2] and (seen[0][0] == 18) == (scale == 2.0**10)
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.thorough
def test_it_is_saved_loaded_and_undone(keras, tf, plan, double, tmp_path):
    """A built optimizer goes on, with callbacks that save; files are those of one device."""
    seen = []
    for devices in (None, plan.devices):
        model, given = fit_models.trained("gated")[0], fit_models.gated()[1]
        given = {"x": fit_models.X, "y": fit_models.Y, "verbose": 0, "shuffle": False} | given
        name, adamw = tmp_path / f"{devices is None}.keras", model.optimizer
        if devices:
            fit.split_layers(model, devices, PAIRS)
        calls = keras.callbacks
        history = model.fit(**given, epochs=4, callbacks=[
            calls.ModelCheckpoint(name, "loss"), calls.BackupAndRestore(tmp_path / "backup"),
            calls.EarlyStopping("loss", min_delta=10.0, patience=2, restore_best_weights=True),
        ]).history["loss"]  # fmt: skip
        loaded = keras.saving.load_model(name)
        states = [[v.numpy() for v in each.optimizer.variables] for each in (loaded, model)]
        rest = [model.get_weights(), loaded.get_weights(), states[0]]
        if devices:
            with pytest.raises(ValueError, match="model.save"):
                keras.saving.save_model(model, tmp_path / "other.keras")
            keras.config.set_floatx("float32")  # of which slots would be made, and do not fit
            with pytest.raises(tf.errors.InvalidArgumentError):
                model.get_weights()
            keras.config.set_floatx("float64")
            model.load_weights(name)
            assert {*places(model.get_layer("down_0").weights)} == {"CPU:1", "CPU:2"}
            assert len(states[1]) > len(states[0])
            assert fit.alone(model).optimizer is adamw and model.supports_jit
            assert {*places([*model.variables, *adamw.variables])} == {"CPU:0"}
        else:
            model.load_weights(name)
        more = model.fit(**given).history["loss"]
        seen.append([history, more, *(x for each in rest for x in each), *model.get_weights()])
        assert len(history) == 3
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def problem(keras, name):
    layers, given = keras.layers, keras.Input((4, 6))
    up, down = layers.Dense(8, name="up_0"), layers.Dense(6, name="down_0")
    heads = functools.partial(layers.MultiHeadAttention, key_dim=2, name="heads_0")
    made = {
        "normalized": lambda: down(layers.LayerNormalization(name="between")(up(given))),
        "softmax": lambda: down(layers.Dense(8, "softmax", name="up_0")(given)),
        "summed": lambda: down(layers.Add(name="between")([up(given), layers.Dense(8)(given)])),
        "left": lambda: up(given),
        "whole": lambda: down(given),
        "twice": lambda: down(layers.Dense(8, name="up_1")(up(given))),
        "scores": lambda: heads(2)(given, given, return_attention_scores=True)[0],
        "heads": lambda: heads(1)(given, given),
        "norm": lambda: down(layers.Dense(8, name="up_0", kernel_constraint="max_norm")(given)),
        "loss": lambda: heads(2, activity_regularizer="l2")(given, given),
        "orthogonal": lambda: down(layers.Dense(
            8, name="up_0", kernel_regularizer=keras.regularizers.OrthogonalRegularizer()
        )(given)),
    }  # fmt: skip
    return keras.Model(given, made.get(name, lambda: down(up(given)))())


@pytest.mark.parametrize("name, named", [
    ("normalized", "between does not treat each number"), ("softmax", "up_0 does not treat each"),
    ("summed", "between does not treat each"), ("left", "up_0 is .* no layer behind it by rows"),
    ("whole", "down_0 is cut by rows, and no"), ("twice", "up_1 cannot be cut by columns: the"),
    ("scores", "heads_0 gives two results"), ("heads", "1 heads"),
    ("norm", "up_0.*constraint"), ("loss", "heads_0"), ("orthogonal", "up_0.*L1, L2"),
    ("clipped", "adam.*global_clipnorm"), ("factored", "Adafactor"), ("split", "fit.alone"),
])  # fmt: skip
def test_what_cannot_be_cut_is_named(keras, plan, name, named):
    model = problem(keras, name)
    there = {layer.name.partition("_")[0] for layer in model.layers}
    where = {name: way for name, way in (PAIRS | HEADS).items() if name[:-3] in there}
    optimizers = keras.optimizers
    adam = {"clipped": optimizers.Adam(clipnorm=1.0), "factored": optimizers.Adafactor()}
    model.compile(adam.get(name, "adam"), "mse")
    before = model.get_weights()
    if name == "split":
        fit.split_layers(model, plan.devices, where)
    with pytest.raises(ValueError, match=named):
        fit.split_layers(model, plan.devices, where)
    for a, b in zip(before, fit.alone(model).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where, named", [
    ({"down": "rows"}, "'down': 'rows'.*up_0, down_0"), ({"up_0": "heads"}, "'up_0': 'heads'"),
    ({"up_0": "half"}, "'half'"),
])  # fmt: skip
def test_a_name_that_says_nothing_is_named(keras, plan, where, named):
    with pytest.raises(ValueError, match=named):
        fit.split_layers(problem(keras, ""), plan.devices, where)


def test_an_optimizer_that_comes_later_is_looked_at_and_one_device_cuts_nothing(keras, plan):
    model = fit.split_layers(problem(keras, ""), plan.devices, PAIRS)
    model.compile(keras.optimizers.Lamb(), "mse")
    with pytest.raises(ValueError, match="lamb needs a weight whole"):
        model.fit(np.ones((2, 4, 6)), np.ones((2, 4, 6)), verbose=0)
    shapes = [v.shape for v in fit.alone(model).weights]
    model.compile("sgd", "mse")
    fit.split_layers(model, plan.devices[1:], PAIRS)
    assert [v.shape for v in model.weights] == shapes and {*places(model.weights)} == {"CPU:2"}
