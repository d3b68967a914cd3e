"""A trace in a file: to load it again, and for Perfetto."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from mgpu_helpers.names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.step import Allocation, Collective, Copy, Op, Trace, lanes

FORMAT = 1
_LISTS = {"ops": Op, "copies": Copy, "allocations": Allocation, "collectives": Collective}
_PLAIN = ("memory", "edges", "waits", "kernels", "launches_only")


def save(step: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace into a file, whole or not at all."""
    data: dict[str, Any] = {"format": FORMAT, **{name: getattr(step, name) for name in _PLAIN}}
    data |= {name: [astuple(each) for each in getattr(step, name)] for name in _LISTS}
    _write(path, data)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that `step.save` has written; raise ValueError if the file is another one.

    >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).save("step.json")
    >>> load("step.json")
    1 operations on /CPU:1; 0 copies between them
    """
    try:
        data = {} | json.loads(Path(path).read_text(encoding="utf-8"))
        if data["format"] == FORMAT:
            made: dict[str, Any] = {}
            made |= {n: tuple(kind(*each) for each in data[n]) for n, kind in _LISTS.items()}
            made |= {name: _tuples(data[name]) for name in _PLAIN}
            return Trace(**made)
        found = f"its format is {data['format']}, and this is for format {FORMAT}"
    except (OSError, TypeError, ValueError, KeyError, RecursionError) as error:
        found = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}".rstrip(".")
    raise ValueError(
        f"{path} cannot be read as a trace ({found}): give a file that the save method of a trace "
        "has written, or trace the step again."
    )


def chrome(
    step: Trace, path: str | os.PathLike[str], layers: Collection[str] | None = None
) -> None:
    """Write a trace as events of Chrome's format, with times in microseconds."""
    _write(path, {"traceEvents": list(_events(step, layers)), "displayTimeUnit": "ms"})


def _events(step: Trace, layers: Collection[str] | None) -> Iterator[dict[str, Any]]:
    devices = sorted({*step.devices, *step.memory}, key=order)
    bars: dict[tuple[str, str], dict[str, Any]] = {}  # by name and device: the first time it ran
    for pid, device in enumerate(devices, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": device}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        for tid, lane in enumerate(lanes(op for op in step.ops if op.device == device), 1):
            for op in lane:
                bar = {"ph": "X", "pid": pid, "tid": tid, "name": op.name, "cat": op.type,
                       "ts": _micros(op.start), "dur": _micros(op.end) - _micros(op.start),
                       "args": {"type": op.type, "layer": layer(op.name, layers),
                                "bytes": op.bytes}}  # fmt: skip
                bars.setdefault((op.name, device), bar)
                yield bar
        for moment, live in step.memory.get(device, ()):
            yield {"ph": "C", "pid": pid, "name": "bytes held", "ts": _micros(moment),
                   "args": {"bytes": live}}  # fmt: skip
    yield from _arrows(step, bars)


def _arrows(step: Trace, bars: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give an arrow for each copy; none where no operation uses it, as the result of a step."""
    users: dict[str, list[str]] = defaultdict(list)
    for maker, user in step.edges:
        users[maker].append(user)
    for number, copy in enumerate(step.copies, 1):
        maker = copy.tensor.partition(":")[0]
        begin = bars.get((maker, copy.source))
        used = [bars[user, copy.target] for user in users[maker] if (user, copy.target) in bars]
        if begin and used:
            end = min(used, key=lambda bar: bar["ts"])
            for ph, bar in (("s", begin), ("f", end)):
                yield {"ph": ph, "bp": "e", "id": number, "cat": "copy", "name": copy.tensor,
                       "pid": bar["pid"], "tid": bar["tid"], "ts": bar["ts"],
                       "args": {"bytes": copy.bytes}}  # fmt: skip


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _tuples(value: Any) -> Any:
    """Turn the lists of JSON into tuples again."""
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _write(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    from mgpu_helpers import files

    with files.replacing(path) as file:
        file.write(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())
