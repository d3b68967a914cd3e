"""What became of the workers, each time that they were started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mgpu_helpers._formatting import counted, table
from mgpu_helpers._processes.job import Job

# Exit statuses: a time was over, as of `timeout`; and all have saved, as of a worker that has.
OVER, SAVED = 124, 75


@dataclass(frozen=True, repr=False)
class Attempt:
    """One start of all workers, and what became of those on this machine."""

    number: int  #: MGPU_ATTEMPT: 0, and one more at each restart
    addresses: tuple[str, ...]  #: of all workers
    workers: tuple[Job, ...]  #: those on this machine
    first: int | None = None  #: the index of the first worker that failed; None where none did
    why: str = ""  #: a sentence about that; "" if all is well
    seconds: float = 0.0
    note: str = ""  #: a sentence about what went well, and perhaps not as it was meant
    doing: str = ""  #: what each worker did when nothing went on: its last line, and its stack

    @property
    def ok(self) -> bool:
        """Say whether every worker is done."""
        return not self.why

    @property
    def failed(self) -> Job | None:
        """Give the first worker that failed; None where none did, or not on this machine."""
        return next((job for job in self.workers if job.name == f"worker {self.first}"), None)

    def __repr__(self) -> str:
        lines = [f"Attempt {self.number}: {self.why or 'all is well.'}"]
        if self.doing:
            return "\n".join([*lines, self.doing])
        last = self.failed.tail.splitlines()[-1:] if self.failed else None
        others = [job for job in self.workers if job.status == "failed" and job != self.failed]
        alike = [job.name for job in others if job.tail.splitlines()[-1:] == last != []]
        after = [job.name for job in others if job.tail and job.name not in alike]
        if alike:
            lines.append(f"The last line of {' and '.join(alike)} is the same.")
        if after and self.first is not None:
            lines.append(f"What {' and '.join(after)} said after that is a consequence.")
        if self.failed:
            log, here = self.failed.log, Path.cwd()
            log = log.relative_to(here) if log.is_relative_to(here) else log
            lines += [f"The end of {log}:", self.failed.tail or "(nothing)"]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Report:
    """What became of a cluster; `report[0]` is worker 0 as the last attempt left it."""

    attempts: tuple[Attempt, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Say whether the last attempt ended well."""
        return bool(self.attempts) and self.attempts[-1].ok

    @property
    def saved(self) -> bool:
        """Say whether all were told to end, and have saved so that the next start goes on."""
        return len(self) > 0 and all(job.status == "saved" for job in self)

    @property
    def status(self) -> int:
        """Give the exit status of the command, where nobody stops it."""
        over = any(job.status == "timed out" for job in self)
        return 0 if self.ok else SAVED if self.saved else OVER if over else 1

    @property
    def begun(self) -> bool:
        """Say whether a worker was started."""
        return any(attempt.workers for attempt in self.attempts)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.attempts[-1].workers if self.attempts else ())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, index: int) -> Job:
        return {job.name: job for job in self}[f"worker {index}"]

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("attempt", "worker", "device", "status", "seconds")]
        for attempt in self.attempts:
            rows += [(str(attempt.number), *job.cells()) for job in attempt.workers]
        failed = [repr(attempt) for attempt in self.attempts if not attempt.ok]
        failed += [attempt.note for attempt in self.attempts[-1:] if attempt.ok and attempt.note]
        end = f"{counted(len(self.attempts), 'attempt')}, {self.seconds:.1f} s"
        return "\n\n".join(["\n".join(table(rows)), *failed, end])
