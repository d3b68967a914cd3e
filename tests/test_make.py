"""The Makefile and its set-up, with stand-in interpreters that note how they are called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.tools

TOOLS = "sh sleep make env uname id test cat echo mkdir rm touch kill cp dirname sed awk".split()

# Says its version, lacks ensurepip if told so, makes environments that hold a copy of itself,
# and is cut off half way while a file says so.
STAND_IN = """#!/bin/sh
[ -z "{broken}" ] || exit 127
case "$*" in
    *version_info*) echo {version} ;;
    *ensurepip*) exit {no_ensurepip} ;;
    "-m venv "*) echo "venv $3" >>"{log}"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"
        if [ -e "{log}.cut-venv" ]; then kill -9 $PPID; fi ;;
    *"pip install"*)
        echo "pip $*" >>"{log}"
        case "$*" in *kerashub*) [ ! -e "{log}.no-hub" ]; exit ;; esac
        if [ -e "{log}.cut-pip" ]; then kill -9 $PPID; fi ;;
    "-m ipykernel "*) echo "$*" >>"{log}" ;;
esac
"""


class Machine:
    """A copy of what make needs, and a PATH that holds nothing but stand-ins and plain tools."""

    def __init__(self, home: Path) -> None:
        self.project, self.bin, self.log = home / "a project", home / "bin", home / "log"
        self.bin.mkdir()
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/kerashub.txt",
                     "tools/setup_env.sh"):  # fmt: skip
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.project / name)

    def command(self, name: str, text: str) -> None:
        """Put a shell script on PATH."""
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def python(self, name: str, version: str, *, ensurepip: bool = True, runs: bool = True) -> None:
        """Put a stand-in interpreter on PATH."""
        broken, lacks = "" if runs else "yes", int(not ensurepip)
        text = STAND_IN.format(version=version, broken=broken, no_ensurepip=lacks, log=self.log)
        self.command(name, text)

    def make(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run make in the copy."""
        env = {"PATH": str(self.bin), "HOME": str(self.project), **env}
        return subprocess.run(["make", *arguments], cwd=self.project, env=env, text=True,
                              capture_output=True, timeout=60)  # fmt: skip

    def set_up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Make the environment by way of a target that is quick with a stand-in."""
        return self.make("bench", *arguments)

    def calls(self) -> list[str]:
        """List what the stand-ins were asked to do since the last time, but for KerasHub."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        lines = [line for line in lines if "kerashub" not in line]
        self.log.unlink(missing_ok=True)
        return [line.split()[0] for line in lines if line.split()[0] in ("venv", "pip")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Give the one line that is not make's own, of a call that has to fail."""
    assert done.returncode != 0
    (line,) = [x for x in (done.stdout + done.stderr).splitlines() if not x.startswith("make")]
    return line


def extras(done: subprocess.CompletedProcess[str]) -> str:
    """Give the extras that a dry run would install."""
    assert done.returncode == 0, done.stderr
    return re.search(r'setup_env\.sh "\S+" "(\S+)"', done.stdout)[1]


# Which environment


def test_help_is_the_default_and_names_every_target(machine):
    done = machine.make()
    assert done.returncode == 0, done.stderr
    phony = re.search(r"\.PHONY:((?:\\\n|.)*)", (ROOT / "Makefile").read_text())[1]
    for target in set(phony.replace("\\\n", " ").split()) - {"again"}:
        assert re.search(rf"make {target} +\w", done.stdout), target
    assert not machine.calls()


def test_a_linux_machine_with_nvidia_smi_gets_the_cuda_libraries(machine):
    machine.command("uname", "#!/bin/sh\necho Linux x86_64\n")
    plain = "notebooks,tensorboard,test,dev,site"
    assert extras(machine.make("-n", "test")) == plain
    machine.command("nvidia-smi", "#!/bin/sh\n")
    assert extras(machine.make("-n", "test")) == extras(machine.make("-n", "lab")) == f"{plain},gpu"
    assert extras(machine.make("-n", "test", "GPU=0")) == plain
    machine.command("uname", "#!/bin/sh\necho Linux aarch64\n")
    assert extras(machine.make("-n", "test")) == plain


def test_lab_stays_on_this_machine_and_keeps_its_token(machine):
    done = machine.make("-n", "lab", "LAB=--no-browser")
    line = next(x for x in done.stdout.replace("\\\n", "").splitlines() if "jupyterlab" in x)
    assert "--ip=127.0.0.1" in line and "notebooks/00_meet_your_machine.ipynb" in line
    assert "--no-browser" in line and "token" not in line and "password" not in line


@pytest.mark.parametrize("options, name, has, last, lacks", [
    (["TF=2.18"], "-tf2.18", "site] tensorflow~=2.18.0", "tests/kerashub.txt", "constraints.txt"),
    (["KERAS=3.14"], "-keras3.14", "-c constraints.txt", "--upgrade keras~=3.14.0", "tensorflow~"),
    (["KERAS=latest", "TF=2.19"], "-tf2.19-keraslatest", "tensorflow~=2.19.0", "--upgrade keras",
     "constraints.txt"),
    ([], "", "-e .[notebooks,tensorboard,test,dev,site]", "--no-deps -r tests/kerashub.txt",
     "tensorflow~"),
])  # fmt: skip
def test_each_tensorflow_and_keras_has_an_environment_of_its_own(
    machine, options, name, has, last, lacks
):
    """Another one's numbers may differ; Keras is installed last."""
    machine.python("python3", "3.11")
    done = machine.make("-n", "test", *options)
    assert f'".venv{name}"' in done.stdout and ("--nbval-lax" in done.stdout) == bool(options)
    machine.set_up(*options)
    installed = [x for x in machine.log.read_text().splitlines() if x.startswith("pip")]
    assert has in "".join(installed) and lacks not in "".join(installed)
    assert last in installed[-1]
    assert {path.name for path in machine.project.glob(".venv*")} == {f".venv{name}"}


# Which Python


def test_the_first_python_that_runs_and_fits_is_taken(machine):
    machine.python("python3", "3.9")
    machine.python("python3.13", "3.13", runs=False)  # as a pyenv shim without that version
    machine.python("python3.12", "3.12")
    machine.python("python3.11", "3.11")
    assert "with python3.12, Python 3.12" in machine.set_up().stdout
    assert "with python3.11, Python 3.11" in machine.set_up("PYTHON=python3.11").stdout


@pytest.mark.parametrize("version, ensurepip, keras, says", [
    ("3.10", True, "", ["3.10", "3.11 to 3.13", "PYTHON="]),
    ("3.14", True, "", ["3.14", "3.11 to 3.13", "PYTHON="]),
    ("3.12", False, "", ["apt install python3.12-venv"]),
    ("3.11", True, "2.15", ["KERAS=2.15 is not supported: use 3.14"]),
])  # fmt: skip
def test_what_cannot_be_gets_a_sentence_and_then_works(machine, version, ensurepip, keras, says):
    machine.python("python3", version, ensurepip=ensurepip)
    said = sentence(machine.set_up(f"KERAS={keras}"))
    assert [words for words in says if words not in said] == [] and not machine.calls()
    machine.python("python3.11", "3.11")
    assert ", Python 3.11" in machine.set_up().stdout


def test_uv_is_used_where_it_is_and_needs_no_ensurepip(machine):
    machine.python("python3", "3.12", ensurepip=False)
    machine.command(
        "uv",
        f'#!/bin/sh\necho "uv $*" >>"{machine.log}"\n'
        'if [ "$1" = venv ]; then for last; do :; done\n'
        f'mkdir -p "$last/bin"; cp "{machine.bin}/python3" "$last/bin/python"; fi\n',
    )
    done = machine.set_up()
    assert (machine.project / ".venv/.ready-cpu").exists(), done.stderr
    made, installed = machine.log.read_text().splitlines()[:2]
    assert made.startswith("uv venv") and installed.startswith("uv pip install --python .venv/")
    machine.python("python3.11", "3.11")
    (machine.project / "constraints.txt").touch()
    assert "with pip" in machine.set_up("UV=", "PYTHON=python3.11").stdout
    assert machine.calls() == ["venv", "pip"]


def test_an_environment_is_made_where_kerashub_cannot_be_had(machine):
    machine.python("python3", "3.11")
    Path(f"{machine.log}.no-hub").touch()
    done = machine.set_up()
    assert (machine.project / ".venv/.ready-cpu").exists()
    assert "Without KerasHub tests/test_kerashub.py is skipped" in done.stderr


# Once, and again when it has to be


def test_a_second_call_does_nothing_until_dependencies_change(machine):
    machine.python("python3", "3.11")
    machine.set_up()
    assert machine.calls() == ["venv", "pip"]
    machine.set_up()
    assert machine.calls() == [] and "setup_env" not in machine.make("-n", "test").stdout
    needed = ("pyproject.toml", "constraints.txt", "tests/kerashub.txt")
    for later, name in enumerate(needed, 1):
        os.utime(machine.project / name, (time.time() + 2 * later,) * 2)
        machine.set_up()
        assert machine.calls() == ["pip"], name


@pytest.mark.parametrize("while_in", ["venv", "pip"])
def test_an_interrupted_installation_is_repaired_by_the_next_call(machine, while_in):
    machine.python("python3", "3.11")
    cut = Path(f"{machine.log}.cut-{while_in}")
    cut.touch()
    assert machine.set_up().returncode != 0
    assert (machine.project / ".venv/bin/python").exists()
    leftover = machine.project / ".venv/half of a package"
    leftover.touch()
    cut.unlink()
    machine.calls()
    assert "again (an interrupted call left it half made)" in machine.set_up().stdout
    assert machine.calls() == ["venv", "pip"] and not leftover.exists()
    machine.set_up()
    assert machine.calls() == []


def test_an_environment_that_is_being_made_is_left_alone(machine):
    machine.python("python3", "3.11")
    (machine.project / ".venv").mkdir()
    (machine.project / ".venv/.unfinished").write_text(f"{os.getpid()}\n")
    assert f"Process {os.getpid()} is making .venv: wait" in sentence(machine.set_up())
    assert (machine.project / ".venv").exists() and not machine.calls()


def test_an_environment_made_by_hand_is_kept(machine):
    machine.python("python3", "3.11")
    (machine.project / ".venv/bin").mkdir(parents=True)
    shutil.copy(machine.bin / "python3", machine.project / ".venv/bin/python")
    machine.set_up()
    assert machine.calls() == ["pip"]


def test_a_copied_project_does_not_run_the_code_of_the_first(machine):
    machine.python("python3", "3.11")
    machine.set_up()
    machine.calls()
    machine.project = shutil.copytree(machine.project, machine.project.with_name("a copy"))
    assert "again (it belongs to " in machine.set_up().stdout
    assert machine.calls() == ["venv", "pip"]


def test_a_part_of_a_run_is_every_so_many_of_the_chosen_tests():
    def collected(*options):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "tools"]
        done = subprocess.run([*command, *options, "tests/test_bench.py"], cwd=ROOT,
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "::" in line]

    whole = collected()
    assert collected("--part", "2/3") == whole[1::3] and len(whole) > 6
