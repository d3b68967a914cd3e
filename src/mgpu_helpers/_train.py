"""What towers and pipelines share: the host, how variables are read, and where they lie."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from mgpu_helpers import _private

# What nobody places goes there without a GPU, and to the first GPU with one.
HOST = "/CPU:0"
# An optimizer is at work that updates weights where they lie.
_LYING = ContextVar("lying", default=False)
# The weights that are updated where they lie, by their `id`: while there are any, Keras is mended.
_marked: dict[int, Any] = {}
_lock = threading.RLock()


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
    It is mended while there are weights that are marked so, for them and without a strategy.
    """
    weights = list(weights)
    with _lock:
        if there and weights:
            for which, made_of in _mends().items():
                _private.mend(which, made_of)
        for weight in weights:
            weight.updated_where_it_lies = there
            if not there:
                _forget(id(weight))
            elif id(weight) not in _marked:
                _marked[id(weight)] = weakref.finalize(weight, _forget, id(weight))
                _marked[id(weight)].atexit = False


def _forget(weight: int) -> None:
    """Let Keras run its own code where that was the last such weight."""
    with _lock:
        if (marked := _marked.pop(weight, None)) is None:
            return
        marked.detach()
        if not _marked:
            for which, made_of in _mends().items():
                _private.unmend(which, made_of)


def _mends() -> dict[str, Callable[..., Any]]:
    return {"apply": _at_owners, "apply_scaled": _at_owners, "sum": _each_alone}


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
