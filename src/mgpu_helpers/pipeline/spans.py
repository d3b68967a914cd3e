"""When a device was at each task of a pipeline, by a trace."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from mgpu_helpers.trace.records import Op
from mgpu_helpers.trace.step import Trace, traced

# They take no time, start when a step does, and so belong to no task.
FREE = {"Const", "NoOp", "Placeholder"}
_EARLY = 0.01  # of a task's work, which may be done long before it: shapes need no gradient


@dataclass(frozen=True)
class Span:
    """When a device was at a task of a stage: seconds from the start of the traced step."""

    stage: int
    task: str
    device: str
    start: float
    length: float


def spans(trace: Trace) -> list[Span]:
    """Find the tasks of `gradients` in a trace, by their start; none gives an empty list.

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
        first = ops[bisect_left(done, _EARLY * done[-1])]
        end = max(op.start + op.length for op in ops)
        made.append(Span(stage, task, first.device, first.start, end - first.start))
    return sorted(made, key=lambda span: (span.start, span.stage))


def task_of(op: Op) -> tuple[int, str] | None:
    """Find the stage and the task of an operation of `gradients`; None for any other.

    On a GPU TensorFlow's layout optimizer adds transposes. One that several tasks use is called
    after any of them, so that its name tells nothing, and it counts with none.

    >>> task_of(Op("stage_1/F0/MatMul", "MatMul", "/CPU:2", 0.0, 0.1))
    (1, 'F0')
    """
    named = re.search(r"(?:^|/)stage_(\d+)/([FB]\d+)(?:_\d+)?/", op.name)
    if not named or op.type in FREE or op.name.endswith("-LayoutOptimizer"):
        return None
    return int(named[1]), named[2]
