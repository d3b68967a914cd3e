"""What became of the jobs: the report of a run, which is a table when it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mgpu_helpers._processes.job import Job

SHOWN, WIDEST = 6, 24  # results that a printed report shows, and their most characters


@dataclass(frozen=True, repr=False)
class Report:
    """What became of the jobs, in the order given; `report["name"]` is one of them.

    Printed it is a table, with a column for each number or short text that the jobs printed as
    their results. `job.row()` gives a job as a line of `jobs.jsonl` has it: the name, status,
    returncode, seconds, kind and devices of the job, its start in seconds since the run began and
    as a date (started_at, UTC), log, command and working directory (folder), and result_loss for a
    "loss" in the JSON that it printed. With pandas, `DataFrame([job.row() for job in report])`.

    >>> import sys
    >>> program = "import json; print(json.dumps({'loss': 0.25}))"
    >>> (row,) = [job.row() for job in run([[sys.executable, "-c", program]], progress=False)]
    >>> row["status"], row["result_loss"]
    ('done', 0.25)
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
