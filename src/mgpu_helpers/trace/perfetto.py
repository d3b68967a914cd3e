"""A trace as the events of Chrome's format, which Perfetto shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mgpu_helpers._names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import lanes

if TYPE_CHECKING:
    from mgpu_helpers.trace.step import Trace

Event = dict[str, Any]


def events(step: Trace, layers: Collection[str] | None) -> Iterator[Event]:
    """Give a bar for each operation, counters of the bytes held, arrows for the copies.

    Times are in microseconds.
    """
    bars: dict[tuple[str, str], Event] = {}  # by name and device: the first time it ran
    for pid, device in enumerate(sorted({*step.devices, *step.memory}, key=order), 1):
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


def _arrows(step: Trace, bars: Mapping[tuple[str, str], Event]) -> Iterator[Event]:
    """Give an arrow for each copy; none where no operation uses it, as the result of a step."""
    users: dict[str, list[str]] = defaultdict(list)
    for maker, user in step.edges:
        users[maker].append(user)
    for number, copy in enumerate(step.copies, 1):
        maker = copy.tensor.partition(":")[0]
        begin = bars.get((maker, copy.source))
        used = [bars[user, copy.target] for user in users[maker] if (user, copy.target) in bars]
        if begin and used:
            for ph, bar in (("s", begin), ("f", min(used, key=lambda bar: bar["ts"]))):
                yield {"ph": ph, "bp": "e", "id": number, "cat": "copy", "name": copy.tensor,
                       "pid": bar["pid"], "tid": bar["tid"], "ts": bar["ts"],
                       "args": {"bytes": copy.bytes}}  # fmt: skip


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)
