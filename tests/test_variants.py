"""The notebooks hold elsewhere: on other processors, device counts, and by a GPU machine's rule.

`-m isa`: settings of oneDNN stand in for other people's processors: sums are taken in another
order, and a trained loss moves in its third or fourth digit. `-m counts`: other numbers of devices.
Lessons 04 and 05 are in neither: they start scripts on what the machine has, whatever MGPU_DEVICES
says, and the rehearsal has their trainings compute with the other oneDNN. `-m rehearse`: what
nobody placed goes to the first device, and Keras compiles with XLA, as gpu_rule.py has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from conftest import longest_first, run_python
from lessons import NOTEBOOKS as FOLDER
from lessons import ROOT, environment, tags

ALL = longest_first(FOLDER)
NOTEBOOKS = [notebook for notebook in ALL if notebook.name[:2] not in ("04", "05")]


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


# Each number where it matters most: 5 and 7 divide few sizes, one device has nobody to share with,
# and eight wait longest. 2 is what is stored, and 3 is what the browser runs.
COUNTS = {
    "00": (7,), "01": (1,), "03": (1,), "06": (8,), "07": (5, 1), "08": (7,), "09": (1, 6),
    "10": (4,), "11": (1, 8), "12": (6,), "13": (1, 4), "14": (5,), "15": (1,), "16": (1,),
    "19": (1,),
}  # fmt: skip
WITHOUT = {"02", "04", "05", "17", "18"}  # nothing of theirs is shared out over the plan


def test_every_lesson_and_every_number_of_devices_is_tried():
    assert COUNTS.keys() | WITHOUT == {notebook.name[:2] for notebook in ALL}
    assert {2, 3}.union(*COUNTS.values()) == set(range(1, 9))


@pytest.mark.counts
@pytest.mark.parametrize("number, devices", [(n, each) for n in COUNTS for each in COUNTS[n]])
def test_every_cell_runs_with_another_number_of_devices(number: str, devices: int):
    (notebook,) = FOLDER.glob(f"{number}_*.ipynb")
    assert not run_notebook(notebook, "--nbval-lax", MGPU_DEVICES=str(devices))


def rehearse(notebook: Path, folder: Path, onednn: str = "1", **changed: str) -> str:
    """Run a notebook by the rule of a GPU machine, against its outputs; `changed` is source text.

    The outputs of cells tagged `unplaced` are about that rule: there the host's name becomes that
    of the first device.
    """
    copy = nbformat.read(notebook, as_version=4)
    for cell in copy.cells:
        for old, new in changed.items():
            cell.source = cell.source.replace(old, new)
        for output in cell.outputs if "unplaced" in tags(cell) else ():
            for texts, name in ((output, "text"), (output.get("data", {}), "text/plain")):
                if name in texts:
                    texts[name] = texts[name].replace("CPU:0", "CPU:1")
    (folder / "notebooks").mkdir()
    for name in ("notebooks/scripts", "results"):
        (folder / name).symlink_to(ROOT / name)
    path = folder / "notebooks" / notebook.name
    nbformat.write(copy, path)
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "rule.py").write_text("import gpu_rule\ngpu_rule.install()\n")
    here = os.pathsep.join((str(ROOT / "src"), str(Path(__file__).parent)))
    settings = {"IPYTHONDIR": str(folder / "ipython"), "TF_ENABLE_ONEDNN_OPTS": onednn}
    return run_notebook(path, "--nbval", PYTHONPATH=here, **settings)


@pytest.mark.rehearse
@each_of(ALL)
def test_stored_outputs_hold_by_the_rule_of_a_gpu_machine(
    onednn: bool, notebook: Path, tmp_path: Path
):
    """They do so with oneDNN where this processor has it off, and else without."""
    assert not rehearse(notebook, tmp_path, str(int(not onednn)))


@pytest.mark.rehearse
def test_the_rehearsal_notices_what_is_not_placed(tmp_path: Path):
    nobody = {"tf.device(plan.host)": "tf.name_scope('nobody')"}
    # the cell that fails counts bytes
    assert "step.bytes_between()" in rehearse(min(ALL), tmp_path, **nobody)


COMPILED = """
import gpu_rule
from mgpu_helpers import devices

gpu_rule.install()
plan = devices.setup(2)
import keras, numpy as np, tensorflow as tf

for compiled_on in plan.devices[1], None:
    with tf.device(plan.devices[1]):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    with tf.device(compiled_on):
        model.compile("sgd", "mse")
    with tf.device(plan.devices[1]):
        try:
            print(np.isfinite(model.train_on_batch(np.ones([4, 3]), np.ones([4, 2]))))
        except tf.errors.InvalidArgumentError as error:
            print("located in device" in error.message)
with tf.distribute.MirroredStrategy(plan.devices).scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
print(model.jit_compile)
"""


@pytest.mark.rehearse
def test_the_rehearsal_notices_a_model_that_is_compiled_elsewhere():
    """As lesson 06 once did: the metrics were on the first device, and the weights on the last."""
    assert run_python(COMPILED, MGPU_MODE="cores").stdout == "True\nTrue\nFalse\n"
