"""What `run` is asked for, in order; or a sentence about what is wrong with it."""

from __future__ import annotations

import difflib
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from mgpu_helpers._files import check_script
from mgpu_helpers._formatting import counted
from mgpu_helpers._processes.job import log_folder


def command(
    script: str | os.PathLike[str], args: Sequence[str | os.PathLike[str]]
) -> tuple[str, ...]:
    """Return the script and its arguments as words."""
    if isinstance(args, str) or "\0" in "".join(os.fspath(word) for word in (script, *args)):
        raise ValueError(
            f"args={args!r} for {os.fspath(script)!r}: give the script's arguments as a list of "
            'words without null bytes, as ["--epochs", "3"].'
        )
    path = Path(script)
    if path.is_dir():
        inside = sorted(path.glob("*.py"))[:3]
        such = f", such as {' or '.join(map(str, inside))}" if inside else ""
        raise ValueError(f"{os.fspath(script)!r} is a folder: name a Python file in it{such}.")
    if not path.is_file():
        names = [each.name for each in path.parent.glob("*.py") if each.is_file()]
        like = difflib.get_close_matches(path.name, names, 1, 0.8)
        meant = f" Is {str(path.parent / like[0])!r} meant?" if like else ""
        where = f"{Path.cwd() / path.parent} has no {path.name!r}" if path.parent.is_dir() else (
            f"there is no folder {str(Path.cwd() / path.parent)!r}"
        )  # fmt: skip
        raise ValueError(f"There is no script {os.fspath(script)!r}: {where}.{meant}")
    check_script(script)
    return tuple(os.fspath(word) for word in (script, *args))


def machines(workers: Any, hosts: Sequence[str] | None, index: int | None) -> list[str]:
    """Return the addresses of all machines, where nothing says otherwise."""
    if hosts is None:
        raise ValueError(
            f"index={index} says which machine this is, and no address says which there are: give "
            "those of all as well, or leave it out to start all workers here."
        )
    named = list(hosts)
    if workers is not None:
        raise ValueError(
            f"workers={workers} are processes of this machine, and hosts={','.join(named)} are "
            "machines with one worker each: give one of the two."
        )
    if index is None:
        raise ValueError(
            f"hosts={','.join(named)} names {counted(len(named), 'machine')}, and nothing says "
            "which of them this is: give index=0 on the first, index=1 on the second, and so on."
        )
    return named


def folder(logs: str | os.PathLike[str]) -> Path:
    """Make the folder of the logs, where something can be written."""
    try:
        made = log_folder(logs)
        if not shutil.disk_usage(made).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise _refusal(logs, error) from None
    return made


def opened(log: Path) -> IO[bytes]:
    """Open a log to be written."""
    try:
        return open(log, "ab")
    except OSError as error:
        raise _refusal(log, error) from None


def _refusal(path: str | os.PathLike[str], error: OSError) -> RuntimeError:
    from mgpu_helpers.jobs.rows import refusal  # loaded where it is needed

    return refusal(path, error)
