"""Models with all that `fit` knows of, in float64, each with a batch: what every way must keep.

A case is a function of no arguments that gives a compiled model and what its `fit` is given. So
that a difference is none of rounding, the models compute in float64.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_models import keras, layers, tf

SIZE = 27  # of the data: with batches of 10 a last one of 7
RANDOM = np.random.default_rng(0)
X, Z = RANDOM.normal(size=(2, SIZE, 6))
Y, NUMBERS = RANDOM.integers(0, 3, SIZE), RANDOM.normal(size=(SIZE, 1))
HEAVY = np.linspace(0.1, 4.0, SIZE)
TOKENS = RANDOM.integers(1, 9, (SIZE, 5))
TOKENS[np.arange(5) >= RANDOM.integers(1, 6, SIZE)[:, None]] = 0
WEIGHTS = np.outer(HEAVY, range(1, 6))  # of each token
TAGS = RANDOM.integers(0, 3, (SIZE, 5))
IMAGES = RANDOM.normal(size=(SIZE, 6, 6, 2))


@contextlib.contextmanager
def double() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Let layers that are made in the block compute so."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def places(variables: Any) -> list[str]:
    """Name the devices on which variables lie."""
    return [v.value.device.partition("device:")[2] for v in variables]


def waits(step: Any) -> Callable[[str], set[str]]:
    """Make a function that finds what has to be done in a traced step before an operation."""
    before = defaultdict(set)
    for maker, user in step.edges:
        before[user].add(maker)

    def needed(name: str) -> set[str]:
        todo, seen = [name], set()
        while todo:
            new = before[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    return needed


def trained(case: str, change: Any = None, scope: Any = None, whole: bool = True) -> list[Any]:
    """Fit a case, made in a scope and changed after: model, history and predictions.

    What is not whole is one pass, without validation, `evaluate` and `predict`.
    """
    keras.utils.set_random_seed(0)
    with scope or contextlib.nullcontext():
        model, given = CASES[case]()
    if change is not None:
        change(model)
    given = {"x": X, "y": Y, "batch_size": 10, "epochs": 2, "verbose": 0} | given
    if not whole:
        given = {k: v for k, v in given.items() if "validation" not in k} | {"epochs": 1}
        return [model, model.fit(**given).history, []]
    seen = model.fit(**given).history
    tried = model.evaluate(given["x"], given["y"], batch_size=10, verbose=0, return_dict=True)
    predicted = keras.tree.flatten(model.predict(given["x"], batch_size=10, verbose=0))
    return [model, seen | {f"tried {k}": [v] for k, v in tried.items()}, predicted]


def near(got: Any, wanted: Any, much: float) -> None:
    """Compare histories, and lists of variables and predictions."""
    assert got[0].keys() == wanted[0].keys()
    for name, values in wanted[0].items():
        np.testing.assert_allclose(got[0][name], values, rtol=much, atol=much, err_msg=name)
    for a, b in zip(got[1], wanted[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=much, atol=much)


def cross(**kwargs: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


def dense(*layers: Any, loss: Any = None, optimizer: Any = None, **compiled: Any) -> Any:
    first = layers or (keras.layers.Dense(5, "tanh", name="up_0"),)
    model = keras.Sequential([keras.Input((6,)), *first, keras.layers.Dense(3, name="down_0")])
    optimizer = optimizer or keras.optimizers.Adam(0.05)
    model.compile(optimizer, loss or cross(), **({"metrics": ["accuracy"]} | compiled))
    return model


def sequential() -> Any:
    return dense(), {"validation_data": (X[:9], Y[:9])}


def normalized() -> Any:
    """Conv, pooling and BatchNormalization, also frozen and in a model within the model."""
    inner = keras.Sequential([keras.Input((6, 6, 4)), layers.BatchNormalization(), layers.ReLU()])
    given = keras.Input((6, 6, 2))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(given))
    x = layers.BatchNormalization(trainable=False)(layers.Add()([x, inner(x)]))
    model = keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), cross(), metrics=["accuracy"])
    return model, {"x": IMAGES, "validation_split": 0.2}


def subclass() -> Any:
    class Code(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(5, "gelu"), keras.layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            inner = self.first(x)
            self.add_loss(0.1 * keras.ops.mean(inner**2))
            return self.last(inner)

    model = Code()
    model(X[:2])
    model.compile("rmsprop", cross(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, {"sample_weight": HEAVY}


def own_step() -> Any:
    """Have a train_step of its own, with a loss and a metric that `compile` does not know."""

    class Own(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen = keras.metrics.Mean(name="seen")

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = keras.ops.mean(
                    keras.losses.mean_squared_error(keras.ops.one_hot(y, 3), outputs)
                )
                loss = keras.ops.cast(loss, "float64")
            slopes = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
            self.seen.update_state(loss, sample_weight=keras.ops.shape(x)[0])
            return {"seen": self.seen.result()}

    given, up = keras.Input((6,)), keras.layers.Dense(5, "tanh", name="up_0")
    model = Own(given, keras.layers.Dense(3, name="down_0")(up(given)))
    model.compile(keras.optimizers.AdamW(0.05, global_clipnorm=0.1), cross())
    return model, {}


def class_weights() -> Any:
    return dense(), {"class_weight": {0: 0.2, 1: 1.0, 2: 5.0}}


def mean_of_weights() -> Any:
    loss = cross(reduction="mean_with_sample_weight")
    return dense(loss=loss, weighted_metrics=["accuracy"]), {"sample_weight": HEAVY}


def masks() -> Any:
    """Have a mask on the output, one from the labels, and weights, in a loss of a mean."""
    model = keras.Sequential([
        keras.Input((5,), dtype="int32"), layers.Embedding(9, 4, mask_zero=True),
        layers.LSTM(4, return_sequences=True), layers.Dense(3),
    ])  # fmt: skip
    adam = keras.optimizers.Adam(0.05, global_clipnorm=0.5)
    model.compile(adam, cross(ignore_class=1), metrics=["accuracy"])
    return model, {"x": TOKENS, "y": TAGS, "sample_weight": WEIGHTS}


def masked_normal() -> Any:
    """Normalize what masks leave, in a last batch of two examples."""
    words = [layers.Embedding(9, 4, mask_zero=True), layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((5,), dtype="int32"), *words, layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), cross(), metrics=["accuracy"])
    return model, {"x": TOKENS[:22], "y": TAGS[:22]}


def causal() -> Any:
    """Have a block of a Transformer that looks back only, past what a mask leaves out.

    One tensor is given twice to a layer, whose masks come with it.
    """
    given = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 8, mask_zero=True)(given)
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(4, 3, name="heads_0")(y, y, use_causal_mask=True)
    x = layers.Add()([x, y])
    y = layers.Dense(12, "gelu", name="up_0")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(8, name="down_0")(y)])
    model = keras.Model(given, layers.Dense(3)(x))
    adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.1, use_ema=True)
    model.compile(adamw, cross(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return model, {"x": TOKENS, "y": TAGS, "sample_weight": WEIGHTS, "callbacks": [swap]}


def positions() -> Any:
    """Embed positions, which are the same rows for every batch, and clip by the global norm."""

    class Places(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.other, self.third = (layers.Embedding(5, 4) for _ in range(3))
            self.kept = self.add_weight((5,), dtype="int32", trainable=False)
            self.kept.assign(range(5))

        def call(self, x: Any) -> Any:
            x += self.table(keras.ops.arange(5)) * self.other(tf.range(tf.shape(x)[1]))
            return x + self.third(self.kept)

    given = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4)(given)
    model = keras.Model(given, layers.Dense(3)(Places()(x)))
    adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.05)
    model.compile(adamw, cross(), metrics=["accuracy"])
    return model, {"x": TOKENS, "y": TAGS}


def two_of_each() -> Any:
    """Have two inputs and outputs, in dicts, with losses, weights, metrics, optimizers for each."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    x = layers.Concatenate()([layers.Dense(4, "tanh")(a), layers.Dense(4)(b)])
    made = {"kind": layers.Dense(3)(x), "box": layers.Dense(1, name="box")(x)}
    model = keras.Model({"a": a, "b": b}, made)
    weighted = cross(reduction="mean_with_sample_weight")
    optimizer = keras.optimizers.Adam()
    if hasattr(keras.optimizers, "MultiOptimizer"):
        of_box = {".*box/.*": keras.optimizers.SGD(0.01, momentum=0.9)}
        optimizer = keras.optimizers.OptimizerMap(optimizer, of_box)
        optimizer = keras.optimizers.MultiOptimizer(optimizer)
    model.compile(optimizer, {"kind": weighted, "box": "mse"}, {"kind": 1.0, "box": 0.3},
                  metrics={"kind": "accuracy", "box": ["mae"]})  # fmt: skip
    data = {"x": {"a": X, "b": Z}, "y": {"kind": Y, "box": NUMBERS}}
    return model, data | {"sample_weight": {"kind": HEAVY, "box": HEAVY[::-1].copy()}}


