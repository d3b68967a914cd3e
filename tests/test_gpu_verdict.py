"""The verdict of `make gpu`, on small notebooks in cores mode: their kernels are real."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import gpu_verdict
from conftest import ROOT, clean
from lessons import NOTEBOOKS
from mgpu_helpers.lessons import verdict as verdicts
from mgpu_helpers.lessons.verdict import broken, judge, tags

pytestmark = pytest.mark.tools

# What a GPU machine may say otherwise: the plan, and what the tests of CPUs do not compare either.
FREE = re.compile(
    r"^(mode|host|devices|machine|timing) | one thread for each operation$|NVIDIA H200$|"
    r" \([\d.,]+ to [\d.,]+, \d+ (pairs|runs)\)|no error \(without a GPU"
)


def cell(source: str, said: str, *tags: str):
    outputs = [new_output("stream", text=said)] if said else []
    return new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)} if tags else {})


def on_a_gpu(before, now):
    assert not broken(before, now)  # what any number of devices allows
    return judge(before, now, "gpus")


@pytest.mark.parametrize("said_of, before, now, wrong, tags", [
    # Of proofs and solutions:
    (judge, "equal: True", "equal: True", "", ()),
    (judge, "a: True\nb: False", "a: False\nb: True", "a: False", ()),
    (judge, "0 of 10,000 entries differ", "9,999 of 10,000 entries differ", "9,999", ()),
    (judge, "a\nb", "a", "nothing", ()),
    (judge, "12 bytes", "24 bytes", "", ("nbval-ignore-output",)),
    (judge, "yes: 4 bytes", "yes: 5 bytes", "5 bytes", ("solution",)),
    (judge, "yes: four", "not yet: it is slow", "it is slow", ("solution",)),
    (judge, "not yet: a stub", "not yet: another", "", ("exercise",)),
    (judge, "not yet: a stub", "yes: four", "nobody", ("exercise",)),
    # What differs lawfully on a GPU:
    (on_a_gpu, "worked: /CPU:0 and /CPU:1", "worked: /CPU:0 and /GPU:0", "", ()),
    (on_a_gpu, "worked: /CPU:0 and /CPU:1", "worked: /GPU:0 and /GPU:0", "/CPU:1", ()),
    (on_a_gpu, "mode     cores: each", "mode     gpus: each", "", ()),
    (on_a_gpu, "mode     cores: each", "mode     cores: each", "cores", ()),
    (on_a_gpu, "the gradients are 0 apart", "the gradients are 1e-07 apart", "", ()),
    (on_a_gpu, "the gradients are 0 apart", "the gradients are 1e-05 apart", "1e-05", ()),
    # On other numbers of devices what was true may not be false:
    (broken, "batch [1, 0] empty True\nbatch [1, 1] empty False", "batch [1] empty False", "", ()),
    (broken, "on /CPU:1 right: True", "on /GPU:0 right: True\non /GPU:1 right: False", "GPU:1", ()),
    (broken, "plain: False\nkept: True", "plain: False\nplain: False\nkept: True", "", ()),
])  # fmt: skip
def test_a_cell_is_refused_for_what_it_may_not_say(said_of, before, now, wrong, tags):
    said = said_of(cell("", before, *tags), cell("", now, *tags))
    assert wrong in said and bool(said) == bool(wrong)


def stored_cells():
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for number, each in enumerate(nbformat.read(path, as_version=4).cells, 1):
            if each.cell_type == "code" and verdicts.proofs(each):
                yield f"{path.name[:2]}, cell {number}", each


def on_gpus(text: str, unplaced: bool) -> str:
    """Say what a machine with two H200 says instead of this."""
    if unplaced:
        text = text.replace("CPU:0", "CPU:1")
    text = re.sub(r"CPU:([1-9]\d*)", lambda found: f"GPU:{int(found[1]) - 1}", text)
    text = re.sub(r"(?m)^mode     cores: .*", "mode     gpus: every device is a GPU", text)
    return text.replace("  one thread for each operation", "  NVIDIA H200")


def changed(each, change):
    """Give a copy of a cell whose texts are changed."""
    other = copy.deepcopy(each)
    for output in other.outputs:
        for holder, kind in ((output, "text"), (output.get("data", {}), "text/plain")):
            if kind in holder:
                holder[kind] = change(holder[kind])
    return other


def test_each_stored_proof_is_refused_when_one_digit_of_it_is_another():
    tried, missed = set(), []
    for where, each in stored_cells():
        now = changed(each, lambda text, each=each: on_gpus(text, "unplaced" in tags(each)))
        assert judge(each, now, "gpus") == "", where
        text = verdicts.text_of(now)
        for line in set(text.splitlines()):
            free = FREE.search(line)
            for at in [] if free else (found.start() for found in re.finditer(r"\d", line)):
                wrong = line[:at] + str((int(line[at]) + 1) % 10) + line[at + 1 :]
                said = judge(each, changed(now, lambda t, a=line, b=wrong: t.replace(a, b)), "gpus")
                tried.add(where.partition(" ")[0])
                missed += [f"{where}: {wrong}"] * (said == "")
    assert not missed, "\n".join(missed)
    assert len(tried) == len(list(NOTEBOOKS.glob("*.ipynb")))


def verdict(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_verdict.py"), "--no-bench"]
    command += ["--folder", str(folder), "--results", str(folder / "results")]
    return subprocess.run(command, env=clean(**env), capture_output=True, text=True, timeout=300)


def lesson(folder: Path, name: str, *cells) -> None:
    nbformat.write(new_notebook(cells=list(cells)), folder / f"{name}.ipynb")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    lesson(tmp_path, "00_good", cell("print('equal:', 1 + 1 == 2)", "equal: True"))
    return tmp_path


@pytest.mark.thorough
def test_without_a_gpu_that_tensorflow_uses_there_is_no_verdict(good: Path, driver, monkeypatch):
    done = verdict(good, LD_LIBRARY_PATH=driver)
    assert done.returncode == 1 and "verdict" not in done.stdout, done.stdout + done.stderr
    assert re.search("TensorFlow uses no GPU.*libcudart", done.stderr.strip().splitlines()[-1])
    assert not (good / "results").exists()
    monkeypatch.delenv("MGPU_MODE", raising=False)
    monkeypatch.setattr(sys, "argv", ["gpu_verdict.py", "--folder", str(good)])
    if not gpu_verdict.nvml.query().gpus:
        with pytest.raises(SystemExit, match="There is no GPU"):
            gpu_verdict.main()


def test_without_a_lesson_there_is_no_verdict(good: Path):
    assert verdicts.chosen(good, ["00"]) == [good / "00_good.ipynb"]
    with pytest.raises(SystemExit, match="no lesson 07 .* has 00"):
        verdicts.chosen(good, ["00", "07"])
    (good / "00_good.ipynb").unlink()
    with pytest.raises(SystemExit, match="no lesson in .* has none"):
        verdicts.chosen(good, [])


@pytest.mark.parametrize("program, words", [
    ("import os; os.abort()", "the first steps ended with SIGABRT .no word.: MGPU_VERBOSE"),
    ("import os; print('plan', flush=True); os.write(2, b'LLVM ERROR: PTX'); os.abort()",
     r"XLA ended with SIGABRT .LLVM ERROR: PTX.: take .*jit_compile=False"),
    ("raise ZeroDivisionError(3)", "exit status 1 .ZeroDivisionError: 3"),
])  # fmt: skip
def test_a_gpu_that_ends_the_process_is_named_with_what_it_said(monkeypatch, program, words):
    monkeypatch.setattr(verdicts, "WARM", program)
    with pytest.raises(SystemExit, match=words):
        verdicts.warm(2)


@pytest.mark.parametrize("said, hints, known", [
    ("NCCL version 2.21.5+cuda12.5", ["auto"], "NCCL 2.21.5+cuda12.5"),
    ("", ["ring"], "ring"),
    ("", [], "none, on one device"),
])  # fmt: skip
def test_what_nccl_prints_says_that_it_ran(monkeypatch, said, hints, known):
    facts = json.dumps({"devices": 2, "all_reduce": hints})
    monkeypatch.setattr(verdicts, "WARM", f"print({facts!r}); print({said!r})")
    assert verdicts.warm(2) == {"devices": 2, "all_reduce": known}


@pytest.mark.thorough
def test_what_does_not_hold_is_named_by_lesson_and_cell(good: Path):
    lesson(
        good, "01_bad",
        cell("print('equal:', 1 + 1 == 3)", "equal: True"),
        cell("1 / 0", ""),
        cell("print('not yet: no')", "yes: fine", "solution"),
        cell("print('still running')", "still running"),
        cell("print(10 // 3, 'of 4')", "4 of 4"),
    )  # fmt: skip
    done = verdict(good, MGPU_MODE="cores")
    found = re.findall(r"^  01_bad, cell (\d), .*(False|ZeroDiv|not yet|3 of 4)", done.stdout, re.M)
    assert found == [("1", "False"), ("2", "ZeroDiv"), ("3", "not yet"), ("5", "3 of 4")]
    assert done.returncode == 1 and "verdict: 4 did not hold (2 lessons" in done.stdout
    assert not (good / "results").exists()  # a rehearsal is no card of a GPU


def test_the_first_runs_are_on_all_devices_and_only_what_no_number_allows_counts(tmp_path: Path):
    count = "import os, sys, time; print('of', end=' ', flush=True); time.sleep(0.3)\n"
    count += "print('compiles', file=sys.stderr); print(os.environ.get('MGPU_DEVICES'))"
    path = tmp_path / "00_some.ipynb"
    lesson(tmp_path, path.stem, cell(count, "of 2"), cell("print(1 == 2)", "True"))
    seen = verdicts.Verdict()
    verdicts.warm_lesson(path, seen, 5)
    (wrong,) = seen.found
    assert "cell 2, on 5 devices: prints False" in wrong and not seen.seconds
    verdicts.try_lesson(path, seen, "cores")
    assert "cell 1, says 'of None', and stored is 'of 2'" in seen.found[1]


def test_the_command_runs_a_copy_of_the_lessons(tmp_path: Path, monkeypatch, capsys):
    def copied(folder: str) -> None:
        (Path(folder) / "notebooks").mkdir()
        lines = "print(1, end='')\nprint('\\r2')\n__import__('sys').stdout.flush()\nprint(3)"
        lesson(Path(folder) / "notebooks", "00_good", cell(lines, "2\n3"))
        lesson(Path(folder) / "notebooks", "01_bad", cell("1 / 0", ""))

    monkeypatch.setattr(verdicts, "copy", copied)
    assert verdicts.main(["00"], "mgpu verdict") == 0
    assert "verdict: all of it held (1 lessons, 1 cells, 2 proofs" in capsys.readouterr().out
    assert verdicts.main([], "mgpu verdict") == 1
    assert "01_bad, cell 1, fails: ZeroDivisionError" in capsys.readouterr().out


def test_the_card_has_the_verdict_and_how_gradients_were_added(plan, tmp_path: Path):
    seen = verdicts.Verdict(cells=3, proofs=2, seconds={"00_good": 1.0}, found=["  one"])
    facts = {"devices": len(plan), "mode": "gpus", "all_reduce": "NCCL 2.21.5"}
    card = gpu_verdict.keep(facts, {"00_good": b"\x89PNG", "01_bad": None}, tmp_path, seen)
    numbers = json.loads(card.read_text())["numbers"]
    assert (numbers["cells"], numbers["held"], numbers["found"]) == (3, False, ["  one"])
    assert numbers["all_reduce"] == "NCCL 2.21.5"
    assert [path.name for path in card.with_suffix("").iterdir()] == ["00_good.png"]
