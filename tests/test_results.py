"""Result cards: what is written is read, what is broken is said, and nothing is overwritten."""

from __future__ import annotations

import datetime
import json
import platform
import re
import statistics
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT, run_python
from mgpu_helpers import results
from mgpu_helpers.devices import Plan
from mgpu_helpers.results import Ratio

RESULTS = ROOT / "results"


def machine(name="AMD EPYC, 2 cores", mode="cores", real=("one thread",) * 2):
    kind = "CPU" if mode == "cores" else "GPU"
    names = tuple(f"/{kind}:{i}" for i in range(len(real)))
    return Plan(mode, "/CPU:0", names, real, 2, name, "")


HERE, THERE = machine(), machine("Apple M2 (8 cores) @ 3.5 GHz")
RATIOS = (Ratio("speed-up", 1.8, None, True, 1.75, 1.9), Ratio("cost", 0.01, 0.02, False))

texts = st.text(max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
kept = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def ratios(draw):
    values = st.floats(-1e9, 1e9)
    low, value, high = sorted(draw(st.tuples(values, values, values)))
    spread = draw(st.sampled_from([(low, high), (None, None)]))
    target = draw(st.none() | st.floats(1e-6, 1e6))
    return Ratio(draw(st.text(min_size=1, max_size=8)), value, target, draw(st.booleans()), *spread)


@settings(deadline=None, max_examples=60)
@given(
    name=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    plan=st.sampled_from([HERE, THERE, machine(mode="gpus", real=("NVIDIA L4",))]),
    numbers=st.dictionaries(texts, kept, max_size=4),
    found=st.lists(ratios(), max_size=3, unique_by=lambda ratio: ratio.name),
)
def test_what_is_written_is_read(name, plan, numbers, found):
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        path = results.write(name, plan, numbers, found, folder=folder)
        card = results.read(path)
        assert results.read_all(folder) == [card]
        assert [file.name for file in Path(folder).iterdir()] == [f"{name}.json"]
    assert (card.name, card.numbers, card.ratios) == (name, numbers, tuple(found))
    assert (card.mode, card.devices) == (plan.mode, len(plan.devices))
    assert card.machine.endswith(plan.machine)
    assert card.date == datetime.date.today().isoformat()
    assert card.versions["tensorflow"] == tf.__version__
    assert card.versions["python"] == platform.python_version()


def test_a_card_is_plain_json(tmp_path):
    written = json.loads(results.write("cores", HERE, {"rounds": 12}, RATIOS, tmp_path).read_text())
    assert set(written.pop("versions")) == {"mgpu_helpers", "tensorflow", "python"}
    assert written.pop("date")
    assert written == {
        "format": 1,
        "name": "cores",
        "machine": "AMD EPYC, 2 cores",
        "mode": "cores",
        "devices": 2,
        "ratios": [
            {"name": "speed-up", "value": 1.8, "target": None, "at_least": True,
             "low": 1.75, "high": 1.9},
            {"name": "cost", "value": 0.01, "target": 0.02, "at_least": False,
             "low": None, "high": None},
        ],
        "numbers": {"rounds": 12},
    }  # fmt: skip


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30))
def test_a_ratio_of_rounds_is_their_median_and_middle_half(rounds):
    ratio = Ratio.of("speed-up", rounds, 0.9)
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    found = ratio.low, ratio.value, ratio.high
    assert found == pytest.approx((low, middle, high), rel=6e-4)
    assert all(float(f"{x:.4g}") == x for x in found)


@pytest.mark.parametrize(
    "value, target, at_least, met",
    [
        (0.9, 0.9, True, True), (0.89, 0.9, True, False), (0.02, 0.02, False, True),
        (0.021, 0.02, False, False), (-0.1, 0.02, False, True), (5.0, None, True, None),
    ],
)  # fmt: skip
def test_a_target_is_met_on_its_own_side(value, target, at_least, met):
    assert Ratio("it", value, target, at_least).met is met


