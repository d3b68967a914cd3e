"""What `fit` compiles with XLA on each device: equal to one device, with few operations left."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fit_models
from conftest import ROOT, STARTUP, later
from fit_models import X, Y
from mgpu_helpers import cluster, fit
from mgpu_helpers.fit import _islands
from mgpu_helpers.fit._islands import Compiled

SEQUENCES = np.random.default_rng(1).normal(size=(27, 5, 4))
EVEN = X[:20], Y[:20]  # XLA compiles again for each size of a batch


@pytest.fixture
def made(monkeypatch) -> Iterator[list[Compiled]]:
    """Keep the functions that are compiled in a test."""
    kept: list[Compiled] = []
    monkeypatch.setattr(_islands, "Compiled", lambda *of: kept.append(Compiled(*of)) or kept[-1])
    yield kept


def of_training(made: list[Compiled]) -> Any:
    """Give what was made of a step of training: that with the most operations."""
    return max((each.islands for each in made), key=lambda each: sum(n for _, n in each.sizes))


def started(islands: Any) -> int:
    """Count the operations that a step starts, but those that compute nothing."""
    idle = ("ReadVariableOp", "AssignVariableOp", "Identity", "Iterator", "Optional", "Slice")
    alone = {k: n for k, n in islands.alone.items() if not any(each in k for each in idle)}
    return len(islands.sizes) + sum(alone.values())


def results(
    make: Callable[[], Any], plan: Any, way: str, compiled: bool, data: Any, whole: bool
) -> list[Any]:
    """Train a model that is made in a scope or laid out, compiled or not; use it where whole."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    devices = getattr(plan, "devices", plan)
    with fit.strategy(devices).scope() if way == "strategy" else tf.device(devices[0]):
        model = make()
    if way == "shares":
        fit.use(model, devices)
    elif way == "pieces":
        fit.use(model, pieces=2)
    model.jit_compile = compiled
    x, y = data
    seen = [*model.fit(x, y, batch_size=10, shuffle=False, verbose=0).history.values()]
    if whole:
        seen += [
            model.evaluate(x, y, batch_size=10, verbose=0), model.train_on_batch(x[:8], y[:8]),
            model.predict(x, batch_size=10, verbose=0), model.predict_on_batch(x[:3]),
        ]  # fmt: skip
    return [*seen, *(v.numpy() for v in model.variables)]


def same(
    make: Callable[[], Any], plan: Any, way: str, near: float = 1e-11, data: Any = EVEN,
    whole: bool = False,
) -> None:  # fmt: skip
    wanted = results(make, plan, way, False, data, whole)
    for a, b in zip(results(make, plan, way, True, data, whole), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=near, atol=near)


def sequential(*inside: Any, **compiled: Any) -> Callable[[], Any]:
    """Make what makes a model with layers in its middle."""

    def make() -> Any:
        import keras

        layers = [each() for each in inside]
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), *layers,
                                  keras.layers.Dense(3, dtype=keras.config.floatx())])  # fmt: skip
        model.compile("adam", fit_models.cross(), metrics=["accuracy"], **compiled)
        return model

    return make


def test_one_row_is_one_function_and_replicas_are_two_each(keras, plan, double, made):
    """Reading and writing variables beside; a replica: up to the gradients, and the update.

    The first one adds up the gradients by itself, since the other waits for that, not for more.
    """
    make = sequential()
    same(make, plan.devices[:1], "shares")
    assert len(of_training(made).sizes) == 1
    made.clear()
    same(make, plan, "strategy", data=(X, Y))
    where = [where for where, _ in of_training(made).sizes]
    assert where == [*plan.devices, plan.devices[0], *plan.devices]
    assert started(of_training(made)) <= 15 * len(plan)  # most for the sizes of shares


