"""`mgpu lessons`: the lessons of this version in a folder of yours."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import mgpu_helpers
from mgpu_helpers._files import replacing
from mgpu_helpers._formatting import counted

# The notebooks, and what they start, read or link to, in folders beside each other as in the
# repository, so that no link changes. pyproject.toml puts the same into the wheel.
WANTED = (
    "notebooks/*.ipynb",
    "notebooks/pictures/*.svg",
    "notebooks/scripts/*.*",
    "results/*.json",
    "docs/sources.md",
    "docs/errors.md",
    "docs/fit.md",
    "docs/benchmarks.md",
    "docs/train_step.md",
    "docs/parameter_servers.md",
    "docs/slurm.md",
    "docs/first_ten_minutes_on_a_gpu.md",
)
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
    folder, home = Path(folder), _home()
    found = [file for wanted in WANTED for file in sorted(home.glob(wanted)) if file.is_file()]
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


def _home() -> Path:
    """Find the folder above `notebooks`: in an installed package its own, else the repository."""
    floor = Path(__file__).parent
    for home in (floor / "series", floor.parents[2]):
        if (home / "notebooks").is_dir():
            return home
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
