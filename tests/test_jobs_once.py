"""Each job once: after a runner was killed at any moment, and beside another runner."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import test_jobs
from conftest import later, lives, wait_for
from mgpu_helpers import jobs
from test_jobs import python, read, runner, sh, until
from test_jobs_again import RECORD, quiet, rows

here, never_hangs, cores = test_jobs.here, test_jobs.never_hangs, test_jobs.cores

# What ran, with its start and its end, in a file to which a line is added at once.
TIMES = """
import os, sys, time
name, seconds = sys.argv[1], float(sys.argv[2])
fd = os.open("times", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, f"start {name}\\n".encode())
time.sleep(seconds)
os.write(fd, f"end {name}\\n".encode())
print(name)
sys.exit(int(name.startswith("bad")))
"""


def counts() -> Counter:
    return Counter(Path("times").read_text().splitlines())


def sweep(n: int, seconds: float) -> list[list[str]]:
    return [python(TIMES, f"{'bad' if i == 1 else 'job'}{i}", seconds) for i in range(n)]


@pytest.mark.parametrize("seed", [0, *map(later, range(1, 30))])
def test_a_runner_killed_at_any_moment_leaves_each_job_to_be_done_once(seed, cores):
    """Runners of one sweep are killed, one after the other, and the last one finishes it."""
    draw = random.Random(seed)
    commands = sweep(6, 0.15)
    code = f"jobs.run({commands}, devices={cores}, skip_done=True)"
    began = time.monotonic()
    with runner("print('up', flush=True)") as ran:  # how long the imports take here
        ran.stdout.readline()
    up = time.monotonic() - began
    for _ in range(2):
        with runner(code) as ran, contextlib.suppress(subprocess.TimeoutExpired):
            ran.wait(timeout=up + draw.uniform(0, 0.5))
    report = quiet(commands, devices=cores, skip_done=True)
    found = counts()
    # What fails may be tried again by the next runner, and is never beside itself; no other is.
    assert found["start bad1"] == found["end bad1"] >= 1
    assert {found[f"{what} job{i}"] for what in ("start", "end") for i in (0, 2, 3, 4, 5)} == {1}
    assert [job.ok for job in report] == [True, False, *[True] * 4]
    assert report[1].returncode == 1 and [job.tail for job in report][2:] == [
        f"job{i}" for i in range(2, 6)
    ]
    begun = {row["run"] for row in rows(ended=False) if row["status"] == "running"}
    ended = Counter(row["run"] for row in rows(ended=False) if row["status"] != "running")
    assert set(ended) == begun and set(ended.values()) == {1}
    assert not list(Path("logs/.running").iterdir())


ORPHAN = f"echo $$ > pid.new; mv pid.new pid; {until('-e go')}; echo '{{{{\"n\": 1}}}}'; exit {{}}"


def orphaned(status: int, core: int) -> list[str]:
    """Leave a job whose runner was killed; give its command."""
    command = sh(ORPHAN.format(status))
    with runner(f"jobs.run([{command}], devices=[{core}], names=['train'])"):
        wait_for(Path("pid").exists)
    return command


@pytest.mark.parametrize("status, says", [(0, "done"), (3, "failed")])
def test_an_orphan_is_waited_for_and_ends_with_its_true_status(status, says, cores):
    command = orphaned(status, cores[0])
    again = f"r = jobs.run([{command}], devices={cores}, names=['train'], skip_done=True)[0]\n"
    again += "print('END', r.status, r.returncode, r.result, r.tail)"
    with runner(again) as ran:
        assert ran.stdout.readline().split()[:3] == ["logs", "named", f"*.{ran.pid}.log:"]
        assert ran.stdout.readline().startswith("waiting    train        runs already, as")
        Path("go").touch()
        out = ran.communicate(timeout=20)[0].splitlines()[-1]
    shown = "done before" if says == "done" else says
    assert out == f"END {shown} {status} {{'n': 1}} {{\"n\": 1}}"
    (row,) = rows()
    assert (row["status"], row["returncode"], row["result_n"]) == (says, status, 1)


@pytest.mark.parametrize("status, found", [(0, ["done"]), (3, ["failed", "failed"])])
def test_what_an_orphan_did_without_any_runner_is_found(status, found, cores):
    """What failed before a run began is tried again."""
    command = orphaned(status, cores[0])
    Path("go").touch()
    wait_for(lambda: not lives(rows(ended=False)[0]["pid"]))
    assert rows() == []
    (again,) = quiet([command], skip_done=True, devices=cores)
    assert again.status == ("failed" if status else "done before")
    assert [row["status"] for row in rows()] == found
    assert [row["returncode"] for row in rows()] == [status] * len(found)
    assert again.result == {"n": 1}


def test_ctrl_c_ends_an_orphan_too(cores):
    command = orphaned(0, cores[0])
    code = f"try:\n    jobs.run([{command}], devices={cores}, skip_done=True)\n"
    with runner(code + "except KeyboardInterrupt as error: print(error.report[0].status)") as ran:
        wait_for(lambda: f'"runner": {ran.pid},' in RECORD.read_text())
        ran.send_signal(signal.SIGINT)
        assert ran.communicate(timeout=20)[0].endswith("\nstopped\n")
    assert not lives(int(read("pid")))
    assert [row["status"] for row in rows()] == ["stopped"]


@pytest.mark.parametrize("which", ["keeper", "both"])
def test_a_job_whose_keeper_was_killed_is_done_again(which, cores):
    """It ends with its keeper: nobody would know how it ended."""
    command = sh("echo x >> ran; echo $$; sleep ${SLEEPS:-0}")
    code = f"jobs.run([{command}], devices=[{cores[0]}])"
    with runner(f"import os; os.environ['SLEEPS'] = '60'; {code}") as one:
        wait_for(lambda: read("logs/01_sh.log"))
        if which == "both":
            one.kill()
            one.wait()
        os.kill(rows(ended=False)[0]["pid"], signal.SIGKILL)
        wait_for(lambda: not lives(int(read("logs/01_sh.log"))))
        if which == "keeper":
            assert one.wait(timeout=20) == 0 and rows()[0]["status"] == "failed"
    assert quiet([command], devices=cores, skip_done=True)[0].status == "done"
    assert [row["status"] for row in rows()] == [
        {"both": "stopped", "keeper": "failed"}[which], "done"
    ]  # fmt: skip
    assert read("ran").split() == ["x", "x"]


def test_two_runners_of_one_sweep_share_the_work(cores):
    commands = sweep(10, 0.1)
    code = "r = jobs.run({}, devices=[{}], skip_done=True)\nprint('END', *[j.ok for j in r])"
    with runner(code.format(commands, cores[0])) as one:
        with runner(code.format(commands, cores[1])) as two:
            ends = [ran.communicate(timeout=50)[0].splitlines()[-1] for ran in (one, two)]
    want = " ".join(["END True False", *["True"] * 8])
    assert ends == [want, want]
    assert set(counts().values()) == {1} and len(counts()) == 20
    cores_of = {tuple(row["devices"]) for row in rows()}
    assert cores_of == {(cores[0],), (cores[1],)}


def test_what_another_runner_stops_is_done_here(cores):
    command = sh(f"echo x >> ran; {until('-e go')}")
    with runner(f"jobs.run([{command}], devices=[{cores[0]}])") as one:
        wait_for(Path("ran").exists)
        code = f"print(jobs.run([{command}], devices=[{cores[1]}], skip_done=True).ok)"
        with runner(code) as two:
            assert two.stdout.readline().startswith("logs")
            assert two.stdout.readline().startswith("waiting")
            one.send_signal(signal.SIGINT)
            Path("go").touch()
            assert one.wait(timeout=20) != 0
            assert two.communicate(timeout=20)[0].endswith("True\n")
    assert read("ran").split() in (["x"] * 2, ["x"])
    assert [row["status"] for row in rows()][-1] == "done"


# --- what a job leaves running ---


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux who started whom")
@pytest.mark.parametrize("orphan", [False, True])
def test_a_child_in_a_session_of_its_own_ends_with_the_job(orphan, cores):
    """It is told, and does not outlive that."""
    child = "trap 'touch told' TERM; echo \\$$ > new; mv new child; while :; do sleep 0.1; done"
    line = f'setsid setsid -f sh -c "{child}"; {until("-e child")}; {until("-e go")}'
    with runner(f"process.GRACE = 0.5\njobs.run([{sh(line)}], devices=[{cores[0]}])") as ran:
        wait_for(Path("child").exists)
        if orphan:
            ran.kill()
            ran.wait()
        Path("go").touch()
        assert orphan or (ran.wait(timeout=20) == 0 and not lives(int(read("child"))))
    wait_for(lambda: not lives(int(read("child"))))
    assert Path("told").exists()


def test_signals_for_the_keeper_reach_the_job(cores):
    heeds = "trap 'echo usr1; exit 7' USR1; touch on; while :; do sleep 0.05; done"
    with runner(f"jobs.run([{sh(heeds)}], devices=[{cores[0]}])") as ran:
        wait_for(Path("on").exists)
        os.kill(rows(ended=False)[0]["pid"], signal.SIGUSR1)
        assert ran.wait(timeout=20) == 0
    assert rows()[0]["returncode"] == 7 and "usr1" in Path("logs/01_sh.log").read_text()


def test_a_job_has_the_signals_and_files_of_any_process(cores):
    """Not Python's ignored SIGPIPE, nor a mask, nor the file in which its end is written."""
    code = (
        "import os, signal\n"
        "print(open('/proc/self/status').read().split('SigBlk:')[1].split()[0].strip('0'))\n"
        "print(*(os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
        "        if os.path.exists(f'/proc/self/fd/{fd}')))\n"
    )
    report = jobs.run([python(code), sh("yes | head -1; kill -PIPE $$")], devices=cores[:1])
    blocked, files = report[0].log.read_text().splitlines()
    assert blocked == "" and ".running" not in files and "/dev/null" in files
    assert report[1].returncode == -signal.SIGPIPE


