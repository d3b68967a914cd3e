"""A step in towers against Keras' own step on the whole batch, and against its parts by hand."""

from __future__ import annotations

import numpy as np
import pytest

import keras_models
from mgpu_helpers import towers, trace


def values(model):
    return [np.array(v.numpy()) for v in model.variables]


def near(got, wanted, much=2e-5):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=much, atol=much)


def give(model, given):
    for variable, value in zip(model.variables, given, strict=True):
        variable.assign(value)


def on_batch(model, *batch):
    """Train alone, and give this loss: before Keras 3.15, the mean since the last reset comes."""
    model.reset_metrics()
    return float(np.ravel(model.train_on_batch(*batch))[0])


def both(model, optimizer, loss, batches, devices, much=2e-5, **kwargs):
    """Train a model by Keras on whole batches, and again in towers: losses and variables agree."""
    start = values(model)
    model.compile(optimizer(), loss, run_eagerly=True)  # no graph, no compiler
    losses, ended = [on_batch(model, *batch) for batch in batches], values(model)
    give(model, start)
    step = towers.train_step(model, optimizer(), loss, devices, **kwargs)
    near([float(step(*batch)) for batch in batches], losses, much)
    near(values(model), ended, much)
    return losses, ended, step


def without_dropout(model):
    for layer in model._flatten_layers():
        if hasattr(layer, "rate"):
            layer.rate = 0.0
    return model


def sequential(keras, *layers, name=None):
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)], name=name)


def batch(size, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 6)).astype("float32"), random.integers(0, 3, size)


def cross_entropy(keras, **kwargs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


# Equal to one device


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_losses_and_weights_are_those_of_one_device(keras, plan, name):
    """With a last batch that does not divide."""
    _, x, y = keras_models.built(name, 8)
    batches = [(x, y), (x[::-1], y[::-1]), (x[:5], y[:5])]

    def optimizer():
        return keras.optimizers.Adam(0.01, epsilon=1e-2, clipnorm=0.5)

    model = without_dropout(getattr(keras_models, name)())
    losses, ended, _ = both(model, optimizer, cross_entropy(keras), batches, plan.devices)
    assert len(set(losses)) == 3 and np.ptp(ended[0]) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name, size, width, steps", [
    ("residual", 5, 32, 2), ("mobilenet", 4, 96, 1),
])  # fmt: skip
def test_synchronized_networks_are_those_of_one_device(
    keras, plan, double, name, size, width, steps
):
    x, y = np.random.default_rng(0).normal(size=(size, width, width, 3)), np.arange(size)
    *_, step = both(
        getattr(keras_models, name)(), lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        cross_entropy(keras), [(x, y)] * steps, plan.devices, 1e-7, batch_norm="sync",
    )  # fmt: skip
    if name == "residual":
        _check_places(plan, trace.function_step(step, x, y)[1])


def _check_places(plan, traced):
    """Check that each tower's convolutions, forward and back, ran on its device, and no other."""
    convolutions = [op for op in traced.ops if "Conv2D" in op.type]
    assert {op.device for op in convolutions} == set(plan.devices)
    for i, device in enumerate(plan.devices):
        own = [op for op in convolutions if op.device == device]
        assert all(f"tower_{i}/" in op.name for op in own)
        assert sum("Backprop" in op.type for op in own) >= 2 * 21 - 1  # not into the images
        assert sum("Backprop" not in op.type for op in own) >= 21


@pytest.mark.parametrize("mode", [pytest.param("average", marks=pytest.mark.thorough), "sync"])
def test_every_operation_is_placed(keras, tf, plan, mode):
    """What nobody places follows a device around the call, as it goes to the first GPU of many."""
    first, second = plan.devices
    with tf.device(second):
        model = sequential(
            keras, keras.layers.Dropout(0.5), keras.layers.BatchNormalization(),
            keras.layers.Dense(5, "swish", kernel_regularizer="l2"),
        )  # fmt: skip
    optimizer = keras.optimizers.Adam(clipnorm=1.0)
    step = towers.train_step(model, optimizer, cross_entropy(keras), plan.devices, mode)
    seen = []
    for around in (plan.host, first):
        with tf.device(around):
            _, traced = trace.function_step(step, *batch(5))
        seen.append({op.name: op.device for op in traced.ops if "outside" not in op.name})
    assert seen[0] == seen[1]
    on = {device: [n for n, d in seen[0].items() if d == device] for device in plan.devices}
    assert not [name for name in on[first] if "tower_1" in name or optimizer.name in name]
    assert not [n for n in on[second] if "tower_0" in n and "ReadVariable" not in n]
    assert any(name.startswith(optimizer.name) for name in on[second])  # where the weights are


