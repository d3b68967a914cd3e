"""Stages of Keras models against the models themselves, piece by piece."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import keras_models
import keras_stages
from mgpu_helpers import pipeline, trace
from mgpu_helpers.pipeline.tasks import task_of
from mgpu_helpers.trace import Op, Trace

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(8, n)).astype(np.float32) for n in (4, 3))
TOKENS = RANDOM.integers(0, 4, (8, 6))


@pytest.fixture(scope="module")
def nets(keras, tf):
    """Build small models, each with a batch, labels, a loss of (labels, outputs), and its cuts."""
    from keras import layers

    class Added(layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_mean(tf.abs(x)))
            return x

    def mean(labels, outputs):
        pairs = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=True)
        return tf.add_n([tf.reduce_mean(tf.square(a - 2 * b)) for a, b in pairs])

    dense, made = layers.Dense, {}
    one, two = keras.Input((4,), name="one"), keras.Input((4,), name="another")
    same = dense(4, "tanh", kernel_regularizer="l2", name="same")
    first = same(one)
    second = same(dense(4, name="mid")(first))
    joined = layers.Concatenate(name="join")([second, first, two])
    out = {"y": dense(3, name="out")(joined), "a": first}
    made["shared layer"] = (
        keras.Model({"one": one, "another": two}, out), {"one": X, "another": -X},
        {"y": Y, "a": X}, mean, [["mid"], ["join"], ["mid", "out"]],
    )  # fmt: skip
    x = given = keras.Input((6,), dtype="int32")
    x = layers.Embedding(10, 4, mask_zero=True, name="embed")(x)
    x = layers.SimpleRNN(5, return_sequences=True, unroll=True, name="rnn")(x)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # it uses the mask too
    made["mask"] = (keras.Model(given, dense(4, name="out")(x)), TOKENS, TOKENS, entropy,
                    [["out"], ["rnn", "out"]])  # fmt: skip
    inner = [dense(4), layers.BatchNormalization(), layers.Dropout(0.5)]
    inner = keras.Sequential([keras.Input((4,)), *inner], name="inner")
    given = keras.Input((4,))
    x = keras.ops.relu(inner(dense(4, name="in")(given)) * 2.0)
    nested = keras.Model(given, [dense(3, name="out")(x), x])
    (times,) = (each.name for each in nested.operations if each.name.startswith("multiply"))
    made["nested"] = (nested, X, (Y, X), mean, [["inner"], ["out"], ["inner", times]])
    plain = [dense(5, kernel_regularizer="l2"), Added(name="added"),
             dense(4, activity_regularizer="l1", name="b"), layers.Dropout(0.3, name="drop"),
             dense(3, bias_regularizer="l2", name="c")]  # fmt: skip
    plain = keras.Sequential([keras.Input((4,)), *plain])
    made["losses"] = (plain, X, Y, keras.losses.MeanSquaredError(), [["added"], ["b", "c"]])
    return made


QUICK = {("shared layer", 4), ("nested", 4), ("mask", 4), ("losses", 4)}


@pytest.mark.parametrize("name, pieces", [
    pytest.param(name, pieces, marks=[] if (name, pieces) in QUICK else pytest.mark.thorough)
    for name in ("shared layer", "nested", "mask", "losses") for pieces in (1, 2, 4)
])  # fmt: skip
def test_stages_compute_what_the_model_does(plan, nets, name, pieces):
    model, x, y, loss, cuts = nets[name]
    for cut in cuts[-1:] if pieces == 4 else cuts:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            keras_stages.compare(model, loss, x, y, cut, plan.devices, pieces, 1e-4, 1e-5)
        told = [str(each.message) for each in said if "BatchNormalization" in str(each.message)]
        assert len(told) == (name == "nested" and pieces > 1)


@pytest.mark.parametrize("settings", [
    {"global_clipnorm": 0.3, "learning_rate": "schedule"},
    {"weight_decay": 0.3, "use_ema": True, "learning_rate": 0.1},
])  # fmt: skip
def test_optimizers_of_stages_do_what_one_would(keras, tf, plan, nets, settings):
    """To rounding, also with a weight of two stages, and the norm over all of them."""
    if settings["learning_rate"] == "schedule":
        settings = settings | {"learning_rate": keras.optimizers.schedules.CosineDecay(0.1, 5)}
    model, _, _, _, cuts = nets["shared layer"]
    stages = pipeline.stages(model, cuts[2], (plan.devices * 2)[:3])
    start = [value + 1 for value in model.get_weights()]  # biases begin with 0, which never decays
    one, like = (keras.optimizers.AdamW(**settings) for _ in range(2))
    for optimizer in (one, like):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    update, ended = tf.function(pipeline.updater(stages, like)), []
    steps = [[RANDOM.normal(size=v.shape) for v in model.trainable_variables] for _ in range(3)]
    for own in (False, True):
        model.set_weights(start)
        for slopes in ([tf.constant(each, "float32") for each in step] for step in steps):
            paths = [v.path for v in model.trainable_variables]
            if own:
                update(dict(zip(paths, slopes, strict=True)))
            else:
                one.apply(slopes, model.trainable_variables)
        ended.append(model.get_weights())
    for one, other, first in zip(*ended, start, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert np.abs(one - first).max() > 1e-3


def test_a_step_with_an_optimizer_for_each_stage_leaves_the_weights_where_they_are(keras, tf, plan):
    """Activations cross, and the batch."""
    x = given = keras.Input((64,))
    for device, name in zip(plan.devices, ("a", "b"), strict=True):
        with tf.device(device):
            x = keras.layers.Dense(64)(keras.layers.Dense(4000, name=name)(x))
    model = keras.Model(given, x)
    stages = pipeline.stages(model, ["b"], plan.devices)
    order = pipeline.one_forward_one_backward(2, 2)
    update = pipeline.updater(stages, "adam")

    def step(x, y):
        mean, found = pipeline.gradients(stages, keras.losses.MeanSquaredError(), x, y, order)
        update(found)
        return mean

    _, step = trace.function_step(step, *np.ones((2, 32, 64), np.float32))
    assert sum(weight.nbytes for weight in model.get_weights()) > 4e6
    assert sum(step.bytes_between().values()) < 1e5


@pytest.mark.parametrize("name, settings, named", [
    ("LossScaleOptimizer", {"inner_optimizer": "sgd"}, "inner_opt"),
    ("SGD", {"global_clipnorm": 0.5, "gradient_accumulation_steps": 3}, "3 steps"),
    ("SGD", {}, "trained 1 step"),
])  # fmt: skip
def test_an_optimizer_whose_copies_do_less_is_refused(keras, tf, two, name, settings, named):
    settings = {k: keras.optimizers.get(v) if v == "sgd" else v for k, v in settings.items()}
    optimizer = getattr(keras.optimizers, name)(**settings)
    if not settings:
        optimizer.apply([tf.ones([])], [tf.Variable(1.0)])
    with pytest.raises(ValueError, match=named):
        pipeline.updater(two, optimizer)


def test_weights_stay_where_they_lie_and_are_read_once(keras, tf, plan):
    """What is built on the device of its stage never crosses; what lies elsewhere crosses once."""
    given = keras.Input((4,))
    with tf.device(plan.devices[0]):
        x = keras.layers.Dense(5, name="a")(given)
    with tf.device(plan.host):
        x = keras.layers.Dense(30, name="b")(x)
    with tf.device(plan.devices[1]):
        x = keras.layers.Dense(3, name="c")(x)
    made = pipeline.stages(keras.Model(given, x), ["b"], plan.devices)
    order = pipeline.one_by_one(2, 4)
    _, step = trace.function_step(
        lambda x, y: pipeline.gradients(made, keras.losses.MeanSquaredError(), x, y, order), X, Y
    )
    sizes = [(copy.source, copy.target, copy.bytes) for copy in step.copies]
    for shape in ((5, 30), (30,)):
        assert sizes.count((plan.host, plan.devices[1], 4 * np.prod(shape))) == 1
    between = [size for *way, size in sizes if set(way) == set(plan.devices)]
    assert sorted(between) == [4 * 2 * 5] * 8  # activations of four pieces, and their gradients
    assert not [size for source, target, size in sizes if size in (4 * 4 * 5, 4 * 30 * 3)
                and target in plan.devices]  # fmt: skip
    seen = {(at, op.device) for op in step.ops if (at := task_of(op))}
    assert seen == {((s, task), plan.devices[s]) for s in (0, 1) for task in order[s]}


def test_places_are_where_one_tensor_crosses(nets):
    """An input that is used only behind crosses, too."""
    (model, *_), (nested, *_) = nets["shared layer"], nets["nested"]
    assert pipeline.places(model) == {"same": ["same", "mid", "join", "out"]}
    assert list(pipeline.places(nested)) == [each.name for each in nested.operations[1:]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["residual", "lstm"])
def test_the_best_cut_of_a_keras_model_is_one_that_stages_takes(tf, plan, name):
    """What crosses is what the layer behind the cut takes, by the shapes that Keras knows."""
    model, x, y = keras_models.built(name)
    with tf.device(plan.devices[0]):
        _, step = trace.function_step(lambda x, y: model.train_step((x, y)), x, y)
    layers = pipeline.places(model)
    wanted = {
        name: 2 * 4 * len(x) * np.prod(model.get_layer(name).input.shape[1:])
        for name in list(layers)[1:]
    }
    found = {cut.starts[0]: cut.parts[0].crossing for cut in pipeline.cuts(step, layers, 2)}
    assert found == wanted
    best = pipeline.best_cut(step, plan.devices, layers, by="bytes")
    assert best.parts[0].crossing == min(wanted.values())
    made = pipeline.stages(model, best.starts, plan.devices)
    assert [stage.device for stage in made] == list(plan.devices)


@pytest.mark.parametrize("model", ["net", "conv"])
def test_layers_are_known_by_their_plain_names(model):
    """The scopes as Keras writes them, of a model with a name of its own or with that of a layer.

    A constant that both passes and both layers share belongs to none.
    """
    path, shared = f"{model}_1", f"gradient_tape/{model}_1/conv_1/Const"
    forward = [f"{path}/conv_1/Up", f"{path}/conv_1_2/Up", f"{path}/dense_1/Up"]
    back = [f"gradient_tape/{name}" for name in forward]
    times = dict(zip([*forward, *back, shared], (1, 10, 100, 1000, 10**4, 10**5, 0), strict=True))
    ops = [Op(name, "Const" if name == shared else "Any", "/CPU:1", 0.0, float(times[name]), 6)
           for name in times]  # fmt: skip
    edges = {*itertools.pairwise([*forward, *reversed(back)]), *((shared, op) for op in forward)}
    step = Trace(tuple(ops), (), {}, tuple(edges), (), ())
    (cut,) = pipeline.cuts(step, {"conv": ["conv"], "conv_1": ["conv_1", "dense"]}, 2)
    assert [part.seconds for part in cut.parts] == [1001, 110110]
    assert [part.crossing for part in cut.parts] == [12, 0]
    assert [part.layers for part in cut.parts] == [("conv",), ("conv_1", "dense")]


def test_a_layer_that_ran_nothing_costs_nothing():
    """As a softmax does under a loss of Keras that takes its logits; all of them are another's."""
    step = Trace((Op("net_1/a_1/Up", "Any", "/CPU:1", 0.0, 2.0),), (), {}, ())
    (cut,) = pipeline.cuts(step, {"a": ["a"], "softmax": ["softmax"]}, 2)
    assert [part.seconds for part in cut.parts] == [2.0, 0.0]
    with pytest.raises(ValueError, match="the scope 'b'"):
        pipeline.cuts(step, {"b": ["b"], "softmax": ["softmax"]}, 2)


