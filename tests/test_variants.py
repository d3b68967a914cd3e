"""The notebooks hold elsewhere: on other processors, and on other numbers of devices.

`-m isa`: settings of oneDNN stand in for other people's processors: sums are taken in another
order, and a trained loss moves in its third or fourth digit. `-m counts`: other numbers of devices.
Lessons 16 and 17 are in neither: they start scripts on what the machine has, whatever MGPU_DEVICES
says. The browser's tests run all lessons with the other oneDNN, and by a GPU machine's rules.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import longest_first, run_python
from lessons import NOTEBOOKS as FOLDER
from lessons import ROOT, environment, read

NOTEBOOKS = [path for path in longest_first(FOLDER) if path.name[:2] not in ("16", "17")]


def each_of(notebooks: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("notebook", notebooks, ids=lambda path: path.name[:2])


def run_notebook(notebook: Path, how: str, **settings: str) -> str:
    """Run a notebook under nbval; return what it says of cells that fail, "" where none does.

    Eight devices on two cores beside other work take minutes for a cell that trains three times.
    """
    env = environment() | {"MGPU_REPEATS": "1"} | settings
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", how, "-q"]
    command += ["--nbval-cell-timeout=300", "-p", "no:cacheprovider", str(notebook)]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return run.stdout[-10_000:] + run.stderr[-2_000:] if run.returncode else ""


@pytest.fixture(scope="module")
def onednn() -> bool:
    """Say whether TensorFlow computes with oneDNN here: only some processors do unasked."""
    code = "from mgpu_helpers import _private; print(_private.uses_onednn())"
    return run_python(code).stdout == "True\n"


@pytest.mark.isa
@pytest.mark.parametrize("setting", ["SSE41", "the other oneDNN"])
@each_of(NOTEBOOKS)
def test_stored_outputs_hold_on_another_processor(onednn: bool, setting: str, notebook: Path):
    settings = {"TF_ENABLE_ONEDNN_OPTS": str(int(not onednn))}
    if setting == "SSE41":
        if notebook.name[:2] == "10":
            pytest.skip("TensorFlow asks the processor whether oneDNN has bfloat16, not oneDNN")
        settings = {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    assert not run_notebook(notebook, "--nbval", **settings)


# Each number where it matters most: 3, 5 and 7 divide few sizes, one device has nobody to share
# with, and eight wait longest.
COUNTS = [(lesson.number, n) for lesson in read() for n in lesson.devices[1:]]


def test_every_number_of_devices_is_tried():
    assert {2, *(n for _, n in COUNTS)} == set(range(1, 9))


@pytest.mark.counts
@pytest.mark.parametrize("number, devices", COUNTS)
def test_every_cell_runs_with_another_number_of_devices(number: str, devices: int):
    (notebook,) = FOLDER.glob(f"{number}_*.ipynb")
    assert not run_notebook(notebook, "--nbval-lax", MGPU_DEVICES=str(devices))
