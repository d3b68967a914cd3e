"""The one loop in which processes run together: whatever is raised in it ends all of them."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from mgpu_helpers._processes.job import Job
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.process import Running, held_back
from mgpu_helpers._processes.terminal import Progress

GLANCE = 0.05  # seconds between two looks at the running jobs


class Crew(abc.ABC):
    """Jobs that run, by number; who inherits from it says what to start, and when to end whom."""

    inherited: tuple[int, ...] = ()  # open files that each job inherits
    grace: float | None = None  # seconds from SIGTERM to SIGKILL; None: as ever

    def __init__(self, progress: Progress, began: float) -> None:
        self.running: dict[int, Running] = {}
        self.progress, self.say, self.began = progress, progress.say, began

    @abc.abstractmethod
    def step(self) -> bool:
        """Start and end what is due; False when all is over."""

    @abc.abstractmethod
    def finish(self, number: int, job: Job, places: Sequence[Place]) -> None:
        """Note how a job ended."""

    @abc.abstractmethod
    def result(self) -> Any:
        """Give what became of all."""

    def launch(self, job: Job, places: Sequence[Place], environment: dict[str, str]) -> Running:
        """Start a job's process; an OSError or ValueError says why it cannot be."""
        return Running(job, places, environment, self.inherited, self.grace)

    def started(self, running: Running) -> None:  # noqa: B027  who needs no word of it leaves it
        """Note that a process has started; no signal comes between."""

    def left(self, number: int, running: Running) -> None:  # noqa: B027  likewise
        """Note that a job's process has ended; its children may run yet."""

    def stop(self, number: int, running: Running) -> None:
        """Ask a job to end since the run is stopped."""
        running.end("stopped")

    def close(self) -> None:  # noqa: B027  likewise
        """Free what the run holds, however it ended."""

    def now(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> Any:
        """Run until all is over; an error or Ctrl-C ends all, and carries the `.report`."""
        try:
            while True:
                self.collect()
                if not self.step():
                    return self.result()
                time.sleep(GLANCE)
        except BaseException as error:
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: end them at once
                    for number, running in self.running.items():
                        self.stop(number, running)
                    while self.running:
                        self.collect()
                        time.sleep(GLANCE)
            finally:
                for number, running in list(self.running.items()):
                    running.kill()
                    self.take_off(number)
                vars(error)["report"] = self.result()
            raise
        finally:
            self.close()

    def start(
        self, number: int, job: Job, places: Sequence[Place], environment: dict[str, str]
    ) -> None:
        """Start a job; what cannot be started is failed, and its tail says why."""
        job = replace(
            job, devices=tuple(place.number for place in places), slot=places[0].slot,
            start=self.now(), started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        self.say(f"{'start':10} {job.name:12} on {named(places)}")
        try:
            with held_back():
                running = self.launch(job, places, environment)
                self.running[number] = running
                self.started(running)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                job.log.write_text(f"{error}\n")
            now = self.now()
            job = replace(job, end=now, seconds=now - (job.start or now), status="failed",
                          tail=str(error))  # fmt: skip
            self.finish(number, job, places)

    def collect(self) -> None:
        """Take off the jobs of which nothing runs any more."""
        for number, running in list(self.running.items()):
            over = running.over()
            if running.process.returncode is not None:
                self.left(number, running)
            if over:
                with held_back():  # so that a job ends once
                    self.take_off(number)

    def take_off(self, number: int) -> None:
        running = self.running.pop(number)
        self.finish(number, running.ended(self.now()), running.places)


def named(places: Sequence[Place]) -> str:
    """Name the devices of a job, as "core 0, core 1"."""
    return ", ".join(map(str, places))
