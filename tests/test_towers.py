"""Towers against NumPy, against Keras' own step, and against the bytes of the trace."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import run_python
from mgpu_helpers import towers, trace
from mgpu_helpers.devices import short
from mgpu_helpers.lessons import networks

few = settings(max_examples=25, deadline=None)
floats = st.sampled_from(["float32", "float64"])
shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4)
NEAR = {"float32": {"rtol": 1e-5, "atol": 1e-5}, "float64": {"rtol": 1e-12, "atol": 1e-12}}


@pytest.fixture(scope="session")
def tf(plan):
    import tensorflow

    return tensorflow


def gradients(seed, count, shaped, kind):
    """Draw a gradient of each shape for each of count towers."""
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(shape).astype(kind) for shape in shaped] for _ in range(count)]


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
)
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
    held = towers.shares(size, n)
    assert sum(held) == pytest.approx(1)
    np.testing.assert_allclose(np.multiply(held, size), [len(part) for part in wanted])


SIZES = [
    ([250], False, "batch of 250 .* 4 pieces: use 248 or 252"),
    ([3], True, "batch of 3 is too small for 4 pieces"),
    ([0], True, "batch of 0 is too small"),
    ([8, 12], False, "parts of 8 and 12 examples"),
]


@pytest.mark.parametrize("sizes, uneven, said", SIZES)
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
        held = towers.shares(tf.shape(x)[0], 3)
        with session(tf, plan) as opened:
            got, shared = opened.run([shards, held], {x: array})
    for (first, second), part in zip(got, np.array_split(array, 3), strict=True):
        np.testing.assert_array_equal(first, part)
        np.testing.assert_array_equal(second, 2 * part)
    np.testing.assert_allclose(shared, towers.shares(len(array), 3))


def test_the_checks_at_run_time_cost_a_few_bytes(tf, plan):
    """A GPU makes no strings, and a batch must not travel to be counted."""
    first = plan.devices[0]
    with tf.Graph().as_default() as graph:
        with tf.device(first):
            x, y = (tf.compat.v1.placeholder(tf.float32, [None, 100]) for _ in range(2))
            shards = towers.split((tf.sqrt(x), tf.sqrt(y)), 2, device=None)
        said = [op for op in graph.get_operations() if op.type in ("Assert", "StringFormat")]
        assert said and {short(op.device) for op in said} == {plan.host}
        fed = {x: np.zeros((6, 100)), y: np.zeros((6, 100))}
        with session(tf, plan) as opened:
            _, step = trace.session_step(opened, [part.op for part in tf.nest.flatten(shards)], fed)
    assert {op.device for op in step.ops if op.type == "Split"} == {first}
    assert step.bytes_between()[first, plan.host] < 64


@pytest.mark.parametrize("batch, n, said", [
    ([1, 2, 3, 4], 2, "a single value"), ({}, 2, "empty structure"), (np.zeros(4), 0, "0 devices"),
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
        opened = v1.Session(config=plan.session_config(soft_placement=True))
        opened.run(v1.global_variables_initializer())
        values, step = trace.session_step(opened, results)
        opened.close()
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
    compiled, traced = trace.function_step(tf.function(step), x)
    for got in (eager, tf.function(step)(x), compiled):
        np.testing.assert_allclose(got, wanted)
    where = {op.name: op.device for op in traced.ops if op.type == "MatMul"}
    assert where == {f"tower_{i}/MatMul": d for i, d in enumerate(plan.devices)}
    assert towers.run(lambda: 7, plan.devices) == [7, 7]


@pytest.mark.parametrize("devices, shards, said", [
    (["/CPU:1"], [[1], [1, 2]], "1 device and 1, 2 shards"), ([], [], "0 devices and no shards"),
])  # fmt: skip
def test_run_needs_a_shard_for_each_device(tf, devices, shards, said):
    with pytest.raises(ValueError, match=said):
        towers.run(lambda *given: given, devices, *shards)


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


def test_make_parallel_fits_a_parabola(tf, plan):
    """Two changes give the same steps, with the gradients where their towers are."""
    v1 = tf.compat.v1

    def model(x, y):
        w = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
        f = tf.stack([tf.square(x), x, tf.ones_like(x)], 1)
        return tf.square(tf.squeeze(tf.matmul(f, w), 1) - y)

    ends, devices = [], {}
    for parallel in (False, True):
        with tf.Graph().as_default(), tf.device(plan.devices[0]):
            x, y = (v1.placeholder(tf.float32, [None]) for _ in range(2))
            loss = (towers.make_parallel(model, plan.devices) if parallel else model)(x=x, y=y)
            train = v1.train.AdamOptimizer(0.1).minimize(
                tf.reduce_mean(loss), colocate_gradients_with_ops=True
            )
            (w,) = v1.trainable_variables()
            opened = v1.Session(config=plan.session_config(soft_placement=True))
            opened.run(v1.global_variables_initializer())
            rng = np.random.default_rng(0)
            for _ in range(20):
                points = rng.uniform(-10, 10, 100)
                fed = {x: points, y: 5 * points**2 + 3}
                _, step = trace.session_step(opened, train, fed)
            ends.append(opened.run(w))
            opened.close()
            devices[parallel] = {
                op.device for op in step.ops if op.type == "MatMul" and "grad" in op.name
            }
    np.testing.assert_allclose(*ends, rtol=1e-5)
    assert devices == {False: {plan.devices[0]}, True: set(plan.devices)}


@pytest.mark.parametrize("function, said", [
    (lambda x: (x, 3.0), "a single value for a shard of 2 examples"),
    (lambda x: None, "None"), (lambda x: np.zeros(5), "5 rows"),
    (lambda x: np.zeros(1), "1 row for"),
])  # fmt: skip
def test_make_parallel_needs_batches(plan, function, said):
    parallel = towers.make_parallel(function, plan.devices)
    with pytest.raises(ValueError, match=said):
        parallel(np.zeros((4, 3)))


def test_make_parallel_needs_batches_in_a_graph(tf, plan):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 3])
        with pytest.raises(ValueError, match="a single value for a shard of some examples"):
            towers.make_parallel(tf.reduce_mean, plan.devices)(x)


# Averaging


@few
@given(
    seed=st.integers(0, 999), n=st.integers(1, 5), shaped=shapes, kind=floats,
    how=st.sampled_from([None, "counts", "shares", "array", "tensors"]), data=st.data(),
)
def test_average_is_numpys(tf, seed, n, shaped, kind, how, data):
    drawn = gradients(seed, n, shaped, kind)
    missing = data.draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(1, 3))))
    size = n + seed % 7
    weights = {
        None: None,
        "counts": [len(part) for part in np.array_split(range(size), n)],
        "shares": towers.shares(size, n),
        "array": np.array(towers.shares(size, n)),
        "tensors": towers.shares(tf.constant(size), n),
    }[how]
    given_ = [[None if (i, k) in missing else tf.constant(g) for k, g in enumerate(tower)]
              for i, tower in enumerate(drawn)]
    got = towers.average(given_, weights=weights)
    for k, value in enumerate(got):
        if all((i, k) in missing for i in range(n)):
            assert value is None
            continue
        column = [0 * drawn[i][k] if (i, k) in missing else drawn[i][k] for i in range(n)]
        by = None if how is None else towers.shares(size, n)
        assert value.dtype == kind and value.shape == shaped[k]
        np.testing.assert_allclose(value, mean(column, by), **NEAR[kind])


@few
@given(
    seed=st.integers(0, 999), n=st.integers(1, 4), rows=st.integers(1, 6), kind=floats,
    data=st.data(), weighted=st.booleans(),
)
def test_average_of_sparse_gradients(tf, seed, n, rows, kind, data, weighted):
    """Rows that several towers touch, or one twice, add up; sparse stays sparse unless mixed."""
    rng = np.random.default_rng(seed)
    kinds = data.draw(st.lists(st.sampled_from(["sparse", "dense", "none"]), min_size=n,
                               max_size=n).filter(lambda kinds: set(kinds) != {"none"}))
    weights = [i + 1 for i in range(n)] if weighted else None
    towers_, dense = [], []
    for which in kinds:
        whole = np.zeros((rows, 2), kind)
        if which == "none":
            towers_.append([None])
        elif which == "dense":
            whole = rng.standard_normal((rows, 2)).astype(kind)
            towers_.append([tf.constant(whole)])
        else:
            at = rng.integers(0, rows, rng.integers(0, 5))
            values = rng.standard_normal((len(at), 2)).astype(kind)
            np.add.at(whole, at, values)
            slices = tf.IndexedSlices(tf.constant(values), tf.constant(at), tf.constant([rows, 2]))
            towers_.append([slices])
        dense.append(whole)
    (got,) = towers.average(towers_, weights=weights)
    assert isinstance(got, tf.IndexedSlices) == ("dense" not in kinds)
    value = tf.convert_to_tensor(got)
    assert value.dtype == kind
    np.testing.assert_allclose(value, mean(dense, weights), **NEAR[kind])


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


def test_average_takes_arrays(tf):
    (got,) = towers.average([[np.float32([1, 2])], [np.float32([3, 6])]], weights=[3, 1])
    np.testing.assert_allclose(got, [1.5, 3])


WRONG = [
    ([], "no gradients"),
    ([[1.0, 2.0], [1.0]], "2, 1 gradients"),
    ([[None, None], [None, None]], "every gradient is None"),
    ([[(1.0, "v")], [(1.0, "v")]], "pairs"),
    ([[np.zeros(3)], [np.zeros(4)]], r"gradient 0 has shapes \(3,\) and \(4,\)"),
]


@pytest.mark.parametrize("wrong, said", WRONG)
def test_what_cannot_be_averaged(tf, plan, wrong, said):
    towers_ = [[tf.constant(g) if isinstance(g, float | np.ndarray) else g for g in tower]
               for tower in wrong]
    for way in (towers.average, lambda each: towers.ring(each, plan.devices[: len(wrong)])):
        with pytest.raises(ValueError, match=said):
            way(towers_)


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], [0, 0], [2, -1]])
def test_weights_that_do_not_fit(tf, weights):
    with pytest.raises(ValueError, match=re.escape(f"{weights} do not fit 2")):
        towers.average([[tf.ones(2)], [tf.ones(2)]], weights=weights)


@pytest.mark.parametrize("count, size", [(2, 8), (4, 11)])
def test_one_step_is_that_of_keras_on_one_device(tf, plan, count, size):
    """From the same weights: the whole batch by Keras, its shards in towers."""
    network = networks.tensorlight(0.1)
    rng = np.random.default_rng(count)
    x, y = rng.random((size, 28, 28, 1), np.float32), rng.integers(0, 10, size)
    weights = networks.variables(network, device=plan.host, seed=count)
    values = list(weights.values())
    k = tf.keras.layers
    keras = tf.keras.Sequential([
        k.Input((28, 28, 1)),
        k.Conv2D(6, 5, padding="same", activation="relu"), k.MaxPool2D(),
        k.Conv2D(13, 5, padding="same"), k.LeakyReLU(negative_slope=0.2), k.MaxPool2D(),
        k.Flatten(), k.Dense(102, activation="relu"), k.Dense(10),
    ])
    keras.set_weights([value.numpy() for value in values])
    keras.compile(tf.keras.optimizers.SGD(0.5),
                  tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    cost = keras.train_on_batch(x, y)

    def tower(shard):
        with tf.GradientTape() as tape:
            loss = networks.loss(shard[1], networks.logits(network, weights, shard[0]))
        return [loss, *tape.gradient(loss, values)]

    @tf.function
    def step(x, y):
        shards = towers.split((x, y), count, uneven=True)
        each = towers.run(tower, [plan.devices[i % 2] for i in range(count)], shards)
        return towers.average(each, weights=towers.shares(size, count), device=plan.host)

    loss, *slopes = step(x, y)
    assert float(loss) == pytest.approx(float(cost), rel=1e-5)
    for value, slope, theirs in zip(values, slopes, keras.get_weights(), strict=True):
        np.testing.assert_allclose(value - 0.5 * slope, theirs, rtol=1e-5, atol=1e-6)


# The ring


@few
@given(seed=st.integers(0, 999), n=st.integers(1, 6), shaped=shapes, kind=floats, data=st.data())
def test_ring_is_the_average(tf, plan, seed, n, shaped, kind, data):
    drawn = gradients(seed, n, shaped, kind)
    missing = data.draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(1, 3))))
    each = [[None if (i, k) in missing else tf.constant(g) for k, g in enumerate(tower)]
            for i, tower in enumerate(drawn)]
    devices = [plan.devices[i % 2] for i in range(n)]
    averaged, around = towers.average(each), towers.ring(each, devices)
    assert len(around) == n
    for device, got in zip(devices, around, strict=True):
        for value, wanted in zip(got, averaged, strict=True):
            assert (value is None) == (wanted is None)
            if value is not None:
                assert short(value.device) == device
                np.testing.assert_allclose(value, wanted, **NEAR[kind])


def test_what_a_ring_cannot_add(tf, plan):
    dense, double = tf.ones([2, 2]), tf.ones([2], tf.float64)
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([2, 2]))
    for wrong, said in (
        ([[sparse], [dense]], "IndexedSlices"),
        ([[dense, double]] * 2, r"float32 \(2, 2\), float64 \(2,\)"),
        ([[dense]] * 3, "2 devices and 3 towers"),
    ):
        with pytest.raises(ValueError, match=said):
            towers.ring(wrong, plan.devices)


def test_four_devices():
    """Each tower on its device, and the bytes of the ring by the formula: a process of its own."""
    done = run_python(FOUR, MGPU_MODE="cores")
    assert done.stdout == "all is well\n", done.stdout + done.stderr


FOUR = """
from mgpu_helpers import devices, towers, trace
from mgpu_helpers.lessons import networks
plan = devices.setup(4)
import numpy as np
import tensorflow as tf

