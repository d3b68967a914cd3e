"""The command `mgpu`: what it prints, and why a GPU that is there is not used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import fake_driver
from conftest import run_python
from mgpu_helpers import doctor, nvml
from mgpu_helpers.doctor.facts import gpus_on_bus

GATHER = """
import dataclasses, json
from mgpu_helpers.doctor import facts
print(json.dumps([dataclasses.asdict(facts.gather()), facts.missing_libraries()]))
"""
CUDA_12 = doctor.TensorFlow("12.5.1", "9", 0)
CPU_ONLY = doctor.TensorFlow(None, None, 0)


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> str:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> str:
    """A driver with CUDA libraries beside it: enough for TensorFlow to see three GPUs."""
    folder = tmp_path_factory.mktemp("complete")
    return fake_driver.build(folder, fake_driver.CUDA_LIBRARIES)


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MGPU_", "TF_", "CUDA_"))}
    return subprocess.run(
        [sys.executable, "-m", "mgpu_helpers", *arguments],
        env=clean | env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def facts(driver: str, **env: str) -> doctor.Facts:
    """Gather facts, without TensorFlow's, on a machine with the stand-in driver."""
    found, missing = json.loads(run_python(GATHER, LD_LIBRARY_PATH=driver, **env).stdout)
    gpus = found["driver"].pop("gpus")
    for gpu in gpus:
        gpu["processes"] = tuple(nvml.Process(**each) for each in gpu["processes"] or ())
    gpus = tuple(nvml.Gpu(**gpu) for gpu in gpus)
    found["driver"] = nvml.DriverReport(gpus, **found["driver"])
    found["missing"] = tuple(missing)
    for order in ("cuda_order", "lesson_order"):
        found[order] = None if found[order] is None else tuple(found[order])
    return doctor.Facts(**found)


# ---- the command


def test_without_a_gpu():
    if nvml.query().gpus:
        pytest.skip("this machine has a GPU")
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:1].strip())
    assert rows["python"].startswith("3.")
    assert "tensorflow 2." in rows["versions"] and "keras 3." in rows["versions"]
    assert rows["driver"].endswith(".")
    assert rows["GPUs"] == "none"
    assert rows["mode"].startswith("cores")
    assert "problem" not in rows and "error" not in rows


def test_both_orders_and_what_is_hidden(complete):
    done = command(LD_LIBRARY_PATH=complete, MGPU_MODE="cores", CUDA_VISIBLE_DEVICES="2,0")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("GPUs"))
    table = [line[9:].split()[:5] for line in lines[start : start + 4]]
    assert table == [
        ["nvidia-smi", "CUDA", "lessons", "name", "memory"],
        ["0", "2", "/GPU:1", "NVIDIA", "T400"],
        ["1", "0", "-", "NVIDIA", "H200"],
        ["2", "1", "/GPU:0", "NVIDIA", "GH200"],
    ]
    assert 'CUDA_VISIBLE_DEVICES="2,0" leaves 2 of 3 GPUs' in done.stdout
    assert "2 GPUs not used (MGPU_MODE=cores)" in done.stdout


def test_cores_mode_hides_the_gpus_from_keras_and_from_children_too(complete):
    code = """
import subprocess, sys
from mgpu_helpers import devices
note = devices.setup(2).note
import keras, tensorflow as tf
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
child = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
print(note, tf.config.list_physical_devices("GPU"), model.jit_compile, told.strip(), sep="; ")
"""
    done = run_python(code, LD_LIBRARY_PATH=complete, MGPU_MODE="cores", CUDA_VISIBLE_DEVICES="2,0")
    assert done.stdout == "2 GPUs not used (MGPU_MODE=cores); []; False; -1\n"
    assert done.stderr == ""  # it was not too late


def test_gpus_that_do_not_start(complete):
    done = command("--json", LD_LIBRARY_PATH=complete)
    assert (done.returncode, done.stderr) == (1, "")
    got = json.loads(done.stdout)
    assert (got["plan"], got["facts"]["tensorflow"]["gpus"]) == (None, 3)
    assert "does not start" in got["error"] and "MGPU_MODE=cores" in got["error"]
    # TensorFlow's numbers are those of the bus: the lessons ask for that order.
    buses = [gpu["pci_bus_id"] for gpu in got["facts"]["driver"]["gpus"]]
    assert got["facts"]["lesson_order"] == buses
    assert got["facts"]["cuda_order"] == [buses[1], buses[2], buses[0]]


