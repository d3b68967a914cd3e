"""Clusters as real processes: every fault a worker can have, and the end of a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import test_jobs
from conftest import ROOT, later, lives, run_python, wait_for
from mgpu_helpers import cluster, jobs, nvml
from mgpu_helpers._processes import locks
from mgpu_helpers.cluster import addresses, judging, probing

SCRIPTS = ROOT / "notebooks" / "scripts"

# A worker that does what TensorFlow's do, without TensorFlow: it listens on its port, keeps a line
# to the chief, and fails with TensorFlow's words when another one is lost. Its first argument is
# what worker 1 does in the midst of attempt 0.
WORKER = r"""
import atexit, json, os, signal, socket, sys, threading, time
config = json.loads(os.environ["TF_CONFIG"])
index, workers = config["task"]["index"], config["cluster"]["worker"]
attempt, fault, steps = os.environ["MGPU_ATTEMPT"], *sys.argv[1:], 10
server = socket.create_server(("", int(workers[index].split(":")[1])))
lines = {}
if index == 0:
    for _ in workers[1:]:
        line = server.accept()[0]
        lines[ord(line.recv(1))] = line
else:
    while not lines:
        try:
            lines[0] = socket.create_connection(("127.0.0.1", int(workers[0].split(":")[1])))
        except ConnectionRefusedError:
            time.sleep(0.02)
    lines[0].sendall(bytes([index]))
for line in lines.values():  # so that the chief is the first to miss one that has stopped
    line.settimeout(2.0 if index == 0 and "STOP" in fault else 60.0)
print(f"I0000 00:00:1795329567.626250   25676 port.cc:153] TensorFlow says {os.getpid()}")
done = int(open(f"{index}.step").read()) if os.path.exists(f"{index}.step") else 0
for step in range(done, steps):
    if (step, index, attempt) == (5, 1, "0"):
        exec(fault)
    time.sleep(0.02)
    try:
        for i, line in lines.items():
            line.sendall(b"x")
            if not line.recv(1):
                raise ConnectionResetError
    except OSError:
        raise RuntimeError(
            "The following tasks are unhealthy (stopped sending heartbeats):\n"
            f"/job:worker/replica:0/task:{i}") from None
    open(f"{index}.new", "w").write(str(step + 1))
    os.rename(f"{index}.new", f"{index}.step")
print(json.dumps({"steps": steps, "attempt": attempt, "began": done}))
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
# One that goes on until it is ended, and does not heed SIGTERM; so does what it has started.
DEAF = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
name = os.environ["TF_CONFIG"][-3]
open(f"{name}.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(f"{name}.new", f"{name}.pids")
time.sleep(60)
"""


here, never_hangs, hour = test_jobs.here, test_jobs.never_hangs, test_jobs.hour


@pytest.fixture(autouse=True)
def scripts(here, monkeypatch):
    """Give each test the scripts, in its folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    Path("worker.py").write_text(WORKER)
    Path("deaf.py").write_text(DEAF)


def config(hosts, index=0, kind="worker"):
    return {"cluster": {"worker": hosts}, "task": {"type": kind, "index": index}}


def run(code, *args, **options):
    """Run this code as all workers, without a word."""
    Path("script.py").write_text(code)
    return cluster.run("script.py", args, **{"progress": False} | options)


# --- all is well ---


@pytest.mark.parametrize("more", [False, True])
def test_each_worker_is_told_who_and_where_it_is(here, more, monkeypatch):
    Path("folder").mkdir()
    Path("folder/beside.py").write_text("here = True")
    Path("folder/tell.py").write_text(
        "import json, os, sys, beside\n"
        "names = 'TF_CONFIG', 'MGPU_ATTEMPT', 'CUDA_VISIBLE_DEVICES', 'no_proxy', 'no_grpc_proxy'\n"
        "print(json.dumps([__name__, __file__, sys.argv, sorted(os.sched_getaffinity(0)),\n"
        "                  [os.environ[name] for name in names]]))"
    )
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "example.org")
    cores = jobs.allowed()[1]
    workers = len(cores) + 1 if more else 2  # more than cores have all cores in common
    report = cluster.run("folder/tell.py", ["--x", "1"], workers=workers, logs="out",
                         progress=False)  # fmt: skip
    assert report.ok and len(report) == workers and len(report.attempts) == 1
    each = len(cores) // workers
    hosts = list(report.attempts[0].addresses)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(hosts)) == workers and addresses.free_ports(2) != addresses.free_ports(2)
    for index, job in enumerate(report):
        assert job.log == here / "out" / f"worker_{index}.log"
        name, file, argv, affinity, said = json.loads(job.tail)
        assert (name, file) == ("__main__", "folder/tell.py") and argv == [file, "--x", "1"]
        assert affinity == (cores[index * each : (index + 1) * each] if each else cores)
        assert json.loads(said[0]) == config(hosts, index)
        assert said[1:] == ["0", "-1", *["example.org,127.0.0.1"] * 2]
        assert 1024 <= int(hosts[index].split(":")[1]) < low


