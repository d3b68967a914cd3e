"""The command `mgpu`: what it prints, and why a GPU that is there is not used."""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fake_driver
from conftest import clean, lives, run_python, wait_for
from mgpu_helpers import nvml
from mgpu_helpers.__main__ import main
from mgpu_helpers._doctor.facts import Facts, gpus_on_bus
from mgpu_helpers._doctor.report import body, diagnose
from mgpu_helpers.fit.command import left_alone

GATHER = """
import dataclasses, importlib.util, pathlib, pickle
from mgpu_helpers._doctor import facts
site = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent.parent
missing = facts.missing_libraries(site)
print(pickle.dumps(dataclasses.replace(facts.without_tensorflow(), missing=missing)).hex())
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> str:
    """A driver with CUDA libraries beside it: enough for TensorFlow to see three GPUs."""
    folder = tmp_path_factory.mktemp("complete")
    return fake_driver.build(folder, fake_driver.CUDA_LIBRARIES)


@pytest.fixture(scope="module")
def without_libcuda(complete, tmp_path_factory) -> str:
    """A driver of which a container has only what nvidia-smi needs."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "libnvidia-ml.so.1").symlink_to(Path(complete) / "libnvidia-ml.so.1")
    return str(folder)


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mgpu_helpers", *arguments],
        env=clean(**env), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@functools.cache
def facts(driver: str, **env: str) -> Facts:
    """Gather facts, without TensorFlow's, on a machine with the stand-in driver."""
    said = run_python(GATHER, imported=False, LD_LIBRARY_PATH=driver, **env).stdout
    return pickle.loads(bytes.fromhex(said))


# ---- the command


def test_without_a_gpu(plan, capfd):
    if nvml.query().gpus:
        pytest.skip("this machine has a GPU")
    assert main([]) == 0
    out, error = capfd.readouterr()
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line[:1].strip())
    assert rows["python"].startswith("3.") and rows["driver"].endswith(".") and not error
    assert "tensorflow 2." in rows["versions"] and "keras 3." in rows["versions"]
    assert rows["GPUs"] == "none" and rows["mode"].startswith("cores")
    assert "problem" not in rows and "error" not in rows


def test_cores_mode_hides_gpus_from_keras_and_from_children_and_both_orders_are_shown(complete):
    code = """
import subprocess, sys
from mgpu_helpers.__main__ import main
print(main([]))
import keras, tensorflow as tf
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
child = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
print(tf.config.list_physical_devices("GPU"), model.jit_compile, told.strip(), sep="; ")
"""
    env = {"MGPU_MODE": "cores", "CUDA_VISIBLE_DEVICES": "2,0"}
    done = run_python(code, imported=False, LD_LIBRARY_PATH=complete, **env)
    *lines, status, hidden = done.stdout.splitlines()
    assert (status, hidden, done.stderr) == ("0", "[]; False; -1", "")  # it was not too late
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


def test_gpus_that_do_not_start(complete):
    done = command("--json", LD_LIBRARY_PATH=complete)
    assert (done.returncode, done.stderr) == (1, "")
    got = json.loads(done.stdout)
    assert (got["plan"], got["facts"]["seen"]) == (None, 3)
    assert "does not start" in got["error"] and "MGPU_MODE=cores" in got["error"]
    # TensorFlow's numbers are those of the bus: the lessons ask for that order.
    buses = [gpu["pci_bus_id"] for gpu in got["facts"]["driver"]["gpus"]]
    assert got["facts"]["lesson_order"] == buses
    assert got["facts"]["cuda_order"] == [buses[1], buses[2], buses[0]]


@pytest.mark.thorough
def test_tensorflow_sees_no_gpus_where_libraries_are_missing(driver):
    hidden = command("--json", MGPU_MODE="cores", LD_LIBRARY_PATH=driver)
    found = json.loads(hidden.stdout)["facts"]
    assert found["seen"] == (0 if found["missing"] else 3)


def test_a_plan_that_cannot_be_is_said_before_tensorflow_is_imported(complete):
    done = command("--json", LD_LIBRARY_PATH=complete, CUDA_VISIBLE_DEVICES="0,7")
    assert (done.returncode, done.stderr) == (1, "")
    got = json.loads(done.stdout)
    assert "CUDA_VISIBLE_DEVICES='0,7' has '7'" in got["error"] and got["facts"]["seen"] is None


