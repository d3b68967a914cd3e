"""Jobs as real processes: every fault a script can have, and runners against each other."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from conftest import ROOT, limited, lives, wait_for
from mgpu_helpers import jobs, nvml
from mgpu_helpers._processes import keeper, locks, process
from mgpu_helpers.jobs import kept

AFFINITY = getattr(os, "sched_getaffinity", lambda pid: set(range(os.cpu_count() or 1)))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Give each test locks and logs of its own, on the CPU's cores."""
    for name in list(os.environ):
        if name.startswith(("CUDA_", "SLURM_", "MGPU_", "TF_")) or "proxy" in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.setenv("MGPU_MODE", "cores")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = AFFINITY(0)
    yield tmp_path
    assert AFFINITY(0) == before


@pytest.fixture(autouse=True)
def never_hangs():
    with limited(90):
        yield


@pytest.fixture
def hour(monkeypatch):
    """Let an hour go by for who runs jobs, when it has looked around after files have come."""
    clock, looks = time.monotonic, itertools.count()

    def after(*files):
        def now():
            there = all(map(os.path.exists, files))
            return clock() + 3600 * (there and next(looks) > 50)

        monkeypatch.setattr(time, "monotonic", now)

    return after


@pytest.fixture
def cores():
    found = jobs.allowed()[1][:2]
    if len(found) < 2:
        pytest.skip("two cores are needed")
    return found


def sh(line):
    return ["sh", "-c", line]


def until(true):
    """Give a line of shell that waits until a `test` is true: under load nothing else ends in time.

    But for no more than a minute or two: where a runner is killed, nobody ends its jobs.
    """
    return f"n=0; until test {true} || test $((n += 1)) -gt 3000; do sleep 0.02; done"


def read(path):
    """Give what is in a file, "" where there is none."""
    return Path(path).read_text() if Path(path).exists() else ""


def python(code, *args):
    return [sys.executable, "-c", code, *map(str, args)]


IMPORTS = """
import sys
from mgpu_helpers import jobs
from mgpu_helpers._processes import process
sh = lambda line: ["sh", "-c", line]
"""


