"""Scripts shared out over devices: a queue, locks, logs and failures.

Lesson 03 starts two scripts by hand before it uses this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mgpu_helpers import devices as _devices
from mgpu_helpers import nvml, visible
from mgpu_helpers.wording import counted, whole

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
GLANCE = 0.02  # seconds between two looks at the running jobs
RETRY = 0.2  # seconds between two tries for a device that somebody else holds
TAIL = 64 * 1024  # bytes of a log that are read for its last lines

Command = Sequence[str | os.PathLike]


@dataclass(frozen=True)
class Job:
    """A command and what became of it; times in seconds since the run began."""

    name: str
    command: tuple[str, ...]
    device: int | None  # nvidia-smi's number, or a core's; None if it never started
    kind: str  # "GPU" or "core"
    slot: int  # 0 where each job has a device to itself
    log: Path
    start: float | None  # None if it never started
    end: float | None
    status: str  # done, failed, timed out, stopped, not started; in Report.left: left
    returncode: int | None  # minus the signal's number for one that a signal ended
    tail: str  # the last lines of its log, or why it did not start
    pid: int | None


@dataclass(frozen=True, repr=False)
class Report:
    """What became of the jobs, in the order given; `report["name"]` is one of them."""

    jobs: tuple[Job, ...]
    wall: float  # seconds
    left: tuple[Job, ...] = ()  # found still running, of runners that were killed

    @property
    def ok(self) -> bool:
        """Say whether every job is done."""
        return all(job.status == "done" for job in self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __getitem__(self, which: int | slice | str) -> Any:
        if not isinstance(which, str):
            return self.jobs[which]
        for job in self.jobs:
            if job.name == which:
                return job
        raise KeyError(f"no job is called {which!r}: {', '.join(job.name for job in self.jobs)}")

    def __repr__(self) -> str:
        rows = [("name", "device", "status", "seconds")]
        for job in self.jobs + self.left:
            device = "-" if job.device is None else f"{job.kind} {job.device}"
            timed = job.start is not None and job.end is not None
            seconds = f"{job.end - job.start:.1f}" if timed else "-"
            rows.append((job.name, device, job.status, seconds))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{name:{wide[0]}}  {device:{wide[1]}}  {status:{wide[2]}}  {seconds:>{wide[3]}}"
            for name, device, status, seconds in rows
        )


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
    do not, and per_device at a time. A runner that is killed frees its locks, but its jobs go on:
    the next run reports them in `left` and uses their devices only once they have ended.
    """
    if "MGPU_JOB_DEVICE" in os.environ:
        raise RuntimeError(
            f"jobs.run was called inside a job, on {os.environ['MGPU_JOB_DEVICE']}, and would wait "
            "for ever for that device: start the commands with subprocess.run."
        )
    asked = _checked_commands(commands)
    called = _checked_names(names, asked)
    per_device = whole("per_device", per_device, "a number of jobs", 1)
    if time_limit is not None and not (
        isinstance(time_limit, (int, float)) and not isinstance(time_limit, bool) and time_limit > 0
    ):
        raise ValueError(
            f"time_limit={time_limit!r} is no time: give seconds above 0, or None for no limit."
        )
    kind, pool = _chosen(devices)
    folder = _log_folder(logs)
    runner = _Runner(kind, pool, per_device, time_limit, progress)
    jobs = [
        Job(name, command, None, kind, 0, folder / f"{i:02d}_{_file_name(name)}.log",
            None, None, "not started", None, "", None)
        for i, (name, command) in enumerate(zip(called, asked, strict=True), 1)
    ]  # fmt: skip
    return runner.run(jobs)


def allowed() -> tuple[str, list[int]]:
    """Say what `run` may use: ("GPU", nvidia-smi's numbers) or ("core", the cores' numbers).

    CUDA_VISIBLE_DEVICES limits the GPUs, or else Slurm's allocation; numbers in either are read as
    nvidia-smi's. A MIG device that it names is a GPU of its own; those are numbered from 0, in the
    order given. Cores are those of this process's affinity, as many as its share; there are no
    GPUs to choose from when none is visible or MGPU_MODE=cores.
    """
    kind, pool, _ = _pool()
    return kind, list(pool)


# --- what may be used ---


def _pool() -> tuple[str, dict[int, str | None], str]:
    """Return the kind, each device's number with its UUID, and what limited the choice."""
    cards = () if os.environ.get("MGPU_MODE") == "cores" else nvml.query().gpus
    gpus: dict[int, str | None] = {card.index: card.uuid for card in cards}
    why = "what this machine has"
    if gpus:
        gpus, why = _visible(gpus)
    for card in cards:
        if card.problem and gpus.get(card.index, "") == card.uuid:
            del gpus[card.index]
            why += f"; {card.problem.rstrip('.')}"
    if gpus:
        return "GPU", gpus, why
    if hasattr(os, "sched_getaffinity"):
        cores, why = sorted(os.sched_getaffinity(0)), "the cores that this process may use"
    else:
        cores = list(range(os.cpu_count() or 1))
    return "core", dict.fromkeys(cores[: _devices._cores()]), why


