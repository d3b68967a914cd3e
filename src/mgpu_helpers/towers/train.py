"""Train a Keras model in towers, a step at a time: what lesson 07 builds, for any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.towers.average import average
from mgpu_helpers.towers.split import HOST, rows, shares, split
from mgpu_helpers.towers.sync import batch_norms, in_step, met
from mgpu_helpers.towers.tower import Tower, begin


def train_step(
    model: Any,
    optimizer: Any,
    loss: Any,
    devices: Sequence[str],
    batch_norm: str | None = None,
) -> Callable[..., Any]:
    """Make step(x, y), which trains a Keras model once on all devices and gives the loss.

    Each device computes the gradients of its shard of the batch, the host averages them by the
    sizes of the shards, and the optimizer updates the model's own variables once. So losses and
    weights are, to rounding, those of one device with the whole batch, but for two things. Dropout
    drops other units, as each tower draws a mask of its own. And batch_norm chooses by what a
    BatchNormalization normalizes:

    - "average": each device by the statistics of its shard, as is usual, which are not those of
      the batch; the moving averages are averaged.
    - "sync": all by the statistics of the batch. The devices wait for each other at each such
      layer, and the model has to be functional or Sequential.
    - None: the model has no such layer.

    optimizer and loss are what `model.compile` takes: a name, an object, or loss(labels, outputs)
    that gives a value for each example, or their mean; of several outputs it adds up the losses. A
    mixed_float16 model has its loss scaled, as there. What layers add to the loss counts once. A
    batch need not divide by the number of devices; step(x, y, w) weights its examples. Each shape
    of a batch is traced once. What is trainable is looked up now: change it, and make a new step.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> step = train_step(model, "sgd", "mse", plan.devices)
    >>> first, *_, last = [float(step(np.ones((5, 3)), np.ones((5, 1)))) for _ in range(20)]
    >>> last < 0.1 * first
    True
    """
    import tensorflow as tf

    from mgpu_helpers.devices.check import checked
    from mgpu_helpers.graph.step import takes_training

    devices = checked(devices)
    _check_model(model, batch_norm)
    loss, optimizer = _loss(loss), _optimizer(optimizer, model)
    trained, kept = model.trainable_variables, model.non_trainable_variables
    training = {"training": True} if takes_training(model) else {}  # as Keras does
    if not optimizer.built:
        optimizer.build(trained)

    def loss_of(tower: Tower, shard: Sequence[Any], outputs: Any) -> tuple[Any, Any]:
        """Give a tower's loss, and the number of parts of its examples that a mask leaves."""
        with tower.block():
            mean = loss(shard[1], outputs, *shard[2:])
            added = [tf.cast(each, mean.dtype) for each in model.losses]
            mask = private.mask_of(outputs)  # which a loss skips
            return tf.add_n([mean, *added]), None if mask is None else tf.math.count_nonzero(mask)

    def losses_of(towers: Sequence[Tower], shards: Sequence[Any], held: Sequence[Any]) -> list[Any]:
        """Give what each tower adds to the loss of the batch."""
        if batch_norm == "sync":
            outputs = in_step(model, towers, [x for x, *_ in shards], held)
            found = [loss_of(*each) for each in zip(towers, shards, outputs, strict=True)]
        else:
            found = []
            for tower, shard in zip(towers, shards, strict=True):
                with tower.block():
                    outputs = model(shard[0], **training)
                found.append(loss_of(tower, shard, outputs))
        losses, counts = zip(*found, strict=True)
        if counts[0] is not None:
            held = [count / tf.add_n(counts) for count in counts]
        parts = []
        for tower, part, share in zip(towers, losses, held, strict=True):
            with tower.block():
                parts.append(part * tf.cast(share, part.dtype))
        return parts

    @tf.function(autograph=False)
    def train(*batch: Any) -> Any:
        with tf.device(HOST):
            shards, first = split(batch, len(devices), uneven=True), tf.nest.flatten(batch)[0]
            held = shares(rows(first) or tf.shape(first)[0], len(devices))
            towers = [begin(device, i, trained, kept) for i, device in enumerate(devices)]
            losses = losses_of(towers, shards, held)
            gradients = _gradients(optimizer, losses, towers, batch_norm == "sync")
            with tf.name_scope("average"):
                means, mean = average(gradients), tf.add_n(losses)
            optimizer.apply_gradients(zip(means, trained, strict=True))
            with tf.name_scope("state"):
                _keep(kept, towers, held)
            return mean

    def step(x: Any, y: Any, *weights: Any) -> Any:
        with tf.device(HOST):
            return train(*tf.nest.map_structure(tf.convert_to_tensor, (x, y, *weights)))

    # So that a trace has the names of the towers.
    vars(step)["get_concrete_function"] = train.get_concrete_function
    return step


