"""What became of the jobs: a report of this run, and a file of JSON lines for the runs to come.

A line of `jobs.jsonl`, in the folder of the logs, is written whole as its job ends. Only a crash of
the machine or a full disk leaves half a line; it is not read, and the next begins below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_helpers._files import replacing
from mgpu_helpers._processes.job import COLUMNS, Job, end_of

Done = dict[tuple[tuple[str, ...], str], list[dict[str, Any]]]  # by command and folder

FILE = "jobs.jsonl"
SHOWN, WIDEST = 6, 24  # results that a printed report shows, and their most characters


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

    @property
    def begun(self) -> bool:
        """Say whether a job was started in this run."""
        return any(job.start is not None for job in self.jobs)

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
        with replacing(path) as file:
            file.writelines(json.dumps(job.row()).encode() + b"\n" for job in self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __getitem__(self, which: int | slice | str) -> Any:
        if isinstance(which, str):
            return {job.name: job for job in self}[which]
        return self.jobs[which]

    def __repr__(self) -> str:
        keys = list(dict.fromkeys(key for job in self for key in job.result))
        long = [key for key in keys if any(_is_long(job.result.get(key)) for job in self)]
        columns = [key for key in keys if key not in long][:SHOWN]
        rows = [("name", "device", "status", "seconds", *columns)]
        rows += [(*job.cells(), *(_text(job.result.get(key)) for key in columns)) for job in self]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([*map(str.ljust, row[:3], wide), *map(str.rjust, row[3:], wide[3:])])
            for row in rows
        ]
        if more := [key for key in keys if key not in columns]:
            lines.append(f"not shown, but in each job's result: {', '.join(more)}")
        return "\n".join(lines)


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, dict)) or len(str(value)) > WIDEST


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def append(path: Path, job: Job) -> None:
    """Add a line for a job that ended; an OSError where it cannot be written."""
    with open(path, "a+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # this disk has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(max(0, os.fstat(file.fileno()).st_size - 1))
        below_half_a_line = file.read() not in (b"", b"\n")
        file.write(b"\n" * below_half_a_line + json.dumps(job.row()).encode() + b"\n")
        os.fsync(file.fileno())


def done(path: Path) -> Done:
    """Sort the rows of jobs that are done by command and working directory, the newest last.

    When the same command wrote the same log again, its newest row is the one that counts. Lines
    that are no runner's are passed over.
    """
    newest: dict[Any, dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():  # a pipe would not end
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            row = {name: json.loads(line)[name] for name in COLUMNS} | json.loads(line)
            key = tuple(row["command"]), row["folder"]
            newest.pop((key, row["log"]), None)
            newest[key, row["log"]] = row
    kept = defaultdict(list)
    for (key, _), row in newest.items():
        if row["status"] == "done":
            kept[key].append(row)
    return kept


def earlier(name: str, command: tuple[str, ...], folder: Path, row: dict[str, Any]) -> Job:
    """Make a job of a row, done before; its log is in the folder, wherever that was then."""
    log = folder / Path(row["log"]).name
    return Job(
        name, command, row["kind"], log, tuple(row["devices"]), status="done before", returncode=0,
        tail="\n".join(end_of(log)[-10:]), started_at=row["started_at"], seconds=row["seconds"],
        result={key[7:]: value for key, value in row.items() if key.startswith("result_")},
        folder=row["folder"],
    )  # fmt: skip
