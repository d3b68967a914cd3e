"""Losses, steps and metrics of one's own on replicas: equal to one device, or refused before."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest

from conftest import later, quick
from keras_models import keras, layers, tf
from mgpu_helpers import fit

pytestmark = pytest.mark.usefixtures("double")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(26, 4)), RANDOM.normal(size=(26, 1))  # with batches of 10 a last of 6


def layer_with(added, normal=True):
    """Make a model with layers that add a loss before and after replicas wait for each other."""

    class Adds(layers.Dense):
        def call(self, inputs):
            outputs = super().call(inputs)
            self.add_loss(added(keras.ops, outputs, self.kernel))
            return outputs

    inside = [Adds(3, "tanh"), *[layers.BatchNormalization()] * normal, Adds(1)]
    model = keras.Sequential([keras.Input((4,)), *inside])
    model.compile("sgd", "mse")
    return model


def mean_square(ops, y):
    return keras.losses.MeanSquaredError()(ops.zeros_like(y), y)


LAYERS = {
    "a loss of Keras": lambda ops, y, w: mean_square(ops, y),
    "a sum": lambda ops, y, w: 0.1 * ops.sum(y**2),
    "a sum, said": lambda ops, y, w: fit.loss(0.1 * ops.sum(y**2), "sum"),
    "a number for each example": lambda ops, y, w: ops.sum(y**2, 1),
    "of weights": lambda ops, y, w: 0.1 * ops.sum(w**2),
    "a maximum": lambda ops, y, w: ops.max(y**2),
}


def functional(kind, *inside, units=1, loss="mse"):
    x = given = keras.Input((4,))
    for layer in (keras.layers.Dense(3, "tanh"), *inside, keras.layers.Dense(units)):
        x = layer(x)
    model = kind(given, x)
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def loss_of_model(of):
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            original = super().compute_loss(x, y, y_pred, sample_weight, training)
            return of(keras.ops, y, y_pred, original)

    return functional(Own)


MODELS = {
    "Keras's and a sum": lambda ops, y, p, loss: loss + 0.1 * ops.sum(p**2),
    "Keras's twice and a mean": lambda ops, y, p, loss: 2 * loss + ops.mean(p**2),
}


# Metrics of a step: their kinds, and what they are updated with.
SEEN = {
    "seen": ("Mean", lambda loss, y, p: [loss]), "more": ("Mean", lambda loss, y, p: [loss + 1]),
}  # fmt: skip


def step_with(
    of, slopes_of=None, change=None, keeps=None, numbers=None, shows=None, metrics=SEEN,
    inside=(), units=1,
):  # fmt: skip
    """Make a model with a step, metrics and numbers of its own, which differs in what is given."""

    class Own(keras.Model):
        def train_step(self, data):
            x, y, *_ = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                losses = of(tf, self, x, y, p)
            weights = self.trainable_variables
            slopes = slopes_of(tf, losses, weights) if slopes_of else tape.gradient(losses, weights)
            loss = shows(tf, y, p) if shows else losses
            given = {"loss": loss, **(numbers(tf, self, x, y, p, slopes) if numbers else {})}
            if change:
                slopes = change(tf, slopes, weights)
            if slopes:
                self.optimizer.apply_gradients(zip(slopes, weights, strict=True))
            if keeps:
                keeps(tf, self, x, loss)
            for name, (_, parts) in metrics.items():
                self.seen[name].update_state(*parts(loss, y, p))
                given[name] = self.seen[name].result()
            return given

        def test_step(self, data):
            x, y = data
            self.seen["seen"].update_state(of(tf, self, x, y, self(x)))
            return {"seen": self.seen["seen"].result()}

    model = functional(Own, *inside, units=units)
    model.seen = {k: getattr(keras.metrics, kind)(name=k) for k, (kind, _) in metrics.items()}
    model.kept = model.add_weight(shape=(4,), initializer="zeros", trainable=False)
    return model


def masked(tf, y, p, said):
    mask = tf.cast(y > (-1 if said else -99), y.dtype)  # or it is a mean, by chance
    count = tf.reduce_sum(mask)
    loss = tf.math.divide_no_nan(tf.reduce_sum(mask * (y - p) ** 2), count)
    return fit.loss(loss, count) if said else loss


def of_all_masks(tf, y, p):
    mask = tf.cast(y > 0, y.dtype)
    count = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(mask))
    return tf.reduce_sum(mask * (y - p) ** 2) / count


def beside_all(tf, y, p):
    """Compare each with the others of the whole batch, as contrastive losses do."""
    of_all = tf.distribute.get_replica_context().all_gather(p, axis=0)
    return tf.reduce_mean((y - p) ** 2) - tf.reduce_mean(tf.abs(p - tf.transpose(of_all)))


def of_keras(y, p):
    return keras.losses.MeanSquaredError()(y, p)


def decay(tf, model):
    return tf.add_n([tf.nn.l2_loss(weight) for weight in model.trainable_weights])


STEPS = {
    "a mean": lambda tf, m, x, y, p: tf.reduce_mean((y - p) ** 2),
    "a sum": lambda tf, m, x, y, p: 0.01 * tf.reduce_sum((y - p) ** 2),
    "TensorFlow's average": lambda tf, m, x, y, p: tf.nn.compute_average_loss((y - p)[:, 0] ** 2),
    "an average of ten": lambda tf, m, x, y, p: tf.nn.compute_average_loss(
        (y - p)[:, 0] ** 2, global_batch_size=10
    ),
    "Keras's, a mean and weights": lambda tf, m, x, y, p: (
        2 * of_keras(y, p) + tf.reduce_mean(p**2) + 0.1 * decay(tf, m)
    ),
    "the compiled loss, scaled": lambda tf, m, x, y, p: m.optimizer.scale_loss(
        m.compute_loss(x, y, p)
    ),
    "a mean of a mask, said": lambda tf, m, x, y, p: masked(tf, y, p, True),
    "a sum, said": lambda tf, m, x, y, p: fit.loss(tf.reduce_sum((y - p) ** 2), "sum"),
    "a mean of a mask, counted by all": lambda tf, m, x, y, p: of_all_masks(tf, y, p),
    "a mean beside all others": lambda tf, m, x, y, p: beside_all(tf, y, p),
    "a mean of a mask": lambda tf, m, x, y, p: masked(tf, y, p, False),
    "a sum and a mean": lambda tf, m, x, y, p: tf.reduce_sum(p**2) + tf.reduce_mean((y - p) ** 2),
    "a dice": lambda tf, m, x, y, p: (
        1 - tf.reduce_sum(y * p) / (tf.reduce_sum(y**2) + tf.reduce_sum(p**2))
    ),
    "a maximum": lambda tf, m, x, y, p: tf.reduce_max((y - p) ** 2),
}
REFUSED = {"a maximum", "a mean of a mask", "a sum and a mean", "a dice"}
MAKE = {layer_with: LAYERS, loss_of_model: MODELS, step_with: STEPS}


def trained(make, scope=None, x=X, y=Y, tried=False, **given):
    """Fit a model made in a scope: its histories, with what `evaluate` gives, and its weights."""
    keras.utils.set_random_seed(0)
    with scope or contextlib.nullcontext():
        model = make()
    given = {"batch_size": 10, "epochs": 2, "verbose": 0, "shuffle": False} | given
    before = model.get_weights()
    try:
        history = model.fit(x, y, **given).history
    except ValueError:
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)  # nothing was updated yet
        raise
    if tried:
        seen = model.evaluate(x, y, batch_size=given["batch_size"], verbose=0, return_dict=True)
        history |= {f"tried {name}": value for name, value in seen.items()}
    return history, model.get_weights()


def same(found, wanted):
    assert found[0].keys() == wanted[0].keys()
    for name, values in wanted[0].items():
        np.testing.assert_allclose(found[0][name], values, 1e-12, err_msg=name)
    for a, b in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-14)


def same_in_scope(make, plan, *given, **named):
    """Hold what replicas come to against one device."""
    found = trained(make, fit.strategy(plan).scope(), *given, **named)
    same(found, trained(make, None, *given, **named))


def plain(metrics=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=metrics)
    return model


@functools.cache
def of_plain():
    return trained(plain)


# How a model is laid out, of which layers that add up losses are asked; and what pieces take.
LAID = {"rows": {"shares": (2, 1)}, "pieces": {"pieces": 3}}
PIECES = {"a loss of Keras", "a sum, said", "Keras's twice and a mean", "a mean"}
IN_PIECES = [(layer_with, of) for of in ("a loss of Keras", "a sum, said", "a sum", "a maximum")]
IN_PIECES += [(loss_of_model, of) for of in MODELS]
IN_PIECES += [(step_with, of) for of in ("a mean", "a sum", "a sum, said", "a maximum")]


@pytest.mark.parametrize("way, make, of", quick(
    ("replicas", layer_with, "a sum"), ("replicas", layer_with, "a maximum"),
    ("replicas", loss_of_model, "Keras's twice and a mean"), ("replicas", step_with, "a sum"),
    ("replicas", step_with, "Keras's, a mean and weights"),
    ("replicas", step_with, "a mean of a mask, said"), ("replicas", step_with, "a mean of a mask"),
    ("rows", layer_with, "a sum"), ("rows", layer_with, "a maximum"),
    ("pieces", layer_with, "a loss of Keras"), ("pieces", step_with, "a sum, said"),
    ("pieces", loss_of_model, "Keras's and a sum"), ("pieces", step_with, "a maximum"),
    among=[*(("replicas", make, of) for make, table in MAKE.items() for of in table),
           *(("rows", layer_with, of) for of in LAYERS),
           *(("pieces", *each) for each in IN_PIECES)],
))  # fmt: skip
def test_a_loss_of_ones_own_is_that_of_one_device_or_refused(plan, way, make, of):
    """Also where rows meet, of unequal shares of which one is empty, and in a strategy of one."""
    x, y = (X[:11], Y[:11]) if way == "rows" else (X, Y)
    named = {"normal": False} if (way, make) == ("pieces", layer_with) else {}
    one = (way, make) == ("pieces", step_with)

    def on(way):
        def made():
            model = make(MAKE[make][of], **named)
            if way in LAID:
                fit.use(model, plan if way == "rows" else None, **LAID[way])
            return model

        devices = plan.devices if way == "replicas" else plan.devices[:1]
        scope = fit.strategy(devices).scope() if way == "replicas" or one else None
        return trained(made, scope, x, y, tried=True)

    if of in REFUSED or way == "pieces" and of not in PIECES:
        with pytest.raises(ValueError, match="neither a mean|is no mean over a batch's examples"):
            on(way)
    else:
        same(on(way), on("alone"))


@pytest.mark.parametrize("kept", ["sum", "mean"])
def test_what_a_layer_keeps_in_rows_is_that_of_one_device_or_refused(keras, plan, kept):
    class Keeps(keras.layers.Layer):
        def build(self, shape):
            self.kept = self.add_weight(shape=(4,), initializer="zeros", trainable=False)

        def call(self, inputs):
            self.kept.assign(0.9 * self.kept + getattr(keras.ops, kept)(inputs, 0))
            return inputs

    def on(laid):
        def make():
            model = keras.Sequential([keras.Input((4,)), Keeps(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return fit.use(model, plan) if laid else model

        return trained(make)

    if kept == "sum":
        with pytest.raises(ValueError, match="what a layer gives .* is no mean"):
            on(True)
    else:
        same(on(True), on(False))


@pytest.mark.parametrize("said, exchange", [
    ("all_reduce", lambda tf, all, p: all.all_reduce("SUM", tf.reduce_mean(p))),
    ("all_gather", lambda tf, all, p: all.all_gather(tf.reduce_mean(p)[None], axis=0)[0]),
])  # fmt: skip
def test_what_replicas_give_each_other_has_to_be_made_of_their_examples(plan, said, exchange):
    def loss(tf, model, x, y, p):
        return tf.reduce_mean((y - p) ** 2) + exchange(tf, tf.distribute.get_replica_context(), p)

    with pytest.raises(ValueError, match=f"with {said} the step"):
        trained(lambda: step_with(loss), fit.strategy(plan).scope())


def test_a_loss_that_overflows_with_other_weights_is_that_of_one_device(plan):
    """A variational autoencoder takes the exponential of what a large layer gives."""

    def make():
        model = step_with(lambda tf, m, x, y, p: tf.reduce_mean(tf.exp(1e5 * p)))
        model.layers[-1].kernel.assign(0 * model.layers[-1].kernel)
        model.optimizer.learning_rate = 1e-12
        return model

    same_in_scope(make, plan)


def test_on_one_device_any_loss_is_taken(plan):
    same_in_scope(lambda: layer_with(LAYERS["a maximum"]), plan.devices[:1])


@pytest.mark.parametrize("keeps", ["sum", "max", "most"])
def test_a_metric_is_of_sums_or_refused(keras, plan, keeps):
    """One that is a function gives a number for each example."""

    class Keeps(keras.Metric):
        def __init__(self):
            super().__init__(name="keeps")
            self.kept = self.add_weight(shape=(), initializer="zeros", dtype="float64")

        def update_state(self, y, p, sample_weight=None):
            off = keras.ops.sum(keras.ops.abs(y - p), 1)
            # The sum of both, or the largest of both.
            self.kept.assign(getattr(keras.ops, keeps)(keras.ops.append(off, self.kept)))

        def result(self):
            return self.kept

    def most(y, p):
        return keras.ops.max(y - p)

    def make():
        return plain([most if keeps == "most" else Keeps()])

    if keeps == "sum":
        same_in_scope(make, plan, tried=True)
    else:
        with pytest.raises(ValueError, match="most" if keeps == "most" else "keeps"):
            trained(make, fit.strategy(plan).scope())


@pytest.mark.parametrize("drop", [False, True])
def test_a_batch_of_a_known_size_may_leave_a_replica_empty(tf, plan, drop):
    data = tf.data.Dataset.from_tensor_slices((X[:3], Y[:3])).batch(1, drop_remainder=drop)
    same_in_scope(lambda: plain(["mae"]), plan, data, None, tried=True, batch_size=None, epochs=1)


@pytest.mark.parametrize("n", [1, 3])
def test_one_image_is_predicted_on_several_devices(plan, n):
    """TensorFlow's convolution of no images fails on a processor."""
    given = keras.Input((9, 9, 1), dtype="float32")
    with fit.strategy(plan).scope():
        x = keras.layers.Conv2D(4, 3, dtype="float32")(given)
        model = keras.Model(given, {"image": x, "sum": keras.ops.sum(x, (1, 2))})
    images = RANDOM.normal(size=(3, 9, 9, 1)).astype("float32")
    wanted = [np.asarray(each) for each in keras.tree.flatten(model(images))]
    for found in (model.predict(images[:n], verbose=0), model.predict_on_batch(images[:n]),
                  model.predict(images[:n], batch_size=2, verbose=0)):  # fmt: skip
        for a, b in zip(keras.tree.flatten(found), wanted, strict=True):
            np.testing.assert_allclose(a, b[:n], 1e-5, 1e-6)


