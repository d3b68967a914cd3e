"""A job under a keeper, which this runner has started, or which one that was killed has left."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mgpu_helpers._processes import keeper, locks, process
from mgpu_helpers._processes.job import Job
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.process import Running
from mgpu_helpers.jobs.rows import OWN, Row, Rows, boot, refusal, since

# Compiled, where it is: that saves half of its start.
KEEPER = next(filter(os.path.exists, (getattr(keeper, "__cached__", ""), keeper.__file__)))
LATE = 2.0  # seconds after which the runner kills what its keeper should have, then the keeper


def marks(pid: int) -> Row:
    """Give what a running row says of who keeps the job and who runs it, in the order of OWN."""
    here, me = socket.gethostname(), os.getpid()
    return dict(zip(OWN, (here, boot(), pid, since(pid), me, since(me)), strict=True))


class Kept(Running):
    """A job that this runner has started, as its keeper tells of it."""

    stuck: Sequence[int] = ()  # the processes for which its keeper waited, until that was killed

    def __init__(
        self, job: Job, places: Sequence[Place], environment: dict[str, str],
        inherited: Sequence[int], rows: Rows,
    ) -> None:  # fmt: skip
        """Start the job, with the rows locked; what has no row does not run."""
        words = [os.fsencode(word) for word in job.command]
        if any(b"\0" in word for word in words):
            raise ValueError("A word of the command has a null byte, and no program can read it.")
        held = [*inherited, *(fd for place in places for fd in place.held)]
        self.grace = process.GRACE
        try:
            log = open(job.log, "wb")
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):  # of this log only
                raise ValueError(str(refusal(job.log, error))) from None
            raise refusal(job.log, error) from None
        with log, process.pinned(places):
            run, fd = rows.made()
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", KEEPER, str(fd), str(self.grace)],
                    env=environment, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, pass_fds=[fd, *held],
                )  # fmt: skip
            except OSError as error:
                rows.status_file(run).unlink(missing_ok=True)
                raise ValueError(
                    f"No process can be started ({error.strerror}): look at `ulimit -a` and the "
                    "memory that is left."
                ) from None
            finally:
                locks.close(fd)
        pipe = self.process.stdin
        assert pipe
        job = replace(job, pid=self.process.pid, status="running")
        try:
            with pipe:
                rows.add(job.row() | {"run": run} | marks(self.process.pid))
                text = b"".join(word + b"\0" for word in words)
                pipe.write(b"%d %d\n%s" % (len(text), len(words), text))
        except BrokenPipeError:  # somebody has killed the keeper
            pass
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.job, self.places, self.run, self.rows = job, places, run, rows
        self.status: str | None = None
        self.kill_at: float | None = None

    def has_ended(self) -> bool:
        """Say whether the job itself has ended; what it left running may run yet."""
        return self.process.poll() is not None or self.rows.told(self.run) is not None

    def end(self, status: str) -> None:
        """Ask the job and its children to end, once, by its keeper, which kills them if need be."""
        if self.status is None and not self.has_ended():
            self.status = status
            self.kill_at = time.monotonic() + self.grace + LATE
            keeper.send(self.process.pid, signal.SIGTERM)

    def over(self) -> bool:
        """Say whether nothing of the job runs any more."""
        now = time.monotonic()
        if self.process.poll() is None:
            if self.kill_at is None and self.has_ended():
                self.kill_at = now + self.grace + LATE
            if self.kill_at is not None and now >= self.kill_at:
                pid = self.process.pid
                keeper.kill_below(pid)
                if now >= self.kill_at + LATE and not self.stuck:
                    self.stuck = [child for child, _ in keeper.below(pid)] or [pid]
                    keeper.send(pid, signal.SIGKILL)
            return False
        if self.rows.told(self.run) is None:  # somebody has killed the keeper
            keeper.kill_below(self.process.pid)
        return True

    def kill(self) -> None:
        """End the job and its children at once."""
        end = time.monotonic() + self.grace + LATE
        while self.process.poll() is None and time.monotonic() < end:
            keeper.kill_below(self.process.pid)
            time.sleep(0.01)
        if self.process.poll() is None:
            keeper.send(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self, now: float) -> Job:
        """Give the job as it ended."""
        told, code = self.rows.told(self.run), self.process.returncode
        if told:  # not how its keeper has ended
            code = None if told[0] == "-" else int(told[0])
        self.status = self.status or ("done" if code == 0 else "failed")
        return replace(super().ended(now), returncode=code)


class _Orphan:
    """The process of a keeper that has lost its runner, as far as others can see it."""

    def __init__(self, row: Row, rows: Rows) -> None:
        self.row, self.rows, self.pid = row, rows, int(row["pid"])
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and not self.rows.kept(self.row):
            self.returncode = 0  # or any: `Queue.finish` asks the row
        return self.returncode

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)


class Adopted(Kept):
    """A job of a runner that was killed: this one waits for it, and ends it as its own."""

    def __init__(self, job: Job, row: Row, rows: Rows, now: float) -> None:
        """Take the job over, with the rows locked."""
        mine = row | {name: value for name, value in marks(row["pid"]).items() if "runner" in name}
        rows.add(mine)
        rows.mine(row["run"])
        ran = datetime.now(UTC) - datetime.fromisoformat(row["started_at"])
        self.job = replace(job, start=now - ran.total_seconds(), pid=row["pid"])
        self.places = ()
        self.run, self.rows, self.row = row["run"], rows, mine
        self.process = _Orphan(mine, rows)  # type: ignore[assignment]  # all that is asked of one
        self.grace, self.status, self.kill_at = process.GRACE, None, None

    def ended(self, now: float) -> Job:
        """Give the job as it was: `Queue.finish` makes one of its row."""
        return self.job
