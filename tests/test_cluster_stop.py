"""How Ctrl-C, SIGTERM and a closed terminal end a cluster, whose workers may save first."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import test_cluster
import test_jobs
from conftest import lives, wait_for
from mgpu_helpers import __main__ as command
from test_cluster import launcher

here, never_hangs, scripts = test_jobs.here, test_jobs.never_hangs, test_cluster.scripts

# A worker that saves as `fit` does with BackupAndRestore, without TensorFlow: it needs a process
# that it has started, and takes as long as its first argument says.
SAVES = """
import json, os, signal, subprocess, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if os.environ["MGPU_ATTEMPT"] == "1":
    sys.exit()
told, tell = [], sys.modules["mgpu_helpers.cluster.worker"].tell
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
child = subprocess.Popen(["sleep", "60"])
tell("ready")
open(f"{index}.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(f"{index}.new", f"{index}.ready")
while not told:
    time.sleep(0.02)
tell("saves")
open(f"{index}.told", "w")
time.sleep(float(sys.argv[1]))
assert child.poll() is None
open(f"{index}.saved", "w")
tell("saved")
sys.exit(75)
"""


def pids():
    return [int(pid) for file in Path().glob("*.ready") for pid in file.read_text().split()]


def started(seconds, *options):
    Path("saves.py").write_text(SAVES)
    return launcher("saves.py", "--grace", "0.2", *options, "--", str(seconds))


@pytest.mark.parametrize("signals, status, saved", [
    (["SIGTERM", "SIGTERM", "SIGHUP"], 75, True), (["SIGINT", "SIGTERM"], 130, True),
    (["SIGINT", "SIGINT"], 130, False), (["SIGTERM", "SIGINT"], 143, False),
])  # fmt: skip
def test_workers_save_unless_ctrl_c_comes_once_more(signals, status, saved):
    with started(0.5 if saved else 60) as ran:
        for i, name in enumerate(signals):
            wait_for(lambda: len([*Path().glob(f"*.{'told' if i else 'ready'}")]) == 2)  # noqa: B023
            ran.send_signal(getattr(signal, name))
        out, err = ran.communicate(timeout=20)
    assert (ran.returncode, err) == (status, ""), out
    assert len([*Path().glob("*.saved")]) == 2 * saved
    assert ("have saved: the next start goes on there" in out) is saved
    assert not any(map(lives, pids()))


def test_a_worker_that_is_told_itself_saves_and_is_started_again_if_asked():
    for options, status in (((), 75), (("--restarts", "1"), 0)):
        with started(0.1, "--workers", "1", *options) as ran:
            wait_for(lambda: Path("0.ready").exists())
            os.kill(pids()[0], signal.SIGTERM)
            out, _ = ran.communicate(timeout=20)
        assert ran.returncode == status and "told to end by a signal" in out
        for file in Path().glob("0.*"):
            file.unlink()


def test_a_closed_terminal_lets_workers_save():
    Path("saves.py").write_text(SAVES)
    pid, terminal = pty.fork()
    if not pid:
        os.execl(sys.executable, sys.executable, "-m", "mgpu_helpers", "cluster", "saves.py", "--",
                 "0.3")  # fmt: skip
    wait_for(lambda: len([*Path().glob("*.ready")]) == 2)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 75
    assert len([*Path().glob("*.saved")]) == 2 and not any(map(lives, pids()))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "failure"])
def test_a_child_in_a_group_or_session_of_its_own_ends_with_its_worker(name):
    Path("group.py").write_text(
        "import os, subprocess, sys, time\n"
        "for leaves in os.setpgrp, os.setsid:\n"
        "    child = subprocess.Popen(['sleep', '60'], preexec_fn=leaves)\n"
        "    print(child.pid, file=open('new', 'a'))\n"
        "os.rename('new', '0.ready')\n"
        "time.sleep(60 * (sys.argv[1] != 'failure'))\nsys.exit(1)"
    )
    with launcher("group.py", "--workers", "1", "--", name) as ran:
        wait_for(lambda: Path("0.ready").exists())
        if name != "failure":
            ran.send_signal(getattr(signal, name))
        ran.communicate(timeout=20)
    wait_for(lambda: not any(map(lives, pids())))


def test_ctrl_c_while_a_class_is_made_ends_as_ever(monkeypatch):
    class Pressed:
        def __set_name__(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "_called", lambda _: type("Worker", (), {"x": Pressed()}))
    assert command.main(["cluster"]) == 130


def test_ctrl_c_at_each_moment_leaves_no_process_and_no_traceback(monkeypatch):
    """From the first that the command does to when the workers run."""
    monkeypatch.setenv("MARK", "ctrl-c")
    Path("sleeps.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(60)\n")
    # What `main` calls says that it has begun: a signal before is Python's, and has a traceback.
    code = (
        "import sys, mgpu_helpers.__main__ as command\n"
        "called = command._called\n"
        "command._called = lambda given: print('begun', flush=True) or called(given)\n"
        "sys.exit(command.main(['cluster', 'sleeps.py', '--grace', '0.2']))"
    )
    for seconds in (0.0, 0.05, 0.1, 0.2, 0.4):
        pipe = subprocess.PIPE
        ran = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
        assert ran.stdout.readline() == "begun\n"
        time.sleep(seconds)
        ran.send_signal(signal.SIGINT)
        out, err = ran.communicate(timeout=20)
        assert (ran.returncode, err) == (130, ""), (seconds, out)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of others, or over
            marked = b"MARK=ctrl-c" in (process / "environ").read_bytes()
            assert not (marked and lives(int(process.name)))
