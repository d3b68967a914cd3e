"""Plans that need a TensorFlow of their own: `test_devices.py` runs these tests in a fresh Python.

TensorFlow is configured once per process. A context that is reset stands for a restart. The CPUs
are real; GPUs come from a fake `tf.config`.
"""

from __future__ import annotations

import contextlib
import gc
import os
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
    for used in (None, 1, n):
        config = plan.session_config(devices=used)
        (pool,) = config.session_inter_op_thread_pool  # without a name: the Session's own
        assert (pool.num_threads, pool.global_name) == (used or n, "")
        assert config.intra_op_parallelism_threads == 1
    with pytest.raises(ValueError, match=f"={n + 1} .* 1 to {n}"):
        plan.session_config(devices=n + 1)
    lines = repr(plan).splitlines()
    assert lines[0].startswith("mode     cores: ")
    assert lines[2] == "devices  /CPU:1  one thread for each operation"
    assert [line[:9] for line in lines[-2:]] == ["machine  ", "timing   "]


def test_setup_switches_tf32_off_where_it_is_asked_and_a_block_on_and_back(monkeypatch):
    monkeypatch.setenv("MGPU_MODE", "cores")
    plan = devices.setup(1)
    assert AT_FIRST and enabled()
    assert devices.setup(1, exact=True) is plan and not enabled()
    with contextlib.suppress(LookupError), devices.tf32():
        assert enabled()
        raise LookupError
    assert not enabled()


@pytest.mark.parametrize("n, env, many", [
    (2, {"MGPU_DEVICES": "3", "MGPU_MODE": ""}, 3), (None, {}, 2),
])  # fmt: skip
def test_the_environment_has_the_last_word_and_two_are_the_least(n, env, many, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    plan = devices.setup(n)
    assert (plan.mode, len(plan)) == ("cores", many) and devices.setup() is plan
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_tensorflow_that_has_started_is_not_set_up():
    tf.ones([2])
    refuses(RuntimeError, 2, "devices.adopt()", "devices.setup(2)")


# ---- GPUs


@pytest.fixture
def machine(monkeypatch):
    """Give a function that makes a machine where TensorFlow sees so many GPUs; free in MiB.

    It gives the calls that configure TensorFlow, and the devices that were tried. `limits` are
    those of the logical devices of each GPU that a notebook has set up. `answers` gives what a
    device raises at its first operation. Without it the operations run, on the CPU, as TensorFlow
    places softly what has no GPU.
    """

    def make(count, *, makes=None, free=(), capability=(7, 5), answers=(), limits=None, **env):
        fake, really = SimpleNamespace(calls=[], tried=[]), trial._try
        gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(count)]
        cpu = SimpleNamespace(name="/physical_device:CPU:0")
        found = {"GPU": gpus, "CPU": [cpu], None: [cpu, *gpus]}
        parts = dict(zip("0123", limits or [], strict=False))  # by the number of the GPU

        def show(shown, kind):
            parts.update({gpu.name[-1]: [None] for gpu in shown})
            fake.calls.append(" ".join(["show", *parts]))

        def configure(gpu, asked):
            if gpu is not cpu:
                parts[gpu.name[-1]] = sizes = [part.memory_limit for part in asked]
                fake.calls.append(" ".join([f"limit {gpu.name[-1]}:", *map(str, sizes)]))

        def logical():
            names = [f"/device:GPU:{i}" for i in range(sum(map(len, parts.values())))]
            return [SimpleNamespace(name=name) for name in ["/device:CPU:0", *(makes or names)]]

        def grow(gpu, on):
            fake.calls.append(f"grow {gpu.name[-1]}" * on)

        def details(gpu):
            return {"device_name": f"Fake {gpu.name[-1]}", "compute_capability": capability}

        def configured(gpu):
            return [tf.config.LogicalDeviceConfiguration(size) for size in parts[gpu.name[-1]]]

        def attempt(name):
            fake.tried.append(name)
            if name in answers:
                raise answers[name]
            really(name)

        for name, value in env.items():
            monkeypatch.setenv(name, value)
        cards = tuple(
            nvml.Gpu(i, "GPU", f"GPU-{i}", None, 80, None, f and f * 2**20, 0, *[None] * 3, ())
            for i, f in enumerate(free)
        )
        monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(cards, None, None, None))
        monkeypatch.setattr(trial, "_try", attempt)
        config = tf.config
        monkeypatch.setattr(config, "list_physical_devices", lambda kind=None: found[kind])
        monkeypatch.setattr(config, "get_visible_devices", found.get)
        monkeypatch.setattr(config, "set_visible_devices", show)
        monkeypatch.setattr(config, "set_logical_device_configuration", configure)
        monkeypatch.setattr(config, "get_logical_device_configuration", configured)
        monkeypatch.setattr(config, "list_logical_devices", logical)
        monkeypatch.setattr(config.experimental, "set_memory_growth", grow)
        monkeypatch.setattr(config.experimental, "get_device_details", details)
        return fake

    return make


