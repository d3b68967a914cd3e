"""A layout as a value, and a model that is brought to one, to another, and back."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re

import pytest

import fit_models
from conftest import later
from fit_models import X, Y, places
from mgpu_helpers import fit
from mgpu_helpers._gone import GONE
from mgpu_helpers.fit import Layout

FOUR = tuple(f"/CPU:{i}" for i in range(4))
LAYERS = {"up_.*": "columns", "down_.*": "rows"}


@pytest.mark.parametrize("layout", [
    Layout(), Layout(FOUR), Layout(FOUR, stages=["b", "c", "d"], pieces=4, schedule="1F1B"),
    Layout(FOUR, shares=(1, 2.5, 1, 1), state="owners", synchronized=False),
    Layout(FOUR, layers=LAYERS, row=2, recompute=True), Layout(FOUR[:1], state=FOUR[1:]),
    Layout(pieces=3, recompute=["b"]),
])  # fmt: skip
def test_it_prints_as_the_line_that_makes_it_and_compares(layout):
    again = eval(repr(layout), {"Layout": Layout})
    assert again == layout and hash(again) == hash(layout)
    assert layout.changed(pieces=7) != layout and layout.changed() == layout
    with pytest.raises(AttributeError):
        layout.pieces = 2


def test_rows_are_parts_of_a_grid_and_take_their_shares():
    assert Layout(FOUR, stages=2).rows == (FOUR[:2], FOUR[2:])
    assert Layout(FOUR, layers=LAYERS).rows == (FOUR,)
    assert Layout(FOUR).sizes(6) == [2, 2, 1, 1]
    for shares, size in itertools.product([(2, 1, 1, 0.5), (9, 1, 1, 1)], range(12)):
        sizes = Layout(FOUR, shares=shares).sizes(size)
        assert sum(sizes) == size and min(sizes) >= 0
        assert sizes == pytest.approx([size * share / sum(shares) for share in shares], abs=1)


def test_options_at_once_and_one_after_the_other_give_one_layout(keras, plan):
    options = {"pieces": 2, "recompute": ["down_0"], "state": "owners"}
    wanted = Layout(plan.devices, **options)
    assert fit.layout(fit.use(fit_models.dense(), plan, **options)) == wanted
    model = fit_models.dense()
    assert fit.layout(model) == Layout()
    fit.use(model, plan)
    for name, value in options.items():  # which changes that option, and leaves the others
        fit.use(model, **{name: value})
    assert fit.layout(model) == wanted
    fit.use(model, plan.devices[:1])
    assert fit.layout(model) == Layout(plan.devices[:1])
    assert {*places(fit.alone(model).weights)} == {"CPU:0"} and fit.layout(model) == Layout()


def test_a_layout_that_is_refused_leaves_the_one_before(keras, plan, double):
    model = fit.use(fit_models.dense(), plan, stages=2)
    before, where = fit.layout(model), places(model.weights)
    with pytest.raises(ValueError, match="'none'"):
        fit.use(model, plan, stages=["none"])
    assert fit.layout(model) == before and places(model.weights) == where
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("module", GONE)
def test_an_old_name_raises_the_new_line(module):
    room = importlib.import_module(module)
    for name, line in GONE[module].items():
        with pytest.raises(AttributeError, match=re.escape(line)):
            getattr(room, name)()
    with pytest.raises(AttributeError, match="nobody"):
        room.nobody  # noqa: B018


@pytest.mark.parametrize("count", [None, 3.0])
def test_a_loss_that_pieces_cannot_take_lets_all_go_forward_first(
    keras, tf, plan, double, count, recwarn
):
    class Computes(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            mean = tf.reduce_mean(tf.square(y - y_pred))
            return fit.loss(mean, count) if count else mean

    def fitted(options):
        keras.utils.set_random_seed(0)
        given = keras.Input((6,))
        hidden = keras.layers.Dense(5, "tanh", name="a")(given)
        model = Computes(given, keras.layers.Dense(6, name="b")(hidden))
        model.compile(keras.optimizers.Adam(0.1))
        return after_fit(model, plan, options, X)

    fit_models.near(fitted({"stages": 2, "pieces": 3}), fitted(None), 1e-11)
    assert any("forward before" in str(each.message) for each in recwarn) == bool(count)


def after_fit(model, plan, options, y):
    """Train a model, laid out where options are given; give its history and its weights."""
    if options:
        fit.use(model, plan, **options)
    if options and "stages" in options:
        assert {*places(model.weights)} == {"CPU:1", "CPU:2"}
    history = model.fit(X, y, batch_size=10, shuffle=False, verbose=0).history
    return [history, fit.alone(model).get_weights()]


def within(keras):
    """Make a model inside a model inside a model, of which one is called twice."""
    keras.utils.set_random_seed(0)
    layers, given, outer = keras.layers, keras.Input((6,)), keras.Input((6,))
    pair = layers.Dense(6, "tanh", name="up_0"), layers.Dense(6, name="down_0")
    deep = keras.Sequential([keras.Input((6,)), *pair], name="deep")
    twice = [deep(given), deep(layers.Dense(6)(given))]
    middle = keras.Model(given, layers.Add()(twice), name="mid")
    model = keras.Model(outer, layers.Dense(3, "softmax")(middle(outer, training=False)))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("options", [
    {"stages": 2, "pieces": 2}, later({"layers": LAYERS}), later({"recompute": ["mid/deep/down_0"]})
])  # fmt: skip
def test_a_model_inside_counts_by_its_own_layers(keras, plan, double, options):
    found, wanted = (after_fit(within(keras), plan, each, Y) for each in (options, None))
    fit_models.near(found, wanted, 1e-11)


def test_nothing_has_to_lie_where_a_weight_is_read(keras, tf, plan):
    """A GPU refused a graph in which the gradient of an embedding's use had to lie there, too.

    A weight is read on its own device, whatever the graph says, and sent from there.
    """
    given = keras.Input((7,), dtype="int32")
    words = keras.layers.Embedding(9, 8, mask_zero=True)(given)
    heads = keras.layers.MultiHeadAttention(2, 4, name="heads_0")(words, words)
    hidden = keras.layers.Dense(9)(keras.layers.LayerNormalization()(words + heads))
    model = keras.Model(given, hidden)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit.use(model, plan, layers={"heads_0": "heads"})
    model.optimizer.build(model.trainable_variables)
    words = tf.ones((6, 7), tf.int32)
    step = tf.function(lambda data: model.train_step(data))
    graph = step.get_concrete_function((words, words)).graph
    beside = {op.name: [graph.get_operation_by_name(name[5:].decode())
                        for name in op.colocation_groups() if name.startswith(b"loc:@")]
              for op in graph.get_operations()}  # fmt: skip
    assert not [(name, each.name) for name, others in beside.items() for each in others
                if each.type == "ReadVariableOp" and each.name != name]  # fmt: skip


@pytest.mark.parametrize("options, calls", [({}, 2), ({"pieces": 2}, 2), ({"stages": 2}, 1)])
def test_a_step_is_traced_once(keras, plan, monkeypatch, options, calls):
    """What makes variables as it is traced is traced again, in twice the time."""
    traced, call = [], keras.layers.Dense.call

    @functools.wraps(call)  # or it would be a layer of one's own
    def counted(self, inputs, training=None):
        traced.append(inputs)
        return call(self, inputs)

    monkeypatch.setattr(keras.layers.Dense, "call", counted)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), keras.layers.ReLU()])
    model.compile("adam", fit_models.cross(), metrics=["accuracy"])
    fit.use(model, plan if options != {"pieces": 2} else None, **options)
    traced.clear()
    model.fit(X, Y, batch_size=10, verbose=0)
    assert len(traced) == calls


@pytest.mark.parametrize("options", [{}, later({"stages": 2}), {"pieces": 3}, {"recompute": True}])
@pytest.mark.parametrize("kind, named", [("weight", "dense/kernel"), ("metric", "train_step")])
def test_layers_that_assign_their_weights_or_metrics_are_named(keras, plan, options, kind, named):
    """Which replicas take, and pieces take metrics."""
    class Counts(keras.layers.Layer):
        def call(self, inputs):
            self.seen.update_state(keras.ops.abs(inputs))
            return inputs

    layer = keras.layers.SpectralNormalization(keras.layers.Dense(5, name="dense"))
    if kind == "metric":
        layer = Counts()
        layer.seen = keras.metrics.Mean(name="seen")
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    model.compile("sgd", fit_models.cross())
    fit.use(model, None if options.keys() & {"pieces", "recompute"} else plan, **options)
    taken = kind == "metric" and "pieces" in options
    with contextlib.nullcontext() if taken else pytest.raises(ValueError, match=named):
        model.fit(X, Y, batch_size=10, verbose=0)
