"""The placement log of a block, captured: which operation was given to which device.

Lesson 01 reads the raw log first, then this table.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from mgpu_helpers import private, quiet
from mgpu_helpers.names import order, short
from mgpu_helpers.wording import table

_LINE = re.compile(r"(?:^|\] )(\S+): \((\w+)\): (/job:\S+)$")
_MAPPING = re.compile(r"Device mapping:|/job:\S+ -> ")  # the list of GPUs, printed before the log
_INNER = {*private.BOUNDARY, "NoOp"}


@dataclass(frozen=True)
class Placed:
    """An operation and the device it was given to."""

    name: str
    type: str
    device: str


class Placement:
    """What a captured block placed; empty until the block ends."""

    def __init__(self) -> None:
        self.rows: tuple[Placed, ...] = ()
        self.raw: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if not self.rows:
            return "no operation was placed"
        rows = [("operation", "type", "device"), *((r.name, r.type, r.device) for r in self.rows)]
        return "\n".join(table(rows))

    def device_of(self, name: str) -> str:
        """Return the device of the operation with this name; raise KeyError if there is not one."""
        found = {row.device for row in self.rows if row.name == name}
        if len(found) == 1:
            return found.pop()
        if found:
            raise KeyError(f"{name} ran on several devices: {', '.join(sorted(found))}.")
        names = ", ".join(sorted({row.name for row in self.rows})) or "none"
        raise KeyError(f"no operation is called {name}; there are: {names}.")

    def by_device(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the operations of each device, by the device's name."""
        groups = defaultdict(list)
        for row in self.rows:
            groups[row.device].append(row.name)
        return {device: tuple(groups[device]) for device in sorted(groups, key=order)}


@contextlib.contextmanager
def capture() -> Iterator[Placement]:
    """Capture what TensorFlow places inside the block.

    >>> with capture() as log:
    ...     three = tf.add(1.0, 2.0)
    >>> [row.type for row in log.rows]
    ['AddV2']

    A classic Session reports when its config says `log_placement=True`, each graph once. Today's
    code reports always: TensorFlow hands over the graph of every operation and `tf.function` after
    placing it. `raw` keeps the lines that TensorFlow printed; today's code prints them only if
    `tf.debugging.set_log_device_placement(True)` was called before TensorFlow started.
    """
    import tensorflow as tf

    placement = Placement()
    # Graphs are handed over optimized: constants folded, operations fused. Show what was written.
    asked = {"disable_meta_optimizer": False} | tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    private.collect_graphs()
    said = io.StringIO()  # in a notebook TensorFlow also prints through Python
    try:
        with quiet.redirected(1) as printed, contextlib.redirect_stdout(said):
            try:
                yield placement
            finally:
                printed.seek(0)
                text = said.getvalue() + printed.read().decode(errors="replace")
    finally:
        graphs = private.collected_graphs()
        tf.config.optimizer.set_experimental_options(asked)
        lines = [line for line in text.splitlines() if not _MAPPING.match(line)]
        placement.raw = tuple(line for line in lines if _LINE.search(line))
        if rest := [line for line in lines if not _LINE.search(line)]:
            print(*rest, sep="\n")  # what the block itself printed
    rows = {_row(line) for line in placement.raw}
    for graph in graphs:
        for node in graph.node:
            if node.device:
                rows.add(Placed(node.name, node.op, short(node.device)))
    shown = {row for row in rows if not row.type.startswith(private.ONEDNN)}
    kept = [row for row in shown if row.type not in _INNER]
    placement.rows = tuple(sorted(kept, key=lambda r: (order(r.device), r.name, r.type)))


def _row(line: str) -> Placed:
    found = _LINE.search(line)
    assert found  # the line was chosen by it
    name, kind, device = found.groups()
    return Placed(name, kind, short(device))