@pytest.mark.parametrize(
    "ratio, text",
    [
        (Ratio("speed-up", 1.8), "speed-up: 1.80"),
        (Ratio.of("speed-up", [1.7, 1.8, 1.9], 1.5),
         "speed-up: 1.80 (1.75 to 1.85); target at least 1.5: met"),
        (Ratio("cost", 0.0314, 0.02, at_least=False),
         "cost: 0.0314; target at most 0.02: NOT MET"),
        (Ratio("cost", -0.00123), "cost: -0.00123"),
        (Ratio("requests", 123.4), "requests: 123"),
        (Ratio("more", -0.5, 0), "more: -0.500; target at least 0: NOT MET"),
    ],
)  # fmt: skip
def test_a_ratio_prints(ratio, text):
    assert repr(ratio) == text


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda: Ratio("it", float("nan")), "'it' has value=nan"),
        (lambda: Ratio("it", 1.0, target=float("inf")), "target=inf"),
        (lambda: Ratio("it", 1.0, low=1.1, high=1.2), "low=1.1, high=1.2"),
        (lambda: Ratio("it", 1.0, low=0.5), "low=0.5, high=None"),
        (lambda: Ratio.of("it", []), "'it' has no rounds"),
        (lambda: Ratio.of("it", [1.0, float("nan")]), "'it' has value=nan"),
    ],
)
def test_what_is_no_ratio(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


@pytest.mark.parametrize(
    "value, said", [(float("nan"), "not JSON compliant"), (np.float32(1), "float32")]
)
def test_what_json_does_not_hold_is_refused_before_anything_is_written(tmp_path, value, said):
    with pytest.raises(ValueError, match=f"the card 'cores' .*{said}"):
        results.write("cores", HERE, {"a": [1, {"b": value}]}, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Files that are no cards


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Give the text of a good card."""
    folder = tmp_path_factory.mktemp("good")
    return results.write("cores", HERE, {"rounds": 12}, RATIOS, folder).read_text()


def refused(path, said):
    """Check that the error is one sentence with the file, what is wrong, and the remedy."""
    with pytest.raises(ValueError) as caught:
        results.read(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(path)) and said in text
    assert text.endswith("make bench ONLY=cores.")


def test_a_card_that_is_cut_off_anywhere_is_refused(tmp_path, good):
    path = tmp_path / "cores.json"
    for end in range(0, len(good) - 1, 7):  # without the last line's end it is whole
        path.write_text(good[:end])
        refused(path, "line")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"[1, 2]", "list"),
        (b"{}", "missing"),
        (b"\xff\xfe", "can't decode"),
        (b"<<<<<<< HEAD\n{}", "Expecting value"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_is_no_card_is_refused(tmp_path, content, said):
    path = tmp_path / "cores@elsewhere.json"
    path.write_bytes(content)
    refused(path, said)


def test_a_file_that_is_not_there_is_said(tmp_path):
    refused(tmp_path / "cores.json", "No such file")


@pytest.mark.parametrize("field", "name date machine mode devices versions ratios".split())
def test_a_missing_field_is_named(tmp_path, good, field):
    data = json.loads(good)
    del data[field]
    path = tmp_path / "cores.json"
    path.write_text(json.dumps(data))
    refused(path, f"'{field}'")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"note": "x"}, "'note'"),
        ({"ratios": 5}, "not iterable"),
        ({"ratios": [{"name": "it"}]}, "'value'"),
        ({"ratios": [{"name": "it", "value": "1"}]}, "real number"),
        ({"ratios": [{"name": "it", "value": float("nan")}]}, "value=nan"),
    ],
)
def test_what_a_ratio_or_a_card_cannot_be_made_of_is_refused(tmp_path, good, change, said):
    path = tmp_path / "cores.json"
    path.write_text(json.dumps(json.loads(good) | change))
    refused(path, said)


def test_a_card_of_a_newer_format_asks_for_an_update(tmp_path, good):
    path = tmp_path / "cores.json"
    path.write_text(json.dumps(json.loads(good) | {"format": 2, "what comes": "then"}))
    with pytest.raises(ValueError, match="cores.json .* format 2, .* update mgpu_helpers"):
        results.read(path)


# A folder of cards


def test_a_second_run_replaces_the_card_of_the_first(tmp_path):
    for speed in (1, 2):
        assert results.write("cores", HERE, {"speed": speed}, folder=tmp_path).stem == "cores"
    assert [card.numbers for card in results.read_all(tmp_path)] == [{"speed": 2}]


def test_cards_of_other_machines_lie_beside_and_stay(tmp_path):
    gpu = machine(mode="gpus", real=("NVIDIA L4", "NVIDIA L4"))
    split = machine(mode="split-gpu", real=("1/2 of NVIDIA L4, 4096 MB", "1/2 of NVIDIA L4, 9 MB"))
    for speed in (1, 2):
        for plan in (HERE, THERE, gpu, split):
            results.write("cores", plan, {"speed": speed}, folder=tmp_path)
    results.write("jobs", THERE, {}, folder=tmp_path)
    cards = {path.stem: results.read(path) for path in tmp_path.iterdir()}
    assert {stem: card.machine for stem, card in cards.items()} == {
        "cores": "AMD EPYC, 2 cores",
        "cores@apple-m2-8-cores-3-5-ghz-cores-mode": "Apple M2 (8 cores) @ 3.5 GHz",
        "cores@nvidia-l4-amd-epyc-2-cores-gpus-mode": "NVIDIA L4, AMD EPYC, 2 cores",
        "cores@nvidia-l4-amd-epyc-2-cores-split-gpu-mode": "NVIDIA L4, AMD EPYC, 2 cores",
        "jobs": "Apple M2 (8 cores) @ 3.5 GHz",
    }
    assert all(card.numbers in ({"speed": 2}, {}) for card in cards.values())
    assert [card.name for card in results.read_all(tmp_path)] == ["cores"] * 4 + ["jobs"]


def test_a_card_that_cannot_be_read_is_not_overwritten(tmp_path):
    (tmp_path / "cores.json").write_text('{"format": 2}')
    path = results.write("cores", HERE, {}, folder=tmp_path)
    assert path.stem == "cores@amd-epyc-2-cores-cores-mode"
    assert (tmp_path / "cores.json").read_text() == '{"format": 2}'
    path.write_text("cut o")  # this name is this machine's own: it is mended
    assert results.read(results.write("cores", HERE, {}, folder=tmp_path)).name == "cores"


def test_the_folder_comes_from_the_environment_or_is_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MGPU_RESULTS", raising=False)
    assert results.write("cores", HERE, {}) == Path("results/cores.json")
    monkeypatch.setenv("MGPU_RESULTS", str(tmp_path / "a new/folder"))
    path = results.write("cores", HERE, {})
    assert path.parent == tmp_path / "a new/folder" and path.exists()
    assert capsys.readouterr().out == f"written: results/cores.json\nwritten: {path}\n"


def test_every_broken_card_of_a_folder_is_named_at_once(tmp_path):
    results.write("cores", HERE, {}, folder=tmp_path)
    (tmp_path / "bench.png").write_bytes(b"no card")
    assert len(results.read_all(tmp_path)) == 1
    for name in ("jobs", "towers@elsewhere"):
        (tmp_path / f"{name}.json").write_text("{")
    with pytest.raises(ValueError) as caught:
        results.read_all(tmp_path)
    first, second = str(caught.value).splitlines()
    assert "jobs.json" in first and "towers@elsewhere.json" in second
    with pytest.raises(ValueError, match="there is no folder .*nowhere"):
        results.read_all(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_the_old_card_and_nothing_else(tmp_path):
    results.write("cores", HERE, {"speed": 1}, folder=tmp_path)
    code = (
        "import resource, tensorflow\n"
        "from mgpu_helpers import results\n"
        "from mgpu_helpers.devices import Plan\n"
        "plan = Plan('cores', '/CPU:0', ('/CPU:1',), ('one thread',), 2, 'AMD EPYC, 2 cores', '')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "results.write('cores', plan, {'list': list(range(5000))})"
    )
    done = run_python(code, check=False, MGPU_RESULTS=str(tmp_path))
    assert done.returncode == 1 and "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cores.json"]
    assert results.read(tmp_path / "cores.json").numbers == {"speed": 1}


def test_nobody_sees_half_a_card(tmp_path):
    def write():
        results.write("cores", HERE, {"list": list(range(20_000))}, folder=tmp_path)

    write()
    writer = threading.Thread(target=lambda: [write() for _ in range(10)])
    writer.start()
    while writer.is_alive():
        assert len(results.read(tmp_path / "cores.json").numbers["list"]) == 20_000
    writer.join()


def test_a_table_has_a_line_for_each_ratio_under_its_machine(tmp_path):
    results.write("cores", HERE, {}, RATIOS, tmp_path)
    results.write("cores", THERE, {}, [Ratio("speed-up", 0.9, 1.5)], tmp_path)
    results.write("memory", HERE, {}, [Ratio("a long name of a ratio", 12.0)], tmp_path)
    assert results.table(results.read_all(tmp_path)).splitlines() == [
        "AMD EPYC, 2 cores · cores mode",
        "benchmark  what                    ratio   middle half   target",
        "cores      speed-up                1.80    1.75 to 1.90",
        "cores      cost                    0.0100                at most 0.02  met",
        "memory     a long name of a ratio  12.0",
        "",
        "Apple M2 (8 cores) @ 3.5 GHz · cores mode",
        "benchmark  what                    ratio   middle half   target",
        "cores      speed-up                0.900                 at least 1.5  NOT MET",
    ]
    assert results.table([]) == ""


def test_importing_results_does_not_import_tensorflow():
    code = "import sys, mgpu_helpers.results; print('tensorflow' in sys.modules)"
    assert run_python(code).stdout == "False\n"


# The project's own


def test_every_benchmark_of_the_project_has_a_card():
    cards = results.read_all(RESULTS)
    for path in RESULTS.glob("*.json"):
        assert path.stem.partition("@")[0] == results.read(path).name
    own = [card for card in cards if not card.name.startswith("gpu-")]  # those are of `make gpu`
    names = {re.sub("-gpus$", "", card.name) for card in own}
    if names:  # who deletes one to measure anew deletes them all
        assert names == {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert all(card.ratios for card in own)


def test_no_card_of_the_project_names_a_path_or_a_host():
    for path in RESULTS.glob("*.json"):
        text = path.read_text()
        assert not re.search(r'"(/(?![CG]PU:\d)|~|[A-Z]:\\)', text), path
        assert f'"{platform.node()}"' not in text, path
