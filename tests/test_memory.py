"""What a step holds: counts against sums by hand and real traces; a monitor that nothing stops."""

from __future__ import annotations

import threading
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_python, wait_for
from mgpu_helpers import devices, memory, nvml
from mgpu_helpers.lessons.pretend import pretend_gpus
from mgpu_helpers.memory import MemoryUse, Monitor
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.records import Allocation, curve

MB = 10**6
D = "/CPU:1"


# Traced


spans = st.tuples(st.integers(0, 6), st.none() | st.integers(0, 6), st.integers(1, 9))


@given(st.lists(spans, min_size=1))
def test_the_peak_is_the_largest_sum_of_what_lives_at_once(drawn):
    made = tuple(
        Allocation(f"op{i}", D, size, start, None if length is None else start + length)
        for i, (start, length, size) in enumerate(drawn)
    )
    trace = Trace((), (), {D: curve(made)}, (), made)
    live = [
        sum(a.bytes for a in made
            if a.start <= now and (a.end is None or a.end > now or a.start == now))
        for now in range(7)
    ]  # fmt: skip
    assert trace.peak(D) == trace.peak(D, scratch=False) == max(live)
    assert sum(a.bytes for a in memory.at_peak(trace, D)) == max(live)


def test_gradients_are_found_on_their_way_through_an_average():
    kinds = {
        "relu": "Relu", "back": "MatMul", "slope": "MatMul", "sum": "AddN", "mean": "Mul",
        "norm": "L2Loss", "train": "ResourceApplyAdam", "count": "AssignAddVariableOp",
    }  # fmt: skip
    flows = [("relu", "slope"), ("slope", "sum"), ("sum", "mean"), ("mean", "train"),
             ("back", "relu"), ("slope", "norm"), ("norm", "count")]  # fmt: skip
    waits = [("back", "train"), ("relu", "sum")]
    ops = tuple(Op(name, kind, D, 0, 1) for name, kind in kinds.items())
    made = [Allocation(name, D, 10**i, 0.0, 1.0) for i, name in enumerate(kinds)]
    made.append(Allocation("train", D, 10**8, 0.0, 0.5, scratch=True))
    trace = Trace(ops, (), {D: ((0.0, 111_111_111),)}, tuple(flows + waits), tuple(made),
                  tuple(waits))  # fmt: skip
    # norm flows into a counter, so it counts as one of its updates; what it was made from does not.
    assert memory.by_use(trace, D) == MemoryUse(0, 0, 11_111_100, 11, 100_000_000)
    with pytest.raises(ValueError):
        memory.by_use(trace, "/CPU:9")


# Watched


def test_a_monitor_asks_the_allocator_of_each_gpu(tf, plan, monkeypatch):
    made = devices.Plan("gpus", "/CPU:0", ("/GPU:0", "/GPU:1"), ("a", "b"), 2, "", "")
    monkeypatch.setattr(devices.plan, "_plan", made)
    said, asked = {"GPU:0": {"current": 5, "peak": 9}, "GPU:1": {"current": 6, "peak": 7}}, []
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", said.__getitem__)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", asked.append)
    with Monitor(60) as watched:
        pass
    # At first what is held, then the most since, which a step may have given back meanwhile.
    first, last = (sample.allocator for sample in watched.samples)
    assert (first, last) == ({"/GPU:0": 5, "/GPU:1": 6}, {"/GPU:0": 9, "/GPU:1": 7})
    assert asked == ["GPU:0", "GPU:1"] * 2


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mgpu-monitor"]


def test_a_monitor_sees_what_comes_and_goes():
    watched = Monitor(0.005)
    with pytest.raises(LookupError), watched:  # it stops then too, and keeps what it saw
        with watched.phase("full"):
            filled = np.ones(8 * MB)
            size, now = filled.nbytes, len(watched.samples)
            wait_for(lambda: len(watched.samples) >= now + 2)
        del filled
        raise LookupError
    assert not watching()
    assert watched.peak - watched.samples[0].process > 0.9 * size
    assert watched.samples[-1].process < watched.peak - 0.5 * size
    times = [sample.at for sample in watched.samples]
    assert times == sorted(times) and len(times) >= 4
    (phase,) = watched.phases
    assert phase.name == "full" and 0 < phase.start < phase.end < times[-1]


