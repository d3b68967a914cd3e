"""`make bench` on tiny benchmarks that are real child processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import _rounds
from conftest import ROOT, wait_for

pytestmark = pytest.mark.tools

CARD = {
    "format": 1, "name": "good", "date": "2026-11-21", "machine": "AMD EPYC, 2 cores",
    "mode": "cores", "devices": 2, "versions": {}, "numbers": {},
    "ratios": [{"name": "speed-up", "value": 1.8, "target": 1.5, "at_least": True,
                "low": 1.7, "high": 1.9}],
}  # fmt: skip
GOOD = f"""
import json, os
print("two devices at work", flush=True)
with open(os.environ["MGPU_RESULTS"] + "/good.json", "w") as file:
    json.dump({CARD!r}, file)
"""
ROW = "good       speed-up  1.80   1.70 to 1.90  at least 1.5  met"


@pytest.fixture
def bench(tmp_path):
    """Give a function that runs the driver on benchmarks with these texts."""
    folder, out = tmp_path / "benchmarks", tmp_path / "results"

    def start(*arguments: str, **texts: str) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
        driver = [sys.executable, ROOT / "benchmarks", "--folder", folder, "--results", out]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*driver, *arguments], cwd=tmp_path, start_new_session=True, **pipe)

    return start


def lines(child: subprocess.Popen[str]) -> list[str]:
    """Wait for a driver; give what it said, without the seconds that things took."""
    said = child.communicate(timeout=60)[0]
    return [re.sub(r" +\d+ s\b", " _ s", line) for line in said.splitlines()]


def test_every_benchmark_runs_and_a_failing_one_and_a_broken_card_are_named(bench, tmp_path):
    half = GOOD.replace("json.dump(", "file.write('{') #").replace("good", "half")
    none = "print('needs a GPU')"
    child = bench(bad="raise LookupError('oh no')", good=GOOD, half=half, none=none, _no="?")
    said = lines(child)
    assert child.returncode == 1
    assert said[0] == "[1/4] bad _ s" and said[1].startswith("      Traceback")
    start = said.index("      LookupError: oh no") + 1
    assert said[start:-1] == [
        "[2/4] good _ s",
        "[3/4] half _ s",
        "[4/4] none _ s",
        "      needs a GPU",
        "",
        "AMD EPYC, 2 cores · cores mode",
        "benchmark  what      ratio  middle half   target",
        ROW,
        "",
    ]
    assert said[-1].startswith("4 benchmarks in _ s; no card: none; failed: bad (exit status 1), ")
    assert said[-1].count(f"{tmp_path / 'results/half.json'} cannot be read") == 2
    assert ", half (" in said[-1] and ", the chart (" in said[-1]


def test_one_benchmark_can_be_named_and_heard(bench, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/old.json").write_text(json.dumps(CARD | {"name": "old"}))
    good = GOOD.replace("'target': 1.5", "'target': 2")  # a target that is missed is no failure
    child = bench("-v", "good", bad="raise LookupError", good=good)
    said = lines(child)
    assert child.returncode == 0
    assert said[:2] == ["[1/1] good ", " _ s  two devices at work"]
    assert "good       speed-up  1.80   1.70 to 1.90  at least 2  NOT MET" in said
    assert not any(line.startswith("old") for line in said)  # it did not run
    assert said[-2:] == [f"chart: {tmp_path / 'results/bench.png'}", "1 benchmark in _ s"]
    assert (tmp_path / "results/bench.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_the_benchmark_and_still_prints_the_table(bench, tmp_path):
    child = bench(good=GOOD, slow="import time; open('at_work', 'w').close(); time.sleep(60)")
    wait_for((tmp_path / "at_work").exists, 30)
    os.killpg(child.pid, signal.SIGINT)
    said = lines(child)
    assert child.returncode == 1
    assert said[-1].endswith("; failed: slow (stopped by Ctrl-C)")
    assert ROW in said


def test_make_bench_runs_what_only_names():
    for only, words in ((), "benchmarks"), (("ONLY=fit jobs",), "benchmarks fit jobs"):
        done = subprocess.run(  # make test calls this, and a make in a make says where it is
            ["make", "-n", "--no-print-directory", "bench", *only],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1].split(None, 1)[1].strip() == words, done.stderr


@pytest.mark.parametrize("spread, rounds", [(0.0, 5), (0.02, 5), (0.04, 10)])
def test_rounds_end_when_the_median_is_known(spread, rounds):
    """Ratios of 1 and 1 + spread in turn: 1.57 * spread / sqrt(n) is below 2 % from n on."""
    found: list[float] = []
    for done in _rounds.enough(lambda: [found, [1.0] * len(found)], warmup=2):
        if done >= 0:
            found.append(1 + spread * (done % 2))
    assert len(found) == rounds  # 1.57 * 0.04 / 1.02 / sqrt(10) is 0.0195


@pytest.mark.parametrize("each, rounds, short", [
    (1, 9, 0), (1.5, 6, 0), (2, 5, 0), (2.5, 5, 0), (3, 4, 1), (5, 2, 1), (20, 1, 1),
])  # fmt: skip
def test_rounds_end_with_the_time_and_the_least_has_half_as_much_again(
    each, rounds, short, monkeypatch
):
    """Of 10 s one has passed; the median of these ratios is never known."""
    clock = SimpleNamespace(now=1.0)
    monkeypatch.setattr(_rounds, "BEGAN", 0.0)
    monkeypatch.setattr(_rounds, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(_rounds, "ANOTHER", 10)
    monkeypatch.setattr(_rounds, "short", [])
    found: list[float] = []
    for done in _rounds.enough(lambda: [found]):
        found.append(1 + done % 2)
        clock.now += each
    assert len(found) == rounds and len(_rounds.short) == short


def test_the_benchmarks_have_less_than_eight_minutes_each_its_own():
    names = {file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert names == {*_rounds.SECONDS, *_rounds.ASKED} and sum(_rounds.SECONDS.values()) < 480


def test_what_has_to_be_asked_for_runs_only_when_it_is_named(bench):
    for named, head in ((), "[1/1] good"), (("peers",), "[1/1] peers"):
        assert lines(bench(*named, good=GOOD, peers=GOOD))[0].startswith(head)