# What is refused


@pytest.fixture(scope="module")
def plain(keras, tf):
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(3, name="b")(keras.layers.Dense(4, name="a")(x)))


@pytest.fixture(scope="module")
def two(plain, plan):
    return pipeline.stages(plain, ["b"], plan.devices)


@pytest.mark.parametrize("cuts", [["bb"], ["a"], ["b", "a"], [], ["b", "b"]])
def test_a_cut_that_cannot_be_is_refused(plain, plan, cuts):
    with pytest.raises(ValueError, match="which is b"):
        pipeline.stages(plain, cuts, (plan.devices * 2)[: max(2, len(cuts) + 1)])


def test_models_that_layers_alone_do_not_say_are_refused(keras, tf, plan, plain):
    class Doubled(keras.Model):
        def call(self, *args, **options):
            return 2 * super().call(*args, **options)

    with pytest.raises(TypeError, match="Doubled has a `call`"):
        pipeline.stages(Doubled(plain.inputs, plain.outputs), ["b"], plan.devices)
    x, part = keras.Input((4,)), []
    for name in ("b", "c"):
        part.append(keras.Sequential([keras.layers.Dense(4, name="d")], name=name))
        part[-1].layers[0].build((None, 4))
    with pytest.raises(ValueError, match="'d/kernel'"):
        pipeline.stages(keras.Model(x, part[1](part[0](x))), ["c"], plan.devices)
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(4, name="inner"))
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(3, name="b")])
    made = pipeline.stages(model, ["b"], plan.devices)
    with pytest.raises(ValueError, match="inner/kernel"):
        tf.function(lambda: pipeline.gradients(made, keras.losses.MeanSquaredError(), X, Y))()