def report(used):
    blank = dict.fromkeys(nvml.Gpu.__dataclass_fields__)
    gpus = (nvml.Gpu(**blank | {"index": i, "memory_used": u}) for i, u in enumerate(used))
    return nvml.DriverReport(tuple(gpus), None if used else "gone.", None, None)


@pytest.mark.parametrize("fault, reason", [
    (report([]), "gone."),
    (OSError("it fell off"), "the driver does not answer any more: it fell off"),
])  # fmt: skip
def test_a_driver_that_fails_midway_does_not_stop_the_samples(monkeypatch, fault, reason):
    query = Mock(side_effect=[report([7, None]), report([8, 9]), fault])
    monkeypatch.setattr(nvml, "query", query)
    with Monitor(0.001) as watched:
        wait_for(lambda: len(watched.samples) >= 6)
    seen = [sample.driver for sample in watched.samples]
    assert seen[:3] == [{0: 7, 1: None}, {0: 8, 1: 9}, {0: None, 1: None}]
    assert seen[3:] == [seen[2]] * (len(seen) - 3)
    assert query.call_count == 3 and watched.reason == reason and not watching()


# GPUs that are not there


def test_tensorflows_rules_can_be_tried_without_a_gpu(tf, plan, monkeypatch):
    # The stand-in's card has 140 GB.
    card = replace(report([1]).gpus[0], memory_total=143_360 * 2**20)
    monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport((card,), None, None, None))
    grow = tf.config.experimental.set_memory_growth
    before = tf.config.list_physical_devices()
    with pretend_gpus(2) as (one, two):
        assert tf.config.list_physical_devices("GPU") == [one, two]
        grow(one, True)
        with pytest.raises(ValueError, match="Memory growth cannot differ between GPU devices"):
            tf.ones([])
        with pytest.raises(ValueError, match="GPU:0 grows, which does not go with a limit: "):
            memory.logical(one, [100])
        grow(one, False)
        with pytest.raises(ValueError, match="100000 . 43361 = 143361 MiB are more than "):
            memory.logical(one, [100_000, 43_361])
        memory.logical(one, [100_000, 43_360])
        limits = [d.memory_limit for d in tf.config.get_logical_device_configuration(one)]
        assert limits == [100_000, 43_360]
    with pytest.raises(ZeroDivisionError), pretend_gpus(1):
        raise ZeroDivisionError
    assert tf.config.list_physical_devices() == before
    with tf.device(plan.devices[0]):
        assert (tf.ones([2]) + 1).numpy().tolist() == [2, 2]


def test_a_monitor_is_used_once_and_pauses():
    watched = Monitor(60)
    with pytest.raises(RuntimeError, match="'early' is not watched"), watched.phase("early"):
        pass
    with watched, pytest.raises(RuntimeError, match="started before"), watched:
        pass
    assert not watching()
    with pytest.raises(RuntimeError, match="'late' is not watched"), watched.phase("late"):
        pass
    assert len(watched.samples) == 2 and not watched.phases
    for pause in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="every="):
            Monitor(pause)


def test_the_lab_takes_one_gpu_on_which_nobody_else_computes(driver):
    code = """
import os, runpy
lab = runpy.run_path("notebooks/scripts/hold_memory.py")
for os.environ["CUDA_VISIBLE_DEVICES"] in ("0,1,2", "1,2", "1", "MIG-0"):
    number = lab["free_gpu"]()
    print(number, lab["driver"](number) >> 30)
"""
    done = run_python(code, LD_LIBRARY_PATH=driver)
    assert done.stdout.splitlines() == ["0 1", "2 0", "None 0", "None 0"]
