"""What a run leaves for the next: its rows, and what is not run again."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import test_jobs
from conftest import ROOT
from mgpu_helpers import jobs
from mgpu_helpers._processes import terminal
from test_jobs import read, runner, sh, until, wait_for

here, never_hangs, hour = test_jobs.here, test_jobs.never_hangs, test_jobs.hour
cores = test_jobs.cores
RECORD = Path("logs/jobs.jsonl")


def rows(path=RECORD, ended=True):
    """Give the rows of the jobs that have ended, as a report has them, or all as they are."""

    def no_json(name):
        raise AssertionError(f"{name} is not JSON")

    text = path.read_text()
    assert text.endswith("\n")
    found = [json.loads(line, parse_constant=no_json) for line in text.splitlines()]
    if not ended:
        return found
    return [{k: v for k, v in row.items() if k != "run"} for row in found
            if row["status"] != "running"]  # fmt: skip


def quiet(commands, **options):
    return jobs.run(commands, **{"progress": False} | options)


# --- a row for each job ---


def test_each_job_that_ends_leaves_a_row(here, cores, hour):
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    good = f"until grep -q fai[l]ed {RECORD}; do sleep 0.02; done; echo '{{\"loss\": 0.5}}'"
    commands = [sh(good), sh("exit 3"), sh("touch begun; exec sleep 60")]
    hour("begun")
    report = quiet(commands, names=["good", "bad", "long"], devices=cores, time_limit=1800)
    found = {row["name"]: row for row in rows()}
    assert list(found) == ["bad", "good", "long"]  # as they ended
    assert [found[job.name] for job in report] == [job.row() for job in report]
    shown = "status", "returncode", "kind", "devices", "command", "log", "folder", "result_loss"
    log = str(here / "logs/01_good.log")
    good = ["done", 0, "core", cores[:1], commands[0], log, str(here), 0.5]
    assert [found["good"][name] for name in shown] == good
    assert [found["bad"][name] for name in shown[:2]] == ["failed", 3]
    assert [found["long"][name] for name in shown[:2]] == ["timed out", -signal.SIGTERM]
    for job in report:
        assert before <= datetime.fromisoformat(job.started_at) <= datetime.now(UTC)
        assert found[job.name]["seconds"] == pytest.approx(job.end - job.start, abs=1e-3)


@pytest.mark.parametrize("printed, result", [
    (['{"a": 1}', '{"a": 2, "b": [1]}'], {"a": 2, "b": [1]}),
    (['{"a": 1}', "{'a': 2}", "[3]", "{"], {"a": 1}),
    (['{"a": NaN, "b": {"c": -Infinity}}'], {"a": None, "b": {"c": None}}),
    (['{"a": [' + "1," * 100_000 + "1]}"], {"a": [1] * 100_001}),
    (["nothing"], {}),
])  # fmt: skip
def test_the_last_json_object_that_a_job_prints_is_its_result(printed, result):
    Path("out").write_text("\n".join(printed))
    report = quiet([["cat", "out"]], names=["it"])
    assert report[0].result == result and report[0].status == "done"
    (row,) = rows()
    assert (row["name"], row["status"]) == ("it", "done")
    assert {key: value for key, value in row.items() if key.startswith("result_")} == {
        f"result_{key}": value for key, value in result.items()
    }


@pytest.mark.parametrize("killed", [False, True])
def test_two_runners_of_one_script_do_not_write_one_log(killed, cores, capfd):
    """Nor does a runner write over the log of a job that a killed one has left running."""
    first = f"touch begun; {until('-e ended')}; echo '{{\"n\": 1}}'"
    with runner(f"jobs.run([sh({first!r})], devices=[{cores[0]}], names=['train'])") as one:
        wait_for(Path("begun").exists)
        if killed:
            one.kill()
        report = jobs.run([sh("echo '{\"n\": 2}'")], devices=[cores[1]], names=["train"],
                          skip_done=killed)  # fmt: skip
        Path("ended").touch()
        one.communicate(timeout=20)
        wait_for(lambda: Path("logs/01_train.log").read_text())
    assert Path("logs/01_train.log").read_text() == '{"n": 1}\n'
    assert report[0].result == {"n": 2} and report[0].log.name == f"01_train.{os.getpid()}.log"
    said = capfd.readouterr().out
    assert f"named *.{os.getpid()}.log" in said
    assert [row["result_n"] for row in rows()] == [2, 1][: 2 - killed]
    wait_for(lambda: jobs.run([sh("true")], names=["train"])[0].log.name == "01_train.log")


# --- what is done is not run again ---

LOGGED = "echo {0} >> ran; echo out {0}"


def ran():
    """Give what ran since the last call, by the letters that the jobs left."""
    found = read("ran").split()
    Path("ran").unlink(missing_ok=True)
    return "".join(sorted(found))


def job(letter, more=""):
    return sh(LOGGED.format(letter) + more)


def test_what_is_done_is_skipped_and_all_else_runs_again(cores, capfd, hour):
    commands = [job("a", "; echo '{\"n\": 7}'"), job("b", "; test -e ok")]
    hour("c")
    first = jobs.run([*commands, job("c", "; touch c; sleep 60")], time_limit=1800)
    assert ran() == "abc" and not first.ok
    Path("ok").touch()
    commands.append(job("c"))
    capfd.readouterr()
    again = jobs.run(commands, skip_done=True)
    assert ran() == "bc"
    assert [job.status for job in again] == ["done before", "done", "done"] and again.ok
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "skipped    1 of 3 jobs, done before" and len(lines) == 5
    old, new = first[0], again[0]
    assert new.row() == old.row() | {"status": "done before", "start": None}
    assert (new.tail, new.returncode, new.start, new.end, new.pid) == (old.tail, 0, *[None] * 3)
    assert len(rows()) == 5  # nothing is added for what did not run
    assert quiet(commands, skip_done=True).ok and ran() == ""
    assert quiet(commands).ok and ran() == "abc"  # as ever, without the option


def test_done_is_a_command_not_a_name_or_a_place(tmp_path, monkeypatch):
    quiet([job("a"), job("b")], names=["one", "two"])
    logs = {path: path.read_text() for path in Path("logs").glob("*.log")}
    ran()
    report = quiet([job("c"), job("b"), job("a", " # changed"), job("a")],
                   names=["one", "new", "two", "x"], skip_done=True)  # fmt: skip
    assert [job.status for job in report] == ["done", "done before", "done", "done before"]
    assert ran() == "ac"
    assert {path: path.read_text() for path in logs} == logs  # also that of job one
    assert [job.tail for job in report] == ["out c", "out b", "out a", "out a"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where the same words are another command
    assert quiet([job("a")], logs=tmp_path / "logs", skip_done=True)[0].status == "done"


def test_a_success_counts_for_one_job_and_a_later_failure_undoes_it():
    once = job("a", "; test ! -e broken")
    quiet([once])
    ran()
    report = quiet([once] * 3, skip_done=True)
    assert [job.status for job in report] == ["done before", "done", "done"] and ran() == "aa"
    assert len({job.log for job in report}) == 3
    newest = quiet([once])[0]
    assert quiet([once], skip_done=True)[0].started_at == newest.started_at
    ran()
    Path("broken").touch()
    quiet([job("b"), once, once])  # over the logs of two of the three
    ran()
    Path("broken").unlink()
    statuses = [job.status for job in quiet([once] * 3, skip_done=True)]
    assert statuses.count("done before") == len(statuses) - len(ran()) == 1


# --- what is left ---


PROGRAM = """
from mgpu_helpers import jobs
from mgpu_helpers._processes import terminal
terminal.TERMINAL = 0.05
jobs.run([["sleep", "0.15"]] * 3, devices=jobs.allowed()[1][:1])
"""


def test_on_a_terminal_what_is_left_is_rewritten_and_the_lines_stay(monkeypatch):
    pty = pytest.importorskip("pty")
    Path("program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    said = b""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "program.py"])
    try:
        while data := os.read(terminal, 4096):
            said += data
    except OSError:  # Linux says so that the other end is closed
        pass
    assert os.waitpid(pid, 0)[1] == 0, said
    screen = []  # what a person sees in the end
    for line in said.decode().replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        screen.append(shown.rstrip())
    assert [line.split()[0] for line in screen if line] == ["start", "done"] * 3
    assert b"\r0 of 3 done, 1 running" in said and b"\r1 of 3 done, 1 running, about 10 s" in said


def test_half_a_row_and_what_others_wrote_are_passed_over_and_stay(cores):
    quiet([job("a"), job("b")], devices=cores[:1])  # one after the other
    lines = RECORD.read_bytes().splitlines(keepends=True)
    first, second = (line for line in lines if b'"running"' not in line)
    for cut in (1, len(second) // 2, len(second) - 2):
        RECORD.write_bytes(b'mine\n[1]\n{"name": 3}\n\xff\n' + first + second[:cut])
        ran()
        assert quiet([job("a"), job("b")], skip_done=True).ok and ran() == "b"
        assert quiet([job("a"), job("b")], skip_done=True).ok and ran() == ""
        assert RECORD.read_bytes().startswith(b"mine\n")


def test_what_is_left_is_said_in_a_sentence(monkeypatch):
    waits = jobs.Job("x", ("x",), "core", Path("x"))
    done, failed = replace(waits, status="done"), replace(waits, status="failed", seconds=1)
    assert terminal.sentence([waits] * 12, [3, 3], 10) == "0 of 12 done, 2 running"
    some = [replace(done, seconds=100), replace(done, seconds=140), failed] + [waits] * 9
    text = terminal.sentence(some, [60, 0], 7)  # 60 s, 120 s, then 7 more of 120 s, on two places
    assert text == "2 of 12 done, 1 failed, 2 running, about 8 min left"
    one_is_late = terminal.sentence(some[:3] + [waits] * 2, [120, 0], 0)
    assert one_is_late.endswith("about 2 min left")
    for seconds, said in ((1, "10 s"), (41, "50 s"), (400, "7 min"), (8640, "2.4 h")):
        assert f"{said} left" in terminal.sentence([replace(done, seconds=seconds), waits], [0], 0)
    plain = SimpleNamespace(write=(lines := []).append, flush=lambda: None)  # no terminal
    monkeypatch.setattr(sys, "stdout", plain)
    monkeypatch.setattr(terminal, "TERMINAL", 0.0)
    assert jobs.run([["sleep", "0.1"]]).ok and "\r" not in "".join(lines)
