"""Let what nobody placed be computed where most of what it works on lies."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.fit._cut_layers import check_optimizer
from mgpu_helpers.fit._moving import optimizers_of

LENGTH = 1000  # of an axis that a graph does not know, such as a batch: longer than most others


@contextlib.contextmanager
def beside_inputs() -> Iterator[None]:
    """Place each operation of a graph made in the block, which nobody placed, with its inputs.

    What changes a variable goes where that lies, and anything else to the largest of its inputs. A
    single number is none, as it costs nothing to send. What is made of such alone, as the gradient
    of a sum is, goes where it is used. Eager operations are not placed.

    >>> @tf.function
    ... def double(x):
    ...     with tf.device(plan.devices[1]):
    ...         x = x + 1
    ...     with beside_inputs():
    ...         return tf.multiply(x, 2, name="double")
    >>> double.get_concrete_function(tf.ones([3])).graph.get_operation_by_name("double").device[-5:]
    'CPU:2'
    """
    if tf.executing_eagerly():
        yield
        return
    known: dict[int, tuple[Any, str]] = {}  # with the tensor, so that its id stays its own
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.compat.v1.device(lambda op: op.device or _place(op, known)):
        yield
    for op in reversed(graph.get_operations()[before:]):
        if not op.device and any(x.dtype.is_floating and x.shape.rank != 0 for x in op.outputs):
            users = {user.device for x in op.outputs for user in x.consumers()}
            if len(users) == 1 and "" not in users:
                _private.place(op, *users)


def placed_step(model: Any, train_step: Any, cut: Any = None) -> Callable[[Any], Any]:
    """Make of a model's train_step one that computes and updates where layers and weights are."""

    @functools.wraps(train_step)
    def step(data: Any) -> Any:
        if cut is not None:
            check_optimizer(model, cut.cuts)  # which may have become another
        with placing(model):
            return train_step(data)

    return step


@contextlib.contextmanager
def placing(model: Any) -> Iterator[None]:
    """Let what a step does in the block to losses and weights be done where they lie."""
    with contextlib.ExitStack() as block:
        block.enter_context(beside_inputs())
        build_optimizers(model)
        for optimizer in optimizers_of(model):
            block.enter_context(_private.without_all_reduce(optimizer))
        yield


def build_optimizers(model: Any) -> None:
    """Let what optimizers keep lie where the weights do: built in a graph, it would not."""
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(model.trainable_variables)


def _place(op: Any, known: dict[int, tuple[Any, str]]) -> str:
    sizes: dict[str, float] = {}
    for x in op.inputs:
        if place := _home(x, known):
            if x.dtype == "resource":
                return place
            if x.shape.rank != 0:
                size = math.prod(n or LENGTH for n in x.shape) if x.shape.rank else LENGTH
                sizes[place] = max(sizes.get(place, 0), size)
    return max(sizes, key=sizes.__getitem__, default="")


def _home(x: Any, known: dict[int, tuple[Any, str]]) -> str:
    """Find where a tensor comes from; "" where nothing says it."""
    if id(x) not in known:
        place = x.device  # of an eager tensor, such as the handle of a variable, always
        if not place and x.op.type == "Placeholder":
            outer = _private.captured(x)
            place = "" if outer is None else _home(outer, known)
        elif not place and x.op.type in ("Identity", "ReadVariableOp"):
            place = _home(x.op.inputs[0], known)
        known[id(x)] = x, place
    return known[id(x)][1]
