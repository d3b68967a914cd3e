"""One start of all workers of this machine: they run together, and end together."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_helpers._processes.crew import Crew, named
from mgpu_helpers._processes.job import Job, end_of
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.pool import environment
from mgpu_helpers._processes.process import Running, stat
from mgpu_helpers._processes.terminal import Progress
from mgpu_helpers.cluster import addresses, guard, worker
from mgpu_helpers.cluster.judging import (
    SAVED,
    Worker,
    last,
    nothing_for,
    stuck,
    verdict,
    without_noise,
)
from mgpu_helpers.cluster.report import Attempt
from mgpu_helpers.cluster.stacks import doing
from mgpu_helpers.cluster.watch import Watch

TAIL, WIDTH = 15, 1000  # lines of a log in the report, and characters of each
ALONE = (
    "made no MultiWorkerMirroredStrategy, so it trains alone: make and compile the model in "
    "`with fit.strategy(devices.setup()).scope():`."
)


@dataclass(frozen=True)
class Run:
    """What is the same for every attempt."""

    script: tuple[str, ...]  # with its arguments
    shares: dict[int, list[Place]]  # the devices of each worker of this machine, by its index
    folder: Path  # of the logs
    grace: float
    stalled: float  # seconds without anything that goes on
    began: float  # on the clock of time.monotonic, as the next
    end: float  # when the time limit is over
    progress: Progress
    quiet: bool  # do not show what worker 0 prints

    def log(self, index: int, number: int) -> Path:
        """Return the log of a worker in an attempt."""
        return self.folder / f"worker_{index}{f'_restart_{number}' if number else ''}.log"


class Workers(Crew):
    """The workers of one attempt."""

    def __init__(self, run: Run, number: int, addresses: Sequence[str]) -> None:
        super().__init__(run.progress, run.began)
        self.asked, self.number, self.addresses = run, number, tuple(addresses)
        self.first_start = time.monotonic()
        self.workers: dict[int, Worker] = {}
        self.missing: int | None = None  # who failed and why, where that is known before the end
        self.why = self.doing = ""
        self.watches: dict[int, Watch] = {}
        self.looks_at = 0.0
        self.ending = self.told_alone = False
        self.pipe, self.end_of_pipe = os.pipe()
        self.inherited, self.grace = (self.end_of_pipe,), run.grace
        self.mark = os.urandom(8).hex()
        self.guard = subprocess.Popen(  # which a launcher that is a worker of another leaves behind
            [sys.executable, "-I", "-S", guard.__file__, self.mark], stdin=subprocess.PIPE,
            start_new_session=True, env={**os.environ, guard.MARK: ""},
        )  # fmt: skip

    def begin(self) -> None:
        for index, places in self.asked.shares.items():
            command = (sys.executable, worker.__file__, str(self.end_of_pipe), str(index))
            job = Job(
                f"worker {index}", command + self.asked.script, places[0].kind,
                self.asked.log(index, self.number), folder=os.getcwd(),
            )  # fmt: skip
            given = environment(places) | addresses.environment(self.addresses, index)
            given |= {"MGPU_ATTEMPT": str(self.number), guard.MARK: self.mark}
            if job.kind == "GPU":  # it holds the locks: jobs.run in it would wait for itself
                given["MGPU_JOB_DEVICE"] = named(places)
            self.workers[index] = Worker(job)
            self.start(index, job, places, given)
            if running := self.running.get(index):
                shown = self.show if index == 0 and not self.asked.quiet else None
                self.watches[index] = Watch(running.process.pid, job.log, shown)

    def show(self, lines: str) -> None:
        self.say("\n".join(f"[worker 0] {line[:WIDTH]}" for line in lines.split("\n")))

    def started(self, running: Running) -> None:
        self.tell_guard(running.process.pid)

    def tell_guard(self, group: int) -> None:
        assert self.guard.stdin  # a pipe
        with contextlib.suppress(OSError):  # the guard was killed
            self.guard.stdin.write(f"{group}\n".encode())
            self.guard.stdin.flush()

    def collect(self) -> None:
        """Read what the workers said, and note those that have ended."""
        self.hear()
        for watch in self.watches.values():
            watch.read()
        super().collect()

    def hear(self) -> None:
        while select.select([self.pipe], [], [], 0)[0]:
            for line in os.read(self.pipe, 65536).decode().splitlines():
                index, event, at = line.split()
                self.workers[int(index)].says(event, float(at))
                self.watches[int(index)].says(event, float(at))
                if event == "alone" and len(self.addresses) > 1 and not self.told_alone:
                    self.told_alone = True
                    self.say(f"{'alone':10} worker {index:<5} {ALONE}")

    def left(self, number: int, running: Running) -> None:
        """Note that a worker's process has ended, and whether it failed by itself.

        A large process takes a while to die: the others may notice it before its end can be seen.
        """
        one, now, code = self.workers[number], time.monotonic(), running.process.returncode
        if one.left is not None:
            return
        one.left = now
        if "waits" in one.said:
            one.says("goes", now)
        if "saves" in one.said:  # its children were left alone until now
            running.status = None
            running.end("stopped")
        if "saved" in one.said:
            return
        told = running.status in ("stopped", "timed out")
        heeded = told and (code >= 0 or code == -signal.SIGTERM)
        killed = running.kill_at is not None and now >= running.kill_at
        if code and not heeded and not killed:
            one.fails(now)

    def step(self) -> bool:
        """End all workers when one has failed, or a time is over."""
        now = time.monotonic()
        if not self.workers:
            self.begin()
        for index, running in self.running.items():
            one = self.workers[index]  # it may hang in what it does at its end
            done = one.said.get("done") if self.ending else None
            ends = {"failed": one.raised, "stopped": one.said.get("saved", done)}
            for status, at in ends.items():
                if at is not None and now > at + self.asked.grace:
                    running.end(status)
        if self.ending:
            return bool(self.running)
        if any(one.failed is not None for one in self.workers.values()):
            for index, running in self.running.items():
                self.workers[index].state = stat(running.process.pid)[0]
            self.end_all("stopped")
        elif self.stalls(now):
            self.end_all("timed out")
        elif now > self.asked.end:
            self.why = "The time limit is over."
            self.end_all("timed out")
        return bool(self.running)

    def stalls(self, now: float) -> bool:
        """Say whether nothing goes on in any worker, and what they did then."""
        limit = self.asked.stalled
        watches = {index: self.watches[index] for index in self.running}
        if now < self.looks_at or not watches:
            return False
        self.looks_at = now + min(5.0, limit / 10)
        for watch in watches.values():
            watch.look(limit)
        # One that has ended counts for as long: others may have waited for it.
        if time.monotonic() <= max(watch.moved for watch in self.watches.values()) + limit:
            return False
        waiting = [index for index, one in self.workers.items() if "waits" in one.said]
        if waiting:
            self.why, self.missing = stuck(self.workers, self.addresses, min(waiting), now)
        else:
            self.why = nothing_for(limit)
        self.doing = doing(watches)
        return True

    def stop(self, number: int, running: Running) -> None:
        """Ask a worker to end; one that is in a fit with a backup saves first, and may take long.

        Only the worker itself is told: it may need the processes that load its data once more.
        """
        self.hear()  # it may have become ready just now
        one = self.workers[number]
        if "ready" not in one.said or one.left is not None or running.status is not None:
            running.end("stopped")
            return
        self.say(f"{'saving':10} worker {number:<5} Ctrl-C ends it at once")
        running.status = "stopped"
        one.says("saves", time.monotonic())
        running.kill_at = time.monotonic() + self.asked.stalled
        with contextlib.suppress(OSError):  # it has ended
            os.kill(running.process.pid, signal.SIGTERM)

    def end_all(self, status: str) -> None:
        self.ending = True
        for index, running in self.running.items():
            if self.workers[index].raised is None and "done" not in self.workers[index].said:
                running.end(status)

    def finish(self, number: int, job: Job, places: Sequence[Place]) -> None:
        if job.pid is None:
            raise RuntimeError(f"{job.name} cannot be started: {job.tail}")
        guard.end_all([job.pid])
        self.tell_guard(-job.pid)
        if number in self.watches:
            self.watches[number].close()
        tail = [line[:WIDTH] for line in last(without_noise(end_of(job.log)), TAIL)]
        with contextlib.suppress(OSError):  # the folder was removed
            if job.returncode and not shutil.disk_usage(job.log.parent).free:
                tail.append("(The disk of the logs is full: what it said after that is lost.)")
        status = "saved" if "saved" in self.workers[number].said else job.status
        job = replace(job, tail="\n".join(tail), status=status)
        self.workers[number].job = job
        self.say(f"{job.status:10} {job.name:12} {job.seconds:.1f} s")

    def result(self) -> Attempt:
        first, why = self.missing, self.why
        jobs = {i: one.job for i, one in self.workers.items() if one.job.start is not None}
        if not why and any(one.failed is not None for one in self.workers.values()):
            first, why = verdict(self.workers, self.addresses, self.first_start)
            if first in jobs and jobs[first].status == "stopped":
                jobs[first] = replace(jobs[first], status="failed")
        elif not why and any(job.status == "saved" for job in jobs.values()):
            why = SAVED
        elif not why and not all(job.ok for job in jobs.values()):
            why = "It was stopped."
        seconds, ours, note = time.monotonic() - self.first_start, self.workers.values(), ""
        if len(self.addresses) > 1 and any("loads" in one.said and not one.came for one in ours):
            note = f"A worker {ALONE}"
        return Attempt(
            self.number, self.addresses, tuple(jobs.values()), first, why, seconds, note, self.doing
        )

    def close(self) -> None:
        guard.end_all([], self.mark)
        self.guard.kill()
        self.guard.communicate()
        os.close(self.pipe)
        os.close(self.end_of_pipe)
