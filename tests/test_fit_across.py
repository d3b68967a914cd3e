"""A layout within each worker, the batch shared out over workers: equal to one device."""

from __future__ import annotations

import textwrap

import pytest

from conftest import ROOT, later
from test_fit_ways import REPLICAS
from test_fit_workers import TRAIN, never_hangs, run  # noqa: F401

pytestmark = pytest.mark.usefixtures("workers")

CELLS = {
    "shares": "normalized masks own_step averaged two_of_each last_of_one keras_accumulates",
    "unequal shares": "causal", "pieces": "masks", "recompute": "masks normalized",
    "stages in pieces": "masks regularized", "all forward first": "two_of_each",
    "owners": "normalized", "host": "averaged", "layers": "gated decoder",
    "owners, pieces": "masks", "shares, pieces": "masks last_of_one", "halves": "strategy",
    "strategy": REPLICAS.replace("several_steps", "") + " sparse ragged",  # on cores refused
}  # fmt: skip
EVERY = [f"{way}-{case}" for way, cases in CELLS.items() for case in cases.split()]


@pytest.mark.parametrize("compiled, workers, cells", [
    ("no", 2, ["stages in pieces-last_of_one"]),
    *(later("no", 2, EVERY[k::4]) for k in range(4)),
    later("no", 3, ["shares-masks", "stages in pieces-masks"]),
    later("xla", 2, ["shares-own_step", "layers-last_of_one", "owners-regularized"]),
], ids=lambda given: str(len(given)) if isinstance(given, list) else None)  # fmt: skip
def test_ways_within_workers_are_one_devices(tmp_path, monkeypatch, compiled, workers, cells):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'tests'}")
    report = run(ROOT / "tests" / "fit_across.py", tmp_path, compiled, *cells, workers=workers)
    assert report.ok, report
    assert [job.result["kept"] for job in report] == [cells] * workers


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "told-worker-8"])
def test_what_is_ended_goes_on_to_the_same_bits(tmp_path, how):
    found = []
    for each in ("plain", how):
        (tmp_path / each).mkdir()
        report = run(TRAIN, tmp_path / each, tmp_path / each, each, "laid", workers=2, restarts=1)
        assert report.ok, report
        assert len({job.result["state"] for job in report}) == 1
        found.append(report[0].result["state"])
    assert len(report.attempts) == 2 and found[0] == found[1]


@pytest.mark.parametrize("option, named", [
    ("pieces=1 + rank", "pieces: 1 in worker 0, 2 in worker 1"),
    later("units=2 + rank", "number of weights: 8 in worker 0, 12 in worker 1"),
    later("n=1 + rank", "number of devices: 1 in worker 0, 2 in worker 1"),
])  # fmt: skip
def test_workers_that_lay_out_another_model_are_told(tmp_path, option, named):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(f"""
        import json, os
        from mgpu_helpers import devices, fit
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        given = dict(pieces=1, units=2, n=1) | dict({option})
        plan = devices.setup(given["n"])
        fit.strategy()
        import keras
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(given["units"])])
        model.compile("sgd", "mse")
        fit.use(model, plan, pieces=given["pieces"])
    """))
    report = run(script, tmp_path, workers=2)
    assert not report.ok and named in (tmp_path / "logs" / "worker_0.log").read_text(), report
