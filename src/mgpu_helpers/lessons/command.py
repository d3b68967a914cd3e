"""`mgpu lessons`: the lessons of this version in a folder of yours."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path

import mgpu_helpers
from mgpu_helpers._files import replacing
from mgpu_helpers._formatting import counted

DESCRIPTION = """\
Copy the notebooks of this version, their scripts, and the pages that they link to, into a folder.
A file of the folder is never overwritten. The exit status is 0 when the lessons are there, 2 when
they are not.
"""


def copy(folder: str | os.PathLike[str]) -> list[Path]:
    """Copy the lessons, and what they start and link to, into a folder; return the files' paths.

    The folder is made where there is none. A file in it that says something else stays as it is:
    FileExistsError names it, and nothing is copied.

    >>> copy("mgpu")[0].name
    '00_meet_your_machine.ipynb'
    """
    folder, (home, wanted) = Path(folder), _series()
    found = [file for each in wanted for file in sorted(home.glob(each)) if file.is_file()]
    here = {file: folder / file.relative_to(home) for file in found}
    differ = [to for file, to in here.items() if to.exists() and not _same(file, to)]
    if differ:
        raise FileExistsError(
            f"{counted(len(differ), 'file')} in {folder} would be overwritten, {differ[0]} for "
            "one: name another folder, or move what you want to keep; nothing was copied."
        )
    for file, to in here.items():
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            with replacing(to) as copied:
                copied.write(file.read_bytes())
    return list(here.values())


def _series() -> tuple[Path, list[str]]:
    """Find the folder above `notebooks`, and patterns of what to copy from it, notebooks first.

    Folders stand beside each other as in the repository, so that no link changes. An installed
    package has what pyproject.toml puts into the wheel; the repository has that file.
    """
    floor = Path(__file__).parent
    if (home := floor / "series").is_dir():
        return home, ["notebooks/*.ipynb", "**/*"]
    if (project := floor.parents[2] / "pyproject.toml").exists():
        build = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
        wanted = build["targets"]["wheel"]["include"]
        return project.parent, [each[1:] for each in wanted if not each.startswith("/src/")]
    raise FileNotFoundError(
        f"the lessons are not in {floor}: install mgpu-helpers from its wheel, or with "
        "pip install -e in its repository."
    )


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def main(arguments: Sequence[str], called: str) -> int:
    """Copy the lessons, say how to start them, and return the exit status."""
    parser = argparse.ArgumentParser(called, description=DESCRIPTION)
    parser.add_argument("folder", metavar="DIR", help="where to; made where there is none")
    folder = str(Path(parser.parse_args(arguments).folder))  # "" is the working directory, "."
    try:
        copied = copy(folder)
    except OSError as error:  # ours has a sentence; the system's has a file and a reason
        said = f"{error.filename or folder} cannot be written ({error.strerror})"
        parser.error(f"{said}: name another folder." if error.strerror else str(error))
    lessons = [path for path in copied if path.suffix == ".ipynb"]
    start = f"jupyter lab {shlex.quote(folder)}, and open notebooks/{lessons[0].name}."
    if not importlib.util.find_spec("jupyterlab"):
        start = f'pip install "mgpu-helpers[notebooks]", then {start}'
    print(f"{len(lessons)} lessons of mgpu {mgpu_helpers.__version__} are in {lessons[0].parent}.")
    print(f"Start: {start}")
    return 0
