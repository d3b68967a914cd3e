"""The parts of benchmarks/link.py: what it counts, what it predicts, and that it leaves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import link
import test_jobs
from conftest import wait_for

HOW, MADE = link.spaces()
spaces = pytest.mark.skipif(HOW is None, reason=MADE)

# Workers without TensorFlow; their name is in their command, so that one that is left can be found.
WORKER = """
import json, os, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print(json.dumps([index, sorted(os.listdir("/proc/sys/net/ipv4/conf")), sys.argv[1:]]))
"""
FAILS = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit("no such digit")
time.sleep(60)
"""

never_hangs = test_jobs.never_hangs


@pytest.fixture
def script(tmp_path):
    """Give the place of a worker's script, and see that no process and no interface is left."""
    path, before = tmp_path / "worker.py", os.listdir("/sys/class/net")
    yield path
    assert not left(path)  # right after the call
    assert sorted(os.listdir("/sys/class/net")) == sorted(before)


def left(script):
    """List the processes whose command has a script's name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(script) in entry.read_bytes() and entry.parent.name != str(os.getpid()):
                found.append(entry.parent.name)
    return found


def test_the_prediction_is_the_ring_and_what_a_link_without_a_limit_takes():
    """5 MB: of n workers each sends 2(n - 1)/n of it; the slowest worker counts."""
    fast = {"compute": 0.1, "average": 0.010, "step": 0.2}
    slow = {"compute": 0.3, "average": 0.016, "step": 0.4}
    one, other = ({"0": each, "200": each, "50": each} for each in (fast, slow))
    rows = link.compared([one, other]) + link.compared([one, other, one])
    assert [(row["workers"], row["megabits"], row["ring"]) for row in rows] == [
        (2, 200, 0.2), (2, 50, 0.8), (3, 200, 0.2667), (3, 50, 1.0667)
    ]  # fmt: skip
    assert [row["predicted"] for row in rows] == [
        round(0.016 + ring / 0.956, 4) for ring in (0.2, 0.8, 4 / 15, 16 / 15)
    ]
    for row in rows:
        assert (row["unlimited"], row["seconds"], row["step"]) == (0.016, 0.016, 0.4)
        assert row["step_predicted"] == round(0.3 + row["predicted"], 4)


@spaces
def test_each_worker_has_a_network_of_its_own(script):
    script.write_text(WORKER)
    own = [["all", "default", "e0", "lo"], ["0", "200", "50"]]
    assert link.slow(3, HOW, script) == [[index, *own] for index in range(3)]


@spaces
def test_a_worker_that_fails_ends_all_and_leaves_nothing(script):
    script.write_text(FAILS)
    with pytest.raises(RuntimeError, match=r"(?s)2 workers .*no such digit.* with \[None, 1\]"):
        link.slow(2, HOW, script)
    # Without a namespace of processes, whose end would be the end of all, its own clean-up does it.
    inner = [*HOW.split(), sys.executable, link.__file__, "2", script]
    assert subprocess.run(inner, capture_output=True, timeout=30).returncode == 1


@spaces
def test_a_benchmark_that_is_stopped_leaves_nothing(script):
    script.write_text("import sys, time; open(sys.argv[0] + '.there', 'w').close(); time.sleep(60)")

    def stop():
        wait_for(Path(f"{script}.there").exists)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with ThreadPoolExecutor() as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(stop)
        link.slow(2, HOW, script)
