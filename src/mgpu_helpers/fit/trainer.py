"""What `fit` of Keras does around its steps, mended for replicas and for several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mgpu_helpers import _private


def build(keras_has: Callable[..., Any]) -> Callable[..., Any]:
    """Build a model from the shapes of its data.

    Keras takes a batch away for that, and adds up the parts of all replicas, which fails where they
    differ in size and on several workers (keras-team/keras#20585).
    """
    import tensorflow as tf

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if not getattr(self.distribute_strategy, "of_fit", False):
            return keras_has(self, iterator, data_batch)
        if iterator is not None:
            data_batch = tf.nest.map_structure(
                lambda spec: spec if hasattr(spec, "shape") else None,
                _private.dataset_of(iterator).parts.element_spec.parts[0],
            )
        with self.distribute_strategy.scope():
            _private.build_as(self, data_batch)

    return build


def mend_trainer() -> None:
    """Mend Keras's trainer for strategies of `fit`, once in a process."""
    _private.mend("build", build)