def test_a_step_without_a_graph_is_asked_before_it_changes_the_model(keras, plan):
    def making(of):
        def made():
            model = layer_with(of)
            model.compile("sgd", "mse", run_eagerly=True)
            model.layers[0].kernel_regularizer = keras.regularizers.L2(0.1)
            return model

        return made

    same_in_scope(making(LAYERS["a sum"]), plan, X[:16], Y[:16], epochs=1)
    with pytest.raises(ValueError, match="run_eagerly"):
        trained(making(lambda ops, y, w: 2 * mean_square(ops, y)), fit.strategy(plan).scope())


def test_a_model_that_is_compiled_again_is_asked_again(plan):
    of, scope = ["a mean"], fit.strategy(plan).scope
    with scope():
        model = step_with(lambda *given: STEPS[of[-1]](*given))
    model.fit(X, Y, batch_size=10, verbose=0)
    of.append("a maximum")
    with scope():
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="neither a mean"):
        model.fit(X, Y, batch_size=10, verbose=0)


def test_a_mean_of_no_example_stops_the_training(tf, plan):
    with pytest.raises(tf.errors.InvalidArgumentError, match="drop_remainder"):
        trained(lambda: step_with(STEPS["a mean"]), fit.strategy(plan).scope(), X[:11], Y[:11])


