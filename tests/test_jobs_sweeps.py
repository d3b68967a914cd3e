"""Arguments of many jobs from a grid or a file, and jobs that have several devices."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_jobs
from mgpu_helpers import jobs
from mgpu_helpers.jobs import sweep
from test_jobs import ROOT, python, runner, sh, until

here, never_hangs, cores = test_jobs.here, test_jobs.never_hangs, test_jobs.cores
vanishing = test_jobs.vanishing

# --- grids ---

PARSES = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--shift", type=float)
parser.add_argument("--batch_size", "--batch-size", type=int)
parser.add_argument("--text")
print(json.dumps(vars(parser.parse_args())))
"""


def test_argparse_gets_every_combination_as_it_was_given():
    axes = {"shift": [-1e-3, 0.5], "batch_size": (8,), "text": ["a=b,c", "-x 'y'"]}
    found = jobs.grid(**axes)
    report = jobs.run([python(PARSES, *each) for each in found.values()], names=found)
    assert [dict(job.result) for job in report] == [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    assert [job.name for job in report][-1] == "shift=0.5,batch_size=8,text=-x 'y'"
    assert report[-1].log.name == "04_shift=0.5,batch_size=8,text=-x_y_.log"


@pytest.mark.parametrize("texts, want", [
    (["width=32,64", "seed=0"], [["--width=32", "--seed=0"], ["--width=64", "--seed=0"]]),
    (['shape="2,3","4,5"', "batch-size=8"],
     [["--shape=2,3", "--batch-size=8"], ["--shape=4,5", "--batch-size=8"]]),
    (['say="a ""b""",it\'s'], [['--say=a "b"'], ["--say=it's"]]),
    (["model.lr=-1e-3"], [["--model.lr=-1e-3"]]),
    (["width"], None), (["width=1", "width=3"], None), (["width="], None),
    (["width=32,32"], None), (["--width=32"], None), (['width="32'], None),
])  # fmt: skip
def test_a_grid_is_read_from_a_terminal_or_refused_where_it_would_be_another(texts, want):
    with contextlib.nullcontext() if want else pytest.raises(ValueError, match="width"):
        assert sweep.parsed_grid(texts) == want


# --- a file of lines ---

LINES = [
    "  a   'b  c' \"d 'e'\" f\\ g", "a#b '#c' \\#d --colour=#fff", "# nothing", "", "   ", "''",
    "\t# --width 1", "é '→'",
]  # fmt: skip


def test_lines_are_split_as_a_shell_does():
    Path("f").write_text("\n".join(LINES), encoding="utf-8-sig")
    show = 'show() { for word; do printf "%s\\0" "$word"; done; }\nshow '
    said = [subprocess.check_output(["sh", "-c", show + line], text=True) for line in LINES]
    assert sweep.lines("f") == [each.split("\0")[:-1] for each in said if each]


@given(names=st.lists(st.sampled_from(["a", "b", "a-1", "a-2", "a-1-1"]), max_size=8))
def test_numbered_names_are_all_different_and_few_change(names):
    found = sweep.numbered(names)
    assert len(set(found)) == len(names)
    for name, new in zip(names, found, strict=True):
        assert (new == name) == (names.count(name) == 1) and new.startswith(name)


# --- jobs with several devices ---


def test_all_or_none_are_locked(cores):
    """A runner that waits for a second device does not keep the first from others."""
    with runner(f"jobs.run([sh({until('-e go')!r})], devices={cores[1:]}, logs='a')") as one:
        assert one.stdout.readline().startswith("start")
        code = f"jobs.run([sh('true')], devices={cores}, devices_each=2, logs='b')"
        with runner(code) as both:
            assert both.stdout.readline().startswith(f"waiting    for core {cores[1]},")
            assert jobs.run([sh("true")], devices=cores[:1]).ok
            assert one.poll() is None and both.poll() is None
            Path("go").touch()
            assert both.wait(timeout=20) == 0


def test_when_too_few_gpus_are_left_the_rest_is_not_started(vanishing, capfd):
    asked = [sh("echo 2 > gone; sleep 0.1"), sh("sleep 0.1"), sh("echo 1 2 > gone"), sh("true")]
    report = jobs.run(asked, devices_each=2)
    assert [job.devices for job in report] == [(0, 1)] * 3 + [()]
    assert [job.status for job in report] == ["done"] * 3 + ["not started"]
    assert [job.row()["devices"] for job in report] == [[0, 1]] * 3 + [[]]
    assert "Too few GPUs" in report[3].tail
    assert "Too few GPUs are left: 1 job not started" in capfd.readouterr().out


@pytest.mark.parametrize("data, says", [
    (b"\n# a comment\n", "'file' has no jobs: write"),
    (b"--a 1\n--b 'x\n", "Line 2 of 'file' cannot .*: close the quotes"),
    (b"--a 1\n\xff\xfe\x00", "'file' is not UTF-8 in line 2: write"),
    (None, "'file' cannot be read .Is a directory.: name"),
])  # fmt: skip
def test_a_file_without_jobs_is_refused(data, says):
    Path("file").mkdir() if data is None else Path("file").write_bytes(data)
    with pytest.raises(ValueError, match=says):
        sweep.lines("file")


# --- the files for clusters ---


def test_slurms_script_goes_on_where_it_was_stopped(monkeypatch):
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    Path("job.sh").write_text("echo $1")
    for ran in (2, 0):
        line = ["bash", ROOT / "notebooks/scripts/sweep.slurm", "job.sh", "--grid", "lr=1,2"]
        said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        assert said.count("start ") == ran and ("2 of 2 jobs, done before" in said) == (not ran)
