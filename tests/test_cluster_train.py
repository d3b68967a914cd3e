"""A training on several workers is that of one, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import resource
import runpy
import sys

import numpy as np
import pytest

from conftest import ROOT, STARTUP, limited
from mgpu_helpers import cluster

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("workers")]

TRAIN = ROOT / "notebooks" / "scripts" / "train_workers.py"


@pytest.fixture(autouse=True)
def never_hangs():
    with limited(300):
        yield


def train(folder, *args, **options):
    """Run the script on a cluster; its backups, its model and its logs are in the folder."""
    options = {"stalled": STARTUP, "progress": False, "grace": 1.0} | options
    return cluster.run(TRAIN, ["--folder", folder, *args], logs=folder / "logs", **options)


def weights(folder):
    import keras

    return keras.models.load_model(folder / "model.keras").get_weights()


def largest(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, plan):
    """Train in this process, without a strategy."""
    folder = tmp_path_factory.mktemp("alone")
    file = folder / "train.py"
    lines = "with fit.strategy(devices.setup()).scope():"
    assert lines in TRAIN.read_text()
    file.write_text(TRAIN.read_text().replace(lines, "if True:"))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(None):
        patch.delenv("TF_CONFIG", raising=False)
        patch.setattr(sys, "argv", [str(file), "--folder", str(folder)])
        runpy.run_path(str(file))
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Train on two workers, without a fault."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGPU_MODE", "cores")
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        report = train(folder)
    assert report.ok, report
    return folder, report


def test_two_workers_give_what_one_gives(alone, two):
    folder, report = two
    assert report[0].result == report[1].result  # the digest of every bit of both workers
    assert largest(weights(alone), weights(folder)) < 1e-5


def test_a_worker_that_is_killed_and_one_that_sleeps_change_no_bit(tmp_path, two):
    faults = ["--kill-at", "10", "--sleep-at", "18"]
    report = train(tmp_path, "--anew", *faults, restarts=2, stalled=20)
    assert report.ok and report.attempts[0].first == 1 and "SIGKILL" in report.attempts[0].why
    assert "in worker_1" in report.attempts[1].doing
    digests = {job.result["state"] for job in (*report, *two[1])}
    assert len(digests) == 1 and {job.result["anew"] for job in report} == digests
    assert len(report[0].result["history"]["loss"]) == 1  # two of three passes were done before


def test_a_full_disk_then_half_a_backup_then_three_workers(tmp_path, alone):
    """The backup before is kept, and read by another number of workers."""
    report = train(tmp_path, "--kill-at", "18")
    kept = tmp_path / "backup" / "latest.weights.h5"
    assert report.attempts[0].first == 1 and kept.exists(), report
    # A file may not grow beyond 50 kB, which the logs do not, and half a backup does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        report = train(tmp_path, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert report.attempts[0].first == 0 and "OSError" in report[0].tail, report
    # A backup that has another before it, and only half of which was written.
    (tmp_path / "backup" / "latest.weights.h5.bkp").write_bytes(kept.read_bytes())
    metadata = (tmp_path / "backup" / "training_metadata.json").read_bytes()
    (tmp_path / "backup" / "training_metadata.json.bkp").write_bytes(metadata)
    kept.write_bytes(kept.read_bytes()[:50_000])
    report = train(tmp_path, workers=3)
    assert report.ok, report
    assert len({job.result["state"] for job in report}) == 1
    assert len(report[0].result["history"]["loss"]) == 1
    assert largest(weights(tmp_path), weights(alone)) < 1e-5
