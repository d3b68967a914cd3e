"""The Makefile and its set-up, with stand-in interpreters that note how they are called."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import ROOT

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
        (self.project / "tools").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/setup_env.sh"):
            shutil.copy(ROOT / name, self.project / name)

    def command(self, name: str, text: str) -> None:
        """Put a shell script on PATH."""
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def python(self, name: str, version: str, *, ensurepip: bool = True, runs: bool = True) -> None:
        """Put a stand-in interpreter on PATH."""
        self.command(
            name,
            STAND_IN.format(
                version=version,
                broken="" if runs else "yes",
                no_ensurepip=0 if ensurepip else 1,
                log=self.log,
            ),
        )

    def make(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run make in the copy."""
        return subprocess.run(
            ["make", *arguments],
            cwd=self.project,
            env={"PATH": str(self.bin), "HOME": str(self.project), **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def set_up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Make the environment by way of a target that is quick with a stand-in."""
        return self.make("bench", *arguments)

    def calls(self) -> list[str]:
        """List what the stand-ins were asked to do since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
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
    wanted = "lab test rehearse gpu notebooks site lint bench browser isa thorough counts clean"
    for target in wanted.split():
        assert re.search(rf"make {target} +\w", done.stdout), target
    assert not machine.calls()


def test_a_linux_machine_with_nvidia_smi_gets_the_cuda_libraries(machine):
    machine.command("uname", "#!/bin/sh\necho Linux x86_64\n")
    assert extras(machine.make("-n", "test")) == "notebooks,tensorboard,test,dev,site"
    machine.command("nvidia-smi", "#!/bin/sh\n")
    assert extras(machine.make("-n", "test")) == "notebooks,tensorboard,test,dev,site,gpu"
    assert extras(machine.make("-n", "lab")) == "notebooks,tensorboard,test,dev,site,gpu"
    assert extras(machine.make("-n", "test", "GPU=0")) == "notebooks,tensorboard,test,dev,site"


def test_other_machines_do_not(machine):
    machine.command("uname", "#!/bin/sh\necho Linux aarch64\n")
    machine.command("nvidia-smi", "#!/bin/sh\n")
    assert extras(machine.make("-n", "test")) == "notebooks,tensorboard,test,dev,site"
    assert extras(machine.make("-n", "test", "GPU=1")) == "notebooks,tensorboard,test,dev,site,gpu"


def test_a_gpu_that_comes_later_is_noticed(machine):
    machine.command("uname", "#!/bin/sh\necho Linux x86_64\n")
    machine.python("python3", "3.11")
    machine.set_up()
    machine.command("nvidia-smi", "#!/bin/sh\n")
    machine.calls()
    machine.set_up()
    assert ".[notebooks,tensorboard,test,dev,site,gpu]" in machine.log.read_text()
    assert machine.calls() == ["pip"]


def test_lab_stays_on_this_machine_and_keeps_its_token(machine):
    done = machine.make("-n", "lab", "LAB=--no-browser")
    line = next(x for x in done.stdout.replace("\\\n", "").splitlines() if "jupyterlab" in x)
    assert "--ip=127.0.0.1" in line and "notebooks/00_meet_your_machine.ipynb" in line
    assert "--no-browser" in line and "token" not in line and "password" not in line


def test_another_tensorflow_has_its_own_environment_and_is_lax(machine):
    machine.python("python3", "3.11")
    done = machine.make("-n", "test", "TF=2.18")
    assert '".venv-tf2.18"' in done.stdout and "--nbval-lax" in done.stdout
    machine.set_up("TF=2.18")
    installed = machine.log.read_text()
    assert "tensorflow~=2.18.0" in installed and "constraints.txt" not in installed
    assert not (machine.project / ".venv").exists()
    machine.set_up()
    assert "-c constraints.txt -e .[notebooks,tensorboard,test,dev,site]" in machine.log.read_text()


def test_an_unknown_tensorflow_is_refused_before_anything_is_made(machine):
    machine.python("python3", "3.11")
    assert "TF=2.17 is not supported: use 2.18" in sentence(machine.set_up("TF=2.17"))
    assert not machine.calls()


def test_another_keras_is_installed_last_in_an_environment_of_its_own(machine):
    machine.python("python3", "3.11")
    done = machine.make("-n", "test", "KERAS=3.14")
    assert '".venv-keras3.14"' in done.stdout and "--nbval-lax" in done.stdout

    def installed(*options):
        machine.set_up(*options)
        lines = machine.log.read_text().splitlines()
        return [line for line in lines if line.startswith("pip")][-2:]

    pinned, instead = installed("KERAS=3.14")
    assert "-c constraints.txt" in pinned and instead.endswith("--upgrade keras~=3.14.0")
    pinned, instead = installed("KERAS=latest", "TF=2.19")
    assert "tensorflow~=2.19.0" in pinned and instead.endswith("--upgrade keras")
    assert (machine.project / ".venv-tf2.19-keraslatest").exists()
    machine.calls()
    assert "KERAS=2.15 is not supported: use 3.14" in sentence(machine.set_up("KERAS=2.15"))
    assert not machine.calls()


def test_each_keras_that_may_be_installed_can_be_asked_for():
    project, pins, script, jobs = (
        (ROOT / name).read_text() for name in
        ("pyproject.toml", "constraints.txt", "tools/setup_env.sh", ".github/workflows/ci.yml")
    )  # fmt: skip
    lowest, above = map(int, re.search(r'"keras>=3\.(\d+),<3\.(\d+)"', project).groups())
    pinned = [int(minor) for minor in re.findall(r"^keras==3\.(\d+)", pins, re.MULTILINE)]
    assert pinned == [above - 1] and f"KERAS=3.{lowest}\n" in jobs  # both ends are what CI runs
    offered = re.search(r"(3\.\d+[^)]*)\) instead=", script)[1].split(" | ")
    assert offered == [f"3.{minor}" for minor in range(lowest, above)]


# Which Python


def test_the_first_python_that_runs_and_fits_is_taken(machine):
    machine.python("python3", "3.9")
    machine.python("python3.13", "3.13", runs=False)  # as a pyenv shim without that version
    machine.python("python3.12", "3.12")
    machine.python("python3.11", "3.11")
    assert "with python3.12, Python 3.12" in machine.set_up().stdout
    assert "with python3.11, Python 3.11" in machine.set_up("PYTHON=python3.11").stdout


def test_an_older_tensorflow_takes_an_older_python(machine):
    machine.python("python3", "3.13")
    said = sentence(machine.set_up("TF=2.19"))
    assert "3.13" in said and "2.19" in said and "3.11 to 3.12" in said
    machine.python("python3.12", "3.12")
    assert "with python3.12, Python 3.12" in machine.set_up("TF=2.19").stdout


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.14", "4.0"])
def test_a_python_too_old_or_too_new_gets_a_sentence(machine, version):
    machine.python("python3", version)
    said = sentence(machine.set_up())
    assert version in said and "3.11 to 3.13" in said and "PYTHON=" in said
    assert not machine.calls()


def test_no_python_at_all_gets_a_sentence(machine):
    assert "3.11 to 3.13" in sentence(machine.set_up())
    assert "python9" in sentence(machine.set_up("PYTHON=python9"))


def test_a_python_that_cannot_make_environments_gets_a_sentence(machine):
    machine.python("python3", "3.12", ensurepip=False)
    assert "apt install python3.12-venv" in sentence(machine.set_up())
    machine.python("python3.11", "3.11")
    assert "with python3.11, Python 3.11" in machine.set_up().stdout


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


# Once, and again when it has to be


def test_a_second_call_does_nothing(machine):
    machine.python("python3", "3.11")
    machine.set_up()
    assert machine.calls() == ["venv", "pip"]
    machine.set_up()
    assert machine.calls() == []
    assert "setup_env" not in machine.make("-n", "test").stdout


def test_changed_dependencies_are_installed(machine):
    machine.python("python3", "3.11")
    machine.set_up()
    for later, name in enumerate(("pyproject.toml", "constraints.txt"), 1):
        machine.calls()
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


def test_a_directory_without_a_python_in_it_is_made_again(machine):
    machine.python("python3", "3.11")
    (machine.project / ".venv/bin").mkdir(parents=True)
    assert "setup_env" in machine.make("-n", "test").stdout
    assert "again (its Python does not run)" in machine.set_up().stdout


def test_an_environment_whose_python_is_gone_is_made_again(machine):
    machine.python("python3", "3.11")
    machine.set_up()
    machine.calls()
    inside = machine.project / ".venv/bin/python"
    inside.unlink()
    inside.symlink_to("/nowhere/python3.11")
    machine.set_up()
    assert machine.calls() == ["venv", "pip"]


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


def test_a_failed_installation_says_so(machine):
    machine.python("python3", "3.11")
    text = (machine.bin / "python3").read_text()
    machine.command("python3", text.replace("kill -9 $PPID", "exit 1"))
    Path(f"{machine.log}.cut-pip").touch()
    done = machine.set_up()
    assert done.returncode != 0 and "installation into .venv did not finish" in done.stderr


# The files beside it


def test_requirements_and_environment_refer_to_the_one_list():
    assert (ROOT / "requirements.txt").read_text().split("\n") == [
        "-c constraints.txt",
        "-e .[notebooks,tensorboard,test,dev]",
        "",
    ]
    assert "-r requirements.txt" in (ROOT / "environment.yml").read_text()


def test_binder_takes_the_tested_versions_and_the_container_makes_environment():
    # A folder of its own, or Binder would take environment.yml and what only tests need.
    asked = (ROOT / ".binder" / "requirements.txt").read_text().split("\n")
    assert asked[:2] == ["-c ../constraints.txt", "-e ."] and "ipywidgets" in asked
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make env"


def test_constraints_pin_versions_and_name_no_host():
    text = (ROOT / "constraints.txt").read_text()
    for line in text.splitlines():
        assert re.match(r"[a-z0-9-]+==[0-9a-z.]+( ; .+)?$", line), line
    assert re.search(r"^tensorflow==2\.21\.", text, re.MULTILINE)
