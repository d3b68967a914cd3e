"""Steps of one's own on replicas: gradients, metrics and variables are those of all examples."""

from __future__ import annotations

import contextlib

import pytest

from fit_models import double
from mgpu_helpers import fit
from test_fit_losses import RANDOM, same, trained

X, Y = RANDOM.normal(size=(29, 4)), RANDOM.normal(size=(29, 2))  # in batches of 11, 11 and 7


@pytest.fixture(autouse=True)
def exact():
    with double():
        yield


def functional(kind, loss="mse"):
    import keras

    given = keras.Input((4,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(3, "tanh")(given))
    model = kind(given, keras.layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def error(tf, y, p):
    return tf.reduce_mean((y - p) ** 2)


def averaged(tf, value):
    return tf.stop_gradient(tf.distribute.get_replica_context().all_reduce("MEAN", value))


def stepping(of=error, slopes_of=None, change=None, keeps=None):
    """Make a model with a step that differs from Keras's in what is given."""
    import keras
    import tensorflow as tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                losses = of(tf, y, p)
            weights = self.trainable_variables
            slopes = slopes_of(tf, losses, weights) if slopes_of else tape.gradient(losses, weights)
            norm = tf.constant(0.0) if slopes_of else tf.linalg.global_norm(slopes)
            if change:
                slopes = change(tf, slopes, weights)
            if slopes:
                self.optimizer.apply_gradients(zip(slopes, weights, strict=True))
            if keeps:
                self.kept.assign(keeps(tf, self.kept, x))
            self.seen.update_state(error(tf, y, p))
            self.root.update_state(y, p)
            return {"shown": self.seen.result(), "off": self.root.result(), "norm": norm,
                    "loss": error(tf, y, p)}  # fmt: skip

    model = functional(Own)
    model.seen, model.root = (
        keras.metrics.Mean(name="seen"), keras.metrics.RootMeanSquaredError("root")
    )
    model.kept = model.add_weight(shape=(4,), initializer="zeros", trainable=False)
    return model


def on(make, scope):
    return trained(make, scope, X, Y, batch_size=11)


def by_hand(tf, slopes, weights):
    for weight, slope in zip(weights, slopes, strict=True):
        weight.assign_sub(0.1 * slope)
    return []


EQUAL = {
    "as Keras does": {},
    "of several losses": {"of": lambda tf, y, p: [error(tf, y, p), tf.reduce_mean(p**2)]},
    "of a loss for each example": {"of": lambda tf, y, p: tf.reduce_mean((y - p) ** 2, 1)},
    "of one in a list of rank 1": {"of": lambda tf, y, p: error(tf, y, p)[None]},
    "of a mean of all": {"of": lambda tf, y, p: averaged(tf, error(tf, y, p)) * error(tf, y, p)},
    "clipped by their norm": {"change": lambda tf, g, w: tf.clip_by_global_norm(g, 0.1)[0]},
    "with a decay": {"change": lambda tf, g, w: [a + 0.1 * b for a, b in zip(g, w, strict=True)]},
    "applied by hand": {"change": by_hand},
    "without a tape, said": {"slopes_of": lambda tf, loss, w: [
        fit.loss(x, "sum")
        for x in tf.gradients(fit.loss(loss, "mean"), [each.value for each in w])
    ]},
}  # fmt: skip


@pytest.mark.parametrize("how", EQUAL)
def test_a_step_has_the_gradients_and_results_of_all_examples(plan, how):
    found, wanted = (on(lambda: stepping(**EQUAL[how]), scope) for scope in
                     (fit.strategy(plan).scope(), contextlib.nullcontext()))  # fmt: skip
    same(found, wanted)


def mean_so_far(tf, kept, x):
    return 0.9 * kept + 0.1 * tf.reduce_mean(x, 0)


def sums(tf, kept, x):
    return kept + tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(x, 0))


@pytest.mark.parametrize("what, named", [
    ({"of": lambda tf, y, p: averaged(tf, tf.reduce_sum(p)) * error(tf, y, p)}, "MEAN"),
    ({"slopes_of": lambda tf, loss, w: tf.gradients(loss, [x.value for x in w])}, "GradientTape"),
    ({"keeps": mean_so_far}, "another value"),
])  # fmt: skip
def test_what_a_replica_makes_of_its_examples_alone_is_refused(plan, what, named):
    with pytest.raises(ValueError, match=named):
        on(lambda: stepping(**what), fit.strategy(plan).scope())


def test_what_is_kept_of_all_examples_is_that_of_one_device(plan):
    same(*(on(lambda: stepping(keeps=sums), scope) for scope in
           (fit.strategy(plan).scope(), contextlib.nullcontext())))  # fmt: skip


def root(y, p):
    import keras

    return keras.ops.sqrt(keras.ops.mean((y - p) ** 2))


@pytest.mark.parametrize("loss, pieces", [
    ("dice", 0), (root, 0), ("for each", 0), ("dice", 2), (root, 2),
])  # fmt: skip
def test_a_compiled_loss_that_is_no_mean_is_refused(keras, plan, loss, pieces):
    """Beside it that of each piece would be another one, too."""
    if loss == "for each":
        loss = keras.losses.MeanSquaredError(reduction="none")

    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "sigmoid")])
        model.compile("sgd", loss)
        return fit.use(model, pieces=pieces) if pieces else model

    with pytest.raises(ValueError, match="mean"):
        on(make, contextlib.nullcontext() if pieces else fit.strategy(plan).scope())


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
        on(lambda: fit.use(stepping(**EQUAL["clipped by their norm"]), pieces=2),
           contextlib.nullcontext())  # fmt: skip
