"""Turn TensorFlow's RunMetadata of one step into a Trace."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.names import order, short
from mgpu_helpers.trace.allocations import allocations_of
from mgpu_helpers.trace.collectives import collectives_of
from mgpu_helpers.trace.copies import copies_of, edges_of, sends
from mgpu_helpers.trace.operations import kernels_of, operations
from mgpu_helpers.trace.step import Trace, curve


def read(metadata: Any) -> Trace:
    """Turn TensorFlow's RunMetadata of one step into a Trace.

    It needs trace_level=FULL_TRACE and output_partition_graphs=True, as in `session_step`; one that
    recorded nothing gives an empty trace.

    >>> from tensorflow.compat.v1 import RunMetadata
    >>> read(RunMetadata()).ops
    ()
    """
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    stats = [  # an operation in a loop has several
        (name, node)
        for device in metadata.step_stats.dev_stats
        if (name := short(device.device))  # the lanes of a GPU have none
        for node in device.node_stats
    ]
    stats.sort(key=lambda each: each[1].all_start_nanos)
    begin = stats[0][1].all_start_nanos if stats else 0
    sent, relays = sends(nodes)
    edges, waits, received = edges_of(nodes, sent, relays)
    kernels = kernels_of(metadata.step_stats, stats)
    ops = [op for op in operations(stats, nodes, edges, kernels, begin) if op.name not in relays]
    copies = copies_of(received, sent, stats, nodes, ops)
    allocations = allocations_of(stats, begin)
    memory = {
        device: curve(a for a in allocations if a.device == device)
        for device in sorted({a.device for a in allocations}, key=order)
    }
    ran = {  # on GPUs
        device: tuple(((start - begin) / 1e9, (end - begin) / 1e9) for _, start, end in spans)
        for device, spans in (kernels or {}).items()
    }
    return Trace(
        tuple(ops), tuple(copies), memory, tuple(edges), tuple(allocations), tuple(waits), ran,
        launches_only=kernels is None and any(device.startswith("/GPU") for device, _ in stats),
        collectives=tuple(collectives_of(ops, stats, nodes)),
    )  # fmt: skip
