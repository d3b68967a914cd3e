"""Steps of one's own on replicas: gradients, metrics and variables are those of all examples."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import later, quick
from keras_models import keras
from mgpu_helpers import fit
from test_fit_losses import RANDOM, SEEN, same, step_with, trained

pytestmark = pytest.mark.usefixtures("double")
X, Y = RANDOM.normal(size=(29, 4)), RANDOM.normal(size=(29, 2))  # in batches of 11, 11 and 7


def error(tf, y, p):
    return tf.reduce_mean((y - p) ** 2)


def averaged(tf, value):
    return tf.stop_gradient(tf.distribute.get_replica_context().all_reduce("MEAN", value))


def norm(tf, model, x, y, p, slopes):
    return {"norm": tf.linalg.global_norm(slopes)}


SHOWN = SEEN | {"off": ("RootMeanSquaredError", lambda loss, y, p: [y, p])}


def stepping(of=error, **others):
    """Make a model with a step that differs from Keras's in what is given."""
    return step_with(
        lambda tf, model, x, y, p: of(tf, y, p),
        **{"numbers": norm, "shows": error, "metrics": SHOWN, "units": 2,
           "inside": [keras.layers.BatchNormalization()]} | others,
    )  # fmt: skip


def on(make, scope=None):
    return trained(make, scope, X, Y, batch_size=11)


def by_hand(tf, slopes, weights):
    for weight, slope in zip(weights, slopes, strict=True):
        weight.assign_sub(0.1 * slope)
    return []


def sums(tf, model, x, loss):
    all_reduce = tf.distribute.get_replica_context().all_reduce
    model.kept.assign_add(all_reduce("SUM", tf.reduce_sum(x, 0)))


def several(tf, y, p):
    return [error(tf, y, p), tf.reduce_mean(p**2)]


def clipped(tf, slopes, weights):
    return tf.clip_by_global_norm(slopes, 0.1)[0]


EQUAL = {
    "as Keras does": {},
    "of several losses, clipped, with a sum kept": {
        "of": several, "change": clipped, "keeps": sums
    },
    "of several losses": {"of": several},
    "of a loss for each example": {"of": lambda tf, y, p: tf.reduce_mean((y - p) ** 2, 1)},
    "of one in a list of rank 1": {"of": lambda tf, y, p: error(tf, y, p)[None]},
    "of a mean of all": {"of": lambda tf, y, p: averaged(tf, error(tf, y, p)) * error(tf, y, p)},
    "with a decay": {"change": lambda tf, g, w: [a + 0.1 * b for a, b in zip(g, w, strict=True)]},
    "applied by hand": {"change": by_hand},
    "without a tape, said": {"numbers": None, "slopes_of": lambda tf, loss, w: [
        fit.loss(x, "sum")
        for x in tf.gradients(fit.loss(loss, "mean"), [each.value for each in w])
    ]},
}  # fmt: skip


@pytest.mark.parametrize("how", quick(
    "of several losses, clipped, with a sum kept", among=[*EQUAL]
))  # fmt: skip
def test_a_step_has_the_gradients_and_results_of_all_examples(plan, how):
    found = on(lambda: stepping(**EQUAL[how]), fit.strategy(plan).scope())
    same(found, on(lambda: stepping(**EQUAL[how])))


def mean_so_far(tf, model, x, loss):
    model.kept.assign(0.9 * model.kept + 0.1 * tf.reduce_mean(x, 0))


@pytest.mark.parametrize("what, named", [
    ({"of": lambda tf, y, p: averaged(tf, tf.reduce_sum(p)) * error(tf, y, p)}, "MEAN"),
    ({"slopes_of": lambda tf, loss, w: tf.gradients(loss, [x.value for x in w]), "numbers": None},
     "GradientTape"),
    ({"keeps": mean_so_far}, "another value"),
])  # fmt: skip
def test_what_a_replica_makes_of_its_examples_alone_is_refused(plan, what, named):
    with pytest.raises(ValueError, match=named):
        on(lambda: stepping(**what), fit.strategy(plan).scope())


def root(y, p):
    return keras.ops.sqrt(keras.ops.mean((y - p) ** 2))


def beside_others(y, p):
    """Weigh what each example has by what the others of its batch have."""
    return keras.ops.mean((y - p) ** 2, -1) * keras.ops.softmax(keras.ops.mean(y - p, -1))


@pytest.mark.parametrize("kind, pieces", [
    ("dice", 0), ("root", 0), ("for each", 0), ("dice", 2),
    ("beside others", 2), later("beside others", 0), ("own call", 2), later("own call", 0),
])  # fmt: skip
def test_a_compiled_loss_that_is_no_mean_is_refused(keras, plan, kind, pieces):
    """Beside it that of each piece would be another one, too."""

    class Root(keras.losses.Loss):
        def __call__(self, y, p, sample_weight=None):
            return root(y, p)

    loss = {
        "dice": "dice", "root": root, "beside others": beside_others, "own call": Root(),
        "for each": keras.losses.MeanSquaredError(reduction="none"),
    }[kind]  # fmt: skip

    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "sigmoid")])
        model.compile("sgd", loss)
        return fit.use(model, pieces=pieces) if pieces else model

    with pytest.raises(ValueError, match="mean|depends on the others|__call__"):
        on(make, None if pieces else fit.strategy(plan).scope())