def regularized(keras):
    """Make a model whose layers add to the loss: by their weights and by what they give."""
    return sequential(
        keras, keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    )


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


def padded(size):
    random = np.random.default_rng(size)
    tokens = random.integers(1, 9, (size, 7))
    tokens[np.arange(7) >= random.integers(1, 8, size)[:, None]] = 0
    return tokens, random.integers(0, 3, (size, 7))


@pytest.mark.parametrize("make, given", [
    (regularized, [batch(8), (*batch(7), np.arange(7.0, dtype="float32"))]),  # and weights
    (normalized_inside, [({"first": batch(7)[0], "second": batch(7, 1)[0] + 2}, batch(7)[1])] * 2),
    (masked, [padded(8), padded(5)]),
])  # fmt: skip
def test_what_layers_add_normalize_and_mask_counts_once(keras, plan, make, given):
    devices = [plan.devices[0], "cpu:2", plan.devices[0]]  # one of them twice
    both(
        make(keras), lambda: keras.optimizers.SGD(0.1), cross_entropy(keras), given, devices,
        batch_norm="sync",
    )  # fmt: skip


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
    made = {"list": [a, b], "dict": {"one": a, "other": b}, "single": [a]}
    return keras.Model(given, made[kind])


CLASSES, NUMBERS = batch(7)[1], np.random.default_rng(7).normal(size=(7, 1))
HEAVY = np.linspace(0.1, 4.0, 7)  # weights of examples, and of the parts of some
TOKENS, TAGS = padded(7)


@pytest.mark.parametrize("kind, loss, factors, labels, weights", [
    ("list", ["cross", "mse"], [0.5, 3.0], [CLASSES, NUMBERS], (HEAVY,)),
    ("list", [None, "plain"], None, [NUMBERS[:, 0]], ()),  # numbers for a column of them
    ("dict", {"one": "weighted", "other": "mae"}, {"one": 2.0, "other": 0.5},
     {"one": CLASSES, "other": NUMBERS}, ({"one": HEAVY, "other": HEAVY[::-1].copy()},)),
    ("dict", {"one": "sum"}, None, {"one": CLASSES}, ()),  # no labels for one without a loss
    ("masked", ["ignoring", "mse"], None, [TAGS, NUMBERS], ()),
    ("masked", ["weighted", "mse"], [1.0, 0.2], [TAGS, NUMBERS],
     ([np.outer(HEAVY, np.arange(7.0)), HEAVY],)),
])  # fmt: skip
def test_losses_of_several_outputs_are_those_of_compile(
    keras, plan, double, kind, loss, factors, labels, weights
):
    """To rounding, with shards of 3, 2 and 2 examples and what is masked in each."""

    def plain(labels, outputs):
        return keras.ops.mean(keras.ops.square(labels - outputs), -1)

    known = {
        "plain": plain, "cross": cross_entropy(keras),
        "ignoring": cross_entropy(keras, ignore_class=1),
        "sum": cross_entropy(keras, reduction="sum"),
        "weighted": cross_entropy(keras, reduction="mean_with_sample_weight"),
    }  # fmt: skip
    loss = keras.tree.map_structure(lambda each: known.get(each, each), loss)
    model, x = outputs(keras, kind), TOKENS if kind == "masked" else batch(7)[0]
    start, devices = values(model), [*plan.devices, "cpu:2"]
    model.compile(keras.optimizers.Adam(0.1), loss, loss_weights=factors, run_eagerly=True)
    step = towers.train_step(model, keras.optimizers.Adam(0.1), None, devices)
    alone = [on_batch(model, x, labels, *weights) for _ in range(2)]
    wanted = values(model)
    give(model, start)
    near([float(step(x, labels, *weights)) for _ in alone], alone, 1e-14)
    near(values(model), wanted, 1e-13)


def test_the_optimizer_is_within_reach_and_none_takes_that_of_compile(keras, plan):
    model = sequential(keras)
    step = towers.train_step(model, "adam", "mse", plan.devices)
    step(batch(4)[0], np.ones((4, 3)))
    assert step.optimizer.iterations.numpy() == 1 and type(step.optimizer).__name__ == "Adam"
    model.compile("sgd", "mse")
    assert towers.train_step(model, None, None, plan.devices).optimizer is model.optimizer


