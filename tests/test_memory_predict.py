"""What a step would hold: counted from graphs and lines through small traces, against real ones."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace

import numpy as np
import pytest

from conftest import later, run_python
from gpu_graph import recorded
from keras_models import COMPILED, built, compiled
from mgpu_helpers import devices, fit, graph, memory
from mgpu_helpers.graph.step import training_step
from mgpu_helpers.memory.liveness import counted, entered
from mgpu_helpers.memory.measuring import Measured
from mgpu_helpers.memory.order import DEVICE, in_order
from mgpu_helpers.memory.predicting import _boundary
from mgpu_helpers.memory.scratch import beside
from mgpu_helpers.trace import fit_step, function_step, read

D, MB = "/CPU:1", 10**6


def traced(plan, model, x, y):
    """Trace what fit runs; give its peak, without what libraries borrow."""
    import tensorflow as tf

    model.optimizer.build(model.trainable_variables)
    with tf.device(plan.devices[0]):
        step = tf.function(lambda x, y: model.train_step((x, y)))
        return function_step(step, x, y)[1].peak(D, scratch=False)


# Counted


def test_single_rules_as_a_real_run_has_them(tf, plan):
    """A function holds at its peak what its trace holds, but for a few numbers."""
    x = tf.random.stateless_uniform([100, 1000], (1, 2))  # 400 kB
    w = tf.random.stateless_uniform([1000, 1000], (3, 4))

    def kept(x):  # the tanh is needed again
        y = tf.tanh(x @ w)
        return tf.exp(y) + y

    def back(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(tf.nn.relu(x @ w)) @ w
        return tape.gradient(y, x, output_gradients=x)

    inner = tf.function(kept)
    for function in (
        lambda x: tf.nn.relu(tf.tanh(tf.exp(x @ w)) * 2 + 1),  # written over: one buffer
        kept,
        lambda x: tf.exp(tf.squeeze(tf.reshape(tf.identity(x @ w), [1, 1000, 100]), 0)) * 3,
        lambda x: (x @ w @ w) * tf.matmul(x @ w, w, transpose_b=True),
        lambda x: tf.exp(x @ tf.transpose(w)),  # TensorFlow lets the product turn it round
        back,
        lambda x: tf.exp(inner(x)),
        lambda x: tf.exp(tf.gather(x, tf.where(x[:, 0] < 1))),  # how many rows, only data say
        lambda x: tf.exp(tf.boolean_mask(x, x[:, 0] < 2)),
    ):
        with tf.device(plan.devices[0]):
            made = tf.function(function)
            real = function_step(made, x)[1].peak(D, scratch=False)
        got = counted(made.get_concrete_function(x).graph).peak(DEVICE)
        assert got == pytest.approx(real, rel=0.02) and real >= 400_000


def test_a_gpu_starts_what_is_ready_before_a_cpu_does(tf):
    """A CPU goes on with what became ready last, so that it needs one of four large tensors."""
    def four(x):
        y = tf.exp(x)
        return [tf.reduce_sum(tf.tile(y, [10, 1])) for _ in range(4)]

    made = tf.function(four).get_concrete_function(tf.ones([100, 1000])).graph
    assert counted(made).peak(DEVICE) == pytest.approx(11 * 400_000, rel=0.01)
    assert counted(made, broad=True).peak(DEVICE) == pytest.approx(41 * 400_000, rel=0.01)


def test_a_loop_holds_what_it_puts_into_its_lists(tf, plan):
    """12 rounds give 12 results; for the gradient each round's is kept once."""
    x = tf.ones([100, 1000])

    def rounds(x, numbers):
        kept = tf.TensorArray(tf.float32, 12)
        for i in numbers:
            x = tf.sin(x)
            kept = kept.write(i, x)
        return kept.stack()

    def back(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(12):
                y = tf.sin(y)
        return tape.gradient(y, x)

    def peak(function, **how):
        return counted(tf.function(function).get_concrete_function(x).graph, **how).peak(DEVICE)

    each = peak(lambda x: rounds(x, range(12)))  # unrolled: the list has its elements
    assert each == pytest.approx(24 * 400_000, rel=0.01)
    assert 24 * 400_000 <= peak(lambda x: rounds(x, tf.range(12)), overlap=0) <= 26 * 400_000
    lists = peak(back, overlap=0)
    assert 11 * 400_000 <= lists <= 16 * 400_000
    with tf.device(plan.devices[0]):
        assert function_step(back, x)[1].peak(D) <= 1.2 * lists


def test_in_one_thread_a_step_holds_about_what_was_counted(plan, monkeypatch):
    """For one order of its operations or the other."""
    monkeypatch.setattr(devices.plan, "_plan", replace(plan, devices=plan.devices[:1]))
    model, x, y = built("transformer", 32)
    real = traced(plan, model, x, y)
    graph = training_step(model, 32).concrete.graph
    low, high = sorted(counted(graph, broad=broad).peak(DEVICE) for broad in (False, True))
    assert 0.85 * low <= real <= 1.15 * high


@pytest.mark.parametrize("clip, times", [(None, 5), (1.0, 2)])
def test_other_threads_update_two_weights_unless_all_wait_for_the_norm(keras, plan, clip, times):
    """Each holds a gradient and the square of it, or only a gradient.

    And one a copy of the weight, which the first thread still reads.
    """
    layers = [keras.layers.Dense(n, use_bias=False) for n in (300, 300, 300, 10)]
    model = keras.Sequential([keras.Input((300,)), *layers])
    model.compile(keras.optimizers.Adam(global_clipnorm=clip), "mse")
    graph = training_step(model, 1).concrete.graph
    nodes, _ = entered(graph, 0)
    most = beside(in_order(nodes, False)).max()
    assert most == pytest.approx(times * 4 * 300**2, rel=0.01)


def test_weights_and_slots_are_exact(keras, plan):
    model = keras.Sequential([
        keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(5),
    ])  # fmt: skip
    trained = graph.parameters(model, trainable=True)
    for optimizer, each in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        held = memory.predict(model, 3, optimizer)
        assert held.weights == 4 * model.count_params() > 4 * trained
        # For each weight that is trained; the number of steps takes 8 bytes, the learning rate 4.
        assert held.slots == 4 * each * trained + 12
        mean_loss = 8  # the state of the metric that every step has
        assert held.total == held.weights + held.slots + held.trace.peak(DEVICE) + mean_loss


# In each of these something else makes the peak: what metrics or a loss hold, a branch, slots.
FEW = "words-accuracy", "mixed-embedding", "lion"
REST = [pytest.param(each, marks=pytest.mark.thorough) for each in COMPILED if each not in FEW]


@pytest.mark.parametrize("name", [*FEW, *REST])
def test_what_compile_was_given_is_counted(plan, name):
    model, x, y = compiled(name)
    held = memory.predict(model, 32)
    assert not model.optimizer.built
    real = traced(plan, model, x, y) + held.weights + held.slots
    assert held.low < real < held.high
    assert held.slots == sum(v.numpy().nbytes for v in model.optimizer.variables)


def test_the_most_has_a_copy_of_a_weight_that_an_update_writes_and_the_least_has_none(plan):
    """A kernel is there twice, beside its gradient; or not, as threads happen to go.

    AdamW's decay copies a weight that is read after it; in one trace of seven it comes late. Lion
    scales its slots when it wants them, or all of them before; in one of twelve it waited.
    """
    import keras_ranges  # which needs the plan

    wide = memory.predict(keras_ranges.made("wide"), 32)
    kernel = 4 * 1500**2
    assert wide.weights + 1.9 * kernel < wide.high < 2 * wide.low
    for name, traced_once in (("adamw", 4_318_256), ("lion", 4_320_000)):
        held = memory.predict(compiled(name)[0], 32)
        assert held.low < traced_once < held.weights + held.slots + 6 * 4 * 300**2


def test_gradients_are_gradients(keras, plan):
    """Where the weights are nearly everything, the peak has a gradient of each of them at least."""
    for name in ("mixed", "lion"):
        model = compiled(name)[0]
        held = memory.predict(model, 1)
        half = 2 if name == "mixed" else 1
        assert held.weights / half <= held.gradients <= 4 * held.weights, name
        assert held.gradients > 10 * held.activations
    assert held.low < held.total
    sgd = memory.predict(model, 1, "sgd")  # but not the weights themselves
    assert sgd.weights + sgd.slots <= sgd.low < sgd.total
    lstm = keras.Sequential([keras.Input((40, 32)), keras.layers.LSTM(64), keras.layers.Dense(1)])
    held = memory.predict(lstm, 128)  # nor is what a loop works with on its way back
    assert held.gradients < 2 * held.weights < held.activations / 50
    wide = keras.Sequential([keras.Input((40, 900)), keras.layers.LSTM(4), keras.layers.Dense(1)])
    x = 128 * 40 * 900 * 4  # turned to go by steps, and once more as a list of them
    assert 2 * x < memory.predict(wide, 128, "sgd").activations < 2.2 * x
    norm = keras.Sequential([keras.Input((64, 64, 8)), keras.layers.BatchNormalization()])
    assert memory.predict(norm, 16, "sgd").gradients < 1000  # its averages are no gradients


def test_what_cudnn_keeps_of_a_recurrent_layer_is_counted_as_an_h100_kept_it(keras, monkeypatch):
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)  # so Keras chooses on a GPU
    metadata, model = recorded("lstm"), built("lstm", 64)[0]
    nodes = [n for d in metadata.step_stats.dev_stats for n in d.node_stats
             if n.output and n.node_name.endswith("CudnnRNNV3")]  # fmt: skip
    sizes = [{o.slot: math.prod(dim.size for dim in o.tensor_description.shape.dim)
              for o in node.output} for node in nodes]  # fmt: skip
    assert [each[3] for each in sizes] == pytest.approx([5 * each[0] for each in sizes], rel=1e-3)
    held = memory.predict(model, 64)
    there = held.weights + held.slots
    assert held.low <= read(metadata).peak("/GPU:0", scratch=False) + there <= held.high
    gru = keras.Sequential([keras.Input((8, 4)), keras.layers.GRU(4), keras.layers.Dense(1)])
    assert memory.fits(gru, 10**6) > 1 and memory.plan(gru, 16, 2).ways


