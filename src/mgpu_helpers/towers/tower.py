"""One tower of a Keras model: a device with values of its own for the model's variables."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers.towers.run import read

APART = 10**9  # between the seeds of two towers; Keras draws none that is larger


@dataclass(frozen=True, eq=False)
class Tower:
    """A device with what it has read of a model's variables, within one step."""

    device: str
    name: str  # a name scope, with a slash at its end: it can be opened again
    weights: list[Any]  # the values of what is trained
    state: list[Any]  # the values of what is not: moving averages, the seeds of dropout
    scope: Any  # a keras.StatelessScope: layers read these values in it, and leave new ones there

    def block(self) -> contextlib.ExitStack:
        """Place, name and read within the block as this tower does."""
        import tensorflow as tf

        block = contextlib.ExitStack()
        for each in (tf.device(self.device), tf.name_scope(self.name), self.scope):
            block.enter_context(each)
        return block


def home_of(variables: Sequence[Any]) -> str:
    """Give the device where variables lie, or most of their bytes."""
    import tensorflow as tf

    held: Counter[str] = Counter()
    for variable in variables:
        if not isinstance(variable, tf.Variable):
            variable = variable.value  # a variable of Keras holds TensorFlow's
        held[variable.device] += variable.dtype.size * variable.shape.num_elements()
    return max(held, key=held.__getitem__)


def begin(device: str, i: int, trained: Sequence[Any], kept: Sequence[Any]) -> Tower:
    """Read the variables of a model for tower i; each read is one copy to its device."""
    import keras
    import tensorflow as tf

    with tf.device(device), tf.name_scope(f"tower_{i}") as name:
        values = list(read({str(k): v for k, v in enumerate([*trained, *kept])}).values())
        weights, state = values[: len(trained)], values[len(trained) :]
        for k, variable in enumerate(kept):
            if variable.name == "seed_generator_state" and i:  # a seed and how often it was used
                state[k] += tf.constant([i * APART, 0], state[k].dtype)
    mapping = zip([*trained, *kept], [*weights, *state], strict=True)
    return Tower(device, name, weights, state, keras.StatelessScope(mapping, collect_losses=True))