n, v1 = 4, tf.compat.v1
network = networks.tensorlight(0.125)
count = networks.parameters(network)
ring = {(plan.devices[i], plan.devices[(i + 1) % n]) for i in range(n)}
rng = np.random.default_rng(0)
x, y = rng.random((12, 28, 28, 1), np.float32), rng.integers(0, 10, 12)

def near(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

# One device and the whole batch, today's code.
weights = networks.variables(network)
with tf.GradientTape() as tape:
    loss = networks.loss(y, networks.logits(network, weights, x))
whole = [g.numpy() for g in tape.gradient(loss, list(weights.values()))]

# A graph: the weights on the host, a tower per device.
with tf.Graph().as_default():
    def tower(shard):
        own = networks.classic(network, device=plan.host)
        loss = networks.loss(shard[1], networks.logits(network, own, shard[0]))
        return tf.gradients(loss, list(own.values()))

    with tf.device(plan.host):
        shards = towers.split((tf.constant(x), tf.constant(y)), n)
    each = towers.run(tower, plan.devices, shards)
    assert len(v1.trainable_variables()) == len(whole)
    mean = towers.average(each, device=plan.host)
    around = towers.ring(each, plan.devices)
    taken = []
    for i, device in enumerate(plan.devices):
        with tf.device(device):
            taken.append([tf.negative(g) for g in around[i]])
    with v1.Session(config=plan.session_config()) as session:
        session.run(v1.global_variables_initializer())
        got, step = trace.session_step(session, mean)
        near(got, whole)
        for i, device in enumerate(plan.devices):
            ran = {op.device for op in step.ops if op.name.startswith(f"tower_{i}/")
                   and "/read/" not in op.name}
            assert ran == {device}, (i, ran)
        moved = step.bytes_between()
        assert all(plan.host in pair for pair in moved), moved
        for device in plan.devices:
            assert moved[device, plan.host] == 4 * count

        feed = [g for tower in each for g in tower]
        values = session.run(feed)
        got, step = trace.session_step(session, taken, dict(zip(feed, values, strict=True)))
        for of_device in got:
            near([-g for g in of_device], whole)
        moved = {p: b for p, b in step.bytes_between().items() if plan.host not in p}
        assert set(moved) == ring, moved
        for size in moved.values():
            assert abs(size - 4 * 2 * (n - 1) * count / n) <= 8, (size, count)
        assert sum(moved.values()) == 4 * 2 * (n - 1) * count

# Today's code.
@tf.function
def step(x, y):
    def tower(shard):
        with tf.GradientTape() as tape:
            loss = networks.loss(shard[1], networks.logits(network, weights, shard[0]))
        return tape.gradient(loss, list(weights.values()))
    each = towers.run(tower, plan.devices, towers.split((x, y), n))
    around = towers.ring(each, plan.devices)
    taken = []
    for i, device in enumerate(plan.devices):
        with tf.device(device):
            taken.append([tf.negative(g) for g in around[i]])
    return taken

got, traced = trace.function_step(step, x, y)
for of_device in got:
    near([-g for g in of_device], whole)
moved = {p: b for p, b in traced.bytes_between().items() if plan.host not in p}
assert set(moved) == ring and sum(moved.values()) == 4 * 2 * (n - 1) * count, (moved, count)
for i, device in enumerate(plan.devices):
    ran = {op.device for op in traced.ops if op.name.startswith(f"tower_{i}/")
           and "/read/" not in op.name}
    assert ran == {device}, (i, ran)
print("all is well")
"""
