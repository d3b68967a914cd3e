"""`fit` on two workers is that of one device, whatever happens meanwhile."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys

import numpy as np
import pytest

import draw_readme
from conftest import ROOT, STARTUP, limited
from mgpu_helpers import cluster

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("workers")]


@pytest.fixture(autouse=True)
def never_hangs():
    with limited(600):
        yield


def run(script, folder, *args, **options):
    return cluster.run(script, list(args), logs=folder / "logs", stalled=STARTUP, progress=False,
                       grace=1.0, **options)  # fmt: skip


def test_two_workers_exchange_gradients_in_packs_and_train_the_same(tmp_path):
    """And say what cannot be: a sum in a loop over steps, and data of each worker's own."""
    report = run(ROOT / "tests" / "fit_packs.py", tmp_path, workers=2)
    assert report.ok, report
    for worker in report:
        assert worker.result == {"one": [11], "packs": [3, 7, 11], "same": True,
                                 "in a loop": True, "parts": True}  # fmt: skip


MINE = """
from keras import Input, Sequential, layers
from mgpu_helpers.lessons import digits

images, labels = digits.load(256)


def build():
    model = Sequential([Input([28, 28, 1]), layers.Flatten(), layers.Dense(10, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


"""


def test_the_lines_of_lesson_21_run_on_two_workers_with_arrays(tmp_path):
    lesson = json.loads((ROOT / "notebooks" / "21_fit_on_several_machines.ipynb").read_text())
    page, script = tmp_path / "lesson.md", tmp_path / "train.py"
    page.write_text("".join(lesson["cells"][0]["source"]), encoding="utf-8")
    script.write_text(MINE + draw_readme.code_with(page, "fit.strategy"), encoding="utf-8")
    report = run(script, tmp_path, workers=2)
    assert report.ok, report


TRAIN = ROOT / "tests" / "fit_train.py"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGPU_MODE", "cores")
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        report = run(TRAIN, folder, folder, "plain", workers=2)
    assert report.ok, report
    return folder, report


def test_only_the_chief_writes_and_each_worker_finds_what_it_has_saved_last(uninterrupted):
    folder, report = uninterrupted
    assert report[0].result == report[1].result  # the digest of every bit, and the history
    assert report[0].result["saved"]
    assert (folder / "log.csv").read_text().count("\n") == 6  # a title, and five passes once each
    assert (folder / "best.keras").exists() and not (folder / "backup").exists()
    assert len([*(folder / "board" / "train").iterdir()]) == 1


def test_a_script_that_fits_and_saves_in_the_scope_is_the_same(tmp_path, uninterrupted):
    """Where the chief alone makes no variable: the others would have to make it, too."""
    report = run(TRAIN, tmp_path, tmp_path, "inside", workers=2)
    assert report.ok, report
    assert [worker.result for worker in report] == [worker.result for worker in uninterrupted[1]]
    assert (tmp_path / "0.keras").exists() and (tmp_path / "1.keras").exists()


def test_a_killed_worker_changes_no_bit(tmp_path, uninterrupted):
    report = run(TRAIN, tmp_path, tmp_path, "kill", workers=2, restarts=1)
    assert report.ok and report.attempts[0].first == 1 and "SIGKILL" in report.attempts[0].why
    states = {job.result["state"] for job in report}
    assert states == {uninterrupted[1][0].result["state"]}
    assert len(report[0].result["history"]["loss"]) == 3  # two passes were done before


@pytest.mark.parametrize("step", ["8", "9", "15"])
def test_a_worker_that_is_told_to_end_changes_no_bit_and_no_loss(step, tmp_path, uninterrupted):
    """In the midst of a pass of three steps, at its end, and at the end of all."""
    report = run(TRAIN, tmp_path, tmp_path, f"told-worker-{step}", workers=2, restarts=1)
    assert report.ok, report
    if step == "15":
        assert len(report.attempts) == 1
    else:
        first = report.attempts[0]
        assert [job.status for job in first.workers] == ["saved"] * 2 and "goes on" in first.why
        assert [job.returncode for job in first.workers] == [75, 75]
    whole = uninterrupted[1][0].result
    for job in report:
        assert job.result["state"] == whole["state"]
        for name, values in job.result["history"].items():
            assert values == whole["history"][name][-len(values) :], name


def test_a_launcher_that_is_told_to_end_lets_its_workers_save(tmp_path, uninterrupted):
    command = [sys.executable, "-m", "mgpu_helpers", "cluster", "--stalled", "200", "--logs",
               tmp_path / "logs", TRAIN, "--", tmp_path, "told-launcher-7"]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert told.returncode == 75 and told.stdout.count("\nsaving     worker") == 2, told
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    last = (tmp_path / "logs" / "worker_1.log").read_text().splitlines()[-1]
    assert json.loads(last)["state"] == uninterrupted[1][0].result["state"]


def test_rates_follow_what_all_workers_measure(tmp_path, monkeypatch, capsys, plan):
    report = run(TRAIN, tmp_path, tmp_path, "rates", workers=2)
    assert report.ok, report
    (tmp_path / "alone").mkdir()
    monkeypatch.setattr(sys, "argv", [str(TRAIN), str(tmp_path / "alone"), "rates"])
    runpy.run_path(str(TRAIN))
    alone = json.loads(capsys.readouterr().out.splitlines()[-1])["history"]
    for name, values in alone.items():
        np.testing.assert_allclose(report[0].result["history"][name], values, 1e-5, err_msg=name)
    assert len(set(alone["learning_rate"])) == 5


def test_workers_with_another_order_are_told_at_the_first_step(tmp_path):
    report = run(TRAIN, tmp_path, tmp_path, "seeds", workers=2)
    assert not report.ok and "ValueError" in report[0].tail and not (tmp_path / "backup").exists()


def test_workers_with_data_of_another_length_are_told_which_and_can_go_on(tmp_path):
    report = run(ROOT / "tests" / "fit_lengths.py", tmp_path, workers=2)
    assert report.ok, report
    found = report[1].result
    assert found == report[0].result
    assert {name: steps for name, (_, steps) in found.items()} == {
        "as many": 6, "fewer batches": 0, "nobody knows": 2, "a shorter last batch": 3, "arrays": 0,
        "validation": 3, "evaluate": 0, "predict": 0, "as many again": 3,
    }  # fmt: skip
    said = {name: what for name, (what, _) in found.items()}
    assert said.pop("as many") == said.pop("as many again") == "nothing"
    assert said["arrays"] == "size of the last batch: 0 in worker 0, 4 in worker 1"
    assert said["a shorter last batch"].endswith("in a pass: 24 in worker 0, 20 in worker 1")
    assert said["fewer batches"].endswith(": 3 in worker 0, 2 in worker 1")
    assert said["predict"].endswith(": 3 in worker 0, 2 in worker 1")
    for name in ("nobody knows", "validation", "evaluate"):
        assert said[name] == "number of batches: more in worker 0, 2 in worker 1", name
