"""The wheel and the sdist: what is in them, what they say of themselves, and that they work."""

from __future__ import annotations

import email
import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import mgpu_helpers
from conftest import ROOT
from mgpu_helpers.lessons.command import copy

pytestmark = pytest.mark.tools

SIDE = "mgpu_helpers/lessons/series/"


def built(folder: Path) -> tuple[Path, Path]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, check=True, timeout=60,
                   capture_output=True)  # fmt: skip
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(files) -> zipfile.ZipFile:
    return zipfile.ZipFile(files[1])


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_has_the_package_its_types_and_the_lessons_that_are_copied(wheel, tmp_path):
    names = set(wheel.namelist())
    copied = {path.relative_to(tmp_path).as_posix() for path in copy(tmp_path)}
    assert {name.removeprefix(SIDE) for name in names if name.startswith(SIDE)} == copied
    assert SIDE + "notebooks/pictures/00_one_step.svg" in names
    package = Path(mgpu_helpers.__file__).parent
    modules = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}
    assert modules | {"mgpu_helpers/py.typed", "mgpu_helpers/mgpu.mplstyle"} <= names
    assert {name.partition("/")[0] for name in names} == {
        "mgpu_helpers", f"mgpu_helpers-{mgpu_helpers.__version__}.dist-info",
    }  # fmt: skip


def test_the_wheel_says_what_it_is(metadata, wheel):
    assert metadata["Version"] == mgpu_helpers.__version__
    assert metadata["License-Expression"] == "MIT AND CC-BY-4.0"
    licences = {Path(name).name for name in metadata.get_all("License-File")}
    assert licences == {"LICENSE", "DIGITS_LICENSE.txt"}
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "mgpu = mgpu_helpers.__main__:main" in wheel.read(name).decode()


def test_colabs_tensorflow_stays(metadata):
    wanted = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    (tensorflow,) = [one for one in wanted if one.name == "tensorflow" and not one.marker]
    taken = tensorflow.specifier.filter(f"2.{minor}.0" for minor in range(16, 24))
    assert list(taken) == ["2.18.0", "2.19.0", "2.20.0", "2.21.0"]


def test_the_page_on_pypi_has_no_link_that_leads_nowhere(metadata):
    text = metadata.get_payload()
    assert "# mgpu" in text
    for where in re.findall(r"\]\(([^)]*)\)|src=\"([^\"]*)", text):
        assert re.match("https?:|#", "".join(where))


def test_the_sdist_has_what_git_has_and_nothing_else(files):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    known = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    with tarfile.open(files[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()} - {"PKG-INFO"}
    assert names <= known
    left_out = {name.partition("/")[0] for name in known - names}
    ways_to_get_it = {".binder", ".devcontainer", ".dockerignore", "Containerfile", "recipe"}
    assert left_out <= {*ways_to_get_it, ".ci", ".github"}


def test_the_recipe_of_conda_asks_for_what_the_wheel_asks_for(metadata):
    needs = map(Requirement, metadata.get_all("Requires-Dist"))
    wanted = {each.name: str(each.specifier) for each in needs if not each.marker}
    wanted["python"] = metadata["Requires-Python"]
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("\ntest")[0]
    found = dict(line.strip("- ").split(maxsplit=1) for line in run.splitlines())
    order = {name: {*ranges.split(",")} for name, ranges in found.items()}
    assert order == {name: {*ranges.split(",")} for name, ranges in wanted.items()}


def test_links_of_the_readme_become_absolute(tmp_path):
    hook = SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))
    text = "[a](docs/a.md#b) ![p](p.png) [c](https://c) [[d](e.md)](#f)"
    there = "https://host/us/it"
    assert hook.absolute(text, there, "1.2") == (
        f"[a]({there}/blob/v1.2/docs/a.md#b) ![p]({there}/raw/v1.2/p.png) [c](https://c) "
        f"[[d]({there}/blob/v1.2/e.md)](#f)"
    )
    assert hook.absolute(text, "", "1.2") == "a  [c](https://c) [d](#f)"
    conf = tmp_path / "conf.py"
    assert hook.address(conf) == ""
    conf.write_text(f'project = "it"\nREPOSITORY = "{there}/"  # the one place\n')
    assert hook.address(conf) == there


def release(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "release.py"), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_the_wheel_works_in_an_environment_of_its_own(tmp_path):
    tag = f"v{mgpu_helpers.__version__}"
    wrong = release("--tag", "v9.9", "--out", str(tmp_path / "dist"))
    assert wrong.returncode == 1 and not (tmp_path / "dist").exists()
    done = release("--borrow", "--tag", tag, "--out", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stderr
    assert "lessons of mgpu" in done.stdout and len(list((tmp_path / "dist").iterdir())) == 2