# A module of TensorFlow's name, whose strategy waits; test_cluster_train.py has the real one.
FAKE = """
import time
class function:
    def __init__(self, does):
        self.does, self.traced = does, 0
    def __call__(self):
        self.traced += 1
        return self.does()
    def experimental_get_tracing_count(self):
        return self.traced
class distribute:
    class Strategy:
        def run(self):
            pass
    class MultiWorkerMirroredStrategy:
        def __init__(self, file):
            open(file, "w")
            time.sleep(60)
"""


# A step as one that Keras compiles, or as one of the script itself.
STEP = """
import tensorflow, time, types
def step(): return tensorflow
step.__module__ = '{}'
function = type(tensorflow.function(None))
function.python_function = property(lambda self: self.does)
tensorflow.function(step)()
time.sleep(0.3)
"""


@pytest.mark.parametrize("code, fake, named, meanwhile", [
    ("pass", FAKE, False, False), ("import tensorflow", FAKE, True, False),
    later("import tensorflow", "", True, False),
    (STEP.format("keras.src.trainer"), FAKE, True, True),
    (STEP.format("__main__"), FAKE, True, False),
])  # fmt: skip
def test_workers_that_train_alone_are_told(code, fake, named, meanwhile, capsys):
    """In the report, and while Keras does."""
    if fake:
        Path("tensorflow.py").write_text(fake)
    report = run(code, workers=2, progress=True)
    assert report.ok and ("fit.strategy" in repr(report)) is named
    lines = capsys.readouterr().out.splitlines()
    alone = [i for i, line in enumerate(lines) if line.startswith("alone")]
    assert len(alone) == meanwhile
    assert all("done" in line for i in alone for line in lines[i + 1 :])


def test_gpus_are_shared_out_locked_and_left_alone_where_others_use_them(monkeypatch, capsys):
    monkeypatch.delenv("MGPU_MODE")
    free = {0: 0, 1: 2**30}  # of two that are full
    gpus = tuple(
        nvml.Gpu(i, "GPU", f"GPU-{i}", None, 2**36, None, free.get(i, 2**35), *[None] * 5)
        for i in range(5)
    )
    monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport(gpus, None, None, None))
    tell, one = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", ["127.0.0.1:21345"]

    def seen(**options):
        return [job.tail for job in run(tell, workers=None if "hosts" in options else 2, **options)]

    assert seen(progress=True) == ["GPU-2", "GPU-3"]
    named = "GPU 0 (0.0 of 64.0 GiB free), GPU 1 (1.0 of 64.0 GiB free): in use, and left alone"
    assert capsys.readouterr().out.startswith(f"skipped    {named}; the option busy")
    assert seen(busy=True) == ["GPU-0,GPU-1", "GPU-2,GPU-3"] and not capsys.readouterr().err
    with pytest.raises(RuntimeError, match=re.escape(named)):
        seen(hosts=one, index=0)
    with pytest.raises(ValueError, match="workers=4 for 3 GPUs"):
        run(tell, workers=4)
    (holder,) = locks.places("GPU", {2: "GPU-2"})
    assert holder.lock()
    with pytest.raises(RuntimeError, match="GPU 2 is held"):
        seen()
    monkeypatch.setenv("MGPU_JOB_DEVICE", "GPU 2")  # in a job, whose runner holds it and has looked
    assert seen(hosts=one, index=0) == ["GPU-0,GPU-1,GPU-2,GPU-3,GPU-4"]
    holder.release()


