"""What crossed between devices and who feeds whom, from RunMetadata."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.names import short
from mgpu_helpers.trace.nodes import plain_name, size_of
from mgpu_helpers.trace.step import Copy, Op


def copies_of(
    received: list[Any],
    sent: dict[bytes, str],
    stats: list[tuple[str, Any]],
    nodes: dict[str, Any],
    ops: list[Op],
) -> list[Copy]:
    """List the tensors that crossed between devices, by their start."""
    by_node = {node.node_name: node for _, node in stats}
    by_name = {op.name: op for op in ops}
    uses: dict[str, list[float]] = defaultdict(list)  # a node -> when those it feeds started
    for node in nodes.values():
        for tensor in node.input if node.name in by_name else ():
            uses[tensor.partition(":")[0]].append(by_name[node.name].start)
    copies = []
    for node in received:
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
        if node.op in private.SENDS:
            tensor = node.input[0]
            if re.search(r"/ctrl/_\d+$", tensor):
                relays[tensor] = tensor = nodes[tensor].input[0]
            sent[node.attr["tensor_name"].s] = tensor
    for node in nodes.values():
        source = nodes.get(node.input[0]) if node.op == "Identity" else None
        if source is not None and source.op in private.RECEIVES:
            tensor = sent.get(source.attr["tensor_name"].s, "")
            if tensor.startswith("^"):
                relays[node.name] = tensor
    return sent, relays


def edges_of(
    nodes: dict[str, Any], sent: dict[bytes, str], relays: dict[str, str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[Any]]:
    """List who feeds whom, through copies as if they were not there, and who only waits for whom.

    And the receiving ends of the copies.
    """
    received, fed, edges = [], set(), set()
    for node in nodes.values():
        if node.op in private.RECEIVES:
            received.append(node)
        elif node.op not in private.SENDS and node.name not in relays:
            for tensor in node.input:
                control = tensor.startswith("^")
                maker = tensor.lstrip("^").partition(":")[0]
                if maker in nodes and nodes[maker].op in private.RECEIVES:
                    maker = sent.get(nodes[maker].attr["tensor_name"].s, "")
                maker = relays.get(maker, maker).lstrip("^").partition(":")[0]
                if maker:
                    edge = plain_name(maker), plain_name(node.name)
                    edges.add(edge)
                    fed |= set() if control else {edge}
    return sorted(edges), sorted(edges - fed), received
