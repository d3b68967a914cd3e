"""The notebooks hold on other processors (`-m isa`) and on other device counts (`-m counts`).

These settings of oneDNN stand in for other people's machines: sums are taken in another order, and
a trained loss moves in its third or fourth digit.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from lessons import ROOT, environment


def run_notebooks(how: str, **settings: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", how, "-q", "-p", "no:cacheprovider", "notebooks"],
        cwd=ROOT,
        env=environment() | settings,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]


@pytest.mark.isa
@pytest.mark.parametrize(
    "setting",
    ["ONEDNN_MAX_CPU_ISA=AVX2", "ONEDNN_MAX_CPU_ISA=SSE41", "TF_ENABLE_ONEDNN_OPTS=0"],
)
def test_stored_outputs_hold_on_another_processor(setting: str):
    run_notebooks("--nbval", **dict([setting.split("=")]))


@pytest.mark.counts
@pytest.mark.parametrize("devices", [1, 4, 8])
def test_every_cell_runs_with_another_number_of_devices(devices: int):
    run_notebooks("--nbval-lax", MGPU_DEVICES=str(devices))