def test_a_port_that_is_taken_meanwhile_is_replaced(monkeypatch):
    picked = iter([[21111, 21112], [21113, 21114]])
    monkeypatch.setattr(addresses, "free_ports", lambda n: next(picked))
    report = run(
        "import os, sys\n"
        "if '21111' in os.environ['TF_CONFIG']:\n"
        "    sys.exit('UnknownError: Could not start gRPC server')\n"
        "print(os.environ['MGPU_ATTEMPT'])"
    )
    assert report.ok and [job.tail for job in report] == ["0", "0"] and len(report.attempts) == 1


# --- a worker fails ---


@pytest.mark.parametrize("fault, code, says, tail", [
    (KILL, -9, "SIGKILL", ""),
    # A large process is dead before its end is seen: the others miss it first.
    (f"signal.signal(signal.SIGTERM, lambda *_: {KILL}); lines[0].close(); signal.pause()",
     -9, "SIGKILL", ""),
    ("raise ValueError('no such digit')", 1, "exit status 1", "ValueError: no such digit"),
    ("atexit.register(time.sleep, 60); print('wrong'); sys.exit(42)",
     -15, "its script ended with exit status 42", "wrong"),
    ("threading.Thread(target=time.sleep, args=(60,)).start(); raise ValueError('wrong')",
     -15, "its script raised an error", "ValueError: wrong"),
    ("sys.exit()", 0, "exit status 0, while", ""),
    ("os.kill(os.getpid(), signal.SIGSTOP)", -9, "SIGSTOP", ""),
], ids="killed seen-late raises exits-late raises-late early stops".split())  # fmt: skip
def test_the_first_that_failed_is_named_and_all_end(fault, code, says, tail, capfd):
    grace = 20 if "SIGTERM" in fault else 0.5
    report = cluster.run("worker.py", [fault], workers=3, grace=grace)
    (attempt,) = report.attempts
    assert not report.ok and attempt.first == 1 and says in attempt.why
    assert attempt.failed is report[1] and report[1].returncode == code
    assert not re.search("TensorFlow says|runpy|cluster/worker.py", report[1].tail)
    assert "The end of logs/worker_1.log" in repr(report) and attempt.why in repr(report)
    assert report[1].tail.splitlines()[-1:] == ([tail] if tail else [])
    assert not any(lives(job.pid) for job in report)
    assert all(job.status in ("failed", "stopped") for job in (report[0], report[2]))
    if "STOP" in fault:  # both others had noticed it, or one had
        assert re.search(r"What worker [02]( and worker 2)? said .* is a consequence", repr(report))


def with_disk(options, fill, *arguments):
    """Run a launcher that has a disk of its own, `disk`, which is mounted for this one process."""
    Path("disk").mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o {options} tmpfs disk && {{ {fill}; exec "$@"; }}'
    command = [sys.executable, "-m", "mgpu_helpers", "cluster", *arguments]
    ran = subprocess.run(["unshare", "-Urm", "sh", "-c", mount, "sh", *command], text=True,
                         capture_output=True, timeout=60)  # fmt: skip
    if "denied" in ran.stderr or "not permitted" in ran.stderr:
        pytest.skip(f"nobody may mount a disk here: {ran.stderr.strip()}")
    return ran


