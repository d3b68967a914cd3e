"""A model in stages, each on its device, against itself on one device: `fit` and all of it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fit_models
from conftest import run_python
from mgpu_helpers import fit, pipeline, trace
from mgpu_helpers.fit._placing import beside_inputs


@functools.cache
def alone(case):
    return fit_models.trained(case)


def places(variables):
    return [v.value.device[-5:] for v in variables]


def deep(keras, layers=8, **compiled):
    """Make a deep model of equal layers, with all that touches gradients; give it with a batch."""
    keras.utils.set_random_seed(0)
    x = given = keras.Input((64,))
    for i in range(layers):
        x = keras.layers.Dense(64, "relu", name=f"d{i}", kernel_regularizer="l2")(x)
    model = keras.Model(given, keras.layers.Dense(3, name="last")(x))
    optimizer = keras.optimizers.AdamW(0.01, global_clipnorm=1.0)
    model.compile(optimizer, fit_models.cross(), metrics=["accuracy"], **compiled)
    random = np.random.default_rng(0)
    return model, (random.normal(size=(256, 64)).astype("f"), random.integers(0, 3, 256))


# What has a second layer. A BatchNormalization sees pieces.
CASES = sorted(fit_models.CASES.keys() - {"subclass", "areas"})
NORMAL = {"normalized", "masked_normal"}
# The others are in `make thorough`.
QUICK = {("two_of_each", 4)}


@pytest.mark.parametrize("case, pieces", [
    pytest.param(case, n, marks=[] if (case, n) in QUICK else pytest.mark.thorough)
    for case in CASES for n in (1, 4) if n == 1 or case not in NORMAL
])  # fmt: skip
def test_fit_is_that_of_one_device(keras, plan, double, case, pieces):
    """In batches of 10 examples and of 7, or of 1, which leaves nothing for three pieces."""
    got = fit_models.trained(case, lambda model: fit.split(model, plan.devices, pieces))
    fit_models.near(got, alone(case), 1e-6 if case == "masked_normal" else 1e-11)
    assert {*places(got[0].variables)} == {"CPU:1", "CPU:2"}


@pytest.mark.thorough
def test_larger_models_on_three_and_four_devices():
    """Cut within residual blocks, where two tensors cross, and where a mask does, too."""
    done = run_python("""
        import keras, numpy as np
        import fit_models
        from keras import layers
        from mgpu_helpers import devices, fit
        plan = devices.setup(4)

        def residual():
            x = given = keras.Input((6, 6, 2))
            for i in range(3):
                y = layers.Conv2D(2, 3, padding="same", name=f"conv_{i}")(x)
                y = layers.ReLU(name=f"relu_{i}")(layers.BatchNormalization()(y))
                x = layers.Add()([x, y])
            model = keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
            model.compile("adamw", fit_models.cross(), metrics=["accuracy"])
            return model, {"x": fit_models.IMAGES}

        def transformer():
            given = keras.Input((5,), dtype="int32")
            x = layers.Embedding(9, 4, mask_zero=True)(given)
            for i in range(3):
                y = layers.LayerNormalization(name=f"first_{i}")(x)
                x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)])
                y = layers.Dense(8, "gelu", name=f"wide_{i}")(layers.LayerNormalization()(x))
                x = layers.Add()([x, layers.Dense(4)(y)])
            model = keras.Model(given, layers.Dense(3)(x))
            model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.1), fit_models.cross(),
                          metrics=["accuracy"], weighted_metrics=["accuracy"])
            return model, {"x": fit_models.TOKENS, "y": fit_models.TAGS,
                           "sample_weight": np.outer(fit_models.HEAVY, range(1, 6))}

        fit_models.CASES |= {"residual": residual, "transformer": transformer}
        with fit_models.double():
            for case, n, pieces, at in [
                ("residual", 3, 1, ["relu_0", "relu_2"]),
                ("transformer", 4, 4, None),
            ]:
                change = lambda model: fit.split(model, plan.devices[:n], pieces, at)
                got = fit_models.trained(case, change)
                fit_models.near(got, fit_models.trained(case))
                print(case, len({v.value.device for v in got[0].variables}))
    """.replace("\n        ", "\n"), timeout=500, MGPU_MODE="cores")  # fmt: skip
    assert done.stdout.split() == ["residual", "3", "transformer", "4"]


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.thorough
def test_only_what_layers_make_crosses_and_each_device_has_its_part(keras, plan, pieces):
    def held(device):
        """Give the least of three traces: another thread only adds."""
        return min(step.peak(device) for step in steps)

    model, batch = deep(keras)
    steps = [trace.fit_step(model, batch) for _ in range(3)]
    one = held(plan.host)
    fit.split(model, plan.devices, pieces)
    steps = [trace.fit_step(model, batch) for _ in range(3)]
    step = steps[0]
    crossed, (first, second) = step.bytes_between(), plan.devices
    made = 256 * 64 * 4
    assert crossed[first, second] == crossed[second, first] == made  # and its gradient
    assert crossed[plan.host, first] < 1.01 * made  # the batch, and numbers
    assert crossed[plan.host, second] < 0.2 * made > crossed[second, plan.host]
    assert max(held(device) for device in (plan.host, *plan.devices)) < 0.7 * one
    names = {"CPU:1": "d0 d1 d2 d3", "CPU:2": "d4 d5 d6 d7 last"}
    for device, layers in names.items():
        kept = [w for name in layers.split() for w in model.get_layer(name).weights]
        assert {*places(kept)} == {device}
        slots = [v for v in model.optimizer.variables if v.name.split("_")[0] in layers.split()]
        assert len(slots) == 2 * len(kept) and {*places(slots)} == {device}


def test_both_devices_are_at_work(keras, plan):
    """What comes first is seen in the graph's waits: no time decides."""
    model, batch = deep(keras)
    step = trace.fit_step(fit.split(model, plan.devices, 4), batch)
    tasks = {pipeline.tasks.task_of(op) for op in step.ops} - {None}
    assert tasks == {(s, f"{way}{k}") for s in (0, 1) for way in "FB" for k in range(4)}
    needed = _needed(step)
    for k in range(3):
        for s, task, earlier in [(0, f"F{k + 1}", f"F{k}"), (1, f"B{k + 1}", f"B{k}")]:
            assert (s, earlier) in needed[s, task]  # in order on a device,
            assert (1 - s, earlier) not in needed[s, task]  # and the other one works meanwhile
    assert all((1, "F3") in needed[1, f"B{k}"] for k in range(4))


