"""What towers and pipelines share: the host, how variables are read, and where they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# What nobody places goes there without a GPU, and to the first GPU with one.
HOST = "/CPU:0"


def read(weights: Mapping[Any, Any]) -> dict[Any, Any]:
    """Read each variable once: one copy to the device that uses it; a tensor stays what it is."""
    import tensorflow as tf

    with tf.name_scope("read"):
        return {name: tf.convert_to_tensor(weight) for name, weight in weights.items()}


def home_of(variables: Sequence[Any]) -> str:
    """Give the device where variables lie, or most of their bytes."""
    import tensorflow as tf

    held: Counter[str] = Counter()
    for variable in variables:
        if not isinstance(variable, tf.Variable):
            variable = variable.value  # a variable of Keras holds TensorFlow's
        held[variable.device] += variable.dtype.size * variable.shape.num_elements()
    return max(held, key=held.__getitem__)
