"""Result cards: what is written is read, what is broken is said, and nothing is overwritten."""

from __future__ import annotations

import datetime
import json
import platform
import re

import numpy as np
import pytest

import _cards
import _rounds
import peers
from _cards import Ratio
from conftest import ROOT, run_python
from mgpu_helpers.devices import Plan

BENCHMARKS, RESULTS = ROOT / "benchmarks", ROOT / "results"


def machine(name="AMD EPYC, 2 cores", mode="cores", real=("one thread for each operation",) * 2):
    kind = "CPU" if mode == "cores" else "GPU"
    names = tuple(f"/{kind}:{i}" for i in range(len(real)))
    return Plan(mode, "/CPU:0", names, real, 2, name, "")


HERE, THERE = machine(), machine("Apple M2 (8 cores) @ 3.5 GHz")
RATIOS = (Ratio("speed-up", 1.8, None, True, 1.75, 1.9), Ratio("cost", 0.01, 0.02, False))


def test_what_is_written_is_read(tmp_path):
    import tensorflow as tf

    numbers = {"rounds": 12, "é": [None, 1e-300, {"": "\u2028", "b": True}], "deep": [[[]]]}
    path = _cards.write("cores", HERE, numbers, RATIOS, tmp_path)
    (card,) = _cards.read_all(tmp_path)
    assert path.name == "cores.json" and json.loads(path.read_text())["format"] == 1
    assert (card.name, card.numbers, card.ratios) == ("cores", numbers, RATIOS)
    assert (card.machine, card.mode, card.devices) == ("AMD EPYC, 2 cores", "cores", 2)
    assert card.date == datetime.date.today().isoformat()
    assert card.versions["tensorflow"] == tf.__version__
    assert card.versions["python"] == platform.python_version()


@pytest.mark.parametrize("ratio, met, text", [
    (Ratio.of("speed-up", [1.7, 1.8, 1.9], 1.8), True,
     "speed-up: 1.80 (1.75 to 1.85); target at least 1.8: met"),
    (Ratio("cost", 0.0314, 0.02, at_least=False), False,
     "cost: 0.0314; target at most 0.02: NOT MET"),
    (Ratio("cost", 0.02, 0.02, False), True, "cost: 0.0200; target at most 0.02: met"),
    (Ratio("requests", 123.4), None, "requests: 123"),
    (Ratio("more", -0.5, 0), False, "more: -0.500; target at least 0: NOT MET"),
])  # fmt: skip
def test_a_target_is_met_on_its_own_side(ratio, met, text):
    assert ratio.met is met and repr(ratio) == text


def test_what_json_does_not_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="finite"):
        Ratio("it", 1.0, 0.9, low=float("inf"))
    for value, error in (float("nan"), ValueError), (np.float32(1), TypeError):
        with pytest.raises(error):
            _cards.write("cores", HERE, {"a": [1, {"b": value}]}, (), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_no_card_is_refused_and_not_overwritten(tmp_path):
    path = tmp_path / "cores.json"
    good = _cards.write("cores", HERE, {"rounds": 12}, RATIOS, tmp_path).read_text()
    changes = {"note": "x"}, {"format": 2}, {"ratios": [{"name": "it", "value": float("nan")}]}
    broken = [good[:end] for end in range(0, len(good) - 1, 29)]
    broken += [json.dumps(json.loads(good) | change) for change in changes]
    for content in (*broken, "[1, 2]", "{}", "<<<<<<< HEAD\n{}"):
        path.write_text(content)
        with pytest.raises(ValueError, match=re.escape(str(path)) + ".* make bench ONLY=cores"):
            _cards.read(path)
    beside = _cards.write("cores", HERE, {}, folder=tmp_path)
    assert beside.stem == "cores@amd-epyc-2-cores-cores-mode" and path.read_text() == content
    beside.write_text("cut o")  # this name is this machine's own: it is mended
    assert _cards.read(_cards.write("cores", HERE, {}, folder=tmp_path)).name == "cores"


def test_cards_of_other_machines_lie_beside_and_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MGPU_RESULTS", str(tmp_path))
    gpu = machine(mode="gpus", real=("NVIDIA L4", "NVIDIA L4"))
    split = machine(mode="split-gpu", real=("1/2 of NVIDIA L4, 4096 MB", "1/2 of NVIDIA L4, 9 MB"))
    for speed in (1, 2):
        for plan in (HERE, THERE, gpu, split):
            _cards.write("cores", plan, {"speed": speed}, RATIOS)
    assert capsys.readouterr().out.startswith(f"written: {tmp_path}/cores.json\n")
    cards = {path.stem: _cards.read(path) for path in tmp_path.iterdir()}
    assert {stem: card.machine for stem, card in cards.items()} == {
        "cores": "AMD EPYC, 2 cores",
        "cores@apple-m2-8-cores-3-5-ghz-cores-mode": "Apple M2 (8 cores) @ 3.5 GHz",
        "cores@nvidia-l4-amd-epyc-2-cores-gpus-mode": "NVIDIA L4, AMD EPYC, 2 cores",
        "cores@nvidia-l4-amd-epyc-2-cores-split-gpu-mode": "NVIDIA L4, AMD EPYC, 2 cores",
    }
    assert all(card.numbers == {"speed": 2} for card in cards.values())
    assert _cards.table([cards["cores"]]).splitlines() == [
        "AMD EPYC, 2 cores · cores mode",
        "benchmark  what      ratio   middle half   target",
        "cores      speed-up  1.80    1.75 to 1.90",
        "cores      cost      0.0100                at most 0.02  met",
    ]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "cores.json").write_text("old")
    code = (
        "import resource; from mgpu_helpers import _files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        f"with _files.replacing({str(tmp_path / 'cores.json')!r}) as file: file.write(bytes(9000))"
    )
    done = run_python(code, check=False, imported=False)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_every_benchmark_of_the_project_has_a_card_without_a_path_or_a_host():
    cards = {path: _cards.read(path) for path in RESULTS.glob("*.json")}
    for path, card in cards.items():
        assert path.stem.partition("@")[0] == card.name
        text = path.read_text()
        assert not re.search(r'"(/(?![CG]PU:\d)|~|[A-Z]:\\)', text), path
        assert f'"{platform.node()}"' not in text, path
    own = [card for card in cards.values() if not card.name.startswith("gpu-")]  # of `make gpu`
    assert all(card.ratios for card in own)
    names = {re.sub("-gpus$", "", card.name) for card in own}
    if names:  # who deletes one to measure anew deletes them all
        assert names | {*_rounds.ASKED} == {path.stem for path in BENCHMARKS.glob("[!_]*.py")}


def test_the_comparison_with_others_shows_what_their_card_says():
    card, page = RESULTS / "peers.json", (ROOT / "docs/compare.md").read_text()
    said = peers.table(_cards.read(card)) if card.exists() else peers.NOT_YET
    assert peers.PLACE.search(page)[0] == said, "run python benchmarks/peers.py table"