@pytest.mark.parametrize("code, says", [
    ("raise ImportError('libfoo.so.1: cannot open\\nmore')", "(libfoo.so.1: cannot open): pip"),
    ("raise ModuleNotFoundError(name='tensorflow')", "TensorFlow is not installed: pip"),
])  # fmt: skip
def test_tensorflow_that_cannot_be_imported(tmp_path, code, says):
    (tmp_path / "tensorflow.py").write_text(code)
    done = command(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert says in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


MAIN = "from mgpu_helpers.__main__ import main; "


@pytest.mark.parametrize("code, said, imported", [
    (MAIN + "main(['--help'])", "usage: ", ""),
    (MAIN + "main(['help', 'run'])", "usage: .* run SCRIPT", ""),
    ("from mgpu_helpers._doctor import facts; facts.without_tensorflow()", "", "pynvml"),
])  # fmt: skip
def test_help_and_import_are_quick_and_leave_tensorflow_alone(code, said, imported):
    """What takes long is not imported: a time would depend on what else runs."""
    slow = "{'tensorflow', 'keras', 'numpy', 'matplotlib', 'scipy', 'pynvml'} & set(sys.modules)"
    code = f"import atexit, sys; atexit.register(lambda: print(*{slow})); {code}"
    *lines, last = run_python(code, imported=False).stdout.splitlines()
    assert last == imported and bool(lines) == bool(said) and re.match(said, "".join(lines))


# ---- scripts, each on a device of its own

ECHO = "import os, sys; print(os.environ.get('MGPU_JOB_DEVICE'), *sys.argv[1:])"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call `mgpu run` on the first core, in a folder with a script, with locks of its own."""
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    first = str(min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)
    env = {"MGPU_MODE": "cores", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "mgpu_helpers", "run", "--devices", first]

    def start(*arguments: str, before: tuple[str, ...] = (), **more: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*before, *words, *arguments], env=clean(**env) | more, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def test_run_says_what_failed_and_shows_the_end_of_its_log(run):
    Path("killed.sh").write_text("kill -KILL $$")
    Path("fails.sh").write_text(f"printf 'caf\\303\\251 no data here{'x' * 5000}'; exit 1")
    # A terminal that can only show ASCII, and a log that is not.
    code, out, error = ended(run("fails.sh", "killed.sh", "echo.py", PYTHONIOENCODING="ascii"))
    assert (code, error) == (1, "")
    _, table, _, fails, killed = out.split("\n\n")
    assert [row.split()[-2] for row in table.splitlines()[1:]] == ["failed", "failed", "done"]
    assert fails.startswith("fails, failed with exit status 1; the end of ")
    assert "caf? no data here" in fails and len(fails) < 2000
    assert killed.startswith("killed, failed, SIGKILL ended it; the end of ")
    assert killed.endswith(":\n(nothing)\n")


@pytest.mark.parametrize("line, says", [
    ("run a.py --n 3", "unrecognized arguments: --n 3; arguments for the scripts stand behind --, "
     "as in python -m mgpu_helpers run a.py -- --n 3"),
    ("run a.py --per-device 0", "--per-device 0 is"),
    ("run a.py nowhere.py", "no file 'nowhere.py' here"),
    ("run folder", "'folder' is a folder: name a script in it, or a program."),
    ("run \"sh -c 'x\"", "In sh -c 'x a quotation mark is not closed: close it, or write"),
    ("run 'my data'", "as in \"bash 'my data'\"."),
    ("run a.py --devices 0,x", "'0,x' is no list of devices: write their numbers with commas, as"),
    ("run a.py --time-limit x", "'x' is no number: write it as 1.5"),
    ("folder", "'folder' is a folder: name a script in it, as in"),
    ("lost.py", "there is no file lost.py here"),
    ("'my data'", "'my data' is no command: python -m mgpu_helpers run 'my data' gives it"),
    ("trian", "'trian' is no command, and no script that is here: the commands are run, cluster"),
    ("plan --parameters 7B --budget 80", "80 bytes are no memory: 80GB or 80MB?"),
    ("plan --parameters 7B --batch 8", "--batch is for SCRIPT:FUNCTION, and says nothing here"),
    ("--json plan", "plan takes no --json: call"),
    ("lessons a.py", "a.py/notebooks cannot be written (Not a directory): name another folder."),
    *((line, "Python cannot read 'latin.py': it is not UTF-8: write it as that, or begin it with")
      for line in ("latin.py", "run latin.py", "cluster latin.py", "plan latin.py:f --batch 1")),
    ("nul.py --n 1", "Python cannot read 'nul.py': source code string cannot contain null bytes"),
    ("cluster pipe.py", "has no 'pipe.py'.\n"),
])  # fmt: skip
def test_what_is_asked_wrongly_gets_a_sentence_with_the_remedy(
    line, says, tmp_path, monkeypatch, capsys
):
    (tmp_path / "a.py").touch()
    (tmp_path / "my data").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'")
    (tmp_path / "nul.py").write_bytes(b"\0")
    os.mkfifo(tmp_path / "pipe.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MGPU_MODE", "cores")
    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(line))
    out, said = capsys.readouterr()
    assert says in said and not out and not re.search("Errno|invalid|codec|Traceback", said)
    assert not [*Path("logs").glob("*")] and (" run: error" not in said or "run SCRIPT" in said)


def logged(folder: str) -> dict[str, str]:
    return {log.name: log.read_text().strip() for log in sorted(Path(folder).glob("*.log"))}


def test_run_makes_a_job_of_every_combination_with_a_device_and_the_common_arguments(run):
    sweep = ("--grid", "width=32,64", "--grid", "seed=0", 'size="2,3"', "--logs", "out")
    code, out, error = ended(run("echo.py", *sweep, "--", "--n", "3", "--"))
    assert (code, error) == (0, "")
    (core,) = {said.partition(" --n")[0] for said in logged("out").values()}
    assert core.startswith("core ") and logged("out") == {
        f"0{i}_width={width},seed=0,size=2,3.log":
        f"{core} --n 3 -- --width={width} --seed=0 --size=2,3"
        for i, width in ((1, 32), (2, 64))
    }  # fmt: skip
    lines, table, where = out.split("\n\n")
    assert where == "what they printed is in out\n"
    assert [line.split()[0] for line in lines.splitlines()] == ["start", "done"] * 2
    assert lines.split()[1] == "width=32,seed=0,size=2,3"
    assert [row.split()[1:4] for row in table.splitlines()[1:]] == [[*core.split(), "done"]] * 2
    code, out, _ = ended(run("echo.py", *sweep, "--skip-done", "--", "--n", "3", "--"))
    assert code == 0 and out.startswith("skipped    2 of 2 jobs, done before\n")
    assert out.count("done before  ") == 2 and out.endswith(where)


@pytest.mark.parametrize(("name", "text", "mode", "asked", "called"), [
    ("wrapper.sh", 'echo "[$0]" "$@"', 0o644, "wrapper.sh", "wrapper"),
    ("wrapper.sh", '#!/bin/sh -eu\necho "[$0]" "$@"', 0o755, "./wrapper.sh -m", "wrapper"),
    ("echo", '#!/bin/sh\necho "[mine]" "$@"', 0o755, "echo", "echo"),
    ("y z.py", 'import sys; print("[m]", *sys.argv[1:])', 0o644, "y z.py", "y z"),
])  # fmt: skip
def test_run_takes_any_program(run, name, text, mode, asked, called):
    """With the jobs' own arguments, whatever its mode, and a file before a program of PATH."""
    Path(name).write_text(text)
    Path(name).chmod(mode)
    code, out, error = ended(run(asked, "--", "a b"))
    assert (code, error) == (0, "") and out.split("\n\n")[1].splitlines()[1].startswith(called)
    (said,) = logged("logs").values()
    assert said.startswith("[") and "a b" in said


@pytest.mark.parametrize("code, why", [
    ("keras.distribution.set_distribution(d)", "set_distribution"),
    ("from tensorflow import distribute\nfoo(distribute.OneDeviceStrategy('/GPU:0'))", "line 2"),
    ("with MirroredStrategy().scope():\n    model.fit(x)", "MirroredStrategy()"),
    ("plan = devices.setup(2)\nmodel.fit(x)", "devices.setup(2)"),
    ("step(x)", "no fit"),
    ("# coding: latin-1\nmodel.fit('\xe9')".encode("latin-1"), ""),
    ("torch.device('cpu'); logger.setup(); tf.distribute.get_replica_context(); m.fit(x)", ""),
])  # fmt: skip
def test_a_script_that_says_where_it_trains_is_left_alone(code, why):
    said = left_alone(code)
    assert why in said and bool(why) == bool(said)


def test_a_script_is_run_as_python_does(tmp_path):
    """With its arguments, the folder it is in, its own exit status and its own name."""
    (tmp_path / "beside.py").write_text("STATUS = 3")
    (tmp_path / "job.py").write_text(
        "import sys; from beside import STATUS; print(__name__, *sys.argv[1:]); sys.exit(STATUS)"
    )
    (tmp_path / "whole.py").write_text("import os; print(os.path.isabs(__file__))")
    ran = command(str(tmp_path / "job.py"), "--n", "1", MGPU_MODE="cores")
    assert (ran.returncode, ran.stdout) == (3, "__main__ --n 1\n") and "no fit" in ran.stderr
    ran = command(os.path.relpath(tmp_path / "whole.py"), "--check", MGPU_MODE="cores")
    assert ran.stdout == "True\n" and "--check compares nothing then" in ran.stderr


@pytest.mark.parametrize("typed, offered", [
    ("mgpu pl", ["plan"]), ("mgpu tr", ["train.py"]), ("mgpu run --gri", ["--grid"]),
])  # fmt: skip
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_commands_options_and_scripts(tmp_path, shell, typed, offered):
    """By the function that the shell calls, with the words that have been typed."""
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "train.py").touch()
    words = typed.split()
    call = "emulate sh -c _mgpu" if shell == "zsh" else "_mgpu"  # as zsh's bashcompinit does
    code = f"""
mgpu() {{ "{sys.executable}" -m mgpu_helpers "$@"; }}
eval "$(mgpu completion)"
COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}; {call}; echo "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run([shell, "-c", code], cwd=tmp_path, env=clean(), capture_output=True,
                         text=True, timeout=60)  # fmt: skip
    found = [each for each in ran.stdout.split() if each.startswith(words[-1])]  # zsh does that
    assert (found, ran.stderr) == (offered, "")


@pytest.mark.parametrize("called, mode", [("run", "core"), ("cluster", "gpus")])
def test_a_mode_that_cannot_be_is_said(run, called, mode):
    ran = command(called, "echo.py", MGPU_MODE=mode, CUDA_VISIBLE_DEVICES="-1")
    assert (ran.returncode, ran.stdout) == (2, "") and "MGPU_MODE=" in ran.stderr


def test_the_last_table_has_the_results_of_the_jobs(run):
    Path("job.sh").write_text(
        "test $1 = --n=1 && echo '{\"loss\": 0.33333333, \"note\": \"ok\", \"all\": [1, 2]}'"
    )
    code, out, _ = ended(run("job.sh", "--grid", "n=1,2"))
    head, first, second, more = out.split("\n\n")[1].splitlines()
    assert code == 1 and head.split() == ["name", "device", "status", "seconds", "loss", "note"]
    assert first.split()[-2:] == ["0.333333", "ok"] and second.split()[-2:] == ["-", "-"]
    assert "failed" in second and more.endswith(": all")


@pytest.mark.parametrize("ends", [">&-", ">/dev/full", "| true"])
def test_nobody_has_to_read_what_is_printed(run, ends):
    call = f'set -o pipefail; "{sys.executable}" -m mgpu_helpers run echo.py {ends}'
    ran = run(before=("bash", "-c", call))
    assert ended(ran) == (0, "", "")


@pytest.mark.parametrize("buffered", ["", "1"])
def test_what_cannot_be_said_to_a_full_disk_is_said(buffered, monkeypatch):
    call = f'"{sys.executable}" -m mgpu_helpers plan --parameters 7B --budget 200GB'
    ran = subprocess.run(["bash", "-c", f"{call} >/dev/full"], text=True, capture_output=True,
                         env=clean(PYTHONUNBUFFERED=buffered), timeout=60)  # fmt: skip
    says = "what is said cannot be written (No space left on device): make room, or send it"
    assert ran.returncode == 1 and says in ran.stderr and "Traceback" not in ran.stderr
    monkeypatch.setattr(sys, "stderr", None)  # the shell has closed it
    with pytest.raises(SystemExit, match="2"):
        main(["nowhere"])
    assert sys.stderr


@pytest.mark.parametrize("before, seconds, code, first, second", [
    ((), 60, 130, "stopped", "not started"), (("nohup",), 0.5, 0, "done", "done"),
])  # fmt: skip
def test_a_runner_whose_terminal_has_gone_ends_its_scripts_but_not_under_nohup(
    run, before, seconds, code, first, second
):
    Path("sleeps.sh").write_text(f"echo $$ > new; mv new pid; exec sleep {seconds}")
    runner = run("sleeps.sh", "echo.py", before=before)
    wait_for(Path("pid").exists)
    runner.send_signal(signal.SIGHUP)
    ended_with, out, error = ended(runner)
    table = out.split("\n\n")[1].splitlines()[1:]
    assert ended_with == code and first in table[0] and second in table[1]
    assert (before or not error) and not lives(int(Path("pid").read_text()))


# ---- the diagnosis: one cause at a time, then several

NO_DRIVER = {"driver": nvml.DriverReport((), "No driver.", None, None), "on_bus": 0}
NO_CUDNN = {"missing": ("libcudnn.so.9",)}
NOT_KNOWN = "{} of 3 GPUs for a reason not known here: MGPU_VERBOSE=1"
OLD = "CUDA up to 11.4 .* with 12.5.1: install a newer driver"


@pytest.mark.parametrize("where, env, changes, causes", [
    ("complete", {}, {}, [NOT_KNOWN.format(0)]),
    ("complete", {"FAKE_LOST": "1"}, {"seen": 2} | NO_CUDNN, ["GPU 1 has fallen off the bus"]),
    ("complete", {"FAKE_LOST": "1"}, NO_CUDNN | NO_DRIVER, []),
    ("driver", {}, {}, [r'libcudart.so.12 and 6 more .*pip install "mgpu-helpers\[gpu\]"']),
    ("driver", {}, NO_CUDNN | {"packages": ("nvidia-cudnn-cu12",)},
     ["libcudnn.so.9: pip install --force-reinstall nvidia-cudnn-cu12"]),
    ("complete", {"CUDA_VISIBLE_DEVICES": "-1"}, {}, ['DEVICES="-1" leaves 0 of 3 GPUs']),
    ("complete", {"CUDA_VISIBLE_DEVICES": "1,9,0"}, {"seen": 1},
     ['CUDA_VISIBLE_DEVICES="1,9,0" leaves 1 of 3 GPUs']),
    # Where CUDA cannot be asked, the variable alone must do.
    ("complete", {"CUDA_VISIBLE_DEVICES": "-1"}, {"lesson_order": None, "cuda_order": None},
     ["leaves 0 of 3 GPUs"]),
    ("complete", {}, {"cuda": None, "versions": {"tensorflow-cpu": "2.21.0"}},
     ["pip uninstall tensorflow-cpu, then"]),
    ("complete", {}, {"cuda": None, "machine": "aarch64"}, ["aarch64"]),
    ("complete", {"CUDA_VISIBLE_DEVICES": "-1"}, {"cuda": None},
     ["pip uninstall", "leaves 0 of 3 GPUs"]),
    ("complete", {"FAKE_CUDA": "11040"}, {}, [OLD]),
    ("complete", {"FAKE_CUDA": "12000"}, {}, [NOT_KNOWN.format(0)]),  # it runs what 12.5 built
    ("driver", {"FAKE_INIT": "9"}, {"on_bus": 2, "missing": ()},
     ["^2 NVIDIA GPUs on the PCI bus.*modprobe nvidia"]),
    ("without_libcuda", {}, {"missing": ()}, ["libcuda.so.1 .*NVIDIA_DRIVER_CAPABILITIES"]),
    ("complete", {"FAKE_CUINIT": "802"}, {}, ["fabricmanager"]),
    ("complete", {"FAKE_CUINIT": "100"}, {}, [r"\(error 100\)"]),
])  # fmt: skip
def test_each_cause_is_named_and_no_other(request, where, env, changes, causes):
    built = {"cuda": "12.5.1", "cudnn": "9", "seen": 0} | changes
    found = diagnose(replace(facts(request.getfixturevalue(where), **env), **built))
    assert len(found) == len(causes)
    assert all(map(re.search, causes, found)), found


@pytest.mark.parametrize("env, seen, rows", [
    ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, ["0 2 -", "1 0 -", "2 1 -"]),
    ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, 1, ["0 2 -", "1 0 /GPU:0", "2 1 -"]),
    ({"FAKE_CUINIT": "802"}, 0, ["0 ? -", "1 ? -", "2 ? -"]),
    ({}, 2, ["0 2 ?", "1 0 ?", "2 1 ?"]),  # whose is whose is not known
    ({"FAKE_GPUS": "2"}, 2, ["0 1 /GPU:0", "1 0 /GPU:1", "CUDA: its own"]),
])  # fmt: skip
def test_every_gpu_has_its_number_in_each_order(complete, env, seen, rows):
    table = body(replace(facts(complete, **env), seen=seen, cuda="12.5.1")).splitlines()[2:5]
    assert [" ".join(row.split()[:3]) for row in table] == rows


def test_only_cards_that_draw_or_compute_count_as_gpus_on_the_bus(tmp_path):
    kinds = ["10de 0x030000", "10de 0x040300", "10de 0x030200", "8086 0x030000"]  # a card's sound
    for i, (vendor, kind) in enumerate(map(str.split, kinds)):
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}" / "vendor").write_text(f"0x{vendor}\n")
        (tmp_path / f"{i}" / "class").write_text(f"{kind}\n")
    assert gpus_on_bus(tmp_path) == 2
    assert gpus_on_bus(tmp_path / "nowhere") == 0


def test_gpus_in_use_are_said_by_the_rule_of_the_runner(driver, tmp_path):
    (tmp_path / "use").write_text(f"0 300 0\n1 90000 {os.getpid()}\n2 0 {2**31 - 1}\n")
    text = body(facts(driver, FAKE_USE=str(tmp_path / "use")))
    said = "GPU 0 (0.3 of 4.0 GiB free), GPU 2 (processes whose user is hidden from here); mgpu run"
    assert said in " ".join(text.split()) and "devices.setup takes them" in " ".join(text.split())
    assert text.count(" of 4.0 GiB") == 2 and "\ncluster" not in text
    assert "\ncluster" in body(replace(facts(driver), cluster=()))


@pytest.mark.thorough
def test_ctrl_c_while_the_machine_is_looked_at_has_no_stack_trace():
    ran = subprocess.Popen([sys.executable, "-m", "mgpu_helpers"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert ran.stdout.readline().startswith("python")  # and now TensorFlow is imported
    ran.send_signal(signal.SIGINT)
    _, error = ran.communicate(timeout=60)
    assert ran.returncode == 130 and "Traceback" not in error


def test_lessons_are_copied_once_with_what_they_link_to_and_nothing_is_lost(capsys, tmp_path):
    from mgpu_helpers.lessons.command import main

    folder = tmp_path / "my lessons"
    assert main([str(folder)], "mgpu lessons") == 0
    said, start = capsys.readouterr().out.splitlines()
    notebooks = sorted((folder / "notebooks").glob("*.ipynb"))
    assert f"{len(notebooks)} lessons of mgpu" in said and f"jupyter lab '{folder}'" in start
    pages = [*notebooks, *folder.rglob("*.md")]
    assert {file.suffix for file in pages} == {".ipynb", ".md"}
    for file in pages:
        for where in re.findall(r"\]\(([\w./]+)[#)]", file.read_text(encoding="utf-8")):
            assert (file.parent / where).exists(), f"{file.name} links to {where}"
    assert main([str(folder)], "mgpu lessons") == 0  # all there: nothing to do
    notebooks[0].write_text("mine")
    notebooks[1].unlink()
    with pytest.raises(SystemExit, match="2"):
        main([str(folder)], "mgpu lessons")
    assert f"1 file in {folder} would be overwritten, {notebooks[0]}" in capsys.readouterr().err
    assert notebooks[0].read_text() == "mine" and not notebooks[1].exists()
