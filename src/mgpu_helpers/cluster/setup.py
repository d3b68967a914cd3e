"""What is the same for every attempt to run a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mgpu_helpers.jobs.locks import Place
from mgpu_helpers.jobs.progress import Progress


@dataclass(frozen=True)
class Setup:
    """What `run` was asked for, looked at."""

    script: tuple[str, ...]  # with its arguments
    shares: dict[int, list[Place]]  # the devices of each worker of this machine, by its index
    kind: str
    pool: dict[int, str | None]
    folder: Path  # of the logs
    grace: float
    startup: float
    began: float  # on the clock of time.monotonic, as the next
    end: float | None  # when the time limit is over
    progress: Progress

    def log(self, index: int, number: int) -> Path:
        """Return the log of a worker in an attempt."""
        return self.folder / f"worker_{index}{f'_restart_{number}' if number else ''}.log"
