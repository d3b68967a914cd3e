"""What towers and pipelines share: the host, how variables are read, and where they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from mgpu_helpers import _private

# What nobody places goes there without a GPU, and to the first GPU with one.
HOST = "/CPU:0"
# An optimizer is at work that updates weights where they lie.
_LYING = ContextVar("lying", default=False)


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


def update_at_owners(weights: Iterable[Any], there: bool = True) -> None:
    """Let Keras's optimizers update these weights where they lie, and make there what they keep.

    Keras alone sends all gradients through one operation, and computes where nobody has placed it.
    It is mended once in a process, and without a strategy, for weights that are marked so.
    """
    for which in ("apply", "apply_scaled"):
        _private.mend(which, _at_owners)
    _private.mend("sum", _each_alone)
    for weight in weights:
        weight.updated_where_it_lies = there


def updated_at_owners(weights: Iterable[Any]) -> bool:
    """Say whether any of these weights is updated where it lies."""
    return any(getattr(weight, "updated_where_it_lies", False) for weight in weights)


def _at_owners(keras_has: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        marked = updated_at_owners(trainable_variables or ())
        if not marked or tf.executing_eagerly() or tf.distribute.has_strategy():
            return keras_has(self, grads, trainable_variables)
        if not self.built:  # within a graph it would not be made where the weights lie
            with tf.init_scope():
                self.build(trainable_variables)
        before = _LYING.set(True)
        try:
            with tf.compat.v1.device(_with_the_largest):
                return keras_has(self, grads, trainable_variables)
        finally:
            _LYING.reset(before)

    return apply


def _each_alone(keras_has: Callable[..., Any]) -> Callable[..., Any]:
    """Leave gradients of such weights alone: there are no replicas to add them up over."""
    return lambda self, pairs: list(pairs) if _LYING.get() else keras_has(self, pairs)


def _with_the_largest(op: Any) -> str:
    """Place an operation of a graph that nobody places where the largest of its inputs lies."""
    placed = [(x.shape.num_elements() or 0, _place(x)) for x in op.inputs]
    return op.device or max(((n, at) for n, at in placed if at), default=(0, ""))[1]


def _place(x: Any) -> str:
    """Name the device of a tensor in a graph, or of the variable that it was read from."""
    if x.device:
        return str(x.device)
    if x.op.type == "Placeholder":
        outer = _private.captured(x)
        return "" if outer is None else _place(outer)
    handles = [each for each in x.op.inputs if each.dtype.name == "resource"]
    return _place(handles[0]) if handles else ""