def _visible(gpus: dict[int, str | None]) -> tuple[dict[int, str | None], str]:
    """Keep the GPUs that CUDA_VISIBLE_DEVICES or Slurm leaves, and say which of them it was."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
            if os.environ.get(name):
                return _slurm(gpus, name)
        return gpus, "what this machine has"
    names = visible.named(text, gpus)
    spare = (i for i in itertools.count() if i not in names)  # for MIG devices, which have none
    kept = dict((i, gpus[i]) if isinstance(i, int) else (next(spare), i) for i in names)
    return kept, f"CUDA_VISIBLE_DEVICES={text!r}"


def _slurm(gpus: dict[int, str | None], name: str) -> tuple[dict[int, str | None], str]:
    why = f"{name}={os.environ[name]!r}"
    ids: set[int] = set()
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", os.environ[name]):
        ids.update(range(int(low), int(high or low) + 1))
    if len(gpus) <= len(ids):  # Slurm hides the others, and the driver numbers the rest anew
        return gpus, why
    return {i: uuid for i, uuid in gpus.items() if i in ids}, why


def _chosen(asked: Sequence[int] | None) -> tuple[str, dict[int, str | None]]:
    kind, pool, why = _pool()
    if asked is None:
        return kind, pool
    if isinstance(asked, (str, bytes)) or not hasattr(asked, "__iter__"):
        raise TypeError(f"devices={asked!r} is not a list of devices: use [{next(iter(pool))}].")
    numbers = [whole("a device", number, "a device's number", 0) for number in asked]
    if not numbers:
        raise ValueError("devices is empty: name at least one, or leave it out to use all.")
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        raise ValueError(
            f"devices has {kind} {twice[0]} twice: use per_device=2 to let two jobs share a device."
        )
    for number in numbers:
        if number not in pool:
            raise ValueError(
                f"{kind} {number} is not allowed: choose from {', '.join(map(str, pool))}, "
                f"after {why}."
            )
    return kind, {number: pool[number] for number in numbers}


# --- what was asked for ---


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


# --- running ---


@dataclass
class _Running:
    """A job that has started, and how far its end is."""

    job: Job
    place: _Place
    process: subprocess.Popen
    status: str | None = None  # what it will be; None while it runs undisturbed
    kill_at: float | None = None  # on the clock of time.monotonic

    def end(self, status: str) -> None:
        """Ask the job and its children to end, once."""
        if self.status is None:
            self.status = status
            self.kill_at = time.monotonic() + GRACE
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


class _Runner:
    def __init__(
        self,
        kind: str,
        pool: dict[int, str | None],
        per_device: int,
        time_limit: float | None,
        progress: bool,
    ) -> None:
        self.kind, self.pool, self.time_limit, self.progress = kind, pool, time_limit, progress
        folder = _lock_folder()
        # Slot by slot, so that jobs fill the devices before they share one.
        self.places = [
            _Place(kind, number, slot, per_device > 1,
                   folder / f"{kind.lower()}-{uuid or number}".replace("/", "_"))
            for slot in range(per_device)
            for number, uuid in pool.items()
        ]  # fmt: skip
        for place in self.places:
            place.check()
        self.free = list(self.places)
        self.running: dict[int, _Running] = {}  # by the job's place in the order given
        self.left: dict[int, Job] = {}  # by pid
        self.waited: set[str] = set()
        self.began = time.monotonic()

    def run(self, jobs: list[Job]) -> Report:
        waiting = list(range(len(jobs)))
        try:
            next_try = 0.0
            while waiting or self.running:
                if self.collect(jobs):
                    next_try = 0.0
                while waiting and time.monotonic() >= next_try:
                    place = self.claim()
                    if place is None:
                        next_try = time.monotonic() + RETRY
                    else:
                        self.start(jobs, waiting, place)
                if waiting and not self.running and not self.free:
                    reason = f"No {self.kind} is left, so that it was not started."
                    for i in waiting:
                        jobs[i] = replace(jobs[i], tail=reason)
                    count = counted(len(waiting), "job")
                    self.say(f"no {self.kind} is left: {count} not started")
                    break
                time.sleep(GLANCE)
        except BaseException as error:
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: end them at once
                    self.end_all(jobs)
            finally:
                for i, running in self.running.items():
                    _signal_group(running.process.pid, signal.SIGKILL)
                    code = running.process.wait()
                    jobs[i] = replace(
                        running.job, end=self.now(), status=running.status, returncode=code
                    )
                for place in self.places:
                    place.release()
                error.report = self.report(jobs)
            raise
        return self.report(jobs)

    def end_all(self, jobs: list[Job]) -> None:
        for running in self.running.values():
            running.end("stopped")
        while self.running:
            self.collect(jobs)
            time.sleep(GLANCE)

    def report(self, jobs: list[Job]) -> Report:
        return Report(tuple(jobs), self.now(), tuple(self.left.values()))

    def now(self) -> float:
        return time.monotonic() - self.began

    def say(self, line: str) -> None:
        if self.progress:
            with contextlib.suppress(OSError):  # nobody reads any more, or the disk is full
                print(line, flush=True)

    def collect(self, jobs: list[Job]) -> bool:
        """Take the jobs that are over off their devices; say whether there were any."""
        ended = False
        for i, running in list(self.running.items()):
            job = running.job
            if self.time_limit is not None and self.now() - job.start > self.time_limit:
                if running.process.poll() is None:
                    running.end("timed out")
            if running.over():
                jobs[i] = replace(
                    job, end=self.now(), status=running.status,
                    returncode=running.process.returncode, tail=_tail(job.log),
                )  # fmt: skip
                del self.running[i]
                self.free_again(running.place)
                self.say_end(jobs[i])
                ended = True
        return ended

    def say_end(self, job: Job) -> None:
        where = f"{job.name:12} on {job.kind} {job.device}"
        self.say(f"{job.status:10} {where}  {job.end - job.start:.1f} s")

    def free_again(self, place: _Place) -> None:
        place.release()
        if place.number in self.pool:
            self.free.append(place)

    def claim(self) -> _Place | None:
        """Lock the first place that nobody uses; None where there is none now."""
        held = []
        for place in self.free:
            if not place.lock():
                held.append(str(place))
                continue
            left = place.left_running()
            for job in left:
                if job.pid not in self.left:
                    self.left[job.pid] = job
                    self.say(f"{'left':10} {job.name:12} on {place}  of a runner that was killed")
            if left:
                place.release(ended=False)
                continue
            self.drop_gone()
            if place.number not in self.pool:
                place.release()
                return self.claim()
            self.free.remove(place)
            return place
        news = [name for name in dict.fromkeys(held) if name not in self.waited]
        if news:
            self.waited.update(news)
            self.say(f"{'waiting':10} for {', '.join(news)}, held by another runner")
        return None

    def drop_gone(self) -> None:
        """Take the GPUs that the driver has lost, or no longer lists, out of the pool."""
        if self.kind != "GPU":
            return
        cards = nvml.query().gpus
        there = {card.index: card.uuid for card in cards if not card.problem}
        problems = {card.index: card.problem for card in cards}
        for number, uuid in list(self.pool.items()):
            # By UUID where there is one: the driver may number the rest anew. It lists no MIG
            # devices, so that nothing can be said of those.
            if uuid.startswith("MIG-") or uuid in there.values() if uuid else number in there:
                continue
            del self.pool[number]
            self.free = [place for place in self.free if place.number != number]
            why = problems.get(number) or f"GPU {number}: the driver does not list it any more"
            self.say(f"{'gone':10} {why}")

    def start(self, jobs: list[Job], waiting: list[int], place: _Place) -> None:
        i = waiting[0]
        job = replace(jobs[i], device=place.number, slot=place.slot, start=self.now())
        self.say(f"{'start':10} {job.name:12} on {place}")
        try:
            with _held_back(), open(job.log, "wb") as log, _pinned(place):
                process = subprocess.Popen(
                    job.command, env=self.environment(place), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                waiting.pop(0)
                jobs[i] = job = replace(job, pid=process.pid)
                self.running[i] = _Running(job, place, process)
                place.write(job)
        except (OSError, ValueError) as error:
            if i in self.running:  # the job runs; only word of it could not be left
                return
            waiting.pop(0)
            jobs[i] = replace(job, end=self.now(), status="failed", tail=str(error))
            with contextlib.suppress(OSError):
                job.log.write_text(f"{error}\n")
            self.free_again(place)
            self.say_end(jobs[i])

    def environment(self, place: _Place) -> dict[str, str]:
        visible = self.pool[place.number] or str(place.number) if self.kind == "GPU" else "-1"
        rest = {name: value for name, value in os.environ.items() if name != "MGPU_DEVICES"}
        return rest | {  # the number of devices is the runner's own
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            "MGPU_JOB_DEVICE": str(place),
            "PYTHONUNBUFFERED": "1",
        }


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Hold back what ends a runner while a job starts, so that none starts unseen."""
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