@pytest.mark.parametrize("optimizer, times", [("rmsprop", 3), later("adafactor", 2)])
def test_an_optimizer_that_first_adds_up_the_rows_of_words_is_counted(
    keras, tf, plan, optimizer, times
):
    """Of 128 times 40 words there may be as many rows, where only the data say how many are one.

    Of RMSprop's, two threads may make the squares and what is subtracted at once: neither can write
    over the gradient.
    """
    layers = keras.layers
    with tf.device(plan.devices[0]):
        given = keras.Input((40,))
        mean = layers.GlobalAveragePooling1D()(layers.Embedding(1000, 32)(given))
        model = keras.Model(given, layers.Dense(1)(mean))
        model.compile(optimizer, "mse")
    words = np.random.default_rng(0).integers(0, 1000, (128, 40))
    found = memory.predict(model, 128)
    there = found.weights + found.slots
    held = [traced(plan, model, words, np.zeros([128, 1], "f")) + there for _ in range(3)]
    assert found.low <= min(held) and max(held) <= found.high
    assert 0.8 < found.total / min(held) < 1.2  # of three, one has them one after the other
    assert found.high - found.weights - found.slots > times * 4 * 128 * 40 * 32


def test_fits_is_the_boundary_of_predict(keras, plan):
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
    model.compile("sgd", "mse")
    budget = memory.predict(model, 500).high
    assert memory.fits(model, float(budget)) == 500
    assert memory.fits(model, budget - 1) == 499
    with pytest.raises(OverflowError):
        memory.fits(model, float("inf"))


