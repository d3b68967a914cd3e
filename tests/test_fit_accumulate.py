"""A step in pieces: what it holds, under a strategy of TensorFlow's, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import fit_models
from conftest import later
from mgpu_helpers import fit, trace


@pytest.mark.filterwarnings("ignore:.*normalizes")
def test_replicas_take_their_shares_in_pieces(keras, plain, double):
    """Under MirroredStrategy, with state that replicas share: rates of 0 and averages of pieces."""
    seen, x = [], np.tile([fit_models.X[0], -fit_models.X[0]], (12, 1))  # the same statistics
    for pieces in (None, 2):
        keras.utils.set_random_seed(0)
        with plain.scope():
            made = [keras.layers.Dropout(0.0), keras.layers.BatchNormalization()]
            model = fit_models.dense(keras.layers.Dense(5, "tanh"), *made)
        if pieces:
            fit.use(model, pieces=pieces)
        got = model.fit(x, np.resize([0, 1, 2, 1], 24), batch_size=8, shuffle=False, verbose=0)
        seen.append([*got.history.values(), *(v.numpy() for v in model.trainable_variables)])
    # Adam makes much of a rounding: the gradient of a bias before a normalization.
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["dense", later("masked")])
def test_a_step_holds_the_activations_of_a_piece(keras, plan, kind):
    """And of the whole batch nothing, where what masks leave of it is counted."""
    layers, random = keras.layers, np.random.default_rng(0)
    if kind == "dense":
        deep = [layers.Dense(64, "tanh") for _ in range(6)]
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
        fit.use(model, pieces=pieces)
        held.append(trace.fit_step(model, (x, y)).peak(plan.host))
        fit.alone(model)
    assert held[1] < 0.5 * held[0] and held[2] < 0.8 * held[1]


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
        fit.use(model, pieces=2)
    with pytest.raises(ValueError, match="'twice' updates"):
        model.fit(fit_models.X, fit_models.Y, verbose=0)
    assert "apply" not in vars(model.optimizer)