def test_compiled_devices_compute_in_threads_of_their_own(tf, plan, tmp_path):
    """In threads of the processor they would take turns."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    @tf.function(jit_compile=True)
    def branches(x):
        return tf.stack([tf.tanh(x @ (x + i)) @ x for i in range(24)])

    def on_each() -> None:
        for device in plan.devices:
            with tf.device(device):
                branches(tf.ones([64, 64]))

    on_each()  # which compiles
    with tf.profiler.experimental.Profile(str(tmp_path)):
        on_each()
    (file,) = tmp_path.rglob("*.xplane.pb")
    threads = {
        line.id for plane in XSpace.FromString(file.read_bytes()).planes for line in plane.lines
        if "Eigen" in line.name
        for event in line.events if "Thunk" in plane.event_metadata[event.metadata_id].name
    }  # fmt: skip
    assert len(threads) == len(plan)


def test_others_wait_for_the_loss_of_all_and_not_for_a_way_back(keras, tf, plan, made):
    """An island gives all at its end; so what computes the loss gives it before it goes on."""
    first, other = plan.devices
    with tf.device(first):
        model = fit_models.dense(*(keras.layers.Dense(5) for _ in range(9)), jit_compile=True)
        model.optimizer.build(model.trainable_variables)
    fit.use(model, plan).fit(X[:20], Y[:20], batch_size=20, verbose=0)
    ran = [(where, n) for where, n in of_training(made).sizes if n > 5]
    assert [where for where, _ in ran] == [first, other, first, first, other, first]
    assert 3 * ran[2][1] <= ran[3][1]
    made.clear()
    with tf.device(plan.host):  # where all but the loss is little, the first device still gives it
        model = fit_models.dense(keras.layers.Dense(5), jit_compile=True)
        model.optimizer.build(model.trainable_variables)
    fit.use(model, plan).fit(X[:20], Y[:20], batch_size=20, verbose=0)
    assert [where for where, _ in of_training(made).sizes].count(first) == 3


def test_replicas_that_compute_the_same_share_a_function(keras, plan, made):
    """Although each takes another part of the batch."""
    with fit.strategy(plan).scope():
        model = fit_models.dense(jit_compile=True)
    model.predict(X[:16], batch_size=8, verbose=0)
    (islands,) = [each.islands for each in made if each.islands.sizes]
    assert [where for where, _ in islands.sizes] == [*plan.devices]
    assert len(islands.functions) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["strategy", "shares"])
def test_loops_are_compiled_or_run_between(keras, plan, double, made, way):
    """A strategy's are within a function where a graph knows the batch's size, as in its
    train_on_batch; rows meet between the loops forward and back."""

    def make() -> Any:
        model = keras.Sequential([
            keras.Input((5, 4)), keras.layers.LSTM(6), keras.layers.Dense(3)
        ])  # fmt: skip
        model.compile("adam", fit_models.cross(), metrics=["accuracy"])
        return model

    same(make, plan, way, data=(SEQUENCES, Y), whole=True)
    loops = [each.islands.alone["StatelessWhile"] for each in made if len(each.islands.sizes) > 3]
    assert (min(loops) == 0) == (way == "strategy") and max(loops) > 0


def test_half_precision_scales_and_skips_as_without(keras, tf, plan, made):
    with fit_models.policy("mixed_float16"):
        make = sequential()
        same(make, plan, "strategy", 1e-3, (EVEN[0].astype("f"), EVEN[1]))
        assert of_training(made).sizes


def test_pieces_of_one_size_are_so_long_for_xla_too(keras, plan, double, made):
    """Of a model that lies where it was made, the loop is compiled with the cut of its piece."""
    same(sequential(), plan, "pieces")


def test_several_steps_in_one_call(keras, plan, double, made):
    same(sequential(steps_per_execution=2), plan, "shares")
    assert not {"MatMul", "Tanh"} & of_training(made).alone.keys()


def doubled() -> Any:
    """Make a layer with what XLA does not know."""
    import keras
    import tensorflow as tf

    class Doubled(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            y = tf.numpy_function(lambda a: 2 * a, [tf.stop_gradient(x)], x.dtype)
            return x + tf.ensure_shape(y, x.shape)

    return Doubled()


def sine() -> Any:
    """Make a layer that is compiled already."""
    import keras
    import tensorflow as tf

    return keras.layers.Lambda(tf.function(tf.sin, jit_compile=True))


@pytest.mark.parametrize("inside, said, way", [
    (doubled, ["PyFunc"], "shares"), later(sine, [], "strategy"),
])  # fmt: skip
def test_what_xla_does_not_know_runs_between_and_is_named(
    keras, plan, double, inside, said, way
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(sequential(inside), plan, way)
    told = [str(each.message) for each in caught if "XLA has no" in str(each.message)]
    assert all(kind in told[0] for kind in said) and bool(told) == bool(said)


def test_data_of_open_lengths_run_without(keras, tf, plan, made):
    data = tf.data.Dataset.range(3, 6).map(lambda n: (tf.ones((4, n, 1)), tf.ones(4)))
    layers = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((None, 1)), *layers])
    model.compile("sgd", fit_models.cross(), jit_compile=True)
    with pytest.warns(UserWarning, match="None, 1"):
        fit.use(model, plan).fit(data, verbose=0)
    assert made and not any(each.islands.sizes for each in made)


def test_a_layout_says_whether_it_is_compiled_whatever_compile_says(keras, plan, made):
    for asked, wanted in ((True, False), (False, True)):
        made.clear()
        model = fit_models.dense(optimizer="sgd", metrics=None, jit_compile=asked)
        fit.use(model, plan, compiled=wanted)
        model.fit(X[:4], Y[:4], verbose=0)
        assert any(each.islands.sizes for each in made) == wanted
        assert fit.alone(model).jit_compile == asked


def test_what_runs_twice_is_not_taken_for_the_first_time(keras, tf, plan):
    """XLA computes once what is written twice, unless it cannot know: three exponentials are."""
    from mgpu_helpers.fit._islands import Islands

    @tf.function
    def step(x: Any) -> Any:
        first = tf.exp(x)
        with tf.control_dependencies([first]):
            again = tf.exp(tf.identity(x, name="again"))
        return tf.reduce_sum(first) * tf.reduce_max(again) + tf.reduce_min(tf.exp(x))

    concrete = step.get_concrete_function(tf.TensorSpec([4], "float32"))
    islands = Islands(["/CPU:0"])
    given = tf.constant([1.0, 2.0, 3.0, 4.0])
    run = tf.function(lambda x: islands.made_of(concrete.graph, [x])[0], autograph=False)
    np.testing.assert_allclose(run(given), step(given), rtol=1e-6)
    (function,) = islands.functions.values()
    text = function.experimental_get_compiler_ir(given)(stage="hlo")
    assert "opt-barrier" in text


def test_what_waits_for_a_part_of_an_island_waits_for_the_island(tf, plan):
    """Also for what the island gives nobody: so devices keep to the order of a schedule."""
    first, second = plan.devices

    @tf.function
    def step(x: Any) -> Any:
        with tf.device(first):
            made = tf.exp(tf.tanh(tf.sin(x)))
        with tf.device(second), tf.control_dependencies([made.op.inputs[0].op]):
            other = tf.math.asin(tf.reduce_max(x) * 0.1)
        return made, other

    graph = step.get_concrete_function(tf.TensorSpec([4], "float32")).graph
    islands = _islands.Islands([first])
    run = tf.function(lambda x: islands.made_of(graph, [x]), autograph=False)
    made = run.get_concrete_function(tf.TensorSpec([4])).graph
    ops = {op.type: op for op in made.get_operations() if op.control_inputs or op.type[0] == "P"}
    assert [where for where, _ in islands.sizes] == [first]
    assert ops["Max"].control_inputs == [ops["PartitionedCall"]]


def test_a_variable_that_is_given_twice_is_one(tf):
    """What is assigned by one handle is read by the other."""
    kept = tf.Variable(1.0)

    @tf.function
    def step(one: Any, two: Any) -> Any:
        tf.raw_ops.AssignVariableOp(resource=one, value=tf.constant(3.0))
        return tf.raw_ops.ReadVariableOp(resource=two, dtype=tf.float32) * 2

    of = tf.TensorSpec([], "resource")
    graph = step.get_concrete_function(of, of).graph
    islands = _islands.Islands(["/CPU:0"])
    run = tf.function(lambda: islands.made_of(graph, [kept.handle] * 2)[0], autograph=False)
    assert run().numpy() == 6 and kept.numpy() == 3


@pytest.mark.thorough
def test_a_gradient_through_a_gradient_is_right(keras, tf, plan, double, made):
    """As of the penalty of a Wasserstein GAN."""

    class Steep(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    given = self(x, training=True)
                steep = tf.square(inner.gradient(given, x))
                loss = self.compute_loss(x, y, given) + tf.reduce_mean(steep)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    def make() -> Any:
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        model = Steep([keras.Input((6,)), *layers])
        model.compile("adam", "mse")
        return model

    same(make, plan, "strategy", data=(X, fit_models.NUMBERS))
    assert "Tanh" not in of_training(made).alone


@pytest.mark.thorough
def test_a_mobilenet_starts_few_operations(keras, plan, made):
    """Of 52 synchronized BatchNormalizations each adds up twice; without there are two parts."""
    for synchronized, most in ((False, 12), (True, 600)):
        made.clear()
        with fit.strategy(plan, synchronized=synchronized).scope():
            model = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=3)
            model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
        images = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("f")
        model.fit(images, np.arange(8) % 3, batch_size=8, verbose=0)
        assert started(of_training(made)) <= most * len(plan)


WORKER = """
import json
import fit_models
import test_fit_compiled as of
made, Compiled = [], of.Compiled
of._islands.Compiled = lambda *args: made.append(Compiled(*args)) or made[-1]
with fit_models.double():
    found = of.results(of.sequential(), None, "strategy", True, of.EVEN, False)
islands = sum(len(each.islands.sizes) for each in made)
print(json.dumps({"history": found[:2], "islands": islands}))
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("workers")
def test_two_workers_are_compiled_each(plan, double, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'tests'}")
    (tmp_path / "train.py").write_text(WORKER)
    report = cluster.run(
        tmp_path / "train.py", workers=2, logs=tmp_path, stalled=STARTUP, progress=False
    )
    assert report.ok, report
    history = results(sequential(), plan, "alone", False, EVEN, False)[:2]
    for worker in report:
        np.testing.assert_allclose(worker.result["history"], history, rtol=1e-11)
        assert worker.result["islands"] >= 2
