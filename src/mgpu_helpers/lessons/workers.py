"""What lessons 21 and 22 do with their workers: start them, run their script alone, read a log."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from dataclasses import replace
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


def steps(log: Path) -> list[int]:
    """List the numbers of the steps that train_workers.py printed to a log."""
    return [int(number) for number in re.findall(r"step (\d+)", log.read_text(encoding="utf-8"))]


def untimed(why: str) -> str:
    """Leave the time out of why an attempt ended.

    >>> untimed("Worker 1 failed first, after 4.6 s: SIGKILL ended it.")
    'Worker 1 failed first: SIGKILL ended it.'
    """
    return re.sub(r", after [\d.]+ s", "", why)


def timeline(report: Any) -> Any:
    """Draw which worker ran when, in all attempts."""
    from mgpu_helpers import charts, jobs

    everyone = (
        replace(worker, name=f"{worker.name}, attempt {attempt.number}")
        for attempt in report.attempts
        for worker in attempt.workers
    )
    ax = charts.jobs(jobs.Report(tuple(everyone), report.seconds))
    ax.set_title("Which worker ran when", loc="left")
    return ax


def errors(log: Path, most: int = 2) -> list[str]:
    """List the first errors that Python printed to a log, each in a line cut between two words."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    of_python = (line for line in lines if not line.startswith(("E0", "W0", "I0")))  # not of absl
    found = dict.fromkeys(line.strip() for line in of_python if "Error" in line)
    return [textwrap.shorten(line, 95, placeholder=" …") for line in list(found)[:most]]