def test_logs_on_a_full_disk_are_said():
    Path("print.py").write_text("print('x' * 200_000, flush=True)")
    ran = with_disk("size=64k", "true", "--logs", "disk", "print.py")
    assert ran.returncode == 1 and "(The disk of the logs is full" in ran.stdout, ran
    assert len(ran.stdout) < 5000


def test_logs_that_are_removed_meanwhile_are_said():
    Path("rm.py").write_text("import shutil\nshutil.rmtree('logs', True)\nraise SystemExit(3)")
    code, out, err = ended("rm.py", "--restarts", "1")
    assert (code, err) == (1, "") and "exit status 3" in out
    assert "worker 0 cannot be started: " in out


def test_a_time_limit_ends_workers_that_do_not_heed_sigterm(hour):
    hour("0.pids", "1.pids")
    report = cluster.run("deaf.py", time_limit=1800, grace=0.2, restarts=3, progress=False)
    assert [job.status for job in report] == ["timed out"] * 2 and len(report.attempts) == 1
    assert "time limit" in report.attempts[0].why and report.attempts[0].first is None
    assert not any(lives(pid) for i in (0, 1) for pid in Path(f"{i}.pids").read_text().split())


@pytest.mark.parametrize("there, first, says", [
    ("0", 1, "There: worker 0. Missing: worker 1 has not come to it."),
    ("01", None, "There: worker 0, worker 1. All listen "),
])  # fmt: skip
def test_who_waits_for_whom_in_the_constructor_is_said(there, first, says):
    Path("tensorflow.py").write_text(FAKE)
    report = run(
        "import json, os, sys, time\n"
        "import tensorflow as tf\n"
        "print('I read my data', flush=True)\n"
        "index = str(json.loads(os.environ['TF_CONFIG'])['task']['index'])\n"
        "if index in sys.argv[1]:\n"
        "    tf.distribute.MultiWorkerMirroredStrategy(index)\n"
        "time.sleep(60)\n", there, stalled=1.0, grace=0.2)  # fmt: skip
    (attempt,) = report.attempts
    assert [job.status for job in report] == ["timed out"] * 2 and attempt.first == first
    waited = "Worker 0 waited [1-3] s in the constructor of MultiWorkerMirroredStrategy. "
    assert re.match(waited + re.escape(says), attempt.why), attempt.why
    assert repr(report).count("'I read my data'") == 2


# --- the launcher ends ---


