"""What a cluster shows while it runs, and its end when nothing goes on: real worker processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import test_cluster
import test_jobs
from mgpu_helpers._processes import locks
from mgpu_helpers.cluster import watch
from test_cluster import FAKE, ended, launcher, run, with_disk

here, never_hangs, hour = test_jobs.here, test_jobs.never_hangs, test_jobs.hour
scripts = test_cluster.scripts

PRINTS = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("I0000 00:00:1795329567.626250   25676 port.cc:153] TensorFlow speaks of itself")
print(f"step 1 of {index}", flush=True)
while not os.path.exists("seen"):
    time.sleep(0.02)
print("10 %\\r20 %\\r100 %", flush=True)
print("no end", end="")
"""


def test_what_worker_0_prints_is_shown_while_it_runs_unless_quiet():
    Path("prints.py").write_text(PRINTS)
    with launcher("prints.py") as ran:
        shown = []
        for line in ran.stdout:
            assert "of 1" not in line
            if line.startswith("[worker 0]"):
                shown.append(line)
                Path("seen").touch()
        assert (ran.wait(20), ran.stderr.read()) == (0, "")
    assert shown == [f"[worker 0] {line}\n" for line in ("step 1 of 0", "100 %", "no end")]
    assert "step 1" not in ended("prints.py", "--quiet")[1]


# Each goes on for longer than the limit, by nothing else than what it is named for.
GOES_ON = {
    "output": "print('x', flush=True)",
    "reading": "open('large', 'rb').read()",
    "saving": "open('saved', 'wb').write(b'x' * 10**5)",
    "steps": "step()",
    "run": "tf.distribute.Strategy().run()",
    "compiles": "tf.function(lambda: computes(end))()",
    "child": "child = child or subprocess.Popen('while cat large; do sleep 0.2; done', shell=True, "
             "stdout=subprocess.DEVNULL)",
    "other": "print('x', flush=True)",  # of two workers, of which the second waits for the first
}  # fmt: skip
# And each of these does not: its launcher ends it, and says this.
WAITS = {
    "waits": ("pass", "Nothing went on for 3 s"),
    "stops": ("os.kill(os.getpid(), signal.SIGSTOP)", "it was stopped, as by SIGSTOP."),
    "computes": ("computes(end + 60)", "in computes"),
}
LOOP = """
import os, signal, subprocess, time
import tensorflow as tf
step, child, end = tf.function(lambda: None), None, time.monotonic() + 4.5
waits = os.environ["TF_CONFIG"][-3] == "1"
def computes(end):
    while time.monotonic() < end: pass
while not os.path.exists("{name} over") if waits else time.monotonic() < end:
    if not waits:
        {does}
    time.sleep(0.2)
open("{name} over", "w")
"""


def test_what_goes_on_is_let_go_on_and_what_waits_is_not():
    Path("tensorflow.py").write_text(FAKE)
    Path("large").write_bytes(b"x" * 10**6)
    with contextlib.ExitStack() as all_at_once:
        ran = {}
        for name, does in (GOES_ON | {name: does for name, (does, _) in WAITS.items()}).items():
            Path(f"{name}.py").write_text(LOOP.format(name=name, does=does))
            workers = "2" if name == "other" else "1"
            options = ["--workers", workers, "--stalled", "3", "--grace", "0.1", "--logs", name]
            ran[name] = all_at_once.enter_context(launcher(f"{name}.py", *options))
        said = {name: one.communicate(timeout=60)[0] for name, one in ran.items()}
        assert {name: one.returncode for name, one in ran.items()} == (
            dict.fromkeys(GOES_ON, 0) | dict.fromkeys(WAITS, 124)
        )
        for name, (_, says) in WAITS.items():
            assert says in said[name]


def test_how_much_has_to_go_on(monkeypatch):
    """More than wakes its own threads; and what compiles for too long waits for a GPU in a loop."""
    now, moved, computed = 100.0, 0.0, 0.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    monkeypatch.setattr(watch, "_moved", lambda pid: moved)
    monkeypatch.setattr(watch, "_computed", lambda pid: computed)
    one = watch.Watch(0, Path("log"), None)
    one.says("compiles", now)
    for moves, computes, seconds, goes_on in (
        (10_000, 0, 1, True), (100, 0, 1, False), (0, 0.05, 1, False),
        *[(0, 0.2, 14, True)] * 21, (0, 0.2, 14, False), (0, 0, 16, True),  # it was stopped, too
    ):  # fmt: skip
        now, moved, computed = now + seconds, moves * seconds + moved, computed + computes * seconds
        one.look(30)
        assert (one.moved == now) is goes_on


def test_a_launcher_that_was_stopped_with_its_workers_goes_on_with_them(hour):
    """As Slurm suspends a job: an hour has gone by at once, in which nothing went on."""
    hour("began")
    code = "import time\nopen('began', 'w')\ntime.sleep(2)"
    assert run(code, workers=1, stalled=60).ok


@pytest.mark.parametrize("options, fill, says", [
    ("size=1m", "touch disk/logs", "File exists): move it away, or name another folder"),
    ("size=1m", "mkdir -p disk/logs/worker_0.log", "cannot be written (Is a directory)"),
    ("ro", "true", "disk/logs cannot be written (Read-only file system)"),
    ("size=64k", "mkdir disk/logs; dd if=/dev/zero of=disk/x bs=64k count=2", "make room"),
])  # fmt: skip
def test_a_folder_for_logs_that_cannot_be_written_is_refused(options, fill, says):
    """Also by root, before anything starts."""
    Path("a.py").write_text("open('started', 'w')")
    ran = with_disk(options, fill, "--logs", "disk/logs", "a.py")
    assert ran.returncode == 2 and says in ran.stderr and not Path("started").exists(), ran


def test_a_folder_to_which_another_cluster_writes_is_refused():
    Path("logs").mkdir()
    with open("logs/worker_0.log", "ab") as file:
        assert locks.lock(file.fileno())
        with pytest.raises(RuntimeError, match="Another cluster writes to .*: choose another"):
            run("open('started', 'w')")
    assert not Path("started").exists()
