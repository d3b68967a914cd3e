"""How a job starts as a process, and how it ends with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from mgpu_helpers._processes import keeper
from mgpu_helpers._processes.job import Job, end_of, reported
from mgpu_helpers._processes.locks import Place

GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class Running:
    """A job that runs, and how far its end is."""

    def __init__(
        self, job: Job, places: Sequence[Place], environment: dict[str, str],
        inherited: Sequence[int], grace: float | None,
    ) -> None:  # fmt: skip
        """Start the job, which inherits open files; an OSError or ValueError where it cannot be."""
        held = [*inherited, *(fd for place in places for fd in place.held)]
        with open(job.log, "wb") as log, pinned(places):
            self.process = subprocess.Popen(
                job.command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=held,
            )  # fmt: skip
        self.job = replace(job, pid=self.process.pid)
        self.places = places
        self.grace = GRACE if grace is None else grace
        self.status: str | None = None  # what it will be; None while it runs undisturbed
        self.kill_at: float | None = None  # on the clock of time.monotonic

    def end(self, status: str) -> None:
        """Ask the job and its children to end, once."""
        if self.status is None:
            self.status = status
            self.kill_at = time.monotonic() + self.grace
            keeper.send(-self.process.pid, signal.SIGTERM)

    def over(self) -> bool:
        """Say whether nothing of the job runs any more; move its end on where something does."""
        code = self.process.poll()
        if code is not None:
            self.end("failed" if code else "done")
            if not keeper.group_lives(self.process.pid):
                return True
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            keeper.send(-self.process.pid, signal.SIGKILL)
        return False

    def kill(self) -> None:
        """End the job and its children at once."""
        keeper.send(-self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self, now: float) -> Job:
        """Give the job as it ended."""
        return replace(
            self.job, end=now, seconds=now - (self.job.start or 0.0),
            status=self.status or "stopped", returncode=self.process.returncode,
            tail="\n".join(end_of(self.job.log)[-10:]), result=reported(self.job.log),
        )  # fmt: skip


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back the signals that end a runner while a job starts, so that no job is lost."""
    late: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                before[number] = signal.signal(number, lambda number, _: late.append(number))
    try:
        yield
    finally:
        for blocked, handler in before.items():
            signal.signal(blocked, handler)
        for again in late:
            signal.raise_signal(again)


@contextlib.contextmanager
def pinned(places: Sequence[Place]) -> Iterator[None]:
    """Pin this thread to the cores meanwhile: what it starts inherits that."""
    if places[0].kind != "core" or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {place.number for place in places})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # those cores were taken away; the job runs
            os.sched_setaffinity(0, before)


def as_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt: a job must not outlive its runner."""

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    for ends in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ends) is not signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(ends, stop)


def stat(pid: int | str) -> list[str]:
    """Return Linux's letter for what a process does, its parent and group; "?" if not known."""
    return keeper.stat(pid)[:3] or ["?"] * 3


def seconds(what: str, value: float | None) -> float | None:
    """Return a time, or None for none; raise ValueError if it is neither that nor above 0."""
    if value is not None and not value > 0:  # also NaN, which no time is ever over
        raise ValueError(f"{what}={value!r} is no time: give seconds above 0.")
    return value
