"""The cells of docs/kaggle.md, in environments like those of Kaggle and Colab, on cores."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from conftest import ROOT, clean
from test_wheel import built

pytestmark = [pytest.mark.tools, pytest.mark.thorough]

CELLS = re.findall(r"```ipython\n(.*?)```", (ROOT / "docs" / "kaggle.md").read_text(), re.DOTALL)
# Python, TensorFlow and Keras, as Kaggle had them in 2025, and Colab.
THEIRS = {"kaggle": ("3.11", "2.18.0", "3.8.0"), "colab": ("3.12", "2.19.0", "3.10.0")}
MAY_GO_UP = {"keras"}  # the page says so


def python(version: str) -> str:
    """Find a Python of this version; one that stands there and does not run is none."""
    others = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for program in (f"python{version}", *others):
        found = shutil.which(program)
        if found and not subprocess.run([found, "-V"], capture_output=True).returncode:
            return found
    pytest.skip(f"there is no Python {version}")


@pytest.mark.parametrize("place", THEIRS)
def test_three_cells_train_and_open_the_lessons_and_keep_tensorflow(place: str, tmp_path: Path):
    version, tensorflow, keras = THEIRS[place]
    env = clean(MGPU_MODE="cores", PYTHONPATH="", PYTHONNOUSERSITE="1")
    there, scripts = tmp_path / "there", tmp_path / "env" / "bin"
    there.mkdir()

    def call(*command: object) -> str:
        done = subprocess.run([*map(str, command)], cwd=there, env=env, text=True,
                              capture_output=True, timeout=1200)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def versions() -> dict[str, str]:
        listed = json.loads(call(scripts / "python", "-m", "pip", "list", "--format=json"))
        return {each["name"].lower().replace("_", "-"): each["version"] for each in listed}

    call(python(version), "-m", "venv", tmp_path / "env")
    wanted = [f"tensorflow=={tensorflow}", f"keras=={keras}", "matplotlib", "scipy"]
    call(scripts / "python", "-m", "pip", "install", "-q", *wanted, "ipykernel", "nbconvert")
    before = versions()
    shutil.copy(built(tmp_path / "dist")[1], there)
    nbformat.write(new_notebook(cells=[*map(new_code_cell, CELLS)]), there / "three.ipynb")
    env["PATH"] = f"{scripts}:{env['PATH']}"
    call(scripts / "python", "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace",
         "--ExecutePreprocessor.timeout=900", "three.ipynb")  # fmt: skip

    after = versions()
    assert {name for name in before if after.get(name) != before[name]} <= MAY_GO_UP
    assert before["tensorflow"] == after["tensorflow"] == tensorflow
    assert "nvidia-ml-py" in after and len(CELLS) == 3
    said = [str(cell.outputs) for cell in nbformat.read(there / "three.ipynb", 4).cells]
    assert f"tensorflow {tensorflow}" in said[0] and "Epoch 2/2" in said[1]
    assert "verdict: all of it held (2 lessons" in said[2]
    assert (there / "mgpu" / "notebooks" / "00_meet_your_machine.ipynb").exists()
