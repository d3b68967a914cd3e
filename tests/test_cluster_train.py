"""TensorFlow's own workers: one training on several is that of one, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import shutil
import sys

import numpy as np
import pytest

from conftest import ROOT, limited
from mgpu_helpers import cluster

pytestmark = pytest.mark.thorough

TRAIN = ROOT / "notebooks" / "scripts" / "train_workers.py"
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
    with limited(300):
        yield


def train(folder, *args, **options):
    """Run the script on a cluster; its checkpoints and logs are in the folder."""
    args = ["--steps", "10", "--checkpoints", folder / "checkpoints", *args]
    return cluster.run(TRAIN, args, logs=folder / "logs", startup=STARTUP, progress=False,
                       grace=1.0, **options)  # fmt: skip


def state(folder, step=10):
    """Read the weights and the optimizer's slots of a checkpoint."""
    import tensorflow as tf

    file = tf.train.load_checkpoint(folder / "checkpoints" / f"ckpt-{step}")
    names = file.get_variable_to_shape_map()
    tensors = {n: file.get_tensor(n) for n in names if "OBJECT" not in n and "counter" not in n}
    assert len(tensors) == 14  # 4 weights, 8 slots, the step and the rate of the optimizer
    return tensors


def largest(one, other):
    return max(np.abs(one[name].astype("float64") - other[name]).max() for name in one)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, plan):
    """Train in this process, as one worker."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(None):
        patch.delenv("TF_CONFIG", raising=False)
        words = ["train_workers.py", "--steps", "10", "--checkpoints", str(folder / "checkpoints")]
        patch.setattr(sys, "argv", words)
        runpy.run_path(str(TRAIN))
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
    assert largest(state(alone), state(folder)) < 1e-6
    assert largest(state(alone), state(folder, 5)) > 1e-4  # it has moved


def test_a_killed_worker_changes_no_bit(tmp_path, two):
    folder, uninterrupted = two
    report = train(tmp_path, "--kill-at", "7", restarts=1)
    assert report.ok and report.attempts[0].first == 1 and "SIGKILL" in report.attempts[0].why
    assert "attempt 1 begins after 5 steps" in report[0].tail
    assert [job.result for job in report] == [uninterrupted[0].result] * 2
    assert largest(state(tmp_path), state(folder)) == 0


def test_a_full_disk_then_half_a_checkpoint_then_three_workers(tmp_path, alone, two):
    """The checkpoint before is kept, and read by another number of workers."""
    shutil.copytree(two[0] / "checkpoints", tmp_path / "checkpoints")
    kept = tmp_path / "checkpoints"
    for file in kept.glob("ckpt-10*"):
        file.unlink()
    text = (kept / "checkpoint").read_text()
    at_5 = [line for line in text.splitlines() if not line.endswith('paths: "ckpt-10"')]
    del at_5[at_5.index(max(line for line in at_5 if "_timestamps:" in line))]
    at_5[0] = 'model_checkpoint_path: "ckpt-5"'
    (kept / "checkpoint").write_text("\n".join(at_5))
    files = {file.name: file.read_bytes() for file in kept.iterdir()}
    # A file may not grow beyond 50 kB, which the log does not, and half a checkpoint does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        report = train(tmp_path, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert report.attempts[0].first == 0 and "ckpt-10" in report[0].tail, report
    assert {name: (kept / name).read_bytes() for name in files} == files
    # Half a checkpoint that is called a whole one, as a machine that goes down may leave it.
    for end in ("data-00000-of-00001", "index"):
        (kept / f"ckpt-8.{end}").write_bytes(files[f"ckpt-5.{end}"][: 100 if end == "index" else 0])
    (kept / "checkpoint").write_text(text.replace("ckpt-10", "ckpt-8"))
    report = train(tmp_path, workers=3)
    assert report.ok, report
    assert "ckpt-8 cannot be read" in report[0].tail and "begins after 5 steps" in report[0].tail
    assert len({json.dumps(job.result) for job in report}) == 1
    assert largest(state(tmp_path), state(alone)) < 1e-6