@contextlib.contextmanager
def launcher(*arguments):
    """Start a launcher in a process of its own; kill it at the end."""
    ran = subprocess.Popen(
        [sys.executable, "-m", "mgpu_helpers", "cluster", *arguments], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield ran
    finally:
        ran.kill()
        ran.communicate()


def ended(*arguments):
    """Give the exit status of a launcher, and what it says."""
    with launcher(*arguments) as ran:
        out, err = ran.communicate(timeout=60)
    return ran.returncode, out, err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_launcher_that_is_ended_leaves_no_process(name):
    with launcher("deaf.py", "--grace", "0.3") as ran:
        wait_for(lambda: Path("0.pids").exists() and Path("1.pids").exists())
        pids = [int(pid) for i in (0, 1) for pid in Path(f"{i}.pids").read_text().split()]
        pids += map(int, Path(f"/proc/{ran.pid}/task/{ran.pid}/children").read_text().split())
        assert all(map(lives, pids)) and len(set(pids)) == 5  # two workers, two more, the guard
        ran.send_signal(getattr(signal, name))
        out, err = ran.communicate(timeout=20)
    wait_for(lambda: not any(map(lives, pids)))
    if name == "SIGKILL":
        assert ran.returncode == -9
    else:
        assert (ran.returncode, err) == (143, "")
        assert out.count("stopped") >= 2 and "It was stopped." in out


# --- several machines ---


def test_python_looks_for_no_garbage_in_what_tensorflow_makes():
    Path("tensorflow.py").write_text("import gc\nprint(gc.isenabled())\nraise ImportError")
    report = run(
        "import contextlib, gc\nwith contextlib.suppress(ImportError):\n    import tensorflow\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000)", workers=1)  # fmt: skip
    assert report[0].tail == "False\nTrue True"


def test_two_launchers_make_one_cluster_and_restart_together():
    hosts = [f"127.0.0.1:{port}" for port in addresses.free_ports(2)]
    common = ["worker.py", "--hosts", ",".join(hosts), "--restarts", "3", "--grace", "0.3"]
    with launcher(*common, "--index", "0", "--", KILL) as one:
        with launcher(*common, "--index", "1", "--", KILL) as two:
            said = [ran.communicate(timeout=60)[0] for ran in (one, two)]
            assert (one.returncode, two.returncode) == (0, 0), said
    assert "SIGKILL ended it" in said[1]
    assert f"Worker 1 at {hosts[1]} was lost. Its own launcher" in said[0]
    begun = {f"worker_{i}{again}.log" for i in (0, 1) for again in ("", "_restart_1")}
    assert begun <= set(os.listdir("logs"))  # and more, where one comes back late


def test_a_machine_without_a_name_is_waited_for_and_then_named():
    hosts = [f"{socket.gethostname()}:21234", "nowhere.invalid:21234"]
    with pytest.raises(RuntimeError, match="worker 1, 'nowhere.invalid', does not resolve"):
        run("", hosts=hosts, index=0, stalled=0.2)


def runnable(name, *lines):
    """Put a program into this folder, which stands in for one that is not here."""
    Path(name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
    Path(name).chmod(0o755)


def test_slurm_says_who_is_who(monkeypatch):
    host = socket.gethostname()
    asked = {"STEP_NODELIST": host, "STEP_NUM_TASKS": "1", "NODEID": "0", "JOB_ID": "31007"}
    for name, value in asked.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    Path("tell.py").write_text("import os; print(os.environ['TF_CONFIG'])")
    runnable("srun", "shift", 'exec "$@"')  # as srun does for the one task
    runnable("scontrol", 'echo "$@" >> requeued')
    Path("python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{os.getcwd()}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *sys.path]))
    slurm = ["bash", SCRIPTS / "slurm.sh", "tell.py", "x"]
    assert subprocess.run(slurm, timeout=60).returncode == 0
    said = json.loads(Path("logs/31007_0/worker_0.log").read_text())
    assert said == config([f"{host}:21007"])
    # A job that was told to end and has saved goes back into the queue; one that failed does not.
    for status in (75, 1):
        runnable("srun", f"exit {status}")
        assert subprocess.run(slurm).returncode == status
    assert Path("requeued").read_text() == "requeue 31007\n"


@pytest.mark.parametrize("change, says", [
    ({"SLURM_NODEID": ""}, "SLURM_NODEID"),
    ({"SLURM_STEP_NUM_TASKS": "6"}, "6 tasks on 3 machines"),
    ({"SLURM_STEP_NODELIST": "a[1-999999999]"}, "SLURM_STEP_NODELIST"),
])  # fmt: skip
def test_what_slurm_does_not_say_is_named(change, says):
    asked = {"SLURM_STEP_NODELIST": "g[003,7-8]-ib", "SLURM_STEP_NUM_TASKS": "3",
             "SLURM_NODEID": "2", "SLURM_JOB_ID": "12345"}  # fmt: skip
    assert cluster.from_slurm(asked) == ([f"g{n}-ib:22345" for n in ("003", "7", "8")], 2)
    with pytest.raises(ValueError, match=says):
        cluster.from_slurm(asked | change)


def test_the_pods_of_kubernetes_find_each_other(tmp_path):
    """Checked against what the Job and Service of Kubernetes ask for; nobody is asked."""
    import yaml

    service, job = yaml.safe_load_all((SCRIPTS / "kubernetes.yaml").read_text())
    name, spec, pod = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": name}  # the label of a Job's pods
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]  # it has saved
    assert pod["subdomain"] == service["metadata"]["name"] and pod["restartPolicy"] == "Never"
    # What the shell of pod 1 runs, with a Python that only says what it was given.
    runnable("python", 'for word; do echo "$word"; done')
    (container,) = pod["containers"]
    said = subprocess.check_output(
        [*container["command"], *container["args"]], text=True, timeout=20,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "1"},
    )  # fmt: skip
    words = said.split()
    assert words[:5] == ["-m", "mgpu_helpers", "cluster", "--index", "1"]
    pods = [f"{name}-{i}.{pod['subdomain']}:20000" for i in range(spec["completions"])]
    assert words[words.index("--hosts") + 1].split(",") == pods and (SCRIPTS / words[-1]).exists()


# --- what is wrong with a TF_CONFIG ---

GOOD = ["127.0.0.1:21001", "127.0.0.1:21002"]
THIRD = [*GOOD, "127.0.0.1:21003"]
PROXY = {"http_proxy": "http://proxy.example:3128"}
MANY = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}