def test_a_loss_that_is_nothing_that_can_be_said_is_refused():
    with pytest.raises(ValueError, match="median"):
        fit.loss(1.0, "median")


@pytest.mark.parametrize("inside", [False, later(True)])
def test_a_gan_starts_as_it_does_on_one_device(tf, plan, inside):
    """It has no call, two optimizers, two tapes, and parts that are built in the first step.

    Its `fit` may be called outside of the scope or inside.
    """

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.maker = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(4)])
            self.judge = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(1)])
            self.first, self.second = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
            self.seen = keras.metrics.Mean(name="seen")

        def train_step(self, real):
            noise, ask = real[:, ::-1], keras.losses.BinaryCrossentropy(from_logits=True)
            fake = self.maker(noise)
            both = tf.concat([fake, real], 0)
            labels = tf.concat([tf.ones_like(fake[:, :1]), tf.zeros_like(real[:, :1])], 0)
            with tf.GradientTape() as tape:
                judged = ask(labels, self.judge(both))
            slopes = tape.gradient(judged, self.judge.trainable_weights)
            self.second.apply_gradients(zip(slopes, self.judge.trainable_weights, strict=True))
            with tf.GradientTape() as tape:
                made = tf.reduce_mean(tf.nn.softplus(self.judge(self.maker(noise))))
            slopes = tape.gradient(made, self.maker.trainable_weights)
            self.first.apply_gradients(zip(slopes, self.maker.trainable_weights, strict=True))
            self.seen.update_state(made + judged)
            return {"seen": self.seen.result()}

    def make():
        model = Gan()
        model.compile()
        return model

    outer, inner = fit.strategy(plan).scope(), contextlib.nullcontext()
    with outer if inside else inner:
        found = trained(make, inner if inside else outer, X, None, epochs=1)
    same(found, trained(make, None, X, None, epochs=1))


