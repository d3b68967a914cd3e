"""The notebooks hold on other processors (`-m isa`) and on other device counts (`-m counts`).

These settings of oneDNN stand in for other people's machines: sums are taken in another order, and
a trained loss moves in its third or fourth digit. Lesson 03 is in neither: it starts scripts on
what the machine has, and compares them with themselves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lessons import ROOT, environment

NOTEBOOKS = [n for n in sorted((ROOT / "notebooks").glob("*.ipynb")) if n.name[:2] != "03"]
every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name[:2])


def run_notebook(notebook: Path, how: str, **settings: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", how, "-q", "-p", "no:cacheprovider", notebook],
        cwd=ROOT,
        env=environment() | settings,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]


@pytest.mark.isa
@pytest.mark.parametrize("setting", ["ONEDNN_MAX_CPU_ISA=AVX2", "TF_ENABLE_ONEDNN_OPTS=0"])
@every_notebook
def test_stored_outputs_hold_on_another_processor(setting: str, notebook: Path):
    run_notebook(notebook, "--nbval", **dict([setting.split("=")]))


@pytest.mark.counts
@pytest.mark.parametrize("devices", [1, 8])  # 2 is what is stored; 4 is what the browser runs
@every_notebook
def test_every_cell_runs_with_another_number_of_devices(devices: int, notebook: Path):
    run_notebook(notebook, "--nbval-lax", MGPU_DEVICES=str(devices))
