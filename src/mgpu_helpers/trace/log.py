"""TensorFlow's placement log of a block: which operation was given to which device."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mgpu_helpers import _private, _quiet
from mgpu_helpers._formatting import table
from mgpu_helpers._later import tf
from mgpu_helpers._names import order, short

_LINE = re.compile(r"(?:^|\] )(\S+): \((\w+)\): (/job:\S+)$")
# The list of GPUs, printed before the log, and the empty line at its end.
_MAPPING = re.compile(r"^Device mapping:.*\n(?:/job:\S+ -> .*\n)*\n?", re.MULTILINE)
_INNER = {*_private.BOUNDARY, "NoOp"}


@dataclass(frozen=True)
class Placed:
    """An operation and the device it was given to."""

    name: str
    type: str
    device: str


@dataclass(repr=False)
class Placement:
    """What a captured block placed; empty until the block ends."""

    rows: tuple[Placed, ...] = ()
    raw: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if not self.rows:
            return "no operation was placed"
        rows = [("operation", "type", "device"), *((r.name, r.type, r.device) for r in self.rows)]
        return "\n".join(table(rows))


@contextlib.contextmanager
def placement() -> Iterator[Placement]:
    """Capture what TensorFlow places inside the block: a table, with the raw log as `raw`.

    A log shows what was planned, and a trace what ran. A product of constants, for example, is
    planned on a device, but TensorFlow computes it once beforehand, and no step runs it.

    >>> with placement() as log:
    ...     three = tf.add(1.0, 2.0)
    >>> [row.type for row in log.rows]
    ['AddV2']

    A classic Session reports when its config says `log_placement=True`, each graph once. Today's
    code reports always: TensorFlow hands over the graph of every operation and `tf.function` after
    placing it. `raw` keeps the lines that TensorFlow printed; today's code prints them only if
    `tf.debugging.set_log_device_placement(True)` was called before TensorFlow started.
    """
    log = Placement()
    # Graphs are handed over optimized: constants folded, operations fused. Show what was written.
    options = {"disable_meta_optimizer": False} | tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    _private.collect_graphs()
    through_python = io.StringIO()  # in a notebook TensorFlow also prints through Python
    try:
        with _quiet.redirected(1) as printed, contextlib.redirect_stdout(through_python):
            try:
                yield log
            finally:
                printed.seek(0)
                text = through_python.getvalue() + printed.read().decode(errors="replace")
    finally:
        graphs = _private.collected_graphs()
        tf.config.optimizer.set_experimental_options(options)
        lines = _MAPPING.sub("", text).splitlines()
        log.raw = tuple(line for line in lines if _LINE.search(line))
        if rest := [line for line in lines if not _LINE.search(line)]:
            print(*rest, sep="\n")  # what the block itself printed
    said = [_LINE.findall(line)[0] for line in log.raw]
    rows = {Placed(name, kind, short(device)) for name, kind, device in said}
    nodes = (node for graph in graphs for node in graph.node)
    rows |= {Placed(node.name, node.op, short(node.device)) for node in nodes if node.device}
    shown = [r for r in rows if r.type not in _INNER and not r.type.startswith(_private.ONEDNN)]
    log.rows = tuple(sorted(shown, key=lambda r: (order(r.device), r.name, r.type)))
