"""What became of a command: the record of a job, and what is read of its log."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What a job runs: a program and its arguments.
Command = Sequence[str | os.PathLike[str]]

TAIL = 64 * 1024  # bytes of a log that are read for its last lines
RESULT = 64 * TAIL  # and for its result, which may be long: every loss of a training
COLUMNS = (
    "name", "status", "returncode", "seconds", "kind", "devices", "start", "started_at", "log",
    "command", "folder",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A command and what became of it; times in seconds since the run began.

    A job that is `done before` has what became of it in that earlier run, and no start or end.
    """

    name: str
    command: tuple[str, ...]
    kind: str  #: "GPU" or "core"
    log: Path
    devices: tuple[int, ...] = ()  #: nvidia-smi's numbers, or the cores'; () if it never started
    slot: int = 0  #: which share of the device; 0 where each job has a device to itself
    start: float | None = None  #: None if it never started
    end: float | None = None
    #: Then done, failed, timed out, stopped or done before; of a worker of a cluster also saved.
    status: str = "not started"
    returncode: int | None = None  #: minus the signal's number for one that a signal ended
    tail: str = ""  #: the last lines of its log, or why it did not start
    pid: int | None = None
    started_at: str | None = None  #: the date and time, UTC, as ISO 8601 has them
    seconds: float | None = None  #: how long it ran
    #: The last JSON object that it printed as a line, as a dict; {} where it printed none.
    result: Mapping[str, Any] = field(default_factory=dict, hash=False)
    folder: str = ""  #: the working directory

    @property
    def device(self) -> int | None:
        """Give the first of its devices; None if it never started."""
        return self.devices[0] if self.devices else None

    @property
    def ok(self) -> bool:
        """Say whether the job is done, in this run or before it."""
        return self.status in ("done", "done before")

    def row(self) -> dict[str, Any]:
        """Give the job as a row of a table: plain values, and a column for each of its results."""
        row = {name: getattr(self, name) for name in COLUMNS} | {"log": str(self.log)}
        row |= {name: list(row[name]) for name in ("devices", "command")}
        row |= {name: row[name] and round(row[name], 3) for name in ("start", "seconds")}
        return row | {f"result_{key}": value for key, value in self.result.items()}

    def cells(self) -> tuple[str, ...]:
        """Give what a printed report shows of it: name, devices, status, seconds."""
        device = ", ".join(f"{self.kind} {number}" for number in self.devices) or "-"
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        return self.name, device, self.status, seconds


def end_of(log: Path, size: int = TAIL) -> list[str]:
    """Return the lines at the end of a log; none where it cannot be read."""
    try:
        if not log.is_file():  # a pipe or a device would not end
            return []
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode(errors="replace").splitlines()
    except OSError:
        return []


def reported(log: Path) -> dict[str, Any]:
    """Return the last line of a log that is a JSON object; {} where there is none.

    Not only the very last line: libraries say things at exit. NaN becomes None, as JSON has none.
    """
    for line in reversed(end_of(log, RESULT)):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(line, parse_constant=lambda name: None)
    return {}


def log_folder(logs: str | os.PathLike[str]) -> Path:
    """Make the folder of the logs, and return it."""
    folder = Path.cwd() / logs
    folder.mkdir(parents=True, exist_ok=True)
    return folder