@pytest.mark.parametrize("guess", [1, 40, 99, 100, 101, 5000])
def test_the_boundary_is_found_from_any_guess(guess):
    """Of a step that holds most at another moment from a batch of 60 on."""
    asked = []

    def high(batch):
        asked.append(batch)
        return max(1000 + batch, 40 + 17 * batch)

    assert _boundary(high, high(100), guess) == 100
    assert _boundary(high, high(101) - 1, guess) == 100
    assert len(asked) < 45


# Measured


def test_a_line_through_traces_of_a_step_that_holds_so_much_for_each_example(tf, plan):
    with tf.device(plan.devices[0]):
        w = tf.Variable(tf.ones([50, 1000]))
    with tf.device(plan.devices[1]):
        elsewhere = tf.Variable(1.0)

    @tf.function
    def step(x):  # two products of 4 kB an example, and a copy of the weights at all batches
        with tf.device(plan.devices[0]):
            w.assign_add(tf.ones_like(w))
            y = x @ w
            return tf.reduce_sum(tf.sin(y) * y) + elsewhere

    def of(batch):
        return step, np.ones((batch, 50), np.float32)

    found = memory.measure(of, (100, 200, 300))
    assert found.device == D and found.variables == 200_000
    expected = function_step(*of(1000))[1].peak(D)
    said = found.at(1000)
    assert said.bytes == pytest.approx(expected, rel=0.02) and said.low <= expected <= said.high
    assert said.total == said.bytes + 200_000 and not said.doubts
    assert "trace batch 1000 or more" in repr(found.at(4000))


