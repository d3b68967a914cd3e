"""A model in stages, each on its device: where it is cut, what crosses, and who waits for whom."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest

import fit_models
from fit_models import places
from keras_models import tf
from mgpu_helpers import fit, pipeline, trace
from mgpu_helpers.fit._placing import beside_inputs
from mgpu_helpers.pipeline.tasks import task_of


def test_dropout_draws_as_on_one_device_and_anew_for_each_piece(keras, plan, double):
    seen = []
    for pieces in (None, 1, 2):
        keras.utils.set_random_seed(0)
        model = fit_models.dense(keras.layers.Dense(8), keras.layers.Dropout(0.5))
        if pieces:
            fit.use(model, plan.devices, stages=2, pieces=pieces)
        x, y = np.ones((16, 6)), np.zeros(16)  # as of one example, but for what is dropped
        loss = model.fit(x, y, verbose=0).history["loss"]
        (drawn,) = [v.numpy()[1] for v in model.variables if v.name == "seed_generator_state"]
        seen.append((loss, drawn))
    np.testing.assert_allclose(seen[1][0], seen[0][0], rtol=1e-12)
    assert seen[0][1] * 2 == seen[2][1] and abs(seen[2][0][0] - seen[0][0][0]) > 1e-3


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
    """Both pieces have the same two examples; of a last batch of one it moves once more."""
    x = np.concatenate([*[fit_models.X[:2]] * 2, fit_models.X[2:3]])
    model = fit_models.dense(keras.layers.BatchNormalization(momentum=0.5, name="normal"))
    with pytest.warns(UserWarning, match="normal in"):
        fit.use(model, plan.devices, stages=2, pieces=2)
    model.fit(x, np.zeros(5), batch_size=4, verbose=0, shuffle=False)
    mean = model.get_layer("normal").moving_mean.numpy()
    wanted = (1 - 0.5**2) * x[:4].mean(0) / 2 + x[4] / 2
    np.testing.assert_allclose(mean, wanted, rtol=1e-11, atol=1e-11)
    assert {*places(model.variables)} == {"CPU:1", "CPU:2"}
    assert {*places(fit.alone(model).variables)} == {"CPU:0"}  # and the averages, too


def test_the_cut_shares_out_the_work_and_a_tape_sees_all(keras, plan):
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
    """Trace a step of three stages in four pieces: the order, the devices, the model, the step."""
    layers, where = keras.layers, (*plan.devices, plan.host)
    conv = [layers.Conv2D(8, 3, activation="relu", name=f"conv{i}") for i in range(4)]
    stack = [*conv[:2], layers.MaxPooling2D(), *conv[2:], layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((24, 24, 1)), *stack])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), fit_models.cross())
    fit.use(model, where, stages=["conv1", "conv3"], pieces=4, schedule=request.param)
    step = trace.fit_step(model, (np.ones((64, 24, 24, 1), "f"), np.zeros(64, int)))
    way = pipeline.one_forward_one_backward if request.param == "1F1B" else pipeline.all_forward
    return way(3, 4), where, model, step


def test_forward_and_back_are_on_the_device_of_their_stage(in_order):
    schedule, where, _, step = in_order
    seen = {(at, op.device) for op in step.ops if (at := task_of(op))}
    assert seen == {((s, name), where[s]) for s, names in enumerate(schedule) for name in names}
    for i, s in enumerate([0, 1, 1, 2]):
        own = [op for op in step.ops if re.search(rf"/conv{i}(_\d+)?/", op.name)
               and op.type.startswith(("Conv2D", "_FusedConv2D"))]  # fmt: skip
        assert {op.device for op in own} == {where[s]}
        # The batch needs no gradient: only the layers behind the first one send theirs on.
        assert sum(op.type == "Conv2DBackpropInput" for op in own) == (4 if i else 0)


def test_only_what_layers_make_crosses_and_each_device_has_its_part(in_order):
    _, where, model, step = in_order
    crossed, batch = step.bytes_between(), 64 * 24 * 24 * 4  # which comes from the last, the host
    made = [64 * 22 * 22 * 8 * 4, 64 * 8 * 8 * 8 * 4]
    for size, one, other in zip(made, where, where[1:], strict=False):
        assert size <= min(crossed[one, other], crossed[other, one])  # and its gradient
        assert max(crossed[one, other], crossed[other, one]) < 1.01 * size
    assert crossed[where[2], where[0]] + crossed.get((where[0], where[2]), 0) < 1.01 * batch
    for i, s in enumerate([0, 1, 1, 2]):
        kept = model.get_layer(f"conv{i}").weights
        kept += [v for v in model.optimizer.variables if f"conv{i}_" in v.name]
        assert len(kept) == 4 and {*places(kept)} == {where[s].rpartition("/")[2]}


def test_a_device_does_one_operation_after_the_other_in_order(in_order):
    """Not by chance: in the graph each slow operation needs the one before.

    So stage s of p holds p - s pieces at most: it begins no further one until a first is done.
    """
    schedule, where, _, step = in_order
    needed, task = fit_models.waits(step), {op.name: task_of(op) for op in step.ops}
    for s, (device, wanted) in enumerate(zip(where, schedule, strict=True)):
        ops = [op for op in step.ops if op.device == device and task[op.name]]
        slow = [op for op in ops if re.match("_?(Fused)?(Conv2D|MatMul|MaxPool)", op.type)]
        assert len(slow) >= len(wanted)
        for a, b in itertools.pairwise(slow):
            assert a.start + a.length <= b.start + 1e-9 and a.name in needed(b.name)
        assert [k for k, _ in itertools.groupby(task[op.name][1] for op in slow)] == wanted
        for op in slow:  # and the next device in the direction works meanwhile
            way, k = task[op.name][1][0], int(task[op.name][1][1:])
            meanwhile = (s + (1 if way == "F" else -1), f"{way}{k - 1}")
            assert meanwhile not in {task.get(each) for each in needed(op.name)}


def test_gradients_of_pieces_are_added_up_one_by_one_where_they_are_needed(in_order):
    """TensorFlow likes to keep all of them for one sum."""
    _, where, _, step = in_order
    taken = Counter(user for _, user in step.edges)
    sums = [op for op in step.ops if op.type == "AddN" and op.bytes == 8 * 3 * 3 * 8 * 4]
    for device, kernels in zip(where, (0, 2, 1), strict=True):
        assert sum(op.device == device for op in sums) >= 3 * kernels
    assert all(taken[op.name] <= 3 for op in sums)  # of two, and what it waits for


def test_spans_are_the_tasks(in_order):
    """What looks at shapes may make one begin early or end late, beside other work."""
    schedule, where, _, step = in_order
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
            fit.use(model, devices, stages=["b"], pieces=2)
        history = model.fit(fit_models.X, fit_models.Y, verbose=0).history
        seen.append((history, model.get_weights()))
    fit_models.near(seen[1], seen[0], 1e-12)
