"""What a function asks for, counted from its graph: against sums by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fit_models import policy
from keras_models import built
from mgpu_helpers import graph, pipeline
from mgpu_helpers._layers import LayerGraph
from mgpu_helpers.graph import cuts
from mgpu_helpers.trace import Op, Trace

# FLOP


def test_an_lstm_and_a_transformer_by_hand(plan):
    """Four gates, each from the input and the state, in 24 steps; then 3 scores of 16 numbers."""
    first, second = 2 * 24 * 4 * 16 * 8, 2 * 24 * 4 * 16 * 16
    # 40 tokens of width 32, two heads of 16; each head multiplies 40 by 40 scores twice.
    projections, heads, inner = 4 * 40 * 32 * 32, 2 * 2 * 40 * 40 * 16, 2 * 40 * 32 * 64
    forward = {"lstm": first + 3 * second + 2 * 16 * 3,
               "transformer": 2 * (projections + heads + inner + 32 * 5)}  # fmt: skip
    # Back: for weights and for what came in, which the first layer of the LSTM is spared.
    for name, spared in ("lstm", first), ("transformer", 0):
        model = built(name)[0]
        assert graph.flops(model) == forward[name]
        assert graph.flops(model, batch=5, training=True) == 5 * (3 * forward[name] - spared)


def back(tf, x, w):
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = tf.nn.conv3d(x, w, [1, 2, 2, 2, 1], "SAME")
    return tape.gradient(y, [x, w])


@pytest.mark.parametrize("function, shapes, wanted", [
    # Of convolutions: the numbers of the result, times those that are summed for each.
    (lambda tf, x, w: tf.nn.conv2d(x, w, 2, "SAME"), ([2, 8, 8, 3], [5, 3, 3, 4]),
     2 * (2 * 4 * 4 * 4) * (5 * 3 * 3)),
    (lambda tf, x, w: tf.nn.conv2d(x, w, 1, "VALID"), ([2, 8, 8, 3], [3, 3, 1, 6]),
     2 * (2 * 36 * 6) * 9),
    (lambda tf, x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"), ([2, 8, 8, 3], [3, 3, 3, 2]),
     2 * (2 * 8 * 8 * 6) * 9),
    (back, ([1, 4, 4, 4, 2], [2, 2, 2, 2, 7]), 2 * 2 * (8 * 7) * 16),
    (lambda tf, x, w: tf.nn.conv2d_transpose(x, w, [2, 16, 16, 5], 2), ([2, 8, 8, 3], [3, 3, 5, 3]),
     2 * (2 * 8 * 8 * 3) * (9 * 5)),
    (lambda tf, x, w: tf.matmul(x, w, transpose_b=True), ([6, 2, 3], [6, 5, 3]), 360),
    (lambda tf, x, w: tf.matmul(x, w, transpose_a=True), ([3, 2], [3, 5]), 60),
    (lambda tf, x, w: tf.einsum("...ij,...kj->...ik", x, w), ([6, 2, 3], [6, 5, 3]), 360),
    (lambda tf, x, w: tf.einsum("bij->bi", x), ([6, 2, 3], [1]), 0),
    (lambda tf, x, w: tf.nn.relu(x) + tf.reduce_sum(x), ([6, 2, 3], [1]), 0),
])  # fmt: skip
def test_what_is_counted_of_each_operation(tf, function, shapes, wanted):
    assert graph.flops(lambda x, w: function(tf, x, w), *map(tf.zeros, shapes)) == wanted


@pytest.mark.parametrize("direction, ways", [("unidirectional", 1), ("bidirectional", 2)])
def test_recurrent_layers_of_cudnn(tf, direction, ways):
    """Two layers of an LSTM, 7 steps of a batch of 5: 3 numbers to 4 units, and theirs to 4."""

    def run(x, state, weights):
        return tf.raw_ops.CudnnRNNV3(
            input=x, input_h=state, input_c=state, params=weights, sequence_lengths=[7] * 5,
            rnn_mode="lstm", input_mode="linear_input", direction=direction,
        ).output  # fmt: skip

    given = tf.TensorSpec([7, 5, 3]), tf.TensorSpec([2 * ways, 5, 4]), tf.TensorSpec([999])
    each = 2 * 7 * 5 * 4 * 4 * ((3 + 4) + (ways * 4 + 4))  # four gates of four units
    assert graph.flops(run, *given) == ways * each


def test_what_nobody_uses_is_not_counted(tf):
    square = tf.zeros([10, 10])

    def two(x):
        return x @ x, (x @ x) @ x

    def waits(x):
        with tf.control_dependencies([x @ x]):
            return tf.identity(x)

    inner = tf.function(two)
    assert graph.flops(lambda x: (x @ x, x)[1], square) == 0
    assert graph.flops(waits, square) == 2000  # it runs, though nobody uses what it gives
    assert graph.flops(two, square) == 6000
    assert graph.flops(lambda x: inner(x)[0], square) == 2000
    assert graph.flops(inner.get_concrete_function(square)) == 6000


@pytest.mark.parametrize("rounds", [0, 7])
def test_a_loop_counts_as_often_as_it_runs(tf, rounds):
    square, several = tf.zeros([10, 10]), tf.zeros([rounds, 10, 10])

    def by_number(x):
        for _ in tf.range(rounds):
            x = x @ x
        return x

    def beside(x):  # a product that goes round and that nobody takes out
        _, x, _ = tf.while_loop(lambda i, x, y: i < rounds, lambda i, x, y: (i + 1, x @ x, y @ y),
                                (0, x, x))  # fmt: skip
        return x

    def twice(x):
        inner = tf.size(x[0, :3])  # goes round as it is
        for _ in tf.range(rounds):
            for _ in tf.range(inner):
                x = x @ x
        return x

    def back(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = by_number(x)
        return tape.gradient(y, x)

    assert graph.flops(by_number, square) == graph.flops(beside, square) == 2000 * rounds
    assert graph.flops(lambda s: tf.map_fn(lambda x: x @ x, s), several) == 2000 * rounds
    assert graph.flops(twice, square) == 6000 * rounds
    assert graph.flops(back, square) == 3 * 2000 * rounds


def test_what_data_decide_is_not_known_and_says_why(tf):
    square = tf.zeros([10, 10])
    chosen = tf.function(lambda x: tf.cast(x[0, 0], tf.int32))

    def until(x):
        while tf.reduce_sum(x) < 100:
            x = x @ x
        return x

    def sparse(x):
        multiply = tf.raw_ops.SparseTensorDenseMatMul
        return multiply(a_indices=[[0, 0]], a_values=x[0, :1], a_shape=[2, 2], b=x[:2])

    # Of branches the dearer one counts; a loop without products costs nothing, whatever data say.
    for function, wanted in (
        (lambda x: tf.cond(x[0, 0] > 0, lambda: x @ x, lambda: (x @ x) @ x), 4000),
        (lambda x: tf.switch_case(chosen(x), [lambda: x, lambda: x @ x]), 2000),
        (lambda x: tf.while_loop(lambda x: x[0, 0] < 9, lambda x: [x + x], [x]), 0),
    ):
        assert graph.flops(function, square) == wanted
    for function, given, *why in (
        (until, square, "while", "2,000"),
        (lambda x: x @ square, tf.TensorSpec([None, 10]), "(None, 10)"),
        (sparse, square, "SparseTensorDenseMatMul"),
    ):
        said = graph.count(function, given)
        assert said.flops is None and "not known" in repr(said)
        assert all(word in said.reason for word in why)


# The training step as a graph


def test_the_step_is_the_one_that_keras_takes_and_leaves_the_model_as_it_is(tf, keras):
    """It has the products, the updates and the loss of what `train_on_batch` runs."""
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((6,)), layers.Dense(8, "gelu"), layers.LayerNormalization(),
        layers.Dropout(0.1), layers.Dense(5, "softmax"),
    ])  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y = tf.ones([4, 6]), tf.zeros([4], "int64")
    before, seen = [weight.numpy() for weight in model.weights], len(model.optimizer.variables)
    momentum = graph.training_step(model, 4, "momentum").slots
    assert len(momentum) == 2 + len(model.trainable_variables)
    shapes = [v.shape for v in graph.training_step(model, 4).slots]
    assert not model.optimizer.built and len(model.optimizer.variables) == seen
    np.testing.assert_equal([weight.numpy() for weight in model.weights], before)
    model.optimizer.build(model.trainable_variables)
    theirs = tf.function(lambda x, y: model.train_step((x, y))).get_concrete_function(x, y)
    step = graph.training_step(model, 4, None)
    assert all(a is b for a, b in zip(step.slots, model.optimizer.variables, strict=True))

    def kinds(concrete, *parts):
        found = [op.type for op in concrete.graph.get_operations()]
        return {kind: found.count(kind) for kind in found if any(part in kind for part in parts)}

    parts = "MatMul", "AssignSub", "CrossEntropy", "Erf", "Random", "Rsqrt"
    found = kinds(step.concrete, *parts)
    assert found == kinds(theirs, *parts) and len(found) >= len(parts)
    assert shapes == [v.shape for v in model.optimizer.variables]


def test_a_step_with_what_cannot_be_made_twice_leaves_it_whole(keras):
    """Metrics that make their variables in a step, a rate and a loss that Keras does not know."""

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    def loss(y, outputs):  # takes whole numbers, and no name says so
        return keras.losses.SparseCategoricalCrossentropy()(y, outputs)

    given = keras.Input((3,), name="a")
    scores = keras.layers.Dense(4, "softmax")(given)
    hot, sparse = keras.Model({"a": given}, scores), keras.Model([given], [scores])
    several = [keras.metrics.F1Score(), keras.metrics.AUC(multi_label=True), "accuracy"]
    hot.compile(keras.optimizers.Adam(Rate()), "categorical_crossentropy", metrics=several)
    sparse.compile("sgd", loss)
    x, labels = np.ones((6, 3), np.float32), np.arange(6) % 4
    for model, y in ((hot, np.eye(4, dtype=np.float32)[labels]), (sparse, labels)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step = graph.training_step(model, 6)
        assert not model.optimizer.built
        assert np.isfinite(model.train_on_batch(x, y, return_dict=True)["loss"])
        assert [v.shape for v in step.slots] == [v.shape for v in model.optimizer.variables]
    assert len(step.states) == 2  # the mean of the loss


def test_a_loss_that_compile_was_told_not_to_scale_is_not_scaled(keras):
    with policy("mixed_float16"):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", auto_scale_loss=False)
    slots = graph.training_step(model, 4).slots
    assert [slot.name for slot in slots] == ["iteration", "learning_rate"]  # and no scale


def test_models_of_several_inputs_and_outputs(keras, of_four):
    layers = keras.layers
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b")
    one, two = layers.Dense(2, name="one")(a), layers.Dense(5, name="two")(b)
    both = keras.Model({"a": a, "b": b}, {"one": one, "two": two})
    assert graph.flops(both) == 2 * (3 * 2 + 4 * 5)
    both.compile("sgd", {"one": "mse"})  # what has no loss has no gradient
    assert graph.flops(both, training=True) == 2 * (2 * 3 * 2)
    keyed = keras.Model({"a": a, "b": b}, {"k": one, "l": two})
    keyed.compile("sgd", {"k": "mse", "l": "sparse_categorical_crossentropy"})
    assert graph.flops(keyed, training=True) == 2 * 2 * (3 * 2 + 4 * 5)
    types = [op.type for op in graph.training_step(keyed, 2, None).concrete.graph.get_operations()]
    assert "SparseSoftmaxCrossEntropyWithLogits" in types
    assert graph.parameters(of_four) == 8 + 4 * 2
    assert graph.parameters(of_four, trainable=True) == 8 + 2 * 2
    assert graph.flops(of_four, batch=4) == 4 * 12


@pytest.fixture(scope="module")
def of_four(keras):
    """Give a model that takes batches of four alone, with variables that are not trained."""
    given = keras.Input(batch_shape=(4, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(2)(given))
    return keras.Model(given, x)


@pytest.mark.parametrize("wrong, said", [
    (lambda model, x: graph.flops(model, batch=0), "batch=0"),
    (lambda model, x: graph.flops(model), r"\(4, 3\).*batch of 1"),
    (lambda model, x: graph.flops(lambda x: x, x, training=True), "for Keras models"),
    (lambda model, x: graph.flops(model, x), "leave them out"),
])  # fmt: skip
def test_what_would_be_counted_wrong_is_refused(tf, of_four, wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong(of_four, tf.zeros([4, 3]))


# where a model can be cut


def test_among_equal_parts_the_cuts_cost_least():
    for costs, at in (([0, 0, 9, 1, 0], 3), ([0, 0, 1, 9, 0], 2)):
        assert cuts.balanced([1, 1, 1, 1, 1], costs, 2) == [at]


def test_a_constant_that_a_later_stage_uses_does_not_cross():
    """Each stage makes its own; a result is sent, and its gradient comes back."""
    made = ("Const", 700), ("MatMul", 4000)
    first = [Op(f"a/{kind}", kind, "/CPU:1", 0.0, 0.01, size) for kind, size in made]
    step = Trace((*first, Op("b/Mul", "Mul", "/CPU:1", 0.01, 0.01)), (), {},
                 (("a/Const", "b/Mul"), ("a/MatMul", "b/Mul")))  # fmt: skip
    (cut,) = pipeline.cuts(step, ["a", "b"], 2)
    assert [part.crossing for part in cut.parts] == [2 * 4000, 0]


def test_what_a_model_gives_anyway_does_not_cross(keras):
    """Of two outputs the first is made early: behind it the second's way is the only one."""
    given = keras.Input((4,))
    early = keras.layers.Dense(5, name="early")(given)
    x = keras.layers.Dense(6, name="next")(early)
    model = keras.Model(given, [early, keras.layers.Dense(7, name="last")(x)])
    layers = LayerGraph(model)
    at = cuts.narrow(layers)
    assert [(layers.calls[i].name, size) for i, size in at.items() if i] == [("last", 6 * 4)]
