"""A model whose calls are shared out: where it works, what crosses, and whom it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import fit_models
import keras_models
from conftest import later
from mgpu_helpers import fit, trace
from mgpu_helpers.graph.step import training_step


def test_a_call_and_a_tape_outside_of_fit_give_the_same(keras, tf, plan, double):
    model, slopes = fit_models.dense(), []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(fit_models.X[:7], training=True) ** 2)
        slopes.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, model.weights)])
        if "call" not in vars(model):
            fit.use(model, plan.devices)
    for a, b in zip(*slopes, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)

    traced = tf.function(lambda x: model(x, training=True))
    with tf.GradientTape(), pytest.raises(RuntimeError, match="GradientTape"):
        traced(tf.constant(fit_models.X[:8]))


def test_each_device_works_and_little_crosses(keras, tf, plan):
    """A model on the first device: weights to the others, and their gradients back."""
    with tf.device(plan.devices[0]):
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(500), keras.layers.Dense(3)]
        )
        model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")
    size = sum(4 * np.prod(v.shape) for v in model.trainable_variables)
    fit.use(model, plan.devices)
    step = trace.fit_step(model, (np.ones((4, 6), "f"), np.ones((4, 3), "f")))
    for i, device in enumerate(plan.devices):
        products = [op for op in step.ops if "MatMul" in op.type and f"tower_{i}/" in op.name]
        assert len(products) == 5 and {op.device for op in products} == {device}
    assert sum(step.bytes_between().values()) < 2.4 * size


def test_a_model_that_is_not_shared_out_is_trained_as_by_keras_alone(keras, plan):
    """Keras's optimizer is mended for weights of parallel models; others have its one barrier."""
    other, shared = (fit_models.dense() for _ in range(2))
    fit.use(shared, plan.devices)
    barriers = []
    for make in (lambda: other, lambda: shared, lambda: fit.alone(shared)):
        ops = training_step(make(), 8).concrete.graph.get_operations()
        barriers.append([op.name for op in ops if op.type == "IdentityN" and "adam" in op.name])
    assert [len(each) for each in barriers] == [1, 0, 1]


def test_weights_that_build_leaves_to_the_first_call_are_made(keras, plan):

    class Two(keras.Model):
        def __init__(self, *built):
            super().__init__()
            self.parts, self.first = [keras.layers.Dense(4), keras.layers.Dense(4)], built

        def build(self, shape):
            for i in self.first:
                self.parts[i].build(shape)

        def call(self, x):
            return self.parts[1](self.parts[0](x))

    x, trained = np.ones((6, 4)), []
    for built in ([], [0], [0, 1]):
        keras.utils.set_random_seed(0)
        model = Two(*built)
        model.build((None, 4))
        model.compile("sgd", "mse")
        fit.use(model, plan.devices).fit(x, x, verbose=0)
        trained.append(model.get_weights())
    assert [len(weights) for weights in trained] == [4, 4, 4]
    model = Two()
    model.build([(None, 4), (None, 4)])  # which its call does not take
    with pytest.raises(ValueError, match="call it once on a batch"):
        fit.use(model, plan.devices)


# One batch by hand: `train_on_batch` with what a step of `fit` knows of


def values(model):
    return [np.array(v.numpy()) for v in model.variables]


def give(model, given):
    for variable, value in zip(model.variables, given, strict=True):
        variable.assign(value)


def near(got, wanted, much):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=much, atol=much)


def on_batches(model, batches):
    """Train on batches; give the losses, for which Keras before 3.15 has to be reset."""
    seen = []
    for batch in batches:
        model.reset_metrics()
        seen.append(float(np.ravel(model.train_on_batch(*batch))[0]))
    return seen


def both(model, compiled, batches, devices, much, **options):
    """Train a model alone and again on devices: the losses and all variables are the same."""
    start, seen = values(model), []
    for lay_out in (lambda: None, lambda: fit.use(model, devices, **options)):
        give(model, start)
        model.compile(**compiled(), jit_compile=False)
        lay_out()
        seen.append((on_batches(model, batches), values(model)))
    for got, wanted in zip(*reversed(seen), strict=True):
        near(got, wanted, much)
    assert len({*seen[0][0]}) == len(batches)
    return model


def by_sgd(keras, loss=None):
    return lambda: {"optimizer": keras.optimizers.SGD(0.1), "loss": loss or fit_models.cross()}


def batch(size, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 6)), random.integers(0, 3, size)


def padded(size):
    random = np.random.default_rng(size)
    tokens = random.integers(1, 9, (size, 7))
    tokens[np.arange(7) >= random.integers(1, 8, size)[:, None]] = 0
    return tokens, random.integers(0, 3, (size, 7))


