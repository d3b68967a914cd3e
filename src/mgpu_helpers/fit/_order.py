"""In which order devices do the parts of a step: tasks by device and piece, forward and back."""

from __future__ import annotations

import contextlib
import contextvars
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers._names import short
from mgpu_helpers.pipeline.tasks import stream
from mgpu_helpers.towers.averages import total


class Order:
    """The operations of a step by device and task: "F0" takes piece 0 forward, "B0" back."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, list[Any]]] = defaultdict(dict)
        self.reads: dict[Any, Any] = {}  # what rows have read of the weights, once for all pieces

    @contextlib.contextmanager
    def task(self, name: str) -> Iterator[list[Any]]:
        """Keep what is made in the block as a task; to be appended is what a way back is for."""
        results: list[Any] = []
        if tf.executing_eagerly():
            yield results
            return
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        yield results
        made = graph.get_operations()[before:]
        if name[0] == "B":
            made = _leading_to(results, made)
        for op in made:
            if op.device:
                self.tasks[short(op.device)].setdefault(name, []).append(op)

    def keep(self, schedule: Mapping[str, Sequence[str]], kinds: str = "FB") -> None:
        """Let each device do its tasks of these kinds in the order given, one after the other."""
        for device, names in schedule.items():
            tasks = self.tasks.get(short(device), {})
            stream([tasks[name] for name in names if name in tasks and name[0] in kinds])


# That of the step that is traced at the moment, whose pieces are calls of their own.
STEP: contextvars.ContextVar[tuple[Order, int] | None] = contextvars.ContextVar(
    "order", default=None
)


def _leading_to(results: Sequence[Any], ops: Sequence[Any]) -> list[Any]:
    """Keep the operations that some of the results need: who waits for another makes it run."""
    needed = {x.op for each in results for x in tf.nest.flatten(each, expand_composites=True)}
    kept = []
    for op in reversed(ops):
        if op in needed:
            kept.append(op)
            needed.update(x.op for x in op.inputs)
    return kept[::-1]


def added_now(before: Any, slope: Any) -> Any:
    """Add a piece's gradient to the sum of those before it, now.

    Grappler would make one sum of all pieces' gradients, and hold each of them until the last.
    """
    (added,) = total([[before], [slope]])
    if before is not None and isinstance(added, tf.Tensor) and not tf.executing_eagerly():
        _private.keep_apart(added.op)
    return added