def one_more(kind):
    task = {"type": "worker" if kind == "ps" else kind, "index": 0}
    return {"cluster": {"worker": ["a:2"], kind: ["a:1"]}, "task": task}


@pytest.mark.parametrize("given, env, says", [
    (["{"], {}, "not JSON"),
    ([{"cluster": {"worker": []}}], {}, r"worker is \[\]"),
    ([{"cluster": {"ps": GOOD}}], {}, "no workers"),
    ([{"cluster": {"worker": GOOD}}], {}, "no task"),
    ([config(GOOD, 0, "chief")], {}, "'chief'"),
    ([config([GOOD[0]] * 2)], {}, "Worker 0 and worker 1 have the same address"),
    ([config([GOOD[0], "10.0.0.1:21002"])], {}, "Worker 0 is at 127.0.0.1:21001"),
    ([config([GOOD[0], f" {GOOD[1]}"])], {}, f"' {GOOD[1]}' is no address"),
    ([config(["nowhere.invalid:21001"])], {}, "'nowhere.invalid', does not resolve"),
    ([json.dumps(config(GOOD, "1"))], {}, None),
    ([{"cluster": {"worker": GOOD}, "task": {"type": "evaluator", "index": 0}}], {}, None),
    ([], {"TF_CONFIG": json.dumps(config(GOOD, 5))}, "worker 5"),
    # A proxy, unless it is not asked; gRPC looks at no_grpc_proxy first.
    ([config(GOOD)], PROXY, '^http_proxy is set.*no_proxy="127.0.0.1"'),
    ([config(GOOD)], PROXY | {"no_proxy": "example.org, 127.0.0.1"}, None),
    ([config(GOOD)], PROXY | {"no_proxy": "127.0.0.1", "no_grpc_proxy": "a.org"}, "http_proxy"),
    # Of srun.
    ([config(GOOD)], {"SLURM_STEP_NUM_TASKS": "3"}, "srun has started 3 tasks"),
    ([config(GOOD)], MANY, "on loopback"),
    # Of several workers.
    ([one_more("ps"), one_more("chief")], {}, "at a:1"),
    ([config(THIRD), config(THIRD, 1)], {}, "worker 2"),
])  # fmt: skip
def test_a_mistake_in_configs_is_said_in_a_sentence(given, env, says, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    said = cluster.check(*given)
    assert len(said) == (says is not None), said
    assert not says or re.search(says, said[0]), said


def test_a_port_that_is_taken_or_closed_is_said():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        (said,) = cluster.check(config([f"127.0.0.1:{port}", GOOD[1]]))
        assert f"Port {port} of worker 0" in said
        assert cluster.check(config([f"127.0.0.1:{port}", GOOD[1]], 1)) == []  # it has started
    # A port that drops what comes, as a firewall does: Linux does so where the queue is full.
    local = ("127.0.0.1", 0)
    with socket.create_server(local, backlog=0) as server, contextlib.ExitStack() as held:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for _ in range(3):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        (said,) = cluster.check(config([GOOD[0], address]))
        assert f"Worker 1 at {address} does not answer" in said


def test_a_name_server_that_is_down_is_not_waited_for(monkeypatch):
    answers = threading.Event()  # it comes when the probe is over, and not before
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [] if answers.wait() else [])
    assert probing.probe(["slow.example:21001"], 0.1)[0].state == "does not resolve"
    answers.set()


