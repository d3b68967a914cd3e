"""The rows of `jobs.jsonl`, which all runners of a folder share: who runs what, how it ended.

A row with the status `running` is written before a job starts, and another, with the same `run`,
when it has ended. How a job ended stands in `.running/RUN` first, which its keeper writes and
holds locked while it lives. So nothing is lost with a runner that is killed: the next one finds
what goes on, and writes the rows that are missing.

A row is written whole or not at all. Only a crash of the machine leaves half a line; it is not
read, and the next begins below it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mgpu_helpers._processes import keeper, locks
from mgpu_helpers._processes.job import COLUMNS, Job, end_of, reported

Row = dict[str, Any]
Key = tuple[tuple[str, ...], str]  # a command and its folder

FILE = "jobs.jsonl"
RUNNING = ".running"
LATE = 5.0  # seconds in which a runner on another machine writes how its job ended
_mine: set[str] = set()  # runs of which this process will write how they ended
OWN = ("host", "boot", "pid", "pid_started", "runner", "runner_started")  # of a running row


class CannotWrite(RuntimeError):
    """The rows cannot be written, so that nothing more may start."""


def boot() -> str:
    """Name what process numbers are of: a start of a machine, and a container's numbers in it."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}-{space}"
    except OSError:
        return ""


def since(pid: int) -> str | None:
    """Say when a process has started, in the system's ticks; None where that is not known."""
    fields = keeper.stat(pid)
    return fields[19] if len(fields) > 19 else None


