"""The device plan: real logical CPUs in a fresh Python, GPUs through a fake `tf.config`.

TensorFlow is configured once per process. So functions called `child_...` run in a Python of their
own and print JSON, which the tests below them read; a context that is reset stands for a restart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_python
from mgpu_helpers import devices, nvml, towers, trace
from mgpu_helpers.devices import trial, visible

COUNTS = (1, 2, 4, 8)


def in_child(function, **env):
    code = f"import test_devices, json; print(json.dumps(test_devices.{function.__name__}()))"
    done = run_python(code, **env)
    return json.loads(done.stdout) | {"stderr": done.stderr}


def restart():
    """Forget the plan and TensorFlow's devices, as restarting the kernel does."""
    from tensorflow.python.eager import context

    devices.plan._plan = None
    if context.context()._initialized:
        context._reset_context()


def names(error, kind, *values):
    """Say whether what `said` gave is an error of this type that names these values."""
    return error.startswith(f"{kind}: ") and all(str(value) in error for value in values)


def said(call, *args, **kwargs):
    """Return what the call raises, as "ValueError: sentence"; else "fine"."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


# ---- cores mode, the real thing


def tf32_in_turn():
    """Say whether TF32 is on before and in blocks of `devices.tf32`, and after one that raises."""
    from tensorflow.config.experimental import tensor_float_32_execution_enabled as enabled

    seen = [enabled()]
    with devices.tf32():
        seen.append(enabled())
        with devices.tf32():
            pass
        seen.append(enabled())
    try:
        with devices.tf32():
            raise LookupError
    except LookupError:
        return [*seen, enabled()]


def child_cores():
    import tensorflow as tf

    report = {"tf32": {"import": tf.config.experimental.tensor_float_32_execution_enabled()}}
    for n in COUNTS:
        restart()
        plan = devices.setup(n)
        with tf.Graph().as_default() as graph:
            where = []
            for i, device in enumerate((plan.host, *plan.devices)):
                with tf.device(device):
                    where.append(tf.random.uniform([2], name=f"on_{i}"))
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        metadata = tf.compat.v1.RunMetadata()
        with tf.compat.v1.Session(graph=graph, config=plan.session_config()) as session:
            session.run(where, options=options, run_metadata=metadata)
            cpus = len(session.list_devices())
        placed = {
            node.name.partition("/")[0]: devices.short(node.device)
            for part in metadata.partition_graphs
            for node in part.node
            if node.op == "RandomUniform"
        }
        eager = []
        for device in plan.devices:
            with tf.device(device):
                eager.append(devices.short((tf.ones([2]) + 1).device))

        @tf.function
        def spread(names=plan.devices):
            for i, device in enumerate(names):
                with tf.device(device):
                    tf.random.uniform([2], name=f"on_{i + 1}")

        with trace.placement() as placed_function:
            spread()
        report[n] = {
            "host": plan.host,
            "devices": plan.devices,
            "made": [devices.short(d.name) for d in tf.config.list_logical_devices()],
            "intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "session cpus": cpus,
            "placed": placed,
            "eager": eager,
            "function": {
                row.name.partition("/")[0]: row.device
                for row in placed_function.rows
                if row.type == "RandomUniform"
            },
            "again": devices.setup(n) is plan and devices.current() is plan,
            "other": said(devices.setup, n + 1),
            "at once": {k: at_once(tf, plan, k) for k in {None, 1, n}},
        }
        if n == 2:
            report["mirrored"] = mirrored(tf, plan)
            report["options"] = options_of(plan)
            report["plan"] = {"text": repr(plan), "len": len(plan), "corner": plan.corner}
            report["processor"] = plan.machine
            report["tf32"]["plan"] = tf32_in_turn()
    return report


def at_once(tf, plan, used):
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


def mirrored(tf, plan):
    strategy = tf.distribute.MirroredStrategy(plan.devices)
    with strategy.scope():
        weight = tf.Variable([2.0])

    @tf.function
    def step():
        return strategy.run(lambda: weight * 3.0)

    with trace.placement() as placed:
        parts = strategy.experimental_local_results(step())
    where = [row.device for row in placed.rows if row.type == "Mul"]
    return [[float(part[0]) for part in parts], where]


def options_of(plan):
    plain = plan.session_config()
    config = plan.session_config(log_placement=True, soft_placement=True)
    return {
        "plain": [plain.log_device_placement, plain.allow_soft_placement],
        "asked": [config.log_device_placement, config.allow_soft_placement],
        "devices": {repr(k): said(plan.session_config, devices=k) for k in (0, 3, "x", True)},
    }


@pytest.fixture(scope="module")
def cores():
    return in_child(child_cores, MGPU_MODE="cores")


@pytest.mark.parametrize("n", COUNTS)
def test_cores_mode_gives_a_host_and_n_cpus(cores, n):
    seen = cores[str(n)]
    names = [f"/CPU:{i}" for i in range(1, n + 1)]
    assert seen["host"] == "/CPU:0" and seen["devices"] == names
    assert seen["made"] == ["/CPU:0", *names] and seen["session cpus"] == n + 1
    assert seen["intra"] == 1 and seen["inter"] == n
    assert seen["placed"] == {f"on_{i}": f"/CPU:{i}" for i in range(n + 1)}
    assert seen["eager"] == names
    assert seen["function"] == {f"on_{i}": f"/CPU:{i}" for i in range(1, n + 1)}


@pytest.mark.parametrize("n", COUNTS)
def test_a_session_runs_as_many_operations_at_once_as_devices_work(cores, n):
    assert cores[str(n)]["at once"] == {"null": n, "1": 1, str(n): n}


@pytest.mark.parametrize("n", COUNTS)
def test_setup_again(cores, n):
    assert cores[str(n)]["again"] is True
    assert names(cores[str(n)]["other"], "RuntimeError", f"with {n} dev", f"setup({n + 1})")


def test_mirrored_strategy_runs_on_the_plan(cores):
    assert cores["mirrored"] == [[6.0, 6.0], ["/CPU:1", "/CPU:2"]]


def test_session_options(cores):
    options = cores["options"]
    assert options["plain"] == [False, False]
    assert options["asked"] == [True, True]
    for value in ("0", "3", "'x'", "True"):
        error = options["devices"][value]
        assert names(error, "ValueError", f"devices={value} ", "1 to 2", "devices.setup")


def test_the_plan_prints_itself(cores):
    lines = cores["plan"]["text"].splitlines()
    machine, timing = lines.pop(4), lines.pop(4)
    assert lines == [
        "mode     cores: every device stands for one core of the CPU",
        "host     /CPU:0  the CPU",
        "devices  /CPU:1  one thread",
        "         /CPU:2  one thread",
    ]
    assert machine.startswith(f"machine  {cores['processor']}; ")
    assert timing.startswith("timing   2 devices on ")
    assert cores["plan"]["len"] == 2
    assert cores["plan"]["corner"] == f"cores mode · 2 devices · {cores['processor']}"


def test_setup_switches_tf32_off_and_a_block_on_and_back(cores):
    assert cores["tf32"] == {"import": True, "plan": [False, True, True, False]}


def test_timing_says_what_a_speedup_means():
    def timing(n, cores, mode="cores"):
        names = tuple(f"/CPU:{i + 1}" for i in range(n))
        return devices.Plan(mode, "/CPU:0", names, ("",) * n, cores, "m", "n").timing

    assert timing(1, 2) == (
        "one device on one core: there is nothing to speed up, add a device to compare"
    )
    for n, cores in ((2, 2), (2, 16)):
        assert timing(n, cores) == (
            f"{n} devices on {cores} cores: a speed-up measured here is real parallel work, "
            f"at most {n} times"
        )
    assert timing(4, 2) == (
        "4 devices on 2 cores: results are real, a timing beyond 2 devices shows nothing"
    )
    assert timing(2, 1).endswith("on 1 core: results are real, a timing beyond 1 device shows "
                                 "nothing")  # fmt: skip
    assert timing(2, 9, "gpus") == "2 devices, each a GPU: a speed-up measured here is real"
    assert timing(2, 9, "split-gpu").endswith("a speed-up is not")


# ---- what is refused, what the environment overrides, and GPUs


class FakeGpus:
    """Stands where TensorFlow would see GPUs: the `tf.config` functions that setup calls."""

    def __init__(self, patch, count, *, makes=None, capability=(7, 5)):
        import tensorflow as tf

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


def gpu_plan(n, count, *, makes=None, free=(), capability=(7, 5), answers=None, **env):
    """Set up n devices where TensorFlow sees so many GPUs; free memory in MiB.

    `answers` gives what a device raises at its first operation. Without it the operations run, on
    the CPU, as TensorFlow places softly what has no GPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # cores mode has set it
        for name, value in env.items():
            patch.setenv(name, value)
        cards = tuple(gpu(i, free=f and f * 2**20) for i, f in enumerate(free))
        patch.setattr(nvml, "query", lambda: nvml.DriverReport(cards, None, None, None))
        tried, really = [], trial._try

        def attempt(name):
            tried.append(name)
            if answers and name in answers:
                raise answers[name]
            really(name)

        patch.setattr(trial, "_try", attempt)
        restart()
        fake = FakeGpus(patch, count, makes=makes, capability=capability)
        error = said(devices.setup, n)
        plan = devices.current()
        result = {"error": error, "calls": fake.calls, "tried": tried}
        if plan:
            lines = repr(plan).splitlines()
            result |= {"mode": plan.mode, "devices": plan.devices, "real": plan.real}
            result |= {"machine": lines[-2 - bool(plan.float32)], "last": lines[-1]}
    return result