def test_a_metric_from_outside_of_the_scope_is_refused(keras, plan):
    """Two workers showed what each had of its own examples."""
    metric = keras.metrics.RootMeanSquaredError("root")
    with fit.strategy(plan).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae", metric])
    with pytest.raises(ValueError, match="the metric root .* outside of the scope"):
        model.fit(X, Y, verbose=0)


def test_gradients_that_are_changed_in_pieces_are_refused(plan):
    with pytest.warns(UserWarning, match="normalizes"), pytest.raises(ValueError, match="clipnorm"):
        on(lambda: fit.use(stepping(change=clipped), pieces=2))


def numbers(tf, model, x, y, p, slopes):
    return {
        "off": tf.reduce_mean(tf.abs(y - p)), "each": tf.reduce_mean(p, 0), "of": tf.shape(x)[0],
        "right": tf.reduce_sum(tf.cast(y * p > 0, tf.int32)), "rate": model.optimizer.learning_rate,
    }  # fmt: skip


def giving(numbers=None, keeps=None, metric=None):
    """Make a model with a step that gives numbers of its own, and keeps one."""
    metrics = {"seen": (metric, lambda loss, y, p: [loss])} if metric else {}
    return stepping(numbers=numbers, keeps=keeps, metrics=metrics, shows=None, inside=())


@pytest.mark.parametrize("what", [
    {"numbers": numbers}, later({"metric": "Mean"}), {"metric": "Sum"},
], ids=["numbers", "Mean", "Sum"])  # fmt: skip
@pytest.mark.parametrize("pieces", [later(0), 3])
def test_numbers_that_a_step_gives_are_those_of_the_batch(plan, pieces, what):
    """Of pieces of 4, 4 and 3 examples, as of replicas, which give no vectors."""
    if pieces:
        found = on(lambda: fit.use(giving(**what), pieces=3))
    else:
        if "numbers" in what:
            what = {"numbers": lambda *of: {k: x for k, x in numbers(*of).items() if k != "each"}}
        found = on(lambda: giving(**what), fit.strategy(plan).scope())
    same(found, on(lambda: giving(**what)))


@pytest.mark.parametrize("what, named", [
    ({"numbers": lambda tf, m, x, y, p, g: {"most": tf.reduce_max(p)}}, "most of what its"),
    ({"keeps": mean_so_far}, "changes"),
    ({"keeps": lambda tf, m, x, loss: m.kept.assign_add(4 * [1.0])}, "changes"),
    ({"keeps": lambda tf, m, x, loss: m.seen["seen"].update_state(m.trainable_variables[0]),
      "metric": "Sum"}, "after it has updated"),
])  # fmt: skip
def test_what_a_step_would_do_once_for_each_piece_is_refused(plan, what, named):
    with pytest.raises(ValueError, match=named):
        on(lambda: fit.use(giving(**what), pieces=2))


@pytest.mark.parametrize("pieces", [0, 2])
def test_a_tape_in_a_function_that_a_step_calls_is_refused(tf, keras, plan, pieces):
    class Own(keras.Model):
        @tf.function
        def slopes(self, x, y):
            with tf.GradientTape() as tape:
                loss = error(tf, y, self(x, training=True))
            return loss, tape.gradient(loss, self.trainable_variables)

        def train_step(self, data):
            loss, slopes = self.slopes(*data)
            self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
            return {"loss": loss}

    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model = Own(model.inputs, model.outputs)
        model.compile("sgd", "mse")
        return fit.use(model, pieces=2) if pieces else model

    with pytest.raises(ValueError, match="a @tf.function, where"):
        on(make, None if pieces else fit.strategy(plan).scope())


@pytest.mark.parametrize("laid", ["rows", "pieces"])
def test_layers_of_open_length_are_asked_with_a_length_that_they_take(tf, keras, plan, laid):
    class Places(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(6, 3))

        def call(self, x):
            return keras.ops.take(self.table, keras.ops.arange(keras.ops.shape(x)[1]), 0) + x

    given = keras.Input((None, 3))
    model = keras.Model(given, keras.layers.Dense(2)(Places()(given)))
    model.compile("sgd", "mse")
    fit.use(model, **({"layout": plan} if laid == "rows" else {"pieces": 2}))
    of = tf.TensorSpec((None, None, 3), "float64"), tf.TensorSpec((None, None, 2), "float64")
    ones = [(np.ones((5, 4, 3)), np.ones((5, 4, 2)))]
    open_data = tf.data.Dataset.from_generator(lambda: ones, output_signature=of)
    assert np.isfinite(model.fit(open_data, verbose=0).history["loss"]).all()




def test_a_model_without_a_call_is_told_of_the_networks_in_it(keras, plan):
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = keras.Sequential(), keras.Sequential()

        def train_step(self, data):
            return {}

    with pytest.raises(ValueError, match=r"no call: .* \(maker, judge\).*fit.strategy"):
        fit.use(Gan(), plan)
