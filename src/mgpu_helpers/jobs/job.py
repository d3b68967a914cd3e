"""What became of a command, and of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Command = Sequence[str | os.PathLike]  # a program and its arguments


@dataclass(frozen=True)
class Job:
    """A command and what became of it; times in seconds since the run began."""

    name: str
    command: tuple[str, ...]
    kind: str  # "GPU" or "core"
    log: Path
    device: int | None = None  # nvidia-smi's number, or a core's; None if it never started
    slot: int = 0  # which share of the device; 0 where each job has a device to itself
    start: float | None = None  # None if it never started
    end: float | None = None
    status: str = "not started"  # or: done, failed, timed out, stopped
    returncode: int | None = None  # minus the signal's number for one that a signal ended
    tail: str = ""  # the last lines of its log, or why it did not start
    pid: int | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """What became of the jobs, in the order given; `report["name"]` is one of them."""

    jobs: tuple[Job, ...]
    wall: float  # seconds

    @property
    def ok(self) -> bool:
        """Say whether every job is done."""
        return all(job.status == "done" for job in self.jobs)

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
        rows = [("name", "device", "status", "seconds")]
        for job in self.jobs:
            device = "-" if job.device is None else f"{job.kind} {job.device}"
            timed = job.start is not None and job.end is not None
            seconds = f"{job.end - job.start:.1f}" if timed else "-"
            rows.append((job.name, device, job.status, seconds))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{name:{wide[0]}}  {device:{wide[1]}}  {status:{wide[2]}}  {seconds:>{wide[3]}}"
            for name, device, status, seconds in rows
        )