def _gradients(
    optimizer: Any, losses: Sequence[Any], towers: Sequence[Tower], together: bool
) -> list[list[Any]]:
    """Compute gradients by tower, whose average is that of the sum of the losses."""
    import tensorflow as tf

    scaled = []
    for tower, loss in zip(towers, losses, strict=True):
        with tower.block():
            scaled.append(optimizer.scale_loss(loss) * len(towers))
    if together:  # the towers have met, so a loss goes back into all of them
        found = iter(tf.compat.v1.gradients(
            scaled, [w for tower in towers for w in tower.weights],
            colocate_gradients_with_ops=True,
        ))  # fmt: skip
        return [[next(found) for _ in tower.weights] for tower in towers]
    gradients = []
    for tower, loss in zip(towers, scaled, strict=True):
        with tower.block():
            gradients.append(tf.gradients(loss, tower.weights))
    return gradients


def _keep(variables: Sequence[Any], towers: Sequence[Tower], held: Sequence[Any]) -> None:
    """Write what the layers have changed beside the weights, once: the average over the towers.

    What cannot be averaged, such as how often a seed was used, is the first tower's.
    """
    new = [[tower.scope.get_current_value(v) for v in variables] for tower in towers]
    changed = [k for k, value in enumerate(new[0]) if value is not towers[0].state[k]]
    averaged = [k for k in changed if variables[k].dtype.startswith(("float", "bfloat"))]
    values = dict(zip(changed, (new[0][k] for k in changed), strict=True))
    if averaged:
        means = average([[tower[k] for k in averaged] for tower in new], weights=held)
        values |= zip(averaged, means, strict=True)
    for k, value in values.items():
        variables[k].assign(value)


def _loss(loss: Any) -> Any:
    """Give the Keras loss that `model.compile` would use; it has to be a mean."""
    import keras

    if isinstance(loss, dict | list | tuple):
        each = ", ".join(map(repr, loss)) if isinstance(loss, dict) else len(loss)
        raise ValueError(
            f"loss has a loss for each output ({each}): give a function of labels and outputs that "
            "adds them up, each with its weight."
        )
    try:
        found = keras.losses.get(loss)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise ValueError(
            f"loss={loss!r} is not a loss of Keras: give a name such as 'mse', an object, or a "
            "function of labels and outputs."
        )
    if isinstance(found, keras.losses.Loss):
        if found.reduction not in ("sum_over_batch_size", "mean"):
            raise ValueError(
                f"the loss {found.name} has reduction={found.reduction!r}, and the average over "
                "towers is that of the batch for means only: give it 'sum_over_batch_size'."
            )
        return found

    class Mean(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return found(y_true, y_pred)

    return Mean()


def _optimizer(optimizer: Any, model: Any) -> Any:
    """Give the Keras optimizer that `model.compile` would use: it scales the loss of a half."""
    import keras

    try:
        found = keras.optimizers.get(optimizer)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise ValueError(
            f"optimizer={optimizer!r} is not an optimizer of Keras: give a name such as 'adam', or "
            "an object of keras.optimizers."
        )
    scales = isinstance(found, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name == "mixed_float16" and not scales:
        return keras.optimizers.LossScaleOptimizer(found)
    return found


def _check_model(model: Any, batch_norm: str | None) -> None:
    import keras

    from mgpu_helpers.graph.step import check_single

    if not isinstance(model, keras.Model):
        raise TypeError(f"{model!r} is not a keras.Model: give one.")
    if not model.built or not model.trainable_variables:
        what = "nothing to train" if model.built else "no weights yet"
        remedy = "make some layers trainable" if model.built else "call it once with a batch"
        raise ValueError(f"the model {model.name} has {what}: {remedy} first.")
    check_single(model)
    if keeps := [x.name for x in private.layers_of(model) if getattr(x, "stateful", False)]:
        raise ValueError(
            f"the layer {keeps[0]!r} of {model.name} keeps a state for each example from batch to "
            "batch (stateful=True), which a shard has not: make it without."
        )
    layers = batch_norms(model)
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
