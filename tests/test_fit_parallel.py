"""A model whose calls are shared out: where it works, what crosses, and whom it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import fit_models
from mgpu_helpers import fit, trace


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


def test_a_model_that_is_not_shared_out_is_trained_as_by_keras_alone(keras, tf, plan):
    """Keras's optimizer is mended for weights of parallel models; others have its one barrier."""
    other, shared = (fit_models.dense() for _ in range(2))
    fit.use(shared, plan.devices)
    barriers, batch = [], (fit_models.X[:8], fit_models.Y[:8])
    for make in (lambda: other, lambda: shared, lambda: fit.alone(shared)):
        step = tf.function(make().train_step).get_concrete_function(batch)
        ops = step.graph.get_operations()
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

    for built in ([], [0], [0, 1]):
        model = Two(*built)
        model.build((None, 4))
        fit.use(model, plan.devices)
        assert len(model.weights) == 4
    model = Two()
    model.build([(None, 4), (None, 4)])  # which its call does not take
    with pytest.raises(ValueError, match="call it once on a batch"):
        fit.use(model, plan.devices)


def values(model):
    return [np.array(v.numpy()) for v in model.variables]


def give(model, given):
    for variable, value in zip(model.variables, given, strict=True):
        variable.assign(value)


def train(model, batches):
    """Train on batches; give the losses, for which Keras before 3.15 has to be reset."""
    seen = []
    for batch in batches:
        model.reset_metrics()
        seen.append(float(np.ravel(model.train_on_batch(*batch))[0]))
    return seen


def batch(size, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 6)), random.integers(0, 3, size)


def test_every_operation_is_placed_and_little_crosses(keras, tf, plan):
    """Weights go to the other device, and their gradients back; only numbers, of an example at
    most, follow a device around the call."""
    first, second = plan.devices
    with tf.device(second):
        model = keras.Sequential([
            keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization(),
            keras.layers.Dense(500, "swish", kernel_regularizer="l2"), keras.layers.Dense(3),
        ])  # fmt: skip
    model.compile(keras.optimizers.Adam(clipnorm=1.0), fit_models.cross())
    size = sum(4 * np.prod(v.shape) for v in model.trainable_variables)
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
    for i, device in enumerate(plan.devices):
        products = [op for op in step.ops if "MatMul" in op.type and f"tower_{i}/" in op.name]
        assert len(products) == 6 and {op.device for op in products} == {device}
    assert sum(step.bytes_between().values()) < 2.4 * size


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


def test_averaged_normalization_is_that_of_each_shard(keras, tf, plan, double):
    (x, y), model, loss = batch(5), code(keras), fit_models.cross()
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
    model.compile(keras.optimizers.SGD(0.1), loss)
    fit.use(model, plan.devices, synchronized=False)
    assert train(model, [(x, y)])[0] == pytest.approx(total, rel=1e-12)
    for a, b in zip(values(model), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


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


def test_what_lies_on_two_devices_is_updated_there(keras, tf, plan, double):
    """Weights go to the other device and gradients back; those of the embedding are few rows.

    A branch, as where the loss is scaled, gets gradients anew.
    """
    layers = [keras.layers.Embedding(50, 40), keras.layers.Dense(50, kernel_constraint="max_norm")]
    for layer, device, width in zip(layers, plan.devices, (None, 40), strict=True):
        with tf.device(device):
            layer.build((None, width))
    model = keras.Sequential([keras.Input(()), *layers])
    batches = [(np.arange(24) * k % 50, np.arange(24)) for k in (1, 3)]
    start, found = values(model), []
    for lay_out in (lambda: None, lambda: fit.use(model, plan.devices)):
        give(model, start)
        nadam = keras.optimizers.Nadam(
            0.1, global_clipnorm=0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
        )
        model.compile(keras.optimizers.LossScaleOptimizer(nadam), fit_models.cross())
        model.jit_compile = False
        lay_out()
        found.append([*train(model, batches), *values(model)])
    assert found[0][0] != found[0][1]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    step = trace.fit_step(model, batches[0])
    size = sum(8 * np.prod(v.shape) for v in model.trainable_variables)
    assert sum(step.bytes_between().values()) < 3.7 * size
