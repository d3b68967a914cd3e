"""`run`, and its queue: each job gets the first place that is free, in the order given."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mgpu_helpers import nvml
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._processes import locks
from mgpu_helpers._processes.crew import Crew, named
from mgpu_helpers._processes.job import Command, Job, log_folder
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.pool import chosen, environment, left_alone, look, rank
from mgpu_helpers._processes.process import Running, held_back, seconds
from mgpu_helpers._processes.terminal import Progress
from mgpu_helpers.jobs.kept import Adopted, Kept
from mgpu_helpers.jobs.records import Report
from mgpu_helpers.jobs.rows import CannotWrite, Row, Rows, earlier, mark, refusal
from mgpu_helpers.jobs.sweep import numbered

RETRY = 0.2  # seconds between two tries for a device that somebody else holds
AGAIN = 5.0  # seconds between two looks at GPUs that others use: to ask the driver takes a moment
LINGERS = 5.0  # seconds for which the GPU of a job that has ended may still seem taken


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
    `Report.save` names the columns. A RuntimeError says that they cannot be written, as on a full
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


class Queue(Crew):
    """Jobs that wait, jobs that run, and the places for them."""

    def __init__(
        self, jobs: list[Job], taken: set[str], kind: str, pool: dict[int, str | None],
        per_device: int, each: int, most: int | None, polite: bool, time_limit: float | None,
        rows: Rows, shares: bool, held: int, progress: bool,
    ) -> None:  # fmt: skip
        super().__init__(Progress(progress), time.monotonic())
        self.jobs, self.kind, self.pool, self.each = jobs, kind, pool, each
        self.most = most  # devices at a time, the freest first; None is all, in their order
        self.polite = polite and kind == "GPU"  # leave alone the GPUs that others use
        self.others: dict[int, str] = {}  # who uses those, by number
        self.unsaid: set[int] = set()  # the numbers of which that has not been said yet
        self.stalled = False  # it was said that all wait for them
        self.look_again: dict[int, float] = {}  # when, on the clock of time.monotonic
        self.ended: dict[int, float] = {}  # when the last job of this runner on a device ended
        self.time_limit, self.inherited, self.rows = time_limit, (held,), rows
        self.shares = shares  # what others do or have done is not done again
        self.taken = taken  # the runs that stand for a job already
        self.old = set(rows.ended)  # what failed before is tried again, and not what fails now
        self.elsewhere: dict[int, str] = {}  # the runs of jobs that other runners have
        self.runs: dict[int, str] = {}  # those of this one
        self.adopted: dict[int, Row] = {}  # and its rows of those that it has taken over
        self.broken = ""  # why nothing more may start
        self.places = locks.places(kind, pool, per_device)
        for place in self.places:
            place.check()
        self.free = list(self.places)
        self.waiting = [i for i, job in enumerate(jobs) if not job.ok]
        self.waited: set[str] = set()  # the held devices that have been named
        self.next_try = 0.0
        if len(self.waiting) < len(jobs):
            before = len(jobs) - len(self.waiting)
            self.say(f"{'skipped':10} {before} of {counted(len(jobs), 'job')}, done before")

    def step(self) -> bool:
        """Start what waits as places become free, and end what takes too long."""
        for running in self.running.values():
            late = self.time_limit and self.now() - (running.job.start or 0.0) > self.time_limit
            if late and isinstance(running, Kept) and not running.has_ended():
                running.end("timed out")
        due = time.monotonic() >= self.next_try and not self.broken
        if due and self.shares and (self.waiting or self.elsewhere):
            self.look_around()
        while self.waiting and time.monotonic() >= self.next_try and not self.broken:
            places = self.claim()
            if places and not self.begin(places):
                for place in places:
                    place.release()
                self.free += places
            if not places:
                break
        if due:
            self.next_try = time.monotonic() + RETRY
        if self.waiting and len(self.free) < self.each and not self.running:
            self.give_up()
        left = len(self.waiting) + len(self.elsewhere)
        if self.broken and not self.running:
            raise CannotWrite(
                f"{self.broken} {counted(left, 'job')} did not start, and nothing is lost of the "
                "others; the option skip_done goes on later."
            )
        ran = [self.now() - (running.job.start or 0.0) for running in self.running.values()]
        self.progress.left(self.jobs, ran, left)
        return bool(left or self.running)

    def begin(self, places: list[Place]) -> bool:
        """Start the next job on these places, if one is left; say whether it has them now."""
        try:
            with self.rows.locked():
                if self.shares:
                    self.share()
                if not self.waiting:
                    return False
                i = self.waiting.pop(0)
                try:
                    self.start(i, self.jobs[i], places, environment(places) | {
                        "MGPU_JOB_DEVICE": named(places)})  # fmt: skip
                except CannotWrite:
                    self.waiting.insert(0, i)
                    raise
        except CannotWrite as error:
            self.stop(error)
            return False
        return True

    def launch(self, job: Job, places: Sequence[Place], environment: dict[str, str]) -> Kept:
        return Kept(job, places, environment, self.inherited, self.rows)

    def started(self, running: Running) -> None:
        assert isinstance(running, Kept)
        number = next(i for i, each in self.running.items() if each is running)
        self.runs[number] = running.run
        self.taken.add(running.run)

    def stop(self, error: CannotWrite) -> None:
        """Start nothing more; what runs goes on to its end."""
        if not self.broken:
            self.broken = str(error)
            if self.running:
                self.progress.must(f"{'stopping':10} when what runs has ended: {error}")

    def look_around(self) -> None:
        try:
            with self.rows.locked():
                self.share()
        except CannotWrite as error:
            self.stop(error)

    def share(self) -> None:
        """Take what others do or have done of what is next here, with the rows locked."""
        self.rows.settle()
        while self.waiting and (row := self.offered(self.jobs[self.waiting[0]])):
            i = self.waiting.pop(0)
            self.taken.add(mark(row))
            self.elsewhere[i] = mark(row)
            if row["status"] == "running":
                self.say(f"{'waiting':10} {self.jobs[i].name:12} runs already, as process "
                         f"{row['pid']} of {row['host']}")  # fmt: skip
        for i, run in list(self.elsewhere.items()):
            if row := self.rows.running.get(run):
                if self.rows.is_here(row) and not self.rows.runner_lives(row):
                    with held_back():
                        adopted = Adopted(self.jobs[i], row, self.rows, self.now())
                        self.running[i], self.adopted[i] = adopted, adopted.row
                        self.runs[i] = self.elsewhere.pop(i)
            else:
                del self.elsewhere[i]
                self.from_elsewhere(i, self.rows.ended[run])

    def offered(self, job: Job) -> Row | None:
        """Give a run of the same command that stands for no job yet: done, running, or failed."""
        rows = self.rows.by_key.get((job.command, job.folder), {}).values()
        free = [row for row in rows if mark(row) not in self.taken]
        now = {row["run"] for row in free if "run" in row} - self.old
        for statuses in ("done", "running"), ("failed", "timed out"):
            for row in free:
                if row["status"] in statuses and (row["status"] == "done" or row.get("run") in now):
                    return row
        return None

    def from_elsewhere(self, number: int, row: Row) -> None:
        """Take over what became of a job elsewhere; what was stopped there is to be done here."""
        if row["status"] == "stopped":
            self.waiting = sorted([*self.waiting, number])
            return
        job = earlier(self.jobs[number].name, self.jobs[number].command, self.rows.folder, row)
        self.jobs[number] = job
        seconds = "" if job.seconds is None else f"  {job.seconds:.1f} s"
        self.say(f"{job.status:10} {job.name:12} by another runner{seconds}")

    def result(self) -> Report:
        return Report(tuple(self.jobs), self.now())

    def close(self) -> None:
        for place in self.places:
            place.release()
        self.progress.clear()

    def finish(self, number: int, job: Job, places: Sequence[Place]) -> None:
        """Free a job's places, unless the device has gone, and keep what became of it."""
        for place in places:
            place.release()
            self.ended[place.number] = time.monotonic()
        self.free += [place for place in places if place.number in self.pool]
        self.next_try = 0.0
        run, theirs = self.runs.pop(number, None), self.adopted.pop(number, None)
        if theirs:
            ended = job.status != "running"
            row = self.rows.ended_row(theirs, job.status if ended else None)
            self.from_elsewhere(number, row)
            if ended:
                self.waiting = [i for i in self.waiting if i != number]
                self.jobs[number] = earlier(job.name, job.command, self.rows.folder, row)
        else:
            self.jobs[number], row = job, job.row()
            self.say(f"{job.status:10} {job.name:12} on {named(places)}  {job.seconds:.1f} s")
        try:
            with self.rows.locked():
                if run is None:  # it could not be started
                    self.rows.add(row)
                else:
                    self.rows.end(run, row)
        except CannotWrite as error:
            self.stop(error)

    def claim(self) -> list[Place] | None:
        """Lock the first places that nobody uses, all that a job needs; None where there are none.

        No lock is waited for while another is held, and all runners lock in the same order; so
        two that want the same devices cannot keep each other from them.
        """
        now, held, claimed, seen = time.monotonic(), [], None, None
        left = [place for place in self.free if now >= self.look_again.get(place.number, 0.0)]
        if self.each > 1:  # neighbours, as long as it can be
            left.sort(key=self.places.index)
        if self.most is not None:
            used = self.used()
            if len(used) + self.each > self.most:
                left = [place for place in left if place.number in used]
            if left and self.kind == "GPU":
                seen = gpus = look(self.pool)
                left.sort(key=lambda place: (place.slot, rank(gpus.get(place.number))))
        while len(left) >= self.each and claimed is None:
            places = left[: self.each]
            for place in sorted(places, key=lambda place: place.path):
                if not place.lock():
                    held.append(str(place))
                    left.remove(place)
                    break
            else:
                avoid: set[int] = set()
                if self.kind == "GPU":
                    seen = look(self.pool) if seen is None else seen
                    self.drop_gone(seen)
                    avoid = self.in_use(places, seen) if self.polite else avoid
                left = [place for place in left if place in self.free and place.number not in avoid]
                if all(place in left for place in places):
                    claimed = places
                    continue
            for place in places:
                place.release()
        self.say_others(claimed)
        news = [name for name in dict.fromkeys(held) if name not in self.waited]
        if news and not claimed:
            self.waited.update(news)
            self.say(
                f"{'waiting':10} for {', '.join(news)}, held by another runner or by a process "
                "that one left running"
            )
        self.free = [place for place in self.free if place not in (claimed or ())]
        return claimed

    def used(self) -> set[int]:
        """Give the numbers of the devices on which this runner's jobs are."""
        return {place.number for job in self.running.values() for place in job.places}

    def in_use(self, places: list[Place], seen: dict[int, nvml.Gpu]) -> set[int]:
        """Give the numbers of those places that others use, and note when to look there again."""
        now, used, taken = time.monotonic(), self.used(), set()
        for number in {place.number for place in places} & set(seen):
            why = seen[number].others(mine=number in used)
            if not why:
                self.others.pop(number, None)
                continue
            taken.add(number)
            lingers = now < self.ended.get(number, -LINGERS) + LINGERS
            lingers = lingers and not seen[number].others(mine=True)
            self.look_again[number] = now + (RETRY if lingers else AGAIN)
            if not lingers:
                self.unsaid |= {number} - set(self.others)
                self.others[number] = why
        return taken

    def say_others(self, claimed: list[Place] | None) -> None:
        """Say which GPUs others use: those found just now, or all if every job waits for them."""
        left = [place for place in self.free if place.number not in self.others]
        stalled = claimed is None and not self.running and len(left) < self.each
        until = " until free; the options busy and devices overrule that"
        if self.others and stalled and (self.unsaid or not self.stalled):
            self.progress.must(f"{'waiting':10} for {left_alone(self.others)}{until}")
        elif self.unsaid:
            news = {number: self.others[number] for number in self.unsaid}
            self.say(f"{'skipped':10} {left_alone(news)}{until}")
        self.stalled, self.unsaid = stalled, set()

    def drop_gone(self, seen: dict[int, nvml.Gpu]) -> None:
        """Take the GPUs that the driver has lost, or no longer lists, out of the pool."""
        for number, uuid in list(self.pool.items()):
            # Older drivers write MIG devices in another way, so that nothing can be said of those.
            if number in seen or (uuid or "").startswith("MIG-"):
                continue
            del self.pool[number]
            self.others.pop(number, None)
            self.unsaid.discard(number)
            self.free = [place for place in self.free if place.number != number]
            lost = (gpu.problem for gpu in nvml.query().gpus if gpu.index == number)
            why = next(lost, None) or f"GPU {number}: the driver does not list it any more"
            self.say(f"{'gone':10} {why}")

    def give_up(self) -> None:
        """Leave what waits: the devices have gone."""
        why = f"Too few {self.kind}s are left"
        for i in self.waiting:
            self.jobs[i] = replace(self.jobs[i], tail=f"{why}, so that it was not started.")
        self.say(f"{why}: {counted(len(self.waiting), 'job')} not started")
        self.waiting.clear()