def _needed(step):
    """Find for each task the tasks whose operations have to be done before one of its own."""
    task = {op.name: pipeline.tasks.task_of(op) for op in step.ops}
    before = {}
    for maker, user in step.edges:
        before.setdefault(user, []).append(maker)
    found = {}
    for name, at in task.items():
        todo, seen = [name], set()
        while at and todo:
            for each in before.get(todo.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    todo.append(each)
        found.setdefault(at, set()).update(task.get(each) for each in seen)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [2.0**10, 2.0**24])
def test_a_model_of_halves_has_its_loss_scaled(keras, plan, scale):
    """And skips steps whose gradients are too large, until the scale is smaller."""
    seen = []
    for pieces in (None, 1, 4):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            first = [keras.layers.Dense(8, "relu") for _ in range(2)]
            layers = [keras.Input((6,)), *first, keras.layers.Dense(3, dtype="float32")]
            model = keras.Sequential(layers)
        finally:
            keras.config.set_dtype_policy("float32")
        sgd = keras.optimizers.SGD(0.1, global_clipnorm=0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd, scale), fit_models.cross())
        if pieces:
            fit.split(model, plan.devices, pieces)
        model.fit(fit_models.X, fit_models.Y, epochs=9, verbose=0, shuffle=False)
        seen.append(
            (int(sgd.iterations), float(model.optimizer.dynamic_scale), model.get_weights())
        )
    assert seen[0][:2] == seen[1][:2] == seen[2][:2] and (seen[0][0] == 9) == (scale == 2.0**10)
    for values in zip(*(each[2] for each in seen), strict=True):
        np.testing.assert_allclose(values[1], values[0], atol=1e-6)
        np.testing.assert_allclose(values[2], values[0], atol=1e-3)


def test_dropout_draws_as_on_one_device_and_anew_for_each_piece(keras, plan, double):
    seen = []
    for pieces in (None, 1, 4):
        keras.utils.set_random_seed(0)
        model = fit_models.dense(keras.layers.Dense(8), keras.layers.Dropout(0.5))
        if pieces:
            fit.split(model, plan.devices, pieces)
        x, y = np.ones((16, 6)), np.zeros(16)  # as of one example, but for what is dropped
        loss = model.fit(x, y, epochs=2, verbose=0).history["loss"]
        (drawn,) = [v.numpy()[1] for v in model.variables if v.name == "seed_generator_state"]
        seen.append((loss, drawn))
    np.testing.assert_allclose(seen[1][0], seen[0][0], rtol=1e-12)
    assert seen[0][1] * 4 == seen[2][1] and abs(seen[2][0][0] - seen[0][0][0]) > 1e-3


def test_what_nobody_placed_goes_to_the_largest_of_its_inputs(plan, tf):
    @tf.function
    def added(x):
        with tf.device(plan.devices[0]):
            row = x[0] + 1
        with tf.device(plan.devices[1]):
            rows = x + 1
        with beside_inputs():
            return tf.add(row, rows, name="one"), tf.add(rows, row, name="other")

    graph = added.get_concrete_function(tf.ones([5, 3])).graph
    assert {graph.get_operation_by_name(name).device[-5:] for name in ("one", "other")} == {"CPU:2"}


