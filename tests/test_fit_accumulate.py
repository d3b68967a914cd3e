"""A step in pieces against the step of the whole batch: `fit` and all of it, in less memory."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_models
from mgpu_helpers import fit, trace


@functools.cache
def whole(case):
    return fit_models.trained(case)


# BatchNormalization sees pieces, and so is not among them.
CASES = sorted(fit_models.CASES.keys() - {"normalized", "masked_normal"})
# The others are in `make thorough`.
QUICK = {"own_step", "weighted"}


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case in QUICK else pytest.mark.thorough) for case in CASES
])  # fmt: skip
def test_fit_in_pieces_is_that_of_the_whole_batch(keras, plan, double, case):
    """In three pieces, of batches of 10 examples and of 7 or 1."""
    got = fit_models.trained(case, lambda model: fit.accumulate(model, 3))
    fit_models.near(got, whole(case))


@pytest.mark.parametrize("case", [
    "regularized", *(pytest.param(case, marks=pytest.mark.thorough) for case in
                     ("masks", "two_of_each", "own_step")),
])  # fmt: skip
def test_pieces_are_shared_out_over_devices(keras, plan, double, case):
    """With `fit.parallel` before or after, and taken away again."""

    def change(model):
        first, second = (fit.accumulate, 4), (fit.parallel, plan.devices)
        for function, given in [first, second] if case == "masks" else [second, first]:
            function(model, given)

    got = fit_models.trained(case, change)
    fit_models.near(got, whole(case))
    fit.alone(got[0])
    assert not {"call", "train_step"} & vars(got[0]).keys() and got[0].supports_jit


@pytest.mark.parametrize("layer", [
    pytest.param("Dropout", marks=pytest.mark.thorough), "BatchNormalization",
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*normalizes")
def test_replicas_take_their_shares_in_pieces(keras, plain, double, layer):
    """Under MirroredStrategy, with state that replicas share: rates of 0 and averages of pieces."""
    seen, x = [], np.concatenate([fit_models.X[:8]] * 3)
    if layer == "BatchNormalization":  # all pieces have the same statistics
        x = np.tile([fit_models.X[0], -fit_models.X[0]], (12, 1))
    for pieces in (None, 2):
        keras.utils.set_random_seed(0)
        with plain.scope():
            made = [getattr(keras.layers, layer)(**({"rate": 0.0} if layer == "Dropout" else {}))]
            model = fit_models.dense(keras.layers.Dense(5, "tanh"), *made)
        if pieces:
            fit.accumulate(model, pieces)
        y = np.resize([0, 1, 2, 1], 24)
        got = model.fit(x, y, batch_size=16 - 8 * (layer != "Dropout"), shuffle=False, verbose=0)
        seen.append(([*got.history.values()], [v.numpy() for v in model.trainable_variables]))
    # Adam makes much of a rounding: the gradient of a bias before a normalization.
    for a, b in zip(*(sum(map(list, each), []) for each in seen), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [pytest.param(2.0**10, marks=pytest.mark.thorough), 2.0**24])
def test_a_model_of_halves_has_its_loss_scaled(keras, plan, scale):
    """And skips steps whose gradients are too large in a piece, until the scale is smaller."""
    seen = []
    for pieces in (1, 3):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            first = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3, dtype="float32")]
            model = keras.Sequential([keras.Input((6,)), *first])
        finally:
            keras.config.set_dtype_policy("float32")
        sgd = keras.optimizers.SGD(0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd, scale), fit_models.cross())
        fit.accumulate(model, pieces).fit(fit_models.X, fit_models.Y, epochs=9, verbose=0)
        seen.append((int(sgd.iterations), model.get_weights()))
    if scale == 2.0**24:
        assert all(0 < steps < 9 and np.isfinite(values[0]).all() for steps, values in seen)
    else:
        assert seen[0][0] == seen[1][0] == 9
        for a, b in zip(seen[0][1], seen[1][1], strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("kind", [
    "dense", pytest.param("masked", marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_step_holds_the_activations_of_a_piece(keras, plan, kind):
    """And of the whole batch nothing, where what masks leave of it is counted."""
    layers, random = keras.layers, np.random.default_rng(0)
    if kind == "dense":
        deep = [layers.Dense(64, "tanh") for _ in range(10)]
        model, x = keras.Sequential([keras.Input((64,)), *deep]), random.normal(size=(4096, 64))
        model.compile("sgd", "mse")
        y = x
    else:
        words = [layers.Embedding(9, 32, mask_zero=True), layers.LSTM(32, return_sequences=True)]
        model = keras.Sequential([keras.Input((16,), dtype="int32"), *words, layers.Dense(3)])
        model.compile("sgd", fit_models.cross())
        x, y = random.integers(0, 9, (1024, 16)), random.integers(0, 3, (1024, 16))
    held = [trace.fit_step(model, (x, y)).peak(plan.host)]
    for pieces in (4, 8):
        fit.accumulate(model, pieces)
        held.append(trace.fit_step(model, (x, y)).peak(plan.host))
        fit.alone(model)
    assert held[1] < 0.5 * held[0] and held[2] < 0.8 * held[1]


@pytest.mark.parametrize("kind, named", [
    ("pieces", "0"), ("twice", "'steps'"), ("two", "'steps' has 2"), ("stateful", "'keeps'"),
    ("uncompiled", "not compiled"),
])  # fmt: skip
def test_what_cannot_be_taken_in_pieces_is_named(keras, plan, kind, named):
    model, pieces = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="steps"), 2
    if kind == "stateful":
        keeps = keras.layers.LSTM(2, stateful=True, name="keeps")
        model = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), keeps])
    if kind != "uncompiled":
        model.compile("sgd", "mse")
    if kind == "two":
        model.other = keras.optimizers.Adam()
    elif kind == "twice":
        fit.accumulate(model, 2)
    elif kind == "pieces":
        pieces = 0
    with pytest.raises(ValueError, match=named):
        fit.accumulate(model, pieces)


def test_two_updates_in_a_step_are_refused_and_a_normalization_is_warned_of(keras, plan):
    class Twice(keras.Model):
        def train_step(self, data):
            super().train_step(data)
            return super().train_step(data)

    given = keras.Input((6,))
    normal = keras.layers.BatchNormalization(name="normal")
    model = Twice(given, keras.layers.Dense(3)(normal(given)), name="twice")
    model.compile("sgd", fit_models.cross())
    with pytest.warns(UserWarning, match="normal in twice"):
        fit.accumulate(model, 2)
    with pytest.raises(ValueError, match="'twice' updates"):
        model.fit(fit_models.X, fit_models.Y, verbose=0)
    assert "apply" not in vars(model.optimizer)
