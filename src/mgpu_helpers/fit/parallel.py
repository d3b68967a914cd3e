"""Let a built Keras model run its calls on several devices, so that `fit` does all the rest."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import ready
from mgpu_helpers._train import HOST, home_of
from mgpu_helpers.towers.gradients import keep, summed
from mgpu_helpers.towers.shards import check_rows, like, rows, shard_sizes
from mgpu_helpers.towers.sync import Tower, begin, in_step, met
from mgpu_helpers.towers.train import check_layers

OURS = {"call", "train_step"}  # what a model has as a method of its own


def parallel(model: Any, devices: Iterable[Any], batch_norm: str = "sync") -> Any:
    """Let each call of a built model share out its batch over the devices; give the model.

    `fit`, `evaluate`, `predict` and model(x) then use all devices, and Keras does the rest as ever:
    losses, metrics, weights, callbacks, a train_step of one's own. The host cuts the batch and
    joins the outputs; a loss is that of the whole batch, and the gradients of the devices are added
    up, so that the weights are, to rounding, those of one device. Dropout drops other units, as
    each device draws a mask of its own. The model may be compiled before or after, and what is
    saved is the model as it was. `fit.alone` undoes it, as before an export. XLA is not used.

    batch_norm is by what a BatchNormalization normalizes in training: "sync", by the statistics of
    the whole batch as on one device, where the model is functional or Sequential; "average", by
    those of each device's share.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = parallel(model, plan.devices).fit(np.ones((5, 3)), np.ones((5, 1)), verbose=0)
    >>> len(history.history["loss"])
    1
    """
    from mgpu_helpers.devices.plan import checked

    devices = checked(devices)
    if twice := [name for name in devices if devices.count(name) > 1]:
        raise ValueError(f"devices={[*devices]} has {twice[0]} twice: give each device once.")
    ready(model)
    check_layers(model, batch_norm)
    if "call" in vars(model):
        raise ValueError(f"the calls of {model.name} are shared out already: use fit.alone first.")
    original = model.call

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return _call(model, original, devices, batch_norm == "sync", args, named)

    replace(model, "call", call)
    return model


def alone(model: Any) -> Any:
    """Undo `fit.parallel` and `fit.accumulate`; give the model.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> alone(parallel(model, plan.devices)) is model
    True
    """
    for name in OURS & vars(model).keys():
        replace(model, name, None)
    return model


def replace(model: Any, name: str, method: Any) -> None:
    """Give a model a method of its own, and no XLA; None takes it away again."""
    if method is None:
        model.supports_jit, jit = vars(model).pop(name).before
    else:
        here = [vars(model)[each] for each in OURS if each in vars(model)]
        before = (model.supports_jit, model.jit_compile)
        method.before, jit = here[0].before if here else before, False
        vars(model)[name], model.supports_jit = method, False
    model.jit_compile = jit
    # Keras makes them again: the old ones have the old method in their graphs.
    model.train_function = model.test_function = model.predict_function = None


def _call(
    model: Any, original: Any, devices: Sequence[str], sync: bool, args: Any, named: dict[str, Any]
) -> Any:
    import keras
    import tensorflow as tf

    leaves = keras.tree.flatten((args, named))
    batches = [k for k, x in enumerate(leaves) if tf.is_tensor(x) and x.shape.rank != 0]
    xs = [tf.identity(leaves[k]) for k in batches]  # one of them twice would count its slope twice
    with tf.device(HOST), _private.without_autocast():
        sizes = shard_sizes(_size(model, xs), len(devices))
        shards = list(zip(*(_cut(x, sizes) for x in xs), strict=True))
        held = [size / sum(sizes) for size in sizes]
        trained, kept = model.trainable_variables, model.non_trainable_variables
        towers = [begin(device, i, trained, kept) for i, device in enumerate(devices)]
    given = []
    for shard in shards:
        own = [*leaves]
        for k, x in zip(batches, shard, strict=True):
            own[k] = x
        given.append(keras.tree.pack_sequence_as((args, named), own))
    if sync and named.get("training") and met(model):
        outputs = in_step(model, towers, [_masked(*each) for each in given], held)
    else:
        outputs = []
        for tower, (own_args, own_named) in zip(towers, given, strict=True):
            with tower.block():
                outputs.append(original(*own_args, **own_named))
    columns = list(zip(*map(keras.tree.flatten, outputs), strict=True))
    with tf.device(HOST), _private.without_autocast():
        for shard, made in zip(shards, zip(*columns, strict=True), strict=True):
            check_rows(shard[0], made)
        joined = [_joined(column, sizes) for column in columns]
        added = [
            like(share, x) * x
            for tower, share in zip(towers, held, strict=True)
            for x in tower.scope.losses
        ]
        keep(kept, towers, held)
        ends = [*joined, *([tf.add_n(added)] if added else [])]
        if not tf.executing_eagerly():
            ends = _tied(ends, xs, towers, trained)
    for end, column in zip(ends, columns, strict=False):
        if (masks := [_private.mask_of(x) for x in column])[0] is not None:
            with tf.device(HOST):
                _private.set_mask(end, _joined(masks, sizes))
    for loss in ends[len(joined) :]:
        model.add_loss(loss)
    return keras.tree.pack_sequence_as(outputs[0], ends[: len(joined)])


def _size(model: Any, xs: Sequence[Any]) -> Any:
    """Give the number of examples of what a model is called with."""
    import tensorflow as tf

    sizes = sorted(map(rows, xs), key=tf.is_tensor)  # what is known first
    known = [size for size in sizes if not tf.is_tensor(size)]
    if not known and not sizes or len({*known}) > 1 or 0 in known:
        raise ValueError(
            f"{model.name} is called with parts of {', '.join(map(str, known)) or 'no'} examples, "
            "which cannot be shared out: give batches of one size."
        )
    return sizes[0]


def _cut(x: Any, sizes: Sequence[Any]) -> list[Any]:
    """Cut a batch into shards; in place of one without examples stands an example of another."""
    import tensorflow as tf

    most = tf.maximum if tf.is_tensor(sizes[0]) else max
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [x[end - most(size, 1) : end] for size, end in zip(sizes, ends, strict=True)]


def _joined(column: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Join what the towers made, without what stands in place of a shard."""
    import tensorflow as tf

    some = tf.minimum if tf.is_tensor(sizes[0]) else min
    return tf.concat([x[: rows(x) * some(n, 1)] for x, n in zip(column, sizes, strict=True)], 0)