def test_a_peak_that_moves_is_seen(tf, plan):
    """A copy of large weights is the peak at small batches, the batch at large ones."""
    def of(batch):
        def step(x):
            with tf.device(plan.devices[0]):
                large = tf.reduce_sum(tf.exp(tf.fill([500_000], x[0, 0])))
                with tf.control_dependencies([large]):
                    return large + tf.reduce_sum(tf.exp(tf.tile(x, [1, 1000])))

        return step, tf.ones([batch, 1])

    found = memory.measure(of, (10, 100, 2000), repeats=1)
    assert "batch 10, 100" in found.doubts[0] and found.doubts[0] in repr(found)
    assert memory.measure(of, (1000, 2000, 3000), repeats=1).doubts == ()


def at(batch, peaks):
    """Estimate a batch from peaks in MB."""
    held = {b: tuple(int(peak * MB) for peak in each) for b, each in peaks.items()}
    return Measured(D, held, 0).at(batch)


def test_the_error_is_what_95_of_100_steps_stay_within():
    # Off a line with a slope of 50 by 10/3, 20/3 and 10/3; Student's t for one degree is 12.706.
    said = at(4, {1: (100,), 2: (160,), 3: (200,)})
    scatter = (200 / 3) ** 0.5
    assert said.bytes == pytest.approx(760 / 3 * MB)
    assert said.error == pytest.approx(12.706 * scatter * (1 + 1 / 3 + 2) ** 0.5 * MB, rel=1e-4)
    exact = at(600, {b: (5 + b / 10,) for b in (100, 200, 300)})
    assert (exact.bytes, exact.error) == pytest.approx((65 * MB, 0.05 * 65 * MB), rel=1e-4)
    apart = at(3, {1: (10, 12), 2: (22,) * 20, 3: (33,) * 20})  # 20 % at one of the batches
    assert apart.error == pytest.approx(0.2 * apart.bytes, rel=1e-4)
    two = at(400, {100: (10,), 200: (25,)})
    assert two.low == 0 and "third" in two.doubts[0]


# Bad input


@pytest.mark.parametrize("wrong, said", [
    (lambda: memory.predict(compiled("lion")[0], 0), "batch=0.*, 1 or more"),
    (lambda: memory.plan(compiled("lion")[0], 8, budget=math.nan), "budget=nan"),
    (lambda: memory.fits(compiled("lion")[0], 1000), "1 kB do not hold dense.*stages=2"),
    (lambda: memory.predict(remade(), 4), "RematScope"),
    (lambda: memory.predict(endless(), 4), "as often as its data say.*memory.measure"),
    (lambda: memory.measure(ones, (8, 8)), "two different batches"),
    (lambda: memory.measure(ones, (4, 8), "/GPU:7", repeats=1), "nothing on /GPU:7"),
])  # fmt: skip
def test_what_cannot_be_counted_says_why(plan, wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def ones(batch):
    import tensorflow as tf

    return tf.sin, tf.ones([batch])


def remade():
    import keras

    with keras.RematScope("full"):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def endless():
    import keras
    import tensorflow as tf

    class Until(keras.layers.Layer):
        def call(self, x):
            return tf.while_loop(lambda x: tf.reduce_sum(x) < 9, lambda x: [x + x * x], [x])[0]

        def compute_output_shape(self, shape):
            return shape

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Until()])


