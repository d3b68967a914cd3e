"""One traced step: what ran where and when, what crossed, and how many bytes each device held.

Lesson 00 shows the first one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mgpu_helpers.devices import current, order, short

# What the executor adds: the ends of the step, and the two ends of a copy.
_PLUMBING = {"NoOp", "_SOURCE", "_SINK", "_Retval"}
_SEND, _RECV = {"_Send", "_HostSend"}, {"_Recv", "_HostRecv"}


@dataclass(frozen=True)
class Op:
    """An operation that ran; times in seconds from the start of the step.

    bytes is what it gave to others, 0 for nothing and for what has no fixed size; what oneDNN's
    operations keep for their own gradients is not counted.
    """

    name: str
    type: str
    device: str
    start: float
    length: float
    bytes: int = 0


@dataclass(frozen=True)
class Copy:
    """A tensor that one device made and another used; bytes is None where nothing reports it.

    It starts when the source has made it and ends when the target first uses it, so its length
    holds the transfer and the wait.
    """

    tensor: str
    source: str
    target: str
    bytes: int | None
    start: float
    length: float


@dataclass(frozen=True)
class Allocation:
    """Bytes that an operation took on its device; seconds from the start of the step.

    end is None for what is still held when the step is over. scratch is True for what the
    operation gave back before it ended, a library's workspace; what it makes for others is not.
    """

    op: str
    device: str
    bytes: int
    start: float
    end: float | None
    scratch: bool = False


@dataclass(frozen=True)
class Trace:
    """One step: its operations, its copies, and the live bytes of each device over time."""

    ops: tuple[Op, ...]
    copies: tuple[Copy, ...]
    memory: dict[str, tuple[tuple[float, int], ...]] = field(repr=False)
    edges: tuple[tuple[str, str], ...] = field(repr=False)
    allocations: tuple[Allocation, ...] = field(default=(), repr=False)
    waits: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # edges that carry nothing

    def __repr__(self) -> str:
        return (
            f"{len(self.ops)} operations on {', '.join(self.devices)}; "
            f"{len(self.copies)} copies between them"
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Name the devices that ran something, in order."""
        return tuple(sorted({op.device for op in self.ops}, key=order))

    @property
    def length(self) -> float:
        """Give the seconds from the first operation's start to the last one's end."""
        return max((op.start + op.length for op in self.ops), default=0.0)

    def busy(self, device: str) -> float:
        """Add up the seconds in which the device ran at least one operation."""
        total, reached = 0.0, 0.0
        spans = [(op.start, op.start + op.length) for op in self.ops if op.device == device]
        for start, end in sorted(spans):
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return total

    def idle(self, device: str) -> float:
        """Give the share of the step, 0 to 1, in which the device ran nothing."""
        return 1 - self.busy(device) / self.length if self.length else 0.0

    def peak(self, device: str, scratch: bool = True) -> int:
        """Give the most bytes that the step held on the device at once, with or without scratch."""
        live = self.memory.get(device, ())
        if not scratch:
            live = curve(a for a in self.allocations if a.device == device and not a.scratch)
        return max((live for _, live in live), default=0)

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """Add up the bytes that crossed, by (source, target)."""
        total: dict[tuple[str, str], int] = defaultdict(int)
        for copy in self.copies:
            total[copy.source, copy.target] += copy.bytes or 0
        return dict(sorted(total.items(), key=lambda item: (order(item[0][0]), order(item[0][1]))))


def session_step(session: Any, fetches: Any, feed_dict: Any = None) -> tuple[Any, Trace]:
    """Run one step of a classic Session with tracing on; return its values and the trace.

    The first step of a Session prepares the graph: run it once before you trace it.
    """
    from tensorflow.compat.v1 import RunMetadata, RunOptions

    options = RunOptions(trace_level=RunOptions.FULL_TRACE, output_partition_graphs=True)
    metadata = RunMetadata()
    values = session.run(fetches, feed_dict, options=options, run_metadata=metadata)
    return values, read(metadata)


