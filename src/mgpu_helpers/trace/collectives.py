"""What devices gave to the operations that they do together, from RunMetadata."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from mgpu_helpers.trace.nodes import size_of
from mgpu_helpers.trace.step import Collective, Op, nanos

# Those that give a tensor, which is their first input.
_GIVES = re.compile(
    "_?(Nccl(AllReduce|Reduce|BroadcastSend)|"
    "Collective(Reduce|Gather|AllToAll|BcastSend|Permute))"
)
# Those whose work begins when the last device has come.
_MEETS = re.compile("NcclAllReduce|Collective(Reduce|Gather|AllToAll)")


def collectives_of(
    ops: list[Op], stats: list[tuple[str, Any]], nodes: dict[str, Any]
) -> list[Collective]:
    """List what each device gave to a collective operation, by the start."""
    found = []
    for op in ops:
        if op.name in nodes and _GIVES.match(op.type):
            tensor = nodes[op.name].input[0]
            maker = tensor.partition(":")[0]
            sizes = [size_of(node, tensor) for _, node in stats if node.node_name == maker]
            size = sizes[0] if sizes else None
            found.append(Collective(op.name, op.device, size, op.start, op.length))
    return _met(found, nodes)


def _met(found: list[Collective], nodes: dict[str, Any]) -> list[Collective]:
    """Number those that belong together, and say how long each waited for the last to come."""
    rows: dict[Any, dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    runs = Counter(each.op for each in found)
    for each in found:
        node = nodes[each.op]
        if runs[each.op] == 1 and _MEETS.match(node.op):  # in a loop it has many
            rows[_shared(node, nodes)][each.device].append(each)
    group, known = 0, {}
    for (*_, size), by_device in rows.items():
        lists = [sorted(each, key=lambda one: _split(one.op)[1]) for each in by_device.values()]
        if len({len(each) for each in lists}) > 1 or len(lists) != (size or max(2, len(lists))):
            continue
        for members in zip(*lists, strict=True):
            last = max(each.start for each in members)
            ends = [nanos(each.start + each.length) for each in members if each.length]
            if min(ends, default=nanos(last)) < nanos(last):
                continue  # one was over before another came
            for each in members:
                waited = min(each.length, (nanos(last) - nanos(each.start)) / 1e9)
                known[each.op] = replace(each, waited=waited, group=group)
            group += 1
    return [known.get(each.op, each) for each in found]


def _shared(node: Any, nodes: dict[str, Any]) -> tuple[Any, ...]:
    """Give what those of a group have in common, at the end on how many devices they are.

    MirroredStrategy makes one for each device, then the next for each: so the first of each device
    belong together, if nothing else tells, and the second. The number of the devices and that of
    the group are constants of the graph, and the number of a single one usually is none.
    """
    if "shared_name" in node.attr:
        return node.op, node.attr["shared_name"].s, node.attr["num_devices"].i
    said = [_constant(node, nodes, i, name)
            for i, name in enumerate(("group_size", "group_key", "instance_key"), 1)]  # fmt: skip
    size, *keys = said
    return node.op, *keys, _split(node.name)[0] if keys[1] is None else "", size


def _constant(node: Any, nodes: dict[str, Any], i: int, name: str) -> int | None:
    """Read a number that a node has as an attribute, or as an input that is a constant."""
    if name in node.attr:
        return node.attr[name].i
    given = nodes.get(node.input[i].partition(":")[0]) if i < len(node.input) else None
    if given is None or given.op != "Const":
        return None
    from tensorflow import make_ndarray

    value = make_ndarray(given.attr["value"].tensor)
    return int(value) if value.ndim == 0 else None


def _split(name: str) -> tuple[str, list[int]]:
    """Part a name, without its replica's scope, from the numbers at the ends of its scopes."""
    scopes = re.sub(r"(^|/)replica_\d+/", r"\1", name).split("/")
    parts = [scope.rpartition("_") if re.search(r"_\d+$", scope) else (scope, "", "0")
             for scope in scopes]  # fmt: skip
    return "/".join(base for base, _, _ in parts), [int(number) for _, _, number in parts]
