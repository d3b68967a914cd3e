"""A model that trains in a way of `fit`'s against itself on one device: `fit` and all of it.

WAYS has a line for each way, with the models that it takes: a further model for a way is a name.
Each cell is tried with validation, `evaluate` and `predict` in `make thorough`; of each part of a
way one case is in `make test`, with a pass.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import conftest
import fit_models
from conftest import later, run_python
from fit_models import X, Y, places
from keras_models import keras
from mgpu_helpers import fit
from mgpu_helpers._layers import LayerGraph
from mgpu_helpers.fit import _islands
from mgpu_helpers.fit._islands import Compiled

DRAWS = ("dropped", "sentences")  # whose draws are others under XLA, on one device too
COMPUTES = re.compile("MatMul|Conv|BiasAdd|Relu|Tanh|Softmax|SquaredDifference")
OURS = {"call", "train_step", "laid_out", *(f"make_{does}_function" for does in (
    "train", "test", "predict"
))}  # what a layout gives a model
GIVEN = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "verbose": 0}
WHERE = {"up_.*": "columns", "down_.*|kind|is": "rows", "heads_.*": "heads"}
ORDINARY = " ".join(each.__name__ for each in fit_models.ORDINARY)
# A BatchNormalization of pieces has other statistics; code of one's own and one layer have no parts
PIECES = ORDINARY.replace("masked_normal", "").replace("normalized", "")
PARTS = ORDINARY.replace("subclass", "").replace("areas", "")
HALVED = PIECES.replace("subclass", "").replace("areas", "")
# What an optimizer does sometimes is refused under a strategy.
REPLICAS = ORDINARY.replace("keras_accumulates", "").replace("averaged", "")
PAIRS = ("sequential own_step class_weights mean_of_weights last_of_one several_steps "
         "keras_accumulates averaged watched gated causal decoder sure sparse")  # fmt: skip


def using(**options: Any) -> Callable[[Any, Any], Any]:
    """Lay a model out in a way."""
    return lambda model, devices: fit.use(model, devices, **options)


def staged(**options: Any) -> Callable[[Any, Any], Any]:
    """Cut the layers into a stage for each device."""
    return lambda model, devices: fit.use(model, devices, stages=len(devices), **options)


def where_it_is(**options: Any) -> Callable[[Any, Any], Any]:
    """Lay a model out on no other devices than those where it is."""
    return lambda model, _=(): fit.use(model, **options)


def of_layers(change: Callable[[list[str]], dict[str, Any]], on: bool = True) -> Any:
    """Lay a model out with options that name its layers; on says whether on devices."""
    return lambda model, devices=(): fit.use(
        model, devices if on else None, **change(LayerGraph(model).names())
    )


def again(on: bool = True, **options: Any) -> Any:
    """Compute all layers again but the first; on says whether on devices."""
    return of_layers(lambda names: {"recompute": names[1:]} | options, on)


def in_parts(**options: Any) -> Any:
    """Cut all layers that have a name for it."""
    return of_layers(lambda names: {"layers": cut(names)} | options)


by_layer = again(on=False)


def cut(names: Sequence[str]) -> dict[str, str]:
    """Cut all layers that have a name for it."""
    own = [name.rpartition("/")[2] for name in names]
    own += ["up_0", "down_0", "heads_0"] if "decoder_0" in own else []  # inside of these
    return {k: way for k, way in WHERE.items() if any(re.fullmatch(k, name) for name in own)}


def eagerly(model: Any, devices: Any, change: Any = None) -> Any:
    model.run_eagerly = True
    return change(model) if change else model


class Way(NamedTuple):
    change: Callable[[Any, Any], Any]  # of a model, for devices
    quick: str  # cases that are in `make test`, by name
    cases: str  # all of them
    near: float = 1e-11
    owners: slice | None = None  # those of the devices on which weights lie; None for the host
    than: str = "alone"  # what it is compared with
    replicas: bool = False  # the model is made under a strategy


ALL, LAST = slice(None), slice(1, None)
LISTED = "sparse ragged"  # which XLA does not compile
PIECED = "own_step positions regularized masks"
WAYS = {
    "alone": Way(lambda model, devices: model, "", ""),
    "shares": Way(using(), "normalized list_of_outputs sparse", f"{ORDINARY} {LISTED}"),
    "pieces": Way(where_it_is(pieces=3), "mean_of_weights sparse", f"{PIECES} {LISTED}"),
    "recompute": Way(by_layer, "masks", f"{PARTS} {LISTED} dropped sentences", 1e-12),
    "stages": Way(staged(), "", PARTS, owners=ALL),
    "stages in pieces": Way(staged(pieces=4), "own_step convolutions",
                            f"{HALVED} {LISTED} convolutions", owners=ALL),
    "owners": Way(using(state="owners"), "regularized", f"{ORDINARY} {LISTED}", 1e-12, ALL),
    "layers": Way(in_parts(), "gated", PAIRS, owners=ALL),
    "strategy": Way(
        lambda model, devices: model, "mean_of_weights normalized several_steps ragged",
        f"{REPLICAS} {LISTED}",
        replicas=True,
    ),
    "strategy, eagerly": Way(eagerly, "last_of_one", "last_of_one sequential", replicas=True),
    # Products, and what a way can be told.
    "all forward first": Way(staged(pieces=4, schedule="all forward first"), "", HALVED,
                             owners=ALL),
    "recompute, few": Way(of_layers(lambda names: {"recompute": names[1:2]}, on=False), "",
                          "sure", 1e-12),
    "recompute, as it likes": Way(where_it_is(recompute=True), "", "dropped mobilenet", 1e-9),
    "recompute, eagerly": Way(functools.partial(eagerly, change=by_layer), "", "dropped", 1e-12),
    # Begins stages within a residual block, where two tensors cross.
    "stages, at": Way(of_layers(lambda names: {"stages": names[2:4]}), "", "", owners=ALL),
    "stages of many": Way(staged(), "", "mobilenet", 1e-9, owners=ALL),
    "owner": Way(
        lambda model, devices: fit.use(model, devices[:1], state=devices[1:]), "",
        "averaged normalized positions regularized keras_accumulates own_step", 1e-12, LAST,
    ),
    "host": Way(using(state="host"), "", "averaged regularized own_step"),
    "shares, pieces": Way(using(pieces=3), "two_of_each", f"two_of_each {PIECED}"),
    "unequal shares": Way(
        lambda model, devices: fit.use(model, devices, shares=range(2, 2 + len(devices))),
        "last_of_one", ORDINARY,
    ),
    "recompute, pieces": Way(again(False, pieces=3), "", PIECED),
    "recompute, shares": Way(again(), "normalized",
                             "normalized masked_normal regularized masks own_step"),
    "owners, pieces": Way(using(pieces=3, state="owners"), "", PIECED, owners=ALL),
    "strategy, recompute": Way(by_layer, "", "normalized dropped", than="strategy", replicas=True),
    "averages": Way(using(synchronized=False), "", ""),
    "recompute, averages": Way(again(synchronized=False), "", "dropped", than="averages"),
    # Two dimensions at once: rows of two devices.
    "grid of stages": Way(using(stages=2), "", "", owners=slice(2)),
    "grid of stages in pieces": Way(using(stages=2, pieces=3), "", "", owners=slice(2)),
    "grid of layers": Way(in_parts(row=2), "", "", owners=slice(2)),
    "grid of stages again": Way(using(stages=2, recompute=2), "", "", owners=slice(2)),
    "grid of everything": Way(
        of_layers(lambda names: {"stages": [names[len(names) // 2]], "pieces": 3,
                                 "recompute": names[1:], "state": "owners"}),
        "", "", owners=ALL,
    ),
    "grid of layers and pieces": Way(
        of_layers(lambda names: {"layers": cut(names), "row": 2, "pieces": 3,
                                 "recompute": names[1:]}),
        "", "", owners=slice(2),
    ),
}  # fmt: skip
MAIN = ("shares", "pieces", "recompute", "stages in pieces", "owners", "layers")


def cells(which: str) -> list[Any]:
    """List the ways with their cases; a name that there is not is an error."""
    found = []
    for name, way in WAYS.items():
        if not {*way.quick.split()} <= {*way.cases.split()} <= fit_models.CASES.keys():
            raise ValueError(f"{name} has unknown cases: {way.quick}, {way.cases}")
        for case in getattr(way, which).split():
            found.append(pytest.param(name, case, id=f"{name}-{case}"))
    return found


quick = functools.partial(conftest.quick, among=MAIN)


def state(model: Any) -> list[Any]:
    """Give all numbers of a model and of its optimizer."""
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def undone(model: Any) -> Any:
    """Undo a way, and see that nothing is left of it."""
    assert fit.alone(model) is model and model.supports_jit and not OURS & vars(model).keys()
    assert {*places([*model.variables, *model.optimizer.variables])} == {"CPU:0"}
    return model


def run(
    name: str, case: str, devices: tuple[str, ...], whole: bool, compiled: bool = False
) -> tuple[Any, list[Any]]:
    """Train a case in a way: what `fit` said, and all numbers of the model, which is undone."""
    way = WAYS[name]
    scope = fit.strategy(devices).scope() if way.replicas else None

    def change(model: Any) -> None:
        way.change(model, devices)
        model.jit_compile = compiled

    model, seen, predicted = fit_models.trained(case, change, scope, whole)
    if not way.replicas:
        owners = {each[1:] for each in (devices[way.owners] if way.owners else ["/CPU:0"])}
        there = {*places(model.weights)}
        told = name.startswith(("grid of everything", "stages, at"))  # where stages begin
        assert there == owners or told and there < owners
        assert {*places(v for v in model.optimizer.variables if v.shape.rank)} <= owners
        undone(model)
    return seen, [*state(model), *predicted]


reference = functools.cache(run)


def keeps(
    name: str, case: str, devices: tuple[str, ...], whole: bool = True, compiled: bool = False
) -> None:
    """Compare a way with what it has to keep."""
    way = WAYS[name]
    wanted = reference(way.than, case, devices, whole)
    if whole:
        assert np.ptp(wanted[0].get("loss") or wanted[0]["seen"]) > 0  # it has learned something
    # Keras adds 1e-7 to the number of what a mask leaves, before it takes a mean.
    rounds = case == "masked_normal" and name not in ("recompute", "strategy, recompute")
    # XLA sums in another order, which 50 BatchNormalizations make more of.
    xla = compiled * (5e-9 if case == "mobilenet" else 1e-11)
    got = run(name, case, devices, whole, compiled)
    fit_models.near(got, wanted, 1e-6 if rounds else max(way.near, xla))


@pytest.mark.parametrize("way, case", cells("quick"))
def test_a_pass_is_that_of_one_device(keras, plan, double, way, case):
    keeps(way, case, plan.devices, whole=False)


@pytest.mark.thorough
@pytest.mark.parametrize("way, case", cells("cases"))
def test_fit_is_that_of_one_device(keras, plan, double, way, case):
    """In batches of 10 examples and of 7, or of 1, which leaves nothing for some."""
    keeps(way, case, plan.devices)


@pytest.mark.parametrize("way, case", [
    ("recompute", "own_step"), ("stages in pieces", "last_of_one"),
    *(later(*each.values) for each in cells("cases")
      if "eagerly" not in each.id and each.values[1] not in (*DRAWS, *LISTED.split())),
])  # fmt: skip
def test_compiled_it_is_that_of_one_device(keras, plan, double, monkeypatch, way, case):
    """What computes is in functions of XLA, but for a few alone: nothing falls back unseen."""
    made: list[Any] = []
    monkeypatch.setattr(_islands, "Compiled", lambda *of: made.append(Compiled(*of)) or made[-1])
    keeps(way, case, plan.devices, whole=False, compiled=True)
    used = [each.islands for each in made if each.islands.sizes]
    assert used
    alone = sum(n for each in used for k, n in each.alone.items() if COMPUTES.match(k))
    assert alone <= 0.05 * sum(n for each in used for _, n in each.sizes)


@pytest.mark.parametrize("whole, cells", [
    (False, ["grid of stages in pieces-4-own_step", "grid of layers-4-last_of_one"]),
    *(later(True, each) for each in [
    ["shares-4-last_of_one", "shares-4-masks", "shares-4-normalized"],
    [f"strategy-3-{case}" for case in REPLICAS.split()],
    [f"strategy-4-{case}" for case in PIECED.split() + ["normalized", "last_of_one"]],
    ["owners-3-last_of_one", "owners-4-last_of_one", "owners-4-normalized", "owners-3-averaged"],
    ["stages, at-3-normalized", "stages in pieces-4-causal"],
    ["layers-3-gated", "layers-4-gated", "layers-3-causal", "layers-4-causal",
     "layers-3-decoder", "layers-4-decoder"],
    [f"grid of stages-4-{case}" for case in PARTS.split()],
    [f"grid of stages in pieces-4-{case}" for case in HALVED.split()],
    [f"grid of layers-4-{case}" for case in PAIRS.split()],
    ["grid of stages again-4-normalized", "grid of stages again-4-masked_normal",
     "recompute, shares-4-last_of_one"],
    [f"shares-3-{case}" for case in ORDINARY.split()],
    [f"grid of everything-4-{case}" for case in PIECED.split()],
    ["grid of layers and pieces-4-causal", "grid of layers and pieces-4-decoder"],
]),
], ids=lambda given: given[0].partition("-")[0] if isinstance(given, list) else "")  # fmt: skip
def test_three_and_four_devices_take_batches_of_ten_and_of_one(whole, cells):
    """Some get no example of a last batch, some own a bias alone, and parts are of any size."""
    done = run_python(f"""
        import fit_models, test_fit_ways
        from mgpu_helpers import devices
        plan = devices.setup(4)
        with fit_models.double():
            for cell in {cells}:
                way, n, case = cell.split("-")
                test_fit_ways.keeps(way, case, plan.devices[:int(n)], {whole})
                print(cell)
    """.replace("\n        ", "\n"), timeout=500, MGPU_MODE="cores")  # fmt: skip
    assert done.stdout.splitlines() == cells


def made(*last: Any, optimizer: Any = None) -> Any:
    """Make a model that every way takes, the same each time."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    pair = [layers.Dense(8, "tanh", name="up_0"), layers.Dropout(0.0),
            layers.Dense(5, name="down_0")]  # fmt: skip
    end = layers.Dense(3, name="last", dtype=keras.config.floatx())
    model = keras.Sequential([keras.Input((6,)), *pair, *last, end])
    optimizer = optimizer or keras.optimizers.AdamW(0.05, global_clipnorm=0.5)
    model.compile(optimizer, fit_models.cross(), metrics=["accuracy"])
    return model


