"""The device plan: what it says, which devices there are, what errors of a GPU mean.

What configures TensorFlow stands in `devices_alone.py`, and runs in a Python of its own.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_python
from mgpu_helpers import devices, nvml, towers
from mgpu_helpers.devices import machine, messages, trial
from mgpu_helpers.devices.plan import checked, placed


def gpu(index, problem=None):
    return nvml.Gpu(index, "GPU", f"GPU-{index}", *[None] * 9, problem)


def test_plans_are_made_in_a_python_of_their_own():
    run_python("import pytest, sys; sys.exit(pytest.main(['-q', 'tests/devices_alone.py']))")


@pytest.mark.parametrize("mode, n, cores, means", [
    ("cores", 1, 2, "nothing to speed up"), ("cores", 2, 2, "at most 2 times"),
    ("cores", 4, 2, "beyond 2 devices shows nothing"), ("gpus", 2, 9, "each a GPU"),
    ("gpus", 1, 9, "nothing to speed up"),
    ("split-gpu", 2, 9, "a speed-up is not"), ("adopted", 2, 9, "not against one core"),
])  # fmt: skip
def test_timing_says_what_a_speedup_means(mode, n, cores, means):
    kind = "CPU" if mode in ("cores", "adopted") else "GPU"
    made = tuple(f"/{kind}:{i + 1}" for i in range(n))
    assert means in devices.Plan(mode, "/CPU:0", made, ("",) * n, cores, "m", "n").timing


# ---- which devices are there, and their names


def test_devices_come_back_as_the_plan_writes_them_and_others_are_named(plan):
    import tensorflow as tf

    there = tf.config.list_logical_devices()
    full = "/job:localhost/replica:0/task:0/device:CPU:1"
    written = ("/CPU:0", *plan.devices, "/CPU:1", "/CPU:2", "/CPU:0")
    assert checked([*there, full, "/cpu:2", "CPU:0"]) == written
    for wrong in ("/CPU:1", [], [None], [7]):
        with pytest.raises(ValueError, match="no list of devices"):
            checked(wrong)
    for name in ("/CPU:3", "/gpu:0", "CPU", "", "/job:worker/replica:0/task:0/device:CPU:1"):
        with pytest.raises(ValueError, match=f"'{name}'.* use /CPU:0, /CPU:1, /CPU:2"):
            checked([name])
    for place in (lambda: placed("GPU:0"), lambda: towers.run(int, ["/gpu:0"]),
                  lambda: towers.average([[1.0], [2.0]], device="/GPU:0")):  # fmt: skip
        with pytest.raises(ValueError, match="no device '(GPU:0|/gpu:0|/GPU:0)'"):
            place()


@given(st.sampled_from(["CPU", "GPU", "TPU", "XLA_CPU"]), st.integers(0, 10**4), st.booleans())
def test_short_knows_every_way_to_write_a_device(kind, index, lower):
    written = f"{kind.lower() if lower else kind}:{index}"
    for before in ("", "/", "/device:", "/job:localhost/replica:0/task:0/device:",
                   "/job:worker/replica:0/task:3/"):  # fmt: skip
        assert devices.short(before + written) == f"/{kind}:{index}"


@pytest.mark.parametrize("name", [
    "", "/job:worker/replica:0/task:1", "/device:GPU:*", "/device:GPU:0/stream:14",
])  # fmt: skip
def test_short_names_no_device_where_there_is_none(name):
    assert devices.short(name) == ""


@pytest.mark.parametrize("cluster, several", [
    ({"worker": ["a:1"], "ps": ["b:1"]}, False), ({"worker": ["a:1", "b:1"]}, True),
    ({"chief": ["a:1"], "worker": ["b:1"]}, True),
])  # fmt: skip
def test_a_plan_leaves_a_device_untried_where_several_workers_come_first(cluster, several):
    """Their strategy has to be made before TensorFlow starts, after which threads are fixed."""
    code = (
        "from mgpu_helpers import devices; import tensorflow as tf; devices.setup(2); "
        "tf.config.threading.set_inter_op_parallelism_threads(3)"
    )
    env = {"MGPU_MODE": "cores", "TF_CONFIG": json.dumps({"cluster": cluster})}
    said = run_python(code, check=False, **env).stderr
    assert ("cannot be modified after initialization" in said) != several


@pytest.mark.parametrize("quota, cores", [
    ("max 100000", 8), ("150000 100000", 2), ("40000 100000", 1), ("9900000 100000", 8), (None, 8),
])  # fmt: skip
def test_cores_are_what_a_container_may_use(monkeypatch, quota, cores):
    def read_text(self):
        if quota is None:
            raise FileNotFoundError
        return quota + "\n"

    monkeypatch.setattr(machine.Path, "read_text", read_text)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.cores.__wrapped__() == cores


# ---- CUDA_VISIBLE_DEVICES

UUIDS = {0: "GPU-aa00", 1: "GPU-aa11", 2: None}


@pytest.mark.parametrize("text, named", [
    (" 02 , 0,", [2, 0]), ("GPU-aa1,2", [1, 2]), ("0,-1,1", [0]), (" ", []), ("NoDevFiles", []),
    ("MIG-7e,MIG-GPU-aa00/1/0", ["MIG-7e", "MIG-GPU-aa00/1/0"]),
    ("0,3", "'3'"), ("GPU-aa", "'GPU-aa'"), ("0,,1", "''"), ("MIG-7,MIG-7", "'MIG-7' a second"),
    ("0,GPU-aa00", "'GPU-aa00' a second time"),
])  # fmt: skip
def test_what_is_named_is_read_as_cuda_reads_it_and_what_it_would_drop_is_said(text, named):
    if isinstance(named, list):
        assert machine.named(text, UUIDS) == named
    else:
        with pytest.raises(RuntimeError, match=f"CUDA_VISIBLE_DEVICES=.*{named}"):
            machine.named(text, UUIDS)


def test_without_a_driver_nothing_is_said_of_what_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0,7")
    assert machine.check(nvml.DriverReport((), "No driver.", None, None)) == []
    with pytest.raises(RuntimeError):
        machine.check(nvml.DriverReport((gpu(0),), None, None, None))


# ---- what a GPU's errors mean, and the first compilation


def test_an_error_of_a_step_on_a_lost_gpu_says_so(monkeypatch):
    from tensorflow import errors

    def driver(*gpus):
        monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(gpus, None, "570.1", "12.8"))

    died = errors.InternalError(None, None, "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN")
    driver(gpu(0))
    assert devices.explain(died) == "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN."
    driver(gpu(0), gpu(1, "GPU 1 has fallen off the bus: reboot."))
    assert devices.explain(died) == "GPU 1 has fallen off the bus: reboot."
    wrong = errors.InvalidArgumentError(None, None, "Matrix size-incompatible: [2,3], [2,3]\nmore")
    assert devices.explain(wrong) == "Matrix size-incompatible: [2,3], [2,3]."
    assert devices.explain(KeyError()) == "KeyError."


@pytest.fixture
def wheel(monkeypatch):
    """Let TensorFlow say what the wheel of 2.21 says of itself."""
    import tensorflow as tf

    info = {"cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: info)
    return info


@pytest.mark.parametrize("capability, kept, compiled", [
    ((8, 6), 0, False), ((9, 0), 0, False), ((12, 0), 0, True), ((12, 0), 2**21, False),
    (None, 0, False),
])  # fmt: skip
def test_the_first_compilation_is_said_once_and_before(
    wheel, monkeypatch, capsys, tmp_path, capability, kept, compiled
):
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "cache"))
    (tmp_path / "cache" / "0").mkdir(parents=True)
    (tmp_path / "cache" / "0" / "kernel").write_bytes(bytes(kept))
    trial.announce([{"device_name": "NVIDIA X", "compute_capability": capability}] * 2)
    error = capsys.readouterr().err
    assert error.count("NVIDIA X is newer") == compiled
    assert str(tmp_path) in error or not error
    wheel.clear()  # a wheel without a list of GPUs is not guessed at
    trial.announce([{"compute_capability": (12, 0)}, {}])
    assert capsys.readouterr().err == "" and messages.built_for() == []


@pytest.mark.parametrize("capability, ends, warned", [
    ((12, 0), True, True), ((12, 0), False, False), ((9, 0), True, False), (None, True, False),
])  # fmt: skip
def test_xla_is_tried_where_the_gpu_is_newer_than_the_wheel(
    wheel, monkeypatch, capfd, tmp_path, capability, ends, warned
):
    ran = tmp_path / "ran"
    write = f"import os; open({str(ran)!r}, 'w'); os.write(2, b'LLVM')"
    monkeypatch.setattr(trial, "_XLA", f"{write}; {ends} and os.abort()")
    trial.try_xla([{"device_name": "NVIDIA X", "compute_capability": capability}, {}])
    error = capfd.readouterr().err
    assert ("NVIDIA X" in error and "jit_compile=False" in error) == warned == bool(error)
    assert ran.exists() == (capability == (12, 0))


def test_two_sessions_work_at_the_same_time(plan):
    import tensorflow as tf

    both = threading.Barrier(2)

    def run(_):
        with tf.Graph().as_default() as graph:
            tf.numpy_function(lambda: both.wait(timeout=20) < 2, [], tf.bool, name="met")
        config = plan.session_config(devices=1)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            return session.run("met:0")

    with ThreadPoolExecutor() as pool:
        assert all(pool.map(run, range(2)))
