"""What became of a command, and of all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mgpu_helpers.files import replacing
from mgpu_helpers.wording import signal_name

#: What a job runs: a program and its arguments.
Command = Sequence[str | os.PathLike[str]]

COLUMNS, WIDEST = 6, 24  # results that a printed report shows, and their most characters


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
    status: str = "not started"  #: then done, failed, timed out, stopped or done before
    returncode: int | None = None  #: minus the signal's number for one that a signal ended
    tail: str = ""  #: the last lines of its log, or why it did not start
    pid: int | None = None
    started_at: str | None = None  #: the date and time, UTC, as ISO 8601 has them
    seconds: float | None = None  #: how long it ran
    result: Mapping[str, Any] = field(default_factory=dict, hash=False)  #: the JSON that it printed
    folder: str = ""  #: the working directory

    @property
    def device(self) -> int | None:
        """Give the first of its devices; None if it never started."""
        return self.devices[0] if self.devices else None

    @property
    def ok(self) -> bool:
        """Say whether the job is done, in this run or before it."""
        return self.status in ("done", "done before")

    @property
    def how(self) -> str:
        """Say its status, and of one that failed its exit status or the signal that ended it."""
        if self.status != "failed" or self.returncode is None:
            return self.status
        if self.returncode < 0:
            return f"failed, {signal_name(-self.returncode)} ended it"
        return f"failed with exit status {self.returncode}"

    def row(self) -> dict[str, Any]:
        """Give the job as a row of a table: plain values, and a column for each of its results."""
        rounded = [at if at is None else round(at, 3) for at in (self.start, self.seconds)]
        return {
            "name": self.name,
            "status": self.status,
            "returncode": self.returncode,
            "seconds": rounded[1],
            "kind": self.kind,
            "devices": list(self.devices),
            "start": rounded[0],
            "started_at": self.started_at,
            "log": str(self.log),
            "command": list(self.command),
            "folder": self.folder,
        } | {f"result_{key}": value for key, value in self.result.items()}


@dataclass(frozen=True, repr=False)
class Report:
    """What became of the jobs, in the order given; `report["name"]` is one of them.

    Printed it is a table, with a column for each number or short text that the jobs printed as
    their results.
    """

    jobs: tuple[Job, ...]
    wall: float  #: the seconds that the run took

    @property
    def ok(self) -> bool:
        """Say whether every job is done, in this run or before it."""
        return all(job.ok for job in self.jobs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the jobs to a file, a line of JSON each.

        With pandas installed (`pip install "mgpu-helpers[tables]"`) `pandas.read_json(path,
        lines=True)` reads it.

        The columns are the name, status, returncode, seconds, kind and devices of the job, its
        start in seconds since the run began and as a date (started_at, UTC), log, command and
        working directory (folder), and result_loss for a "loss" in the JSON that it printed.

        >>> import json, sys
        >>> program = "import json; print(json.dumps({'loss': 0.25}))"
        >>> report = run([[sys.executable, "-c", program]], progress=False)
        >>> report.save("sweep.json")
        >>> row = json.loads(open("sweep.json").readline())
        >>> row["status"], row["result_loss"]
        ('done', 0.25)
        """
        try:
            with replacing(path) as file:
                file.writelines(json.dumps(job.row()).encode() + b"\n" for job in self.jobs)
        except OSError as error:
            raise RuntimeError(
                f"No report can be written to {str(path)!r} ({error.strerror}): choose another "
                "file."
            ) from None

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __getitem__(self, which: int | slice | str) -> Any:
        if not isinstance(which, str):
            return self.jobs[which]
        for job in self.jobs:
            if job.name == which:
                return job
        raise KeyError(f"no job is called {which!r}: {', '.join(job.name for job in self.jobs)}")

    def __repr__(self) -> str:
        found = list(dict.fromkeys(key for job in self.jobs for key in job.result))
        long = [key for key in found if any(_is_long(job.result.get(key)) for job in self.jobs)]
        short = [key for key in found if key not in long]
        columns, more = short[:COLUMNS], long + short[COLUMNS:]
        rows = [("name", "device", "status", "seconds", *columns)]
        for job in self.jobs:
            device = ", ".join(f"{job.kind} {number}" for number in job.devices) or "-"
            seconds = "-" if job.seconds is None else f"{job.seconds:.1f}"
            results = (_text(job.result.get(key)) for key in columns)
            rows.append((job.name, device, job.status, seconds, *results))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([*map(str.ljust, row[:3], wide), *map(str.rjust, row[3:], wide[3:])])
            for row in rows
        ]
        if more:
            lines.append(f"not shown, but in each job's result: {', '.join(more)}")
        return "\n".join(lines)


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, dict)) or len(str(value)) > WIDEST


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
