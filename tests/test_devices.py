"""The device plan: real logical CPUs in a fresh Python, GPUs through a fake `tf.config`.

TensorFlow is configured once per process. So `child` runs in a Python of its own, where a context
that is reset stands for a restart, and prints JSON, which the tests read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_python
from mgpu_helpers import devices, nvml, towers
from mgpu_helpers._names import order
from mgpu_helpers.devices import machine, messages, trial
from mgpu_helpers.devices.plan import checked, placed

COUNTS = (1, 2, 4)


@pytest.fixture(scope="module")
def seen():
    done = run_python("import test_devices, json; print(json.dumps(test_devices.child()))")
    return json.loads(done.stdout) | {"stderr": done.stderr}


def child():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGPU_MODE", "cores")
        report = {"cores": cores(), "adopted": adoptions()}
    return report | {"asked": asked(), "gpus": gpus(), "trials": trials()}


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


def cores():
    import tensorflow as tf

    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    report = {"tf32": [enabled()]}
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
        report[n] = {
            "host": plan.host, "devices": plan.devices, "session cpus": cpus,
            "made": [devices.short(d.name) for d in tf.config.list_logical_devices()],
            "intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "placed": {
                node.name.partition("/")[0]: devices.short(node.device)
                for part in metadata.partition_graphs
                for node in part.node
                if node.op == "RandomUniform"
            },
            "again": devices.setup(n) is plan and devices.current() is plan,
            "other": said(devices.setup, n + 1),
            "at once": {k: at_once(tf, plan, k) for k in {None, 1, n}},
            "text": repr(plan),
        }  # fmt: skip
    for k in (0, 5, "x"):
        assert names(said(plan.session_config, devices=k), "ValueError", f"={k!r} ", "1 to 4")
    report["tf32"].append(enabled())
    with devices.tf32(), devices.tf32():
        report["tf32"].append(enabled())
    try:
        with devices.tf32():
            raise LookupError
    except LookupError:
        report["tf32"].append(enabled())
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


@pytest.mark.parametrize("n", COUNTS)
def test_cores_mode_gives_a_host_and_n_cpus(seen, n):
    plan = seen["cores"][str(n)]
    cpus = [f"/CPU:{i}" for i in range(1, n + 1)]
    assert plan["host"] == "/CPU:0" and plan["devices"] == cpus
    assert plan["made"] == ["/CPU:0", *cpus] and plan["session cpus"] == n + 1
    assert plan["intra"] == 1 and plan["inter"] == n
    assert plan["placed"] == {f"on_{i}": f"/CPU:{i}" for i in range(n + 1)}
    assert plan["at once"] == {"null": n, "1": 1, str(n): n}
    assert plan["again"] and names(plan["other"], "RuntimeError", f"setup({n + 1})")
    lines = plan["text"].splitlines()
    assert lines[0].startswith("mode     cores: ") and lines[2] == "devices  /CPU:1  one thread"
    assert [line[:9] for line in lines[-2:]] == ["machine  ", "timing   "]


def test_setup_switches_tf32_off_and_a_block_on_and_back(seen):
    assert seen["cores"]["tf32"] == [True, False, True, False]


@pytest.mark.parametrize("mode, n, cores, means", [
    ("cores", 1, 2, "nothing to speed up"), ("cores", 2, 2, "at most 2 times"),
    ("cores", 4, 2, "beyond 2 devices shows nothing"), ("gpus", 2, 9, "each a GPU"),
    ("split-gpu", 2, 9, "a speed-up is not"), ("adopted", 2, 9, "not against one core"),
])  # fmt: skip
def test_timing_says_what_a_speedup_means(mode, n, cores, means):
    kind = "CPU" if mode in ("cores", "adopted") else "GPU"
    made = tuple(f"/{kind}:{i + 1}" for i in range(n))
    assert means in devices.Plan(mode, "/CPU:0", made, ("",) * n, cores, "m", "n").timing


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
            result |= dataclasses.asdict(plan)
    return result


def asked():
    """Say what `setup` makes of numbers and of the environment, without a GPU."""
    import tensorflow as tf

    def outcome(n, **env):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            restart()
            error = said(devices.setup, n)
            plan = devices.current()
            return [plan.mode, len(plan)] if plan else error

    report = {
        "numbers": {repr(n): outcome(n) for n in (0, "two", 2.5, True, 1000)},
        "three": outcome(2, MGPU_DEVICES="3", MGPU_MODE="cores"),
        "empty": outcome(2, MGPU_DEVICES="", MGPU_MODE=""),
        "many": outcome(2, MGPU_DEVICES="many"),
        "gpu": outcome(2, MGPU_MODE="gpu"),
        "gpus": outcome(2, MGPU_MODE="gpus"),
        "split-gpu": outcome(2, MGPU_MODE="split-gpu"),
        "order": os.environ["CUDA_DEVICE_ORDER"],
    }
    restart()
    tf.ones([2])
    return report | {"late": said(devices.setup, 2)}


def gpus():
    two = ["/device:CPU:1", "/device:CPU:2"]
    return {
        "own": gpu_plan(2, 4),
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
            1, 0, makes=two[:1], free=(9000,), CUDA_VISIBLE_DEVICES="7", MGPU_MODE="cores"
        ),
        "silent driver": gpu_plan(2, 1, free=(None,)),
        "full": gpu_plan(4, 1, free=(1000,)),
        "cores": gpu_plan(2, 2, makes=two, MGPU_MODE="cores"),
        "split": gpu_plan(2, 2, free=(4000, 4000), MGPU_MODE="split-gpu"),
        "too few": gpu_plan(4, 2, MGPU_MODE="gpus"),
        "made less": gpu_plan(2, 2, makes=["/device:GPU:0"]),
        "made other": gpu_plan(2, 0, makes=two[:1]),
    }


def test_what_is_asked_for_is_a_number_and_a_mode_that_can_be(seen):
    asked = seen["asked"]
    for n, error in asked["numbers"].items():
        assert names(error, "ValueError", f"n={n} ", "1 to 64")
    assert (asked["three"], asked["empty"]) == (["cores", 3], ["cores", 2])
    assert names(asked["many"], "ValueError", "MGPU_DEVICES='many' ")
    assert names(asked["gpu"], "ValueError", "MGPU_MODE='gpu' ", "gpus, split-gpu, cores")
    for mode in ("gpus", "split-gpu"):
        assert names(asked[mode], "RuntimeError", f"MGPU_MODE={mode} with 2 devices", "0 GPUs")
    assert asked["order"] == "PCI_BUS_ID"
    assert names(asked["late"], "RuntimeError", "devices.adopt()", "devices.setup(2)")


def test_gpus_mode_takes_whole_gpus_that_grow(seen):
    own = seen["gpus"]["own"]
    assert own["mode"] == "gpus" and own["devices"] == ["/GPU:0", "/GPU:1"]
    assert own["real"] == ["Fake 0", "Fake 1"] and own["machine"].startswith("4 GPUs, ")
    assert own["calls"] == [
        ["visible", ["0", "1"], "GPU"], ["growth", "0", True], ["growth", "1", True],
    ]  # fmt: skip


def test_split_gpu_shares_gpus_and_its_first_devices_are_on_different_ones(seen):
    uneven = seen["gpus"]["uneven"]
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
    eight = seen["gpus"]["eight"]
    assert [call[2] for call in eight["calls"][1:]] == [[4096, 4096]] * 4
    assert eight["devices"] == [f"/GPU:{i}" for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    of = [real.removeprefix("4096 MiB of Fake ")[0] for real in eight["real"]]
    assert of == ["0", "1", "2", "3"] * 2
    assert seen["gpus"]["split"]["mode"] == "split-gpu"


@pytest.mark.parametrize("which, limit", [
    ("hidden", 1600),  # of the GPU that is shown, and not of the fullest of the machine
    ("fastest first", 800),  # whose memory is whose is not known: the fullest counts
    ("another count", 800),
    ("silent driver", 1024),
    ("mig", 1024),  # the driver says what the whole GPU has
])  # fmt: skip
def test_the_limit_is_a_share_of_the_memory_that_the_plan_can_use(seen, which, limit):
    assert seen["gpus"][which]["calls"][1] == ["parts", "GPU:0", [limit, limit]]


def test_every_device_runs_something_before_there_is_a_plan(seen):
    for which in ("own", "uneven", "cores"):
        plan = seen["gpus"][which]
        assert plan["tried"] == plan["devices"] and plan["float32"] == ""
    assert "TF32 is off" in seen["gpus"]["ampere"]["float32"]


@pytest.mark.parametrize("which, values", [
    ("full", ("1000 MiB are free on GPU 0", "4 devices")),
    ("not there", ("CUDA_VISIBLE_DEVICES='1,2'", "'2'", "0, 1")),
    ("too few", ("MGPU_MODE=gpus with 4 devices",)),
    ("made less", ("/CPU:0, /GPU:0, /GPU:1 and", "made /CPU:0, /GPU:0:")),
    ("made other", ("made /CPU:0, /CPU:1:",)),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_no_plan(seen, which, values):
    assert names(seen["gpus"][which]["error"], "RuntimeError", *values)
    assert "mode" not in seen["gpus"][which] and not seen["gpus"][which]["tried"]


def test_cores_mode_hides_the_gpus_that_are_there(seen):
    cores = seen["gpus"]["cores"]
    assert cores["mode"] == "cores" and cores["calls"][0] == ["visible", [], "GPU"]
    assert cores["note"] == "2 GPUs not used (MGPU_MODE=cores)"
    late = [line for line in seen["stderr"].splitlines() if "UserWarning" in line]
    assert len(late) == 1 and "2 GPUs" in late[0] and "devices.setup(2)" in late[0]
    assert seen["gpus"]["not there, cores"]["error"] == "fine"


# ---- a TensorFlow that has started


def adoptions():
    import tensorflow as tf

    def cpus(count):
        restart()
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, parts)

    def adopted():
        plan = devices.adopt()
        again = devices.adopt() is plan and devices.current() is plan
        more = {"timing": plan.timing, "again": again, "setup": said(devices.setup, 2)}
        return dataclasses.asdict(plan) | more

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
            return adopted() | {"calls": fake.calls}

    cpus(3)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.ones([2])
    report = {"cpus": adopted()}
    config = devices.current().session_config()
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        listed = [devices.short(d.name) for d in session.list_devices()]
    report["session"] = [listed, len(config.session_inter_op_thread_pool)]
    cpus(1)
    report["one"] = adopted()  # which starts TensorFlow
    cpus(3)
    devices.setup(2)
    report["after setup"] = devices.adopt().mode
    return report | {"whole": gpus([None, None]), "parts": gpus([[512, 512], [1024]])}


def test_logical_cpus_are_adopted_with_the_threads_that_they_have(seen):
    cpus, one = seen["adopted"]["cpus"], seen["adopted"]["one"]
    assert (cpus["mode"], cpus["host"]) == ("adopted", "/CPU:0")
    assert cpus["devices"] == ["/CPU:1", "/CPU:2"]
    assert cpus["real"] == ["1 thread for an operation"] * 2
    assert (one["mode"], one["devices"]) == ("adopted", ["/CPU:0"])
    # No threads of its own.
    assert seen["adopted"]["session"] == [["/CPU:0", "/CPU:1", "/CPU:2"], 0]


def test_logical_gpus_are_adopted_and_nothing_is_configured(seen):
    whole, parts = seen["adopted"]["whole"], seen["adopted"]["parts"]
    assert whole["devices"] == ["/GPU:0", "/GPU:1"] and whole["real"] == ["Fake 0", "Fake 1"]
    assert "each a GPU" in whole["timing"] and whole["machine"].startswith("2 GPUs, ")
    assert parts["devices"] == ["/GPU:0", "/GPU:1", "/GPU:2"]
    share = "512 MiB of Fake 0, shared by 2 devices"
    assert parts["real"] == [share, share, "1024 MiB of Fake 1"]
    assert parts["timing"].endswith("a speed-up is not")
    assert whole["calls"] == parts["calls"] == []


def test_adopt_and_setup_do_not_replace_each_other(seen):
    for which in ("cpus", "one", "whole"):
        plan = seen["adopted"][which]
        assert plan["again"] and names(plan["setup"], "RuntimeError", "devices.setup(2)")
    assert seen["adopted"]["after setup"] == "cores"


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
    "", "/job:localhost", "/job:worker/replica:0/task:1", "/device:GPU:*", "CPU",
    "/device:GPU:0/stream:all", "/device:GPU:0/stream:14", "/device:GPU:0/memcpy",
])  # fmt: skip
def test_short_names_no_device_where_there_is_none(name):
    assert devices.short(name) == ""


def test_order_counts_as_people_do():
    names = ["/GPU:0", "/CPU:10", "", "/CPU:2", "/CPU:0"]
    assert sorted(names, key=order) == ["", "/CPU:0", "/CPU:2", "/CPU:10", "/GPU:0"]


@pytest.mark.parametrize("quota, cores", [
    ("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), (None, 8),
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
    ("2,0", [2, 0]), (" 1 , 2,", [1, 2]), ("GPU-aa1,2", [1, 2]), ("0,-1,1", [0]), ("-1", []),
    ("", []), (" ", []), ("NoDevFiles", []), ("MIG-7e,MIG-GPU-aa00/1/0", ["MIG-7e",
    "MIG-GPU-aa00/1/0"]), ("01", [1]),
])  # fmt: skip
def test_what_is_named_is_read_as_cuda_reads_it(text, named):
    assert machine.named(text, UUIDS) == named


@pytest.mark.parametrize("text, entry", [
    ("0,3", "'3'"), ("GPU-bb", "'GPU-bb'"), ("GPU-aa", "'GPU-aa'"), ("0,,1", "''"),
    ("0;1", "'0;1'"), ("1,0,1", "'1' a second time"), ("0,GPU-aa00", "'GPU-aa00' a second time"),
    ("MIG-7,MIG-7", "'MIG-7' a second time"),
])  # fmt: skip
def test_an_entry_that_cuda_would_drop_is_named(text, entry):
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES=") as caught:
        machine.named(text, UUIDS)
    assert entry in str(caught.value)


def test_without_a_driver_nothing_is_said_of_what_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0,7")
    assert machine.check(nvml.DriverReport((), "No driver.", None, None)) == []
    with pytest.raises(RuntimeError):
        machine.check(nvml.DriverReport((gpu(0),), None, None, None))


# ---- what a GPU's errors mean, and the first compilation


def trials():
    """Set up GPUs that answer their first operation as CUDA, cuDNN and TensorFlow do."""
    from tensorflow import errors

    def answer(kind, message, capability):
        return gpu_plan(
            2, 2, capability=capability, answers={"/GPU:1": kind(None, None, message)}
        )["error"]  # fmt: skip

    return {
        "ptx": answer(errors.InternalError, "{{function_node __wrapped__MatMul}} 'cuLaunchKernel"
                      "(function)' failed with 'CUDA_ERROR_INVALID_PTX' [Op:MatMul]", (12, 0)),
        "driver": answer(errors.InternalError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided "
                         "PTX was compiled with an unsupported toolchain.", (9, 0)),
        "old": answer(errors.InternalError, "no kernel image is available for execution on the "
                      "device", (5, 0)),
        "volta": answer(errors.InternalError, "CUDNN_STATUS_ARCH_MISMATCH\nin cuda_dnn.cc", (7, 0)),
        "cudnn": answer(errors.InvalidArgumentError, "No DNN in stream executor. [Op:Conv2D]",
                        (7, 5)),
        "full": answer(errors.ResourceExhaustedError, "OOM when allocating tensor", (8, 0)),
        "other": answer(errors.UnknownError, "Something new.\nat line 3", (8, 0)),
    }  # fmt: skip


@pytest.mark.parametrize("which, named, remedy", [
    ("ptx", ("/GPU:1, Fake 1, compute capability 12.0 ('cuLaunch", "INVALID_PTX"), "newest Tensor"),
    ("driver", ("driver", "capability 9.0", "UNSUPPORTED_PTX"), "CUDA 12.5 or newer, version 555"),
    ("old", ("compute capability 5.0", "no kernel image"), "an older TensorFlow"),
    ("volta", ("cuDNN", "7.0", "(CUDNN_STATUS_ARCH_MISMATCH)"), "'nvidia-cudnn-cu12<9.11'"),
    ("cudnn", ("cuDNN", "(No DNN in stream executor)"), "--upgrade nvidia-cudnn-cu12"),
    ("full", ("memory", "/GPU:1"), "nvidia-smi"),
    ("other", ("/GPU:1", "(Something new)"), "MGPU_MODE=cores"),
])  # fmt: skip
def test_a_gpu_that_cannot_run_gets_a_sentence(seen, which, named, remedy):
    error = seen["trials"][which]
    assert names(error, "RuntimeError", *named, remedy) and "\n" not in error


def test_an_error_of_a_step_on_a_lost_gpu_says_so(monkeypatch):
    from tensorflow import errors

    def driver(*gpus):
        monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(gpus, None, "570.1", "12.8"))

    died = errors.InternalError(None, None, "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN")
    driver(gpu(0))
    assert devices.explain(died) == "Failed to enqueue async memcpy: CUDA_ERROR_UNKNOWN."
    driver(gpu(0), dataclasses.replace(gpu(1), problem="GPU 1 has fallen off the bus: reboot."))
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
    ((7, 0), 0, False), ((8, 6), 0, False), ((9, 0), 0, True), ((12, 0), 0, True),
    ((9, 0), 2**21, False), (None, 0, False),
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


def gpu(index, free=40):
    return nvml.Gpu(index, "GPU", f"GPU-{index}", None, 80, None, free, 0, None, None, None, ())


def test_two_sessions_work_at_the_same_time(plan):
    import tensorflow as tf

    both, met = threading.Barrier(2), []

    def wait():
        both.wait(timeout=20)
        return True

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