@contextlib.contextmanager
def runner(code):
    """Start a runner in a process of its own; kill it at the end."""
    ran = subprocess.Popen(
        [sys.executable, "-c", IMPORTS + code],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield ran
    finally:
        ran.kill()
        ran.communicate()


# --- one job ---


def test_jobs_end_as_they_end():
    """Done, exit status 3, a signal: each is told apart, and none stops the others."""
    report = jobs.run([sh("echo one"), sh("echo two >&2; exit 3"), sh("kill -SEGV $$"), sh("true")])
    assert [job.status for job in report] == ["done", "failed", "failed", "done"]
    assert [job.returncode for job in report] == [0, 3, -signal.SIGSEGV, 0]
    assert [job.tail for job in report] == ["one", "two", "", ""]
    lasts = [row.split()[-1] for row in repr(report).splitlines()]
    assert lasts == ["seconds", *(f"{job.seconds:.1f}" for job in report)]
    assert not report.ok and jobs.run([sh("true")]).ok


CANNOT = [
    (["sh", "-c", "a"], "be started (Resource temporarily unavailable)"),
    (["no-such-program"], "'no-such-program' cannot be started (No such file or directory): insta"),
    (["./text"], "'./text' cannot be started (Permission denied): chmod +x ./text, or name the"),
    (["./none"], "(Exec format error): name the program that reads it, as in 'bash ./none'"),
    (["sh", "a\0b"], "null byte"),
]


def test_what_cannot_be_started_fails_and_the_next_goes_on(cores, monkeypatch):
    Path("text").touch(0o644)
    Path("none").touch(0o755)
    no_room = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    starts = Mock(side_effect=[no_room, *[DEFAULT] * 9], wraps=subprocess.Popen)
    monkeypatch.setattr(subprocess, "Popen", starts)
    commands = [command for command, _ in CANNOT]
    *report, last = jobs.run([*commands, sh("echo fine")], devices=cores[:1])
    assert last.status == "done"
    for job, (_, said) in zip(report, CANNOT, strict=True):
        assert (job.status, job.returncode) == ("failed", None)
        assert said in job.tail and said in job.log.read_text()
        assert job.end >= job.start


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
@pytest.mark.parametrize("each", [1, 2])
def test_a_job_is_pinned_to_its_cores_and_told_of_them(each, cores):
    tell = python(
        "import os, sys; print(*sorted(os.sched_getaffinity(0)), os.environ['MGPU_JOB_DEVICE'],"
        "os.environ['CUDA_VISIBLE_DEVICES'], os.environ['PYTHONUNBUFFERED'], sys.stdin.read())"
    )
    asked = cores[::-1]
    report = jobs.run([tell, tell], devices=asked, devices_each=each)
    for job, its in zip(report, [asked, asked] if each == 2 else [[n] for n in asked], strict=True):
        named = ", ".join(f"core {number}" for number in its)
        assert (job.kind, job.device, list(job.devices)) == ("core", its[0], its)
        assert job.row()["devices"] == its and f"{named}  done" in repr(report)
        assert job.tail.split() == [*map(str, sorted(its)), *named.split(), "-1", "1"]
    assert each == 1 or report[1].start >= report[0].end


def test_logs_are_named_in_order_and_hold_both_streams(here):
    train = ["sh", Path("train.py"), "--width", "8"]
    Path("train.py").write_text("echo out; echo err >&2")
    report = jobs.run([train, sh("true"), train], logs=here / "deep" / "logs")
    assert [job.name for job in report] == ["train-1", "sh", "train-2"]
    files = sorted((here / "deep" / "logs").glob("*.log"))
    assert [file.name for file in files] == ["01_train-1.log", "02_sh.log", "03_train-2.log"]
    assert files == [job.log for job in report] and files[0].read_text() == "out\nerr\n"
    named = jobs.run([sh("true")] * 3, names=["../a b", "c", "c"])
    assert [job.log.name for job in named] == ["01_.._a_b.log", "02_c-1.log", "03_c-2.log"]
    with pytest.raises(ValueError):
        jobs.run([sh("true")] * 2, names=["one"])


# --- jobs that do not end by themselves ---


def test_a_time_limit_ends_jobs_even_those_that_ignore_it(monkeypatch, cores, hour):
    """But they have the time to end by themselves, as has what a job leaves behind."""
    monkeypatch.setattr(process, "GRACE", 1.0)
    hour("sleeps", "ignores", "heeds")
    waits = "while :; do sleep 0.05; done"
    report = jobs.run(
        [sh("touch sleeps; exec sleep 60"), sh(f"trap '' TERM; touch ignores; {waits}"),
         sh(f"trap 'sleep 0.2; exit 0' TERM; touch heeds; {waits}"), sh("sleep 60"),
         sh(f"(trap 'sleep 0.2; exec touch tidy' TERM; touch on; {waits}) & {until('-e on')}")],
        time_limit=1800, devices=cores, per_device=2,
    )  # fmt: skip
    assert [job.status for job in report] == ["timed out"] * 4 + ["done"]
    assert [job.returncode for job in report] == [-15, -9, 0, -15, 0] and Path("tidy").exists()
    assert not any(lives(job.pid) for job in report)


CHILDREN = (
    "for i in 1 2; do sh -c 'trap \"\" TERM; echo $$; touch child.$$; sleep 60' & done; "
    "while set -- child.*; test $# != 2; do sleep 0.02; done;"
)


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_goes_on_where_a_keeper_does_not_end(code, monkeypatch, capfd, cores):
    """As it cannot while something that the job left does not end, or has stopped it."""
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr(kept, "LATE", 0.3)
    told = f"until grep -qs '^{code} ' logs/.running/*; do sleep 0.02; done"
    Path("stops").write_text(f"trap '' TERM; touch on; {told}; kill -STOP $1; sleep 60")
    line = f"setsid sh stops $PPID & {until('-e on')}; exit {code}"
    stuck, after = jobs.run([sh(line), sh("true")], devices=cores[:1], progress=False)
    want = "failed" if code else "done", code, "done"
    assert (stuck.status, stuck.returncode, after.status) == want
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and str(stuck.pid) in said[0] and not lives(stuck.pid)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_all_jobs_and_leaves_no_process(times, monkeypatch, cores):
    """A second Ctrl-C does not wait for jobs that ignore the first."""
    monkeypatch.setattr(process, "GRACE", 0.3 if times == 1 else 60)
    logs, pids = ("logs/02_children.log", "logs/03_deaf.log"), []

    def interrupts():
        wait_for(lambda: [len(read(log).split()) for log in logs] == [2, 1])
        pids.extend(int(pid) for log in logs for pid in read(log).split())
        os.kill(os.getpid(), signal.SIGINT)
        if times == 2:
            wait_for(Path("told").exists)
            os.kill(os.getpid(), signal.SIGINT)

    names = ["quick", "children", "deaf", "never"]
    deaf = sh("trap 'touch told' TERM; echo $$; while :; do sleep 0.05; done")
    threading.Thread(target=interrupts).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        jobs.run([sh("echo quick"), sh(f"{CHILDREN} wait"), deaf, sh("true")],
                 devices=cores, names=names)  # fmt: skip
    wait_for(lambda: len(pids) == 3 and not any(map(lives, pids)))
    if times == 1:
        ended = [(job.status, job.returncode) for job in caught.value.report]
        assert ended == [("done", 0), ("stopped", -15), ("stopped", -9), ("not started", None)]
        rows = [json.loads(line) for line in Path("logs/jobs.jsonl").read_text().splitlines()]
        assert sorted(row["status"] for row in rows) == [
            "done", "running", "running", "running", "stopped", "stopped",
        ]  # fmt: skip
    assert jobs.run([sh("true")], devices=cores).ok


def test_ctrl_c_while_a_job_starts_does_not_lose_the_job(monkeypatch):
    popen, handler = subprocess.Popen, signal.getsignal(signal.SIGINT)

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return popen(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        jobs.run([sh("sleep 60")])
    (job,) = caught.value.report
    assert (job.status, job.returncode) == ("stopped", -15) and not lives(job.pid)
    assert signal.getsignal(signal.SIGINT) is handler


def test_of_a_group_who_waits_to_be_read_does_not_run():
    """In a container without an init process, orphans stay so."""
    ran = subprocess.Popen(["true"], start_new_session=True)
    wait_for(lambda: not lives(ran.pid))
    assert not keeper.group_lives(ran.pid) and keeper.group_lives(os.getpgid(0))
    ran.wait()


# --- logs that cannot be written ---


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_fails_the_job_that_writes_and_not_the_runner(monkeypatch):
    Path("logs").mkdir()
    Path("logs/01_a.log").symlink_to("/dev/full")
    Path("logs/03_c.log").mkdir()
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))
    report = jobs.run([python("print('much')"), sh("echo fine"), sh("true")], names=["a", "b", "c"])
    monkeypatch.undo()
    assert [job.status for job in report] == ["failed", "done", "failed"]
    assert [job.tail for job in report][:2] == ["", "fine"]
    assert "Is a directory" in report[2].tail