def test_layers_that_a_call_builds_are_built_by_the_first_step(tf, keras, plan):
    """Layers without a build of their model's have variables of one name."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)

        def call(self, inputs):
            self.add_loss(0.1 * tf.reduce_mean(inputs**2))
            return self.last(self.first(inputs))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((y - self(x, training=True)) ** 2) + sum(self.losses)
            slopes = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
            return {"error": loss}

    def make():
        model = Own()
        model.compile("adam")
        return model

    same_in_scope(make, plan)


def test_a_batch_by_hand_is_shared_out_as_one_of_a_dataset(keras, plan):
    def on(scope):
        keras.utils.set_random_seed(0)
        with scope:
            model = step_with(STEPS["a sum"])
        seen = model.train_on_batch(X[:7], Y[:7], return_dict=True)
        return seen | {"rows": model.predict_on_batch(X[:3])}, model.get_weights()

    same(on(fit.strategy(plan).scope()), on(contextlib.nullcontext()))


def test_a_dataset_that_was_distributed_already_is_taken(tf, plan):
    strategy = fit.strategy(plan)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    found = trained(plain, strategy.scope(), strategy.experimental_distribute_dataset(data), None,
                    batch_size=None)  # fmt: skip
    same(found, of_plain())


@pytest.mark.parametrize("n", [21, later(26)])
def test_a_dataset_of_each_replicas_batches_is_that_of_the_global_batches(tf, plan, n):
    """Of which the last one may be shorter, or there for one replica only."""
    strategy, asked = fit.strategy(plan), []

    def of_replica(context):
        asked.append(context)
        data = tf.data.Dataset.from_tensor_slices((X[:n], Y[:n]))
        return data.batch(context.get_per_replica_batch_size(8))

    parts = strategy.distribute_datasets_from_function(of_replica)
    data = tf.data.Dataset.from_tensor_slices((X[:n], Y[:n])).batch(8)
    found, wanted = (
        trained(plain, scope, each, None, validation_data=each, batch_size=None)
        for scope, each in ((strategy.scope(), parts), (None, data))
    )
    same(found, wanted)
    assert len(asked) == 1


def test_a_fit_that_somebody_has_wrapped_is_called_as_ever(keras, plan, monkeypatch):
    called, has = [], keras.Model.fit

    def wrapped(model, *args, **named):
        called.append(model)
        return has(model, *args, **named)

    monkeypatch.setattr(keras.Model, "fit", wrapped)
    found = trained(plain, fit.strategy(plan).scope())
    assert len(called) == 1
    same(found, of_plain())


def test_a_fit_that_somebody_has_unwrapped_again_is_mended_once_more(keras, plan, monkeypatch):
    """Who wrapped it before us puts back what was there then, which is Keras's."""
    fit.strategy(plan)
    monkeypatch.delattr(keras.Model, "fit")
    same(trained(plain, fit.strategy(plan).scope()), of_plain())


