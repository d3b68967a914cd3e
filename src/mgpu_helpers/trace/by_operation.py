"""What ran and when, from RunMetadata: operations, their names and bytes, and a GPU's kernels."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.trace.records import Op

# What the executor adds: the ends of the step, and the two ends of a copy.
_PLUMBING = {"NoOp", _private.RESULT}
_ONEDNN = re.compile(f"^{_private.ONEDNN}(Native)?")
# NCCL's kernels carry no operation, but the host ends these when their kernels have ended.
_TOGETHER = re.compile("_?(Nccl|Collective)[A-Z]")


def plain_name(name: str) -> str:
    """Give the name that an operation has for people: what is fed has that of its placeholder."""
    return re.sub(rf"^{_private.FED}(.+)_\d+_\d+$", r"\1", name)


def bytes_of(output: Any) -> int | None:
    """Count the bytes of one output from its shape; None without a fixed size (a string)."""
    about = output.tensor_description
    kind = tf.dtypes.as_dtype(about.dtype)
    if kind in (tf.string, tf.resource, tf.variant):
        return None
    return kind.size * math.prod(dim.size for dim in about.shape.dim)


def size_of(node: Any, tensor: str) -> int | None:
    """Count the bytes of a tensor that an operation made."""
    slot = int(tensor.partition(":")[2] or 0)
    return next((bytes_of(output) for output in node.output if output.slot == slot), None)


def operations(
    stats: list[tuple[str, Any]],
    nodes: dict[str, Any],
    edges: list[tuple[str, str]],
    kernels: dict[str, list[tuple[str, int, int]]] | None,
    begin: int,
) -> list[Op]:
    """List the operations by their start: as the host ran them, on a GPU as their kernels ran."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in (kernels or {}).values():
        for name, start, end in each:
            spans[name].append((start, end))
    runs = Counter(node.node_name for _, node in stats)
    seen: Counter[str] = Counter()
    makers: dict[str, list[str]] = defaultdict(list)
    for maker, user in edges:
        makers[user].append(maker)
    ops: list[Op] = []
    done: dict[str, int] = {}
    for device, node in stats:
        name, fed = node.node_name, plain_name(node.node_name)
        # What runs in a function is not in the graph; its label names it, as in "a = Sqrt(x)".
        label = re.search(r" = (\w+)\(", node.timeline_label)
        kind = nodes[name].op if name in nodes else label[1] if label else "unknown"
        kind = "Placeholder" if kind == _private.ARGUMENT else re.sub(_ONEDNN, "", kind)
        start, end = node.all_start_nanos, node.all_start_nanos + node.all_end_rel_nanos
        if kernels is not None and device in kernels:
            # Each run in a loop launches as many kernels; on a stream they run in that order.
            i, n, found = seen[name], runs[name], spans[name]
            seen[name] += 1
            if own := found[i * len(found) // n : (i + 1) * len(found) // n]:
                start, end = min(own)[0], max(end for _, end in own)
            else:
                start = max([start, *(done[m] for m in makers[fed] if m in done)])
                end = max(start, end) if _TOGETHER.match(kind) else start
        done[fed] = end
        if kind not in _PLUMBING:
            swapped = name in nodes and nodes[name].op != kind  # by oneDNN: it adds a workspace
            made = [output for output in node.output if output.slot == 0 or not swapped]
            size = sum([bytes_of(output) or 0 for output in made])
            ops.append(Op(fed, kind, device, (start - begin) / 1e9, (end - start) / 1e9, size))
    return sorted(ops, key=lambda op: (op.start, op.name))


def kernels_of(
    step_stats: Any, stats: list[tuple[str, Any]]
) -> dict[str, list[tuple[str, int, int]]] | None:
    """List the kernels of each GPU by their start: operation, start and end in ns.

    None where TensorFlow recorded nothing of the GPUs. It names a GPU by its physical number, and
    several devices may be shares of one. So a kernel counts on the device of its operation. One
    without an operation (of NCCL, of XLA) counts where its GPU is one device, and else nowhere.
    """
    lanes = [d for d in step_stats.dev_stats if re.search("/(stream:|memcpy)", d.device)]
    if not lanes:
        return None
    place = {node.node_name: device for device, node in stats if device.startswith("/GPU")}
    ran = [
        (lane.device, kernel.node_name.partition(":")[0], kernel)
        for lane in lanes
        if lane.device.endswith("/stream:all")
        for kernel in lane.node_stats
    ]
    shares: dict[str, set[str]] = defaultdict(set)  # of a GPU
    for gpu, name, _ in ran:
        shares[gpu] |= {place[name]} if name in place else set()
    late = _late([(name, kernel) for _, name, kernel in ran], stats)
    found: dict[str, list[tuple[str, int, int]]] = {device: [] for device in place.values()}
    for gpu, name, kernel in ran:
        start = kernel.all_start_micros * 1000 + late
        owners = {place[name]} if name in place else shares[gpu]
        if len(owners) == 1:
            found[min(owners)].append((name, start, start + kernel.all_end_rel_micros * 1000))
    return {device: sorted(each, key=lambda k: k[1:]) for device, each in found.items()}


def _late(kernels: list[tuple[str, Any]], stats: list[tuple[str, Any]]) -> int:
    """Give the ns to add to the times of kernels; 0 but for TensorFlow before 2.19.

    There they count from the profiler's start and end before the step begins, and nothing says when
    the profiler started. But an operation is begun before it launches its kernels. The smallest
    shift that keeps this for all is too small by the shortest time from a begin to a launch, and by
    no more than that.
    """
    began: dict[str, int] = {}
    for _, node in stats:
        began.setdefault(node.node_name, node.all_start_nanos + node.op_start_rel_nanos)
    launched: dict[str, int] = {}
    for name, kernel in kernels:
        moment = (kernel.scheduled_micros or kernel.all_start_micros) * 1000
        launched[name] = min(moment, launched.get(name, moment))
    last = max((k.all_start_micros + k.all_end_rel_micros for _, k in kernels), default=0)
    if not stats or last * 1000 >= stats[0][1].all_start_nanos:
        return 0
    return max((began[name] - launched[name] for name in launched if name in began), default=0)
