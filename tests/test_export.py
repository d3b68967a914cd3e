"""A step in a file and in a table: everything survives, and Chrome's format is kept."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from mgpu_helpers import trace
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import Collective, Copy

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def step(plan):
    """Trace a step in which operations overlap, tensors cross both ways, and a loop runs."""
    import tensorflow as tf

    def function(x, w):
        halves = []
        for device in plan.devices:
            with tf.device(device), tf.name_scope("encoder"):
                halves.append(tf.matmul(x, w) + tf.nn.relu(tf.matmul(w, x)))
        with tf.device(plan.host):
            total = tf.add_n(halves)
            for _ in tf.range(3):
                total = tf.tanh(total)
        return tf.reduce_sum(total), halves[0]

    random = np.random.default_rng(0)
    arrays = [random.normal(size=(200, 200)).astype(np.float32) for _ in range(2)]
    return trace.function_step(function, *arrays)[1]


OVERLAP = Trace(
    (Op("a", "Add", "/CPU:1", 0.0, 4e-3, 8), Op("b", "Mul", "/CPU:1", 1e-3, 1e-3),
     Op("c", "Mul", "/CPU:1", 2e-3 - 1e-9, 3e-3), Op("late", "Neg", "/CPU:2", 6e-3, 1e-3),
     Op("early", "Abs", "/CPU:2", 5e-3, 4e-3)),
    (Copy("a:0", "/CPU:1", "/CPU:2", 8, 4e-3, 1e-3),),
    {"/CPU:1": ((0.0, 0), (1e-3, 8))},
    (("a", "late"), ("a", "early")),
    collectives=(Collective("b", "/CPU:1", 8, 1e-3, 1e-3),),
)  # fmt: skip


@pytest.fixture(scope="module", params=["run", "GPU", "overlap"])
def each(request, step):
    """Give a step that ran here, a record of one on two GPUs, which has kernels, and OVERLAP."""
    if request.param != "GPU":
        return step if request.param == "run" else OVERLAP
    from tensorflow.compat.v1 import RunMetadata

    metadata = RunMetadata()
    metadata.ParseFromString((DATA / "gpu_step_2.21.pb").read_bytes())
    made = trace.read(metadata)
    assert made.kernels and made.edges and made.allocations
    return made


def test_a_trace_survives_its_file(each, tmp_path):
    each.save(tmp_path / "step.json")
    again = trace.load(tmp_path / "step.json")
    assert again == each and again.length == each.length
    for device in each.devices:
        assert again.busy(device) == each.busy(device) and again.peak(device) == each.peak(device)
    assert [path.name for path in tmp_path.iterdir()] == ["step.json"]


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"format": 2}', "\x00", '{"traceEvents": []}', '{"format": 1, "ops": [[1]]}',
])  # fmt: skip
def test_another_file_gets_a_sentence_that_names_it(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="other.json"):
        trace.load(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "step.json"
    good = Trace((Op("a", "Add", "/CPU:1", 0.0, 1.0),), (), {}, ())
    good.save(path)
    with pytest.raises(ValueError):
        Trace((Op("a", "Add", "/CPU:1", 0.0, float("nan")),), (), {}, ()).save(path)
    assert trace.load(path) == good


@pytest.fixture
def events(each, tmp_path):
    each.chrome(tmp_path / "step.trace.json")
    found = json.loads((tmp_path / "step.trace.json").read_text())["traceEvents"]
    by_phase = defaultdict(list)
    for event in found:
        by_phase[event["ph"]].append(event)
    return by_phase


def test_chrome_gets_every_operation_and_none_that_overlap_in_a_thread(each, events):
    assert events.keys() <= {"M", "X", "C", "s", "f"}  # the format's names of what we write
    names = {event["pid"]: event["args"]["name"] for event in events["M"]
             if event["name"] == "process_name"}  # fmt: skip
    drawn = sorted((names[e["pid"]], e["name"], e["args"]["type"], e["ts"], e["args"]["bytes"])
                   for e in events["X"])  # fmt: skip
    assert drawn == sorted((op.device, op.name, op.type, round(op.start * 1e6, 3), op.bytes)
                           for op in each.ops)  # fmt: skip
    threads = defaultdict(list)
    for event in events["X"]:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in zip(spans, spans[1:], strict=False))
    total = sum(event["dur"] for event in events["X"])
    assert total == pytest.approx(1e6 * sum(op.length for op in each.ops), abs=0.002 * len(drawn))
    assert {e["args"]["layer"] for e in events["X"]} == {layer(op.name) for op in each.ops}


def test_chrome_gets_an_arrow_for_each_copy_that_is_used(each, events):
    assert each.copies and len(events["s"]) == len(events["f"])
    bars = [(e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"], e["name"]) for e in events["X"]]
    ends = {e["id"]: e for e in events["f"]}
    used = {(maker, user) for maker, user in each.edges}
    for start in events["s"]:
        end = ends.pop(start["id"])
        on = [[name for pid, tid, begin, stop, name in bars
               if (pid, tid) == (e["pid"], e["tid"]) and begin <= e["ts"] <= stop]
              for e in (start, end)]  # fmt: skip
        maker, user = start["name"].partition(":")[0], on[1]
        assert maker in on[0] and any((maker, each_user) in used for each_user in user)
        assert end["ts"] == min(e["ts"] for e in events["X"]
                                if e["pid"] == end["pid"] and (maker, e["name"]) in used)
        assert end["bp"] == "e" and start["ts"] <= end["ts"] and start["pid"] != end["pid"]
    assert not ends
    fed = {(maker, op.device) for maker, user in each.edges for op in each.ops if op.name == user}
    made = {(op.name, op.device) for op in each.ops}
    drawn = [c for c in each.copies if ((m := c.tensor.partition(":")[0]), c.target) in fed
             and (m, c.source) in made]  # fmt: skip
    assert sorted(c.bytes or 0 for c in drawn) == sorted(e["args"]["bytes"] or 0
                                                         for e in events["s"])  # fmt: skip


def test_chrome_gets_the_memory_as_counters(each, events):
    highest = defaultdict(int)
    names = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    for event in events["C"]:
        device = names[event["pid"]]
        highest[device] = max(highest[device], event["args"]["bytes"])
    assert highest == {device: each.peak(device) for device in each.memory}


BY_HAND = Trace((
    Op("encoder/a", "MatMul", "/CPU:1", 0.0, 0.004, 100),
    Op("encoder/b", "Relu", "/CPU:1", 0.004, 0.001, 50),
    Op("encoder/a", "MatMul", "/CPU:1", 0.005, 0.004, 100),
    Op("decoder/a", "MatMul", "/CPU:2", 0.0, 0.001, 10),
    Op("x", "Placeholder", "/CPU:0", 0.0, 0.0, 4),
), (Copy("encoder/a", "/CPU:1", "/CPU:2", 100, 0.004, 0.001),), {}, ())  # fmt: skip


@pytest.mark.parametrize("by, wanted", [
    ("operation", [("encoder/a", 0.8, 2, 200), ("decoder/a", 0.1, 1, 10), ("encoder/b", 0.1, 1, 50),
                   ("x", 0, 1, 4)]),
    ("layer", [("encoder", 0.9, 3, 250), ("decoder", 0.1, 1, 10), ("other", 0, 1, 4)]),
    ("type", [("MatMul", 0.9, 3, 210), ("Relu", 0.1, 1, 50), ("Placeholder", 0, 1, 4)]),
])  # fmt: skip
def test_top_adds_up_time_bytes_and_operations(by, wanted):
    full = BY_HAND.top(None, by=by)
    assert [(r.name, round(r.share, 9), r.count, r.bytes) for r in full] == wanted
    assert sum(row.seconds for row in full) == pytest.approx(0.010) and full.others == 0
    one = BY_HAND.top(1, by=by)
    assert one.rows == full.rows[:1] and one.others == len(wanted) - 1
    lines = repr(one).splitlines()
    assert lines[0].split()[0] == by and wanted[0][0] in lines[1] and len(lines) == 3
    assert f"{1 - wanted[0][1]:.1%}" in lines[2]
    if by == "type":
        assert full.rows[0].devices == ("/CPU:1", "/CPU:2")


def test_top_of_nothing_is_a_head_and_a_wrong_question_a_sentence():
    assert len(repr(Trace((), (), {}, ()).top()).splitlines()) == 1
    with pytest.raises(ValueError, match="'layers'"):
        BY_HAND.top(by="layers")
    with pytest.raises(ValueError, match="n=0"):
        BY_HAND.top(0)


def test_top_of_a_real_step_says_all_its_time(step):
    for by in ("operation", "layer", "type"):
        assert sum(row.share for row in step.top(None, by=by)) == pytest.approx(1)
    assert "MatMul" in {row.name for row in step.top(3, by="type")}
