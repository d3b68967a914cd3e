"""Let a built Keras model run its calls on several devices, so that `fit` does all the rest."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import ready
from mgpu_helpers._train import HOST, home_of, update_at_owners
from mgpu_helpers.fit._moving import moved
from mgpu_helpers.towers.gradients import keep, summed
from mgpu_helpers.towers.shards import check_rows, like, rows, shard_sizes
from mgpu_helpers.towers.sync import begin, in_step, met
from mgpu_helpers.towers.train import check_layers

# What a model has as a method of its own; the last one is there to be undone.
OURS = {"call", "train_step", "sharded"}


def parallel(model: Any, devices: Iterable[Any], batch_norm: str = "sync") -> Any:
    """Let each call of a built model share out its batch over the devices; give the model.

    `fit`, `evaluate`, `predict` and model(x) then use all devices, and Keras does the rest as ever:
    losses, metrics, weights, callbacks, a train_step of one's own. The host cuts the batch and
    joins the outputs; a loss is that of the whole batch, and the gradients of the devices are added
    up, so that the weights are, to rounding, those of one device. Dropout drops other units, as
    each device draws a mask of its own. The model may be compiled before or after, and what is
    saved is the model as it was. `fit.alone` undoes it, as before an export.

    XLA is not used, with which Keras compiles on one GPU: there it made a step of MobileNetV2 3.3
    times as fast (an H100, 64 images of 160²), so time one GPU alone as well.

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
    devices = each_once(devices)
    ready(model)
    check_layers(model, batch_norm)
    original = model.call
    if "call" in vars(model) and not hasattr(original, "recomputes"):
        raise ValueError(f"the calls of {model.name} are shared out already: use fit.alone first.")
    if hasattr(original, "recomputes") and batch_norm == "sync" and (normal := met(model)):
        raise ValueError(
            f"{normal[0].name} needs all devices layer by layer, and fit.recompute has given "
            f"{model.name} parts that run alone: use batch_norm='average', or build the model in "
            "the scope of fit.strategy, which does both."
        )
    update_at_owners(model.weights)

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return _call(model, original, devices, batch_norm == "sync", args, named)

    replace(model, "call", call)
    return model


def each_once(devices: Iterable[Any]) -> tuple[str, ...]:
    """Give the names of devices, of which none may come twice."""
    from mgpu_helpers.devices.plan import checked

    names = checked(devices)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"devices={[*names]} has {twice[0]} twice: give each device once.")
    return names


