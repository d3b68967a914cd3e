"""A model in stages, each on its device: where it is cut, what crosses, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import fit_models
from fit_models import places
from mgpu_helpers import fit, pipeline, trace
from mgpu_helpers.fit._placing import beside_inputs


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
    task = {op.name: pipeline.tasks.task_of(op) for op in step.ops}
    needed, before = defaultdict(set), fit_models.waits(step)
    for name, at in task.items():
        if at:
            needed[at] |= {task.get(each) for each in before(name)}
    for k in range(3):
        for s, task, earlier in [(0, f"F{k + 1}", f"F{k}"), (1, f"B{k + 1}", f"B{k}")]:
            assert (s, earlier) in needed[s, task]  # in order on a device,
            assert (1 - s, earlier) not in needed[s, task]  # and the other one works meanwhile
    assert all((1, "F3") in needed[1, f"B{k}"] for k in range(4))


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


def test_pieces_see_their_own_statistics_one_after_the_other(keras, plan, double):
    """Each of four pieces has the same two examples; of a last batch of one it moves once more."""
    x = np.concatenate([*[fit_models.X[:2]] * 4, fit_models.X[2:3]])
    model = fit_models.dense(keras.layers.BatchNormalization(momentum=0.5, name="normal"))
    with pytest.warns(UserWarning, match="normal in"):
        fit.split(model, plan.devices, 4)
    model.fit(x, np.zeros(9), batch_size=8, verbose=0, shuffle=False)
    mean = model.get_layer("normal").moving_mean.numpy()
    wanted = (1 - 0.5**4) * x[:8].mean(0) / 2 + x[8] / 2
    np.testing.assert_allclose(mean, wanted, rtol=1e-11, atol=1e-11)
    assert {*places(model.variables)} == {"CPU:1", "CPU:2"}
    assert {*places(fit.alone(model).variables)} == {"CPU:0"}  # and the averages, too


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
