"""What a cluster shows while it runs, and its end when nothing goes on: real worker processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import test_cluster
import test_jobs
from mgpu_helpers import cluster
from mgpu_helpers._processes import locks
from mgpu_helpers.cluster import watch
from test_cluster import FAKE, ended, launcher, run

here, never_hangs, scripts = test_jobs.here, test_jobs.never_hangs, test_cluster.scripts

PRINTS = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("I0000 00:00:1795329567.626250   25676 port.cc:153] TensorFlow speaks of itself")
print(f"step 1 of {index}", flush=True)
print("10 %\\r20 %\\r100 %", flush=True)
print("no end", end="")
"""


def test_what_worker_0_prints_is_shown_unless_quiet():
    Path("prints.py").write_text(PRINTS)
    code, out, err = ended("prints.py")
    shown = [line for line in out.splitlines() if line.startswith("[worker 0]")]
    assert (code, err) == (0, "")
    assert shown == [f"[worker 0] {line}" for line in ("step 1 of 0", "100 %", "no end")]
    assert "of 1" not in out
    assert "step 1" not in ended("prints.py", "--quiet")[1]


def test_it_is_shown_while_the_worker_runs():
    Path("waits.py").write_text(
        "import os, time\n"
        "print('begins', flush=True)\n"
        "while not os.path.exists('seen'):\n"
        "    time.sleep(0.02)\n"
    )
    with launcher("waits.py") as ran:
        for line in ran.stdout:
            if line == "[worker 0] begins\n":
                Path("seen").touch()
        assert ran.wait(20) == 0 and Path("seen").exists()


SLEEPS = """
import json, os, sys, time
def step():
    time.sleep(60)
index, attempt = json.loads(os.environ["TF_CONFIG"])["task"]["index"], os.environ["MGPU_ATTEMPT"]
if attempt == "0":
    if index:
        print("step 7", flush=True)
    step()
"""


def test_workers_that_do_nothing_are_shown_ended_and_started_again():
    Path("sleeps.py").write_text(SLEEPS)
    code, out, _ = ended("sleeps.py", "--stalled", "1", "--restarts", "1")
    assert code == 0
    said = out.partition("restart    1 of 1: ")[2].partition("start  ")[0]
    assert said.startswith("Nothing went on for 1 s: no step, no line of output")
    stack = ['  File "sleeps.py", line 4 in step', '  File "sleeps.py", line 9 in <module>']
    for index, last in enumerate(("had printed nothing", "had last printed 'step 7'")):
        head = f"Worker {index} {last}, and was at (most recent call first):"
        assert "\n".join([head, *stack]).replace(os.sep, "/") in said.replace(f"{os.getcwd()}/", "")
    code, out, _ = ended("sleeps.py", "--stalled", "1")
    assert code == 124 and out.count('File "') == 4 and "[worker 0]" not in out


def test_a_stopped_worker_is_said_to_be_stopped():
    report = run("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", workers=1,
                 stalled=1.0, grace=0.2)  # fmt: skip
    assert "did not say where it was: it was stopped, as by SIGSTOP." in repr(report)