def _masked(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Give the inputs of a call, and put on them the masks that Keras gives beside them."""
    import keras

    inputs = args[0] if args else named["inputs"]
    if (masks := named.get("mask")) is not None:
        for x, mask in zip(*map(keras.tree.flatten, (inputs, masks)), strict=True):
            if mask is not None:
                _private.set_mask(x, mask)
    return inputs


def _tied(
    values: Sequence[Any], xs: Sequence[Any], towers: Sequence[Tower], trained: Sequence[Any]
) -> list[Any]:
    """Let gradients go back where the towers ran, and meet on the host: a tape does not place them.

    TensorFlow sends all arguments of a function with a gradient of its own through one operation.
    So there is one for each value, one in the middle, and one for each device that owns variables,
    tied by tokens. Going back, the values come first and leave their gradients for the middle,
    which knows then what a loss used, and leaves those of the weights for the last.
    """
    import tensorflow as tf

    by: dict[int, Any] = {}
    slopes: dict[int, Any] = {}
    owned: dict[str, list[int]] = defaultdict(list)
    for k, variable in enumerate(trained):
        owned[home_of([variable])].append(k)
    graph = tf.compat.v1.get_default_graph()

    def owner(owns: Sequence[int]) -> Any:
        weights = [tf.convert_to_tensor(trained[k]) for k in owns]
        given_back = tf.custom_gradient(
            lambda *_: (tf.zeros([]), lambda _: [slopes[k] for k in owns])
        )
        return given_back(*weights)

    @tf.custom_gradient
    def middle(*given: Any) -> Any:
        def back(_: Any) -> Any:
            if tf.compat.v1.get_default_graph() is not graph:
                raise RuntimeError(
                    "the gradient of a parallel model is taken outside of the tf.function that "
                    "called it: put the GradientTape into the function."
                )
            with tf.device(HOST):
                found, own = summed([values[k] for k in by], towers, xs, [*by.values()])
                by.clear()
                slopes.update(enumerate(found))
                return [*own, *[tf.zeros([])] * len(owned)]

        return tf.zeros([]), back

    def tied(k: int, value: Any) -> Any:
        def back(slope: Any) -> Any:
            by[k] = slope
            return tf.zeros([])

        return tf.custom_gradient(lambda _: (value, back))(token)

    tokens = []
    for device, owns in owned.items():
        with tf.device(device):
            tokens.append(owner(owns))
    token = middle(*xs, *tokens)
    return [tied(k, x) if x.dtype.is_floating else x for k, x in enumerate(values)]
