"""The loss of a batch that is shared out over towers, from the losses that `model.compile` takes.

Keras has all outputs in one place. Here each tower computes a mean for each output, and counts what
it is a mean of: a mask or weights may leave more of it in one tower than in another. By the counts
the means add up to that of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted
from mgpu_helpers._train import HOST


def of_keras(losses: Any) -> Any:
    """Give the losses of Keras that `model.compile` would use, in the structure given."""
    import keras

    def each(loss: Any) -> Any:
        found = keras.losses.get(loss)
        if found is None or isinstance(found, keras.losses.Loss):
            # Without a reduction a gradient would be that of the sum, and nothing would say so.
            if found is not None and found.reduction in (None, "none"):
                raise ValueError(
                    f"the loss {found.name} has reduction={found.reduction!r}, and a step needs "
                    "one number: give it 'sum_over_batch_size'."
                )
            return found
        return _private.loss_of(found)

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
            each = [given.get(name) for name in names]
            lost = [want and one is None for want, one in zip(wanted, each, strict=False)]
            wrong = any(lost) or not given.keys() <= set(names)
        elif one_for_all and not isinstance(given, list | tuple):
            return [given] * len(made)
        else:
            each = tf.nest.flatten(given)
            if len(each) == sum(wanted) < len(made):  # nothing for those that are not wanted
                left = iter(each)
                each = [next(left) if want else None for want in wanted]
            wrong = len(each) != len(made) or by_name and len(made) > 1
        if wrong:
            own = f"by the names {[*given]}" if isinstance(given, Mapping) else f"{len(each)}"
            raise ValueError(
                f"{what} has {own} for {counted(len(made), 'output')} of {model.name}, "
                f"{names or 'a list'}: give one for each, in a {'dict' if by_name else 'list'}."
            )
        return each

    # A loss may be left out by name only where the outputs have their names from a dict, as in fit.
    each = listed(losses, "loss", [not by_name] * len(made), True)
    wanted = [loss is not None for loss in each]
    labels = listed(labels, "the batch's labels", wanted, False)
    weights = listed(weights, "the batch's weights", [False] * len(made), True)
    factors = listed(1.0 if factors is None else factors, "loss_weights", wanted, factors is None)
    every = zip(each, labels, made, weights, factors, strict=True)
    return [part(*one) for one in every if one[0] is not None]


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


def part(loss: Any, labels: Any, outputs: Any, weights: Any, factor: float = 1.0) -> Part:
    """Call a loss of Keras as `fit` does, and count what its mean is of."""
    import keras
    import tensorflow as tf

    masks = [_private.mask_of(outputs)]

    class Noted(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            found = tf.convert_to_tensor(loss.call(y_true, y_pred))
            masks.append(_private.mask_of(found))  # of ignore_class
            if not found.shape.rank:  # a mean already
                masks.clear()
            return found

    class Counted(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            one = tf.ones([], self.dtype)
            _private.set_mask(one, masks[-1])
            return one

    named = {"name": loss.name, "dtype": loss.dtype}
    mean = Noted(reduction=loss.reduction, **named)(labels, outputs, weights)
    mean, count = tf.cast(mean, keras.backend.floatx()), None
    if loss.reduction == "sum":
        count = 1
    elif masks:
        weights = weights if loss.reduction == "mean_with_sample_weight" else None
        if weights is not None or any(mask is not None for mask in masks):
            count = Counted(reduction="sum", **named)(labels, outputs, weights)
    return Part(mean, factor, count)
