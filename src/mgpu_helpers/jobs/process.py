"""How a job starts as a process, and how it ends with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from mgpu_helpers.jobs.job import Job
from mgpu_helpers.jobs.locks import Place

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TAIL = 64 * 1024  # bytes of a log that are read for its last lines
RESULT = 64 * TAIL  # and for its result, which may be long: every loss of a training


class Running:
    """A job that runs, and how far its end is."""

    def __init__(
        self,
        job: Job,
        places: list[Place],
        environment: dict[str, str],
        grace: float | None = None,
        pipes: tuple[int, ...] = (),
    ) -> None:
        """Start the job, which inherits the pipes; an OSError or ValueError where it cannot be."""
        held = [*pipes, *(fd for place in places for fd in place.held)]
        with open(job.log, "wb") as log, _pinned(places):
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
            _signal_group(self.process.pid, signal.SIGTERM)

    def over(self) -> bool:
        """Say whether nothing of the job runs any more; move its end on where something does."""
        code = self.process.poll()
        if code is not None:
            self.end("failed" if code else "done")
            if not _group_lives(self.process.pid):
                return True
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            _signal_group(self.process.pid, signal.SIGKILL)
        return False

    def kill(self) -> None:
        """End the job and its children at once."""
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self, now: float) -> Job:
        """Give the job as it ended."""
        lines = end_of(self.job.log)
        return replace(
            self.job, end=now, seconds=now - (self.job.start or 0.0),
            status=self.status or "stopped",
            returncode=self.process.returncode, tail="\n".join(lines[-10:]),
            result=_reported(end_of(self.job.log, RESULT)),
        )  # fmt: skip


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back the signals that end a runner while a job starts, so that no job is lost."""
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for blocked, handler in before.items():
            signal.signal(blocked, handler)
        for late in came:
            signal.raise_signal(late)


@contextlib.contextmanager
def _pinned(places: list[Place]) -> Iterator[None]:
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

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(number, stop)


def end_of(log: Path, size: int = TAIL) -> list[str]:
    """Return the lines at the end of a log; none where it cannot be read."""
    try:
        if not log.is_file():  # a pipe or a device would not end
            return []
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode(errors="replace").splitlines()
    except OSError:
        return []


def _reported(lines: list[str]) -> dict[str, Any]:
    """Return the last line that is a JSON object; {} where there is none.

    Not only the very last line: libraries say things at exit. NaN becomes None, as JSON has none.
    """
    for line in reversed(lines):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(line, parse_constant=lambda name: None)
    return {}


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False where there is nobody to get it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_lives(group: int) -> bool:
    """Say whether a process of the group runs; one that ended and waits to be read does not."""
    if not _signal_group(group, 0):
        return False
    if not Path("/proc/self/stat").exists():
        return True
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended since
            text = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            state, _, its_group = text.rpartition(")")[2].split()[:3]
            if its_group == str(group) and state not in "ZX":
                return True
    return False