def test_doctor_says_it_and_that_workers_listen_everywhere():
    code = "from mgpu_helpers._doctor import facts, report; "
    code += "print(report.body(facts.without_tensorflow()))"
    said = run_python(code, imported=False, TF_CONFIG=json.dumps(config(GOOD, 2))).stdout
    assert "on all interfaces" in said and "problem  The task is worker 2" in said


# --- the end of a log ---


LOG = """\
2026-01-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795329684.691068   28261 coordination_service.cc:502] Waiting for 1/2 tasks.
/job:worker/replica:0/task:1
E0000 00:00:1795329684.691068   28261 cuda_platform.cc:52] failed call to cuInit: (303)
E0000 00:00:1795329684.691068   28261 master.cc:50] Could not start gRPC
step 1
Traceback (most recent call last):
  File "train.py", line 19, in <module>
    step()
  File "/env/lib/python3.11/site-packages/tensorflow/python/util/traceback_utils.py", line 167, in
    raise e.with_traceback(filtered_tb) from None
ValueError: destinations can not be empty"""
HEARTBEAT = "Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"


@pytest.mark.parametrize("text, own, first", [
    ("by: Error reported from /job:worker/task:0: The following tasks are unhealthy (stopped "
     "sending heartbeats):\n/job:worker/replica:0/task:2\nThe tasks have crashed.", 1, 2),
    ("error information from remote target /job:worker/replica:0/task:0 while calling", 1, 0),
    (HEARTBEAT, 1, 0), (HEARTBEAT, 0, None), (LOG, 1, None),
    ("OOM when allocating on /job:worker/replica:0/task:0/device:GPU:0", 1, None),
])  # fmt: skip
def test_who_is_lost_is_read_from_the_end_of_a_log(text, own, first):
    assert judging.lost(text.splitlines(), own) == first


def test_a_log_is_shown_without_tensorflows_noise():
    lines = LOG.splitlines()
    assert judging.without_noise(lines) == [lines[5], *lines[6:10], lines[12]]


@pytest.mark.parametrize("wrong, says", [
    ({"script": "tuoch.py"}, "Is 'touch.py' meant"),
    ({"script": "."}, "'[.]' is a folder: name a Python file in it, such as deaf.py or"),
    ({"args": "--x 1"}, "'--x 1'"),
    ({"args": ["a\0"]}, "null byte"),
    ({"workers": 0}, "workers=0"),
    ({"stalled": -1}, "stalled=-1"),
    ({"index": 1}, "index=1 says which machine this is"),
    ({"hosts": GOOD}, r"hosts=\S+:21001,\S+ names 2 machines.* index=0 on the first"),
    ({"hosts": GOOD, "index": 2}, "worker 2"),
    ({"hosts": GOOD, "index": 0, "workers": 2}, "workers=2"),
    ({"hosts": ["10.1.2.3:21001"], "index": 0}, "not an address of its own"),
])  # fmt: skip
def test_mistakes_are_refused_before_anything_starts(wrong, says):
    Path("touch.py").write_text("open('started', 'w')")
    with pytest.raises(ValueError, match=says):
        cluster.run(**({"script": "touch.py"} | wrong))
    assert not Path("started").exists()
