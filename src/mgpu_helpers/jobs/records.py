"""What became of earlier jobs: `jobs.jsonl` in the folder of the logs, a line for each that ended.

A line is written whole, as its job ends. Only a crash of the machine or a full disk leaves half a
line, at the end; it is not read, and the next line takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from mgpu_helpers.jobs.job import Job
from mgpu_helpers.jobs.process import end_of

Done = dict[tuple[tuple[str, ...], str], list[dict[str, Any]]]  # by command and folder

FILE = "jobs.jsonl"
KEYS: dict[str, type | tuple[type, ...]] = {  # what a later run reads
    "name": str, "status": str, "command": list, "folder": str, "log": str, "kind": str,
    "devices": list, "started_at": str, "seconds": (int, float),
}  # fmt: skip
START = b'{"name": '  # of each line


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none where it is not there, a RuntimeError if it is no such."""
    elsewhere = "move it away, or choose another folder with logs=..."
    if not os.path.lexists(path):
        return []
    try:
        if not path.is_file():  # a pipe or a device would not end
            raise RuntimeError(f"{path} is not a file: {elsewhere}")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RuntimeError(f"{path} cannot be read ({error.strerror}): {elsewhere}") from None
    rows = []
    for i, line in enumerate(lines, 1):
        row = _row(line)
        if row:
            rows.append(row)
        elif line and not (i == len(lines) and START.startswith(line[: len(START)])):
            raise RuntimeError(f"{path} is not what a runner wrote, in line {i}: {elsewhere}")
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None if it is half a line or none of a runner's."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and all(isinstance(row.get(key), KEYS[key]) for key in KEYS)
    return row if whole else None


def append(path: Path, job: Job) -> None:
    """Add a line for a job that ended; an OSError where it cannot be written."""
    line = json.dumps(job.row()).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # this disk has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            half = file.read().rpartition(b"\n")[2]
            if _row(half):
                line = b"\n" + line
            else:
                file.truncate(size - len(half))
        file.write(line)
        os.fsync(file.fileno())


def done(rows: list[dict[str, Any]]) -> Done:
    """Sort the rows of jobs that are done by command and working directory, the newest last.

    When the same command wrote the same log again, its newest row is the one that counts.
    """
    newest: dict[Any, dict[str, Any]] = {}
    for row in rows:
        key = tuple(row["command"]), row["folder"]
        newest.pop((key, row["log"]), None)
        newest[key, row["log"]] = row
    found = defaultdict(list)
    for (key, _), row in newest.items():
        if row["status"] == "done":
            found[key].append(row)
    return found


def earlier(name: str, command: tuple[str, ...], folder: Path, row: dict[str, Any]) -> Job:
    """Make a job of a row, done before; its log is in the folder, wherever that was then."""
    log = folder / Path(row["log"]).name
    return Job(
        name, command, row["kind"], log, tuple(row["devices"]), status="done before", returncode=0,
        tail="\n".join(end_of(log)[-10:]), started_at=row["started_at"], seconds=row["seconds"],
        result={key[7:]: value for key, value in row.items() if key.startswith("result_")},
        folder=row["folder"],
    )  # fmt: skip