@pytest.mark.parametrize("labels, loss, factors, named", [
    (CLASSES, "mse", None, "1 for 2 outputs"),
    ([CLASSES, NUMBERS], {"a": "mse"}, None, "loss has .*'a'.* 2 outputs .*'b'"),
    ([CLASSES, NUMBERS], "mse", {"a": 1.0, "c": 1.0}, "loss_weights has .*'c'"),
    ({"a": CLASSES}, "mse", None, "labels has .*'a'.*'b'"),
])  # fmt: skip
def test_what_does_not_fit_the_outputs_is_named(keras, plan, labels, loss, factors, named):
    model = outputs(keras, "list")
    step = towers.train_step(model, "sgd", loss, plan.devices, loss_weights=factors)
    with pytest.raises(ValueError, match=named):
        step(batch(7)[0], labels)


def test_averaged_normalization_is_that_of_each_shard(keras, tf, plan):
    (x, y), loss = batch(5), cross_entropy(keras)
    model = sequential(keras, keras.layers.Dense(4), keras.layers.BatchNormalization())
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
    step = towers.train_step(model, keras.optimizers.SGD(0.1), loss, plan.devices, "average")
    assert float(step(x, y)) == pytest.approx(total, rel=1e-5)
    near(values(model), wanted)


def test_each_tower_drops_other_units_and_one_tower_keras_own(keras, plan):
    model = sequential(keras, keras.layers.Dropout(0.5), keras.layers.Dense(5))
    sgd, one = keras.optimizers.SGD, plan.devices[:1]
    both(model, lambda: sgd(0.1), cross_entropy(keras), [batch(8)] * 2, one)
    first = [keras.Input((64,)), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*first, keras.layers.Dense(1, use_bias=False)])
    step = towers.train_step(model, sgd(1.0), lambda y, given: given, plan.devices)
    seen = [model.get_weights()[0]]
    for _ in range(2):
        step(np.ones((2, 64)), np.ones((2, 1)))
        seen.append(model.get_weights()[0])
    moves = [set(np.round(a - b).ravel()) for a, b in zip(seen, seen[1:], strict=False)]
    assert moves == [{0, 1, 2}] * 2  # dropped in both, in one of them, in none
    assert np.any(seen[0] - seen[1] != seen[1] - seen[2])
    (seed,) = model.non_trainable_variables
    assert seed.numpy()[1] == 2  # one step, one draw


def test_each_shape_is_traced_once(keras, tf, plan):
    calls = []

    def loss(y, outputs):
        calls.append(int(y.shape[0]))
        return tf.reduce_mean(tf.square(outputs - y))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    step = towers.train_step(model, "adam", loss, plan.devices)
    x = np.random.default_rng(0).random((8, 2), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(3)
    losses = [float(step(*part)) for part in [*data, (x[:3], x[:3, :1])]]
    assert calls == [2, 1, 1, 1] and len(set(losses)) == 4


# What is refused


def code(keras):
    """Make a model that is code, with a normalization."""

    class Code(keras.Model):
        def __init__(self):
            super().__init__(name="code")
            self.normal, self.dense = keras.layers.BatchNormalization(), keras.layers.Dense(3)

        def call(self, x):
            return self.dense(self.normal(x))

    return Code()


def test_a_model_that_is_code_trains_but_cannot_be_synchronized(keras, plan):
    model, loss = code(keras), cross_entropy(keras)
    with pytest.raises(ValueError, match="code.*weights"):
        towers.train_step(model, "sgd", loss, plan.devices, "average")
    x, y = batch(6)
    model(x)
    with pytest.raises(ValueError, match="sync.*batch_normalization.*average"):
        towers.train_step(model, "sgd", loss, plan.devices, "sync")
    step = towers.train_step(model, "sgd", loss, plan.devices, "average")
    assert float(step(x, y)) > float(step(x, y)) > 0
    step = towers.train_step(model, "sgd", {"mine": loss}, plan.devices, "average")
    with pytest.raises(ValueError, match="'mine'"):  # its outputs have no names
        step(x, y)


@pytest.mark.parametrize("change, error, named", [
    ({"model": "resnet"}, TypeError, "'resnet'"), ({"optimizer": "adamm"}, ValueError, "adamm"),
    ({"loss": [None]}, ValueError, "no loss"), ({"loss": None}, ValueError, "not compiled"),
    ({"optimizer": None}, ValueError, "not compiled"),
    ({"loss": {"reduction": "none"}}, ValueError, "'none'"),
    ({"batch_norm": None}, ValueError, "(?s)None.*normal.*'average'.*'sync'"),
    ({"batch_norm": "both"}, ValueError, "'both'"), ({"devices": ["/gpu:9"]}, ValueError, "gpu:9"),
])  # fmt: skip
def test_a_wrong_argument_is_named(keras, plan, change, error, named):
    if "reduction" in (change.get("loss") or ()):
        change = {"loss": cross_entropy(keras, **change["loss"])}
    model = sequential(keras, keras.layers.BatchNormalization(name="normal"))
    given = {"model": model, "optimizer": "sgd", "loss": "mse", "devices": plan.devices}
    with pytest.raises(error, match=named):
        towers.train_step(**(given | {"batch_norm": "sync"} | change))


def test_a_layer_that_keeps_a_state_for_each_example_is_refused(keras, plan):
    layers = [keras.layers.LSTM(2, stateful=True, name="keeps"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), *layers])
    with pytest.raises(ValueError, match="'keeps'.*stateful=True"):
        towers.train_step(model, "sgd", "mse", plan.devices)