def function_step(function: Callable[..., Any], *args: Any) -> tuple[Any, Trace]:
    """Trace one call of a function of today's code, with or without `tf.function` around it.

    The eager runtime keeps no such trace. So the function's graph is run in a Session, on copies
    of the variables that it uses: what it assigns does not reach yours.
    """
    import numpy as np
    import tensorflow as tf

    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    args = tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a, args
    )
    concrete = function.get_concrete_function(*args)
    given = [a for a in tf.nest.flatten(args, expand_composites=True) if tf.is_tensor(a)]
    variables = [a for a in tf.nest.flatten(args) if isinstance(a, tf.Variable)]
    known = {id(key): v for v in (*concrete.variables, *variables) for key in (v, v.handle)}
    outside = [*given, *concrete.captured_inputs]
    numbers = {}  # what comes in as a tensor or a variable: the placeholder's name -> its value
    for inner, outer in zip(concrete.inputs, outside, strict=True):
        if outer.dtype in (tf.resource, tf.variant) and id(outer) not in known:
            raise ValueError(
                f"the function uses {outer}, which is neither a tensor nor a variable and cannot "
                "be copied for the trace: pass what it yields as an argument."
            )
        numbers[inner.name] = known.get(id(outer), outer).numpy()
    fed = [t.name for t, a in zip(concrete.inputs, given) if id(a) not in known]  # noqa: B905
    with tf.Graph().as_default() as graph:
        twins = {}
        for inner, outer in zip(concrete.inputs, outside, strict=True):
            if inner.name in fed:
                continue
            variable = known.get(id(outer))
            label = (inner if variable is None else variable).name.partition(":")[0]
            # A captured tensor becomes a variable too: TensorFlow would fold a constant away.
            with tf.device(outer.device), tf.name_scope("outside"):
                twin = tf.compat.v1.Variable(numbers[inner.name], use_resource=True, name=label)
                twins[inner.name] = twin.value() if variable is None else twin.handle
        wanted = [t.name for t in concrete.outputs]
        wanted += [op.name for op in concrete.graph.control_outputs]
        found = tf.graph_util.import_graph_def(
            concrete.graph.as_graph_def(), twins, return_elements=fed + wanted, name=""
        )
        feed = {tensor: numbers[name] for tensor, name in zip(found, fed)}  # noqa: B905
        fetches = found[len(fed) :]
        start = tf.compat.v1.global_variables_initializer()
    config = current().session_config(soft_placement=True) if current() else None
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run(start)
        session.run(fetches, feed)
        session.run(start)  # undo what the first run assigned
        got, trace = session_step(session, fetches, feed)
    flat = iter(got)
    flattened = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    packed = [None if o is None else next(flat) for o in flattened]
    return tf.nest.pack_sequence_as(concrete.structured_outputs, packed, True), trace


def read(metadata: Any) -> Trace:
    """Turn TensorFlow's RunMetadata of one step into a Trace."""
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    stats = [  # an operation in a loop has several
        (name, node)
        for device in metadata.step_stats.dev_stats
        if (name := short(device.device))
        for node in device.node_stats
    ]
    by_node = {node.node_name: node for _, node in stats}
    sent, relays = _sent(nodes)
    kernels = _kernels(metadata.step_stats)
    begin = min((node.all_start_nanos for _, node in stats), default=0)
    ops = []
    for device, node in stats:
        name = node.node_name
        kind = _type(nodes[name].op) if name in nodes else _label(node.timeline_label)
        if kind not in _PLUMBING and name not in relays:
            launched = node.all_start_nanos, node.all_start_nanos + node.all_end_rel_nanos
            start, end = kernels.get(name, launched) if "/GPU" in device else launched
            swapped = name in nodes and nodes[name].op != kind  # by oneDNN: it adds a workspace
            slots = [0] if swapped else [output.slot for output in node.output]
            size = sum(_size(node, f"{name}:{slot}") or 0 for slot in slots)
            span = (start - begin) / 1e9, (end - start) / 1e9
            ops.append(Op(_fed(name), kind, device, *span, size))
    ops.sort(key=lambda op: (op.start, op.name))
    edges, waits, received = _edges(nodes, sent, relays)
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
        size = _size(by_node[maker], tensor) if maker in by_node else None
        maker = _fed(maker)
        made = by_name[maker].start + by_name[maker].length if maker in by_name else 0.0
        used = min(uses[node.name], default=made)
        copies.append(Copy(_fed(tensor), source, target, size, made, max(0.0, used - made)))
    copies.sort(key=lambda copy: (copy.start, copy.tensor, copy.target))
    allocations = _allocations(stats, begin)
    held: dict[str, list[Allocation]] = defaultdict(list)
    for allocation in allocations:
        held[allocation.device].append(allocation)
    memory = {device: curve(held[device]) for device in sorted(held, key=order)}
    return Trace(tuple(ops), tuple(copies), memory, tuple(edges), tuple(allocations), tuple(waits))


def _type(op: str) -> str:
    """Name the operation that was asked for, where the executor put its own in its place."""
    return "Placeholder" if op == "_Arg" else re.sub(r"^_Mkl(Native)?", "", op)


def _fed(name: str) -> str:
    """Name what is fed as its placeholder is named."""
    return re.sub(r"^_arg_(.+)_\d+_\d+$", r"\1", name)


def _label(label: str) -> str:
    found = re.match(r"(?:\[.*\] )?.* = (\w+)\(", label)
    return _type(found[1]) if found else "unknown"