def three(plan):
    return [*plan.devices, plan.host]


def regularized(keras):
    """Make a model whose layers add to the loss: by their weights and by what they give."""
    first = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    return keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(3)])


def normalized_inside(keras):
    """Nest a normalized model, share a layer that adds to the loss, and freeze a normalization."""
    layers = keras.layers
    inner = keras.Sequential([keras.Input((5,)), layers.Dense(5), layers.BatchNormalization()])
    shared = layers.Dense(5, activation="tanh", activity_regularizer="l2")
    frozen = layers.BatchNormalization(trainable=False)
    first, second = keras.Input((6,), name="first"), keras.Input((6,), name="second")
    x = layers.Add()([inner(shared(first)), 0.5 * frozen(shared(second))])
    return keras.Model({"first": first, "second": second}, layers.Dense(3)(x))


def masked(keras):
    """Make a model whose loss and normalization leave out what is padded."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input((7,), dtype="int32"), layers.Embedding(9, 4, mask_zero=True),
        layers.BatchNormalization(), layers.Dense(3),
    ])  # fmt: skip


@pytest.mark.parametrize("make, given, much", [
    later(regularized, [batch(8), (*batch(7), np.arange(7.0)), batch(2), batch(1)], 1e-12),
    (normalized_inside, [
        ({"first": batch(n)[0], "second": batch(n, 1)[0] + 2}, batch(n)[1]) for n in (7, 2)
    ], 1e-12),
    # Keras adds 1e-7 before it takes a mean.
    later(masked, [padded(8), padded(5), padded(2)], 1e-6),
])  # fmt: skip
def test_what_layers_add_normalize_and_mask_counts_once(keras, plan, double, make, given, much):
    """Weights of examples are given, and batches smaller than the number of devices."""
    both(make(keras), by_sgd(keras), given, three(plan), much)


def outputs(keras, kind):
    """Make a model with two outputs in a list or a dict, one of them masked, or with one."""
    layers = keras.layers
    if kind == "masked":
        given = keras.Input((7,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=True, activity_regularizer="l2")(given)
        mean = layers.GlobalAveragePooling1D()(x)  # of what is not masked
        return keras.Model(given, [layers.Dense(3, name="a")(x), layers.Dense(1, name="b")(mean)])
    given = keras.Input((6,))
    x = layers.Dense(5, "tanh", kernel_regularizer="l2")(given)
    a, b = layers.Dense(3, name="a")(x), layers.Dense(1, name="b")(x)
    return keras.Model(given, [a, b] if kind == "list" else {"one": a, "other": b})


CLASSES, NUMBERS = batch(7)[1], np.random.default_rng(7).normal(size=(7, 1))
HEAVY = np.linspace(0.1, 4.0, 7)  # weights of examples, and of the parts of some
TOKENS, TAGS = padded(7)


@pytest.mark.parametrize("kind, loss, factors, labels, weights", [
    later("list", ["cross", "mse"], [0.5, 3.0], [CLASSES, NUMBERS], (HEAVY,)),
    ("list", [None, "plain"], None, [NUMBERS[:, 0]] * 2, ()),  # numbers for a column of them
    ("dict", {"one": "weighted", "other": "mae"}, {"one": 2.0, "other": 0.5},
     {"one": CLASSES, "other": NUMBERS}, ({"one": HEAVY, "other": HEAVY[::-1].copy()},)),
    later("dict", {"one": "sum"}, None, {"one": CLASSES}, ()),  # no labels for one without a loss
    later("masked", ["ignoring", "mse"], None, [TAGS, NUMBERS], ()),
    later("masked", ["weighted", "mse"], [1.0, 0.2], [TAGS, NUMBERS],
      ([np.outer(HEAVY, np.arange(7.0)), HEAVY],)),
])  # fmt: skip
def test_losses_of_several_outputs_are_those_of_compile(
    keras, plan, double, kind, loss, factors, labels, weights
):
    """To rounding, with shards of 3, 2 and 2 examples and what is masked in each."""

    def plain(labels, outputs):
        return keras.ops.mean(keras.ops.square(labels - outputs), -1)

    cross = fit_models.cross
    known = {
        "plain": plain, "cross": cross(), "ignoring": cross(ignore_class=1),
        "sum": cross(reduction="sum"), "weighted": cross(reduction="mean_with_sample_weight"),
    }  # fmt: skip
    loss = keras.tree.map_structure(lambda each: known.get(each, each), loss)
    x = TOKENS if kind == "masked" else batch(7)[0]
    both(outputs(keras, kind), lambda: {
        "optimizer": keras.optimizers.Adam(0.1), "loss": loss, "loss_weights": factors
    }, [(x, labels, *weights)] * 2, three(plan), 1e-12)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name, size, width", [("residual", 5, 32), ("mobilenet", 4, 96)])
def test_networks_of_convolutions_are_those_of_one_device(keras, plan, double, name, size, width):
    x, y = np.random.default_rng(0).normal(size=(size, width, width, 3)), np.arange(size)
    model = both(getattr(keras_models, name)(), by_sgd(keras), [(x, y)] * 2, plan.devices, 1e-7)
    if name == "residual":
        convolutions = [op for op in trace.fit_step(model, (x, y)).ops if "Conv2D" in op.type]
        assert {op.device for op in convolutions} == {*plan.devices}
        for i, device in enumerate(plan.devices):  # forward and back
            own = [op for op in convolutions if op.device == device]
            assert all(f"tower_{i}/" in op.name for op in own)
            assert sum("Backprop" in op.type for op in own) >= 2 * 21 - 1  # not into the images
            assert sum("Backprop" not in op.type for op in own) >= 21


def test_every_operation_is_placed(keras, tf, plan):
    """Only numbers, of an example at most, follow a device around the call."""
    first, second = plan.devices
    with tf.device(second):
        model = keras.Sequential([
            keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization(),
            keras.layers.Dense(5, "swish", kernel_regularizer="l2"), keras.layers.Dense(3),
        ])  # fmt: skip
    model.compile(keras.optimizers.Adam(clipnorm=1.0), fit_models.cross())
    fit.use(model, plan.devices)
    seen = []
    for around in (plan.host, first):
        with tf.device(around):
            step = trace.fit_step(model, batch(5))
        seen.append({op.name: op.device for op in step.ops if op.bytes > 5 * 8})
    assert seen[0] == seen[1] and len(seen[0]) > 50
    on = {device: [n for n, d in seen[0].items() if d == device] for device in plan.devices}
    assert not [name for name in on[first] if "tower_1" in name or "adam" in name]
    assert not [n for n in on[second] if "tower_0" in n and "ReadVariable" not in n]
    assert any("adam" in name for name in on[second])  # where the weights are


def code(keras):
    """Make a model that is code, with a normalization."""

    class Code(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Dense(4), keras.layers.BatchNormalization(),
                          keras.layers.Dense(3)]  # fmt: skip

        def call(self, x, training=None):
            for part in self.parts:
                x = part(x, training=training) if "norm" in part.name else part(x)
            return x

    model = Code()
    model(batch(2)[0])
    return model


def layers_of(keras):
    """Make the same of layers."""
    middle = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((6,)), *middle, keras.layers.Dense(3)])


@pytest.mark.parametrize("make", [layers_of, code])
def test_averaged_normalization_is_that_of_each_shard(keras, tf, plan, double, make):
    (x, y), model, loss = batch(5), make(keras), fit_models.cross()
    start, wanted, total = values(model), 0, 0
    for part, share in ((slice(0, 3), 0.6), (slice(3, 5), 0.4)):
        give(model, start)
        with tf.GradientTape() as tape:
            alone = loss(y[part], model(x[part], training=True))
        slopes = dict(zip(
            (v.path for v in model.trainable_variables),
            tape.gradient(alone, model.trainable_variables), strict=True,
        ))  # fmt: skip
        after = [v.numpy() - 0.1 * np.asarray(slopes.get(v.path, 0.0)) for v in model.variables]
        wanted = [share * a + b for a, b in zip(after, wanted or [0] * len(after), strict=True)]
        total += share * float(alone)
    give(model, start)
    model.compile(**by_sgd(keras)())
    fit.use(model, plan.devices, synchronized=False)
    assert on_batches(model, [(x, y)])[0] == pytest.approx(total, rel=1e-12)
    near(values(model), wanted, 1e-12)


def test_one_device_drops_what_keras_drops_and_each_step_other_units(keras, plan):
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(1, use_bias=False)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(keras.optimizers.SGD(1.0), lambda y, given: given, jit_compile=False)
    start, moves = values(model), []
    for devices in (None, plan.devices[:1], plan.devices):
        fit.alone(model)
        give(model, start)
        if devices:
            fit.use(model, devices)
        for _ in range(2):
            before = model.get_weights()[0]
            model.train_on_batch(np.ones((2, 64), "f"), np.ones((2, 1)))
            moves.append(np.round(before - model.get_weights()[0]).ravel())
    alone, of_one, of_two = moves[:2], moves[2:4], moves[4:]
    np.testing.assert_array_equal(of_one, alone)
    assert [{*each} for each in of_two] == [{0, 1, 2}] * 2  # dropped in both, in one, in none
    assert np.any(of_two[0] != of_two[1])


def test_a_graph_is_made_for_a_shape_and_one_for_all_others(keras, tf, plan):
    sizes = []

    def loss(y, outputs):
        sizes.append(y.shape[0])
        return tf.reduce_mean(tf.square(outputs - y), -1)

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("adam", loss, jit_compile=False)
    fit.use(model, plan.devices)
    for n in (3, 3, 2, 3, 1, 8):
        assert np.isfinite(model.train_on_batch(batch(n)[0], np.ones((n, 1))))
    assert [*dict.fromkeys(sizes)] == [3, None]


def test_a_model_of_halves_has_its_loss_scaled(keras, plan):
    """A gradient of 1e-7 is next to nothing in float16, and times 2 ** 15 it is not."""

    def small(labels, outputs):
        return 1e-7 * keras.ops.mean(outputs, -1)

    first = keras.layers.Dense(8, "relu", dtype="mixed_float16")
    model = keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(1, dtype="float32")])
    model.dtype_policy = first.dtype_policy
    start, given, ended = values(model), (batch(6)[0].astype("f"), np.zeros((6, 1), "f")), []
    for lay_out in (lambda: None, lambda: fit.use(model, plan.devices)):
        give(model, start)
        model.compile(keras.optimizers.SGD(1e5), small, jit_compile=False)
        lay_out()
        model.train_on_batch(*given)
        ended.append(values(model))
    near(*reversed(ended), 1e-4)
    assert np.abs(ended[0][0] - start[0]).max() > 1e-4


@pytest.mark.parametrize("kind", [
    "dense", *(pytest.param(k, marks=pytest.mark.thorough) for k in ("convolution", "embedding")),
])  # fmt: skip
def test_halves_skip_the_steps_that_one_device_skips(keras, plan, kind):
    """A scale that is too large halves until the whole batch's gradient, not each row's, fits."""
    layers, seen, random = keras.layers, [], np.random.default_rng(0)
    x, y = 30 * random.normal(size=(7, 8, 8, 3)), random.integers(0, 3, 7)
    keras.utils.set_random_seed(0)
    with fit_models.policy("mixed_float16"):
        if kind == "embedding":
            x = random.integers(0, 9, (7, 5))
            first = [layers.Embedding(9, 8, embeddings_initializer="normal"), layers.Dense(32)]
        elif kind == "dense":
            first = [layers.Flatten(), layers.Dense(32, kernel_regularizer="l2")]
        else:
            first = [layers.Conv2D(8, 3)]
        last = [layers.ReLU(), layers.Flatten(), layers.Dense(3, dtype="float32")]
        model = keras.Sequential([keras.Input(x.shape[1:]), *first, *last])
    start = values(model)
    for lay_out in (lambda: None, lambda: fit.use(model, plan.devices)):
        give(model, start)
        own = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-3), initial_scale=1.35 * 2**20, dynamic_growth_steps=3
        )
        model.compile(own, fit_models.cross(), jit_compile=False)
        lay_out()
        seen.append([])
        for _ in range(12):
            model.train_on_batch(x, y)
            seen[-1].append((float(own.dynamic_scale.numpy()), int(own.iterations.numpy())))
    assert seen[0] == seen[1] and 0 < seen[0][-1][1] < 11


@pytest.mark.parametrize("scaled, crossed", [later(False, 3), (True, 3.7)])
def test_what_lies_on_two_devices_is_updated_there(keras, tf, plan, double, scaled, crossed):
    """Weights go to the other device and gradients back; those of the embedding are few rows.

    A branch, as where the loss is scaled, gets gradients anew.
    """

    def compiled():
        made = keras.optimizers.Nadam(
            0.1, global_clipnorm=0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
        )
        made = keras.optimizers.LossScaleOptimizer(made) if scaled else made
        return {"optimizer": made, "loss": fit_models.cross()}

    layers = [keras.layers.Embedding(50, 40), keras.layers.Dense(50, kernel_constraint="max_norm")]
    for layer, device, width in zip(layers, plan.devices, (None, 40), strict=True):
        with tf.device(device):
            layer.build((None, width))
    model = keras.Sequential([keras.Input(()), *layers])
    batches = [(np.arange(24) * k % 50, np.arange(24)) for k in (1, 3)]
    both(model, compiled, batches, plan.devices, 1e-12)
    step = trace.fit_step(model, batches[0])
    size = sum(8 * np.prod(v.shape) for v in model.trainable_variables)
    assert sum(step.bytes_between().values()) < crossed * size
