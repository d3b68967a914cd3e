"""A step of a Session, traced; and TensorFlow's RunMetadata of one turned into a Trace."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mgpu_helpers._names import order, short
from mgpu_helpers.trace.by_operation import kernels_of, operations, plain_name
from mgpu_helpers.trace.crossing import collectives_of, copies_of, edges_of, sends
from mgpu_helpers.trace.records import Allocation, Op, curve
from mgpu_helpers.trace.step import Trace

_ALIASES = {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims"}  # they share the buffer


def session_step(session: Any, fetches: Any, feed_dict: Any = None) -> tuple[Any, Trace]:
    """Run one step of a classic Session with tracing on; return its values and the trace.

    The first step of a Session prepares the graph: run it once before you trace it.

    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     value, step = session_step(session, tf.reduce_sum(tf.random.uniform([9])))
    >>> [op.type for op in step.ops if op.type != "Const"]
    ['RandomUniform', 'Sum']
    """
    from tensorflow.compat.v1 import RunMetadata, RunOptions

    options = RunOptions(trace_level=RunOptions.FULL_TRACE, output_partition_graphs=True)
    metadata = RunMetadata()
    values = session.run(fetches, feed_dict, options=options, run_metadata=metadata)
    return values, read(metadata)


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
    edges, waits = edges_of(nodes, sent, relays)
    kernels = kernels_of(metadata.step_stats, stats)
    ops = [op for op in operations(stats, nodes, edges, kernels, begin) if op.name not in relays]
    allocations = _replaced(_allocations(stats, begin), ops, set(edges) - set(waits))
    memory = {
        device: curve(a for a in allocations if a.device == device)
        for device in sorted({a.device for a in allocations}, key=order)
    }
    ran = {  # on GPUs
        device: tuple(((start - begin) / 1e9, (end - begin) / 1e9) for _, start, end in spans)
        for device, spans in (kernels or {}).items()
    }
    return Trace(
        tuple(ops), tuple(copies_of(nodes, sent, stats, ops)), memory, tuple(edges),
        tuple(allocations), tuple(waits), ran,
        launches_only=kernels is None and any(device.startswith("/GPU") for device, _ in stats),
        collectives=tuple(collectives_of(ops, stats, nodes)),
    )  # fmt: skip


def _allocations(stats: Iterable[tuple[str, Any]], begin: int) -> list[Allocation]:
    """Pair what each operation took with when it was given back, by the start.

    The records of a GPU have what its allocator set aside: rounded up to 256 bytes, or a block that
    it did not split. What was asked for stands with the tensor that lies there.
    """
    found = []
    for device, node in stats:
        returned = (node.all_start_nanos + node.op_end_rel_nanos - begin) / 1e9
        wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
        for output in node.output:
            about = output.tensor_description.allocation_description
            wanted[about.allocator_name, about.allocated_bytes].append(about.requested_bytes)
        for used in node.memory:
            # A GPU's operation may also take memory of the host, to copy from or for a shape.
            on_host = re.search("host|cpu", used.allocator_name, re.IGNORECASE)
            where = "/CPU:0" if on_host and device.startswith("/GPU") else device
            taken: list[list[Any]] = []  # size, start, end; two of a size: first come, first freed
            for record in used.allocation_records:
                moment = max(0.0, (record.alloc_micros * 1000 - begin) / 1e9)
                if record.alloc_bytes > 0:
                    taken.append([record.alloc_bytes, moment, None])
                    continue
                same = (each for each in taken if each[0] == -record.alloc_bytes)
                if first := next((each for each in same if each[2] is None), None):
                    first[2] = moment
            # What others use is freed after them, and they start after its operation ended.
            spans = [(end is not None and end <= returned, *one, end) for *one, end in taken]
            for scratch, size, start, end in sorted(spans, key=lambda each: each[0]):
                asked = wanted[used.allocator_name, size]
                size = asked.pop(0) if asked else size
                name = plain_name(node.node_name)
                found.append(Allocation(name, where, size, start, end, scratch))
    return sorted(found, key=lambda a: (a.start, a.op))


def _replaced(
    taken: list[Allocation], ops: Iterable[Op], edges: Iterable[tuple[str, str]]
) -> list[Allocation]:
    """End what becomes a variable's new value when the old one is given back.

    An update that comes while others still read the variable writes beside the old value. The
    variable's own bytes, which were there before the step, then count for the new one.
    """
    by_name = {op.name: op for op in ops}
    makers: dict[str, list[str]] = defaultdict(list)
    users: dict[str, list[Op]] = defaultdict(list)
    for maker, user in edges:
        makers[user].append(maker)
        if user in by_name:
            users[maker].append(by_name[user])
    ends: dict[str, float] = {}
    for op in by_name.values():
        if not op.type.startswith(("Assign", "ResourceApply", "ResourceSparseApply")):
            continue
        ahead = [  # the handle feeds both
            read for handle in makers[op.name] for read in users[handle]
            if read.type == "ReadVariableOp" and read.start < op.start
        ]  # fmt: skip
        if not ahead:  # perhaps the first value
            continue
        end = op.end
        while ahead:
            for reader in users[ahead.pop().name]:
                end = max(end, reader.end)
                ahead += [reader] * (reader.type in _ALIASES)
        writers = [op.name]
        while op.type == "AssignVariableOp" and writers:  # it takes what another has made
            ends[name := writers.pop()] = end
            aliased = name == op.name or name in by_name and by_name[name].type in _ALIASES
            writers += makers[name] if aliased else []
        ends[op.name] = end
    return [
        replace(each, end=max(each.start, ends[each.op]))
        if each.end is None and each.op in ends else each
        for each in taken
    ]  # fmt: skip