def changed(way: str, plan: Any, *args: Any, **named: Any) -> Any:
    return WAYS[way].change(made(*args, **named), plan.devices)


@pytest.mark.parametrize("way", MAIN)
def test_it_is_undone_and_a_saved_model_is_as_it_was(keras, tf, plan, double, tmp_path, way):
    """With what the optimizer had, and what is loaded into it stays where its weights are."""
    model = made()
    own, model.jit_compile = model.trainable_variables, True  # as Keras has it on a GPU
    model.optimizer.apply([0.1 * tf.ones_like(v.value) for v in own], own)
    before, names, gives = state(model), vars(model).keys() - {"_tracker"}, model(X).numpy()
    WAYS[way].change(model, plan.devices)
    where = places([*model.variables, *model.optimizer.variables])
    np.testing.assert_allclose(model(X), gives, atol=1e-12)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not OURS & vars(loaded).keys()
    model.set_weights([0 * weight for weight in model.get_weights()])
    model.load_weights(tmp_path / "model.keras")
    assert places([*model.variables, *model.optimizer.variables]) == where
    assert vars(undone(model)).keys() - {"_tracker"} == names and model.jit_compile
    for a, b, c in zip(state(loaded), state(model), before, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, c)


# How near its losses and weights come in halves.
NEAR = {"shares": 1e-3, "pieces": 2e-3, "recompute": 5e-4, "stages": 1e-6,
        "stages in pieces": 1e-3, "owners": 2e-3, "layers": 1e-3, "strategy": 1e-3}  # fmt: skip


