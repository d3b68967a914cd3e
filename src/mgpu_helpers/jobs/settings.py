"""Settings that every runner has: where logs go, and times."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def seconds(what: str, value: Any, also: str = "") -> float:
    """Return a time; raise ValueError if it is none above 0. The error names `what` and `also`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{what}={value!r} is no time: give seconds above 0{also}.")
    return value


def log_folder(logs: str | os.PathLike) -> Path:
    """Make the folder of the logs, and return it; a RuntimeError where nothing can be written."""
    folder = Path(logs).absolute()
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