def child_trials():
    """Set up GPUs that answer their first operation as CUDA, cuDNN and TensorFlow do."""
    from tensorflow import errors

    from mgpu_helpers import quiet

    def answer(kind, message, capability):
        return gpu_plan(
            2, 2, capability=capability, answers={"/GPU:1": kind(None, None, message)}
        )["error"]  # fmt: skip

    quiet.start()
    return {
        "ptx": answer(errors.InternalError, "{{function_node __wrapped__MatMul}} 'cuLaunchKernel"
                      "(function)' failed with 'CUDA_ERROR_INVALID_PTX' [Op:MatMul]", (12, 0)),
        "driver": answer(errors.InternalError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided "
                         "PTX was compiled with an unsupported toolchain.", (9, 0)),
        "old": answer(errors.InternalError, "no kernel image is available for execution on the "
                      "device", (5, 0)),
        "volta": answer(errors.InternalError, "CUDNN_STATUS_ARCH_MISMATCH\nin cuda_dnn.cc", (7, 0)),
        "cudnn": answer(errors.InvalidArgumentError, "No DNN in stream executor. [Op:Conv2D]",
                        (8, 0)),
        "algorithm": answer(errors.NotFoundError, "No algorithm worked!", (8, 0)),
        "full": answer(errors.ResourceExhaustedError, "OOM when allocating tensor", (8, 0)),
        "other": answer(errors.UnknownError, "Something new.\nat line 3", (8, 0)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def trials():
    return in_child(child_trials)


def child_others():
    import tensorflow as tf

    from mgpu_helpers import quiet

    def asked(n, **env):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            restart()
            error = said(devices.setup, n)
            plan = devices.current()
            return [plan.mode, len(plan)] if plan else error

    quiet.start()
    report = {
        "bad": {repr(n): asked(n) for n in (0, -1, "two", 2.5, True, None, 1000)},
        "environment": [
            asked(2, MGPU_DEVICES="3", MGPU_MODE="cores"),
            asked(2, MGPU_DEVICES="", MGPU_MODE=""),
            asked(2, MGPU_DEVICES="many"),
            asked(2, MGPU_DEVICES="0"),
            asked(2, MGPU_MODE="gpu"),
            asked(2, MGPU_MODE="gpus"),
            asked(2, MGPU_MODE="split-gpu"),
        ],
        "order": os.environ["CUDA_DEVICE_ORDER"],
    }
    restart()
    tf.ones([2])
    report["late"] = said(devices.setup, 2)
    report["gpus"] = {
        "own": gpu_plan(2, 4),
        "one": gpu_plan(1, 1),
        "uneven": gpu_plan(3, 2, free=(6000, 9000)),
        "eight": gpu_plan(8, 4, free=(100000,) * 4),
        "ampere": gpu_plan(1, 1, capability=(8, 0)),
        "hidden": gpu_plan(2, 1, free=(9000, 400, 4000), CUDA_VISIBLE_DEVICES="2"),
        "fastest first": gpu_plan(
            3, 2, free=(9000, 2000), CUDA_DEVICE_ORDER="FASTEST_FIRST", CUDA_VISIBLE_DEVICES="0,1"
        ),
        "another count": gpu_plan(2, 1, free=(9000, 2000)),
        "mig": gpu_plan(2, 1, free=(80000,), CUDA_VISIBLE_DEVICES="MIG-1"),
        "not there": gpu_plan(1, 1, free=(9000, 9000), CUDA_VISIBLE_DEVICES="1,2"),
        "not there, cores": gpu_plan(
            1, 0, makes=["/device:CPU:1"], free=(9000,), CUDA_VISIBLE_DEVICES="7", MGPU_MODE="cores"
        ),
        "silent driver": gpu_plan(2, 1, free=(None,)),
        "full": gpu_plan(4, 1, free=(1000,)),
        "cores": gpu_plan(2, 2, makes=["/device:CPU:1", "/device:CPU:2"], MGPU_MODE="cores"),
        "split": gpu_plan(2, 2, free=(4000, 4000), MGPU_MODE="split-gpu"),
        "too few": gpu_plan(4, 2, MGPU_MODE="gpus"),
        "made less": gpu_plan(2, 2, makes=["/device:GPU:0"]),
        "made other": gpu_plan(2, 0, makes=["/device:CPU:1"]),
        "made more": gpu_plan(1, 1, makes=["/device:GPU:0", "/device:GPU:1"]),
    }
    return report


@pytest.fixture(scope="module")
def others():
    return in_child(child_others, MGPU_VERBOSE="1")


def test_a_number_that_cannot_be_planned_gets_a_sentence(others):
    bad = others["bad"]
    for n in ("0", "-1", "1000", "'two'", "2.5", "True", "None"):
        assert names(bad[n], "ValueError", f"n={n} ", "1 to 64")


def test_environment_overrides_the_plan(others):
    three, two, many, none, unknown, gpus, split = others["environment"]
    assert (three, two) == (["cores", 3], ["cores", 2])
    assert names(many, "ValueError", "MGPU_DEVICES='many' ", "1 to 64")
    assert names(none, "ValueError", "MGPU_DEVICES=0 ", "1 to 64")
    assert names(unknown, "ValueError", "MGPU_MODE='gpu' ", "gpus, split-gpu, cores")
    assert names(gpus, "RuntimeError", "MGPU_MODE=gpus with 2 devices", "0 GPUs", "unset")
    assert names(split, "RuntimeError", "MGPU_MODE=split-gpu with 2 devices", "0 GPUs", "unset")
    assert others["order"] == "PCI_BUS_ID"


def test_setup_after_tensorflow_has_started_gets_a_sentence(others):
    assert names(others["late"], "RuntimeError", "restart the kernel", "devices.setup(2)")


def test_gpus_mode_takes_whole_gpus_that_grow(others):
    own = others["gpus"]["own"]
    assert own["mode"] == "gpus" and own["devices"] == ["/GPU:0", "/GPU:1"]
    assert own["real"] == ["Fake 0", "Fake 1"]
    assert own["calls"] == [
        ["visible", ["0", "1"], "GPU"], ["growth", "0", True], ["growth", "1", True],
    ]  # fmt: skip
    assert own["machine"].startswith("machine  4 GPUs, ")
    assert others["gpus"]["one"]["mode"] == "gpus"


def test_split_gpu_shares_gpus_and_its_first_devices_are_on_different_ones(others):
    uneven = others["gpus"]["uneven"]
    limit = int(0.8 * 6000 / 2)
    assert uneven["mode"] == "split-gpu"
    assert uneven["devices"] == ["/GPU:0", "/GPU:2", "/GPU:1"]
    assert uneven["calls"] == [
        ["visible", ["0", "1"], "GPU"],
        ["parts", "GPU:0", [limit, limit]],
        ["parts", "GPU:1", [limit]],
    ]
    assert uneven["real"] == [
        f"{limit} MiB of Fake 0 no. 1, shared by 2 devices",
        f"{limit} MiB of Fake 1 no. 2",
        f"{limit} MiB of Fake 0 no. 1, shared by 2 devices",
    ]
    eight = others["gpus"]["eight"]
    assert [call[2] for call in eight["calls"][1:]] == [[4096, 4096]] * 4
    assert eight["devices"] == [f"/GPU:{i}" for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    of = [real.removeprefix("4096 MiB of Fake ")[0] for real in eight["real"]]
    assert of == ["0", "1", "2", "3"] * 2
    assert others["gpus"]["split"]["mode"] == "split-gpu"


@pytest.mark.parametrize("which, limit", [
    ("hidden", 1600),  # of the GPU that is shown, and not of the fullest of the machine
    ("fastest first", 800),  # whose memory is whose is not known: the fullest counts
    ("another count", 800),
    ("silent driver", 1024),
    ("mig", 1024),  # the driver says what the whole GPU has
])  # fmt: skip
def test_the_limit_is_a_share_of_the_memory_that_the_plan_can_use(others, which, limit):
    assert others["gpus"][which]["calls"][1] == ["parts", "GPU:0", [limit, limit]]


def test_too_little_memory_gets_a_sentence(others):
    error = others["gpus"]["full"]["error"]
    assert error.startswith("RuntimeError: 1000 MiB are free on GPU 0, too little for 4 devices of")
    assert "MGPU_MODE=cores" in error


def test_every_device_runs_something_before_there_is_a_plan(others):
    for which in ("own", "uneven", "cores"):
        plan = others["gpus"][which]
        assert plan["tried"] == plan["devices"]


def test_a_plan_says_tf32_is_off_where_the_gpus_have_it(others):
    assert others["gpus"]["ampere"]["last"].startswith("float32  TF32 is off")
    for which in ("own", "cores"):
        assert others["gpus"][which]["last"].startswith("timing")


def test_a_visible_device_that_is_not_there_is_said_before_tensorflow_starts(others):
    missing = others["gpus"]["not there"]
    assert missing["error"].startswith("RuntimeError: CUDA_VISIBLE_DEVICES='1,2' has '2'")
    assert "0, 1" in missing["error"] and missing["calls"] == []
    assert others["gpus"]["not there, cores"]["error"] == "fine"


@pytest.mark.parametrize("which, names, remedy", [
    ("ptx", ("/GPU:1, Fake 1, compute capability 12.0 ('cuLaunch", "INVALID_PTX"), "newest Tensor"),
    ("driver", ("driver", "capability 9.0", "UNSUPPORTED_PTX"), "CUDA 12.5 or newer, version 555"),
    ("old", ("compute capability 5.0", "no kernel image"), "an older TensorFlow"),
    ("volta", ("cuDNN", "7.0", "(CUDNN_STATUS_ARCH_MISMATCH)"), "'nvidia-cudnn-cu12<9.11'"),
    ("cudnn", ("cuDNN", "(No DNN in stream executor)"), "--upgrade nvidia-cudnn-cu12"),
    ("algorithm", ("cuDNN", "No algorithm worked"), "--upgrade nvidia-cudnn-cu12"),
    ("full", ("memory", "/GPU:1"), "nvidia-smi"),
    ("other", ("/GPU:1", "(Something new)"), "MGPU_MODE=cores"),
])  # fmt: skip
def test_a_gpu_that_cannot_run_gets_a_sentence(trials, which, names, remedy):
    error = trials[which]
    assert error.startswith("RuntimeError: ") and "\n" not in error and error.endswith(".")
    assert all(name in error for name in names) and remedy in error


def test_cores_mode_hides_the_gpus_that_are_there(others):
    cores = others["gpus"]["cores"]
    assert cores["mode"] == "cores" and cores["calls"][0] == ["visible", [], "GPU"]
    assert cores["machine"].endswith("; 2 GPUs not used (MGPU_MODE=cores)")
    late = [line for line in others["stderr"].splitlines() if "UserWarning" in line]
    assert len(late) == 1 and "2 GPUs" in late[0] and "devices.setup(2)" in late[0]


def test_a_tensorflow_that_makes_something_else_fails_loudly(others):
    gpus = others["gpus"]
    for which, asked, made in (
        ("made less", "/CPU:0, /GPU:0, /GPU:1 and", "made /CPU:0, /GPU:0:"),
        ("made other", "for /CPU:0", "made /CPU:0, /CPU:1"),
        ("made more", "/CPU:0, /GPU:0 and", "made /CPU:0, /GPU:0, /GPU:1:"),
    ):
        assert names(gpus[which]["error"], "RuntimeError", asked, made, "restart")
    assert names(gpus["too few"]["error"], "RuntimeError", "MGPU_MODE=gpus with 4 devices")
    assert "mode" not in gpus["made less"]


@pytest.mark.skipif(sys.platform != "linux", reason="TensorFlow starts in silence elsewhere")
def test_verbose_brings_tensorflows_own_messages_back(others):
    assert "oneDNN" in others["stderr"] or "CPU" in others["stderr"]


# ---- a TensorFlow that has started


def adopted(plan):
    return {
        "mode": plan.mode, "host": plan.host, "devices": plan.devices, "real": plan.real,
        "timing": plan.timing, "text": repr(plan), "corner": plan.corner,
        "again": devices.adopt() is plan and devices.current() is plan,
        "setup": said(devices.setup, 2),
    }  # fmt: skip


def child_adopted():
    import tensorflow as tf

    def cpus(count):
        restart()
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, parts)

    def gpus(limits):
        """Adopt a TensorFlow with a GPU for each list of limits, divided so; None: it is whole."""
        restart()
        with pytest.MonkeyPatch.context() as patch:
            fake, found = FakeGpus(patch, len(limits)), tf.config.list_physical_devices("GPU")
            fake.parts = {g.name: len(x or [0]) for g, x in zip(found, limits, strict=True)}
            parts = {
                g.name: x and [tf.config.LogicalDeviceConfiguration(memory_limit=m) for m in x]
                for g, x in zip(found, limits, strict=True)
            }
            patch.setattr(tf.config, "get_visible_devices", lambda kind: found)
            patch.setattr(
                tf.config, "get_logical_device_configuration", lambda gpu: parts[gpu.name]
            )
            return adopted(devices.adopt()) | {"calls": fake.calls}

    report = {}
    cpus(3)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.ones([2])
    report["cpus"] = adopted(devices.adopt())
    plan = devices.current()
    with tf.Graph().as_default(), tf.device("/CPU:2"):
        where = tf.random.uniform([2])
        with tf.compat.v1.Session(config=plan.session_config()) as session:
            session.run(where)
            listed = [devices.short(d.name) for d in session.list_devices()]
    config = plan.session_config()
    report["session"] = [listed, len(config.session_inter_op_thread_pool)]
    report["names"] = {
        name: said(devices.checked, [name])
        for name in ("/cpu:2", "CPU:0", "/CPU:3", "/gpu:0", "GPU:9", "/device:GPU:0", "CPU", "")
    }
    cpus(1)
    report["one"] = adopted(devices.adopt())  # which starts TensorFlow
    cpus(3)
    devices.setup(2)
    report["after setup"] = devices.adopt().mode
    report["names of setup"] = {
        name: said(devices.checked, [name])
        for name in ("/cpu:2", "CPU:0", "/CPU:3", "/gpu:0", "GPU:9", "/device:GPU:0", "CPU", "")
    }
    report["whole"] = gpus([None, None])
    report["parts"] = gpus([[512, 512], [1024]])
    return report


@pytest.fixture(scope="module")
def taken():
    return in_child(child_adopted, MGPU_MODE="cores")


def test_logical_cpus_are_adopted_with_the_threads_that_they_have(taken):
    cpus, one = taken["cpus"], taken["one"]
    assert (cpus["mode"], cpus["host"]) == ("adopted", "/CPU:0")
    assert cpus["devices"] == ["/CPU:1", "/CPU:2"]
    assert cpus["real"] == ["1 thread for an operation"] * 2
    assert "not against one core" in cpus["timing"]
    assert cpus["corner"].startswith("adopted mode · 2 devices · ")
    assert cpus["text"].startswith("mode     adopted: ") and cpus["timing"] in cpus["text"]
    assert (one["mode"], one["devices"]) == ("adopted", ["/CPU:0"])
    assert "nothing to speed up" in one["timing"]
    assert taken["session"] == [["/CPU:0", "/CPU:1", "/CPU:2"], 0]  # no threads of its own


def test_logical_gpus_are_adopted_and_nothing_is_configured(taken):
    whole, parts = taken["whole"], taken["parts"]
    assert whole["devices"] == ["/GPU:0", "/GPU:1"] and whole["real"] == ["Fake 0", "Fake 1"]
    assert "each a GPU" in whole["timing"] and "2 GPUs, " in whole["corner"]
    assert parts["devices"] == ["/GPU:0", "/GPU:1", "/GPU:2"]
    share = "512 MiB of Fake 0, shared by 2 devices"
    assert parts["real"] == [share, share, "1024 MiB of Fake 1"]
    assert parts["timing"].endswith("a speed-up is not")
    assert whole["calls"] == parts["calls"] == []


def test_adopt_and_setup_do_not_replace_each_other(taken):
    for which in ("cpus", "one", "whole"):
        assert taken[which]["again"] is True
        assert names(taken[which]["setup"], "RuntimeError", "devices.adopt", "devices.setup(2)")
    assert taken["after setup"] == "cores"


@pytest.mark.parametrize("which", ["names", "names of setup"])
def test_a_device_that_is_not_there_is_named_in_either_case(taken, which):
    found = taken[which]
    assert found.pop("/cpu:2") == found.pop("CPU:0") == "fine"
    for name, error in found.items():
        assert names(error, "ValueError", repr(name), "use /CPU:0, /CPU:1, /CPU:2.")


def test_devices_come_back_as_the_plan_writes_them(plan):
    import tensorflow as tf

    there = tf.config.list_logical_devices()
    full = "/job:localhost/replica:0/task:0/device:CPU:1"
    assert devices.checked([*there, full]) == ("/CPU:0", *plan.devices, "/CPU:1")
    for wrong in ("/CPU:1", [], [None], [7]):
        with pytest.raises(ValueError, match="no list of devices"):
            devices.checked(wrong)
    with pytest.raises(ValueError, match="job:worker"):
        devices.checked(["/job:worker/replica:0/task:0/device:CPU:1"])
    for place in (lambda: devices.placed("GPU:0"), lambda: towers.run(int, ["/gpu:0"]),
                  lambda: towers.average([[np.ones(2)]] * 2, device="/CPU:7")):  # fmt: skip
        with pytest.raises(ValueError, match="no device '(GPU:0|/gpu:0|/GPU:0|/CPU:7)'"):
            place()


def test_a_graph_of_a_session_with_devices_of_its_own_is_not_judged():
    code = (
        "import tensorflow as tf\nfrom mgpu_helpers import towers\n"
        "with tf.Graph().as_default():\n"
        "    out = towers.run(lambda x: tf.square(x), ['/CPU:1', '/CPU:2'], [1.0, 2.0])\n"
        "    config = tf.compat.v1.ConfigProto(device_count={'CPU': 3})\n"
        "    print(*tf.compat.v1.Session(config=config).run(out))\n"
    )
    assert run_python(code).stdout.split() == ["1.0", "4.0"]


# ---- names, and counting cores


@given(st.sampled_from(["CPU", "GPU", "TPU", "XLA_CPU"]), st.integers(0, 10**4), st.booleans())
def test_short_knows_every_way_to_write_a_device(kind, index, lower):
    written = f"{kind.lower() if lower else kind}:{index}"
    for before in ("", "/", "/device:", "/job:localhost/replica:0/task:0/device:",
                   "/job:worker/replica:0/task:3/"):  # fmt: skip
        assert devices.short(before + written) == f"/{kind}:{index}"


@given(st.text(max_size=30) | st.from_regex(r"[/a-zA-Z]+:[0-9a-z*]+(/[a-z:0-9]+)?"))
def test_short_gives_a_short_name_or_nothing(name):
    found = devices.short(name)
    assert found == "" or devices.short(found) == found
    assert isinstance(devices.order(found), tuple)


@pytest.mark.parametrize("name", [
    "", "/job:localhost", "/job:worker/replica:0/task:1", "/device:GPU:*", "CPU",
    "/device:GPU:0/stream:all", "/device:GPU:0/stream:14", "/device:GPU:0/memcpy",
])  # fmt: skip
def test_short_names_no_device_where_there_is_none(name):
    assert devices.short(name) == ""


def test_order_counts_as_people_do():
    names = ["/GPU:0", "/CPU:10", "", "/CPU:2", "/CPU:0"]
    assert sorted(names, key=devices.order) == ["", "/CPU:0", "/CPU:2", "/CPU:10", "/GPU:0"]


@pytest.mark.parametrize("quota, cores", [
    ("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1),
    ("9900000 100000", 8), ("nonsense", 8), (None, 8),
])  # fmt: skip
def test_cores_are_what_a_container_may_use(monkeypatch, quota, cores):
    def read_text(self):
        if quota is None:
            raise FileNotFoundError
        return quota + "\n"

    monkeypatch.setattr(devices.machine.Path, "read_text", read_text)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert devices.machine.cores.__wrapped__() == cores


def test_a_plan_cannot_be_changed():
    plan = devices.Plan("cores", "/CPU:0", ("/CPU:1",), ("one core",), 2, "m", "n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.mode = "gpus"


# ---- CUDA_VISIBLE_DEVICES

UUIDS = {0: "GPU-aa00", 1: "GPU-aa11", 2: None}


@pytest.mark.parametrize("text, named", [
    ("2,0", [2, 0]), (" 1 , 2,", [1, 2]), ("GPU-aa1,2", [1, 2]), ("0,-1,1", [0]), ("-1", []),
    ("", []), (" ", []), ("NoDevFiles", []), ("MIG-7e,MIG-GPU-aa00/1/0", ["MIG-7e",
    "MIG-GPU-aa00/1/0"]), ("01", [1]),
])  # fmt: skip
def test_what_is_named_is_read_as_cuda_reads_it(text, named):
    assert visible.named(text, UUIDS) == named


@pytest.mark.parametrize("text, entry", [
    ("0,3", "'3'"), ("GPU-bb", "'GPU-bb'"), ("GPU-aa", "'GPU-aa'"), ("0,,1", "''"),
    ("0;1", "'0;1'"), ("1,0,1", "'1' a second time"), ("0,GPU-aa00", "'GPU-aa00' a second time"),
    ("MIG-7,MIG-7", "'MIG-7' a second time"), ("none", "'none'"),
])  # fmt: skip
def test_an_entry_that_cuda_would_drop_is_named(text, entry):
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES=") as caught:
        visible.named(text, UUIDS)
    assert entry in str(caught.value)
    assert "a second time" in entry or "0, 1, 2" in str(caught.value)


def test_without_a_driver_nothing_is_said_of_what_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0,7")
    visible.check(nvml.DriverReport((), "No driver.", None, None))
    with pytest.raises(RuntimeError):
        visible.check(nvml.DriverReport((gpu(0),), None, None, None))


# ---- what a GPU's errors mean, and the first compilation


def test_an_error_of_a_step_on_a_lost_gpu_says_so(driver):
    from tensorflow import errors

    died = errors.InternalError(None, None, "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN")
    driver(gpu(0))
    assert devices.explain(died) == "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN."
    driver(gpu(0), dataclasses.replace(gpu(1), problem="GPU 1 has fallen off the bus: reboot."))
    assert devices.explain(died) == "GPU 1 has fallen off the bus: reboot."
    wrong = errors.InvalidArgumentError(None, None, "Matrix size-incompatible: [2,3], [2,3]\nmore")
    assert devices.explain(wrong) == "Matrix size-incompatible: [2,3], [2,3]."
    assert devices.explain(KeyError()) == "KeyError."


WHEEL = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]  # TensorFlow 2.21's


@pytest.mark.parametrize("capability, compiled", [
    ((6, 1), False), ((7, 5), False), ((8, 6), False), ((8, 9), False), ((9, 0), True),
    ((12, 0), True), (None, False),
])  # fmt: skip
@pytest.mark.parametrize("kept", [0, 2**21])
def test_the_first_compilation_is_said_once_and_before(
    monkeypatch, capsys, tmp_path, capability, compiled, kept
):
    import tensorflow as tf

    info = {"cuda_compute_capabilities": WHEEL}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: info)
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "cache"))
    (tmp_path / "cache" / "0").mkdir(parents=True)
    (tmp_path / "cache" / "0" / "kernel").write_bytes(bytes(kept))
    trial.announce([{"device_name": "NVIDIA X", "compute_capability": capability}] * 2)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.count("NVIDIA X is newer") == (compiled and not kept)
    assert str(tmp_path) in seen.err or not seen.err