@pytest.mark.parametrize("way, scale", quick(
    ("pieces", 2.0**24), ("shares", 2.0**24),
    among=[(way, 2.0**n) for way in NEAR for n in (10, 24)],
))  # fmt: skip
def test_halves_have_their_loss_scaled_and_skip_the_same_steps(keras, plan, way, scale):
    """Steps whose gradients are too large are skipped, until the scale is smaller."""
    seen, large = [], scale == 2.0**24
    for each in ("alone", way):
        scope = fit.strategy(plan).scope() if WAYS[each].replicas else contextlib.nullcontext()
        with fit_models.policy("mixed_float16"), scope:
            # What is clipped would hide a gradient that is too large.
            sgd = keras.optimizers.SGD(0.1, global_clipnorm=0.1 if large else None)
            model = made(optimizer=keras.optimizers.LossScaleOptimizer(sgd, scale))
        WAYS[each].change(model, plan.devices)
        loss = model.fit(X, Y, epochs=9, verbose=0, shuffle=False).history["loss"]
        scaled = fit.alone(model).optimizer.dynamic_scale
        seen.append((int(sgd.iterations), float(scaled), [loss, *model.get_weights()]))
    assert (seen[0][0] == 9) == (not large) and all(0 < each[0] <= 9 for each in seen)
    # A piece's gradient may be too large, and the sum not.
    if way in ("pieces", "stages in pieces") and large:
        assert seen[1][0] < 9 and np.isfinite(seen[1][2][1]).all()
        return
    assert seen[0][:2] == seen[1][:2]
    for a, b in zip(seen[0][2], seen[1][2], strict=True):
        np.testing.assert_allclose(b, a, atol=NEAR[way])


