"""A model with layers in parts on several devices: what crosses, what is held, what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from conftest import run_python
from fit_models import TOKENS, near, places
from keras_models import keras
from mgpu_helpers import fit, trace
from mgpu_helpers.fit.laying import laid_out

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
    model, batch = pairs(keras, 2)
    whole = trace.fit_step(model, tuple(batch)).peak(plan.host)
    fit.use(model, plan.devices, layers=PAIRS)
    steps = (trace.fit_step(model, tuple(batch)) for _ in range(3))  # a copy may wait
    step = next(each for each in steps if max(map(each.peak, plan.devices)) < 0.75 * whole)
    assert step.peak(plan.host) < 0.1 * whole
    kept = [*model.weights, *model.optimizer.variables]
    held = [sum(4 * int(np.prod(v.shape)) for v in kept if v.value.device.endswith(device[1:]))
            for device in plan.devices]  # fmt: skip
    pair = 2 * 3 * 4 * (8 * WIDE * (2 * WIDE + 1))  # bytes: of weights with two slots, in two
    assert pair / 2 == held[1] < held[0] < 1.05 * held[1]
    again = trace.fit_step(fit.use(model, layers=PAIRS, recompute=True), tuple(batch))
    for each in (step, again):
        products = [op.device for op in each.ops if op.type.endswith("MatMul")]
        assert len({*products}) == 2 and products.count(plan.devices[0]) == len(products) / 2 >= 12


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


@pytest.mark.parametrize("name, named, where", [(*row, None)[:3] for row in [
    ("normalized", "up_0, between, down_0 .* raise"),
    ("left", "up_0 is .* no layer behind it by rows"),
    ("whole", "down_0 is cut by rows, and no"), ("twice", "up_1 cannot be cut by columns: the"),
    ("scores", "heads_0/softmax.* is cut by columns, and no layer behind"), ("heads", "1 heads"),
    ("norm", "up_0 .*constraint"), ("loss", "heads_0/query has a reg"),
    ("orthogonal", "up_0 .*L1, L2"),
    ("clipped", "adam.*global_clipnorm"), ("factored", "Adafactor"),
    ("", "'down': 'rows'.*up_0, down_0", {"down": "rows"}), ("", "'half'", {"up_0": "half"}),
    ("", "'up_0': 'heads'", {"up_0": "heads"}),
]])  # fmt: skip
def test_what_cannot_be_cut_is_named(keras, plan, name, named, where):
    model = problem(keras, name)
    there = {layer.name.partition("_")[0] for layer in model.layers}
    where = where or {name: way for name, way in (PAIRS | HEADS).items() if name[:-3] in there}
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


def test_a_model_and_a_layer_inside_have_their_weights_whole(keras, plan, double):
    inner = problem(keras, "")
    model = keras.Sequential([keras.Input((4, 6)), inner])
    before = inner.get_weights()
    fit.use(model, plan.devices, layers=PAIRS)
    of_layers = [each for layer in inner.layers for each in layer.get_weights()]
    inner.set_weights([2 * each for each in inner.get_weights()])
    of_layers = zip(before, of_layers, fit.alone(model).get_weights(), strict=True)
    for first, of_layer, twice in of_layers:
        np.testing.assert_array_equal(of_layer, first)
        np.testing.assert_array_equal(twice, 2 * first)


INSIDE = {"up": "columns", "down": "rows"}


def block(keras, call=lambda self, x, _: self.down(self.up(x))):
    """Make a model of a layer with layers inside, and with this call."""

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.up = keras.layers.EinsumDense("btd,dnh->btnh", (None, 3, 4), name="up")
            self.down = keras.layers.EinsumDense("btnh,nhd->btd", (None, 6), None, "d", name="down")
            self.more = keras.layers.Dense(6, name="more")
            self.noise = keras.layers.Dropout(0.5, name="noise")

        def call(self, x, training=None):
            return call(self, x, training)

    given = keras.Input((4, 6))
    model = keras.Model(given, Block()(given))
    model.compile("sgd", "mse")
    return model


def ways(model):
    """Tell the layers of a model that are cut, and the axes of their kernels."""
    cut = laid_out(model).cut.ways
    return [(layer.name, way.kind, way.axis) for layer, way in cut.items()]


X = np.random.default_rng(0).normal(size=(3, 4, 6))


@pytest.mark.parametrize("layers, axis", [
    (INSIDE, 0), ({"block/up": "h", ".*down": "h"}, 1),
    ({"up/kernel": 1, "down/kernel": 0}, 0), ("auto", 0),
])  # fmt: skip
def test_an_axis_of_an_equation_is_cut_inside_of_a_layer(keras, plan, double, layers, axis):
    model = block(keras)
    model.layers[1].down.enable_lora(2)
    model.layers[1].down.lora_kernel_b.assign(np.ones((2, 6)))
    model.compile("sgd", "mse")
    wanted = model(X).numpy()
    fit.use(model, plan.devices, layers=layers)
    assert ways(model) == [("up", "columns", 1 + axis), ("down", "rows", axis)]
    assert {*places(model.weights)} == {"CPU:1", "CPU:2"}
    np.testing.assert_allclose(model(X), wanted, atol=1e-6)  # LoRA has float32


def test_pairs_and_attention_are_found_where_it_is_certain(keras, plan):
    layers, given = keras.layers, keras.Input((4, 8))
    x = layers.GroupQueryAttention(2, 4, 1, name="attention")(given, given)
    x = layers.Dense(8, name="alone")(x)
    y = layers.Dense(16, "relu", name="up")(layers.LayerNormalization()(x))
    x = layers.Dense(8, name="down")(layers.Dropout(0.1)(y) * layers.Dense(16, name="gate")(x))
    x = layers.Dense(8, name="last")(layers.Dense(4, name="narrow")(x))
    x = layers.Dense(8, kernel_constraint="max_norm")(layers.Dense(16)(x))
    x = layers.Dense(8, name="soft")(layers.Dense(16, "softmax", name="max")(x))
    model = fit.use(keras.Model(given, x), plan.devices, layers="auto")
    assert ways(model) == [
        ("query", "columns", 1), ("key", "gathered", -2), ("value", "gathered", -2),
        ("attention_output", "rows", 0), ("up", "columns", 1), ("gate", "columns", 1),
        ("down", "rows", 0),
    ]  # fmt: skip
    assert fit.layout(model).layers == "auto" and "layers='auto'" in repr(fit.layout(model))
    with pytest.raises(ValueError, match='no pairs of layers that layers="auto"'):
        fit.use(keras.Sequential([given, layers.Dense(3)]), plan.devices, layers="auto")


def test_a_layout_map_of_keras_says_what_is_cut(keras, plan):
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    where = keras.distribution.LayoutMap(mesh)
    where["block.*up.kernel"] = ("batch", "model", None)
    where["block.*down.kernel"] = ("model", None, "batch")
    where["embedding/.*"], where["norm/scale"] = ("model", None), (None,)
    with pytest.warns(UserWarning, match="'embedding/.*' names no kernel"):
        model = fit.use(block(keras), plan.devices, layers=where)
    assert ways(model) == [("up", "columns", 1), ("down", "rows", 0)]
    assert fit.layout(model).row == 2 and "'block.*up.kernel': 1" in repr(fit.layout(model))


def test_words_are_looked_up_where_their_rows_are(keras, plan, double):
    """An odd number of them, with a mask that layers behind take."""
    found = []
    for laid in (False, True):
        keras.utils.set_random_seed(0)
        words = keras.layers.Embedding(9, 3, mask_zero=True, name="words")
        mean = keras.layers.GlobalAveragePooling1D()
        model = keras.Sequential([keras.Input((5,)), words, mean])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        if laid:
            fit.use(model, plan.devices, layers={"words": "rows"})
            assert ways(model) == [("words", "rows", 0)]
        y = np.eye(3)[TOKENS[:, 0] % 3]
        seen = model.fit(TOKENS, y, batch_size=9, verbose=0, shuffle=False).history
        found.append([seen, [*model.get_weights(), model.predict(TOKENS, verbose=0)]])
    near(*found, 1e-12)


def again(self, x, _):
    """Call layers twice, and add one number to all of a place, which parts do alike."""
    y = self.up(x)
    return self.down(y + self.noise(self.down(self.up(x)))[..., :1, None])


def test_layers_inside_of_a_layer_are_called_twice(keras, plan, double):
    model = block(keras, call=again)
    wanted = model(X).numpy()
    fit.use(model, plan.devices, layers=INSIDE)
    np.testing.assert_allclose(model(X), wanted, atol=1e-12)
    before = model.layers[1].noise.seed_generator.state.numpy()[1]
    model(X, training=True)
    assert model.layers[1].noise.seed_generator.state.numpy()[1] == before + 1  # on one device


def random(self):
    if not hasattr(self, "seeds"):
        self._tracker.unlock()
        self.seeds = keras.random.SeedGenerator(0)
    return keras.random.normal([6], seed=self.seeds)


def loop(self, x, _):
    return keras.ops.fori_loop(0, 2, lambda i, y: self.down(self.up(y)), x)


def softmax(self, x, _):
    return x + self.down(keras.ops.softmax(self.up(x), 2))


@pytest.mark.parametrize("call, named", [
    (softmax, "something else"),
    (lambda self, x, _: x + self.down(self.up(x) + self.more(x)[..., :3, None]), "raise"),
    (lambda self, x, _: x + self.down(self.up(x)) + self.up(x)[..., 0, :1], "up .* no layer behin"),
    (lambda self, x, _: self.down(self.more(x)[..., None, :4] * [[1], [2], [3]]) + self.up(x)[
        :, :, 0, :1], "down is cut by rows, and no"),
    (lambda self, x, _: self.down(inputs=self.up(inputs=x)) + random(self), "draws random numbers"),
    (loop, "block calls layers in a loop"),
])  # fmt: skip
def test_what_cannot_be_cut_inside_of_a_layer_is_named(keras, plan, call, named):
    """Also by weights that are zero: parts give what the whole gives, until it is trained."""
    model = block(keras, call=call)
    if call is softmax:
        model.set_weights([0 * each for each in model.get_weights()])
    with pytest.raises(ValueError, match=named):
        fit.use(model, plan.devices, layers=INSIDE)


def test_layers_that_become_others_are_named(keras, plan):
    """When they are called in another order, are quantized, or are given LoRA later."""

    def soon(self, x, training):
        return self.down(self.up(self.noise(x) if training else x))

    model = fit.use(block(keras, call=soon), plan.devices, layers=INSIDE)
    with pytest.raises(ValueError, match="another order"):
        model.train_on_batch(X, X)
    model = fit.use(block(keras), plan.devices, layers=INSIDE)
    for layer in (model, model.layers[1].up):
        with pytest.raises(ValueError, match=f"{layer.name} has weights in parts.*before quantize"):
            layer.quantize("int8")
    with pytest.raises(ValueError, match="up has weights in parts.*before enable_lora"):
        model.layers[1].up.enable_lora(2)
    model = fit.alone(model)
    model.layers[1].up.quantize("int8")
    with pytest.raises(ValueError, match="up is quantized"):
        fit.use(model, plan.devices, layers=INSIDE)


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
    for devices in (plan.devices[1:], plan.devices):
        keras.utils.set_random_seed(0)
        model = problem(keras, "")
        model.compile(keras.optimizers.LossScaleOptimizer(Signs(0.1)), "mse")
        shapes = [v.shape for v in model.weights]
        fit.use(model, devices, layers=PAIRS).fit(x, x, verbose=0)
        whole = [v.shape for v in model.weights] == shapes and {*places(model.weights)} == {"CPU:2"}
        assert whole == (len(devices) == 1)  # one device cuts nothing
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)


def test_an_optimizer_that_comes_later_is_looked_at(keras, plan):
    model = fit.use(problem(keras, ""), plan.devices, layers=PAIRS)
    model.compile(keras.optimizers.Lamb(), "mse")
    with pytest.raises(ValueError, match="lamb needs a weight whole"):
        model.fit(np.ones((2, 4, 6)), np.ones((2, 4, 6)), verbose=0)