def test_a_lost_gpu_is_said(complete):
    done = command(LD_LIBRARY_PATH=complete, MGPU_MODE="cores", FAKE_LOST="1")
    assert (done.returncode, done.stderr) == (0, "")
    problems = done.stdout.split("\nproblem  ")[1:]
    assert len(problems) == 1 and "GPU 1 has fallen off the bus" in problems[0]
    got = json.loads(command("--json", LD_LIBRARY_PATH=complete, FAKE_LOST="1").stdout)
    assert "GPU 1 has fallen off the bus" in got["error"]
    assert "GPU 1 has fallen off the bus" in got["problems"][0]


@pytest.mark.parametrize(("visible", "names"), [("1,1", "'1' a second time"), ("0,7", "'7'")])
def test_a_visible_device_that_cuda_would_drop_is_said(complete, visible, names):
    done = command("--json", LD_LIBRARY_PATH=complete, CUDA_VISIBLE_DEVICES=visible)
    assert (done.returncode, done.stderr) == (1, "")
    error = json.loads(done.stdout)["error"]
    assert f"CUDA_VISIBLE_DEVICES={visible!r}" in error and names in error


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ImportError('libfoo.so.1: cannot open\\nmore')", "(libfoo.so.1: cannot open): pip"),
        ("raise TypeError('Descriptors cannot be created')", "cannot be imported (Descriptors"),
        ("raise ModuleNotFoundError(name='tensorflow')", "TensorFlow is not installed: pip"),
    ],
)
def test_tensorflow_that_cannot_be_imported(tmp_path, code, says):
    (tmp_path / "tensorflow.py").write_text(code)
    done = command(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert says in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


def test_a_plan_that_cannot_be():
    done = command(MGPU_DEVICES="many")
    assert done.returncode == 1
    assert "error    MGPU_DEVICES='many' is not a number" in done.stdout


def test_help_and_import_are_quick_and_leave_tensorflow_alone():
    """What takes long is not imported: a time would depend on what else runs."""
    slow = "{'tensorflow', 'keras', 'numpy', 'matplotlib', 'scipy', 'pynvml'} & set(sys.modules)"
    show = f"print(sorted({slow}))"
    assert run_python(f"import sys, mgpu_helpers; {show}").stdout == "[]\n"
    helps = "import atexit, sys; from mgpu_helpers.__main__ import main; "
    done = run_python(f"{helps}atexit.register(lambda: {show}); main(['--help'])")
    assert done.stdout.splitlines()[-1] == "[]" and done.stdout.startswith("usage")
    gather = "import sys; from mgpu_helpers import doctor; doctor.gather(); "
    done = run_python(gather + "print({'tensorflow', 'pynvml'} & set(sys.modules))")
    assert done.stdout == "{'pynvml'}\n"


# ---- scripts, each on a device of its own

SCRIPTS = {
    "echo.py": "import os, sys; print(os.environ['MGPU_JOB_DEVICE'], *sys.argv[1:])",
    "killed.py": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "fails.py": "import sys; sys.stdout.buffer.write(b'caf\\xc3\\xa9 ')\n"
    "sys.exit('no data here' + 'x' * 5000)",
    "sleeps.py": """
import os, pathlib, time
pathlib.Path("pid.new").write_text(str(os.getpid()))
os.rename("pid.new", "pid")
time.sleep(60)
""",
}


@pytest.fixture
def run_scripts(tmp_path):
    """Start `run` in a folder with the scripts, with locks of its own."""
    for name, code in SCRIPTS.items():
        (tmp_path / name).write_text(code)

    def start(*arguments: str, before: tuple[str, ...] = (), stdin=None, **env: str):
        hidden = ("MGPU_", "TF_", "CUDA_", "SLURM_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        env = clean | {"MGPU_MODE": "cores", "TMPDIR": str(tmp_path)} | env
        return subprocess.Popen(
            [*before, sys.executable, "-m", "mgpu_helpers", "run", *arguments], cwd=tmp_path,
            env=env, text=True, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


@pytest.fixture
def core() -> str:
    return str(min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def test_run_gives_every_script_a_device_and_the_common_arguments(run_scripts, tmp_path, core):
    arguments = ("echo.py", "echo.py", "--devices", core, "--logs", "out", "--", "--n", "3", "--")
    code, out, error = ended(run_scripts(*arguments))
    assert (code, error) == (0, "")
    logs = sorted((tmp_path / "out").glob("*.log"))
    assert [log.read_text() for log in logs] == [f"core {core} --n 3 --\n"] * 2
    lines, table, where = out.split("\n\n")
    assert where == "what they printed is in out\n"
    assert [line.split()[0] for line in lines.splitlines()] == ["start", "done"] * 2
    assert [row.split()[1:4] for row in table.splitlines()[1:]] == [["core", core, "done"]] * 2


def test_run_says_what_failed_and_shows_the_end_of_its_log(run_scripts, core):
    # A terminal that can only show ASCII, and a log that is not.
    arguments = ("fails.py", "killed.py", "echo.py", "--devices", core)
    code, out, error = ended(run_scripts(*arguments, PYTHONIOENCODING="ascii"))
    assert (code, error) == (1, "")
    _, table, _, fails, killed = out.split("\n\n")
    assert [row.split()[-2] for row in table.splitlines()[1:]] == ["failed", "failed", "done"]
    assert fails.startswith("fails, failed with exit status 1; the end of ")
    assert "no data here" in fails and "caf?" in fails and len(fails) < 2000
    assert killed.startswith("killed, failed, SIGKILL ended it; the end of ")
    assert killed.endswith(":\n(nothing)\n")


def logged(folder: Path) -> dict[str, str]:
    return {log.name: log.read_text().strip() for log in sorted((folder / "logs").glob("*.log"))}


def test_run_makes_a_job_of_every_combination(run_scripts, tmp_path, core):
    sweep = ("--grid", "width=32,64", "--grid", "seed=0", 'size="2,3"', "--devices", core)
    code, out, error = ended(run_scripts("echo.py", *sweep, "--", "--n", "3"))
    assert (code, error) == (0, "")
    assert logged(tmp_path) == {
        "01_width=32,seed=0,size=2,3.log": f"core {core} --n 3 --width=32 --seed=0 --size=2,3",
        "02_width=64,seed=0,size=2,3.log": f"core {core} --n 3 --width=64 --seed=0 --size=2,3",
    }
    assert out.split()[:2] == ["start", "width=32,seed=0,size=2,3"]


def test_run_makes_a_job_of_every_line_for_every_script(run_scripts, tmp_path, core):
    (tmp_path / "again.py").write_text(SCRIPTS["echo.py"])
    (tmp_path / "lines").write_text("--name 'a b' # first\n\n# no job\nfit\nfit\n")
    said = [f"core {core} --name a b", *[f"core {core} fit"] * 2]
    code, _, error = ended(run_scripts("echo.py", "--each", "lines", "--devices", core))
    assert (code, error) == (0, "")
    names = ["01_name=a_b.log", "02_fit-1.log", "03_fit-2.log"]
    assert logged(tmp_path) == dict(zip(names, said, strict=True))
    runner = run_scripts("echo.py", "again.py", "--each", "-", "--logs", "two", stdin=-1)
    out, error = runner.communicate("-x 1\n", timeout=60)
    assert (runner.returncode, error) == (0, "")
    table = out.split("\n\n")[1].splitlines()[1:]
    assert [row.split()[0] for row in table] == ["echo,x=1", "again,x=1"]


def test_a_name_that_the_locale_cannot_write_fails_its_job_only(run_scripts, tmp_path, core):
    (tmp_path / "lines").write_text("é\ne\n", encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = run_scripts("echo.py", "--each", "lines", "--devices", core, **ascii_only)
    code, out, error = ended(ran)
    assert (code, error) == (1, "") and "'ascii' codec can't encode" in out
    assert [row.split()[-2] for row in out.split("\n\n")[1].splitlines()[1:]] == ["failed", "done"]


def test_run_goes_on_after_a_crash(run_scripts, tmp_path, core):
    """The runner is killed, so that it can tidy up nothing."""
    (tmp_path / "sleeps.py").write_text(
        "import sys, time; open('pid', 'a').write(sys.argv[1]); time.sleep('3' in sys.argv[1])"
    )
    arguments = ("sleeps.py", "--grid", "n=1,2,3,4", "--devices", core, "--skip-done")
    runner = run_scripts(*arguments)
    while not (tmp_path / "pid").exists() or "3" not in (tmp_path / "pid").read_text():
        time.sleep(0.02)
        assert runner.poll() is None
    runner.kill()
    runner.communicate()
    (tmp_path / "pid").unlink()
    code, out, error = ended(run_scripts(*arguments))
    assert (code, error) == (0, "") and (tmp_path / "pid").read_text() == "--n=3--n=4"
    lines, table, *rest = out.split("\n\n")
    assert "skipped    2 of 4 jobs, done before" in lines.splitlines()
    statuses = [row.split(maxsplit=3)[3].rsplit(maxsplit=1)[0] for row in table.splitlines()[1:]]
    assert statuses == ["done before"] * 2 + ["done"] * 2
    assert len(rest) == 1  # no end of a log: nothing has failed


def test_run_gives_a_script_two_devices(run_scripts, tmp_path):
    two = sorted(getattr(os, "sched_getaffinity", lambda pid: {0, 1})(0))[:2]
    if len(two) < 2:
        pytest.skip("two cores are needed")
    numbers = ",".join(map(str, two))
    code, out, error = ended(run_scripts("echo.py", "--devices", numbers, "--devices-each", "2"))
    assert (code, error) == (0, "")
    assert logged(tmp_path) == {"01_echo.log": f"core {two[0]}, core {two[1]}"}


def test_run_keeps_to_the_time_limit_and_to_the_jobs_per_device(run_scripts, core):
    code, out, error = ended(
        run_scripts("sleeps.py", "echo.py", "--devices", core, "--per-device", "2",
                    "--time-limit", "4")
    )  # fmt: skip
    assert (code, error) == (1, "")
    order = [line.split()[:2] for line in out.splitlines()[:4]]
    assert order == [["start", "sleeps"], ["start", "echo"], ["done", "echo"], ["timed", "out"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["echo.py", "--devices", "0,x"], "'0,x'"),
        (["echo.py", "--per-device", "0"], "--per-device 0 is"),
        (["echo.py", "--logs", "echo.py"], "with --logs ..."),
        (["echo.py", "--grid", "n=1", "--grid", "n=2"], "'n=2'"),
        (["echo.py", "--each", "nowhere"], "'nowhere'"),
        (["echo.py", "nowhere.py"], "no file 'nowhere.py' here"),
        (["echo.py", "--free", "1", "--devices-each", "2"], "--devices-each 2"),
        (["python3", "-m", "site"], "as in python -m mgpu_helpers run python3 -- -m site"),
        (["echo.py", "--n", "3", "--logs", "n", "--", "x"], "run echo.py --logs n -- --n 3 x"),
        (["text+x"], "'text+x' is no program"),
        (["binary"], "chmod +x it"),
    ],
)
def test_run_refuses_what_it_cannot_do_with_a_sentence(run_scripts, tmp_path, arguments, says):
    (tmp_path / "text+x").write_text("echo")
    (tmp_path / "text+x").chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x7fELF\0")
    code, out, error = ended(run_scripts(*arguments))
    assert (code, out) == (2, "")
    usage, sentence = error.strip().split("\n")
    assert usage.startswith("usage: python -m mgpu_helpers run SCRIPT")
    assert sentence.startswith("python -m mgpu_helpers run: error: ") and says in sentence
    assert not (tmp_path / "logs").exists() or not list((tmp_path / "logs").iterdir())


@pytest.mark.parametrize(("name", "text", "mode", "asked", "called"), [
    ("wrapper.sh", 'echo "[$0]" "$@"', 0o644, "wrapper.sh", "wrapper"),
    ("wrapper.sh", '#!/bin/sh -u\necho "[$0]" "$@"', 0o644, "wrapper.sh", "wrapper"),
    ("wrapper.sh", '#!/bin/sh\necho "[$0]" "$@"', 0o755, "./wrapper.sh", "wrapper"),
    ("tool", '#!/usr/bin/env python3\nimport sys; print("[]", sys.argv)', 0o755, "tool", "tool"),
    ("echo", '#!/bin/sh\necho "[mine]" "$@"', 0o755, "echo", "echo"),
    ("train.py", 'import sys; print("[py]", *sys.argv[1:])', 0o755, "train.py", "train"),
    ("module.py", 'import sys; print("[m]", *sys.argv[1:])', 0o644, "python3 -m module", "module"),
    ("x", "", 0o644, "printf '[%s]'", "printf"),
    ("y z.py", 'import sys; print("[space]", *sys.argv[1:])', 0o644, "y z.py", "y z"),
])  # fmt: skip
def test_run_takes_any_program(run_scripts, tmp_path, core, name, text, mode, asked, called):
    """With the jobs' own arguments, whatever its mode, and a file before a program of PATH."""
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(mode)
    code, out, error = ended(run_scripts(asked, "--devices", core, "--", "a b"))
    assert (code, error) == (0, "") and out.split("\n\n")[1].splitlines()[1].startswith(called)
    (said,) = logged(tmp_path).values()
    assert said.startswith("[") and "a b" in said


def test_a_script_without_run_is_told_how(capsys, tmp_path, monkeypatch):
    from mgpu_helpers.__main__ import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrapper.sh").touch()
    for arguments, call in [
        (["train.py"], "run train.py gives"),
        (["train.py", "--epochs", "3"], "run train.py -- --epochs 3 gives"),
        (["wrapper.sh", "a b"], "run wrapper.sh -- 'a b' gives"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert call in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "cluster"])
@pytest.mark.parametrize(
    ("mode", "says"), [("core", "MGPU_MODE='core'"), ("gpus", "MGPU_MODE=gpus")]
)
def test_a_mode_that_cannot_be_is_said(tmp_path, command, mode, says):
    (tmp_path / "echo.py").write_text(SCRIPTS["echo.py"])
    called = [sys.executable, "-m", "mgpu_helpers", command, "echo.py"]
    env = os.environ | {"MGPU_MODE": mode, "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    ran = subprocess.run(called, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "") and says in ran.stderr


def test_the_last_table_has_the_results_of_the_jobs(run_scripts, tmp_path, core):
    (tmp_path / "job.py").write_text(
        "import sys, json; n = int(sys.argv[1][-1])\nif n == 2: sys.exit('no')\n"
        "print(json.dumps({'loss': n / 3, 'note': 'ok', 'all': [1, 2]}))"
    )
    code, out, _ = ended(run_scripts("job.py", "--grid", "n=1,2", "--devices", core))
    head, first, second, more = out.split("\n\n")[1].splitlines()
    assert code == 1 and head.split() == ["name", "device", "status", "seconds", "loss", "note"]
    assert first.split()[-2:] == ["0.333333", "ok"] and second.split()[-2:] == ["-", "-"]
    assert "failed" in second and more.endswith(": all")


@pytest.mark.parametrize("command", ["run", "cluster"])
def test_nobody_has_to_read_what_is_printed(tmp_path, command):
    (tmp_path / "echo.py").write_text(SCRIPTS["echo.py"].replace("MGPU_JOB_DEVICE", "PATH"))
    call = f'"{sys.executable}" -m mgpu_helpers {command} echo.py'
    env = os.environ | {"MGPU_MODE": "cores", "TMPDIR": str(tmp_path)}
    for ends in (">&-", ">/dev/full", "| true"):
        ran = subprocess.run(["bash", "-c", f"set -o pipefail; {call} {ends}"], cwd=tmp_path,
                             env=env, text=True, capture_output=True, timeout=60)  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, ""), ends


@pytest.mark.parametrize("command", ["run", "cluster"])
def test_a_folder_that_was_removed_is_said(tmp_path, command):
    (tmp_path / "gone").mkdir()
    (tmp_path / "echo.py").write_text(SCRIPTS["echo.py"])
    call = f'rmdir ../gone; "{sys.executable}" -m mgpu_helpers {command} "{tmp_path}/echo.py"'
    ran = subprocess.run(["sh", "-c", call], cwd=tmp_path / "gone", text=True,
                         env=os.environ | {"TMPDIR": str(tmp_path)},
                         capture_output=True, timeout=60)  # fmt: skip
    assert ran.returncode == 2 and "The working directory was removed" in ran.stderr


@pytest.mark.parametrize(("folder", "status"), [("mgpu-jobs", 0), ("a file", 1)])
def test_locks_that_are_tidied_away_end_no_job_without_a_report(run_scripts, tmp_path, core,
                                                               folder, status):  # fmt: skip
    """A folder is made again; where it cannot be, the report says what became of the jobs."""
    lose = "import shutil; shutil.rmtree('mgpu-jobs'); "
    lose += "open('mgpu-jobs', 'w')" if folder == "a file" else ""
    (tmp_path / "loses.py").write_text(lose)
    code, out, error = ended(run_scripts("loses.py", "echo.py", "--devices", core))
    assert (code, error) == (status, "")
    rows = [row.split() for row in out.split("\n\n")[1].splitlines()[1:]]
    assert rows[0][3] == "done" and rows[1][1:3] == (["-", "not"] if status else ["core", core])


def pid_of(folder: Path) -> int:
    """Wait for the script that sleeps, and give its number."""
    for _ in range(600):
        if (folder / "pid").exists():
            return int((folder / "pid").read_text())
        time.sleep(0.05)
    raise AssertionError("the script does not start")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_runner_that_is_stopped_ends_its_scripts(run_scripts, tmp_path, core, name):
    runner = run_scripts("sleeps.py", "echo.py", "--devices", core)
    pid = pid_of(tmp_path)
    runner.send_signal(getattr(signal, name))
    code, out, error = ended(runner)
    assert (code, error) == (130, "")
    table = out.split("\n\n")[1].splitlines()[1:]
    assert "stopped" in table[0] and "not started" in table[1]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_runner_under_nohup_goes_on(run_scripts, tmp_path, core):
    (tmp_path / "sleeps.py").write_text(SCRIPTS["sleeps.py"].replace("60", "0.5"))
    runner = run_scripts("sleeps.py", "--devices", core, before=("nohup",))
    pid_of(tmp_path)
    runner.send_signal(signal.SIGHUP)
    assert ended(runner)[0] == 0


def test_run_leaves_tensorflow_alone(run_scripts, core):
    runner = run_scripts("echo.py", "--devices", core, PYTHONPROFILEIMPORTTIME="1")
    code, _, imported = ended(runner)
    assert code == 0 and "mgpu_helpers.jobs" in imported and "tensorflow" not in imported


# ---- the diagnosis: one cause at a time, then several


def test_nothing_wrong(complete):
    here = facts(complete)
    assert here.missing == () and here.cuda_error is None
    assert doctor.diagnose(replace(here, tensorflow=replace(CUDA_12, gpus=3))) == []
    nowhere = replace(here, driver=nvml.DriverReport((), "No driver.", None, None), on_bus=0)
    assert doctor.diagnose(replace(nowhere, tensorflow=CUDA_12)) == []


def test_missing_libraries(driver):
    here = replace(facts(driver), tensorflow=CUDA_12)
    (cause,) = doctor.diagnose(here)
    assert "libcudart.so.12 and 6 more" in cause and 'pip install "mgpu-helpers[gpu]"' in cause
    here = replace(here, missing=("libcudnn.so.9",), packages=("nvidia-cudnn-cu12",))
    (cause,) = doctor.diagnose(here)
    assert "libcudnn.so.9: pip install --force-reinstall nvidia-cudnn-cu12" in cause


@pytest.mark.parametrize(
    ("visible", "says"),
    [
        ("", "hides all 3 GPUs"),
        ("-1", "hides all 3 GPUs"),
        ("7", "hides all 3 GPUs"),
        ("1", "leaves 1 of 3 GPUs"),
        ("1,9,0", "leaves 1 of 3 GPUs"),
    ],
)
def test_hidden(complete, visible, says):
    here = facts(complete, CUDA_VISIBLE_DEVICES=visible)
    shown = len(here.lesson_order)
    fast, middle, slow = (here.driver.gpus[i].pci_bus_id for i in (1, 2, 0))
    assert here.cuda_order == (fast, middle, slow)  # whatever is hidden
    (cause,) = doctor.diagnose(replace(here, tensorflow=replace(CUDA_12, gpus=shown)))
    assert says in cause and "CUDA_VISIBLE_DEVICES" in cause
    # Where CUDA cannot be asked, the variable alone must do.
    if visible in ("", "-1"):
        unknown = replace(here, lesson_order=None, cuda_order=None, tensorflow=CUDA_12)
        assert says in doctor.diagnose(unknown)[0]


def test_wrong_wheel(complete):
    here = replace(facts(complete), tensorflow=CPU_ONLY)
    for changed, says in [
        ({}, "pip uninstall tensorflow, then"),
        ({"versions": {"tensorflow-cpu": "2.21.0"}}, "pip uninstall tensorflow-cpu, then"),
        ({"machine": "aarch64"}, "aarch64"),
        ({"system": "win32"}, "use WSL2"),
    ]:
        (cause,) = doctor.diagnose(replace(here, **changed))
        assert says in cause


def test_driver_too_old(complete):
    here = facts(complete, FAKE_CUDA="11040")
    (cause,) = doctor.diagnose(replace(here, tensorflow=CUDA_12))
    assert "11.4" in cause and "12.5.1" in cause and "newer driver" in cause
    # CUDA 12.0 runs what was built with 12.5, so the cause is another one.
    here = facts(complete, FAKE_CUDA="12000")
    assert "newer driver" not in doctor.diagnose(replace(here, tensorflow=CUDA_12))[0]


def test_gpus_without_a_driver(driver, tmp_path):
    for name, vendor, kind in [
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # the card's own sound device
        ("0000:02:00.0", "0x10de", "0x030200"),
        ("0000:00:02.0", "0x8086", "0x030000"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    assert gpus_on_bus(tmp_path) == 2
    assert gpus_on_bus(tmp_path / "nowhere") == 0
    here = facts(driver, FAKE_INIT="9")
    (cause,) = doctor.diagnose(replace(here, on_bus=2, tensorflow=CUDA_12, missing=()))
    assert cause.startswith("2 NVIDIA GPUs on the PCI bus") and "modprobe nvidia" in cause


@pytest.mark.parametrize(
    ("error", "says"), [("802", "fabricmanager"), ("999", "nvidia_uvm"), ("100", "(error 100)")]
)
def test_cuda_does_not_start(complete, error, says):
    here = facts(complete, FAKE_CUINIT=error)
    assert (here.cuda_order, here.lesson_order) == (None, None)
    (cause,) = doctor.diagnose(replace(here, tensorflow=CUDA_12))
    assert says in cause


def test_driver_without_libcuda(complete, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").symlink_to(Path(complete) / "libnvidia-ml.so.1")
    here = facts(str(tmp_path))
    cause = doctor.diagnose(replace(here, tensorflow=CUDA_12))[-1]
    assert "libcuda.so.1" in cause and "NVIDIA_DRIVER_CAPABILITIES" in cause


def test_several_causes_and_none_known(complete):
    here = facts(complete, CUDA_VISIBLE_DEVICES="-1")
    causes = doctor.diagnose(replace(here, tensorflow=CPU_ONLY))
    assert len(causes) == 2
    here = facts(complete, CUDA_VISIBLE_DEVICES="0,1,2")
    (cause,) = doctor.diagnose(replace(here, tensorflow=CPU_ONLY))
    assert "CUDA_VISIBLE_DEVICES" not in cause
    here = replace(facts(complete), tensorflow=replace(CUDA_12, gpus=2))
    (cause,) = doctor.diagnose(here)
    assert "2 of 3 GPUs" in cause and "MGPU_VERBOSE=1" in cause


def test_gpus_in_use_are_said_by_the_rule_of_the_runner(driver, tmp_path):
    (tmp_path / "use").write_text(f"0 300 0\n1 90000 {os.getpid()}\n2 0 {2**31 - 1}\n")
    text = doctor.body(facts(driver, FAKE_USE=str(tmp_path / "use")))
    said = "GPU 0 (0.3 of 4.0 GiB free), GPU 2 (processes whose user is hidden from here); mgpu run"
    assert said in " ".join(text.split())


def test_what_is_not_known_is_said(complete):
    here = replace(facts(complete), tensorflow=replace(CUDA_12, gpus=2))
    table = doctor.body(here).splitlines()[1:5]
    assert [row[9:].split()[2] for row in table] == ["lessons", "?", "?", "?"]
    here = replace(facts(complete, FAKE_CUINIT="999"), tensorflow=CUDA_12)
    rows = [row[9:].split()[:3] for row in doctor.body(here).splitlines()[2:5]]
    assert rows == [["0", "?", "-"], ["1", "?", "-"], ["2", "?", "-"]]
    assert json.dumps(asdict(here))


@pytest.mark.parametrize("numbers, status, says", [
    ("1000 8 4", 0, "each of 4 replicas"), ("1005 8 4", 1, "2, 2, 1, 0"), ("9 x 4", 2, "'x'"),
    ("9 0 4", 2, "argument batch: 0"),
])  # fmt: skip
def test_batches_says_whether_they_divide(capsys, numbers, status, says):
    from mgpu_helpers.__main__ import main

    try:
        assert main(["batches", *numbers.split()]) == status
    except SystemExit as error:
        assert error.code == status
    assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize(("script", "called"), [
    ("/usr/bin/mgpu", "mgpu"), ("C:/Scripts/mgpu.exe", "mgpu"),
    ("/src/mgpu_helpers/__main__.py", "python -m mgpu_helpers"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["", "run", "cluster", "batches", "lessons"])
def test_usage_says_what_was_called(monkeypatch, capsys, script, called, name):
    from mgpu_helpers.__main__ import main

    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"] if name else ["--help"])
    said = capsys.readouterr().out
    assert not ended.value.code and said.startswith(f"usage: {called} {name}".rstrip() + " ")
    other = "python -m" if called == "mgpu" else " mgpu "
    assert other not in said


def test_a_command_is_not_left_out_because_of_an_option(capsys):
    from mgpu_helpers.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["--json", "run"])
    assert "run takes no --json" in capsys.readouterr().err


def test_ctrl_c_while_the_machine_is_looked_at_has_no_stack_trace():
    ran = subprocess.Popen([sys.executable, "-m", "mgpu_helpers"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert ran.stdout.readline().startswith("python")  # and now TensorFlow is imported
    ran.send_signal(signal.SIGINT)
    _, error = ran.communicate(timeout=60)
    assert ran.returncode == 130 and "Traceback" not in error


def test_an_unknown_command_is_refused_with_the_known_ones(capsys):
    from mgpu_helpers.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["trace"])
    assert "'trace'" in (said := capsys.readouterr().err) and "lessons" in said


def test_lessons_are_copied_once_and_nothing_is_lost(capsys, tmp_path):
    from mgpu_helpers.lessons.command import main

    folder = tmp_path / "my lessons"
    assert main([str(folder)], "mgpu lessons") == 0
    said, start = capsys.readouterr().out.splitlines()
    notebooks = sorted((folder / "notebooks").glob("*.ipynb"))
    assert f"{len(notebooks)} lessons of mgpu" in said and f"jupyter lab '{folder}'" in start
    assert main([str(folder)], "mgpu lessons") == 0  # all there: nothing to do
    notebooks[0].write_text("mine")
    notebooks[1].unlink()
    with pytest.raises(SystemExit, match="2"):
        main([str(folder)], "mgpu lessons")
    assert f"1 file in {folder} would be overwritten, {notebooks[0]}" in capsys.readouterr().err
    assert notebooks[0].read_text() == "mine" and not notebooks[1].exists()


def test_lessons_are_not_copied_into_a_file(capsys, tmp_path):
    from mgpu_helpers.lessons.command import main

    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "file")], "mgpu lessons")
    *_, sentence = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "file") in sentence and (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_is_full_is_said_of_the_folder(tmp_path):
    limited = f"ulimit -f 8; '{sys.executable}' -m mgpu_helpers lessons new"
    ran = subprocess.run(["bash", "-c", limited], cwd=tmp_path, text=True, capture_output=True,
                         timeout=60)  # fmt: skip
    assert ran.returncode == 2 and "error: new cannot be written: File too large" in ran.stderr


def test_links_of_copied_lessons_lead_to_what_was_copied(tmp_path):
    from mgpu_helpers.lessons.command import copy

    for file in copy(tmp_path):
        if file.suffix in (".ipynb", ".md"):
            for where in re.findall(r"\]\(([\w./]+)[#)]", file.read_text(encoding="utf-8")):
                assert (file.parent / where).exists(), f"{file.name} links to {where}"
