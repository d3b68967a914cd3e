"""What a user's type checker says of a script that uses the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPT = """
from mgpu_helpers import charts, devices, jobs, memory, timing, trace

plan: devices.Plan = devices.setup(2)
device: str = plan.devices[0]
timed: timing.Timing = timing.measure(lambda: sum(range(10)))
step: trace.Trace = trace.fit_step(object(), (1, 2))
charts.timeline(step)
batch: int = memory.fits(object(), 1e9)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("wrong, says", [
    ("", "Success: no issues found"),
    ("length: str = step.length", 'has type "float", variable has type "str"'),
    ("jobs.run(commands=1, nonsense=2)", 'Unexpected keyword argument "nonsense"'),
])  # fmt: skip
def test_a_script_is_checked_by_the_types_of_the_package(tmp_path: Path, wrong: str, says: str):
    (tmp_path / "script.py").write_text(SCRIPT + wrong)
    # Silent, as mypy is of what is installed: the package's own errors are for make lint.
    settings = ["--strict", "--config-file=", "--follow-imports=silent"]
    settings.append(f"--cache-dir={ROOT / '.mypy_cache' / 'user'}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "script.py"], cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert says in done.stdout, done.stdout + done.stderr