# --- order ---


def test_jobs_start_in_order_and_fill_the_devices_before_they_share_one(cores):
    waits = sh(f"touch $$.here; {until('$(ls *.here | wc -l) = 4')}")
    report = jobs.run([waits] * 4 + [sh("true")] * 2, devices=cores, per_device=2)
    places = [(core, slot) for slot in (0, 1) for core in cores]
    assert [(job.device, job.slot) for job in report][:4] == places
    starts = [job.start for job in report]
    assert report.ok and starts == sorted(starts)
    assert starts[4] >= min(job.end for job in report)


# --- runners against each other ---

@pytest.mark.parametrize("first, second, most", [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)])
def test_runners_keep_to_the_jobs_per_device_together(first, second, most):
    """For the kernel, who opens a file once more is another, in one process too."""
    asked = [place for n in (first, second) for place in locks.places("core", {0: None}, n)]
    for _ in range(2):
        assert sum(place.lock() for place in asked) == most
        for place in asked:
            place.release()


def test_jobs_with_several_devices_get_neighbours(monkeypatch):
    """Also when an odd one has been free all the time, and they end in another order."""
    lists(monkeypatch, *map(gpu, range(5)))
    report = jobs.run([sh(until("-e ended")), sh("true"), sh("touch ended")], devices_each=2)
    assert [job.devices for job in report] == [(0, 1), (2, 3), (2, 3)]


def test_a_fork_of_the_runner_does_not_keep_its_locks(cores):
    (place,) = locks.places("core", {cores[0]: None})
    assert place.lock()
    fork = os.fork()
    if not fork:
        time.sleep(100)
        os._exit(0)
    place.release()
    try:
        assert jobs.run([sh("true")], devices=cores[:1]).ok
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


@pytest.mark.parametrize("first, second, waits", [(2, 1, 1), (2, 2, 0)])
def test_the_job_of_a_killed_runner_keeps_its_device(first, second, waits, cores):
    """Only who shares goes on beside a job that shares; the kernel frees the lock at its end."""
    code = f"jobs.run([sh('echo $$; exec sleep 60')], devices={cores[:1]}, per_device={first})"
    with runner(code):
        wait_for(lambda: read("logs/01_sh.log"))
    pid = int(read("logs/01_sh.log"))
    again = f"jobs.run([sh('true')], devices={cores[:1]}, per_device={second}, logs='again')"
    try:
        with runner(again) as ran:
            assert ran.stdout.readline().startswith("waiting" if waits else "start")
            assert lives(pid) and jobs.run([sh("true")], devices=cores).ok  # on the other core
            os.kill(pid, signal.SIGKILL)
            assert ran.communicate(timeout=20)[0].splitlines()[-1].startswith("done")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_job_that_closes_its_files_keeps_its_device_while_its_runner_lives(cores):
    code = "os.closerange(3, 99); open('go', 'w'); time.sleep(0.3); open('ended', 'w')"
    closes = python(f"import os, time; {code}")
    with runner(f"jobs.run([{closes}], devices={cores[:1]}, logs='a')"):
        wait_for(lambda: Path("go").exists())
        assert jobs.run([sh("test -e ended")], devices=cores[:1]).ok


