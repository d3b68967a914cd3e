"""`run`: give each command a device to itself, after a look at what was asked for."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mgpu_helpers.jobs.job import Command, Job, Report
from mgpu_helpers.jobs.pool import chosen
from mgpu_helpers.jobs.queue import Queue
from mgpu_helpers.wording import counted, whole_number


def run(
    commands: Sequence[Command],
    *,
    devices: Sequence[int] | None = None,
    per_device: int = 1,
    time_limit: float | None = None,
    logs: str | os.PathLike = "logs",
    names: Sequence[str] | None = None,
    progress: bool = True,
) -> Report:
    """Give each command a device to itself, in order, as devices become free.

    `devices` are nvidia-smi's numbers of GPUs, or numbers of cores where there is no GPU; None
    takes all that are `allowed`. per_device jobs share a device. A job sees its GPU only, or is
    pinned to its core; MGPU_JOB_DEVICE tells it which. It is ended after time_limit seconds:
    SIGTERM to it and its children, SIGKILL 5 s later. What a job leaves running when it ends is
    ended in the same way, so that the device is free; a child that starts a session of its own
    escapes. Output goes to one file a job in the folder `logs`, over the one of the last run.

    A failure does not stop the others. Ctrl-C or an exception here ends all jobs; the exception
    that is raised carries the report as `.report`.

    Devices are locked against other runners, of other users too, that use the same temporary
    folder: a job with a device to itself against all of them, one that shares against those that
    do not, and per_device at a time. A job inherits the lock. If the runner is killed, its jobs go
    on, and their devices stay locked until they have ended. So does the device of a job that
    started a daemon: the lock is free when the daemon ends, or closes the files it inherited.
    `lsof /tmp/mgpu-jobs/*` lists the processes that hold a lock.

    >>> import sys
    >>> programs = ["print(1)", "print(2)", "print(3)"]
    >>> report = run([[sys.executable, "-c", p] for p in programs], progress=False)
    >>> report.ok, [job.tail for job in report]
    (True, ['1', '2', '3'])
    """
    if "MGPU_JOB_DEVICE" in os.environ:
        raise RuntimeError(
            f"jobs.run was called inside a job, on {os.environ['MGPU_JOB_DEVICE']}, and would wait "
            "for ever for that device: start the commands with subprocess.run."
        )
    asked = _checked_commands(commands)
    called = _checked_names(names, asked)
    per_device = whole_number("per_device", per_device, "a number of jobs", 1)
    if time_limit is not None and not (
        isinstance(time_limit, (int, float)) and not isinstance(time_limit, bool) and time_limit > 0
    ):
        raise ValueError(
            f"time_limit={time_limit!r} is no time: give seconds above 0, or None for no limit."
        )
    kind, pool = chosen(devices)
    folder = _log_folder(logs)
    jobs = [
        Job(name, command, kind, folder / f"{i:02d}_{_file_name(name)}.log")
        for i, (name, command) in enumerate(zip(called, asked, strict=True), 1)
    ]
    return Queue(jobs, pool, per_device, time_limit, progress).run()


def _checked_commands(commands: Any) -> list[tuple[str, ...]]:
    example = 'use [[sys.executable, "a.py"], [sys.executable, "b.py"]]'
    if isinstance(commands, (str, bytes, os.PathLike)) or not hasattr(commands, "__iter__"):
        raise TypeError(f"commands is {commands!r}, not a list of commands: {example}.")
    checked = []
    for i, command in enumerate(commands, 1):
        if isinstance(command, (str, bytes, os.PathLike)) or not hasattr(command, "__iter__"):
            raise TypeError(
                f"command {i} is {command!r}, not a list of a program and its arguments: {example}."
            )
        words = []
        for word in command:
            word = os.fspath(word) if isinstance(word, os.PathLike) else word
            if not isinstance(word, str):
                raise TypeError(f"command {i} has {word!r}, which is not text: write str(...).")
            words.append(word)
        if not words:
            raise ValueError(f"command {i} is empty: {example}.")
        checked.append(tuple(words))
    if not checked:
        raise ValueError(f"there are no commands to run: {example}.")
    return checked


def _checked_names(names: Any, commands: list[tuple[str, ...]]) -> list[str]:
    if names is not None:
        names = [names] if isinstance(names, str) else [str(name) for name in names]
        if len(names) != len(commands):
            raise ValueError(
                f"{counted(len(names), 'name')} for {counted(len(commands), 'command')}: "
                "give each command one name, or leave names out."
            )
        return names
    found = []
    for command in commands:
        scripts = (word for word in command if word.endswith((".py", ".sh")))
        script = next(scripts, None)
        found.append(Path(script).stem if script else Path(command[0]).name)
    total, seen = Counter(found), Counter[str]()
    for i, name in enumerate(found):
        if total[name] > 1:
            seen[name] += 1
            found[i] = f"{name}-{seen[name]}"
    return found


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:100]


def _log_folder(logs: str | os.PathLike) -> Path:
    folder = Path(logs).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RuntimeError(
            f"No logs can be written to {str(logs)!r} ({error.strerror}): "
            "choose another folder with logs=..."
        ) from None
    return folder
