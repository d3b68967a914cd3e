"""What every way keeps of `fit` on one device: bfloat16, dropout, callbacks, a fit broken off."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

import fit_models
from mgpu_helpers import fit

PAIR = {"up_0": "columns", "down_0": "rows"}
WAYS: dict[str, Any] = {
    "alone": lambda model, devices: model,
    "parallel": fit.parallel,
    "accumulate": lambda model, devices: fit.accumulate(model, 3),
    "recompute": lambda model, devices: fit.recompute(model, ["down_0", "last"]),
    "split": lambda model, devices: fit.split(model, devices, 2),
    "shard": lambda model, devices: fit.parallel(fit.shard(model, devices), devices),
    "split_layers": lambda model, devices: fit.split_layers(model, devices, PAIR),
}
GIVEN = {"x": fit_models.X, "y": fit_models.Y, "batch_size": 10, "shuffle": False, "verbose": 0}


def ways(quick, names=tuple(WAYS)[1:]):
    """Try each way, one of them in every run and the others in `make thorough`."""
    marks = [[] if name == quick else pytest.mark.thorough for name in names]
    return pytest.mark.parametrize("way", [
        pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)
    ])  # fmt: skip


def made(way, plan, *last):
    """Make a model that every way takes, the same each time."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    pair = [layers.Dense(8, "tanh", name="up_0"), layers.Dropout(0.0),
            layers.Dense(5, name="down_0")]  # fmt: skip
    end = layers.Dense(3, name="last", dtype=keras.config.floatx())
    model = keras.Sequential([keras.Input((6,)), *pair, *last, end])
    adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.5)
    model.compile(adamw, fit_models.cross(), metrics=["accuracy"])
    return WAYS[way](model, plan.devices)


def state(model):
    """Give all numbers of a model and of its optimizer, in one piece and in one place."""
    return [v.numpy() for v in (*fit.alone(model).variables, *model.optimizer.variables)]


@ways("recompute")
def test_bfloat16_learns_as_on_one_device(keras, plan, way):
    """To what its 8 bits give: a layer that had float32 for an input or a weight would give it."""
    seen = []

    class Sees(keras.layers.Layer):
        def call(self, x):
            seen.append(x.dtype.name)
            return x

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        one, other = (made(each, plan, Sees(autocast=False)) for each in ("alone", way))
    finally:
        keras.config.set_dtype_policy("float32")
    wanted = one.fit(**GIVEN, epochs=5).history["loss"]
    seen.clear()
    got = other.fit(**GIVEN, epochs=5).history["loss"]
    np.testing.assert_allclose(got, wanted, atol=1e-2)
    assert np.ptp(got) > 0.05 and {*seen} == {"bfloat16"}
    assert {v.dtype for v in other.trainable_variables} == {"float32"}


@ways("accumulate", ["parallel", "accumulate", "shard"])
def test_masks_of_dropout_are_drawn_for_each_share_and_in_each_run(keras, plan, double, way):
    """The labels add up to zero over the shares, so that of one mask for all nothing is learned."""
    y = np.repeat([1.0, -1.0] if way != "accumulate" else [2.0, -1.0, -1.0], 4)[:, None]
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        drop, one = keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((6,)), drop, one])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        WAYS[way](model, plan.devices)
        model.fit(np.ones((len(y), 6)), y, batch_size=len(y), epochs=3, shuffle=False, verbose=0)
        found.append(model.get_weights()[0])
    assert np.count_nonzero(found[0]) == 6
    np.testing.assert_array_equal(*found)  # of one seed


@ways("split_layers")
def test_callbacks_see_and_write_what_they_do_on_one_device(keras, tf, plan, double, tmp_path, way):
    """Rates, the rows of a table, and TensorBoard's; what is saved is a model of one device."""
    each, found = keras.callbacks, []
    for name in ("alone", way):
        at, model = tmp_path / name, made(name, plan)
        at.mkdir()
        history = model.fit(**GIVEN, epochs=3, callbacks=[
            each.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate),
            each.ModelCheckpoint(at / "best.keras", "loss", save_best_only=True),
            each.ModelCheckpoint(at / "{epoch}.weights.h5", save_weights_only=True),
            each.CSVLogger(at / "rows.csv"), each.TensorBoard(at, histogram_freq=1),
        ]).history  # fmt: skip
        assert history["learning_rate"] == [0.05, 0.025, 0.0125]
        rows = [*csv.DictReader((at / "rows.csv").open())]
        assert {key: [float(row[key]) for row in rows] for key in history} == history
        (file,) = (str(file) for file in at.glob("train/events*") if file.stat().st_size > 1000)
        drawn = {key: [] for key in history}
        for event in tf.compat.v1.train.summary_iterator(file):
            for value in event.summary.value:
                if (key := value.tag.removeprefix("epoch_")) in drawn:
                    drawn[key].append((event.step, float(tf.make_ndarray(value.tensor))))
        for key, values in history.items():
            np.testing.assert_allclose(drawn[key], [*enumerate(values)], rtol=1e-6)
        loaded, second = keras.saving.load_model(at / "best.keras"), made("alone", plan)
        second.optimizer.build(second.trainable_variables)
        second.load_weights(at / "2.weights.h5")
        found.append([*history.values(), *state(second), *state(loaded), *state(model)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@ways("shard", WAYS)
def test_a_fit_that_broke_off_ends_as_one_that_did_not(keras, plan, tmp_path, way):
    """To the bit, with a new model and a new way, as in Keras alone; but not what dropout draws."""

    class Break(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def fitted(*callbacks):
        model = made(way, plan)
        passes.append(model.fit(**GIVEN, epochs=5, callbacks=[*callbacks]).epoch)
        return state(model)

    passes: list[list[int]] = []
    through, backup = fitted(), keras.callbacks.BackupAndRestore
    with pytest.raises(InterruptedError):
        fitted(Break(), backup(tmp_path / "backup"))  # after two passes, in the third
    for a, b in zip(fitted(backup(tmp_path / "backup")), through, strict=True):
        np.testing.assert_array_equal(a, b)
    assert passes == [[*range(5)], [2, 3, 4]]


@pytest.mark.thorough
def test_layers_in_parts_run_in_a_train_step_of_ones_own(keras, plan, double):
    found = []
    for way in (None, fit.split_layers):

        def change(model):
            adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.1)
            model.compile(adamw, fit_models.cross())
            if way:  # noqa: B023
                up, down = (layer.name for layer in model.layers[-2:])
                way(model, plan.devices, {up: "columns", down: "rows"})  # noqa: B023

        model, seen, _, predicted = fit_models.trained("own_step", change)
        assert ("train_step" in vars(model)) == (way is not None)
        found.append((model, seen, state(model), predicted))
    fit_models.near(*found)
