"""Plans that need a TensorFlow of their own: `test_devices.py` runs these tests in a fresh Python.

TensorFlow is configured once per process. A context that is reset stands for a restart. The CPUs
are real; GPUs come from a fake `tf.config`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow import errors
from tensorflow.python.eager import context

from mgpu_helpers import devices, nvml
from mgpu_helpers.devices import trial

gc.freeze()  # a restart looks for garbage, and there is none in what was imported
enabled = tf.config.experimental.tensor_float_32_execution_enabled
AT_FIRST = enabled()


def restart():
    """Forget the plan and TensorFlow's devices, as restarting the kernel does."""
    devices.plan._plan = None
    if context.context()._initialized:
        context._reset_context()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # cores mode has set it
    restart()


def refuses(kind, n, *values):
    """Let `setup` refuse n devices with an error of this type that names these values."""
    before = devices.current()
    with pytest.raises(kind) as caught:
        devices.setup(n)
    assert [value for value in values if value not in str(caught.value)] == []
    assert devices.current() is before


# ---- cores mode, the real thing


def at_once(plan, used):
    """Count how many operations a Session with this config runs at the same time."""
    running, most, changed = 0, 0, threading.Condition()

    def nap(x):
        nonlocal running, most
        with changed:
            running += 1
            most = max(most, running)
            changed.notify_all()
            changed.wait_for(lambda: most >= (used or len(plan.devices)), timeout=20)
        time.sleep(0.02)  # for one too many to come
        with changed:
            running -= 1
        return x

    with tf.Graph().as_default() as graph:
        naps = []
        for device in plan.devices * 2:
            with tf.device(device):
                naps.append(tf.numpy_function(nap, [tf.random.uniform([])], tf.float32))
    config = plan.session_config(devices=used)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run(naps)
    return most


@pytest.mark.parametrize("n", [1, 3])
def test_cores_mode_gives_a_host_and_n_cpus(n, monkeypatch):
    monkeypatch.setenv("MGPU_MODE", "cores")
    plan = devices.setup(n)
    cpus = tuple(f"/CPU:{i}" for i in range(1, n + 1))
    assert (plan.host, plan.devices) == ("/CPU:0", cpus)
    made = [devices.short(device.name) for device in tf.config.list_logical_devices()]
    assert made == ["/CPU:0", *cpus]
    assert tf.config.threading.get_intra_op_parallelism_threads() == 1
    assert tf.config.threading.get_inter_op_parallelism_threads() == n
    assert devices.setup(n) is plan and devices.current() is plan
    refuses(RuntimeError, n + 1, f"setup({n + 1})")
    assert {used: at_once(plan, used) for used in (None, 1, n)} == {None: n, 1: 1, n: n}
    with pytest.raises(ValueError, match=f"={n + 1} .* 1 to {n}"):
        plan.session_config(devices=n + 1)
    lines = repr(plan).splitlines()
    assert lines[0].startswith("mode     cores: ")
    assert lines[2] == "devices  /CPU:1  one thread for each operation"
    assert [line[:9] for line in lines[-2:]] == ["machine  ", "timing   "]


def test_a_session_places_on_the_devices_of_the_plan(monkeypatch):
    monkeypatch.setenv("MGPU_MODE", "cores")
    plan = devices.setup(2)
    with tf.Graph().as_default() as graph:
        for i, device in enumerate((plan.host, *plan.devices)):
            with tf.device(device):
                tf.random.uniform([2], name=f"on_{i}")
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=graph, config=plan.session_config()) as session:
        names = [f"on_{i}/RandomUniform:0" for i in range(3)]
        session.run(names, options=options, run_metadata=metadata)
        assert len(session.list_devices()) == 3
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    placed = {n.name: devices.short(n.device) for n in nodes if n.op == "RandomUniform"}
    assert placed == {f"on_{i}/RandomUniform": f"/CPU:{i}" for i in range(3)}


def test_setup_switches_tf32_off_and_a_block_on_and_back(monkeypatch):
    monkeypatch.setenv("MGPU_MODE", "cores")
    devices.setup(1)
    assert AT_FIRST and not enabled()
    with contextlib.suppress(LookupError), devices.tf32():
        assert enabled()
        raise LookupError
    assert not enabled()


