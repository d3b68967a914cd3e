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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mgpu_helpers.cluster import addresses as where
from mgpu_helpers.cluster import guard, worker
from mgpu_helpers.cluster.blame import last, without_noise
from mgpu_helpers.cluster.report import Attempt
from mgpu_helpers.cluster.setup import Setup
from mgpu_helpers.cluster.verdict import stuck, verdict
from mgpu_helpers.jobs.job import Job
from mgpu_helpers.jobs.pool import environment
from mgpu_helpers.jobs.process import Running, end_of, held_back

GLANCE = 0.02  # seconds between two looks at the workers
TAIL, WIDTH = 15, 1000  # lines of a log in the report, and characters of each


class Crew:
    """The workers of one attempt."""

    def __init__(self, setup: Setup, number: int, addresses: Sequence[str]) -> None:
        self.setup, self.number, self.addresses = setup, number, tuple(addresses)
        self.began = time.monotonic()
        self.running: dict[int, Running] = {}
        self.jobs: dict[int, Job] = {}  # those that have ended
        self.left: dict[int, float] = {}  # when a worker's process was seen to have ended
        self.raised: dict[int, float] = {}  # when a script raised, which is before that
        self.status: dict[int, str] = {}  # with which exit status, where it was sys.exit
        self.failed: dict[int, float] = {}  # when a worker failed that nobody ended
        self.waits: dict[int, float] = {}  # since when it waits in the strategy's constructor
        self.came: set[int] = set()  # who has ever been in that constructor
        self.through: dict[int, float] = {}  # when a worker came out of it
        self.states: dict[int, str] = {}  # of those that ran when the first one failed
        self.ending = ""  # why all are being ended, where that is known then: a time is over
        self.missing: int | None = None
        self.pipe, self.end_of_pipe = os.pipe()
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__], stdin=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def run(self) -> Attempt:
        """Start the workers and wait for their end; whatever is raised meanwhile ends them all."""
        try:
            for index in self.setup.shares:
                self.start(index)
            while self.running:
                self.collect()
                self.watch()
                time.sleep(GLANCE)
        except BaseException as error:
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: end them at once
                    self.end("stopped", all_of_them=True)
                    while self.running:
                        self.collect()
                        time.sleep(GLANCE)
            finally:
                for index, running in list(self.running.items()):
                    running.kill()
                    self.finish(index)
                vars(error)["attempt"] = self.result("It was stopped.")
            raise
        finally:
            self.guard.kill()
            self.guard.communicate()
            os.close(self.pipe)
            os.close(self.end_of_pipe)
        return self.result(self.ending)

    def start(self, index: int) -> None:
        setup, places = self.setup, self.setup.shares[index]
        now = time.monotonic() - setup.began
        command = (sys.executable, worker.__file__, str(self.end_of_pipe), str(index))
        job = Job(
            f"worker {index}", command + setup.script, setup.kind, setup.log(index, self.number),
            tuple(place.number for place in places), start=now, folder=os.getcwd(),
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        given = environment(setup.kind, setup.pool, job.devices)
        given |= where.environment(self.addresses, index) | {"MGPU_ATTEMPT": str(self.number)}
        if setup.kind == "GPU":  # it holds the locks: jobs.run in it would wait for itself
            given["MGPU_JOB_DEVICE"] = ", ".join(map(str, places))
        setup.progress.say(f"{'start':10} {job.name:12} on {', '.join(map(str, places))}")
        try:
            with held_back():
                running = Running(job, places, given, setup.grace, (self.end_of_pipe,))
                self.running[index] = running
                self.tell_guard(running.process.pid)
        except OSError as error:
            raise RuntimeError(f"{job.name} cannot be started ({error.strerror}).") from None

    def tell_guard(self, number: int) -> None:
        assert self.guard.stdin  # a pipe
        self.guard.stdin.write(f"{number}\n".encode())
        self.guard.stdin.flush()

    def collect(self) -> None:
        """Read what the workers said, and note those that have ended."""
        while select.select([self.pipe], [], [], 0)[0]:
            for line in os.read(self.pipe, 65536).decode().splitlines():
                index, event, at = line.split()
                event, _, status = event.partition("=")
                if event == "raised":
                    self.raised[int(index)] = float(at)
                    self.status[int(index)] = status
                    self.failed.setdefault(int(index), float(at))
                elif event == "waits":
                    self.waits[int(index)] = float(at)
                    self.came.add(int(index))
                elif event == "goes":
                    self.waits.pop(int(index), None)
                    self.through[int(index)] = float(at)
        for i, running in list(self.running.items()):
            over = running.over()
            if running.process.returncode is not None and i not in self.left:
                self.note(i, running)
            if over:
                with held_back():  # so that a worker ends once
                    self.finish(i)

    def note(self, index: int, running: Running) -> None:
        """Note that a worker's process has ended, and whether it failed by itself.

        A large process takes a while to die: the others may notice it before its end can be seen.
        """
        now, code = time.monotonic(), running.process.returncode
        self.left[index] = now
        self.waits.pop(index, None)
        told = running.status in ("stopped", "timed out")
        asked = told and (code >= 0 or code == -signal.SIGTERM)
        killed = running.kill_at is not None and now >= running.kill_at
        if code and not asked and not killed:
            self.failed.setdefault(index, now)

    def watch(self) -> None:
        """End all workers when one has failed, or a time is over."""
        now = time.monotonic()
        for index, at in self.raised.items():  # it may hang in what it does at its end
            if index in self.running and now > at + self.setup.grace:
                self.running[index].end("failed")
        if self.states or self.ending:
            return
        late = [index for index, since in self.waits.items() if now > since + self.setup.startup]
        if self.failed:
            self.states = {i: _state(run.process.pid) for i, run in self.running.items()}
            self.states |= dict.fromkeys(self.failed, "-")
            self.end("stopped")
        elif late:
            self.ending, self.missing = stuck(self, min(late))
            self.end("timed out")
        elif self.setup.end is not None and now > self.setup.end:
            self.ending = "The time limit is over."
            self.end("timed out")

    def end(self, status: str, all_of_them: bool = False) -> None:
        for index, running in self.running.items():
            if all_of_them or index not in self.raised:
                running.end(status)

    def finish(self, index: int) -> None:
        running = self.running.pop(index)
        with contextlib.suppress(OSError):  # the guard was killed
            self.tell_guard(-running.process.pid)
        job = running.ended(time.monotonic() - self.setup.began)
        tail = [line[:WIDTH] for line in last(without_noise(end_of(job.log)), TAIL)]
        with contextlib.suppress(OSError):  # the folder was removed
            if job.returncode and not shutil.disk_usage(job.log.parent).free:
                tail.append("(The disk of the logs is full: what it said after that is lost.)")
        self.jobs[index] = job = replace(job, tail="\n".join(tail))
        self.setup.progress.say(f"{job.status:10} {job.name:12} {job.seconds:.1f} s")

    def result(self, ending: str) -> Attempt:
        first, why = self.missing, ending
        if not ending and self.failed:
            first, why = verdict(self)
            if first in self.jobs and self.jobs[first].status == "stopped":
                self.jobs[first] = replace(self.jobs[first], status="failed")
        all_through = self.through.keys() == self.setup.shares.keys()
        return Attempt(
            self.number, self.addresses, tuple(self.jobs[i] for i in sorted(self.jobs)), first, why,
            time.monotonic() - self.began,
            max(self.through.values()) - self.began if all_through else None,
        )  # fmt: skip


def _state(pid: int) -> str:
    """Return the letter that Linux has for what a process does; "?" where it is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
