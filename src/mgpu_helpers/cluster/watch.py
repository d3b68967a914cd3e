"""What can be seen of a worker from outside: its log grows, its processes read, write and compute.

A worker that hangs may hold Python's lock, so that none of its threads could say so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from mgpu_helpers.cluster.judging import LOGGED

MOST = 2**20  # bytes of a log at a time, so that a worker that prints without end can be ended
# Bytes a second from which on a worker reads or saves: one that waits for the others writes less
# than 100 to wake its own threads.
MOVES = 4096
COMPUTES = 0.1  # of a core, from which on a first call compiles, also beside other work
COMPILES = 10  # times the limit that it may: what waits for a GPU in a loop computes, too


class Watch:
    """One worker's log and processes, and when something was last seen of them."""

    def __init__(self, pid: int, log: Path, show: Callable[[str], None] | None) -> None:
        self.pid, self.show = pid, show
        self.moved = self.looked = time.monotonic()  # when it last went on; when it was asked
        self.compiles: float | None = None  # since when it is in the first call of a function
        self.said = ""  # its last line
        self.begun = b""  # a line without its end yet
        self.bytes, self.cpu = 0, 0.0
        self.file = None
        with contextlib.suppress(OSError):  # the folder was removed
            self.file = open(log, "rb")  # noqa: SIM115  until `close`

    def says(self, event: str, at: float) -> None:
        """Note what the worker says of itself, by cluster/worker.py: it goes on."""
        self.moved = max(self.moved, at)
        if event in ("compiles", "compiled"):
            self.compiles = at if event == "compiles" else None

    def read(self, *, over: bool = False) -> None:
        """Read what the log has more, and show it; at the end also a line without an end."""
        new = self.file.read(MOST) if self.file else b""
        if not new and not over:
            return
        *whole, self.begun = (self.begun + new).split(b"\n")
        if over and self.begun:
            whole, self.begun = [*whole, self.begun], b""
        lines = [line.decode(errors="replace").rstrip("\r") for line in whole]
        lines = [line.rpartition("\r")[2] for line in lines if not LOGGED.match(line)]
        if any(line.strip() for line in lines) or self.begun:
            self.moved = time.monotonic()
            self.said = next((line for line in reversed(lines) if line.strip()), self.said)
        if lines and self.show:
            self.show("\n".join(lines))

    def look(self, limit: float) -> None:
        """Ask Linux what the worker's processes have read, written and computed since."""
        now = time.monotonic()
        if now - self.looked > max(5.0, limit / 2):  # this launcher was stopped, and it perhaps too
            self.moved = now
        seconds = max(now - self.looked, 1e-3)
        before, self.bytes = self.bytes, sum(map(_moved, [self.pid, *_children(self.pid)]))
        had, self.cpu = self.cpu, _computed(self.pid)
        compiling = self.compiles is not None and now < self.compiles + COMPILES * limit
        if abs(self.bytes - before) > MOVES * seconds:  # less than before: a child has ended
            self.moved = now
        if compiling and self.cpu - had > COMPUTES * seconds:
            self.moved = now
        self.looked = now

    def close(self) -> None:
        """Show what is left of the log."""
        if self.file:
            while self.file.read(1):
                self.file.seek(-1, os.SEEK_CUR)
                self.read()
            self.read(over=True)
            self.file.close()
            self.file = None


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in task.read_text().split()]
    return found + [each for child in found for each in _children(child)]


def _moved(pid: int) -> int:
    """Count the bytes that a process has read and written, files in memory and pipes included."""
    try:
        words = Path(f"/proc/{pid}/io").read_text().split()
    except OSError:
        return 0
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return max(counts["rchar:"] + counts["wchar:"], counts["read_bytes:"] + counts["write_bytes:"])


def _computed(pid: int) -> float:
    """Give the seconds of a core that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