def test_a_model_of_halves_has_its_loss_scaled_as_in_fit(keras, plan):
    """A gradient of 1e-7 is next to nothing in float16, and times 2 ** 15 it is not."""

    def small(labels, outputs):
        return 1e-7 * keras.ops.mean(outputs, -1)

    first = keras.layers.Dense(8, "relu", dtype="mixed_float16")
    model = keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(1, dtype="float32")])
    model.dtype_policy = first.dtype_policy
    x, y = batch(6)[0], np.zeros((6, 1), "f")
    given = values(model)
    model.compile(keras.optimizers.SGD(1e5), small)
    model.train_on_batch(x, y)
    wanted = values(model)
    give(model, given)
    towers.train_step(model, keras.optimizers.SGD(1e5), small, plan.devices)(x, y)
    near(values(model), wanted, 1e-4)


@pytest.mark.parametrize("kind", [
    "dense", *(pytest.param(k, marks=pytest.mark.thorough) for k in ("convolution", "embedding")),
])  # fmt: skip
def test_halves_skip_the_steps_that_fit_skips(keras, plan, kind):
    """A scale that is too large halves until the whole batch's gradient, not each tower's, fits."""
    layers, seen, random = keras.layers, [], np.random.default_rng(0)
    x, y = 30 * random.normal(size=(7, 8, 8, 3)), random.integers(0, 3, 7)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        if kind == "embedding":
            x = random.integers(0, 9, (7, 5))
            first = [layers.Embedding(9, 8, embeddings_initializer="normal"), layers.Dense(32)]
        elif kind == "dense":
            first = [layers.Flatten(), layers.Dense(32, kernel_regularizer="l2")]
        else:
            first = [layers.Conv2D(8, 3)]
        last = [layers.ReLU(), layers.Flatten(), layers.Dense(3, dtype="float32")]
        model = keras.Sequential([keras.Input(x.shape[1:]), *first, *last])
    finally:
        keras.config.set_dtype_policy("float32")
    start = values(model)
    for towers_of in ((), plan.devices):
        give(model, start)
        model.compile(keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-3), initial_scale=1.35 * 2**20, dynamic_growth_steps=3,
        ), cross_entropy(keras))  # fmt: skip
        step = model.train_on_batch
        if towers_of:
            step = towers.train_step(model, None, None, towers_of)
        seen.append([])
        for _ in range(12):
            step(x, y)
            own = model.optimizer
            seen[-1].append((float(own.dynamic_scale.numpy()), int(own.iterations.numpy())))
    assert seen[0] == seen[1] and 0 < seen[0][-1][1] < 11


@pytest.mark.parametrize("scaled, crossed", [(False, 3), (True, 3.7)])
def test_what_lies_on_two_devices_is_updated_there(keras, tf, plan, double, scaled, crossed):
    """Weights go to the other device, gradients to the host and back: 2 + 2 times the weights.

    Those of the embedding are few rows. A branch, as where the loss is scaled, gets gradients anew.
    """

    def optimizer():
        made = keras.optimizers.Nadam(
            0.1, global_clipnorm=0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
        )
        return keras.optimizers.LossScaleOptimizer(made) if scaled else made

    layers = [keras.layers.Embedding(50, 40), keras.layers.Dense(50, kernel_constraint="max_norm")]
    for layer, device, width in zip(layers, plan.devices, (None, 40), strict=True):
        with tf.device(device):
            layer.build((None, width))
    model = keras.Sequential([keras.Input(()), *layers])
    batches = [(np.arange(24) * k % 50, np.arange(24)) for k in (1, 3)]
    *_, step = both(model, optimizer, cross_entropy(keras), batches, plan.devices, 1e-12)
    _, traced = trace.function_step(step, *batches[0])
    size = sum(8 * np.prod(v.shape) for v in model.trainable_variables)
    assert sum(traced.bytes_between().values()) < crossed * size
