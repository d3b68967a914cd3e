"""A model in stages, each on its device: where it is cut, what crosses, and who waits for whom."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

import numpy as np
import pytest

import fit_models
from conftest import later, run_python
from fit_models import places
from mgpu_helpers import fit, pipeline, trace
from mgpu_helpers.fit._placing import beside_inputs
from mgpu_helpers.pipeline.tasks import task_of


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


@pytest.mark.parametrize("pieces, schedule", [
    (1, "1F1B"), (4, "1F1B"), (4, "all forward first"),
])  # fmt: skip
@pytest.mark.thorough
def test_only_what_layers_make_crosses_and_each_device_has_its_part(keras, plan, pieces, schedule):
    def held(device):
        """Give the least of three traces: another thread only adds."""
        return min(step.peak(device) for step in steps)

    model, batch = deep(keras)
    steps = [trace.fit_step(model, batch) for _ in range(3)]
    one = held(plan.host)
    fit.use(model, plan.devices, stages=2, pieces=pieces, schedule=schedule)
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


@pytest.mark.parametrize("schedule", ["1F1B", later("all forward first")])
def test_both_devices_are_at_work(keras, plan, schedule):
    """What comes first is seen in the graph's waits: no time decides."""
    model, batch = deep(keras)
    fit.use(model, plan.devices, stages=2, pieces=4, schedule=schedule)
    step = trace.fit_step(model, batch)
    tasks = {task_of(op) for op in step.ops} - {None}
    assert tasks == {(s, f"{way}{k}") for s in (0, 1) for way in "FB" for k in range(4)}
    task = {op.name: task_of(op) for op in step.ops}
    needed, before = defaultdict(set), fit_models.waits(step)
    for name, at in task.items():
        if at:
            needed[at] |= {task.get(each) for each in before(name)}
    for k in range(3):
        for s, task, earlier in [(0, f"F{k + 1}", f"F{k}"), (1, f"B{k + 1}", f"B{k}")]:
            assert (s, earlier) in needed[s, task]  # in order on a device,
            assert (1 - s, earlier) not in needed[s, task]  # and the other one works meanwhile
    if schedule == "1F1B":  # a stage goes back with a piece before it goes forward with the next
        assert all((1, f"B{k}") in needed[1, f"F{k + 1}"] for k in range(3))
        assert all((0, f"B{k}") in needed[0, f"F{k + 2}"] for k in range(2))
    else:
        assert all((1, "F3") in needed[1, f"B{k}"] for k in range(4))


def test_dropout_draws_as_on_one_device_and_anew_for_each_piece(keras, plan, double):
    seen = []
    for pieces in (None, 1, 4):
        keras.utils.set_random_seed(0)
        model = fit_models.dense(keras.layers.Dense(8), keras.layers.Dropout(0.5))
        if pieces:
            fit.use(model, plan.devices, stages=2, pieces=pieces)
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
        fit.use(model, plan.devices, stages=2, pieces=4)
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
        fit.use(model, plan.devices, stages=2, pieces=2)
    for a, b in zip(*slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert places(model.weights[::2]) == ["CPU:1", "CPU:2", "CPU:2"]


def test_of_cuts_that_share_out_the_work_alike_the_one_where_least_crosses_is_taken(keras, plan):
    layers = keras.layers
    stack = [layers.Conv2D(4, 3), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(40)]
    model = fit.use(keras.Sequential([keras.Input((6, 6, 1)), *stack]), plan, stages=2)
    model.compile("sgd", "mse")
    step = trace.fit_step(model, (np.ones((5, 6, 6, 1)), np.ones((5, 40))))
    first, second = plan.devices
    assert step.bytes_between()[first, second] == 5 * (2 * 2 * 4) * 4  # and not the 4 x 4 x 4


# What each device does, and in which order: each of three stages has a device.


@pytest.fixture(scope="module", params=["1F1B", "all forward first"])
def in_order(request, keras, plan):
    """Trace a step of three stages in four pieces: the order, the devices, and the step."""
    layers, where = keras.layers, (*plan.devices, plan.host)
    conv = [layers.Conv2D(8, 3, activation="relu", name=f"conv{i}") for i in range(4)]
    stack = [*conv[:2], layers.MaxPooling2D(), *conv[2:], layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((24, 24, 1)), *stack])
    model.compile("sgd", fit_models.cross())
    fit.use(model, where, stages=["conv1", "conv3"], pieces=4, schedule=request.param)
    step = trace.fit_step(model, (np.ones((64, 24, 24, 1), "f"), np.zeros(64, int)))
    way = pipeline.one_forward_one_backward if request.param == "1F1B" else pipeline.all_forward
    return way(3, 4), where, step


