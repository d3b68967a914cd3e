"""A model whose calls are shared out, against itself on one device: `fit` and all of it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_models
from conftest import run_python
from keras_models import compiled
from mgpu_helpers import fit, trace
from mgpu_helpers.graph.step import training_step


@functools.cache
def alone(case):
    return fit_models.trained(case)


# The others, and three devices, are in `make thorough`.
QUICK = {"normalized", "two_of_each"}


@pytest.mark.parametrize("case, n", [
    pytest.param(case, n, marks=[] if n == 2 and case in QUICK else pytest.mark.thorough)
    for case in fit_models.CASES for n in (2, 3)
])  # fmt: skip
def test_fit_is_that_of_one_device(keras, plan, double, case, n):
    devices = [*plan.devices, plan.host][:n]
    got = fit_models.trained(case, lambda model: fit.parallel(model, devices))
    # Keras adds 1e-7 to the number of what a mask leaves, before it takes a mean.
    fit_models.near(got, alone(case), 1e-6 if case == "masked_normal" else 1e-11)
    assert np.ptp(got[1].get("loss") or got[1]["seen"]) > 0  # it has learned something


@pytest.mark.parametrize("change, error, named", [
    ({"model": "resnet"}, TypeError, "'resnet'"), ({"devices": ["/gpu:9"]}, ValueError, "gpu:9"),
    ({"devices": ["cpu:1", "/CPU:1"]}, ValueError, "/CPU:1"),
    ({"batch_norm": "both"}, ValueError, "'both'"),
    ({"model": "parallel"}, ValueError, "twice"), ({"model": "stateful"}, ValueError, "'keeps'"),
    ({"model": "mirrored"}, ValueError, "'copies'.*2"),
    ({"model": "code"}, ValueError, "sync.*batch_norm.*'average'"),
])  # fmt: skip
def test_what_cannot_be_shared_out_is_named(keras, plan, plain, change, error, named):
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="twice")
    if change.get("model") == "parallel":
        change = {"model": fit.parallel(model, plan.devices)}
    elif change.get("model") == "stateful":
        first = [keras.Input(batch_shape=(2, 5, 3)), layers.LSTM(2, stateful=True, name="keeps")]
        change = {"model": keras.Sequential(first)}
    elif change.get("model") == "mirrored":
        with plain.scope():
            copies = [keras.Input((6,)), layers.Dense(1)]
            change = {"model": keras.Sequential(copies, name="copies")}
    elif change.get("model") == "code":

        class Code(keras.Model):
            def __init__(self):
                super().__init__()
                self.normal = layers.BatchNormalization()

            def call(self, x):
                return self.normal(x)

        change = {"model": Code()}
        change["model"](np.ones((2, 6)))
    with pytest.raises(error, match=named):
        fit.parallel(**({"model": model, "devices": plan.devices} | change))


@pytest.mark.thorough
def test_four_devices_take_batches_of_ten_and_of_one():
    """Some get no example of a last batch."""
    done = run_python("""
        import fit_models
        from mgpu_helpers import devices, fit
        plan = devices.setup(4)
        with fit_models.double():
            for case in ("last_of_one", "masks", "normalized"):
                change = lambda model: fit.parallel(model, plan.devices)
                fit_models.near(fit_models.trained(case, change), fit_models.trained(case))
                print(case)
    """.replace("\n        ", "\n"), timeout=300, MGPU_MODE="cores")  # fmt: skip
    assert done.stdout.split() == ["last_of_one", "masks", "normalized"]


def test_it_is_undone_and_a_saved_model_is_as_it_was(keras, plan, double, tmp_path):
    model = fit.parallel(fit_models.dense(), plan.devices)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=False)
    model.fit(fit_models.X, fit_models.Y, callbacks=[best], verbose=0)
    wanted = model.predict(fit_models.X, verbose=0)
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_allclose(loaded.predict(fit_models.X, verbose=0), wanted, atol=1e-12)
    assert "call" not in vars(loaded) and not model.supports_jit
    assert fit.alone(model) is model and model.supports_jit and "call" not in vars(model)
    np.testing.assert_allclose(model.predict(fit_models.X, verbose=0), wanted, atol=1e-12)
    model.export(tmp_path / "exported", verbose=False)


def test_a_call_and_a_tape_outside_of_fit_give_the_same(keras, tf, plan, double):
    model, slopes = fit_models.dense(), []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(fit_models.X[:7], training=True) ** 2)
        slopes.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, model.weights)])
        if "call" not in vars(model):
            fit.parallel(model, plan.devices)
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
    fit.parallel(model, plan.devices)
    step = trace.fit_step(model, (np.ones((4, 6), "f"), np.ones((4, 3), "f")))
    for i, device in enumerate(plan.devices):
        products = [op for op in step.ops if "MatMul" in op.type and f"tower_{i}/" in op.name]
        assert len(products) == 5 and {op.device for op in products} == {device}
    assert sum(step.bytes_between().values()) < 2.4 * size


def test_halves_are_read_in_their_own_type(keras, plan):
    """A layer of float32 in a model of halves has its weights whole, and the loss is scaled."""
    seen = []
    for devices in (None, plan.devices):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3, dtype="float32")]
            model = keras.Sequential([keras.Input((6,)), *layers])
        finally:
            keras.config.set_dtype_policy("float32")
        model.compile(keras.optimizers.SGD(0.1), fit_models.cross())
        if devices:
            fit.parallel(model, devices)
        history = model.fit(fit_models.X, fit_models.Y, epochs=5, verbose=0, shuffle=False)
        seen.append([*model.get_weights(), history.history["loss"]])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    with_last = model.layers[-1].kernel.numpy()
    assert np.any(with_last != with_last.astype("float16"))


def test_a_model_that_is_not_shared_out_is_trained_as_by_keras_alone(keras, plan):
    """Keras's optimizer is mended for weights of parallel models; others have its one barrier."""
    other, shared = (compiled("two")[0] for _ in range(2))
    fit.parallel(shared, plan.devices)
    barriers = []
    for make in (lambda: other, lambda: shared, lambda: fit.alone(shared)):
        ops = training_step(make(), 8).concrete.graph.get_operations()
        barriers.append([op.name for op in ops if op.type == "IdentityN" and "adam" in op.name])
    assert [len(each) for each in barriers] == [1, 0, 1]