# A table: models as people have them, in each way to train


@pytest.mark.parametrize("name, kernels", [
    ("wide", "1"), later("autoencoder", "0"),
    *(pytest.param(name, kernels, marks=pytest.mark.thorough)
      for name in ("text", "images", "unet", "MobileNet") for kernels in "10"),
])  # fmt: skip
def test_a_traced_step_holds_what_is_printed(name, kernels):
    """With oneDNN and without, alone, over two devices, in pieces, and in parts."""
    batch = 8 if name == "MobileNet" else 32
    said = run_python(
        "from mgpu_helpers import devices, memory, scaling\n"
        "plan = devices.setup(2)\n"
        "import keras_ranges as t\n"
        f"rows = [*t.compared(plan, {name!r}, {batch})]\n"
        f"made = t.made({name!r})\n"
        "with t.fit.strategy(plan).scope():\n"
        f"    scoped = t.made({name!r})\n"
        "same = [scaling.Workload.of(each, 'it') for each in (made, scoped)]\n"
        f"print([rows, same[0] == same[1], memory.predict(made, {batch}).borrowed])",
        timeout=500, MGPU_MODE="cores", CUDA_VISIBLE_DEVICES="-1", TF_ENABLE_ONEDNN_OPTS=kernels,
    ).stdout  # fmt: skip
    rows, same, borrowed = eval(said.splitlines()[-1])
    assert [row["way"] for row in rows][0] == "fit" and len(rows) >= 4 and same
    assert not [row for row in rows if not row["inside"]]
    assert np.median([row["high"] / row["low"] for row in rows]) < 2.3
    assert (borrowed > 0) == (kernels == "0" and name not in ("wide", "text"))


# Laid out by fit.use


@pytest.mark.parametrize("kind, options", [
    ("dense", {"pieces": 4}), ("words", {"pieces": 3, "recompute": True}),
    later("dense", {"pieces": 3, "recompute": True}), later("words", {"pieces": 4}),
])  # fmt: skip
def test_a_model_in_pieces_is_counted_as_its_loop_runs(kind, options, tf, keras, plan):
    """Also where pieces are not even, and where sparse gradients grow from round to round."""
    layers = keras.layers
    with tf.device(plan.devices[0]):
        first = [keras.Input((256,)), layers.Dense(256, "tanh")]
        if kind == "words":
            first = [keras.Input((32,), dtype="int32"), layers.Embedding(500, 64)]
        model = keras.Sequential([*first, layers.Dense(128, "tanh"), layers.Dense(10)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    fit.use(model, **options)
    predicted, x = memory.predict(model, 256), np.ones((256, *model.input_shape[1:]), "f")
    batch = x, np.ones((256, *model.output_shape[1:]), "f")
    for _ in range(2):
        with tf.device(plan.devices[0]):
            peak = fit_step(model, batch).peak(D, scratch=False)
        real = predicted.weights + predicted.slots + peak
        assert predicted.low <= real <= predicted.high < 2 * predicted.low


@pytest.mark.parametrize("options", [{}, {"stages": 2, "pieces": 2}])
def test_to_count_a_model_that_is_laid_out_leaves_it_as_it_was(options, keras, plan):
    """It is counted as on one device, for the optimizer that is named, and trains after it."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    ways = memory.plan(model, 12, 2).ways
    fit.use(model, plan.devices[:2], **options)
    assert memory.predict(model, 12, "sgd").slots < 100 < memory.predict(model, 12).slots
    assert memory.plan(model, 12, 2).ways == ways and not model.optimizer.built
    model.fit(np.ones((12, 8)), np.ones((12, 2)), verbose=0)
    assert fit.layout(model).devices == plan.devices[:2]
