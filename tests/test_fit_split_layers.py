"""A model with layers in parts on several devices: what crosses, what is held, what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from conftest import run_python
from fit_models import places
from mgpu_helpers import fit, trace

PAIRS, HEADS = {"up_.*": "columns", "down_.*": "rows"}, {"heads_.*": "heads"}
ROWS, WIDE = 64, 32  # of a batch, and of what goes into a pair


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
        model, batch = pairs(keras, 1, heads)
        cut = fit.use(model, devices, layers=HEADS if heads else PAIRS)
        step = trace.fit_step(cut, tuple(batch))
        between = {way: n for way, n in step.bytes_between().items() if plan.host not in way}
        wanted = 2 * ROWS * WIDE * 4  # there and back
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
    step = trace.fit_step(fit.use(model, plan.devices, layers=PAIRS), tuple(batch))
    kept = [*model.weights, *model.optimizer.variables]
    held = [sum(4 * int(np.prod(v.shape)) for v in kept if v.value.device.endswith(device[1:]))
            for device in plan.devices]  # fmt: skip
    pair = 4 * 3 * 4 * (8 * WIDE * (2 * WIDE + 1))  # bytes: of weights with two slots, in four
    assert pair / 2 == held[1] < held[0] < 1.05 * held[1]
    assert max(map(step.peak, plan.devices)) < 0.75 * whole
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
    fit.use(model, plan.devices, layers=PAIRS)
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
    fit.use(model, plan.devices, layers=HEADS)
    x = np.ones((1, 30, 1))
    assert np.abs(model(x)).max() < 1e-6 < 0.01 < np.abs(model(x, training=True)).mean()


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
    ("clipped", "adam.*global_clipnorm"), ("factored", "Adafactor"),
])  # fmt: skip
def test_what_cannot_be_cut_is_named(keras, plan, name, named):
    model = problem(keras, name)
    there = {layer.name.partition("_")[0] for layer in model.layers}
    where = {name: way for name, way in (PAIRS | HEADS).items() if name[:-3] in there}
    optimizers = keras.optimizers
    adam = {"clipped": optimizers.Adam(clipnorm=1.0), "factored": optimizers.Adafactor()}
    model.compile(adam.get(name, "adam"), "mse")
    before = model.get_weights()
    with pytest.raises(ValueError, match=named):
        fit.use(model, plan.devices, layers=where)
    for a, b in zip(before, fit.alone(model).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_refused_half_way_leaves_all_as_it_was(keras, tf, plan, double, tmp_path):
    """An optimizer that does not take parts, and one whose slots do not fit any more."""

    class Square(keras.optimizers.Adam):
        def build(self, variables):
            if any(v.shape[-1] < 6 for v in variables):
                raise RuntimeError("parts")
            super().build(variables)

    for optimizer in (Square(), keras.optimizers.Adam()):
        model = problem(keras, "")
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        optimizer.apply([tf.ones_like(v.value) for v in model.trainable_variables])
        weights, slots = model.get_weights(), [v.numpy() for v in optimizer.variables]
        if isinstance(optimizer, Square):
            names = vars(model).keys()
            with pytest.raises(RuntimeError, match="parts"):
                fit.use(model, plan.devices, layers=PAIRS)
            assert vars(model).keys() == names and {*places(model.weights)} == {"CPU:0"}
        else:
            fit.use(model, plan.devices, layers=PAIRS)
            keras.config.set_floatx("float32")  # of which slots would be made, and do not fit
            with pytest.raises(tf.errors.InvalidArgumentError):
                model.get_weights()
            keras.config.set_floatx("float64")
            assert {*places(model.weights)} == {"CPU:1", "CPU:2"}
            with pytest.raises(ValueError, match=model.name):  # of parts there is no file
                keras.saving.save_model(model, tmp_path / "model.keras")
            fit.alone(model)
        now = [*model.get_weights(), *(v.numpy() for v in optimizer.variables)]
        for a, b in zip([*weights, *slots], now, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where, named", [
    ({"down": "rows"}, "'down': 'rows'.*up_0, down_0"), ({"up_0": "heads"}, "'up_0': 'heads'"),
    ({"up_0": "half"}, "'half'"),
])  # fmt: skip
def test_a_name_that_says_nothing_is_named(keras, plan, where, named):
    with pytest.raises(ValueError, match=named):
        fit.use(problem(keras, ""), plan.devices, layers=where)


def test_an_optimizer_of_ones_own_is_tried_out(keras, tf, plan):
    """By what it does: one that looks at norms is named, one that looks at signs is taken."""

    class Norms(keras.optimizers.SGD):
        def update_step(self, slope, weight, rate):
            self.assign_sub(weight, rate * slope * tf.norm(weight) / tf.norm(slope))

    class Signs(keras.optimizers.SGD):
        def update_step(self, slope, weight, rate):
            self.assign_sub(weight, rate * tf.sign(slope))

    x = np.ones((2, 4, 6))
    with pytest.raises(ValueError, match="norms needs a weight whole"):
        model = problem(keras, "")
        model.compile(Norms(0.1), "mse")
        fit.use(model, plan.devices, layers=PAIRS)
    weights = []
    for devices in (plan.devices[:1], plan.devices):
        keras.utils.set_random_seed(0)
        model = problem(keras, "")
        model.compile(keras.optimizers.LossScaleOptimizer(Signs(0.1)), "mse")
        fit.use(model, devices, layers=PAIRS).fit(x, x, verbose=0)
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)


def test_an_optimizer_that_comes_later_is_looked_at_and_one_device_cuts_nothing(keras, plan):
    model = fit.use(problem(keras, ""), plan.devices, layers=PAIRS)
    model.compile(keras.optimizers.Lamb(), "mse")
    with pytest.raises(ValueError, match="lamb needs a weight whole"):
        model.fit(np.ones((2, 4, 6)), np.ones((2, 4, 6)), verbose=0)
    shapes = [v.shape for v in fit.alone(model).weights]
    model.compile("sgd", "mse")
    fit.use(model, plan.devices[1:], layers=PAIRS)
    assert [v.shape for v in model.weights] == shapes and {*places(model.weights)} == {"CPU:2"}