@pytest.mark.parametrize("n, env, kind, values", [
    (0, {}, ValueError, ["n=0 ", "1 to 64"]),
    (True, {}, ValueError, ["n=True "]),
    (1000, {}, ValueError, ["n=1000 "]),
    (2, {"MGPU_DEVICES": "many"}, ValueError, ["MGPU_DEVICES='many' "]),
    (2, {"MGPU_MODE": "gpu"}, ValueError, ["MGPU_MODE='gpu' ", "gpus, split-gpu, cores"]),
    (2, {"MGPU_MODE": "gpus"}, RuntimeError, ["MGPU_MODE=gpus with 2 devices", "0 GPUs"]),
    (2, {"MGPU_MODE": "split-gpu"}, RuntimeError, ["MGPU_MODE=split-gpu with 2", "0 GPUs"]),
])  # fmt: skip
def test_what_is_asked_for_is_a_number_and_a_mode_that_can_be(n, env, kind, values, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    refuses(kind, n, *values)


def test_the_environment_has_the_last_word(monkeypatch):
    monkeypatch.setenv("MGPU_DEVICES", "3")
    monkeypatch.setenv("MGPU_MODE", "")
    plan = devices.setup(2)
    assert (plan.mode, len(plan), os.environ["CUDA_DEVICE_ORDER"]) == ("cores", 3, "PCI_BUS_ID")


def test_a_tensorflow_that_has_started_is_not_set_up():
    tf.ones([2])
    refuses(RuntimeError, 2, "devices.adopt()", "devices.setup(2)")


# ---- GPUs


class FakeGpus:
    """Stands where TensorFlow would see GPUs: the `tf.config` functions that setup calls."""

    def __init__(self, patch, count, *, makes=None, capability=(7, 5)):
        self.calls = []
        gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(count)]
        cpu = SimpleNamespace(name="/physical_device:CPU:0")
        self.parts = {}

        def show(found, kind):
            self.calls.append(["visible", [g.name[-1] for g in found], kind])
            self.parts = {g.name: 1 for g in found}

        def configure(device, parts):
            self.calls.append(["parts", device.name[-5:], [p.memory_limit for p in parts]])
            self.parts[device.name] = len(parts)

        def logical():
            names = ["/device:CPU:0"]
            if makes is None:
                names += [f"/device:GPU:{i}" for i in range(sum(self.parts.values()))]
            return [SimpleNamespace(name=name) for name in names + (makes or [])]

        def growth(gpu, on):
            self.calls.append(["growth", gpu.name[-1], on])

        def details(gpu):
            return {"device_name": f"Fake {gpu.name[-1]}", "compute_capability": capability}

        found = {"GPU": gpus, "CPU": [cpu], None: [cpu, *gpus]}
        patch.setattr(tf.config, "list_physical_devices", lambda kind=None: found[kind])
        patch.setattr(tf.config, "set_visible_devices", show)
        patch.setattr(tf.config, "set_logical_device_configuration", configure)
        patch.setattr(tf.config, "list_logical_devices", logical)
        patch.setattr(tf.config.experimental, "set_memory_growth", growth)
        patch.setattr(tf.config.experimental, "get_device_details", details)


@pytest.fixture
def machine(monkeypatch):
    """Give a function that makes a machine where TensorFlow sees so many GPUs; free in MiB.

    `answers` gives what a device raises at its first operation. Without it the operations run, on
    the CPU, as TensorFlow places softly what has no GPU.
    """

    def make(count, *, makes=None, free=(), capability=(7, 5), answers=(), **env):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        cards = tuple(gpu(i, f and f * 2**20) for i, f in enumerate(free))
        monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(cards, None, None, None))
        fake, really = FakeGpus(monkeypatch, count, makes=makes, capability=capability), trial._try
        fake.tried = []

        def attempt(name):
            fake.tried.append(name)
            if name in answers:
                raise answers[name]
            really(name)

        monkeypatch.setattr(trial, "_try", attempt)
        return fake

    return make


def gpu(index, free):
    return nvml.Gpu(index, "GPU", f"GPU-{index}", None, 80, None, free, 0, None, None, None, ())


def test_gpus_mode_takes_whole_gpus_that_grow(machine):
    fake = machine(4)
    plan = devices.setup(2)
    assert (plan.mode, plan.devices) == ("gpus", ("/GPU:0", "/GPU:1"))
    assert plan.real == ("Fake 0", "Fake 1") and plan.machine.startswith("4 GPUs, ")
    assert fake.calls == [
        ["visible", ["0", "1"], "GPU"], ["growth", "0", True], ["growth", "1", True],
    ]  # fmt: skip
    assert fake.tried == ["/GPU:0", "/GPU:1"] and plan.float32 == ""