@pytest.mark.parametrize("way", quick("recompute"))
def test_bfloat16_learns_as_on_one_device(keras, plan, way):
    """To what its 8 bits give: a layer that had float32 for an input or a weight would give it."""
    seen = []

    class Sees(keras.layers.Layer):
        def call(self, x):
            seen.append(x.dtype.name)
            return x

    with fit_models.policy("mixed_bfloat16"):
        one, other = (changed(each, plan, Sees(autocast=False)) for each in ("alone", way))
    wanted = one.fit(**GIVEN, epochs=3).history["loss"]
    seen.clear()
    got = other.fit(**GIVEN, epochs=3).history["loss"]
    np.testing.assert_allclose(got, wanted, atol=1e-2)
    assert np.ptp(got) > 0.05 and {*seen} == {"bfloat16"}
    assert {v.dtype for v in other.trainable_variables} == {"float32"}


@pytest.mark.parametrize("way", quick("pieces", among=["shares", "pieces", "owners"]))
def test_masks_of_dropout_are_drawn_for_each_share_and_in_each_run(keras, plan, double, way):
    """The labels add up to zero over the shares, so that of one mask for all nothing is learned."""
    y = np.repeat([1.0, -1.0] if way != "pieces" else [2.0, -1.0, -1.0], 4)[:, None]
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        drop, one = keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((6,)), drop, one])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        WAYS[way].change(model, plan.devices)
        model.fit(np.ones((len(y), 6)), y, batch_size=len(y), epochs=3, shuffle=False, verbose=0)
        found.append(model.get_weights()[0])
    assert np.count_nonzero(found[0]) == 6
    np.testing.assert_array_equal(*found)  # of one seed


