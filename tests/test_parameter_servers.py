"""docs/parameter_servers.md shows what its script prints, and the script leaves no process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from conftest import ROOT, limited, wait_for

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs" / "parameter_servers.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "notebooks" / "scripts" / "parameter_servers.py"
WORKER, SERVER = re.findall(r"^```\n(asked .+?)```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def started(*options):
    """Start the script in a process group of its own; end what is left of the group."""
    ran = subprocess.Popen(
        [sys.executable, SCRIPT, *options], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield ran
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ran.pid, signal.SIGKILL)
        ran.communicate()


def gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(autouse=True)
def never_hangs():
    with limited(200):
        yield


def test_the_page_shows_the_code_that_runs():
    (code,) = re.findall(r"^```python\n(.+?)```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert code in SCRIPT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "killed, shown, code", [("worker 1", WORKER, 0), ("ps 0", SERVER, 1)], ids=["worker", "server"]
)
def test_the_page_shows_what_the_script_prints(killed, shown, code):
    """Every update is applied, and the one whose worker was killed in it is applied twice."""
    with started("--kill", killed) as ran:
        out, err = ran.communicate()
        wait_for(lambda: gone(ran.pid))
    counts = [tuple(map(int, pair)) for pair in re.findall(r"asked for (\d+) .* (\d+) were", out)]
    assert all(asked <= applied for asked, applied in counts), out + err
    assert (out, ran.returncode) == (shown, code), err


def test_a_coordinator_that_is_killed_leaves_no_process():
    with started("--updates", "8") as ran:
        assert ran.stdout.readline() == "asked for 4 updates, 4 were applied\n"
        os.kill(ran.pid, signal.SIGKILL)
        ran.wait()
        wait_for(lambda: gone(ran.pid))
