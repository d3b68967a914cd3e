"""A layout as a value, and a model that is brought to one, to another, and back."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re

import numpy as np
import pytest

import fit_models
from conftest import later, run_python
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
        assert all(abs(n - size * share / sum(shares)) <= 1
                   for n, share in zip(sizes, shares, strict=True))  # fmt: skip


def test_options_in_any_order_and_one_after_the_other_give_one_layout(keras, plan):
    options = {"pieces": 2, "recompute": ["down_0"], "state": "owners"}
    wanted = Layout(plan.devices, **options)
    for order in itertools.permutations(options):
        model = fit.use(fit_models.dense(), plan, **{name: options[name] for name in order})
        assert fit.layout(model) == wanted
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


@pytest.mark.parametrize("module, name", [
    (module, name) for module, names in GONE.items() for name in names
])  # fmt: skip
def test_an_old_name_raises_the_new_line(module, name):
    with pytest.raises(AttributeError, match=re.escape(GONE[module][name])):
        getattr(importlib.import_module(module), name)()
    with pytest.raises(AttributeError, match="nobody"):
        importlib.import_module(module).nobody  # noqa: B018


def towers(keras, width=64, depth=8):
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, "tanh", name=f"d_{i}") for i in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *hidden])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("how, warned", [
    later("mean", False), later("largest", True), ("counted", True),
])  # fmt: skip
def test_a_loss_that_pieces_cannot_take_lets_all_go_forward_first(
    keras, tf, plan, double, how, warned, recwarn
):
    class Computes(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            ways = {"mean": tf.reduce_mean, "largest": tf.reduce_max,
                    "counted": lambda x: fit.loss(tf.reduce_mean(x), 3.0)}  # fmt: skip
            return ways[how](tf.square(y - y_pred))

    def fitted(options):
        keras.utils.set_random_seed(0)
        given = keras.Input((6,))
        hidden = keras.layers.Dense(5, "tanh", name="a")(given)
        model = Computes(given, keras.layers.Dense(6, name="b")(hidden))
        model.compile(keras.optimizers.Adam(0.1))
        return after_fit(model, plan, options, X)

    fit_models.near(fitted({"stages": 2, "pieces": 3}), fitted(None), 1e-11)
    assert any("forward before" in str(each.message) for each in recwarn) == warned


def after_fit(model, plan, options, y):
    """Train a model, laid out where options are given; give its history and its weights."""
    if options is not None:
        fit.use(model, plan, **options)
    if options and "stages" in options:
        assert {*places(model.weights)} == {"CPU:1", "CPU:2"}
    history = model.fit(X, y, batch_size=10, shuffle=False, verbose=0).history
    return [history, fit.alone(model).get_weights()]


def within(keras):
    """Make a model inside a model inside a model, of which one is called twice."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    deep = keras.Sequential([keras.Input((6,)), layers.Dense(6, "tanh", name="up_0"),
                             layers.Dense(6, name="down_0")], name="deep")  # fmt: skip
    given = keras.Input((6,))
    twice = [deep(given), deep(layers.Dense(6)(given))]
    middle = keras.Model(given, layers.Add()(twice), name="mid")
    outer = keras.Input((6,))
    model = keras.Model(outer, layers.Dense(3, "softmax")(middle(outer, training=False)))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("options", [
    later({}), later({"stages": ["down_0"]}), {"stages": 2, "pieces": 2}, later({"layers": LAYERS}),
    later({"recompute": ["mid/deep/down_0"]}), later({"state": "owners", "pieces": 3}),
])  # fmt: skip
def test_a_model_inside_counts_by_its_own_layers(keras, plan, double, options):
    found, wanted = (after_fit(within(keras), plan, each, Y) for each in (options, None))
    fit_models.near(found, wanted, 1e-11)


GRIDS = """
import numpy as np, keras
from mgpu_helpers import devices, fit, trace
import test_layout
plan = devices.setup(4)
x = np.ones((64, 64), "f")
for options in [{"stages": 2}, {"layers": {"d_[0246]": "columns", "d_[1357]": "rows"}, "row": 2}]:
    model = fit.use(test_layout.towers(keras), plan, **options)
    step = trace.fit_step(model, (x, x))
    held = {device: sum(4 * v.shape.num_elements() for v in
                        (w.value for w in model.weights) if v.device.endswith(device[1:]))
            for device in plan.devices}
    between = step.bytes_between()
    print([[held[d] for d in plan.devices],
           [between.get((plan.devices[a], plan.devices[b]), 0) for a, b in
            [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)]]])
"""


def test_what_a_grid_holds_and_what_crosses_in_it(plan):
    """Within a row activations cross, between rows weights and their gradients."""
    staged, cut = map(eval, run_python(GRIDS, timeout=120, MGPU_MODE="cores").stdout.splitlines())
    layer, activation = 4 * (64 * 64 + 64), 4 * 32 * 64
    (held, (there, back, there_too, back_too, *between)) = staged
    assert held == [4 * layer, 4 * layer, 0, 0]
    assert there == back == there_too == back_too == activation
    # The last stage of the first row also joins outputs, and gives the gradients for them.
    assert between[:2] == [4 * layer] * 2
    assert between[2:] == [4 * layer + activation] * 2
    (held, (there, back, there_too, back_too, *between)) = cut
    pair = 4 * (2 * 64 * 32 + 32)  # a part of two layers; the second one's bias is whole
    assert held == [4 * (pair + 4 * 64), 4 * pair, 0, 0]
    # Of each pair its input, and its output's gradient; back what the parts have made, and its
    # input's gradient. Of the first pair the input is the host's, and has no gradient.
    assert there == back == there_too == back_too == 7 * activation
    assert between == [4 * (pair + 4 * 64) + activation] * 2 + [4 * pair] * 2


@pytest.mark.parametrize("options", [
    later({}), later({"stages": 2, "pieces": 2}), {"layers": {"heads_0": "heads"}},
])  # fmt: skip
def test_nothing_has_to_lie_where_a_weight_is_read(keras, tf, plan, options):
    """A GPU refused a graph in which the gradient of an embedding's use had to lie there, too.

    A weight is read on its own device, whatever the graph says, and sent from there.
    """
    given = keras.Input((7,), dtype="int32")
    words = keras.layers.Embedding(9, 8, mask_zero=True)(given)
    heads = keras.layers.MultiHeadAttention(2, 4, name="heads_0")(words, words)
    hidden = keras.layers.Dense(9)(keras.layers.LayerNormalization()(words + heads))
    model = keras.Model(given, hidden)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit.use(model, plan, **options)
    words = np.ones((6, 7), "int32")
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda data: model.train_step(data))
    graph = step.get_concrete_function((tf.constant(words), tf.constant(words))).graph
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
    dense = keras.layers.Dense(5, name="dense")

    class Counts(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense, self.seen = dense, keras.metrics.Mean(name="seen")

        def call(self, inputs):
            self.seen.update_state(keras.ops.abs(inputs))
            return self.dense(inputs)

    layer = Counts() if kind == "metric" else keras.layers.SpectralNormalization(dense)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    model.compile("sgd", fit_models.cross())
    fit.use(model, None if options.keys() & {"pieces", "recompute"} else plan, **options)
    refused = contextlib.nullcontext() if kind == "metric" and "pieces" in options else (
        pytest.raises(ValueError, match=named)
    )  # fmt: skip
    with refused:
        model.fit(X, Y, batch_size=10, verbose=0)