def test_forward_and_back_are_on_the_device_of_their_stage(in_order):
    schedule, where, step = in_order
    seen = {(at, op.device) for op in step.ops if (at := task_of(op))}
    assert seen == {((s, name), where[s]) for s, names in enumerate(schedule) for name in names}
    for i, s in enumerate([0, 1, 1, 2]):
        own = [op for op in step.ops if re.search(rf"/conv{i}(_\d+)?/", op.name)
               and op.type.startswith(("Conv2D", "_FusedConv2D"))]  # fmt: skip
        assert {op.device for op in own} == {where[s]}
        # The batch needs no gradient: only the layers behind the first one send theirs on.
        assert sum(op.type == "Conv2DBackpropInput" for op in own) == (4 if i else 0)


def test_a_device_does_one_operation_after_the_other_in_order(in_order):
    """Not by chance: in the graph each slow operation needs the one before."""
    schedule, where, step = in_order
    needed = fit_models.waits(step)
    for device, wanted in zip(where, schedule, strict=True):
        ops = [op for op in step.ops if op.device == device and task_of(op)]
        slow = [op for op in ops if re.match("_?(Fused)?(Conv2D|MatMul|MaxPool)", op.type)]
        assert len(slow) >= len(wanted)
        for a, b in itertools.pairwise(slow):
            assert a.start + a.length <= b.start + 1e-9 and a.name in needed(b.name)
        assert [task for task, _ in itertools.groupby(task_of(op)[1] for op in slow)] == wanted


def test_spans_are_the_tasks(in_order):
    """What looks at shapes may make one begin early or end late, beside other work."""
    schedule, where, step = in_order
    found = pipeline.spans(step)
    assert [span.start for span in found] == sorted(span.start for span in found)
    for s, device in enumerate(where):
        own = {(span.task, span.device) for span in found if span.stage == s}
        assert own == {(k, device) for k in schedule[s]}
    assert len(found) == sum(map(len, schedule))
    for span in found:
        own = [op for op in step.ops if task_of(op) == (span.stage, span.task)]
        assert max(op.start + op.length for op in own) == pytest.approx(span.start + span.length)
        early = sum(op.length for op in own if op.start < span.start)
        assert early < 0.01 * sum(op.length for op in own)


@pytest.mark.parametrize("schedule", ["1F1B", later("all forward first")])
def test_a_stage_holds_the_pieces_of_its_order_and_one_sum_of_gradients(keras, plan, schedule):
    """Stage s of p holds p - s pieces at most: it begins no further one until a first is done.

    And it adds gradients up piece by piece: TensorFlow likes to keep all of them for one sum.
    """
    model, batch = deep(keras)
    where = (*plan.devices, plan.host)
    fit.use(model, where, stages=3, pieces=6, schedule=schedule)
    step = trace.fit_step(model, batch)
    needed, tasks = fit_models.waits(step), defaultdict(set)
    for op in step.ops:
        if op.type.endswith("MatMul") and (at := task_of(op)):
            tasks[at].add(op.name)
    for s in range(3):
        ahead = 3 - s if schedule == "1F1B" else 6
        for k in range(6 - ahead):
            assert all(tasks[s, f"B{k}"] <= needed(op) for op in tasks[s, f"F{k + ahead}"])
        assert all(tasks[s, f"F{ahead - 1}"] <= needed(op) for op in tasks[s, "B0"])
    taken = defaultdict(int)
    for _, user in step.edges:
        taken[user] += 1
    sums = [op for op in step.ops if op.type == "AddN" and op.bytes == 64 * 64 * 4]
    for device, kernels in zip(where, (3, 3, 2), strict=True):
        assert sum(op.device == device for op in sums) >= 5 * kernels  # where they are needed
    assert all(taken[op.name] <= 3 for op in sums)  # of two, and what it waits for


def test_a_layer_of_two_stages_gets_both_gradients(keras, plan, double):
    """And so does a model in the model, which is cut inside."""
    seen = []
    for devices in (None, plan.devices):
        keras.utils.set_random_seed(0)
        dense, given = keras.layers.Dense, keras.Input((6,))
        same, inner = dense(6, "tanh", kernel_regularizer="l2", name="same"), keras.Input((6,))
        inside = keras.Model(inner, dense(6, name="b")(dense(6, "gelu", name="a")(inner)))
        x = keras.layers.Concatenate()([same(inside(same(given))), given])
        model = keras.Model(given, dense(3, name="last")(x))
        model.compile(keras.optimizers.SGD(0.1), fit_models.cross())
        if devices:
            fit.use(model, devices, stages=["b"], pieces=4)
        history = model.fit(fit_models.X, fit_models.Y, batch_size=10, epochs=2, verbose=0,
                            shuffle=False).history  # fmt: skip
        seen.append((history, model.get_weights()))
    fit_models.near(seen[1], seen[0], 1e-12)


OTHERS = ["tensorlight", "p40", "convolutions", "transformer", "lstm"]


@pytest.mark.parametrize("names", [
    ["convolutions"],
    pytest.param([*OTHERS, "residual", "mobilenet"], marks=pytest.mark.thorough),
])  # fmt: skip
def test_the_order_closes_no_circle_in_models_of_other_kinds(names):
    code = f"import keras_stages; keras_stages.main(*{names})"
    assert run_python(code, timeout=300, MGPU_MODE="cores").stdout.split() == names