def test_a_device_is_free_for_others_as_soon_as_its_job_has_ended(cores):
    """For a job inherits its own locks only: else the longest would keep the devices of all."""
    waits = sh(until("-e go"))
    with runner(f"jobs.run([sh('true'), {waits}], devices={cores}, logs='a')") as one:
        wait_for(lambda: one.stdout.readline().startswith("done"))
        assert jobs.run([sh("true")], devices=cores[:1]).ok and one.poll() is None
        Path("go").touch()
        assert one.wait(timeout=20) == 0


def test_locks_are_for_all_users_whatever_the_umask(cores):
    before = os.umask(0o077)
    try:
        jobs.run([sh("true")], devices=cores[:1], per_device=2)
    finally:
        os.umask(before)
    folder = Path("mgpu-jobs")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"core-{cores[0]}{end}" for end in ("", ".0", ".1")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o666] * 3


@pytest.mark.parametrize("where, make", [
    ("mgpu-jobs", lambda path: path.symlink_to("precious")),
    ("mgpu-jobs/core-{}", lambda path: path.symlink_to("precious")),
    ("mgpu-jobs/core-{}", os.mkfifo),
])  # fmt: skip
def test_a_lock_that_is_something_else_is_refused_before_anything_starts(where, make, cores):
    jobs.run([sh("mkdir precious; touch mgpu-jobs/precious")], devices=cores[:1])
    if where == "mgpu-jobs":
        shutil.rmtree(where)
    make(Path(where.format(cores[1])))
    with pytest.raises(RuntimeError, match="(mgpu-jobs|core-.) cannot (be locked|hold)"):
        jobs.run([sh("touch started")], devices=cores)
    assert not Path("started").exists()


# --- GPUs, as the driver would list them ---


def gpu(index, uuid="same", *, free=40, busy=0, pids=(), problem=None):
    """Make a GPU with free memory, load in percent and processes."""
    uuid = f"GPU-{index:02d}aa" if uuid == "same" else uuid
    processes = pids and tuple(nvml.Process(pid, None, None, nvml._uid(pid)) for pid in pids)
    return nvml.Gpu(index, "GPU", uuid, *[None] * 3, free, busy, *[None] * 3, processes, problem)


def lists(monkeypatch, *gpus, **env):
    monkeypatch.delenv("MGPU_MODE", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    report = nvml.DriverReport(gpus, None, None, None)
    monkeypatch.setattr(nvml, "query", lambda: report)


def test_a_job_sees_its_gpu_by_uuid_or_else_by_number(monkeypatch):
    lists(monkeypatch, gpu(0), gpu(1), gpu(2, None))
    tell = sh("echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $MGPU_JOB_DEVICE; sleep 0.1")
    report = jobs.run([tell] * 2, devices=[1, 2])
    assert [job.tail for job in report] == ["GPU-01aa PCI_BUS_ID GPU 1", "2 PCI_BUS_ID GPU 2"]
    assert [(job.kind, job.device) for job in report] == [("GPU", 1), ("GPU", 2)]


@pytest.mark.parametrize("env, want", [
    ({}, [0, 1, 2, 3]),
    ({"CUDA_VISIBLE_DEVICES": "3", "SLURM_STEP_GPUS": "0"}, [3]),
    ({"CUDA_VISIBLE_DEVICES": "MIG-7e,1,0,MIG-8f"}, [2, 1, 0, 3]),
    ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "1,2"}, [1]),
    ({"SLURM_JOB_GPUS": "0-1,3"}, [0, 1, 3]),
    ({"SLURM_JOB_GPUS": "4,5,6,7"}, [0, 1, 2, 3]),  # numbered anew
    ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
])  # fmt: skip
def test_what_is_allowed_follows_the_environment(env, want, monkeypatch):
    lists(monkeypatch, *map(gpu, range(4)), **env)
    kind, found = jobs.allowed()
    if want is None:
        assert kind == "core" and set(found) <= AFFINITY(0)
    else:
        assert (kind, found) == ("GPU", want)