def list_of_outputs() -> Any:
    """Have a head without a loss, and a sum for that of a column, whose labels are numbers.

    A layer is called twice, and adds to the loss each time.
    """
    given = keras.Input((6,))
    same = layers.Dense(6, "tanh", activity_regularizer="l2")
    x = same(same(given))
    heads = [layers.Dense(n, name=f"head_{n}")(x) for n in (3, 1, 2)]
    model = keras.Model(given, heads)
    model.compile("adamw", [cross(), keras.losses.MeanSquaredError(reduction="sum"), None])
    return model, {"y": [Y, NUMBERS[:, 0], NUMBERS]}


def regularized() -> Any:
    first = layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    adam = keras.optimizers.Adam(0.05, clipnorm=0.1)
    return dense(first, layers.Dense(5, kernel_constraint="max_norm"), optimizer=adam), {}


def areas() -> Any:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "mae"])
    return model, {"y": (Y > 0).astype("float64")[:, None]}


def last_of_one() -> Any:
    return dense(), {"x": X[:21], "y": Y[:21]}


def several_steps() -> Any:
    return dense(steps_per_execution=2), {}


def keras_accumulates() -> Any:
    adam = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
    return dense(optimizer=adam), {}


def averaged() -> Any:
    """Have decay, clipping, a schedule and a moving average of the weights."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    adam = keras.optimizers.AdamW(rate, clipvalue=0.1, use_ema=True, ema_overwrite_frequency=3)
    return dense(optimizer=adam), {}


def watched() -> Any:
    """Stop early, and lower the rate before."""
    calls = [
        keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=2),
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=10.0, patience=0),
    ]
    return dense(), {"callbacks": calls, "epochs": 9}


def sure() -> Any:
    """A softmax and a sigmoid of large numbers: of probabilities below 1e-7 a loss would be cut.

    For what the model gives besides there is neither a loss nor a label.
    """
    given = keras.Input((6,))
    first = keras.layers.Dense(5)(given)
    x = keras.layers.Dense(5, name="up_0")(first)
    heads = {"kind": (3, "softmax"), "is": (1, "sigmoid")}
    last = {name: keras.layers.Dense(*each, name=name) for name, each in heads.items()}
    model = keras.Model(given, {k: layer(x) for k, layer in last.items()} | {"besides": first})
    for layer in last.values():
        layer.kernel.assign(40 * layer.kernel)
    losses = {"kind": "sparse_categorical_crossentropy", "is": "binary_crossentropy"}
    model.compile("adam", losses)
    return model, {"y": {"kind": Y, "is": (Y[:, None] > 0).astype("d")}}


def gated() -> Any:
    """Have two residual pairs, one gated, one in a model within the model, and odd units."""
    x = given = keras.Input((6,))
    y = layers.BatchNormalization()(x)
    y = layers.Dense(5, "silu", name="up_gate")(y) * layers.Dense(5, name="up_0")(y)
    x = layers.Add()([x, layers.Dense(6, "tanh", name="down_0")(layers.Dropout(0.0)(y))])
    up = layers.Dense(7, "gelu", name="up_1", kernel_regularizer="l2")
    down = layers.Dense(6, name="down_1", use_bias=False)
    x = layers.Add()([x, keras.Sequential([keras.Input((6,)), up, down])(x)])
    model = keras.Model(given, layers.Dense(3)(x))
    adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.1)
    adamw.exclude_from_weight_decay([up.kernel])
    model.compile(adamw, cross(), metrics=["accuracy"])
    return model, {"validation_split": 0.2, "class_weight": {0: 0.2, 1: 1.0, 2: 5.0}}


def decoder() -> Any:
    """Have layers of one's own with layers inside: fewer heads of keys, products along an axis."""

    class Decoder(layers.Layer):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            self.supports_masking = True
            self.norm, self.other = layers.LayerNormalization(), layers.LayerNormalization()
            self.heads = layers.GroupQueryAttention(3, 6, 2, name="heads_0")
            self.up = layers.EinsumDense("btd,fd->btf", (None, 9), "silu", "f", name="up_0")
            self.gate = layers.EinsumDense("btd,df->btf", (None, 9), name="up_1")
            self.dropout = layers.Dropout(0.0)
            self.down = layers.EinsumDense("btf,fd->btd", (None, 8), None, "d", name="down_0")
            self.scale = self.add_weight((8,), "ones")

        def call(self, x: Any, training: Any = None) -> Any:
            y = self.norm(x)
            x = x + self.heads(y, y, use_causal_mask=True)
            y = self.other(x)
            y = self.dropout(self.up(y) * self.gate(y), training=training)
            return x + self.scale * self.down(y)

    given = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 8, mask_zero=True)(given)
    for i in range(2):
        x = Decoder(name=f"decoder_{i}")(x)
    model = keras.Model(given, layers.Dense(3)(x))
    adamw = keras.optimizers.AdamW(0.05, global_clipnorm=0.1)
    model.compile(adamw, cross(), weighted_metrics=["accuracy"])
    return model, {"x": TOKENS, "y": TAGS}