def lives(pid: int, started: str | None) -> bool:
    """Say whether a process of this machine is there, and the same one, and has not ended."""
    fields = keeper.stat(pid)
    if fields or started:
        return fields[19:20] == [started] and fields[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def refusal(path: str | os.PathLike[str], error: OSError) -> CannotWrite:
    """Say that a file cannot be written, and what to do."""
    remedy = "see that it is yours to write, or name another folder with logs=DIR"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "make room, or name another folder with logs=DIR"
    elif error.errno in (errno.EISDIR, errno.ESPIPE, errno.EEXIST, errno.ENOTDIR, errno.ENXIO):
        remedy = "move it away, or name another folder with logs=DIR"
    return CannotWrite(f"{path} cannot be written ({error.strerror}): {remedy}.")


class Rows:
    """The rows of a folder of logs, as far as they have been read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        self.by_key: dict[Key, dict[str, Row]] = {}  # the newest of each log, the newest last
        self.running: dict[str, Row] = {}  # by run
        self.ended: dict[str, Row] = {}
        self.runs: set[str] = set()  # of this runner
        self.read_to, self.inode = 0, 0
        self.dead_since: dict[str, float] = {}  # jobs of other machines, by time.monotonic
        self.file: Any = None  # while it is locked
        self.exclusive = True  # its disk has locks

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file against other runners, and read what they have written meanwhile."""
        if self.file:  # already
            yield
            return
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.file = open(locks.own(fd), "r+b", buffering=0, closefd=False)
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX)
            except OSError:  # this disk has no locks
                self.exclusive = False
            self.read()
        except OSError as error:
            self.unlock()
            raise refusal(self.path, error) from None
        try:
            yield
        finally:
            self.unlock()

    def unlock(self) -> None:
        if self.file:
            locks.close(self.file.fileno())
            self.file = None

    def read(self) -> None:
        """Read the lines that have come; those that are no runner's are passed over."""
        about = os.fstat(self.file.fileno())
        if not stat.S_ISREG(about.st_mode):  # its end may never come
            raise OSError(errno.ESPIPE, "it is no file")
        if about.st_ino != self.inode or about.st_size < self.read_to:
            self.read_to, self.inode = 0, about.st_ino
        self.file.seek(self.read_to)
        text = self.file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        for line in whole.split(b"\n"):
            with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
                row = json.loads(line)
                self.note({name: row[name] for name in COLUMNS} | row)

    def note(self, row: Row) -> None:
        of_key = self.by_key.setdefault((tuple(row["command"]), row["folder"]), {})
        log = str(row["log"])
        of_key.pop(log, None)
        of_key[log] = row
        if row["status"] == "running":
            self.running[str(row["run"])] = row
        elif "run" in row:
            self.running.pop(str(row["run"]), None)
            self.ended[str(row["run"])] = row

    def add(self, row: Row) -> None:
        """Write a row, with the file locked; CannotWrite where there is no room, or no right."""
        number = self.file.fileno()
        try:
            size = os.fstat(number).st_size
            self.file.seek(max(0, size - 1))
            line = b"\n" * (self.file.read() not in (b"", b"\n")) + json.dumps(row).encode() + b"\n"
            try:
                if self.file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(number)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(number, size)
                raise
            self.read()
        except OSError as error:
            raise refusal(self.path, error) from None

    def status_file(self, run: str) -> Path:
        return self.folder / RUNNING / run

    def made(self) -> tuple[str, int]:
        """Make the file of a new run, locked; return the run and the open file."""
        folder = self.folder / RUNNING
        run = f"{time.time_ns():x}-{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = locks.own(os.open(folder / run, flags, 0o666))
            try:
                os.write(fd, b" " * (keeper.SIZE - 1) + b"\n")
                locks.lock_logs(fd)
            except BaseException:
                locks.close(fd)
                self.status_file(run).unlink(missing_ok=True)
                raise
            self.mine(run)
        except OSError as error:
            raise refusal(folder, error) from None
        return run, fd

    def mine(self, run: str) -> None:
        """Note that this process will write how a run ended."""
        self.runs.add(run)
        _mine.add(run)

    def close(self) -> None:
        """Leave what was not written to others."""
        _mine.difference_update(self.runs)

    def told(self, run: str) -> tuple[str, float] | None:
        """Read how a job ended: its status, "-" if it did not start, and its seconds."""
        try:
            status, seconds = self.status_file(run).read_text().split()[:2]
            return status, float(seconds)
        except (OSError, ValueError):
            return None

    def kept(self, row: Row) -> bool:
        """Say whether the keeper of a running row lives: by its lock, or by its number."""
        there = False
        with contextlib.suppress(OSError), open(self.status_file(row["run"])) as file:
            there = True
            return not locks.lock(file.fileno(), fcntl.LOCK_SH)
        # No file, or a disk without locks: of another machine nothing is known then.
        return lives(row["pid"], row["pid_started"]) if self.is_here(row) else there

    @staticmethod
    def is_here(row: Row) -> bool:
        """Say whether the process numbers of a row are of this machine, as it runs now."""
        return (row["host"], row["boot"]) == (socket.gethostname(), boot())

    def runner_lives(self, row: Row) -> bool:
        """Say whether somebody else will write how the job of a row has ended."""
        if self.is_here(row):
            me = row["runner"] == os.getpid()
            return row["run"] in _mine if me else lives(row["runner"], row["runner_started"])
        if self.kept(row):
            return True
        return time.monotonic() < self.dead_since.setdefault(row["run"], time.monotonic()) + LATE

    def settle(self) -> None:
        """Write what is missing of jobs that ended without a runner, with the file locked."""
        for run, row in list(self.running.items()):
            with contextlib.suppress(KeyError, TypeError):  # it is no runner's
                if not self.runner_lives(row) and not self.kept(row):
                    self.end(run, self.ended_row(row))
        if self.exclusive:  # what a runner left that was killed before it wrote a row
            with contextlib.suppress(OSError):
                for name in os.listdir(self.folder / RUNNING):
                    if name not in self.running:
                        self.status_file(name).unlink(missing_ok=True)

    def ended_row(self, row: Row, status: str | None = None) -> Row:
        """Give the row of a job that ended under its keeper; `status` if it was ended."""
        told = self.told(row["run"])
        code = None if told is None or told[0] == "-" else int(told[0])
        if status is None:  # without a word, the keeper and so the job was killed
            status = "stopped" if told is None else "failed" if code or told[0] == "-" else "done"
        found = reported(self.folder / Path(row["log"]).name)
        plain = {name: value for name, value in row.items() if name not in OWN}
        seconds = None if told is None else told[1]
        plain |= {"status": status, "returncode": code, "seconds": seconds}
        return plain | {f"result_{key}": value for key, value in found.items()}

    def end(self, run: str, row: Row) -> None:
        """Write how a job ended, with the file locked, unless somebody has."""
        if run not in self.ended:
            self.add(row | {"run": run})
        self.status_file(run).unlink(missing_ok=True)

    def done(self) -> dict[Key, list[Row]]:
        """Sort the rows of jobs that are done by command and working directory, the newest last.

        When the same command wrote the same log again, its newest row is the one that counts.
        """
        return {key: [row for row in rows.values() if row["status"] == "done"]
                for key, rows in self.by_key.items()}  # fmt: skip


def mark(row: Row) -> str:
    """Name a row's run; those of older versions have none."""
    return str(row.get("run") or f"{row['log']} {row['started_at']}")


def earlier(name: str, command: tuple[str, ...], folder: Path, row: Row) -> Job:
    """Make a job of a row that another run has; its log is in the folder, wherever that was."""
    log = folder / Path(row["log"]).name
    status, code = row["status"], row["returncode"]
    if status == "done":
        status, code = "done before", 0
    return Job(
        name, command, row["kind"], log, tuple(row["devices"]), status=status, returncode=code,
        tail="\n".join(end_of(log)[-10:]), started_at=row["started_at"], seconds=row["seconds"],
        result={key[7:]: value for key, value in row.items() if key.startswith("result_")},
        folder=row["folder"],
    )  # fmt: skip