@pytest.mark.parametrize("way", quick("layers"))
def test_callbacks_see_and_write_what_they_do_on_one_device(keras, tf, plan, double, tmp_path, way):
    """Rates, the rows of a table, and TensorBoard's; what is saved is a model of one device."""
    each, found = keras.callbacks, []
    for name in ("alone", way):
        at, model = tmp_path / name, changed(name, plan)
        at.mkdir()
        history = model.fit(**GIVEN, epochs=2, callbacks=[
            each.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate),
            each.ModelCheckpoint(at / "best.keras", "loss", save_best_only=True),
            each.ModelCheckpoint(at / "{epoch}.weights.h5", save_weights_only=True),
            each.CSVLogger(at / "rows.csv"), each.TensorBoard(at, histogram_freq=1),
            each.EarlyStopping("loss", min_delta=10.0, patience=9, restore_best_weights=True),
        ]).history  # fmt: skip
        assert history["learning_rate"] == [0.05, 0.025]
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
        loaded, second = keras.saving.load_model(at / "best.keras"), made()
        second.optimizer.build(second.trainable_variables)
        second.load_weights(at / "2.weights.h5")
        every = (state(each) for each in (second, loaded, fit.alone(model)))
        found.append([*history.values(), *(x for each in every for x in each)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("way", quick("owners", among=MAIN))
def test_a_fit_that_broke_off_ends_as_one_that_did_not(keras, plan, tmp_path, way):
    """To the bit, with a new model and a new way, as in Keras alone; but not what dropout draws."""

    class Break(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    def fitted(*callbacks):
        model = changed(way, plan)
        passes.append(model.fit(**GIVEN, epochs=2, callbacks=[*callbacks]).epoch)
        return state(fit.alone(model))

    passes: list[list[int]] = []
    through, backup = fitted(), keras.callbacks.BackupAndRestore
    with pytest.raises(InterruptedError):
        fitted(Break(), backup(tmp_path / "backup"))  # after a pass, in the second
    for a, b in zip(fitted(backup(tmp_path / "backup")), through, strict=True):
        np.testing.assert_array_equal(a, b)
    assert passes == [[0, 1], [1]]


def refused(keras: Any, plain: Any, kind: str) -> Any:
    """Make a model that some way cannot take."""
    layers = keras.layers
    if kind == "text":
        return "resnet"
    if kind == "stateful":
        keeps = layers.LSTM(2, stateful=True, name="keeps")
        model = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), keeps, layers.Dense(1)])
    elif kind in ("code", "code with statistics"):

        class Code(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = layers.Dense(2) if kind == "code" else layers.BatchNormalization()

            def call(self, x):
                return self.layer(x)

        model = Code()
        model(np.ones((2, 6)))
    else:
        with plain.scope() if kind == "copies" else contextlib.nullcontext():
            named = [layers.Dense(3, name=each) for each in ("a" if kind == "one" else "abc")]
            model = keras.Sequential([keras.Input((6,)), *named], name=kind)
    if kind not in ("uncompiled", "copies"):
        model.compile("sgd", "mse")
    if kind == "two":
        model.other = keras.optimizers.Adam()
    return model


REFUSED: list[tuple[str, Callable[[Any, Any], Any], type[Exception], str]] = [
    ("text", using(), TypeError, "'resnet'"),
    ("deep", lambda m, _: fit.use(m, ["/gpu:9"]), ValueError, "gpu:9"),
    ("deep", lambda m, _: fit.use(m, ["cpu:1", "/CPU:1"]), ValueError, "/CPU:1"),
    ("deep", lambda m, _: fit.use(m, "cpu:1"), TypeError, "cpu:1"),
    ("deep", using(piece=2), TypeError, "'piece'.*pieces"),
    ("stateful", using(), ValueError, "'keeps'"),
    ("copies", using(), ValueError, "'copies'.*2"),
    ("code with statistics", using(), ValueError, "synchronized=False"),
    ("deep", where_it_is(pieces=0), ValueError, "pieces=0"),
    ("two", where_it_is(pieces=3), ValueError, "'two' has 2"),
    ("stateful", where_it_is(pieces=3), ValueError, "'keeps'"),
    ("code", where_it_is(recompute=True), TypeError, "Code"),
    ("one", where_it_is(recompute=True), ValueError, "'one' has 0 places"),
    ("deep", where_it_is(recompute=9), ValueError, "'deep' has 2 places.*9"),
    ("deep", where_it_is(recompute=1), ValueError, "recompute=1"),
    ("deep", where_it_is(recompute=["c", "b"]), ValueError, r"\['c', 'b'\].*b, c"),
    ("deep", where_it_is(recompute=["a"]), ValueError, r"\['a'\]"),
    ("code", using(stages=2), TypeError, "Code"),
    ("stateful", using(stages=2, pieces=2), ValueError, "'keeps'"),
    ("one", using(stages=2), ValueError, "1 layer .*a.*2 stages"),
    ("deep", using(stages=["none"]), ValueError, "'none'.*c"),
    ("deep", using(stages=3), ValueError, "2 devices.*rows of 3"),
    ("deep", using(stages=2, layers={"a": "columns"}), ValueError, "stages and layers"),
    ("deep", using(layers={"a": "columns"}, state="host"), ValueError, "layers and state"),
    ("deep", using(layers={"a": "diagonals"}), ValueError, "'diagonals'"),
    ("deep", using(row=2), ValueError, "row=2"),
    ("deep", using(shares=(1, 2, 3)), ValueError, "2 rows"),
    ("deep", using(shares=(1, 0)), ValueError, r"\(1, 0\)"),
    ("deep", using(state="away"), ValueError, "'away'"),
    ("deep", using(state=["/gpu:9"]), ValueError, "gpu:9"),
    ("deep", using(schedule="2F2B"), ValueError, "'2F2B'"),
    ("deep", where_it_is(stages=2), ValueError, "stages=2.*plan"),
]  # fmt: skip


@pytest.mark.parametrize("kind, way, error, named", REFUSED, ids=lambda _: "")
def test_what_a_way_cannot_take_is_named(keras, plan, plain, kind, way, error, named):
    with pytest.raises(error, match=named):
        way(refused(keras, plain, kind), plan.devices)