@pytest.mark.parametrize("gpus, env, n", [(3, {}, 3), (1, {}, 1), (3, {"MGPU_DEVICES": "2"}, 2)])
def test_who_says_no_number_gets_all_gpus(machine, gpus, env, n):
    machine(gpus, **env)
    plan = devices.setup()
    assert (plan.mode, len(plan)) == ("gpus", n) and devices.setup() is plan


def test_who_says_no_number_gets_two_cores_without_a_gpu():
    plan = devices.setup()
    assert (plan.mode, len(plan)) == ("cores", 2) and devices.setup() is plan


def test_split_gpu_shares_gpus_and_its_first_devices_are_on_different_ones(machine):
    fake = machine(2, free=(6000, 9000))
    plan, limit = devices.setup(3), int(0.8 * 6000 / 2)
    assert (plan.mode, plan.devices) == ("split-gpu", ("/GPU:0", "/GPU:2", "/GPU:1"))
    assert fake.calls == [
        ["visible", ["0", "1"], "GPU"],
        ["parts", "GPU:0", [limit, limit]],
        ["parts", "GPU:1", [limit]],
    ]
    shared = f"{limit} MiB of Fake 0 no. 1, shared by 2 devices"
    assert plan.real == (shared, f"{limit} MiB of Fake 1 no. 2", shared)
    assert fake.tried == list(plan.devices)


def test_a_share_is_4_gib_at_most_and_from_ampere_on_tf32_is_named(machine):
    fake = machine(2, free=(90000, 90000), capability=(8, 0), MGPU_MODE="split-gpu")
    plan = devices.setup(2)
    assert plan.mode == "split-gpu" and [call[2] for call in fake.calls[1:]] == [[4096]] * 2
    assert "TF32 is off" in plan.float32


@pytest.mark.parametrize("limit, n, count, free, env", [
    # Of the GPU that is shown, and not of the fullest of the machine.
    (1600, 2, 1, (9000, 400, 4000), {"CUDA_VISIBLE_DEVICES": "2"}),
    # Whose memory is whose is not known: the fullest counts.
    (800, 3, 2, (9000, 2000),
     {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "0,1"}),
    (800, 2, 1, (9000, 2000), {}),
    (1024, 2, 1, (None,), {}),
    (1024, 2, 1, (80000,), {"CUDA_VISIBLE_DEVICES": "MIG-1"}),  # the driver has the whole GPU's
])  # fmt: skip
def test_the_limit_is_a_share_of_the_memory_that_the_plan_can_use(
    machine, limit, n, count, free, env
):
    fake = machine(count, free=free, **env)
    devices.setup(n)
    assert fake.calls[1] == ["parts", "GPU:0", [limit, limit]]


