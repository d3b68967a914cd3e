"""Settings that every runner has: where logs go, and times."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def seconds(what: str, value: Any, also: str = "") -> float:
    """Return a time; raise ValueError if it is none above 0. The error names `what` and `also`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{what}={value!r} is no time: give seconds above 0{also}.")
    return value


def log_folder(logs: str | os.PathLike[str]) -> Path:
    """Make the folder of the logs, and return it; a RuntimeError where nothing can be written."""
    try:
        folder = Path.cwd() / logs
    except FileNotFoundError:
        gone = "The working directory was removed: change to one that is there."
        raise RuntimeError(gone) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RuntimeError(
            f"No logs can be written to {str(logs)!r} ({error.strerror}): "
            "choose another folder with logs=..."
        ) from None
    return folder


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[tuple[int, bool]]:
    """Give an open file that holds the folder of the logs, and say whether no other runner does."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError as error:  # another errno: this disk has no locks
        alone = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    try:
        yield held, alone
    finally:
        os.close(held)