@pytest.mark.parametrize("n, options, made, calls", [
    (2, {"count": 4}, "gpus 0 1", ["show 0 1", "grow 0", "grow 1"]),
    (None, {"count": 1}, "gpus 0", ["show 0", "grow 0"]),
    (None, {"count": 3, "MGPU_DEVICES": "2"}, "gpus 0 1", ["show 0 1", "grow 0", "grow 1"]),
    # The first devices are on different GPUs.
    (3, {"count": 2, "free": (6000, 9000)}, "split-gpu 0 2 1",
     ["show 0 1", "limit 0: 2400 2400", "limit 1: 2400"]),
    (2, {"count": 2, "free": (90000,) * 2, "MGPU_MODE": "split-gpu"}, "split-gpu 0 1",
     ["show 0 1", "limit 0: 4096", "limit 1: 4096"]),
    # Of the GPU that is shown, and not of the fullest of the machine.
    (2, {"count": 1, "free": (9000, 400, 4000), "CUDA_VISIBLE_DEVICES": "2"}, "split-gpu 0 1",
     ["show 0", "limit 0: 1600 1600"]),
    # Whose memory is whose is not known: the fullest counts.
    (3, {"count": 2, "free": (9000, 2000), "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
         "CUDA_VISIBLE_DEVICES": "0,1"}, "split-gpu 0 2 1",
     ["show 0 1", "limit 0: 800 800", "limit 1: 800"]),
    (2, {"count": 1, "free": (None,)}, "split-gpu 0 1", ["show 0", "limit 0: 1024 1024"]),
    # Of a MIG device the driver has the whole GPU's.
    (2, {"count": 1, "free": (80000,), "CUDA_VISIBLE_DEVICES": "MIG-1"}, "split-gpu 0 1",
     ["show 0", "limit 0: 1024 1024"]),
])  # fmt: skip
def test_gpus_are_taken_whole_or_shared(machine, n, options, made, calls):
    fake = machine(**options)
    plan = devices.setup(n)
    assert " ".join([plan.mode, *(name[-1] for name in plan.devices)]) == made
    assert fake.calls == calls and fake.tried == list(plan.devices)
    assert devices.setup(n) is plan


SHARED = "2400 MiB of Fake 0 no. 1, shared by 2 devices"


@pytest.mark.parametrize("n, exact, capability, real, float32", [
    (2, True, (7, 5), ("Fake 0", "Fake 1"), ""), (2, False, (8, 0), ("Fake 0", "Fake 1"), ""),
    (3, True, (8, 0), (SHARED, "2400 MiB of Fake 1 no. 2", SHARED), "TF32 is off"),
])  # fmt: skip
def test_a_plan_says_what_stands_behind_its_devices(machine, n, exact, capability, real, float32):
    machine(2, free=(6000, 9000), capability=capability)
    plan = devices.setup(n, exact=exact)
    assert plan.real == real and plan.machine.startswith("2 GPUs, ")
    assert float32 in plan.float32 and bool(float32) == bool(plan.float32)


@pytest.mark.parametrize("n, options, kind, values", [
    (0, {}, ValueError, ["n=0 ", "1 to 64"]),
    (2, {"MGPU_DEVICES": "many"}, ValueError, ["MGPU_DEVICES='many' "]),
    (2, {"MGPU_MODE": "gpu"}, ValueError, ["MGPU_MODE='gpu' ", "gpus, split-gpu, cores"]),
    (2, {"MGPU_MODE": "gpus"}, RuntimeError, ["MGPU_MODE=gpus with 2 devices", "0 GPUs"]),
    (4, {"count": 2, "MGPU_MODE": "gpus"}, RuntimeError, ["gpus with 4 devices", "2 GPUs"]),
    (4, {"count": 1, "free": (1000,)}, RuntimeError, ["1000 MiB are free on GPU 0", "4 devices"]),
    (1, {"count": 1, "free": (9000, 9000), "CUDA_VISIBLE_DEVICES": "1,2"}, RuntimeError,
     ["CUDA_VISIBLE_DEVICES='1,2'", "'2'", "0, 1"]),
    (2, {"count": 2, "makes": ["/device:GPU:0"]}, RuntimeError,
     ["/CPU:0, /GPU:0, /GPU:1 and", "made /CPU:0, /GPU:0:"]),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_no_plan(machine, n, options, kind, values):
    fake = machine(**{"count": 0} | options)
    refuses(kind, n, *values)
    assert not fake.tried


def test_cores_mode_hides_the_gpus_that_are_there(machine):
    makes = ["/device:CPU:1", "/device:CPU:2"]
    # What is named and not there does not matter.
    env = {"MGPU_MODE": "cores", "CUDA_VISIBLE_DEVICES": "7"}
    fake = machine(2, makes=makes, free=(9000,), **env)
    with pytest.warns(UserWarning, match=r"2 GPUs.*devices\.setup\(2\)"):
        plan = devices.setup(2)
    assert plan.mode == "cores" and fake.calls == ["show"]
    assert plan.note == "2 GPUs not used (MGPU_MODE=cores)"
    assert fake.tried == ["/CPU:1", "/CPU:2"] and os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


PTX = "{{function_node __wrapped__MatMul}} 'cuLaunchKernel(function)' failed with "
PTX += "'CUDA_ERROR_INVALID_PTX' [Op:MatMul]"


@pytest.mark.parametrize("message, capability, values", [
    (PTX, (12, 0), ["/GPU:1, Fake 1, compute capability 12.0 ('cuLaunch", "newest Tensor"]),
    ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: it was compiled with an unsupported toolchain.", (9, 0),
     ["driver", "capability 9.0", "UNSUPPORTED_PTX", "CUDA 12.5 or newer, version 555"]),
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
    ([[None], [None]], ("Fake 0", "Fake 1"), "each a GPU"),
    ([[512, 512], [1024]], ("512 MiB of Fake 0, shared by 2 devices",) * 2
     + ("1024 MiB of Fake 1",), "a speed-up is not"),
])  # fmt: skip
def test_logical_gpus_are_adopted_and_nothing_is_configured(machine, limits, real, timing):
    fake = machine(len(limits), limits=limits)
    plan = devices.adopt()
    assert plan.devices == tuple(f"/GPU:{i}" for i in range(len(real))) and plan.real == real
    assert timing in plan.timing and plan.machine.startswith("2 GPUs, ") and fake.calls == []