@contextlib.contextmanager
def _pinned(place: _Place) -> Iterator[None]:
    """Pin this thread to a core meanwhile: what it starts inherits that."""
    if place.kind != "core" or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {place.number})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _tail(log: Path, lines: int = 10) -> str:
    """Return the last lines of a log; "" where it cannot be read."""
    try:
        if not log.is_file():  # a pipe or a device would not end
            return ""
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            text = file.read(TAIL).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


# --- processes ---


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
    return any(
        fields[2] == str(group)
        for entry in os.listdir("/proc")
        if entry.isdigit() and (fields := _stat(int(entry)))
    )


def _stat(pid: int) -> list[str] | None:
    """Return what Linux says of a process, from its state on; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields


def _start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None where Linux does not say."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _lives(pid: int, started: int | None) -> bool:
    if started is not None:
        return _start_time(pid) == started
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


# --- locks ---


@dataclass(eq=False)
class _Place:
    """A device, or a share of one, with its two lock files: the device's and the share's."""

    kind: str
    number: int
    slot: int
    shared: bool
    path: Path
    held: tuple[int, ...] = ()  # file descriptors

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    def check(self) -> None:
        """Raise a sentence where the lock files cannot be used."""
        for path in (self.path, self.slot_path(self.slot)):
            os.close(_open(path))

    def slot_path(self, slot: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{slot}")

    def lock(self) -> bool:
        """Try to lock the place. Who has the device alone locks out those who share it."""
        whole = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
        wanted = ((self.path, whole), (self.slot_path(self.slot), fcntl.LOCK_EX))
        for path, mode in wanted:
            self.held += (_open(path),)
            try:
                fcntl.flock(self.held[-1], mode | fcntl.LOCK_NB)
            except OSError as error:
                self.release(ended=False)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise RuntimeError(
                        f"{path} cannot be locked ({error.strerror}): set TMPDIR to a folder "
                        "on a local disk."
                    ) from None
                return False
        return True

    def write(self, job: Job) -> None:
        """Leave word of a job, for the next runner if this one is killed."""
        word = {"pid": job.pid, "started": _start_time(job.pid), "name": job.name,
                "command": job.command, "log": str(job.log)}  # fmt: skip
        os.ftruncate(self.held[1], 0)
        os.pwrite(self.held[1], json.dumps(word).encode(), 0)

    def release(self, ended: bool = True) -> None:
        if ended and len(self.held) == 2:
            with contextlib.suppress(OSError):
                os.ftruncate(self.held[1], 0)
        for fd in reversed(self.held):
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # also where a fork of this process has it open
            os.close(fd)
        self.held = ()

    def left_running(self) -> list[Job]:
        """Find the jobs of killed runners that still run here; the place must be locked."""
        paths = [self.slot_path(self.slot)]
        if not self.shared:
            paths = sorted(self.path.parent.glob(f"{self.path.name}.*"))
        return [job for path in paths if (job := self.left_in(path))]

    def left_in(self, path: Path) -> Job | None:
        try:
            fd = _open(path)
            with open(fd, "rb") as file:
                word = json.loads(file.read(2**20) or b"null")
            if word is None or not _lives(int(word["pid"]), word["started"]):
                return None
            return Job(
                str(word["name"]), tuple(map(str, word["command"])), self.number, self.kind,
                int(path.name.rpartition(".")[2]), Path(word["log"]), None, None, "left", None, "",
                int(word["pid"]),
            )  # fmt: skip
        except (OSError, RuntimeError, ValueError, KeyError, TypeError):
            return None  # anyone may write there; what nobody can read says nothing


def _lock_folder() -> Path:
    """Return the folder of the locks, which everybody may write to; make it where it is not."""
    # Not tempfile.gettempdir: that goes elsewhere, and apart from the others, when a disk is full.
    folder = Path(os.environ.get("TMPDIR") or "/tmp").absolute() / "mgpu-jobs"
    try:
        if not os.path.lexists(folder):
            # It must never be seen with narrower rights, so it is made aside.
            made = tempfile.mkdtemp(prefix="mgpu-jobs-", dir=folder.parent)
            os.chmod(made, 0o1777)
            try:
                os.rename(made, folder)
            except OSError:  # another runner was faster
                os.rmdir(made)
        right = stat.S_ISDIR(os.lstat(folder).st_mode) and os.access(folder, os.W_OK | os.X_OK)
        said = "it is not a folder that all may write to"
    except OSError as error:
        right, said = False, error.strerror
    if not right:
        raise RuntimeError(
            f"{folder} cannot hold the devices' locks ({said}): remove it, or set TMPDIR."
        )
    return folder


def _open(path: Path) -> int:
    """Open a lock file for reading and writing; make it, for everybody, where it is not."""
    try:
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
                break
            except FileNotFoundError:
                made, aside = tempfile.mkstemp(prefix=".", dir=path.parent)
                os.fchmod(made, 0o666)
                os.close(made)
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
                os.unlink(aside)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be locked ({error.strerror}): remove it.") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RuntimeError(f"{path} cannot be locked (it is not a file): remove it.")
    return fd
