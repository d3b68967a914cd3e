"""`fit` on two workers is that of one device, whatever happens meanwhile."""

from __future__ import annotations

import os

import pytest

from conftest import ROOT, limited
from mgpu_helpers import cluster
from test_fit import CASES, EXACT, largest_difference, run_cases

pytestmark = pytest.mark.thorough

STARTUP = 200.0  # seconds: other tests may have the cores


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("CUDA_", "SLURM_", "MGPU_", "TF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MGPU_MODE", "cores")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


@pytest.fixture(autouse=True)
def never_hangs():
    with limited(600):
        yield


def run(script, folder, *args, **options):
    return cluster.run(script, list(args), logs=folder / "logs", startup=STARTUP, progress=False,
                       grace=1.0, **options)  # fmt: skip


def test_every_case_on_two_workers_is_that_of_one_device(tmp_path):
    names = ",".join(EXACT)
    one = run_cases(tmp_path / "one.npz", names, "1")
    import numpy as np

    report = run(CASES, tmp_path, tmp_path / "two.npz", names, "0", workers=2)
    assert report.ok, report
    two = np.load(tmp_path / "two.npz")
    for case, bound in EXACT.items():
        assert largest_difference(two, one, case, 0) < bound, case