# Each goes on for longer than the limit, by nothing else than what it is named for.
GOES_ON = {
    "output": "print('x', flush=True)",
    "reading": "open('large', 'rb').read()",
    "saving": "open('saved', 'wb').write(b'x' * 10**5)",
    "steps": "step()",
    "run": "tf.distribute.Strategy().run()",
    "child": "child = child or subprocess.Popen('while cat large; do sleep 0.2; done', shell=True, "
             "stdout=subprocess.DEVNULL)",
    "other": "print('x', flush=True)",  # of two workers, of which the second waits for the first
}  # fmt: skip
LOOP = """
import os, subprocess, time
import tensorflow as tf
step, child, end = tf.function(lambda: None), None, time.monotonic() + 6
waits = os.environ["TF_CONFIG"][-3] == "1"
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
        for name, does in (GOES_ON | {"waits": "pass"}).items():
            Path(f"{name}.py").write_text(LOOP.format(name=name, does=does))
            workers = "2" if name == "other" else "1"
            options = ["--workers", workers, "--stalled", "3", "--grace", "0.1", "--logs", name]
            ran[name] = all_at_once.enter_context(launcher(f"{name}.py", *options))
        assert {name: one.wait(60) for name, one in ran.items()} == (
            dict.fromkeys(GOES_ON, 0) | {"waits": 124}
        )


def test_how_much_has_to_go_on(monkeypatch):
    now, sums = [100.0], [0.0, 0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watch, "_children", lambda pid: [])
    monkeypatch.setattr(watch, "_moved", lambda pid: sums[0])
    monkeypatch.setattr(watch, "_computed", lambda pid: sums[1])
    one = watch.Watch(0, Path("log"), None)

    def goes_on(moved, computed, seconds=1):
        now[0] += seconds
        sums[:] = sums[0] + moved * seconds, sums[1] + computed * seconds
        one.look(30)
        return one.moved == now[0]

    assert goes_on(10_000, 0) and not goes_on(100, 0)  # which wakes its own threads
    assert not goes_on(0, 1) and goes_on(0, 0, 16)  # the launcher was stopped meanwhile
    one.says("compiles", now[0])
    assert goes_on(0, 0.2) and not goes_on(0, 0.05)
    assert all(goes_on(0, 1, 14) for _ in range(21)) and not goes_on(0, 1, 14)
    one.says("compiled", now[0])
    assert not goes_on(0, 1)


def test_compiling_goes_on_and_a_loop_without_end_does_not():
    Path("tensorflow.py").write_text(FAKE)
    code = (
        "import time\nimport tensorflow as tf\n"
        "def computes(end):\n    while time.monotonic() < end: pass\n"
    )
    first = "tf.function(lambda: computes(time.monotonic() + 5))()"
    assert run(code + first, workers=1, stalled=3).ok
    report = run(code + "computes(time.monotonic() + 60)", workers=1, stalled=3, grace=0.2)
    assert report.status == 124 and "in computes" in repr(report)


def test_a_launcher_that_was_stopped_with_its_workers_goes_on_with_them():
    """As Slurm suspends a job."""
    Path("a.py").write_text("import time\nfor _ in range(4):\n    print(1, flush=True)\n"
                            "    time.sleep(1)\n")  # fmt: skip
    with launcher("a.py", "--workers", "1", "--stalled", "4") as ran:
        said = [ran.stdout.readline() for _ in range(3)]
        assert said[1:] == ["[worker 0] 1\n"] * 2  # the second time it has been looked at
        children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children").read_text().split()
        subprocess.run(["kill", "-STOP", str(ran.pid), *children], check=True)
        time.sleep(6)
        subprocess.run(["kill", "-CONT", str(ran.pid)], check=True)
        time.sleep(0.5)  # in which it looks
        subprocess.run(["kill", "-CONT", *children], check=True)
        assert "timed out" not in ran.communicate(timeout=30)[0] and ran.returncode == 0


# --- what is refused ---


def test_a_folder_for_logs_that_cannot_be_written_is_refused_before_anything_starts():
    """Also by root: on a disk of its own that is full, or may only be read."""
    Path("a.py").write_text("open('started', 'w')")
    Path("file").touch()
    code, _, err = ended("a.py", "--logs", "file")
    assert code == 2 and "'file' is a file: give a folder for the logs as --logs" in err
    Path("log/worker_0.log").mkdir(parents=True)
    said = ended("a.py", "--logs", "log")[2]
    assert "/log' (is a directory): give a folder in which you may write as --logs" in said
    Path("own").mkdir()
    with open("own/worker_0.log", "ab") as file:
        assert locks.lock(file.fileno())
        with pytest.raises(RuntimeError, match="Another cluster writes to .*: choose another"):
            cluster.run("a.py", logs="own", progress=False)
    Path("disk").mkdir()
    for options, fill, says in (
        ("ro", "true", r"No log can be written in 'disk/logs' (read-only file system)"),
        ("size=64k", "mkdir disk/logs; dd if=/dev/zero of=disk/x bs=64k count=2", "is full: make"),
    ):
        mount = f'mount -t tmpfs -o {options} tmpfs disk && {{ {fill}; exec "$@"; }}'
        command = [sys.executable, "-m", "mgpu_helpers", "cluster", "--logs", "disk/logs", "a.py"]
        ran = subprocess.run(["unshare", "-Urm", "sh", "-c", mount, "sh", *command], text=True,
                             capture_output=True, timeout=60)  # fmt: skip
        if "denied" in ran.stderr or "not permitted" in ran.stderr:
            pytest.skip(f"nobody may mount a disk here: {ran.stderr.strip()}")
        assert ran.returncode == 2 and says in ran.stderr, ran
    assert not Path("started").exists()


def test_help_says_every_exit_status_and_option():
    said = subprocess.run([sys.executable, "-m", "mgpu_helpers", "cluster", "--help"],
                          capture_output=True, text=True).stdout  # fmt: skip
    for word in ("--stalled", "--quiet", "124", "130", "--from {slurm}"):
        assert word in said
    assert cluster.run.__doc__ and "stalled" in cluster.run.__doc__
