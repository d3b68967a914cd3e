"""Towers against NumPy, against Keras' own step, and against the bytes of the trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_helpers import towers, trace
from mgpu_helpers.devices import short
from mgpu_helpers.towers.shards import shares

few = settings(max_examples=25, deadline=None)
floats = st.sampled_from(["float32", "float64"])
NEAR = {"float32": {"rtol": 1e-5, "atol": 1e-5}, "float64": {"rtol": 1e-12, "atol": 1e-12}}


def mean(column, weights=None):
    """Average by the definition; numpy.average does not take what is empty."""
    weights = [1] * len(column) if weights is None else weights
    return sum(w * g.astype(float) for w, g in zip(weights, column, strict=True)) / sum(weights)


def session(tf, plan):
    opened = tf.compat.v1.Session(config=plan.session_config())
    opened.run(tf.compat.v1.global_variables_initializer())
    return opened


# Splitting


@few
@given(
    size=st.integers(1, 40), n=st.integers(1, 6), row=st.lists(st.integers(1, 3), max_size=2),
    kind=st.sampled_from(["float32", "float64", "int32", "int64", "uint8"]), uneven=st.booleans(),
)  # fmt: skip
def test_split_is_numpys(tf, size, n, row, kind, uneven):
    if size < n or not uneven and size % n:
        return
    array = np.arange(size * int(np.prod(row))).reshape(size, *row).astype(kind)
    wanted = np.array_split(array, n)
    batch = {"x": array, "y": (tf.constant(array), array[:, ...])}
    got = towers.split(batch, n, uneven=uneven)
    assert len(got) == n and all(isinstance(shard["x"], np.ndarray) for shard in got)
    for shard, part in zip(got, wanted, strict=True):
        for leaf in tf.nest.flatten(shard):
            assert leaf.dtype == kind
            np.testing.assert_array_equal(leaf, part)
    held = shares(size, n)
    assert sum(held) == pytest.approx(1)
    np.testing.assert_allclose(np.multiply(held, size), [len(part) for part in wanted])


@pytest.mark.parametrize("sizes, uneven, said", [
    ([249], False, "batch of 249 .* 4 pieces: use 248 or 252"),
    ([3], True, "batch of 3 is too small for 4 pieces"), ([0], True, "batch of 0 is too small"),
    ([8, 12], False, "parts of 8 and 12 examples"),
])  # fmt: skip
def test_split_says_what_is_wrong(tf, plan, sizes, uneven, said):
    """In the same words where the size is known, and where only the running graph knows it."""
    batch = [np.zeros((size, 2), np.float32) for size in sizes]
    for given_as in (np.asarray, tf.constant):
        with pytest.raises(ValueError, match=said):
            towers.split([given_as(part) for part in batch], 4, uneven=uneven, into="piece")
    with tf.Graph().as_default(), tf.device(plan.devices[0]):
        fed = [tf.compat.v1.placeholder(tf.float32, [None, 2]) for _ in batch]
        shards = towers.split(fed, 4, uneven=uneven, into="piece")
        with session(tf, plan) as opened:
            with pytest.raises(tf.errors.InvalidArgumentError, match=said):
                opened.run(shards, dict(zip(fed, batch, strict=True)))


@pytest.mark.parametrize("uneven, rank", [(True, True), (False, False)])
def test_split_of_an_unknown_size(tf, plan, uneven, rank):
    array = np.arange(22.0).reshape(11, 2) if uneven else np.arange(18.0).reshape(9, 2)
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float64, [None, 2] if rank else None)
        shards = towers.split((x, x * 2), 3, uneven=uneven)
        held = shares(tf.shape(x)[0], 3)
        with session(tf, plan) as opened:
            got, shared = opened.run([shards, held], {x: array})
    for (first, second), part in zip(got, np.array_split(array, 3), strict=True):
        np.testing.assert_array_equal(first, part)
        np.testing.assert_array_equal(second, 2 * part)
    np.testing.assert_allclose(shared, shares(len(array), 3))


@pytest.mark.parametrize("batch, n, said", [
    ([1, 2, 3, 4], 2, "arrays of examples"), ({}, 2, "2 devices"), (np.zeros(4), 0, "0 devices"),
    ({"x": np.ones([4, 2]), "numpy": True}, 2, "numpy=True> cannot be split"),
])  # fmt: skip
def test_what_is_no_batch(tf, batch, n, said):
    with pytest.raises(ValueError, match=said):
        towers.split(batch, n)


# Running


def test_run_in_a_graph_shares_variables_and_places(tf, plan):
    v1 = tf.compat.v1

    def tower(x, y):
        weight = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        return tf.matmul(x, weight, name="product") + y

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with tf.Graph().as_default(), v1.variable_scope("net"):
        with tf.name_scope("train"), tf.device(plan.host):
            results = towers.run(tower, plan.devices, [x[:2], x[2:]], [10.0, 20.0])
        assert not v1.get_variable_scope().reuse
        assert [v.name for v in v1.global_variables()] == ["net/w:0"]
        assert all(r.name == f"net/train/tower_{i}/add:0" for i, r in enumerate(results))
        with pytest.raises(ValueError, match="already exists"):
            towers.run(tower, plan.devices, [x[:2], x[2:]], [10.0, 20.0])
        with v1.variable_scope(v1.get_variable_scope(), reuse=True):
            towers.run(tower, plan.devices, [x[:2], x[2:]], [10.0, 20.0])
        assert len(v1.global_variables()) == 1
        with session(tf, plan) as opened:
            values, step = trace.session_step(opened, results)
    np.testing.assert_array_equal(values[1], x[2:].sum(1, keepdims=True) + 20)
    where = {op.name: op.device for op in step.ops if op.type == "MatMul"}
    assert where == {f"net/train/tower_{i}/product": d for i, d in enumerate(plan.devices)}


def test_run_today(tf, plan):
    with tf.device(plan.host):
        weight = tf.Variable(tf.ones([3, 1]))

    def tower(x, i):
        return tf.matmul(x, weight) + tf.cast(i, tf.float32)

    def step(x):
        return towers.run(tower, plan.devices, towers.split(x, 2), range(2))

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    wanted = [x[:2].sum(1, keepdims=True), x[2:].sum(1, keepdims=True) + 1]
    eager = step(x)
    assert [short(value.device) for value in eager] == list(plan.devices)
    in_a_function, traced = trace.function_step(tf.function(step), x)
    for got in (eager, in_a_function):
        np.testing.assert_allclose(got, wanted)
    where = {op.name: op.device for op in traced.ops if op.type == "MatMul"}
    assert where == {f"tower_{i}/MatMul": d for i, d in enumerate(plan.devices)}
    assert towers.run(lambda: 7, plan.devices) == [7, 7]


@few
@given(size=st.integers(1, 20), n=st.integers(1, 5), uneven=st.booleans())
def test_make_parallel_changes_nothing(tf, plan, size, n, uneven):
    if size < n or not uneven and size % n:
        return
    devices = [plan.devices[i % 2] for i in range(n)]
    rng = np.random.default_rng(size)
    a, b = rng.random((2, size, 3))

    def function(a, *, b):
        return {"sum": a + b, "rest": (tf.reduce_max(a, 1), tf.zeros_like(b[:, :0]))}

    whole, got = function(a, b=b), towers.make_parallel(function, devices, uneven=uneven)(a, b=b)
    tf.nest.map_structure(np.testing.assert_array_equal, got, whole)


@pytest.mark.parametrize("function, said", [
    (lambda x: (x, 3.0), "a single value for a shard of 2 examples"), (lambda x: None, "single"),
    (lambda x: np.zeros(1), "1 row for"),
])  # fmt: skip
def test_make_parallel_needs_batches(plan, function, said):
    parallel = towers.make_parallel(function, plan.devices)
    with pytest.raises(ValueError, match=said):
        parallel(np.zeros((4, 3)))


def test_make_parallel_needs_batches_of_an_unknown_size_too(tf, plan):
    parallel = tf.function(towers.make_parallel(tf.reduce_mean, plan.devices))
    with pytest.raises(ValueError, match="a single value for a shard of some examples"):
        parallel.get_concrete_function(tf.TensorSpec([None, 3]))
    lists = towers.make_parallel(tf.RaggedTensor.from_tensor, plan.devices)
    with pytest.raises(ValueError, match="a RaggedTensor"):
        lists(np.zeros((4, 3)))


# Averaging


KINDS = st.sampled_from(["dense", "sparse", "none"])


def drawn(tf, rng, rows, which, kind):
    """Draw a gradient, and what it is as an array; rows that it has twice add up."""
    whole = rng.standard_normal((rows, 2)).astype(kind)
    if which == "dense":
        return tf.constant(whole), whole
    whole = np.zeros_like(whole)
    if which == "none":
        return None, whole
    at = rng.integers(0, max(rows, 1), rng.integers(0, 5) if rows else 0)
    values = rng.standard_normal((len(at), 2)).astype(kind)
    np.add.at(whole, at, values)
    return tf.IndexedSlices(tf.constant(values), tf.constant(at), tf.constant([rows, 2])), whole


@few
@given(
    seed=st.integers(0, 999), n=st.integers(1, 5), kind=floats, data=st.data(),
    shaped=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    how=st.sampled_from([None, "counts", "array", "tensors"]),
)  # fmt: skip
def test_average_is_numpys(tf, seed, n, shaped, kind, how, data):
    """Sparse stays sparse unless it is mixed with what is dense."""
    rng, size = np.random.default_rng(seed), n + seed % 7
    kinds = [data.draw(st.lists(KINDS, min_size=n, max_size=n)) for _ in shaped]
    columns = [[drawn(tf, rng, rows, which, kind) for which in column]
               for rows, column in zip(shaped, kinds, strict=True)]  # fmt: skip
    weights = {
        None: None,
        "counts": [len(part) for part in np.array_split(range(size), n)],
        "array": np.array(shares(size, n)),
        "tensors": shares(tf.constant(size), n),
    }[how]
    each = [[column[i][0] for column in columns] for i in range(n)]
    got = towers.average(each, weights=weights)
    for value, column, which, rows in zip(got, columns, kinds, shaped, strict=True):
        if {*which} == {"none"}:
            assert value is None
            continue
        assert isinstance(value, tf.IndexedSlices) == ("dense" not in which)
        value = tf.convert_to_tensor(value)
        assert value.dtype == kind and value.shape == (rows, 2)
        by = None if how is None else shares(size, n)
        np.testing.assert_allclose(value, mean([dense for _, dense in column], by), **NEAR[kind])


def test_average_is_where_it_is_told(tf, plan):
    """The gradients of a table that is looked up stay few bytes; the rest moves once."""
    with tf.Graph().as_default():
        with tf.device(plan.host):
            table = tf.compat.v1.get_variable("table", [1000, 8], dtype=tf.float64)
            bias = tf.compat.v1.get_variable("bias", [8], dtype=tf.float64)

        def slopes(at):
            with tf.device(table.device):
                rows = tf.gather(table, at)
            return tf.gradients(tf.reduce_sum(tf.square(rows + bias)), [table, bias])

        ids = tf.compat.v1.placeholder(tf.int32, [6])
        each = towers.run(slopes, plan.devices, towers.split(ids, 2))
        with tf.name_scope("averaging"):
            averaged = towers.average(each, device=plan.devices[1], weights=[3, 1])
        assert isinstance(averaged[0], tf.IndexedSlices)
        with session(tf, plan) as opened:
            _, step = trace.session_step(opened, averaged, {ids: np.arange(6)})
    ran = {op.name: op.device for op in step.ops if op.name.startswith("averaging")}
    assert len(ran) >= 5 and set(ran.values()) == {plan.devices[1]}, ran
    assert max(copy.bytes for copy in step.copies) == 6 * 8 * 8  # never the table's 64,000


@pytest.mark.parametrize("second, weights, said", [
    (np.zeros(2), [3, -1], r"weights=\[3, -1\]"), (np.zeros(2), [0, 0], r"weights=\[0, 0\]"),
    ((np.ones(2), np.ones(2)), None, "pairs"),  # which would become one tensor of both
])  # fmt: skip
def test_what_would_spoil_an_average_in_silence_is_refused(plan, second, weights, said):
    with pytest.raises(ValueError, match=said):
        towers.average([[second]] * 2, weights=weights)