def alone(model: Any) -> Any:
    """Undo `parallel`, `split`, `split_layers`, `shard`, `accumulate`, `recompute`; give the model.

    What was moved goes back to where it was.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> alone(parallel(model, plan.devices)) is model
    True
    """
    homes: list[Any] = []
    for name in OURS & vars(model).keys():
        homes += getattr(vars(model)[name], "homes", ())
        getattr(vars(model)[name], "end", lambda: None)()
        replace(model, name, None)
    update_at_owners(model.weights, False)
    return moved(model, homes)


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

    xs, sizes, given = shared_out(model, args, named, len(devices))
    with tf.device(HOST), _private.without_autocast():
        held = [size / sum(sizes) for size in sizes]
        trained, kept = model.trainable_variables, model.non_trainable_variables
        towers = [begin(device, i, trained, kept) for i, device in enumerate(devices)]
    if sync and named.get("training") and met(model):
        outputs = in_step(model, towers, [masked(*each) for each in given], held)
    else:
        outputs = []
        for tower, (own_args, own_named) in zip(towers, given, strict=True):
            with tower.block():
                outputs.append(original(*own_args, **own_named))
    if len(model.weights) > len(trained) + len(kept):
        raise ValueError(
            f"{model.name} has made weights in this call, which belong to one device: call it once "
            "on a batch before fit.parallel."
        )
    with tf.device(HOST), _private.without_autocast():
        for part, made in zip(given, outputs, strict=True):
            batch = [x for x in keras.tree.flatten(part) if tf.is_tensor(x) and x.shape.rank != 0]
            check_rows(batch[0], keras.tree.flatten(made))
        keep(kept, towers, held)

    def back(ends: Sequence[Any], by: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return summed(ends, towers, trained, xs, by)

    losses = [tower.scope.losses for tower in towers]
    return together(model, outputs, losses, sizes, lambda ends: tied(ends, xs, trained, back))


def shared_out(
    model: Any, args: Any, named: Any, n: int
) -> tuple[list[Any], list[Any], list[tuple[Any, Any]]]:
    """Cut what a model is called with into n parts: the batches, sizes of parts, their arguments.

    One of the batches twice would count its slope twice: each is a tensor of its own.
    """
    import keras
    import tensorflow as tf

    leaves = keras.tree.flatten((args, named))
    batches = [k for k, x in enumerate(leaves) if tf.is_tensor(x) and x.shape.rank != 0]
    with tf.device(HOST), _private.without_autocast():
        xs = [tf.identity(leaves[k]) for k in batches]
        sizes = shard_sizes(_size(model, xs), n)
        shards = list(zip(*(_cut(x, sizes) for x in xs), strict=True))
    given = []
    for shard in shards:
        own = [*leaves]
        for k, x in zip(batches, shard, strict=True):
            own[k] = x
        given.append(keras.tree.pack_sequence_as((args, named), own))
    return xs, sizes, given


def together(
    model: Any,
    outputs: Sequence[Any],
    losses: Sequence[Sequence[Any]],
    sizes: Sequence[Any],
    tie: Callable[[list[Any]], list[Any]],
    places: Sequence[str] | None = None,
) -> Any:
    """Join what a model made of the parts of a batch, where `places` say, or on the host.

    What layers add to the loss counts by the sizes of the parts.
    """
    import keras
    import tensorflow as tf

    columns = list(zip(*map(keras.tree.flatten, outputs), strict=True))
    places = [HOST] * len(columns) if places is None else places
    joined = []
    for column, place in zip(columns, places, strict=True):
        with tf.device(place), _private.without_autocast():
            joined.append(_joined(column, sizes))
    every = {k: [_private.logits_of(x) for x in column] for k, column in enumerate(columns)}
    logits = {k: column for k, column in every.items() if all(x is not None for x in column)}
    for k, made_of in logits.items():
        with tf.device(places[k]), _private.without_autocast():
            joined.append(_joined(made_of, sizes))
    with tf.device(places[-1]), _private.without_autocast():
        added = [
            like(size / sum(sizes), x) * x
            for size, part in zip(sizes, losses, strict=True)
            for x in part
        ]
        ends = [*joined, *([tf.add_n(added)] if added else [])]
        if not tf.executing_eagerly():
            ends = tie(ends)
    for end, column, place in zip(ends, columns, places, strict=False):
        if (masks := [_private.mask_of(x) for x in column])[0] is not None:
            with tf.device(place):
                _private.set_mask(end, _joined(masks, sizes))
    for k, x in zip(logits, ends[len(columns) :], strict=False):
        _private.set_logits(ends[k], x)
    for loss in ends[len(joined) :]:
        keras.Layer.add_loss(model, loss)  # that of a functional model is not written yet
    return keras.tree.pack_sequence_as(outputs[0], ends[: len(columns)])


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


def masked(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Give the inputs of a call, and put on them the masks that Keras gives beside them."""
    import keras

    inputs = args[0] if args else named["inputs"]
    if (masks := named.get("mask")) is not None:
        for x, mask in zip(*map(keras.tree.flatten, (inputs, masks)), strict=True):
            if mask is not None:
                _private.set_mask(x, mask)
    return inputs


def tied(
    values: Sequence[Any],
    xs: Sequence[Any],
    trained: Sequence[Any],
    back: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]],
) -> list[Any]:
    """Let gradients go back where the forward pass ran, and meet on the host: a tape places none.

    TensorFlow sends all arguments of a function with a gradient of its own through one operation.
    So there is one for each value, one in the middle, and one for each device that owns variables,
    tied by tokens. Going back, the values come first and leave their gradients for the middle,
    which knows then what a loss used, and leaves those of the weights for the last. They are what
    back(values, gradients of these) gives: gradients of `trained`, and of xs.
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
        def meet(_: Any) -> Any:
            if tf.compat.v1.get_default_graph() is not graph:
                raise RuntimeError(
                    "the gradient of a parallel model is taken outside of the tf.function that "
                    "called it: put the GradientTape into the function."
                )
            with tf.device(HOST):
                found, own = back([values[k] for k in by], [*by.values()])
                by.clear()
                slopes.update(enumerate(found))
                return [*own, *[tf.zeros([])] * len(owned)]

        return tf.zeros([]), meet

    def end(k: int, value: Any) -> Any:
        def leave(slope: Any) -> Any:
            by[k] = slope
            return tf.zeros([])

        with tf.device(value.device):
            return tf.custom_gradient(lambda _: (value, leave))(token)

    tokens = []
    for device, owns in owned.items():
        with tf.device(device):
            tokens.append(owner(owns))
    with tf.device(HOST):
        token = middle(*xs, *tokens)
    return [end(k, x) if x.dtype.is_floating else x for k, x in enumerate(values)]
