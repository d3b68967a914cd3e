"""What passed between devices, from RunMetadata: copies, who feeds whom, what all do together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._names import short
from mgpu_helpers.trace.by_operation import plain_name, size_of
from mgpu_helpers.trace.records import Collective, Copy, Op, nanos

# Those that give a tensor, which is their first input.
_GIVES = re.compile(
    "_?(Nccl(AllReduce|Reduce|BroadcastSend)|Collective(Reduce|Gather|AllToAll|BcastSend|Permute))"
)
# Those whose work begins when the last device has come.
_MEETS = re.compile("NcclAllReduce|Collective(Reduce|Gather|AllToAll)")


def copies_of(
    nodes: dict[str, Any], sent: dict[bytes, str], stats: list[tuple[str, Any]], ops: list[Op]
) -> list[Copy]:
    """List the tensors that crossed between devices, by their start."""
    by_node = {node.node_name: node for _, node in stats}
    by_name = {op.name: op for op in ops}
    uses: dict[str, list[float]] = defaultdict(list)  # a node -> when those it feeds started
    for node in nodes.values():
        for tensor in node.input if node.name in by_name else ():
            uses[tensor.partition(":")[0]].append(by_name[node.name].start)
    copies = []
    for node in nodes.values():
        if node.op not in _private.RECEIVES:
            continue
        tensor = sent.get(node.attr["tensor_name"].s)
        source = short(node.attr["send_device"].s.decode())
        target = short(node.attr["recv_device"].s.decode())
        if tensor is None or tensor.startswith("^") or source == target:
            continue
        maker = tensor.partition(":")[0]
        size = size_of(by_node[maker], tensor) if maker in by_node else None
        maker = plain_name(maker)
        made = by_name[maker].end if maker in by_name else 0.0
        used = min(uses[node.name], default=made)
        copies.append(Copy(plain_name(tensor), source, target, size, made, max(0.0, used - made)))
    return sorted(copies, key=lambda copy: (copy.start, copy.tensor, copy.target))


def sends(nodes: dict[str, Any]) -> tuple[dict[bytes, str], dict[str, str]]:
    """List what is sent; and what stands for an operation where a control edge crosses.

    There TensorFlow sends an empty constant, and an identity receives it.
    """
    sent, relays = {}, {}
    for node in nodes.values():
        if node.op in _private.SENDS:
            tensor = node.input[0]
            if re.search(r"/ctrl/_\d+$", tensor):
                relays[tensor] = tensor = nodes[tensor].input[0]
            sent[node.attr["tensor_name"].s] = tensor
    for node in nodes.values():
        source = nodes.get(node.input[0]) if node.op == "Identity" else None
        if source is not None and source.op in _private.RECEIVES:
            tensor = sent.get(source.attr["tensor_name"].s, "")
            if tensor.startswith("^"):
                relays[node.name] = tensor
    return sent, relays


def edges_of(
    nodes: dict[str, Any], sent: dict[bytes, str], relays: dict[str, str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """List who needs whom, through copies as if there were none; and who only waits for whom."""
    fed, edges = set(), set()
    for node in nodes.values():
        if node.op in _private.SENDS | _private.RECEIVES or node.name in relays:
            continue
        for tensor in node.input:
            maker = _maker(tensor)
            if maker in nodes and nodes[maker].op in _private.RECEIVES:
                maker = sent.get(nodes[maker].attr["tensor_name"].s, "")
            if maker := _maker(relays.get(maker, maker)):
                edge = plain_name(maker), plain_name(node.name)
                edges.add(edge)
                if not tensor.startswith("^"):
                    fed.add(edge)
    return sorted(edges), sorted(edges - fed)


def _maker(tensor: str) -> str:
    return tensor.lstrip("^").partition(":")[0]


def collectives_of(
    ops: list[Op], stats: list[tuple[str, Any]], nodes: dict[str, Any]
) -> list[Collective]:
    """List what each device gave to a collective operation, by the start."""
    by_node = {node.node_name: node for _, node in reversed(stats)}  # in a loop the first
    given = []
    for op in ops:
        if op.name in nodes and _GIVES.match(op.type):
            node = nodes[op.name]
            maker = by_node.get(_maker(node.input[0]))
            size = maker and size_of(maker, node.input[0])
            by = node.attr["communication_hint"].s.decode()
            given.append(Collective(op.name, op.device, size, op.start, op.length, by=by))
    return _met(given, nodes)


def _met(given: list[Collective], nodes: dict[str, Any]) -> list[Collective]:
    """Number those that belong together, and say how long each waited for the last to come."""
    rows: dict[Any, dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    runs = Counter(each.op for each in given)
    for each in given:
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
    return [known.get(each.op, each) for each in given]


def _shared(node: Any, nodes: dict[str, Any]) -> tuple[Any, ...]:
    """Give what those of a group have in common, at the end on how many devices they are.

    MirroredStrategy makes one for each device, then the next for each: so the first of each device
    belong together, if nothing else tells, and the second. The number of the devices and that of
    the group are constants of the graph, and the number of a single one usually is none.
    """
    if "shared_name" in node.attr:
        return node.op, node.attr["shared_name"].s, node.attr["num_devices"].i
    size, group, instance = (_constant(node, nodes, i) for i in (1, 2, 3))
    scopes = _split(node.name)[0] if instance is None else ""
    return node.op, group, instance, scopes, size


def _constant(node: Any, nodes: dict[str, Any], i: int) -> int | None:
    """Read a number that a node has as an input that is a constant."""
    given = nodes.get(_maker(node.input[i])) if i < len(node.input) else None
    if given is None or given.op != "Const":
        return None
    from tensorflow import make_ndarray

    value = make_ndarray(given.attr["value"].tensor)
    return int(value) if value.ndim == 0 else None


def _split(name: str) -> tuple[str, list[int]]:
    """Part a name, without its replica's scope, from the numbers at the ends of its scopes."""
    scopes = re.sub(r"(^|/)replica_\d+/", r"\1", name).split("/")
    parts = [re.findall(r"^(.*?)(?:_(\d+))?$", scope)[0] for scope in scopes]
    return "/".join(base for base, _ in parts), [int(number or 0) for _, number in parts]
