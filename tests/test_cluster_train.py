"""A training on several workers is that of one, whatever happens meanwhile."""

from __future__ import annotations

import resource
import shutil

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


def test_a_worker_that_is_killed_and_one_that_sleeps_change_no_bit(tmp_path, two):
    faults = ["--kill-at", "10", "--sleep-at", "18"]
    report = train(tmp_path, "--anew", *faults, restarts=2, stalled=20)
    assert report.ok and report.attempts[0].first == 1 and "SIGKILL" in report.attempts[0].why
    assert "in worker_1" in report.attempts[1].doing
    digests = {job.result["state"] for job in (*report, *two[1])}
    assert len(digests) == 1 and {job.result["anew"] for job in report} == digests
    assert len(report[0].result["history"]["loss"]) == 1  # two of three passes were done before


def test_a_full_disk_then_half_a_backup_then_three_workers(tmp_path, two):
    """The backup before is kept, and read by another number of workers."""
    import keras

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
    for name in ("latest.weights.h5", "training_metadata.json"):
        shutil.copy(kept.with_name(name), kept.with_name(f"{name}.bkp"))
    kept.write_bytes(kept.read_bytes()[:50_000])
    report = train(tmp_path, workers=3)
    assert report.ok, report
    assert len({job.result["state"] for job in report}) == 1
    assert len(report[0].result["history"]["loss"]) == 1
    found, wanted = (keras.models.load_model(folder / "model.keras").get_weights()
                     for folder in (tmp_path, two[0]))  # fmt: skip
    assert max(np.abs(a - b).max() for a, b in zip(found, wanted, strict=True)) < 1e-5