def test_a_wheel_without_a_list_of_gpus_is_not_guessed_at(monkeypatch, capsys, tmp_path):
    import tensorflow as tf

    monkeypatch.setattr(tf.sysconfig, "get_build_info", dict)
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "nowhere"))
    trial.announce([{"compute_capability": (12, 0)}, {}])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("capability, ends, said", [
    ((12, 0), True, True), ((12, 0), False, False), ((9, 0), True, False), (None, True, False),
])  # fmt: skip
def test_xla_is_tried_where_the_gpu_is_newer_than_the_wheel(
    monkeypatch, capfd, tmp_path, capability, ends, said
):
    import tensorflow as tf

    info = {"cuda_compute_capabilities": WHEEL}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: info)
    ran = tmp_path / "ran"
    write = f"import os; open({str(ran)!r}, 'w'); os.write(2, b'LLVM')"
    monkeypatch.setattr(trial, "_XLA", f"{write}; {ends} and os.abort()")
    trial.try_xla([{"device_name": "NVIDIA X", "compute_capability": capability}, {}])
    seen = capfd.readouterr().err
    assert ("NVIDIA X" in seen and "jit_compile=False" in seen) == said and bool(seen) == said
    assert ran.exists() == (capability == (12, 0))


# ---- a driver that says what a test wants


def gpu(index, free=40):
    return nvml.Gpu(index, "GPU", f"GPU-{index}", None, 80, None, free, 0, None, None, None, ())


@pytest.fixture
def driver(monkeypatch):
    def lists(*gpus):
        monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(gpus, None, "570.1", "12.8"))

    return lists


def test_two_sessions_work_at_the_same_time(plan):
    import tensorflow as tf

    both = threading.Barrier(2)

    def wait():
        try:
            both.wait(timeout=5)
        except threading.BrokenBarrierError:
            return False
        return True

    met = []

    def run():
        with tf.Graph().as_default() as graph:
            tf.numpy_function(wait, [], tf.bool, name="wait")
        config = plan.session_config(devices=1)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            met.append(bool(session.run("wait:0")))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [True, True]
