"""A step in a file, in Perfetto and as a table of what took long."""

from __future__ import annotations

import json

import pytest

from gpu_graph import gpu_step
from mgpu_helpers import trace
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.records import Collective, Copy

OVERLAP = Trace(
    (Op("a", "Add", "/CPU:1", 0.0, 4e-3, 8), Op("b", "Mul", "/CPU:1", 1e-3, 1e-3),
     Op("m/c_1/c", "Mul", "/CPU:1", 2e-3 - 1e-9, 3e-3), Op("late", "Neg", "/CPU:2", 6e-3, 1e-3),
     Op("early", "Abs", "/CPU:2", 5e-3, 4e-3)),
    (Copy("a:0", "/CPU:1", "/CPU:2", 8, 4e-3, 1e-3), Copy("b", "/CPU:1", "/CPU:0", 4, 2e-3, 0.0)),
    {"/CPU:1": ((0.0, 0), (1e-3, 8)), "/CPU:3": ((0.0, 4),)},
    (("a", "late"), ("a", "early")),
    collectives=(Collective("b", "/CPU:1", 8, 1e-3, 1e-3),),
)  # fmt: skip


def test_a_trace_survives_its_file(tmp_path):
    """One of two GPUs, which has kernels and a loop, and one by hand."""
    for each in trace.read(gpu_step("2.21")), OVERLAP:
        each.save(tmp_path / "step.json")
        assert trace.load(tmp_path / "step.json") == each


@pytest.mark.parametrize("text", ["", '{"format": 2}', '{"format": 1, "ops": [[1]]}'])
def test_another_file_is_named(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="other.json"):
        trace.load(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "step.json"
    OVERLAP.save(path)
    with pytest.raises(ValueError):
        Trace((Op("a", "Add", "/CPU:1", 0.0, float("nan")),), (), {}, ()).save(path)
    assert trace.load(path) == OVERLAP


def test_chrome_gets_bars_in_lanes_arrows_and_counters(tmp_path):
    """As counted by hand, in microseconds; c starts a nanosecond before b ends."""
    OVERLAP.chrome(tmp_path / "step.trace.json")
    found = json.loads((tmp_path / "step.trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names == {1: "/CPU:1", 2: "/CPU:2", 3: "/CPU:3"}
    of = {kind: [e for e in found if e["ph"] == kind] for kind in "XsfC"}
    bars = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in of["X"]]
    assert bars == [(1, 1, "a", 0, 4000), (1, 2, "b", 1000, 1000),
                    (1, 3, "m/c_1/c", 1999.999, 3000), (2, 1, "late", 6000, 1000),
                    (2, 2, "early", 5000, 4000)]  # fmt: skip
    about = [e["args"] for e in of["X"]]
    assert about[0] == {"type": "Add", "layer": "other", "bytes": 8} and about[2]["layer"] == "m"
    arrows = [(e["bp"], e["id"], e["pid"], e["tid"], e["ts"], e["args"]["bytes"])
              for e in of["s"] + of["f"]]  # fmt: skip
    assert arrows == [("e", 1, 1, 1, 0, 8), ("e", 1, 2, 2, 5000, 8)]  # to the first use
    counters = [(e["pid"], e["ts"], e["args"]["bytes"]) for e in of["C"]]
    assert counters == [(1, 0, 0), (1, 1000, 8), (3, 0, 4)]


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


def test_top_of_nothing_is_a_head_and_a_wrong_question_a_sentence():
    assert len(repr(Trace((), (), {}, ()).top()).splitlines()) == 1
    assert BY_HAND.top(by="type").rows[0].devices == ("/CPU:1", "/CPU:2")
    for wrong, said in ({"by": "layers"}, "'layers'"), ({"n": 0}, "n=0"):
        with pytest.raises(ValueError, match=said):
            BY_HAND.top(**wrong)
