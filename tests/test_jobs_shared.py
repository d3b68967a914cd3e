"""A shared server: real runners and the real pynvml, on GPUs that others use, before and midway."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import test_jobs
from conftest import ROOT, clean
from mgpu_helpers import nvml
from mgpu_helpers.jobs import allowed, run
from mgpu_helpers.lessons.pretend import pretend_server

TELL = "import json, os; print(json.dumps({'sees': os.environ['CUDA_VISIBLE_DEVICES']}))\n"
UUIDS = ("GPU-00000000-aaaa", "GPU-11111111-bbbb", "GPU-22222222-cccc", "GPU-33333333-dddd")


here, never_hangs = test_jobs.here, test_jobs.never_hangs


@pytest.fixture(scope="module")
def stranger():
    """Give the number of a process of another user: one that root starts, or root's first."""
    if os.getuid():
        yield 1
        return
    with subprocess.Popen(["sleep", "1000"], user=65534) as sleeps:
        yield sleeps.pid
        sleeps.kill()


@pytest.fixture
def user(stranger) -> str:
    return pwd.getpwuid(os.stat(f"/proc/{stranger}").st_uid).pw_name


@pytest.fixture
def server(tmp_path, driver):
    """Give a function that starts a runner on a machine whose GPUs are used as `use` says."""
    started = []

    def use(text: str = "") -> None:
        (tmp_path / "use.new").write_text(text)
        os.rename(tmp_path / "use.new", tmp_path / "use")

    def start(text: str, code: str, **env: str) -> subprocess.Popen:
        use(text)
        (tmp_path / "tell.py").write_text(TELL)
        env = {
            "PYTHONPATH": str(ROOT / "src"), "LD_LIBRARY_PATH": driver, "TMPDIR": str(tmp_path),
            "FAKE_GPUS": "4", "FAKE_USE": str(tmp_path / "use"), **env,
        }  # fmt: skip
        imports = "import sys\nfrom mgpu_helpers import jobs\nfrom mgpu_helpers.jobs import queue\n"
        started.append(subprocess.Popen(
            [sys.executable, "-c", imports + code], cwd=tmp_path, env=clean(**env), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
        return started[-1]

    start.use, start.folder = use, tmp_path
    yield start
    for ran in started:
        ran.kill()
        ran.communicate()


def where(folder: Path) -> list[str]:
    """Give what each job saw, in the order of the commands."""
    rows = [json.loads(line) for line in (folder / "logs/jobs.jsonl").read_text().splitlines()]
    ended = [row for row in rows if row["status"] != "running"]
    return [row["result_sees"] for row in sorted(ended, key=lambda row: row["log"])]


def skipped(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith(("skipped", "waiting"))]


# Of four GPUs two are full, and one has a process of another user.
THREE = "0 100 0\n1 14000 {own}\n2 0 {other}\n"
FULL_TWO = "GPU 0 (0.1 of 4.0 GiB free), GPU 1 (13.7 of 140.0 GiB free)"
MIG = {"FAKE_MIG": "1", "CUDA_VISIBLE_DEVICES": "MIG-3333-0,MIG-3333-1"}


@pytest.mark.parametrize("use, arguments, env, sees, left", [
    (THREE, [], {}, UUIDS[3:], f"{FULL_TWO}, GPU 2 (processes of {{user}})"),
    (THREE, ["--busy"], {}, UUIDS[:1], ""),
    (THREE, ["--devices", "1"], {}, UUIDS[1:2], ""),
    # GPU 1 has most memory but is busy, 0 is nearly full; the driver tells no memory of 2.
    ("0 1000 0\n3 30000 0\n1 90000 0\n", [*["tell.py"] * 3, "--free", "2"], {},
     (UUIDS[3], UUIDS[0]), ""),
    ("1 0 0\n", ["--devices-each", "2"], {}, [f"{UUIDS[0]},{UUIDS[2]}"],
     "GPU 1 (0.0 of 140.0 GiB free)"),
    # A MIG device is looked at by itself.
    ("10 30000 {other}\n3 0 0\n", [], MIG, ["MIG-3333-1"], "GPU 0 (processes of {user})"),
    ("10 1000 0\n", ["--free", "1"], MIG, ["MIG-3333-1"], ""),
])  # fmt: skip
def test_gpus_that_others_use_are_left_alone_unless_asked_for(
    server, stranger, user, use, arguments, env, sees, left
):
    use = use.format(own=os.getpid(), other=stranger)
    code = "from mgpu_helpers.__main__ import main\nsys.exit(main({}))"
    ran = server(use, code.format(["run", "tell.py", *arguments]), **env)
    out, error = ran.communicate()
    found, until = where(server.folder), "until free; the options busy and devices overrule that"
    assert (ran.returncode, error, found[: len(sees)]) == (0, "", [*sees]) and {*found} == {*sees}
    line = f"skipped    {left.format(user=user)}: in use, and left alone {until}"
    assert skipped(out) == [line] * bool(left)


# Looks at the driver are seen in what the runner prints.
QUICK = """
queue.AGAIN = queue.RETRY = 0.02
look = queue.look
queue.look = lambda pool: print("look", flush=True) or look(pool)
"""
HIDDEN = 2**31 - 1  # the number of no process here


def runs(*jobs: str, more: str = "", before: str = QUICK) -> str:
    commands = f"[[sys.executable, '-c', code] for code in {list(jobs)}]"
    return f"{before}jobs.run({commands}, names={list('ab'[: len(jobs)])}{more})"


def uses(text: str) -> str:
    """Give the code of a job that changes who uses the GPUs."""
    return f"import os; open('mine', 'w').write({text!r}); os.rename('mine', 'use')\n"


def waits(file: str) -> str:
    return f"import os, time\nwhile not os.path.exists({file!r}): time.sleep(0.01)\n"


def events(ran: subprocess.Popen, count: int | None = None) -> list[str]:
    """Read what the runner says, up to so many lines that are not looks, or to its end."""
    found: list[str] = []
    while len(found) != count and (line := ran.stdout.readline()):
        found += [line] * (line != "look\n")
    return [line.split("  (")[0].strip() for line in found]


def words(lines: list[str]) -> list[str]:
    return [" ".join(line.split()[:2]) for line in lines]


@pytest.mark.parametrize("memory, whose, lingers, says", [
    (4000, "another's", 60, "waiting    for GPU 0 (processes of {}): in use"),
    (0, "hidden", 60, ""),
    (0, "hidden", 0, "GPU 0 (processes whose user is hidden from here, 0.0 of 4.0 GiB free)"),
])  # fmt: skip
def test_the_only_gpu_is_waited_for_where_another_s_process_comes(
    server, stranger, user, memory, whose, lingers, says
):
    """What may be an ended job's own, its memory or a process, is that for some seconds."""
    before = f"{QUICK}queue.LINGERS, queue.AGAIN = {lingers}, {0.02 if says else 99}\n"
    pid = stranger if whose == "another's" else HIDDEN
    jobs = uses(f"0 {memory} {pid}\n"), "pass"
    ran = server("", runs(*jobs, before=before), FAKE_GPUS="1")
    assert words(events(ran, 2)) == ["start a", "done a"]
    if says:
        assert says.format(user) in events(ran, 1)[0]
    for _ in range(3):  # it is not said, or not again
        assert ran.stdout.readline() == "look\n"
    server.use()
    assert words(events(ran)) == ["start b", "done b"] and ran.wait() == 0


def test_the_others_go_on_meanwhile_and_a_gpu_that_is_free_again_is_used(server, stranger):
    """The first job runs until a second has started, on the GPU that was in use."""
    jobs = waits("said") + uses("1 40000 0\n") + waits("b"), "open('b', 'w')"
    ran = server(f"1 40000 {stranger}\n", runs(*jobs), FAKE_GPUS="2")
    assert words(events(ran, 2)) == ["start a", "skipped GPU"]
    (server.folder / "said").touch()
    start, *done = events(ran)
    assert start.startswith("start      b") and start.endswith("on GPU 1")
    assert sorted(words(done)) == ["done a", "done b"]


# The second look waits until the first job has taken all memory.
FULL = """
import os, time
look, looks = queue.look, []
def queue_look(pool):
    looks.append(pool)
    while len(looks) == 2 and not os.path.exists("full"):
        time.sleep(0.01)
    return look(pool)
queue.look = queue_look
"""


@pytest.mark.parametrize("whose", ["mine", "hidden", "another's"])
def test_jobs_that_share_a_gpu_are_not_in_each_other_s_way(server, stranger, whose):
    """Unless the second process there is certainly of another user."""
    pid = {"mine": os.getpid(), "hidden": HIDDEN, "another's": stranger}[whose]
    waits_for = "b" if whose != "another's" else "said"
    first = uses(f"0 0 {pid}\n") + "open('full', 'w')\n" + waits(waits_for)
    code = runs(first, "open('b', 'w')", more=", per_device=2", before=FULL)
    ran = server("", code, FAKE_GPUS="1")
    if waits_for == "b":
        assert words(events(ran))[:2] == ["start a", "start b"]
        return
    assert words(events(ran, 2)) == ["start a", "skipped GPU"]
    (server.folder / "said").touch()
    assert words(events(ran, 1)) == ["done a"]


def test_a_runner_without_progress_says_what_it_waits_for(server):
    ran = server("0 0 0\n", runs("pass", more=", progress=False"), FAKE_GPUS="1")
    assert ran.stderr.readline().startswith("waiting    for GPU 0 (0.0 of 4.0 GiB free)")
    server.use()
    assert ran.wait() == 0 and ran.stderr.read() == ""


def test_a_server_can_be_pretended_with_locks_of_its_own(here):
    """As lesson 16 does; the settings that would hide it come back."""
    with pretend_server({0: 73, 1: 4}, n=3):
        assert run([["true"]])[0].devices == (2,)
    assert os.environ["MGPU_MODE"] == "cores" and os.environ["TMPDIR"] == str(here)
    assert allowed()[0] == "core" and not (here / "mgpu-jobs").exists()


@pytest.mark.parametrize("free, processes", [
    (10, []),  # exactly a tenth
    (None, None),
    (50, [(os.getuid() + 1, False), (None, False)]),  # a desktop
])  # fmt: skip
def test_what_draws_or_is_not_known_does_not_count_as_another(free, processes):
    if processes is not None:
        processes = tuple(nvml.Process(1, None, None, *each) for each in processes)
    gpu = nvml.Gpu(0, "x", None, None, 100, None, free, *[None] * 4, processes)
    assert not gpu.others()


def test_one_process_whose_user_is_hidden_is_of_another():
    mine, hidden = (nvml.Process(i, None, None, uid) for i, uid in enumerate([os.getuid(), None]))
    gpu = nvml.Gpu(0, "x", None, None, 100, None, 50, *[None] * 4, (mine, hidden))
    assert "hidden" in gpu.others() and not gpu.others(mine=True)