def squared(labels, outputs):
    return (outputs - labels) ** 2


def of_outputs_first(y_pred, y_true):
    return 0.0


@pytest.mark.parametrize("given, error, named", [
    (dict(x=X[:3], y=Y[:3]), ValueError, "batch of 3 is too small for 4"),
    (dict(x=X[:, :3]), ValueError, r"stage 0 failed on the batch, of shape \(2, 3\)"),
    (dict(loss=squared), ValueError, r"loss failed .* \(2, 3\) and \(2, 3\): .* mean"),
    (dict(loss="sum"), TypeError, "mean"),
    (dict(first=lambda weights, x: x), ValueError, "stage 1 failed on what stage 0 gave it"),
    (dict(loss=of_outputs_first), TypeError, r"\(y_pred, y_true\).*\(labels, outputs\)"),
])  # fmt: skip
def test_what_does_not_fit_is_said_in_a_sentence(keras, tf, plan, two, given, error, named):
    made = list(two)
    if first := given.get("first"):
        made[0] = pipeline.Stage(plan.devices[0], first, {})
    loss = given.get("loss", lambda y, out: tf.reduce_mean(squared(y, out)))
    if loss == "sum":
        loss = keras.losses.MeanSquaredError(reduction="sum")
    x, y = given.get("x", X), given.get("y", Y)
    step = tf.function(
        lambda: pipeline.gradients(made, loss, x, y, pipeline.one_by_one(2, 4)), autograph=False
    )
    with pytest.raises(error, match=named) as raised:
        step()
    assert len(str(raised.value).splitlines()) == 1


def test_a_function_of_keras_gets_the_labels_first(keras, tf, plan):
    """As an object does; what a loss raises is said where AutoGraph converts it, too."""
    outputs, labels = X[:, 0], np.linspace(0.1, 0.9, len(X), dtype=np.float32)
    loss = keras.losses.kl_divergence
    stage = pipeline.Stage(plan.devices[0], lambda weights, x: tf.sigmoid(x), {})
    step = tf.function(lambda: pipeline.gradients([stage], loss, outputs, labels))
    wanted = loss(labels, tf.sigmoid(outputs))
    np.testing.assert_allclose(step()[0], wanted, rtol=1e-5)

    def broken(labels, outputs):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="loss failed on .*: ValueError: mine"):
        tf.function(lambda: pipeline.gradients([stage], broken, outputs, labels))()
