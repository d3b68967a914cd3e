"""A function traced, against calling it: Keras models, keyword arguments, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_helpers import trace
from mgpu_helpers.trace import function_step


def test_function_step_equals_calling_the_function(tf, plan):
    with tf.device(plan.devices[1]):
        weight = tf.Variable(np.arange(12, dtype="f").reshape(3, 4), name="x")  # as the argument
    with tf.device(plan.devices[0]):
        captured = tf.random.uniform([100, 100])
    steps, offset = tf.Variable(0, name="Const"), tf.range(1.0, 5.0)

    @tf.function
    def forward(x, scale, *, power=2.0):
        steps.assign_add(1)
        with tf.device(plan.devices[0]):
            hidden = tf.concat([tf.matmul(x, weight), [offset]], 0, name="hidden")
        with tf.device(plan.devices[1]):
            total = tf.reduce_sum(tf.matmul(captured, captured, name="product"))
        return {"out": scale * hidden**power, "none": None, "two": [steps, total]}

    x = np.arange(6, dtype="f").reshape(2, 3)
    got, trace = function_step(forward, x, 0.5)
    assert steps.numpy() == 0  # what the trace assigned did not reach the reader's variable
    wanted = forward(x, 0.5)
    np.testing.assert_allclose(got["out"], wanted["out"], rtol=1e-6)
    assert got["none"] is None and got["two"][0] == 1 == steps.numpy()
    assert got["two"][1] == pytest.approx(float(wanted["two"][1]), rel=1e-5)
    assert trace.collectives == ()
    where = {op.name: op.device for op in trace.ops}
    assert where["hidden"] == "/CPU:1" and where["product"] == "/CPU:2"  # not folded away
    assert where["MatMul/ReadVariableOp"] == "/CPU:2"
    assert trace.bytes_between()["/CPU:1", "/CPU:2"] == 40000


def test_a_step_assigns_in_place_and_a_new_value_counts_until_the_old_one_is_given_back(tf, plan):
    def add(x):
        weight.assign_add(x)

    def replace(x):
        old = weight.read_value()
        made = weight.assign(tf.exp(x, name="new"), read_value=False)
        with tf.control_dependencies([made]):  # so it cannot write in place
            return tf.reduce_sum(old @ old)

    with tf.device(plan.devices[0]):
        weight = tf.Variable(tf.ones([1000, 1000]))
        (_, added), (_, step) = (function_step(f, tf.ones([1000, 1000])) for f in (add, replace))
    assert added.peak(plan.devices[0]) < 4e6  # as a call of the function does
    new = next(each for each in step.allocations if each.op == "new")
    last = next(op for op in step.ops if op.type == "MatMul").end
    assert new.end == pytest.approx(last, abs=1e-5)
    assert step.memory[plan.devices[0]][-1][1] < 1000  # the variable is as large as before


def test_operations_run_where_a_call_places_them(tf, keras, plan):
    """The weights lie on the first device; the block around the call names the second."""
    from keras import layers

    with tf.device(plan.devices[0]):
        model = keras.Sequential([
            keras.Input([6]), layers.Dense(8), layers.BatchNormalization(), layers.Dense(3),
        ])  # fmt: skip
    x = np.ones([4, 6], "f")

    def forward(x, *, training):
        with tf.device(plan.host):
            x = tf.identity(x, name="given")
        return model(x, training=training)

    x = tf.constant(x)
    with tf.device(plan.devices[1]):
        got, step = function_step(forward, x, training=False)
        with trace.placement() as log:
            wanted = tf.function(forward)(x, training=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    rows = {row.name: row.device for row in log.rows if row.type != "Const"}
    both = {op.name: op.device for op in step.ops if op.name in rows}
    assert len(both) > 0.6 * len(rows) and both == {name: rows[name] for name in both}
    products = [op.device for op in step.ops if "MatMul" in op.type]
    assert products == [plan.devices[1]] * 2
    weights = sum(v.numpy().nbytes for v in model.weights)
    assert step.bytes_between()[plan.devices[0], plan.devices[1]] == weights


def test_the_graph_is_optimized_as_in_a_call_and_results_are_taken_where_they_are_made(tf, plan):
    held = [tf.Variable(float(i)) for i in range(9)]

    def squared(x):
        with tf.device(plan.devices[1]):
            return tf.add_n(held) + x * x

    with tf.device(plan.devices[0]):
        got, step = function_step(squared, tf.constant([2.0, 3.0]))
    assert got.tolist() == [40, 45] and "Square" in {op.type for op in step.ops}  # for x * x
    assert (plan.devices[1], plan.devices[0]) not in step.bytes_between()


def test_variables_of_any_kind_and_tables_are_copied(tf, keras):
    text, open_shape = tf.Variable("text"), tf.Variable([1.0], shape=[None])
    flag, half = tf.Variable(True), tf.Variable([1.0, 2.0], dtype=tf.bfloat16)
    weight, passed = keras.Variable([3.0, 4.0]), tf.Variable(5.0)
    random = tf.random.Generator.from_seed(1)
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 5.0)
    table.insert(["a", "b"], [1.5, 2.5])

    def step(taken, passed):
        table.insert(["a"], [3.5])
        open_shape.assign([1.0, 2.0, 3.0])
        with tf.control_dependencies([flag.assign(tf.logical_not(flag))]):
            return (
                tf.strings.length(text), tf.size(open_shape.read_value()), flag.read_value(),
                tf.reduce_sum(half), passed.assign_add(1.0), taken * 2, random.normal([2]),
                table.lookup(tf.constant(["a", "b", "c"])),
            )  # fmt: skip

    got, _ = function_step(step, weight, passed)
    assert [int(g) for g in got[:5]] == [4, 3, 0, 3, 6] and got[5].tolist() == [6, 8]
    assert passed.numpy() == 5
    assert open_shape.numpy().tolist() == [1.0] and flag.numpy()
    np.testing.assert_array_equal(got[6], random.normal([2]))
    assert got[7].tolist() == [3.5, 2.5, 5] and float(table.lookup(tf.constant("a"))) == 1.5


def test_what_makes_variables_may_do_so_once(tf, keras):
    made = []

    def once(x):
        made[:] = made or [tf.Variable(3.0)]
        return x * made[0].assign_add(1.0)

    assert float(function_step(once, tf.ones([]))[0]) == 4 and float(made[0]) == 3
    model = keras.Sequential([keras.layers.Dense(2)])  # not built before
    model.compile("adam", "mse", metrics=["mae"])
    x, y = np.ones([4, 3], "f"), np.zeros([4, 2], "f")
    (loss, _), _ = function_step(model.train_on_batch, x, y)
    assert loss == pytest.approx(model.train_on_batch(x, y)[0])


def test_what_cannot_be_traced_is_refused_and_the_remedy_named(tf, keras):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y, none = np.ones([4, 3], "f"), np.ones([4, 1], "f"), np.ones([0], "f")
    iterator = iter(tf.data.Dataset.range(3))
    for said, function, *args in (
        ("cannot be copied", lambda it: next(it), iterator),
        ("fit_step", model.fit, x, y), ("fit_step", model.predict, x),
        ("makes variables", lambda x: tf.Variable(1.0) + x, tf.ones([])),
        ("0 examples", lambda a, b: a, x[:0], none),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            function_step(function, *args)
    assert next(iterator) == 0
    got, _ = function_step(lambda a, b: tf.concat([a, b], 0), none, y[:2, 0])
    assert got.tolist() == [1, 1]  # only one of them is empty


def test_what_xla_compiles_is_one_operation_and_said(tf):
    compiled = tf.function(lambda x: tf.reduce_sum(tf.sqrt(x) * 3), jit_compile=True)
    x = tf.constant([4.0, 9.0])
    for function, added in ((compiled, 0), (lambda x: compiled(x) + 1, 1)):
        with pytest.warns(UserWarning, match="jit_compile"):
            got, step = function_step(function, x)
        assert float(got) == 15 + added
        types = [op.type for op in step.ops]
        assert types.count("PartitionedCall") == 1 and not {"Sqrt", "Sum"} & set(types)
