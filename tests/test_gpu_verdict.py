"""The verdict of `make gpu`, on small notebooks in cores mode: their kernels are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from conftest import ROOT
from gpu_verdict import judge


def cell(source: str, said: str, *tags: str):
    outputs = [new_output("stream", text=said)] if said else []
    return new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)} if tags else {})


@pytest.mark.parametrize("before, now, tags, wrong", [
    ("equal: True", "equal: True", (), ""),
    ("equal: True", "equal: False", (), "equal: False"),
    ("a: True\nb: False", "a: False\nb: True", (), "a: False"),
    ("for 2 devices: True", "for 1: True\nfor 2: False", (), "for 2: False"),
    ("plain: False", "plain: False", (), ""),
    ("12 bytes", "24 bytes", (), ""),
    ("yes: four", "yes: five", ("solution",), ""),
    ("yes: four", "not yet: it is slow", ("solution",), "it is slow"),
    ("yes: four", "", ("solution",), "nothing"),
    ("not yet: a stub", "not yet: another", ("exercise",), ""),
])  # fmt: skip
def test_judge_looks_at_proofs_and_solutions(before, now, tags, wrong):
    said = judge(cell("", before, *tags), cell("", now, *tags))
    assert wrong in said and bool(said) == bool(wrong)


def verdict(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_verdict.py"), "--no-bench"]
    command += ["--folder", str(folder), "--results", str(folder / "results"), *options]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MGPU_")}
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=300)


def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path):
    done = verdict(tmp_path)
    (line,) = done.stdout.splitlines()
    assert done.returncode == 1 and "no GPU" in line
    assert not (tmp_path / "results").exists()


@pytest.mark.thorough
def test_what_does_not_hold_is_named_by_lesson_and_cell(tmp_path: Path):
    pictured = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    good = [cell("print('equal:', 1 + 1 == 2)", "equal: True"), cell(pictured, "", "cover")]
    bad = [
        cell("print('equal:', 1 + 1 == 3)", "equal: True"),
        cell("1 / 0", ""),
        cell("print('not yet: no')", "yes: fine", "solution"),
        cell("print('still running')", ""),
    ]
    for name, cells in {"00_good": good, "01_bad": bad}.items():
        nbformat.write(new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    done = verdict(tmp_path, MGPU_MODE="cores")
    found = [line for line in done.stdout.splitlines() if line.startswith("  01_bad")]
    assert done.returncode == 1 and "verdict: 3 did not hold" in done.stdout, done.stdout
    for line, (number, word) in zip(
        found, [(1, "False"), (2, "ZeroDivisionError"), (3, "not yet: no")], strict=True
    ):
        assert f"cell {number}," in line and word in line
    (card,) = (tmp_path / "results").glob("gpu-*.json")
    numbers = json.loads(card.read_text())["numbers"]
    assert (numbers["cells"], numbers["proofs"], numbers["held"]) == (6, 2, False)
    assert (card.with_suffix("") / "00_good.png").read_bytes().startswith(b"\x89PNG")

    done = verdict(tmp_path, "00", MGPU_MODE="cores")
    assert done.returncode == 0 and "all of it held (1 lessons" in done.stdout, done.stdout
