"""What took the time of a step: the longest operations, layers or types, and a row for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mgpu_helpers.names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.step import Op, Trace, working

_WIDE = 60  # letters of a name that a line of a notebook has room for, beside the numbers


@dataclass(frozen=True)
class Row:
    """What an operation, a layer or a type took: seconds, and their share, 0 to 1, of all.

    bytes is what it gave to others, count how many operations ran.
    """

    name: str
    devices: tuple[str, ...]
    seconds: float
    share: float
    bytes: int
    count: int


@dataclass(frozen=True, repr=False)
class Top:
    """The rows that took the most time, the first the most; others counts those left out."""

    by: str
    rows: tuple[Row, ...]
    others: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        from mgpu_helpers.wording import counted, size_text, table

        lines = [(self.by, "device", "time", "share", "bytes", "count")]
        for row in self.rows:
            name = row.name if len(row.name) <= _WIDE else "…" + row.name[1 - _WIDE :]
            where = row.devices if len(row.devices) < 3 else [f"{len(row.devices)} devices"]
            lines.append((name, ", ".join(where), f"{1e3 * row.seconds:.3f} ms",
                          f"{row.share:.1%}", size_text(row.bytes), str(row.count)))  # fmt: skip
        left = 1 - sum(row.share for row in self.rows)
        rest = [f"and {counted(self.others, 'other')}, {left:.1%}"] * bool(self.others)
        return "\n".join([*table(lines), *rest])


def naming(by: str, layers: Collection[str] | None = None) -> Callable[[Op], str]:
    """Return what names an operation by "operation", "layer" or "type"; see `layer` for layers.

    >>> naming("layer")(Op("encoder/MatMul", "MatMul", "/CPU:1", 0.0, 0.1))
    'encoder'
    """
    ways: dict[str, Callable[[Op], str]] = {
        "operation": lambda op: op.name,
        "layer": lambda op: layer(op.name, layers),
        "type": lambda op: op.type,
    }
    if by not in ways:
        raise ValueError(f'by={by!r} names nothing: use "operation", "layer" or "type".')
    return ways[by]


def top(
    step: Trace, n: int | None = 10, by: str = "operation", layers: Collection[str] | None = None
) -> Top:
    """List the n that took the most time, None all, by "operation", "layer" or "type"."""
    from mgpu_helpers.wording import whole_number

    name, found, worked = naming(by, layers), defaultdict(list), working(step)
    for op in worked:
        found[name(op)].append(op)
    total = sum(op.length for op in worked)
    rows = []
    for each, ops in found.items():
        seconds = sum(op.length for op in ops)
        devices = tuple(sorted({op.device for op in ops}, key=order))
        size = sum(op.bytes for op in ops)
        rows.append(Row(each, devices, seconds, seconds / total if total else 0.0, size, len(ops)))
    rows.sort(key=lambda row: (-row.seconds, row.name))
    kept = rows if n is None else rows[: whole_number("n", n, "a number of rows", 1, "None")]
    return Top(by, tuple(kept), len(rows) - len(kept))


def rows(step: Trace, layers: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Make a row of each operation, by its start."""
    return [asdict(op) | {"layer": layer(op.name, layers)} for op in step.ops]
