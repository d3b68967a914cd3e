"""One traced step, on graphs whose bytes can be added by hand and on made-up records."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gpu_graph import gpu_step, recorded
from mgpu_helpers import whatif
from mgpu_helpers.charts.steps import bars_of
from mgpu_helpers.trace import Op, Trace, read, session_step
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import Allocation, Copy, curve

SIDE = 256
BLOCK = SIDE * SIDE * 4  # bytes of the float32 tensor x below


def session_trace(plan, graph, fetches, feed=None, **config):
    import tensorflow as tf

    with tf.compat.v1.Session(graph=graph, config=plan.session_config(**config)) as session:
        session.run(fetches, feed)
        return session_step(session, fetches, feed)


@pytest.fixture(scope="module")
def three_devices(tf, plan):
    """Trace x on one device, two and three times x on the next, their sum on the host.

    Nothing here can be folded, fused, or written into the buffer of its input.
    """
    first, second = plan.devices
    with tf.Graph().as_default() as graph:
        with tf.device(first):
            x = tf.raw_ops.RandomUniform(shape=[SIDE, SIDE], dtype=tf.float32, name="x")
        with tf.device(second):
            two = tf.concat([x, x], 0, name="two")
            with tf.control_dependencies([two]):
                three = tf.concat([x, x, x], 0, name="three")
        with tf.device(plan.host), tf.control_dependencies([three]):
            a = tf.reduce_sum(two, name="a")
            b = tf.reduce_sum(three, name="b")
            total = tf.add(a, b, name="total")
    return session_trace(plan, graph, [x, total])


def test_operations_have_their_device_and_the_bytes_of_what_they_give(three_devices):
    (x, total), trace = three_devices
    assert total == pytest.approx(5 * x.sum(), rel=1e-4)
    made = {op.name: (op.type, op.device, op.bytes) for op in trace.ops if op.type != "Const"}
    assert made == {
        "x": ("RandomUniform", "/CPU:1", BLOCK),
        "two": ("ConcatV2", "/CPU:2", 2 * BLOCK), "three": ("ConcatV2", "/CPU:2", 3 * BLOCK),
        "a": ("Sum", "/CPU:0", 4), "b": ("Sum", "/CPU:0", 4), "total": ("AddV2", "/CPU:0", 4),
    }  # fmt: skip
    assert [op.start for op in trace.ops] == sorted(abs(op.start) for op in trace.ops)
    assert trace.length == max(op.end for op in trace.ops) < 60
    assert not trace.launches_only and "launches" not in repr(trace)


def test_every_copy_has_its_bytes_and_lasts_from_the_making_to_the_first_use(three_devices):
    _, trace = three_devices
    crossed = sorted((c.tensor, c.source, c.target, c.bytes) for c in trace.copies)
    assert crossed == [
        ("three", "/CPU:2", "/CPU:0", 3 * BLOCK),
        ("two", "/CPU:2", "/CPU:0", 2 * BLOCK),
        ("x", "/CPU:1", "/CPU:0", BLOCK),  # it is fetched, and so brought to the host
        ("x", "/CPU:1", "/CPU:2", BLOCK),  # used twice there
    ]
    ops, copies = {op.name: op for op in trace.ops}, {(c.tensor, c.target): c for c in trace.copies}
    # The first use of each; on the host nothing uses x.
    for maker, target, user in ("x", 2, "two"), ("two", 0, "a"), ("three", 0, "b"), ("x", 0, None):
        copy = copies[maker, f"/CPU:{target}"]
        assert copy.start == ops[maker].end
        assert copy.start + copy.length == pytest.approx(ops[user].start if user else copy.start)


def test_what_is_held_is_counted_per_device_and_who_took_it_is_named(three_devices):
    _, trace = three_devices
    assert trace.peak("/CPU:2") == 5 * BLOCK and trace.peak("/CPU:1") == BLOCK
    assert trace.peak("/CPU:0") < 1000 and trace.peak("/GPU:7") == 0
    live = trace.memory["/CPU:2"]
    assert live[0] == (0.0, 0) and live[-1][1] == 0 and min(moment for moment, _ in live) == 0
    assert trace.memory["/CPU:1"][-1][1] == BLOCK  # x was fetched: the caller holds it
    ops = {op.name: op for op in trace.ops}
    taken = {a.op: a for a in trace.allocations if a.bytes % BLOCK == 0}
    assert {(a.op, a.device, a.bytes // BLOCK) for a in taken.values()} == {
        ("x", "/CPU:1", 1), ("two", "/CPU:2", 2), ("three", "/CPU:2", 3),
    }  # fmt: skip
    for name, user in (("two", "a"), ("three", "b")):
        assert ops[name].start - 2e-6 <= taken[name].start <= ops[name].end
        assert taken[name].end >= ops[user].start - 2e-6 and not taken[name].scratch
    assert taken["x"].end is None and not taken["x"].scratch


def test_edges_go_through_copies_and_those_that_only_wait_are_told(three_devices):
    _, trace = three_devices
    named = {op.name for op in trace.ops}
    edges = {edge for edge in trace.edges if set(edge) <= named and "/" not in edge[0] + edge[1]}
    assert edges == {
        ("x", "two"), ("x", "three"), ("two", "a"), ("three", "b"), ("a", "total"), ("b", "total"),
        ("three", "Const"), ("Const", "a"), ("Const", "b"),  # the control edge from three
    }  # fmt: skip
    assert not any(re.search(r"/_\d+$", name) for edge in trace.edges for name in edge)
    assert edges & set(trace.waits) == {("three", "Const")}


def test_loops_strings_and_onednn_are_traced_as_they_were_written(tf, plan):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.devices[1]):
            _, last = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.sqrt(x)),
                                    [0, tf.random.uniform([])])  # fmt: skip
        with tf.device(plan.devices[0]):
            words = tf.strings.as_string(tf.random.uniform([3]), name="words")
        with tf.device(plan.devices[1]):
            lengths = tf.strings.length(words)
        x = tf.random.uniform([1, 8, 8, 1])
        image = tf.nn.conv2d(x, tf.random.uniform([3, 3, 1, 2]), 1, "SAME", name="image")
        pool = tf.nn.max_pool2d(image, 2, 2, "SAME", name="pool")  # with a workspace of its own
        parts = tf.split(pool, 2, axis=3, name="parts")
        fetched = [part + 1 for part in parts], tf.gradients(pool, x)
    _, trace = session_trace(plan, graph, [last, lengths, fetched])
    roots = [op for op in trace.ops if op.type == "Sqrt"]
    assert len(roots) == 5 and len({op.name for op in roots}) == 1
    assert all(a.end <= b.start for a, b in zip(roots, roots[1:], strict=False))
    assert [c.bytes for c in trace.copies if c.tensor == "words"] == [None]  # not known
    ops = {op.name: (op.type, op.bytes) for op in trace.ops}
    assert ops["words"] == ("AsString", 0)
    assert ops["image"] == ("Conv2D", 4 * 8 * 8 * 2) and ops["pool"] == ("MaxPool", 4 * 4 * 4 * 2)
    assert ops["parts"] == ("Split", 4 * 4 * 4 * 2)


def test_what_is_fed_starts_on_the_host(tf, plan):
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        given = tf.compat.v1.placeholder(tf.float32, [10, 10], name="given")
        mean = tf.reduce_mean(given, name="mean")
    value, trace = session_trace(plan, graph, mean, {given: np.ones([10, 10], "f")})
    fed, mean = [(c.tensor.partition(":")[0], c.source, c.target, c.bytes) for c in trace.copies]
    assert value == 1 and mean == ("mean", "/CPU:1", "/CPU:0", 4)
    assert fed == ("given", "/CPU:0", "/CPU:1", 400) and ("given", "mean") in trace.edges
    assert {op.name: op.device for op in trace.ops}["given"] == "/CPU:0"
    assert repr(trace).endswith("operations on /CPU:0, /CPU:1; 2 copies between them")


# ---- traces made by hand

BEGIN = 1_700_000_000_002_000  # us since 1970


def written(*ran, constants=None):
    """Write, as TensorFlow does, a step of (name, op, device, inputs, start, end) in us.

    A seventh lists what each took of memory, and gave back: pairs of a moment and bytes.
    """
    from tensorflow import make_tensor_proto
    from tensorflow.compat.v1 import RunMetadata

    metadata = RunMetadata()
    nodes, stats = metadata.partition_graphs.add().node, metadata.step_stats.dev_stats
    for name, value in (constants or {}).items():
        nodes.add(name=name, op="Const").attr["value"].tensor.CopyFrom(make_tensor_proto(value))
    for name, op, device, inputs, start, end, *records in ran:
        nodes.add(name=name, op=op, input=inputs)
        noted = stats.add(device=f"/job:localhost/replica:0/task:0/device:{device}").node_stats.add(
            node_name=name, all_start_nanos=(BEGIN + start) * 1000,
            op_end_rel_nanos=(end - start) * 1000 - 1100, all_end_rel_nanos=(end - start) * 1000,
        )  # fmt: skip
        memory = noted.memory.add(allocator_name="cpu")
        for moment, size in records[0] if records else ():
            memory.allocation_records.add(alloc_micros=BEGIN + moment, alloc_bytes=size)
    return metadata


def test_what_is_taken_is_paired_with_what_is_given_back():
    first = [(-1, 40), (2, 40), (3, 7), (4, -40), (5, -7), (40, -40)]  # a tick is rounded down
    trace = read(written(
        ("first", "Add", "CPU:1", [], 0, 6, first),
        ("next", "Add", "CPU:1", [], 20, 26, [(20, 10), (29, 5), (60, -10)]),
        # TensorFlow frees what nobody uses before it notes the end.
        ("unused", "Add", "CPU:1", [], 50, 56, [(51, 3), (55, -3)]),
    ))  # fmt: skip
    got = [(a.op, a.bytes, round(a.start * 1e6), a.end and round(a.end * 1e6), a.scratch)
           for a in trace.allocations]  # fmt: skip
    assert got == [
        ("first", 40, 0, 4, True), ("first", 40, 2, 40, False), ("first", 7, 3, 5, False),
        ("next", 10, 20, 60, False), ("next", 5, 29, None, False), ("unused", 3, 51, 55, False),
    ]  # fmt: skip
    assert [live for _, live in trace.memory["/CPU:1"]] == [
        0, 40, 80, 87, 47, 40, 50, 55, 15, 18, 15, 5,
    ]  # fmt: skip
    assert (trace.peak("/CPU:1"), trace.peak("/CPU:1", scratch=False)) == (87, 55)


def test_on_one_tick_of_the_clock_what_was_held_before_goes_first():
    spans = [(100, 0.0, 1.0), (90, 1.0, 2.0), (7, 1.0, 1.0)]
    made = [Allocation("op", "/CPU:1", *span) for span in spans]
    assert [live for _, live in curve(made)] == [0, 100, 0, 7, 97, 90, 0]


@pytest.mark.parametrize("read_at, last_use, end", [
    (9, (30, 40), 40),
    (9, (12, 15), 20),  # not before the update itself is over
    (10, (30, 40), None),  # what is not read before has perhaps its first value, which stays
    (11, (30, 40), None),
])  # fmt: skip
def test_a_new_value_ends_when_nobody_uses_what_was_read_before_it(read_at, last_use, end):
    step = read(written(
        ("w", "VarHandleOp", "CPU:1", [], 0, 2),
        ("old", "ReadVariableOp", "CPU:1", ["w"], read_at, read_at + 2),
        ("same", "Reshape", "CPU:1", ["old"], read_at, read_at + 2),
        ("use", "MatMul", "CPU:1", ["same"], *last_use),
        ("after", "MatMul", "CPU:1", ["use"], 50, 60),  # takes the product, not the value
        ("new", "AssignAddVariableOp", "CPU:1", ["w", "x"], 10, 20, [(11, 400)]),
    ))  # fmt: skip
    (held,) = step.allocations
    assert held.end == (end and pytest.approx(end * 1e-6))


def test_busy_counts_overlapping_operations_once_and_devices_come_as_people_count():
    spans = [("/CPU:10", 0, 4), ("/CPU:10", 1, 1), ("/CPU:10", 3, 3), ("/CPU:10", 8, 2),
             ("/CPU:2", 2, 1), ("/CPU:2", 2, 1)]  # fmt: skip
    crossed = (10, 10), (2, 2), (2, 2), (2, None)  # of the last nobody knows how much
    copies = tuple(Copy("t", f"/CPU:{i}", "/CPU:0", size, 0, 0) for i, size in crossed)
    trace = Trace(tuple(Op("op", "Add", *span) for span in spans), copies, {}, ())
    assert trace.length == 10 and trace.devices == ("/CPU:2", "/CPU:10")
    assert trace.busy("/CPU:10") == 8 and trace.idle("/CPU:10") == pytest.approx(0.2)
    assert trace.busy("/CPU:2") == 1 and trace.idle("/CPU:3") == 1
    assert list(trace.bytes_between().items()) == [
        (("/CPU:2", "/CPU:0"), 4), (("/CPU:10", "/CPU:0"), 10),
    ]  # fmt: skip
    empty = Trace((), (), {}, ())
    assert (empty.devices, empty.length, empty.idle("/CPU:1")) == ((), 0, 0)


# ---- what devices do together


def together(*members, size=2, op="CollectiveReduceV2", **given):
    """Read a step of (name, device, start, end) in us; given says by name what its node has."""
    constants = {f"instance {name}": each["instance"] for name, each in given.items()
                 if "instance" in each} | {"size": size, "key": 1}  # fmt: skip
    ran = [(name, op, f"CPU:{device}", ["x", "size", "key", f"instance {name}"], start, end)
           for name, device, start, end in members]  # fmt: skip
    metadata = written(*ran, constants=constants)
    for node in metadata.partition_graphs[0].node:
        if "shared" in given.get(node.name, {}):
            node.attr["shared_name"].s = given[node.name]["shared"]
            node.attr["num_devices"].i = size
    return {c.op: (c.group, None if c.waited is None else round(c.waited * 1e6, 6))
            for c in read(metadata).collectives}  # fmt: skip


MEMBERS = [("p", 1, 0, 100), ("q", 1, 5, 100), ("r", 2, 10, 100), ("s", 2, 25, 100)]
PAIRS, WAITED = {"p": 7, "s": 7, "q": 8, "r": 8}, [(0, 25), (1, 5), (1, 0), (0, 0)]


@pytest.mark.parametrize("members, more, wanted", [
    # Both all-reduces are under way at once, and device 2 comes to the second one first.
    ([("a/c", 1, 0, 100), ("a/c_2", 1, 10, 101), ("a/c_3", 2, 20, 100),
      ("a/replica_1/c_1", 2, 30, 100)], {}, [(0, 30), (1, 10), (1, 0), (0, 0)]),
    # The gradient of an embedding is gathered within a condition, of which each device has its own.
    ([("cond/then/_0/c", 1, 0, 50), ("cond/then/_0/c_1", 1, 60, 90),
      ("cond_1/then/_18/c", 2, 10, 50), ("cond_1/then/_18/c_1", 2, 50, 90)], {},
     [(0, 10), (1, 0), (0, 0), (1, 10)]),
    # By the order of the names, in which 9 comes before 10, and not of the starts.
    ([(f"c_{i}", 1 + i % 2, i, 100) for i in range(8, 12)], {}, [(0, 1), (0, 0), (1, 1), (1, 0)]),
    # By a number in the graph.
    (MEMBERS, {name: {"instance": number} for name, number in PAIRS.items()}, WAITED),
    (MEMBERS, {name: {"shared": b"%d" % number} for name, number in PAIRS.items()}
     | {"op": "NcclAllReduce"}, WAITED),
    # It is not guessed: a third device is not there,
    ([("c", 1, 0, 50), ("c_1", 2, 30, 60)], {"size": 3}, None),
    # one was over before the other came, whose is the third, a loop,
    ([("c", 1, 0, 29), ("c_1", 2, 30, 60)], {}, None),
    ([("c", 1, 0, 60), ("c_1", 2, 30, 60), ("c_2", 2, 40, 70)], {}, None),
    ([("c", 1, 0, 60), ("c", 1, 70, 90), ("c_1", 2, 30, 60), ("c_1", 2, 80, 90)], {}, None),
    ([("c", 1, 0, 60), ("d", 2, 30, 60)], {}, None),
    # and it need not wait.
    ([("c", 1, 0, 60), ("c_1", 2, 30, 60)], {"op": "CollectiveBcastSendV2"}, None),
])  # fmt: skip
def test_who_meets_is_told_by_the_graph(members, more, wanted):
    got = together(*members, **more)
    assert [got[name] for name, *_ in members] == (wanted or [(None, None)] * len(members))


# ---- a step on a GPU, as TensorFlow writes it


def without(named):
    """Read a step of two GPUs without what the records have of devices so named."""
    metadata = gpu_step("2.21")
    stats = metadata.step_stats.dev_stats
    kept = [each for each in stats if not re.search(named, each.device)]
    del stats[:]
    stats.extend(kept)
    return read(metadata)


def in_us(op):
    return op.device, round(op.start * 1e6, 3), round(op.length * 1e6, 3)


@pytest.mark.parametrize("version", ["2.18", "2.21"])
def test_on_a_gpu_kernels_count_not_launches_nor_copies(version):
    metadata = gpu_step(version)
    latest = max(k.all_start_micros for d in metadata.step_stats.dev_stats
                 if d.device.endswith("/stream:all") for k in d.node_stats)  # fmt: skip
    assert (latest < 10_000) == (version == "2.18")  # from the profiler's start, not since 1970
    trace = read(metadata)  # the step begins 2,000 us after the profiler
    ops = {op.name: in_us(op) for op in trace.ops if op.type != "Sqrt"}
    assert ops == {
        "x": ("/CPU:0", 0, 2),
        "layer/MatMul": ("/GPU:0", 60, 3510),  # two kernels, and between them 10 us
        "layer/Relu": ("/GPU:0", 3571, 100),
        "shape": ("/GPU:0", 3671, 0),  # no kernel: done when what it needs is
        "flat": ("/GPU:0", 3671, 0),
        "loss": ("/GPU:0", 3680, 500),  # two kernels on two streams
        "twice": ("/CPU:0", 4300, 3),
    }
    loop = [in_us(op) for op in trace.ops if op.type == "Sqrt"]  # launched within 40 us
    assert loop == [("/GPU:1", 1000, 10), ("/GPU:1", 2000, 10), ("/GPU:1", 3000, 10)]
    assert trace.devices == ("/CPU:0", "/GPU:0", "/GPU:1") and trace.length * 1e6 == 4303
    assert trace.busy("/GPU:0") == pytest.approx(4100e-6)  # 3000 + 500 + 100 + 500 of two streams
    assert trace.busy("/GPU:1") == pytest.approx(30e-6)
    copies = {c.tensor: (c.source, c.target, c.bytes, round(c.start * 1e6)) for c in trace.copies}
    assert copies["loss"] == ("/GPU:0", "/CPU:0", 4, 4180) and not trace.launches_only


def test_a_trace_without_kernel_records_says_so():
    trace = without("^(?!/job)")  # what CUPTI saw
    assert trace.launches_only and "launches, not kernels" in repr(trace)
    assert {op.name: in_us(op) for op in trace.ops}["layer/MatMul"] == ("/GPU:0", 50, 12)
    assert trace.busy("/GPU:0") == pytest.approx(36e-6)


def test_a_kernel_of_no_operation_counts_where_only_one_device_can_have_run_it():
    trace = without("device:GPU:1$")  # "nccl", and three of an operation that is not there
    assert trace.devices == ("/CPU:0", "/GPU:0")
    assert len(trace.kernels["/GPU:0"]) == 5 + 4
    assert trace.busy("/GPU:0") == pytest.approx(4102e-6)  # the three ran beside the first product
    assert len(read(gpu_step("2.21")).kernels["/GPU:0"]) == 5  # of two shares, neither gets it


def test_on_a_gpu_tensors_count_as_asked_for_and_pinned_memory_on_the_host():
    metadata = gpu_step("2.21")
    records = [
        record.alloc_bytes for device in metadata.step_stats.dev_stats
        for node in device.node_stats for used in node.memory for record in used.allocation_records
    ]  # fmt: skip
    assert {1_000_192, 1_096_960, 256} < set(records)  # rounded, not split, rounded
    trace = read(metadata)
    assert {(a.op, a.device, a.bytes, a.scratch) for a in trace.allocations} == {
        ("layer/MatMul", "/GPU:0", 1_000_000, False),
        ("layer/MatMul", "/GPU:0", 16_128, True),  # what a workspace asked for nothing records
        ("layer/Relu", "/GPU:0", 1_000_004, False),
        ("shape", "/CPU:0", 20, False),  # in "gpu_host_bfc"
        ("loss", "/GPU:0", 4, False),
    }
    assert trace.peak("/GPU:0") == 2_000_004 and trace.memory["/GPU:0"][-1][1] == 1_000_008


def test_on_a_gpu_a_collective_lasts_until_the_host_heard_of_its_end():
    """NCCL's kernels carry no operation: with a length of 0 nobody would seem to have waited.

    Made by hand in the form that TensorFlow gave the records in data/: a card has a lane of all its
    kernels, the host launches everything in 100 us, and ends a collective when its kernel has
    ended. The second card computes three times as long. The first kernel changes the layout.
    """
    ran, kernels = [], {}
    for i, work in enumerate((1000, 3000)):
        back = f"tower_{i}/gradient_tape/conv/Conv2DBackpropFilter"
        layout = f"{back}-0-TransposeNHWCToNCHW-LayoutOptimizer"
        together, update = f"tower_{i}/NcclAllReduce", f"tower_{i}/update"
        ran += [(name, op, f"GPU:{i}", inputs, 50 * i + start, 50 * i + end)
                for name, op, inputs, start, end in (
            (layout, "Transpose", [], 0, 5), (back, "Conv2DBackpropFilter", [layout], 5, 10),
            (together, "NcclAllReduce", [back], 10, 7020), (update, "Sub", [together], 7030, 7035),
        )]  # fmt: skip
        kernels[f"/device:GPU:{i}/stream:all"] = [
            (f"{layout}:Transpose", 200, 100), (f"{back}:Conv2DBackpropFilter", 300, work),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 300 + work, 6700 - work),
            (f"{update}:Sub", 7100, 10),
        ]  # fmt: skip
    metadata = written(*ran)
    for lane, launched in kernels.items():
        stats = metadata.step_stats.dev_stats.add(device=lane).node_stats
        for name, start, us in launched:
            stats.add(node_name=name, all_start_micros=BEGIN + start, all_end_rel_micros=us)
    trace = read(metadata)
    for i, (device, work) in enumerate((("/GPU:0", 1000), ("/GPU:1", 3000))):
        ran = [in_us(op)[1:] for op in trace.ops if op.device == device]
        came = 300 + work
        assert ran == [(200, 100), (300, work), (came, 7020 + 50 * i - came), (7100, 10)]
        # What of it was waiting, a card cannot tell: its kernel runs all the time.
        assert trace.busy(device) == pytest.approx((7000 - 200 + 10) * 1e-6)
    assert [round(c.waited * 1e6) for c in trace.collectives] == [2000, 0]
    assert {layer(op.name) for op in trace.ops if "Transpose" in op.name} == {"conv"}


# ---- steps of a real GPU


@pytest.mark.parametrize("name, kernels, up", [
    ("step", {"/GPU:0": 66}, 128 * (28 * 28 * 4 + 8)),
    ("lstm", {"/GPU:0": 537}, 64 * (24 * 8 + 2) * 4),
    ("split", {"/GPU:0": 1643, "/GPU:1": 1049}, 64 * (32 * 32 * 3 * 4 + 8)),
])  # fmt: skip
def test_a_real_gpu_step_adds_up(name, kernels, up):
    trace = read(recorded(name))
    length = trace.length
    assert {gpu: len(each) for gpu, each in trace.kernels.items()} == kernels
    assert not trace.launches_only and trace.bytes_between()["/CPU:0", "/GPU:0"] == up
    assert trace.bytes_between()["/GPU:0", "/CPU:0"] == 4  # the loss
    for gpu, each in trace.kernels.items():
        assert all(0 <= start <= end <= length for start, end in each)
        held, most = trace.memory[gpu][-1][1], trace.peak(gpu, scratch=False)
        assert 0 <= held < 1e4 < most <= trace.peak(gpu)
        # Between the kernels of an operation a GPU does not work.
        (account,) = (each for each in whatif.explain(trace).accounts if each.device == gpu)
        assert account.worked == pytest.approx(trace.busy(gpu))
        waited = sum(wait.seconds for wait in account.waits)
        assert account.worked + waited == pytest.approx(length)
        # What launches no kernel, as a Reshape, takes no lane: a GPU's kernels come one by one.
        assert [where for where, _, bars in bars_of(trace, None) if bars].count(gpu) == 1
