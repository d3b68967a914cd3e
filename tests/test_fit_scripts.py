"""Whole scripts as users have them: alone, and with their marked lines on devices and workers."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, clean, limited

EXAMPLES = ROOT / "examples"
LIMIT = 300  # seconds: a script takes about ten on a core that nobody else uses

# What switches off all that draws: another number of replicas has other draws. The bound is a share
# of the value, and of 1 for what is near 0.
SAME: dict[str, tuple[list[str], float]] = {
    "resnet": (["{folder}", "--no-augmentation"], 1e-5),
    "language_model": (["--policy", "float32", "--dropout", "0"], 1e-5),
    "two_outputs": ([], 1e-5), "gan": ([], 1e-4), "vae": ([], 1e-5),
    "contrastive": ([], 1e-5), "fine_tune": (["--dtype", "float32"], 1e-5),
    "transfer": (["--dtype", "float64"], 1e-5),  # its BatchNormalizations make much of rounding
}
CHECKED = {"vae", "gan", "contrastive"}  # beside which a step is compared before
# With all that a user has; the policy of the language model is its own, mixed_bfloat16.
RANDOM: dict[str, list[str]] = {"resnet": ["{folder}"], "language_model": []}


@pytest.fixture(autouse=True)
def kerashub(request):
    """Leave out what imports KerasHub where it is not."""
    call = getattr(request.node, "callspec", None)
    if call and call.params.get("name") == "fine_tune":
        reason = "KerasHub is not installed: `make env` installs it."
        pytest.importorskip("keras_hub", reason=reason, exc_type=ImportError)


def original(script: Path) -> tuple[str, int]:
    """Give a script without what `fit` needs, and how many lines of it that changes."""
    kept, changed = [], 0
    for line in script.read_text().splitlines():
        text, _, mark = line.rpartition("  # ")
        changed += mark in ("added", "indented")
        if mark == "indented":
            line = text.removeprefix("    ")
        if mark != "added":
            kept.append(line)
    return "\n".join(kept) + "\n", changed


def printed(text: str) -> dict[str, Any]:
    """Read the history that a script prints as its last line."""
    return json.loads(text.splitlines()[-1])


def ended(command: list[Any], **env: str) -> subprocess.CompletedProcess:
    """Run a Python that has to end well."""
    env = clean(PYTHONPATH=str(ROOT / "src"), MGPU_MODE="cores", MGPU_DEVICES="2") | env
    with limited(2 * LIMIT):  # also where its workers live on, with what it has printed to
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done


def words(arguments: list[str], folder: Path) -> list[str]:
    return [word.format(folder=folder) for word in arguments]


def run(script: Path, arguments: list[str], folder: Path) -> dict[str, Any]:
    done = ended([script, *words(arguments, folder)], CUDA_VISIBLE_DEVICES="-1")
    return printed(done.stdout)


def run_workers(script: Path, arguments: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run a script by `mgpu cluster`, as it says, and give what each worker has printed."""
    logs = folder.with_name(folder.name + "_logs")
    options = ["--workers", "2", "--logs", logs, "--stalled", "200", "--time-limit", str(LIMIT)]
    ended(["-m", "mgpu_helpers", "cluster", *options, script, "--", *words(arguments, folder)])
    return [printed((logs / f"worker_{i}.log").read_text()) for i in range(2)]


# How to run a script, and get what each of its processes has printed.
WHERE = {"devices": lambda *of: [run(*of)], "workers": run_workers}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Give what a script prints as it was: Keras's `fit` on one device, without a line of ours."""

    @functools.cache
    def printed_alone(name: str, *arguments: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(name)
        text, _ = original(EXAMPLES / f"{name}.py")
        (folder / "original.py").write_text(text)
        return run(folder / "original.py", [*(arguments or SAME[name][0])], folder / "alone")

    return printed_alone


def compare(found: dict[str, Any], wanted: dict[str, Any], bound: float) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=bound, atol=bound, err_msg=name)
    assert wanted["loss"][-1] < 0.8 * wanted["loss"][0]  # it has learned something
    if "learning_rate" in wanted:  # and was stopped early, at a rate that a plateau has lowered
        assert len(wanted["loss"]) < 5 and wanted["learning_rate"][-1] < 0.05 * 0.9**4


@pytest.mark.parametrize("name", SAME)
def test_three_lines_of_a_script_are_ours(name):
    text, changed = original(EXAMPLES / f"{name}.py")
    compile(text, name, "exec")
    assert 0 < changed <= 3 and "mgpu" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", SAME)
def test_two_devices_or_workers_print_the_history_of_one(name, where, alone, tmp_path):
    arguments, bound = SAME[name]
    for found in WHERE[where](EXAMPLES / f"{name}.py", arguments, tmp_path / "two"):
        compare(found, alone(name), bound)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.thorough
def test_mgpu_trains_a_script_on_two_devices_as_it_is(name, alone, tmp_path):
    """Not a line of it is changed; it says which devices those are, and prints what it printed."""
    arguments, bound = SAME[name]
    script = tmp_path / f"{name}.py"
    script.write_text(original(EXAMPLES / script.name)[0])
    check = ["--check"] * (name in CHECKED)
    command = ["-m", "mgpu_helpers", script, *check, *words(arguments, tmp_path / "two")]
    done = ended(command, CUDA_VISIBLE_DEVICES="-1")
    assert f"{script} trains on /CPU:1, /CPU:2" in done.stderr
    assert done.stderr.count("does on all devices what it does on one.") == len(check)
    compare(printed(done.stdout), alone(name), bound)


@pytest.mark.thorough
@pytest.mark.parametrize("policy, bound", [("mixed_float16", 1e-3), ("mixed_bfloat16", 1e-2)])
def test_mixed_precision_rounds_nearly_as_on_one_device(policy, bound, alone, tmp_path):
    """Shares of a batch add up in another order, in numbers of 11 or 8 bits: losses only."""
    arguments = ["--policy", policy, "--dropout", "0"]
    wanted = alone("language_model", *arguments)
    found = run(EXAMPLES / "language_model.py", arguments, tmp_path)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=bound, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", RANDOM)
def test_what_draws_learns_too(name, where, tmp_path):
    """With augmentation, dropout and mixed precision the numbers are others, alike on workers."""
    first, *others = WHERE[where](EXAMPLES / f"{name}.py", RANDOM[name], tmp_path / "two")
    assert all(each == first for each in others)
    assert np.isfinite(first["loss"]).all() and first["loss"][-1] < 0.8 * first["loss"][0]