@pytest.mark.parametrize("way", ["strategy", "pieces"])
def test_one_layer_of_two_sparse_inputs_is_refused(tf, keras, plan, way):
    """Adam squares what each of both gives for a row, which parts have in more parts."""
    with fit.strategy(plan).scope() if way == "strategy" else contextlib.nullcontext():
        given = [keras.Input(X.shape[1:], sparse=True) for _ in range(2)]
        layer = keras.layers.Dense(1)
        model = keras.Model(given, keras.layers.add([layer(each) for each in given]))
        model.compile("adam", "mse")
    if way == "pieces":
        fit.use(model, pieces=2)
    with pytest.raises(ValueError, match=r"sparse\.to_dense"):
        model.fit([tf.sparse.from_dense(X)] * 2, Y, verbose=0)


def test_a_loss_may_be_a_number_of_python(keras, plan):
    with fit.strategy(plan).scope():
        model = plain()
        model.compile("sgd", lambda y, of: 1)
    assert model.evaluate(X, Y, verbose=0) == 1


@pytest.mark.parametrize("n", [1, 2])
def test_xla_compiles_what_it_does_without_a_strategy(tf, plan, monkeypatch, n):
    """With a GPU in TensorFlow's list, which is what Keras asks for."""
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *kind: [gpu])
    kept = []

    def made(asked="auto"):
        kept.append(plain())
        kept[-1].compile("sgd", "mse", jit_compile=asked)
        return kept[-1]

    scope = fit.strategy(plan.devices[:n]).scope
    found = trained(made, scope(), X[:10], Y[:10])
    with scope():
        made(True), made(False)
    assert [model.jit_compile for model in kept] == [True, True, False]
    same(found, trained(plain, None, X[:10], Y[:10]))


