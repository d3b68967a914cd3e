"""A loss of Keras for a piece of a batch: its mean, and how much of the piece that is a mean of."""

from __future__ import annotations

from typing import Any, NamedTuple

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf


class Mean(NamedTuple):
    """A mean, and the count that it is one of: None for the examples, 1 for a sum."""

    mean: Any
    count: Any


def mean_of(loss: Any, labels: Any, outputs: Any, weights: Any) -> Mean:
    """Call a loss of Keras as `fit` does, and count what its mean is of."""
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
    return Mean(mean, count)
