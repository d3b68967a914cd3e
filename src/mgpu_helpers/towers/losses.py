"""The loss of a batch that is shared out over towers, from the losses that `model.compile` takes.

Keras has all outputs in one place. Here each tower computes a mean for each output, and counts what
it is a mean of: a mask or weights may leave more of it in one tower than in another. By the counts
the means add up to that of the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers.towers.split import HOST
from mgpu_helpers.wording import counted

# Those of Keras that give one number.
REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


def compiled(model: Any) -> tuple[Any, Any]:
    """Give the loss and the loss weights that a model was compiled with."""
    if getattr(model, "loss", None) is None:
        raise ValueError(
            f"loss is None, and {model.name} was not compiled with one: give a name such as 'mse', "
            "an object, a function of labels and outputs, or one of these for each output."
        )
    with warnings.catch_warnings():  # Keras warns of a lambda, as if it were to be saved
        warnings.simplefilter("ignore")
        return model.loss, model.get_compile_config()["loss_weights"]


def of_keras(losses: Any) -> Any:
    """Give the losses of Keras that `model.compile` would use, in the structure given."""
    import keras

    def each(loss: Any) -> Any:
        try:
            found = None if loss is None else keras.losses.get(loss)
        except (TypeError, ValueError):
            found = None
        if loss is not None and found is None:
            raise ValueError(
                f"loss={loss!r} is not a loss of Keras: give a name such as 'mse', an object, or a "
                "function of labels and outputs."
            )
        reduction = getattr(found, "reduction", "mean")
        if reduction not in REDUCTIONS:
            raise ValueError(
                f"the loss {found.name} has reduction={reduction!r}, and a step needs one number: "
                "give it 'sum_over_batch_size'."
            )
        return found

    found = keras.tree.map_structure(each, losses)
    if all(loss is None for loss in keras.tree.flatten(found)):
        raise ValueError(f"loss={losses!r} has no loss for any output: give at least one.")
    return found


@dataclass(frozen=True)
class Part:
    """What a tower has to say of the loss of one output."""

    mean: Any
    factor: float  # of `loss_weights`
    count: Any  # what it is a mean of: None for the examples of the tower, 1 for a sum


def parts(
    model: Any, losses: Any, factors: Any, labels: Any, outputs: Any, weights: Any = None
) -> list[Part]:
    """Compute a tower's part of the loss of each output that has one."""
    import tensorflow as tf

    by_name = isinstance(outputs, Mapping)
    names = [*outputs] if by_name else getattr(model, "output_names", None) or []
    made = [outputs[name] for name in names] if by_name else tf.nest.flatten(outputs)
    if not all(map(tf.is_tensor, made)):
        raise ValueError(
            f"{model.name} gives a dict of lists: give each output a name of its own."
        )

    def listed(given: Any, what: str, wanted: Sequence[bool], one_for_all: bool) -> list[Any]:
        """List what is given for the outputs: by name, in their order, or one for all."""
        if isinstance(given, Mapping):
            wrong = [name for name in given if name not in names]
            missing = [n for n, want in zip(names, wanted, strict=True) if want and n not in given]
            if wrong or missing:
                raise ValueError(
                    f"{what} has {'nothing for ' * (not wrong)}{[*wrong, *missing][0]!r}, and the "
                    f"outputs of {model.name} are {', '.join(map(repr, names)) or 'a list'}."
                )
            return [given.get(name) for name in names]
        if one_for_all and not isinstance(given, list | tuple):
            return [given] * len(made)
        found = tf.nest.flatten(given)
        if len(found) == sum(wanted) < len(made):  # nothing for those that are not wanted
            left = iter(found)
            found = [next(left) if want else None for want in wanted]
        if len(found) != len(made) or by_name and len(made) > 1:
            raise ValueError(
                f"{what} has {len(found)} for {counted(len(made), 'output')} of {model.name}: give "
                f"one for each, in a {'dict by name' if by_name else 'list'}."
            )
        return found

    # A loss may be left out by name only where the outputs have their names from a dict, as in fit.
    each = listed(losses, "loss", [not by_name] * len(made), True)
    wanted = [loss is not None for loss in each]
    labels = listed(labels, "the batch's labels", wanted, False)
    weights = listed(weights, "the batch's weights", [False] * len(made), True)
    factors = listed(1.0 if factors is None else factors, "loss_weights", wanted, factors is None)
    every = zip(each, labels, made, weights, factors, strict=True)
    return [_part(*one) for one in every if one[0] is not None]


def shared(column: Sequence[Part], held: Sequence[Any]) -> list[Any]:
    """Give by how much each tower's mean counts in that of the batch, which holds shares of it."""
    import tensorflow as tf

    counts = [part.count for part in column]
    if counts[0] is None:
        return list(held)
    if not tf.is_tensor(counts[0]):
        return counts
    with tf.device(HOST):
        total = tf.add_n(counts)
        return [tf.math.divide_no_nan(count, total) for count in counts]


def counts_of_added(model: Any) -> list[int | None]:
    """Say of `model.losses`, inside a tower, what each is a mean of, as `Part` does.

    A regularizer of activities gives a sum over the examples before Keras 3.14, and then a mean.
    """
    import keras

    sums: set[int] = set()
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14):
        layers = [each for each in model._flatten_layers() if each.activity_regularizer is not None]
        sums.update(id(loss) for layer in layers for loss in layer._get_own_losses())
    return [1 if id(loss) in sums else None for loss in model.losses]


def _part(loss: Any, labels: Any, outputs: Any, weights: Any, factor: float) -> Part:
    """Call a loss of Keras, or a function, as `fit` does, and count what its mean is of."""
    import keras
    import tensorflow as tf

    own = isinstance(loss, keras.losses.Loss)
    reduction = loss.reduction if own else "mean"
    masks = [getattr(outputs, "_keras_mask", None)]

    class Noted(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            found = loss.call(y_true, y_pred) if own else loss(*_alike(y_true, y_pred))
            found = tf.convert_to_tensor(found)
            masks.append(getattr(found, "_keras_mask", None))  # of ignore_class
            if not found.shape.rank:  # a mean already
                masks.clear()
            return found

    class Counted(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            one = tf.ones([], self.dtype)
            one._keras_mask = masks[-1]
            return one

    named = {"name": getattr(loss, "name", None), "dtype": getattr(loss, "dtype", None)}
    mean = Noted(reduction=reduction, **named)(labels, outputs, weights)
    mean, count = tf.cast(mean, keras.backend.floatx()), None
    if reduction == "sum":
        count = 1
    elif masks:
        weights = weights if reduction == "mean_with_sample_weight" else None
        if weights is not None or any(mask is not None for mask in masks):
            count = Counted(reduction="sum", **named)(labels, outputs, weights)
    return Part(mean, factor, count)


def _alike(labels: Any, outputs: Any) -> tuple[Any, Any]:
    """Give both as many axes, as `model.compile` does before it calls a function."""
    import tensorflow as tf

    if not (tf.is_tensor(labels) and tf.is_tensor(outputs)):
        return labels, outputs
    ranks = labels.shape.rank, outputs.shape.rank
    longer = labels if ranks[0] > ranks[1] else outputs
    if abs(ranks[0] - ranks[1]) != 1 or longer.shape[-1] != 1:
        return labels, outputs
    if min(ranks) == 1:
        return tuple(x if x is longer else tf.expand_dims(x, -1) for x in (labels, outputs))
    return tuple(tf.squeeze(x, -1) if x is longer else x for x in (labels, outputs))
