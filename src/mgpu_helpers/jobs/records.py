"""What became of the jobs: the report of a run, which is a table when it is printed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mgpu_helpers._files import replacing
from mgpu_helpers._processes.job import Job

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