def test_it_is_saved_loaded_and_undone(keras, plan, double, tmp_path):
    """What is loaded into it stays in its stage; a saved model is as it was."""
    model = fit.split(fit_models.dense(), plan.devices, 2)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=False)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    given = {"x": fit_models.X, "y": fit_models.Y, "verbose": 0, "shuffle": False}
    model.fit(**given, callbacks=[best, backup])
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert "call" not in vars(loaded)
    fit.split(loaded, plan.devices)
    loaded.fit(**given)
    model.load_weights(tmp_path / "best.keras")
    assert places(model.variables) == places(loaded.variables) == ["CPU:1"] * 2 + ["CPU:2"] * 2
    wanted = model.fit(**given).history
    assert fit.alone(model) is model and model.supports_jit and "call" not in vars(model)
    assert {*places([*model.variables, *model.optimizer.variables])} == {"CPU:0"}
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert model.fit(**given).history["loss"] < wanted["loss"]
    model.export(tmp_path / "exported", verbose=False)


def test_pieces_see_their_own_statistics_one_after_the_other(keras, plan, double):
    """Each of four pieces of one example's copies: the average moves four times to the same."""
    x = np.repeat(fit_models.X[:2], 4, 0)[[0, 4, 1, 5, 2, 6, 3, 7]]
    model = fit_models.dense(keras.layers.BatchNormalization(momentum=0.5, name="normal"))
    with pytest.warns(UserWarning, match="normal in"):
        fit.split(model, plan.devices, 4)
    model.fit(x, np.zeros(8), verbose=0, shuffle=False)
    mean = model.get_layer("normal").moving_mean.numpy()
    np.testing.assert_allclose(mean, (1 - 0.5**4) * x.mean(0), rtol=1e-12)
    assert {*places(model.variables)} == {"CPU:1", "CPU:2"}
    assert {*places(fit.alone(model).variables)} == {"CPU:0"}  # and the averages, too


@pytest.mark.parametrize("change, error, named", [
    ({"model": "code"}, TypeError, "Code"), ({"model": "stateful"}, ValueError, "'keeps'"),
    ({"devices": ["cpu:1", "/CPU:1"]}, ValueError, "/CPU:1"), ({"pieces": 0}, ValueError, "0"),
    ({"devices": ["/gpu:9", "cpu:1"]}, ValueError, "gpu:9"),
    ({"devices": ["cpu:0", "cpu:1", "cpu:2"]}, ValueError, "2 layers.*first, last.*3 devices"),
    ({"at": ["none"]}, ValueError, "'none'.*last"), ({"model": "split"}, ValueError, "two"),
])  # fmt: skip
def test_what_cannot_be_split_is_named(keras, plan, change, error, named):
    layers = keras.layers
    first, last = layers.Dense(2, name="first"), layers.Dense(1, name="last")
    model = keras.Sequential([keras.Input((6,)), first, last], name="two")
    if change.get("model") == "split":
        change = {"model": fit.split(model, plan.devices)}
    elif change.get("model") == "stateful":
        keeps = layers.LSTM(2, stateful=True, name="keeps")
        stateful = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), keeps, layers.Dense(1)])
        change = {"model": stateful, "pieces": 2}
    elif change.get("model") == "code":
        change = {"model": fit_models.subclass()[0]}
    with pytest.raises(error, match=named):
        fit.split(**({"model": model, "devices": plan.devices} | change))


def test_the_cut_shares_out_the_work_and_a_tape_sees_all(keras, plan):
    import tensorflow as tf

    given = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3)(given)  # 15,552 FLOP
    x = keras.layers.Conv2D(4, 3, padding="same")(x)  # 20,736
    x = keras.layers.Dense(50)(keras.layers.Flatten()(x))  # 14,400, and most of the weights
    model, slopes = keras.Model(given, x), []
    for _ in range(2):
        x = tf.constant(np.random.default_rng(0).normal(size=(3, 8, 8, 3)), tf.float32)

        @tf.function
        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(model(x) ** 2)  # noqa: B023
            return tape.gradient(loss, [x, *model.trainable_variables])  # noqa: B023

        slopes.append(slope(x))
        fit.alone(model)
        fit.split(model, plan.devices, 2)
    for a, b in zip(*slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert places(model.weights[::2]) == ["CPU:1", "CPU:2", "CPU:2"]


def test_of_cuts_that_share_out_the_work_alike_the_one_where_least_crosses_is_taken(keras, plan):
    layers = keras.layers
    stack = [layers.Conv2D(4, 3), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(40)]
    model = fit.split(keras.Sequential([keras.Input((6, 6, 1)), *stack]), plan.devices)
    model.compile("sgd", "mse")
    step = trace.fit_step(model, (np.ones((5, 6, 6, 1)), np.ones((5, 40))))
    first, second = plan.devices
    assert step.bytes_between()[first, second] == 5 * (2 * 2 * 4) * 4  # and not the 4 x 4 x 4
