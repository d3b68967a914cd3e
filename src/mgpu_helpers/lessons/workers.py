"""What lessons 21 and 22 do with their workers: start them, run their script alone, read a log."""

from __future__ import annotations

import contextlib
import os
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock


def run_alone(path: str | os.PathLike[str], folder: Path, device: str) -> dict[str, Any]:
    """Run train_workers.py in this process without the line marked "added"; return its names."""
    import tensorflow as tf

    script = Path(path).read_text(encoding="utf-8")
    (added,) = [line.strip() for line in script.splitlines() if line.endswith("# added")]
    names: dict[str, Any] = {"__name__": "__main__"}
    words = [str(path), "--folder", str(folder)]
    with tf.device(device), mock.patch("sys.argv", words), contextlib.redirect_stdout(None):
        exec(script.replace(added, "if True:"), names)
    return names


def on_cores() -> contextlib.AbstractContextManager[Any]:
    """Let the workers that start in the block train on cores, each operation in one thread."""
    return mock.patch.dict(os.environ, MGPU_MODE="cores", TF_NUM_INTRAOP_THREADS="1")


def errors(log: Path, most: int = 2) -> list[str]:
    """List the first errors that Python printed to a log, each in a line cut between two words."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    of_python = (line for line in lines if not line.startswith(("E0", "W0", "I0")))  # not of absl
    found = dict.fromkeys(line.strip() for line in of_python if "Error" in line)
    return [textwrap.shorten(line, 95, placeholder=" …") for line in list(found)[:most]]