def test_keras_runs_its_own_code_outside_of_scopes_and_fits_of_ours(keras, plan):
    from keras.src.losses import loss

    from mgpu_helpers import _private

    before, seen = loss.scale_loss_for_distribution, []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append(loss.scale_loss_for_distribution)
    )
    with fit.strategy(plan).scope():
        assert loss.scale_loss_for_distribution is not before
        model = plain()
    assert loss.scale_loss_for_distribution is before
    plain().fit(X, Y, verbose=0, callbacks=[watch])
    model.fit(X, Y, verbose=0, callbacks=[watch])
    assert seen[0] is before is not seen[1] and loss.scale_loss_for_distribution is before
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_private.KERAS, "owned", "keras.Layer._no_longer_there")
        with pytest.raises(RuntimeError, match="_no_longer_there"):
            model.fit(X, Y, verbose=0)
        assert loss.scale_loss_for_distribution is before


@pytest.mark.parametrize("options", [later({"recompute": True}), {"stages": 2}])
def test_layers_of_another_type_than_floatx_compute_in_their_own(keras, plan, options):
    def made(changed):
        keras.config.set_floatx("float32")
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(3, "tanh", dtype="float64", name=f"of_{i}") for i in range(4)]
        model = keras.Sequential([keras.Input((4,), dtype="float64"), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        if changed:
            fit.use(model, plan if "stages" in options else None, **options)
        model.fit(X, Y, batch_size=10, epochs=1, verbose=0, shuffle=False)
        return model.get_weights()

    for a, b in zip(made(True), made(False), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-7)