@pytest.mark.parametrize("n, options, values", [
    (4, {"count": 1, "free": (1000,)}, ["1000 MiB are free on GPU 0", "4 devices"]),
    (1, {"count": 1, "free": (9000, 9000), "CUDA_VISIBLE_DEVICES": "1,2"},
     ["CUDA_VISIBLE_DEVICES='1,2'", "'2'", "0, 1"]),
    (4, {"count": 2, "MGPU_MODE": "gpus"}, ["MGPU_MODE=gpus with 4 devices", "2 GPUs"]),
    (2, {"count": 2, "makes": ["/device:GPU:0"]},
     ["/CPU:0, /GPU:0, /GPU:1 and", "made /CPU:0, /GPU:0:"]),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_no_plan(machine, n, options, values):
    fake = machine(**options)
    refuses(RuntimeError, n, *values)
    assert not fake.tried


def test_cores_mode_hides_the_gpus_that_are_there(machine):
    makes = ["/device:CPU:1", "/device:CPU:2"]
    # What is named and not there does not matter.
    env = {"MGPU_MODE": "cores", "CUDA_VISIBLE_DEVICES": "7"}
    fake = machine(2, makes=makes, free=(9000,), **env)
    with pytest.warns(UserWarning, match=r"2 GPUs.*devices\.setup\(2\)"):
        plan = devices.setup(2)
    assert plan.mode == "cores" and fake.calls[0] == ["visible", [], "GPU"]
    assert plan.note == "2 GPUs not used (MGPU_MODE=cores)"
    assert fake.tried == ["/CPU:1", "/CPU:2"] and os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


PTX = "{{function_node __wrapped__MatMul}} 'cuLaunchKernel(function)' failed with "
PTX += "'CUDA_ERROR_INVALID_PTX' [Op:MatMul]"


@pytest.mark.parametrize("message, capability, values", [
    (PTX, (12, 0), ["/GPU:1, Fake 1, compute capability 12.0 ('cuLaunch", "newest Tensor"]),
    ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: it was compiled with an unsupported toolchain.", (9, 0),
     ["driver", "capability 9.0", "UNSUPPORTED_PTX", "CUDA 12.5 or newer, version 555"]),
    ("no kernel image is available for execution on the device", (5, 0),
     ["compute capability 5.0", "no kernel image", "an older TensorFlow"]),
    ("CUDNN_STATUS_ARCH_MISMATCH\nin cuda_dnn.cc", (7, 0),
     ["cuDNN", "7.0", "(CUDNN_STATUS_ARCH_MISMATCH)", "'nvidia-cudnn-cu12<9.11'"]),
    ("No DNN in stream executor. [Op:Conv2D]", (7, 5),
     ["(No DNN in stream executor)", "--upgrade nvidia-cudnn-cu12"]),
    ("No blas support for stream name [Op:MatMul]", (9, 0),
     ["cuBLAS", "(No blas support for stream name)", "memory"]),
    ("Something new.\nat line 3", (8, 0), ["/GPU:1", "(Something new)", "MGPU_MODE=cores"]),
])  # fmt: skip
def test_a_gpu_that_cannot_run_gets_a_sentence(machine, message, capability, values):
    error = errors.InternalError(None, None, message)
    machine(2, capability=capability, answers={"/GPU:1": error})
    with pytest.raises(RuntimeError) as caught:
        devices.setup(2)
    said = str(caught.value)
    assert [value for value in values if value not in said] == [] and "\n" not in said


# ---- a TensorFlow that has started


def cpus(count):
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)


def test_logical_cpus_are_adopted_with_the_threads_that_they_have():
    cpus(3)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.ones([2])
    plan = devices.adopt()
    assert (plan.mode, plan.host, plan.devices) == ("adopted", "/CPU:0", ("/CPU:1", "/CPU:2"))
    assert plan.real == ("1 thread for an operation",) * 2
    config = plan.session_config()
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        listed = [devices.short(device.name) for device in session.list_devices()]
    assert listed == ["/CPU:0", *plan.devices]
    assert len(config.session_inter_op_thread_pool) == 0  # no threads of its own
    assert devices.adopt() is plan and devices.current() is plan
    refuses(RuntimeError, 2, "devices.setup(2)")


def test_a_single_cpu_is_adopted_and_a_plan_of_setup_stays(monkeypatch):
    cpus(1)
    plan = devices.adopt()  # which starts TensorFlow
    assert (plan.mode, plan.devices) == ("adopted", ("/CPU:0",))
    restart()
    monkeypatch.setenv("MGPU_MODE", "cores")
    plan = devices.setup(2)
    assert devices.adopt() is plan


@pytest.mark.parametrize("limits, real, timing", [
    ([None, None], ("Fake 0", "Fake 1"), "each a GPU"),
    ([[512, 512], [1024]], ("512 MiB of Fake 0, shared by 2 devices",) * 2
     + ("1024 MiB of Fake 1",), "a speed-up is not"),
])  # fmt: skip
def test_logical_gpus_are_adopted_and_nothing_is_configured(monkeypatch, limits, real, timing):
    fake, found = FakeGpus(monkeypatch, len(limits)), tf.config.list_physical_devices("GPU")
    fake.parts = {g.name: len(x or [0]) for g, x in zip(found, limits, strict=True)}
    parts = {
        g.name: x and [tf.config.LogicalDeviceConfiguration(memory_limit=m) for m in x]
        for g, x in zip(found, limits, strict=True)
    }
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: found)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: parts[gpu.name])
    plan = devices.adopt()
    assert plan.devices == tuple(f"/GPU:{i}" for i in range(len(real))) and plan.real == real
    assert timing in plan.timing and plan.machine.startswith("2 GPUs, ") and fake.calls == []