# --- what cannot be written ---


def test_a_disk_that_is_full_at_once_or_midway_stops_with_a_sentence_and_loses_nothing(cores):
    """A limit on the size of a file stands for it."""
    commands = sweep(6, 0.05)
    commands[0][-1] = "0.5"
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"
        "try:\n    jobs.run({1}, devices={2}, skip_done=True)\n"
        "except RuntimeError as error: print('END', error.report.begun, error)"
    )
    for room in (0, 2000, 3100):
        size = RECORD.stat().st_size if RECORD.exists() else 0
        with runner(code.format(size + room, commands, cores)) as ran:
            out, error = ran.communicate(timeout=30)
        said = out.splitlines()[-1]
        if room == 2000:  # while the first job runs, to its end
            assert "\nstopping   when what runs has ended: " in out
        assert said.startswith(f"END {room > 0}") and "cannot be written (" in said, error
        assert "make room" in said and "did not start" in said and "skip_done goes on" in said
        assert Path("times").exists() is (room > 0)
        assert RECORD.read_bytes()[-1:] == b"\n" * (room > 0)
    assert quiet(commands, devices=cores, skip_done=True)[2].ok
    found = counts()
    assert {found[f"start job{i}"] for i in (0, *range(2, 6))} == {1}


@pytest.mark.parametrize("where, make", [
    ("logs", Path.touch), ("logs/jobs.jsonl", Path.mkdir), ("logs/jobs.jsonl", os.mkfifo),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_before_the_first_job(where, make, cores):
    """A pipe is not waited for."""
    Path("logs").mkdir() if where != "logs" else None
    make(Path(where))
    with pytest.raises(RuntimeError, match=f"{where} cannot be written .*: move it away"):
        quiet([sh("touch started")] * 2)
    assert not Path("started").exists() and not list(Path().glob("logs/*.log"))


def test_where_rows_cannot_be_read_any_more_what_runs_goes_on_to_its_end(cores):
    """And the next runner finds how it ended."""
    first = sh("touch begun; mv logs/jobs.jsonl logs/kept; mkdir logs/jobs.jsonl")
    long = sh(f"{until('-e begun')}; {until('-d logs/jobs.jsonl')}; sleep 0.2; echo x >> ran")
    with pytest.raises(RuntimeError, match="cannot be written .* 1 job did not start") as caught:
        quiet([first, long, sh("true")], devices=cores)
    assert [job.status for job in caught.value.report] == ["done", "done", "not started"]
    RECORD.rmdir()
    Path("logs/kept").rename(RECORD)
    report = quiet([first, long], devices=cores, skip_done=True)
    assert [job.status for job in report] == ["done before"] * 2 and read("ran") == "x\n"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("seed", range(10))
def test_ctrl_c_and_a_closed_terminal_leave_nothing_at_any_moment(seed, number, cores):
    commands = ["a.sh", "--grid", "n=1,2,3,4", "--skip-done"]
    Path("a.sh").write_text("echo $$ >> pids; setsid sleep 0.3 & wait\n")
    code = "from mgpu_helpers.__main__ import main\nprint('up', flush=True)\n"
    with runner(f"{code}raise SystemExit(main({['run', *commands]}))") as ran:
        ran.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.05, 1.0))
        ran.send_signal(number)
        _, error = ran.communicate(timeout=30)
    assert not any(lives(int(pid)) for pid in read("pids").split())
    assert "Traceback" not in error and ran.returncode in (0, 130, -signal.SIGHUP), error
    if RECORD.exists() and RECORD.stat().st_size:
        assert len({row["run"] for row in rows(ended=False)}) == len(rows())
