"""One traced step: what ran where and when, what crossed, and how many bytes each device held.

Lesson 00 shows the first one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
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

    On a GPU an operation lasts from its first kernel's start to its last one's end, and TensorFlow
    keeps both in whole microseconds. One that needs no kernel, such as a Reshape, has length 0 at
    the moment when what it needs is ready.
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

    On a GPU these are the moments at which the host, which runs ahead, took and gave back. A tensor
    counts as many bytes as were asked for; a workspace as many as the allocator set aside, which
    may be more.
    """

    op: str
    device: str
    bytes: int
    start: float
    end: float | None
    scratch: bool = False


@dataclass(frozen=True)
class Trace:
    """One step: its operations, its copies, and the live bytes of each device over time.

    The bytes are those that operations took. TensorFlow does not record what a GPU takes to receive
    a copy. launches_only is True where it recorded no kernels of the GPUs, because libcupti is
    missing or another profiler runs: their times are then those in which the host launched the
    operations, which say nothing about how long they ran.
    """

    ops: tuple[Op, ...]
    copies: tuple[Copy, ...]
    memory: dict[str, tuple[tuple[float, int], ...]] = field(repr=False)
    edges: tuple[tuple[str, str], ...] = field(repr=False)
    allocations: tuple[Allocation, ...] = field(default=(), repr=False)
    waits: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # edges that carry nothing
    # by GPU, when its kernels ran: start and end in seconds
    kernels: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, repr=False)
    launches_only: bool = False

    def __repr__(self) -> str:
        return (
            f"{len(self.ops)} operations on {', '.join(self.devices)}; "
            f"{len(self.copies)} copies between them"
            f"{'; times on GPUs are launches, not kernels' if self.launches_only else ''}"
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Name the devices that ran something, in order."""
        return tuple(sorted({op.device for op in self.ops}, key=order))

    @property
    def length(self) -> float:
        """Give the seconds from the first operation's start to the last one's end."""
        ends = [end for spans in self.kernels.values() for _, end in spans]
        return max((*ends, *(op.start + op.length for op in self.ops)), default=0.0)

    def busy(self, device: str) -> float:
        """Add up the seconds in which the device ran an operation, or a GPU a kernel."""
        total, reached = 0.0, 0.0
        spans = [(op.start, op.start + op.length) for op in self.ops if op.device == device]
        for start, end in sorted(self.kernels.get(device, spans)):
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
    of the variables that it uses: what it assigns does not reach yours. What the function leaves
    unplaced goes where a call would put it: on the device of the surrounding `tf.device`, and
    without one where TensorFlow chooses. Results are taken where they were made.
    """
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context

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
    around = context.context().device_name or None
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
        wanted = [_handed_out(t, twins.keys() | set(fed)).name for t in concrete.outputs]
        wanted += [op.name for op in concrete.graph.control_outputs]
        with tf.device(around):
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


def _handed_out(output: Any, given: Set[str]) -> Any:
    """Give the tensor that a function's output hands out; what was given to it is left as it is.

    `tf.function` ends in an Identity for each output, which nobody can place.
    """
    made = output.op.inputs[0] if output.op.type == "Identity" else output
    return output if made.name in given else made


def read(metadata: Any) -> Trace:
    """Turn TensorFlow's RunMetadata of one step into a Trace."""
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    stats = [  # an operation in a loop has several
        (name, node)
        for device in metadata.step_stats.dev_stats
        if (name := short(device.device))  # the lanes of a GPU have none
        for node in device.node_stats
    ]
    stats.sort(key=lambda each: each[1].all_start_nanos)
    begin = stats[0][1].all_start_nanos if stats else 0
    sent, relays = _sent(nodes)
    edges, waits, received = _edges(nodes, sent, relays)
    kernels = _kernels(metadata.step_stats, stats)
    ops = [op for op in _ops(stats, nodes, edges, kernels, begin) if op.name not in relays]
    copies = _copies(received, sent, stats, nodes, ops)
    allocations = _allocations(stats, begin)
    held: dict[str, list[Allocation]] = defaultdict(list)
    for allocation in allocations:
        held[allocation.device].append(allocation)
    memory = {device: curve(held[device]) for device in sorted(held, key=order)}
    ran = {  # on GPUs
        device: tuple(((start - begin) / 1e9, (end - begin) / 1e9) for _, start, end in spans)
        for device, spans in (kernels or {}).items()
    }
    return Trace(
        tuple(ops), tuple(copies), memory, tuple(edges), tuple(allocations), tuple(waits), ran,
        launches_only=kernels is None and any(device.startswith("/GPU") for device, _ in stats),
    )  # fmt: skip


def _ops(
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
    ops, done = [], {}
    for device, node in stats:
        name, fed = node.node_name, _fed(node.node_name)
        kind = _type(nodes[name].op) if name in nodes else _label(node.timeline_label)
        start, end = node.all_start_nanos, node.all_start_nanos + node.all_end_rel_nanos
        if kernels is not None and device in kernels:
            # Each run in a loop launches as many kernels; on a stream they run in that order.
            i, n, found = seen[name], runs[name], spans[name]
            seen[name] += 1
            if own := found[i * len(found) // n : (i + 1) * len(found) // n]:
                start, end = min(own)[0], max(end for _, end in own)
            else:
                start = end = max([start, *(done[m] for m in makers[fed] if m in done)])
        done[fed] = end
        if kind not in _PLUMBING:
            swapped = name in nodes and nodes[name].op != kind  # by oneDNN: it adds a workspace
            slots = [0] if swapped else [output.slot for output in node.output]
            size = sum(_size(node, f"{name}:{slot}") or 0 for slot in slots)
            ops.append(Op(fed, kind, device, (start - begin) / 1e9, (end - start) / 1e9, size))
    return sorted(ops, key=lambda op: (op.start, op.name))


def _copies(
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
        size = _size(by_node[maker], tensor) if maker in by_node else None
        maker = _fed(maker)
        made = by_name[maker].start + by_name[maker].length if maker in by_name else 0.0
        used = min(uses[node.name], default=made)
        copies.append(Copy(_fed(tensor), source, target, size, made, max(0.0, used - made)))
    return sorted(copies, key=lambda copy: (copy.start, copy.tensor, copy.target))


def _type(op: str) -> str:
    """Name the operation that was asked for, where the executor put its own in its place."""
    return "Placeholder" if op == "_Arg" else re.sub(r"^_Mkl(Native)?", "", op)


def _fed(name: str) -> str:
    """Name what is fed as its placeholder is named."""
    return re.sub(r"^_arg_(.+)_\d+_\d+$", r"\1", name)


def _label(label: str) -> str:
    found = re.match(r"(?:\[.*\] )?.* = (\w+)\(", label)
    return _type(found[1]) if found else "unknown"


def _kernels(
    step_stats: Any, stats: list[tuple[str, Any]]
) -> dict[str, list[tuple[str, int, int]]] | None:
    """List the kernels of each GPU by their start: operation, start and end in ns.

    None where TensorFlow recorded nothing of the GPUs. A card has its physical number here, which
    is not that of a share of it: a kernel runs on the device of its operation, and one without an
    operation (of NCCL, of XLA) on the device of the others on its card, if that is one.
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
    shares: dict[str, set[str]] = defaultdict(set)  # of a card
    for card, name, _ in ran:
        shares[card] |= {place[name]} if name in place else set()
    late = _late([(name, kernel) for _, name, kernel in ran], stats)
    found: dict[str, list[tuple[str, int, int]]] = {device: [] for device in place.values()}
    for card, name, kernel in ran:
        start = kernel.all_start_micros * 1000 + late
        owners = {place[name]} if name in place else shares[card]
        if len(owners) == 1:
            span = name, start, start + kernel.all_end_rel_micros * 1000
            found[min(owners)].append(span)
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
    """Pair what each operation took with when it was given back, by the start.

    The records of a GPU have what its allocator set aside: rounded up to 256 bytes, or a block that
    it did not split. What was asked for stands with the tensor that lies there.
    """
    found = []
    for device, node in stats:
        returned = (node.all_start_nanos + node.op_end_rel_nanos - begin) / 1e9
        asked: dict[tuple[str, int], list[int]] = defaultdict(list)
        for output in node.output:
            about = output.tensor_description.allocation_description
            asked[about.allocator_name, about.allocated_bytes].append(about.requested_bytes)
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
                for one in taken:
                    if one[2] is None and one[0] == -record.alloc_bytes:
                        one[2] = moment
                        break
            # What others use is freed after them, and they start after its operation ended.
            made = [(end is not None and end <= returned, *one, end) for *one, end in taken]
            for scratch, size, start, end in sorted(made, key=lambda each: each[0]):
                tensors = asked[used.allocator_name, size]
                size = tensors.pop(0) if tensors else size
                found.append(Allocation(_fed(node.node_name), where, size, start, end, scratch))
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