@pytest.fixture
def vanishing(monkeypatch):
    """List GPUs of which those named in the file `gone` are missing, the rest numbered anew."""
    monkeypatch.delenv("MGPU_MODE")

    def query():
        gone = Path("gone").read_text().split() if Path("gone").exists() else []
        uuids = [f"GPU-{i}" for i in range(3) if str(i) not in gone]
        return nvml.DriverReport(tuple(gpu(i, u) for i, u in enumerate(uuids)), None, None, None)

    monkeypatch.setattr(nvml, "query", query)


def test_a_gpu_that_disappears_gets_no_more_jobs(vanishing, capfd):
    """Nor when the job that ran on it ends, while the others are in use."""
    waits, later = sh(until("-e gone")), sh("touch later; sleep 0.4")
    goes = sh(f"echo 1 > gone; {until('-e later')}")
    report = jobs.run([waits, goes, waits, later, later, sh("true")])
    assert report.ok and [job.device for job in report][:3] == [0, 1, 2]
    assert {job.device for job in report.jobs[3:]} <= {0, 2}
    assert "gone       GPU 1" in capfd.readouterr().out


# --- the freest GPUs ---


@pytest.fixture(scope="module")
def foreign():
    """Give the number of a process that has ended: nobody's, as one of another container is."""
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def test_the_freest_gpu_has_nobody_else_on_it_then_is_idle_then_has_memory(monkeypatch, foreign):
    lists(
        monkeypatch,
        gpu(0, free=80, pids=[os.getpid(), foreign]),
        gpu(1, free=70, busy=10),
        gpu(2, free=30, busy=9),
        gpu(3, free=50, busy=3),
        gpu(4, free=50, busy=1),
        gpu(5, free=50, busy=1),
        gpu(6, free=90, pids=None),
        gpu(7, free=40, pids=[os.getpid()] * 2),
    )
    assert jobs.freest() == [4]
    assert jobs.freest(8) == [4, 5, 3, 7, 2, 1, 6, 0]
    assert jobs.freest(2, among=(6, 0, 2)) == [2, 6]
    # What the driver does not report counts as taken.
    lists(monkeypatch, gpu(0, free=None), gpu(1, busy=None), gpu(2, free=1))
    assert jobs.freest(3) == [2, 0, 1]


# --- what is said ---


WORKS = [["true"]]


@pytest.mark.parametrize("commands, wrong, error, names", [
    ([], {}, ValueError, "commands"),
    (["python a.py"], {}, TypeError, "'python a.py'"),
    (WORKS, {"time_limit": float("nan")}, ValueError, "time_limit=nan"),
    (WORKS, {"devices": []}, ValueError, "devices"),
    (WORKS, {"devices": [99]}, ValueError, "GPU 99 .* 0, 1"),
    (WORKS, {"devices": [1, 1]}, ValueError, "twice"),
    (WORKS, {"free": 3}, ValueError, "free=3"),
    (WORKS, {"devices_each": 2, "free": 1}, ValueError, "devices_each=2"),
    (WORKS, {"devices_each": 2, "per_device": 2}, ValueError, "per_device=2"),
    (WORKS, {"devices_each": 2, "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, ValueError, "=2.* MIG"),
    (WORKS, {"MGPU_JOB_DEVICE": "GPU 0"}, RuntimeError, "inside a job, on GPU 0"),
])  # fmt: skip
def test_what_would_be_silent_or_lose_work_is_refused_at_once(
    commands, wrong, error, names, monkeypatch
):
    env = {name: value for name, value in wrong.items() if name.isupper()}
    lists(monkeypatch, gpu(0), gpu(1), **env)
    with pytest.raises(error, match=names):
        jobs.run(commands, **{name: wrong[name] for name in wrong.keys() - env.keys()})
    assert not Path("logs").exists() and not Path("mgpu-jobs").exists()


def test_what_cannot_be_chosen_is_refused(monkeypatch):
    lost = gpu(0, problem="GPU 0 has fallen off the bus: reboot.")
    lists(monkeypatch, lost, gpu(1, free=1))
    assert jobs.allowed() == ("GPU", [1]) and jobs.freest() == [1]
    with pytest.raises(ValueError, match="n=2"):
        jobs.freest(2)
    lists(monkeypatch, lost)
    with pytest.raises(RuntimeError, match="GPU 0 has fallen"):
        jobs.freest()
    lists(monkeypatch, gpu(0), CUDA_VISIBLE_DEVICES="MIG-1")
    with pytest.raises(RuntimeError, match="MIG"):
        jobs.freest()
