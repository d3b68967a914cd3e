"""`run`: give each command a device to itself, after a look at what was asked for."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mgpu_helpers.jobs import records
from mgpu_helpers.jobs.job import Command, Job, Report
from mgpu_helpers.jobs.pool import chosen
from mgpu_helpers.jobs.queue import Queue
from mgpu_helpers.jobs.settings import holding, log_folder, seconds
from mgpu_helpers.jobs.sweep import numbered
from mgpu_helpers.wording import counted, whole_number


def run(
    commands: Sequence[Command],
    *,
    devices: Sequence[int] | None = None,
    per_device: int = 1,
    devices_each: int = 1,
    free: int | None = None,
    busy: bool = False,
    time_limit: float | None = None,
    logs: str | os.PathLike[str] = "logs",
    names: Sequence[str] | None = None,
    skip_done: bool = False,
    progress: bool = True,
) -> Report:
    """Give each command a device to itself, in order, as devices become free.

    `devices` are nvidia-smi's numbers of GPUs, or numbers of cores where there is no GPU; None
    takes all that are `allowed`. per_device jobs share a device, or each job has devices_each of
    them. `free` is how many devices are used at a time, the freest first; None uses all.

    GPUs on which other people's processes compute, or of which less than a tenth of the memory is
    free, are left alone, and one line names them: `nvml.Gpu.others` says what counts. The runner
    looks before each job, comes back to a GPU that is free again, and waits where all are in use.
    With busy=True, or `devices` that are named, it does not look.

    A job sees its GPUs only, or is pinned to its cores; MGPU_JOB_DEVICE tells it which. It is ended
    after time_limit seconds: SIGTERM to it and its children, SIGKILL 5 s later. What a job
    leaves running when it ends is ended in the same way, so that the device is free; a child that
    starts a session of its own escapes. Output goes to one file a job in the folder `logs`, over
    the one of the last run. While another runner or its jobs write there, the names of the files
    have a number, as in `01_train.4711.log`.

    A failure does not stop the others. Ctrl-C or an exception here ends all jobs; the exception
    that is raised carries the report as `.report`. On a terminal the last line says what is left.

    As each job ends, a line of JSON about it is added to `jobs.jsonl` in the folder of the logs;
    `Report.save` names the columns. A job adds its own by printing a JSON object on a line of its
    output, `print(json.dumps({"loss": loss}))`; the last such line counts, in the last 4 MB. With
    skip_done a command that is done by that file, in the same working directory, is not run again,
    whatever its name and place; each success is for one job. Edited scripts or a new environment
    are not noticed.

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
    >>> again = run([[sys.executable, "-c", p] for p in programs], skip_done=True, progress=False)
    >>> again.ok, again[0].status
    (True, 'done before')
    """
    if "MGPU_JOB_DEVICE" in os.environ:
        raise RuntimeError(
            f"jobs.run was called inside a job, on {os.environ['MGPU_JOB_DEVICE']}, and would wait "
            "for ever for that device: start the commands with subprocess.run."
        )
    asked = _checked_commands(commands)
    called = _checked_names(names, asked)
    per_device = whole_number("per_device", per_device, "a number of jobs", 1)
    if time_limit is not None:
        seconds("time_limit", time_limit, also=", or leave it out for no limit")
    kind, pool = chosen(devices)
    free = _checked_free(free, kind, pool)
    devices_each = _checked_each(devices_each, per_device, kind, pool, free)
    folder = log_folder(logs)
    record = folder / records.FILE
    rows = records.read(record)
    done = records.done(rows) if skip_done else {}
    with holding(folder) as (held, alone):
        queue = Queue(
            _jobs(called, asked, kind, folder, done, alone), kind, pool, per_device=per_device,
            devices_each=devices_each, time_limit=time_limit, progress=progress, record=record,
            held=(held,), most=free, polite=devices is None and not busy,
        )  # fmt: skip
        if not alone:
            queue.say(f"{'logs':10} named *.{os.getpid()}.log: others write to {folder}")
        return queue.run()


def _jobs(
    names: list[str], commands: list[tuple[str, ...]], kind: str, folder: Path, done: records.Done,
    alone: bool,
) -> list[Job]:  # fmt: skip
    """Make the jobs, those as they were that are done; these keep their logs."""
    # Where another runner writes to the folder, this one's number is in the names of its logs.
    first = 2 if alone else os.getpid()
    kept = {Path(row["log"]).name for rows in done.values() for row in rows}
    here = os.getcwd()
    jobs = []
    for i, (name, command) in enumerate(zip(names, commands, strict=True), 1):
        if done.get((command, here)):
            jobs.append(records.earlier(name, command, folder, done[command, here].pop()))
            continue
        stem = f"{i:02d}_{_file_name(name)}"
        numbers = itertools.chain([""] * alone, (f".{n}" for n in itertools.count(first)))
        files = (f"{stem}{number}.log" for number in numbers)
        log = next(folder / file for file in files if file not in kept)
        jobs.append(Job(name, command, kind, log, folder=here))
    return jobs


def _checked_free(free: Any, kind: str, pool: dict[int, str | None]) -> int | None:
    if free is None:
        return None
    free = whole_number("free", free, "a number of devices", 1)
    if free > len(pool):
        raise ValueError(
            f"free={free}, but there {'is' if len(pool) == 1 else 'are'} "
            f"{counted(len(pool), kind)} to choose from: ask for 1 to {len(pool)}."
        )
    return free


def _checked_each(
    each: Any, per_device: int, kind: str, pool: dict[int, str | None], free: int | None
) -> int:
    each = whole_number("devices_each", each, "a number of devices", 1)
    if free is not None and each > free:
        raise ValueError(
            f"devices_each={each} and free={free}: a job would never get its devices; ask for "
            f"free={each} or more."
        )
    if each > len(pool):
        raise ValueError(
            f"devices_each={each}, but there {'is' if len(pool) == 1 else 'are'} "
            f"{counted(len(pool), kind)} to share out: ask for fewer, or name more in devices."
        )
    if each > 1 and per_device > 1:
        raise ValueError(
            f"devices_each={each} and per_device={per_device}: a job with several devices shares "
            "none of them, so leave one of the two at 1."
        )
    if each > 1 and any(str(uuid).startswith("MIG-") for uuid in pool.values()):
        raise ValueError(
            f"devices_each={each}, but these are MIG devices, of which CUDA gives a process one: "
            "leave it at 1."
        )
    return each


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
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(
                f"The name {twice[0]!r} is given twice, and results are kept by name: give each "
                "command a name of its own."
            )
        return names
    found = []
    for command in commands:
        scripts = (word for word in command if word.endswith((".py", ".sh")))
        script = next(scripts, None)
        found.append(Path(script).stem if script else Path(command[0]).name)
    return numbered(found)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.,=-]+", "_", name)[:100]