def residual(blocks: int = 2, width: int = 4, size: int = 6, channels: int = 2) -> Any:
    """Make blocks of convolutions with BatchNormalization, Dropout, and what is added to a loss."""
    given = keras.Input((size, size, channels))
    x = layers.Conv2D(width, 3, padding="same")(given)
    for i in range(blocks):
        y = layers.Conv2D(width, 3, padding="same", name=f"block_{i}")(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.Conv2D(width, 3, padding="same", activity_regularizer="l2")(y)
        y = layers.Dropout(0.3)(layers.BatchNormalization()(y))
        x = layers.ReLU()(layers.Add()([x, y]))
    model = keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", cross(), metrics=["accuracy"])
    return model


def dropped() -> Any:
    return residual(1), {"x": IMAGES, "class_weight": {0: 0.5, 1: 1.0, 2: 3.0}}


def sentences() -> Any:
    """Have a block of a Transformer with dropout, and a layer in a layer, for masked words."""

    class Feed(layers.Layer):  # not told of training, as its Dropout is
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            self.supports_masking = True
            self.inner = [layers.Dense(16, "gelu"), layers.Dropout(0.3), layers.Dense(8)]

        def call(self, x: Any) -> Any:
            for layer in self.inner:
                x = layer(x)
            return x

    given = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 8, mask_zero=True)(given)
    x = layers.Add()([x, Feed()(layers.LayerNormalization()(x))])
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4, dropout=0.3)(y, y)])
    x = layers.LSTM(8, return_sequences=True, recurrent_dropout=0.2)(x)
    model = keras.Model(given, layers.Dense(3, dtype=keras.config.floatx())(x))
    adamw = keras.optimizers.AdamW(0.01, global_clipnorm=0.1)
    model.compile(adamw, cross(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, {"x": TOKENS, "y": TAGS}


def mobilenet() -> Any:
    model = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=3)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x = np.random.default_rng(0).normal(size=(12, 32, 32, 3))
    # A batch of two, whose normalizations give 1 and -1, would make 2e-6 of an input's last digit.
    return model, {"x": x, "y": Y[:12], "batch_size": 6}


def convolutions() -> Any:
    """Have the convolutions that the others do not have."""
    model = keras.Sequential([
        keras.Input((14, 14, 2)), layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(),
        layers.DepthwiseConv2D(3), layers.LeakyReLU(), layers.SeparableConv2D(8, 3),
        layers.Conv2DTranspose(4, 3, strides=2), layers.Flatten(), layers.Dense(3),
    ])  # fmt: skip
    model.compile("sgd", cross(), metrics=["accuracy"])
    return model, {"x": np.random.default_rng(0).normal(size=(SIZE, 14, 14, 2))}


def sparse() -> Any:
    """Have a matrix of which little is there: its gradient has a row for each column that is."""
    given = [keras.Input((6,), sparse=True), keras.Input((6,))]
    x = layers.add([layers.Dense(4, "tanh", name=f"up_{i}")(x) for i, x in enumerate(given)])
    model = keras.Model(given, layers.Dense(3, name="down_0")(x))
    model.compile("adam", cross(), metrics=["accuracy"])
    return model, {"x": [tf.sparse.from_dense(X * (X > 0.3)), X]}


def ragged() -> Any:
    """Have rows of words of any length, of which a layer of one's own takes the mean."""

    class Mean(layers.Layer):
        def build(self, _: Any) -> None:
            self.table = self.add_weight((9, 4), name="table")

        def call(self, x: Any) -> Any:
            return tf.reduce_mean(
                tf.ragged.map_flat_values(lambda i: tf.gather(self.table, i), x), 1
            )

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], 4)

    given = keras.Input((None,), dtype="int32", ragged=True)
    model = keras.Model(given, layers.Dense(3)(layers.Dense(5, "tanh")(Mean()(given))))
    model.compile("sgd", cross(), metrics=["accuracy"])
    return model, {"x": tf.RaggedTensor.from_tensor(TOKENS, padding=0)}


# What every way takes, and what is for some.
ORDINARY = (
    sequential, normalized, subclass, own_step, class_weights, mean_of_weights, masks,
    masked_normal, causal, positions, two_of_each, list_of_outputs, regularized, areas,
    last_of_one, several_steps, keras_accumulates, averaged, watched, sure,
)  # fmt: skip
SPECIAL = (gated, decoder, dropped, sentences, mobilenet, convolutions, sparse, ragged)
CASES = {each.__name__: each for each in (*ORDINARY, *SPECIAL)}
