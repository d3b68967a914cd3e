"""The tasks of a pipeline: which one an operation belongs to, when it ran, and in which order."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers.trace.records import Op
from mgpu_helpers.trace.step import Trace, traced

# They take no time, start when a step does, and so belong to no task.
FREE = {"Const", "NoOp", "Placeholder"}
# What takes time, and what oneDNN never merges with a second operation of these.
SLOW = re.compile(r"Conv\d?D|Convolution|MatMul|Einsum|Pool|BatchNorm|Softmax|Relu|Elu|Gelu|Tanh")
EARLY = 0.01  # of a task's work, which may be done long before it: shapes need no gradient


@dataclass(frozen=True)
class Span:
    """When a device was at a task of a stage: seconds from the start of the traced step."""

    stage: int
    task: str
    device: str
    start: float
    length: float


def spans(trace: Trace) -> list[Span]:
    """Find the tasks of a model in stages in a trace, by their start; none gives an empty list.

    A task starts where a hundredth of its work is done: what looks at shapes alone may run earlier.

    >>> op = Op("stage_1/F0/MatMul", "MatMul", "/CPU:2", 0.0, 0.1)
    >>> spans(Trace((op,), (), {}, ()))
    [Span(stage=1, task='F0', device='/CPU:2', start=0.0, length=0.1)]
    """
    found: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for op in traced(trace).ops:
        if at := task_of(op):
            found[at].append(op)
    made = []
    for (stage, task), ops in found.items():
        ops.sort(key=lambda op: op.start)
        done = list(itertools.accumulate(op.length for op in ops))
        first = ops[bisect_left(done, EARLY * done[-1])]
        end = max(op.start + op.length for op in ops)
        made.append(Span(stage, task, first.device, first.start, end - first.start))
    return sorted(made, key=lambda span: (span.start, span.stage))


def task_of(op: Op) -> tuple[int, str] | None:
    """Find the stage and the task of an operation of a model in stages; None for any other.

    On a GPU TensorFlow's layout optimizer adds transposes. One that several tasks use is called
    after any of them, so that its name tells nothing, and it counts with none.

    >>> task_of(Op("stage_1/F0/MatMul", "MatMul", "/CPU:2", 0.0, 0.1))
    (1, 'F0')
    """
    named = re.search(r"(?:^|/)(?:(B\d+)(?:_\d+)?/.*)?stage_(\d+)/([FB]\d+)(?:_\d+)?/", op.name)
    if not named or op.type in FREE or op.name.endswith("-LayoutOptimizer"):
        return None
    return int(named[2]), named[1] or named[3]


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
        for before, op in itertools.pairwise(op for op in task if SLOW.search(op.type)):
            _private.wait_for(op, [before])
    done: set[Any] = set()
    for task, following in itertools.pairwise(task for task in tasks if task):
        done.update(task)
        used = {t.op for op in task for t in op.inputs}
        with tf.device(task[0].device), tf.control_dependencies(None):
            over = tf.no_op()
        _private.wait_for(over, [op for op in task if op not in used])
        for op in _begins(following, done):
            _private.wait_for(op, [over])


def _begins(task: Sequence[Any], done: Set[Any]) -> list[Any]:
    """List where a task begins: what takes nothing of its own, and gives nothing to earlier tasks.

    The gradient of a loop makes operations that its forward pass, in an earlier task, then needs.
    """
    back: set[Any] = set()
    for op in reversed(task):
        if any(user in done or user in back for t in op.outputs for user in t.consumers()):
            back.add(op)
    own = {op for op in task if op.type not in FREE} - back
    return [op for op in task if op in own and own.isdisjoint(t.op for t in op.inputs)]
