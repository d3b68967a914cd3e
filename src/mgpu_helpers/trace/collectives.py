"""What devices gave to the operations that they do together, from RunMetadata."""

from __future__ import annotations

import re
from typing import Any

from mgpu_helpers.trace.nodes import size_of
from mgpu_helpers.trace.step import Collective, Op

# Those that give a tensor, which is their first input.
_GIVES = re.compile(
    "_?(Nccl(AllReduce|Reduce|BroadcastSend)|"
    "Collective(Reduce|Gather|AllToAll|BcastSend|Permute))"
)


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
    return found