def _kernels(step_stats: Any) -> dict[str, tuple[int, int]]:
    """Give when each operation's kernels ran on a GPU, in ns; the CPU's times are launches.

    By name only: a GPU has its physical number here, which is not that of a share of it.
    """
    spans: dict[str, tuple[int, int]] = {}
    for device in step_stats.dev_stats:
        if not device.device.endswith("/stream:all"):
            continue
        for kernel in device.node_stats:
            annotated = re.search(r"@@(.*?)#", kernel.timeline_label)
            name = (annotated[1] if annotated else kernel.node_name).partition(":")[0]
            start = kernel.all_start_micros
            end = start + kernel.all_end_rel_micros
            before = spans.get(name, (start * 1000, end * 1000))
            spans[name] = min(before[0], start * 1000), max(before[1], end * 1000)
    return spans


def _sent(nodes: dict[str, Any]) -> tuple[dict[bytes, str], dict[str, str]]:
    """List what is sent; and what stands for an operation where a control edge crosses.

    There TensorFlow sends an empty constant, and an identity receives it.
    """
    sent, relays = {}, {}
    for node in nodes.values():
        if node.op in _SEND:
            tensor = node.input[0]
            if re.search(r"/ctrl/_\d+$", tensor):
                relays[tensor] = tensor = nodes[tensor].input[0]
            sent[node.attr["tensor_name"].s] = tensor
    for node in nodes.values():
        source = nodes.get(node.input[0]) if node.op == "Identity" else None
        if source is not None and source.op in _RECV:
            tensor = sent.get(source.attr["tensor_name"].s, "")
            if tensor.startswith("^"):
                relays[node.name] = tensor
    return sent, relays


def _edges(
    nodes: dict[str, Any], sent: dict[bytes, str], relays: dict[str, str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[Any]]:
    """List who feeds whom, through copies as if they were not there, and who only waits for whom.

    And the receiving ends of the copies.
    """
    received, fed, edges = [], set(), set()
    for node in nodes.values():
        if node.op in _RECV:
            received.append(node)
        elif node.op not in _SEND and node.name not in relays:
            for tensor in node.input:
                control = tensor.startswith("^")
                maker = tensor.lstrip("^").partition(":")[0]
                if maker in nodes and nodes[maker].op in _RECV:
                    maker = sent.get(nodes[maker].attr["tensor_name"].s, "")
                maker = relays.get(maker, maker).lstrip("^").partition(":")[0]
                if maker:
                    edge = _fed(maker), _fed(node.name)
                    edges.add(edge)
                    fed |= set() if control else {edge}
    return sorted(edges), sorted(edges - fed), received


def _size(node: Any, tensor: str) -> int | None:
    """Count a tensor's bytes from its shape; None for one without a fixed size (a string)."""
    import tensorflow as tf

    slot = int(tensor.partition(":")[2] or 0)
    for output in node.output:
        if output.slot == slot:
            described = output.tensor_description
            kind = tf.dtypes.as_dtype(described.dtype)
            if kind in (tf.string, tf.resource, tf.variant):
                return None
            total = kind.size
            for dim in described.shape.dim:
                total *= dim.size
            return total
    return None


def _allocations(stats: Iterable[tuple[str, Any]], begin: int) -> list[Allocation]:
    """Pair what each operation took with when it was given back, by the start."""
    found = []
    for device, node in stats:
        returned = (node.all_start_nanos + node.op_end_rel_nanos - begin) / 1e9
        for used in node.memory:
            taken: list[list[Any]] = []  # size, start, end; two of a size: first come, first freed
            for record in used.allocation_records:
                moment = max(0.0, (record.alloc_micros * 1000 - begin) / 1e9)
                if record.alloc_bytes > 0:
                    taken.append([record.alloc_bytes, moment, None])
                    continue
                for one in taken:
                    if one[2] is None and one[0] == -record.alloc_bytes:
                        one[2] = moment
                        break
            for size, start, end in taken:
                # What others use is freed after them, and they start after its operation ended.
                scratch = end is not None and end <= returned
                found.append(Allocation(_fed(node.node_name), device, size, start, end, scratch))
    return sorted(found, key=lambda a: (a.start, a.op))


def curve(allocations: Iterable[Allocation]) -> tuple[tuple[float, int], ...]:
    """Add up what is held, from allocations of one device.

    Their clock ticks in microseconds. Of what falls on one tick, what was held before is freed
    first: an operation starts after the one before it has let go of its inputs.
    """
    changes = []
    for each in allocations:
        changes.append((each.start, 1, each.bytes))
        if each.end is not None:
            changes.append((each.end, 2 if each.end == each.start else 0, -each.bytes))
    live, curve = 0, [(0.0, 0)]
    for moment, _, change in sorted(changes):
        live += change
        curve.append((moment, live))
    return tuple(curve)
