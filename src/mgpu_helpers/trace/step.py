"""A step that was traced: when each device worked, what crossed, what was held, what took long."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mgpu_helpers import _files
from mgpu_helpers._formatting import counted, size_text, table, whole_number
from mgpu_helpers._names import order
from mgpu_helpers.trace.layers import naming
from mgpu_helpers.trace.perfetto import events
from mgpu_helpers.trace.records import Allocation, Collective, Copy, Op, curve, nanos, overlap

FORMAT = 1  # of a file
_RECORDS = {"ops": Op, "copies": Copy, "allocations": Allocation, "collectives": Collective}
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
        lines = [(self.by, "device", "time", "share", "bytes", "count")]
        for row in self.rows:
            name = row.name if len(row.name) <= _WIDE else "…" + row.name[1 - _WIDE :]
            where = row.devices if len(row.devices) < 3 else [f"{len(row.devices)} devices"]
            lines.append((name, ", ".join(where), f"{1e3 * row.seconds:.3f} ms",
                          f"{row.share:.1%}", size_text(row.bytes), str(row.count)))  # fmt: skip
        left = 1 - sum(row.share for row in self.rows)
        rest = [f"and {counted(self.others, 'other')}, {left:.1%}"] * bool(self.others)
        return "\n".join([*table(lines), *rest])


@dataclass(frozen=True)
class Trace:
    """One step: its operations, its copies, and the live bytes of each device over time.

    The bytes are those that operations took. TensorFlow does not record what a GPU takes to receive
    a copy. launches_only is True where it recorded no kernels of the GPUs, because libcupti is
    missing or another profiler runs: their times are then those in which the host launched the
    operations, which say nothing about how long they ran.
    """

    #: operations by their start, each with name, type, device, start, length and bytes
    ops: tuple[Op, ...]
    #: tensors that crossed, each with tensor, source, target, bytes, start and length
    copies: tuple[Copy, ...]
    #: by device: moments, in seconds, and the bytes that it held from then on
    memory: dict[str, tuple[tuple[float, int], ...]] = field(repr=False)
    #: which operation feeds which
    edges: tuple[tuple[str, str], ...] = field(repr=False)
    #: what was taken and given back, each with op, device, bytes, start, end and scratch
    allocations: tuple[Allocation, ...] = field(default=(), repr=False)
    waits: tuple[tuple[str, str], ...] = field(default=(), repr=False)  #: edges that carry nothing
    #: by GPU, when its kernels ran: start and end in seconds
    kernels: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, repr=False)
    launches_only: bool = False
    #: what devices gave to an all-reduce and the like, with op, device, bytes, length and waited
    collectives: tuple[Collective, ...] = ()

    def __repr__(self) -> str:
        return (
            f"{len(self.ops)} operations on {', '.join(self.devices)}; "
            f"{len(self.copies)} copies between them"
            f"{'; times on GPUs are launches, not kernels' if self.launches_only else ''}"
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Name the devices that ran something, in order."""
        return tuple(sorted({op.device for op in self.ops}, key=order))

    @property
    def length(self) -> float:
        """Give the seconds from the first operation's start to the last one's end."""
        ends = [end for spans in self.kernels.values() for _, end in spans]
        return max((*ends, *(op.end for op in self.ops)), default=0.0)

    def busy(self, device: str) -> float:
        """Add up the seconds in which the device ran an operation, or a GPU a kernel.

        A collective's wait for other devices does not count, but on a GPU, whose kernel waits.
        """
        spans = [(op.start, op.end) for op in working(self) if op.device == device]
        return overlap(self.kernels.get(device, spans))(0, nanos(self.length)) / 1e9

    def idle(self, device: str) -> float:
        """Give the share of the step, 0 to 1, in which the device ran nothing."""
        return 1 - self.busy(device) / self.length if self.length else 0.0

    def peak(self, device: str, scratch: bool = True) -> int:
        """Give the most bytes that the step held on the device at once, with or without scratch.

        Weights, slots and the batch were there before the step, and are not counted.
        """
        live = self.memory.get(device, ())
        if not scratch:
            live = curve(a for a in self.allocations if a.device == device and not a.scratch)
        return max((held for _, held in live), default=0)

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """Add up the bytes that crossed, by (source, target)."""
        total: dict[tuple[str, str], int] = defaultdict(int)
        for copy in self.copies:
            total[copy.source, copy.target] += copy.bytes or 0
        return dict(sorted(total.items(), key=lambda item: (order(item[0][0]), order(item[0][1]))))

    def top(
        self, n: int | None = 10, by: str = "operation", layers: Collection[str] | None = None,
        depth: int = 1,
    ) -> Top:  # fmt: skip
        """List the n that took the most time, None all, by "operation", "layer" or "type".

        A collective counts without its wait for other devices. layers names those of a Keras model,
        as `[layer.name for layer in model.layers]` does. Without it the operations' names decide:
        Keras runs a layer in a scope called after it, and besides layers there are "optimizer",
        "loss", "variables", and "other" for what stands in no scope. With depth=2 a model inside
        the model is in parts, "backbone/block_3", and with 3 its blocks are.

        >>> op = Op("encoder/MatMul", "MatMul", "/CPU:1", start=0.0, length=0.002, bytes=40)
        >>> Trace((op,), (), {}, ()).top(by="layer")
        layer    device  time      share   bytes  count
        encoder  /CPU:1  2.000 ms  100.0%  40 B   1
        """
        name, groups, worked = naming(by, layers, depth), defaultdict(list), working(self)
        for op in worked:
            groups[name(op)].append(op)
        total = sum(op.length for op in worked)
        rows = []
        for each, ops in groups.items():
            seconds, size = sum(op.length for op in ops), sum(op.bytes for op in ops)
            where = tuple(sorted({op.device for op in ops}, key=order))
            rows.append(Row(each, where, seconds, total and seconds / total, size, len(ops)))
        rows.sort(key=lambda row: (-row.seconds, row.name))
        kept = rows if n is None else rows[: whole_number("n", n, "a number of rows", 1, "None")]
        return Top(by, tuple(kept), len(rows) - len(kept))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace into a file of JSON, whole or not at all, for `trace.load`.

        >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).save("step.json")
        """
        values = zip((each.name for each in fields(self)), astuple(self), strict=True)
        _write(path, {"format": FORMAT, **dict(values)})

    def chrome(self, path: str | os.PathLike[str], layers: Collection[str] | None = None) -> None:
        """Write the trace for Perfetto (https://ui.perfetto.dev) and for chrome://tracing.

        A device is a process, and operations that overlap are threads of it. An arrow is a copy,
        from the operation that made it to the first that uses it. Below are the bytes held.

        >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).chrome("step.trace.json")
        """
        _write(path, {"traceEvents": list(events(self, layers)), "displayTimeUnit": "ms"})


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that `step.save` has written; raise ValueError if the file is another one.

    >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).save("step.json")
    >>> load("step.json")
    1 operations on /CPU:1; 0 copies between them
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        data = _tuples(json.loads(text))
        if (number := data.pop("format")) != FORMAT:
            raise ValueError(f"its format is {number}, and this is for format {FORMAT}")
        records = {n: tuple(kind(*each) for each in data[n]) for n, kind in _RECORDS.items()}
        return Trace(**data | records)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} cannot be read as a trace ({error!r}): give a file that the save method of a "
            "trace has written, or trace the step again."
        ) from error


def _tuples(value: Any) -> Any:
    """Turn the lists of JSON into tuples again."""
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _write(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    with _files.replacing(path) as file:
        file.write(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())


def traced(step: Any) -> Trace:
    """Give the step; raise TypeError if it is none, but a model or what a helper gave with it."""
    if isinstance(step, Trace):
        return step
    raise TypeError(
        f"a {type(step).__name__} is no traced step: give what trace.fit_step returns, or the "
        "second part of what trace.function_step does, as in `value, step = …`."
    )


def working(step: Trace) -> list[Op]:
    """List a step's operations by their start, each collective without its wait for others."""
    waited = {each.op: each.waited for each in step.collectives if each.waited}
    ops = [
        replace(op, start=op.start + waited[op.name], length=op.length - waited[op.name])
        if op.name in waited else op for op in step.ops
    ]  # fmt: skip
    return sorted(ops, key=lambda op: op.start)
