"""What several test files share: a fresh Python, and one plan for the whole pytest process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In the background of a script a shell ignores Ctrl-C, and under nohup a lost terminal; what is
# ignored stays so in every child. The tests are about what these signals do.
for ignored in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        handler = signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL
        signal.signal(ignored, handler)

ROOT = Path(__file__).resolve().parent.parent


def run_python(code: str, *, check: bool = True, timeout: float = 120, **env: str):
    """Run code in a fresh Python without the caller's MGPU_, TF_ and CUDA_ settings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MGPU_", "TF_", "CUDA_"))}
    clean["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | env, cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def plan():
    """Give the plan of this pytest process: two devices, in cores mode."""
    from mgpu_helpers import devices

    os.environ["MGPU_MODE"] = "cores"
    return devices.setup(2)
