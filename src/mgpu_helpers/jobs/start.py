"""`run`: what is asked for is checked and named, and then a queue runs it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from mgpu_helpers._formatting import whole_number
from mgpu_helpers._processes import locks
from mgpu_helpers._processes.job import Command, Job, log_folder
from mgpu_helpers._processes.pool import chosen
from mgpu_helpers._processes.process import seconds
from mgpu_helpers.jobs.queue import Queue
from mgpu_helpers.jobs.records import Report
from mgpu_helpers.jobs.rows import Rows, earlier, mark, refusal
from mgpu_helpers.jobs.sweep import numbered


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
    them. `free` is how many devices are used at a time, the freest first; None uses all. `names`
    that come twice are numbered.

    GPUs on which other people's processes compute, or of which less than a tenth of the memory is
    free, are left alone, and one line names them: `nvml.Gpu.others` says what counts. The runner
    looks before each job, comes back to a GPU that is free again, and waits where all are in use.
    With busy=True, or `devices` that are named, it does not look.

    A job sees its GPUs only, or is pinned to its cores; MGPU_JOB_DEVICE tells it which. It is ended
    after time_limit seconds: SIGTERM to it and its children, SIGKILL 5 s later. What a job
    leaves running when it ends is ended in the same way, so that the device is free; on Linux also
    a child with a session of its own. Output goes to one file a job in the folder `logs`, over
    the one of the last run. While another runner or its jobs write there, the names of the files
    have a number, as in `01_train.4711.log`.

    A failure does not stop the others. Ctrl-C or an exception here ends all jobs; the exception
    that is raised carries the report as `.report`. On a terminal the last line says what is left.

    As each job starts, a line of JSON about it is added to `jobs.jsonl` in the folder of the logs,
    with the status "running", who runs it and where, and as it ends another with the same `run`;
    `Report` names the columns. A RuntimeError says that they cannot be written, as on a full
    disk: then nothing more starts, and nothing of what has ended is lost. A job adds columns of its
    own by printing a JSON object on a line of its output, `print(json.dumps({"loss": loss}))`; the
    last such line counts, in the last 4 MB. With
    skip_done a command that is done by that file, in the same working directory, is not run again,
    whatever its name and place; each success is for one job. A command that runs is waited for: one
    of another runner, with which this one shares the work, or one whose runner was killed, which
    ends with this one. Edited scripts or a new environment are not noticed.

    Devices are locked against other runners, of other users too, that use the same temporary
    folder: a job with a device to itself against all of them, one that shares against those that
    do not, and per_device at a time. A job inherits the lock. If the runner is killed, its jobs go
    on, each under a small process that notes how it ends, and their devices stay locked until they
    have ended. `lsof /tmp/mgpu-jobs/*` lists the processes that hold a lock.

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
    words = _words(commands)
    titles = numbered([_title(each) for each in words] if names is None else list(map(str, names)))
    per_device = whole_number("per_device", per_device, "a number of jobs", 1)
    kind, pool = chosen(devices)
    what = "a number of devices"
    most = None if free is None else whole_number("free", free, what, 1, most=len(pool))
    each = whole_number("devices_each", devices_each, what, 1, most=most or len(pool))
    if each > 1 and (per_device > 1 or any(str(uuid).startswith("MIG-") for uuid in pool.values())):
        raise ValueError(
            f"devices_each={each}, but a job with several devices shares none of them, with "
            f"per_device={per_device}, and of MIG devices CUDA gives a process one: leave it at 1."
        )
    seconds("time_limit", time_limit)
    try:
        folder = log_folder(logs)
        held = os.open(folder, os.O_RDONLY)  # a job inherits it, and with it the lock
    except OSError as error:
        raise refusal(logs, error) from None
    rows = Rows(folder)
    try:
        with rows.locked():
            rows.settle()
        alone = locks.lock_logs(held)
        jobs, taken = _jobs(titles, words, kind, rows, skip_done, alone)
        queue = Queue(
            jobs, taken, kind, pool, per_device, each, most, devices is None and not busy,
            time_limit, rows, skip_done, held, progress,
        )  # fmt: skip
        if not alone:
            text = f"named *.{os.getpid()}.log: others write to {folder}"
            queue.say(f"{'logs':10} {text}")
        return queue.run()
    finally:
        rows.close()
        os.close(held)


def _words(commands: Sequence[Command]) -> list[tuple[str, ...]]:
    if any(isinstance(command, (str, bytes)) for command in commands):
        raise TypeError(
            f"commands={commands!r} is not a list of commands, which are lists themselves: use "
            '[[sys.executable, "a.py"], [sys.executable, "b.py"]].'
        )
    words = [tuple(os.fsdecode(word) for word in command) for command in commands]
    if not words or not all(words):
        raise ValueError(f"commands={commands!r}: there is none, or one of them is empty.")
    return words


def _title(command: tuple[str, ...]) -> str:
    """Name a job after its script, or else its program."""
    scripts = (Path(word).stem for word in command if word.endswith((".py", ".sh")))
    return next(scripts, Path(command[0]).name)


def _jobs(
    names: list[str], commands: list[tuple[str, ...]], kind: str, rows: Rows, skip_done: bool,
    alone: bool,
) -> tuple[list[Job], set[str]]:  # fmt: skip
    """Make the jobs, and list the runs that stand for those that are done and keep their logs."""
    done, here = rows.done() if skip_done else {}, os.getcwd()
    stay = [row for each in done.values() for row in each] + list(rows.running.values())
    kept = {Path(row["log"]).name for row in stay}
    jobs, taken, folder = [], set(), rows.folder
    for i, (name, command) in enumerate(zip(names, commands, strict=True), 1):
        if done.get((command, here)):
            row = done[command, here].pop()
            taken.add(mark(row))
            jobs.append(earlier(name, command, folder, row))
            continue
        stem = f"{i:02d}_" + re.sub(r"[^\w.,=-]+", "_", name)[:100]
        # Where another runner writes to the folder, this one's number is in the names of its logs.
        numbers = (f".{n}" for n in itertools.count(2 if alone else os.getpid()))
        files = (f"{stem}{number}.log" for number in itertools.chain([""] * alone, numbers))
        log = next(folder / file for file in files if file not in kept)
        jobs.append(Job(name, command, kind, log, folder=here))
    return jobs, taken
