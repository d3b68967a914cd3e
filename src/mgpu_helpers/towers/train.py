"""Train a Keras model in towers, a step at a time: what lesson 09 builds, for any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import ready, takes_training
from mgpu_helpers._train import HOST, home_of, update_at_owners
from mgpu_helpers.towers.gradients import keep, summed
from mgpu_helpers.towers.losses import of_keras, parts, shared
from mgpu_helpers.towers.shards import like, rows, shares, split
from mgpu_helpers.towers.sync import Tower, begin, in_step, met, normalizes


def train_step(
    model: Any,
    optimizer: Any,
    loss: Any,
    devices: Sequence[str],
    batch_norm: str | None = None,
    loss_weights: Any = None,
) -> Callable[..., Any]:
    """Make step(x, y), which trains a Keras model once on all devices and gives the loss.

    Each device computes the gradients of its shard of the batch by its part of the loss, which are
    added up where their weight lies, and the optimizer updates it there once. So losses and weights
    are, to rounding, those of one device with the whole batch, but for two things. Dropout
    drops other units, as each tower draws a mask of its own. And batch_norm chooses by what a
    BatchNormalization normalizes:

    - "average": each device by the statistics of its shard, as is usual, which are not those of
      the batch; the moving averages are averaged.
    - "sync": all by the statistics of the batch. The devices wait for each other at each such
      layer, and the model has to be functional or Sequential.
    - None: the model has no such layer.

    optimizer, loss and loss_weights are what `model.compile` takes, and None is what the model was
    compiled with. So loss is a name, an object, or loss(labels, outputs) that gives a value for
    each example, or their mean; or a list or a dict of these by output, None for one without. Masks
    and step(x, y, weights of the examples) count as in `fit`, and what layers add counts once. A
    mixed_float16 model has its loss scaled, and skips the steps that one device would skip, but for
    rare ones: where only a shard's gradient is too large for float16, or inside a loop.

    A batch need not divide by the number of devices. Each shape of a batch is traced once. What is
    trainable is looked up now: change it, and make a new step. `step.optimizer` is the optimizer,
    which `tf.train.Checkpoint(model=model, optimizer=step.optimizer)` saves with the model.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> step = train_step(model, "sgd", "mse", plan.devices)
    >>> first, *_, last = [float(step(np.ones((5, 3)), np.ones((5, 1)))) for _ in range(20)]
    >>> last < 0.1 * first
    True
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import checked

    devices = checked(devices)
    ready(model, trained=True, compiled=loss is None or optimizer is None)
    check_layers(model, batch_norm)
    if loss is None:
        given = _private.compiled_with(model)
        loss = given["loss"]
        loss_weights = given["loss_weights"] if loss_weights is None else loss_weights
    loss, optimizer = of_keras(loss), _optimizer(optimizer, model)
    trained, kept = model.trainable_variables, model.non_trainable_variables
    training = {"training": True} if takes_training(model) else {}  # as Keras does
    home = home_of(trained)
    update_at_owners(trained)
    if not optimizer.built:
        optimizer.build(trained)

    def losses_of(towers: Sequence[Tower], shards: Sequence[Any], held: Sequence[Any]) -> list[Any]:
        """Give what each tower adds to the loss of the batch."""
        found: list[Any] = []
        sync = batch_norm == "sync"
        with _private.call_of(model):
            xs = [x for x, *_ in shards]
            together = iter(in_step(model, towers, xs, held) if sync else ())
        for tower, (x, y, *weights) in zip(towers, shards, strict=True):
            with tower.block():
                outputs = next(together) if sync else model(x, **training)
                own = parts(model, loss, loss_weights, y, outputs, *weights)
                added = [tf.reduce_sum(tf.cast(x, own[0].mean.dtype)) for x in model.losses]
            found.append((own, added))
        columns = zip(*(own for own, _ in found), strict=True)
        counts = zip(*(shared(column, held) for column in columns), strict=True)
        losses = []
        for tower, (own, added), by, share in zip(towers, found, counts, held, strict=True):
            with tower.block():
                means = [part.mean * part.factor for part in own]
                each = zip([*means, *added], [*by, *[share] * len(added)], strict=True)
                losses.append(tf.add_n([x * like(much, x) for x, much in each]))
        return losses

    @tf.function(autograph=False)
    def train(*batch: Any) -> Any:
        with tf.device(HOST):
            shards, first = split(batch, len(devices), uneven=True), tf.nest.flatten(batch)[0]
            held = shares(rows(first), len(devices))
            towers = [begin(device, i, trained, kept) for i, device in enumerate(devices)]
            losses = losses_of(towers, shards, held)
            scaled = []
            for tower, loss in zip(towers, losses, strict=True):
                with tower.block():
                    scaled.append(optimizer.scale_loss(loss))
            slopes, value = summed(scaled, towers, trained)[0], tf.add_n(losses)
            with tf.device(home):  # or the host would fetch the weights and slots, to update them
                optimizer.apply(slopes, trained)
            with tf.name_scope("state"):
                keep(kept, towers, held)
            return value

    def step(x: Any, y: Any, *weights: Any) -> Any:
        with tf.device(HOST):
            return train(*tf.nest.map_structure(tf.convert_to_tensor, (x, y, *weights)))

    # So that a trace has the names of the towers, and the optimizer can be saved.
    vars(step).update(get_concrete_function=train.get_concrete_function, optimizer=optimizer)
    return step


def _optimizer(optimizer: Any, model: Any) -> Any:
    """Give the Keras optimizer that `model.compile` would use: it scales the loss of a half."""
    import keras

    found = model.optimizer if optimizer is None else keras.optimizers.get(optimizer)
    scales = isinstance(found, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name == "mixed_float16" and not scales:
        return keras.optimizers.LossScaleOptimizer(found, name="loss_scale_optimizer")
    return found


def check_layers(model: Any, batch_norm: str | None) -> None:
    """Refuse a model whose layers a shard of the batch cannot train, or not in this way."""
    if keeps := [x.name for x in _private.layers_of(model) if getattr(x, "stateful", False)]:
        raise ValueError(
            f"the layer {keeps[0]!r} of {model.name} keeps a state for each example from batch to "
            "batch (stateful=True), which a shard has not: make it without."
        )
    layers = [layer for layer in _private.layers_of(model) if normalizes(layer)]
    if batch_norm not in ("average", "sync", None) or layers and batch_norm is None:
        names = ", ".join(layer.name for layer in layers[:3])
        raise ValueError(
            f"batch_norm={batch_norm!r} does not say what {names or 'a BatchNormalization'} "
            "normalizes by: use 'average' for each shard's own statistics, or 'sync' for those of "
            "the whole batch, as on one device."
        )
    apart = [layer.name for layer in layers if layer not in met(model)]
    if batch_norm == "sync" and apart:
        raise ValueError(
            f"batch_norm='sync' does not reach {apart[0]} in {model.name}, since only layers of "
            "functional and Sequential models can be run one at a time: use 'average'."
        )
