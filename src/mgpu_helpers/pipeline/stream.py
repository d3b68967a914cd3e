"""Let each device do one task after the other, as a GPU does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence, Set
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.pipeline.spans import FREE

# What takes time, and what oneDNN never merges with a second operation of these.
_SLOW = re.compile(r"Conv\d?D|Convolution|MatMul|Einsum|Pool|BatchNorm|Softmax|Relu|Elu|Gelu|Tanh")


def stream(tasks: Sequence[Sequence[Any]]) -> None:
    """Let each task wait for the one before it, and in a task one slow operation for another.

    That is what a GPU does; a logical CPU starts whatever is ready. A task is a list of operations
    of a graph. Quick operations of one task do not wait for each other: oneDNN merges some of them
    into slow ones (a BiasAddGrad into the convolution's gradient), and a chain through both halves
    would close a circle.

    >>> with tf.Graph().as_default():
    ...     stream([[tf.nn.relu(tf.zeros([2])).op], [tf.nn.relu(tf.ones([2])).op]])
    """
    import tensorflow as tf

    for task in tasks:
        for before, op in itertools.pairwise(op for op in task if _SLOW.search(op.type)):
            private.wait_for(op, [before])
    done: set[Any] = set()
    for task, following in itertools.pairwise(task for task in tasks if task):
        done.update(task)
        used = {t.op for op in task for t in op.inputs}
        with tf.device(task[0].device), tf.control_dependencies(None):
            over = tf.no_op()
        private.wait_for(over, [op for op in task if op not in used])
        for op in _waiting(following, done):
            private.wait_for(op, [over])


def _waiting(task: Sequence[Any], done: Set[Any]) -> list[Any]:
    """List where a task begins: what takes nothing of its own, and gives nothing to earlier tasks.

    The gradient of a loop makes operations that its forward pass, in an earlier task, then needs.
    """
    back: set[Any] = set()
    for op in reversed(task):
        if any(user in done or user in back for t in op.outputs for user in t.consumers()):
            back.add(op)
    own = {op for op in task if op.type not in FREE} - back
    return [op for op in task if op in own and own.isdisjoint(t.op for t in op.inputs)]
