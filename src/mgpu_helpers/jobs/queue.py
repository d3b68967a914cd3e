"""The queue: each job gets the first place that is free, in the order given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mgpu_helpers import nvml
from mgpu_helpers._formatting import counted
from mgpu_helpers._processes import locks
from mgpu_helpers._processes.crew import Crew, named
from mgpu_helpers._processes.job import Job
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.pool import environment, left_alone, look, rank
from mgpu_helpers._processes.process import Running, held_back
from mgpu_helpers._processes.terminal import Progress
from mgpu_helpers.jobs.kept import Adopted, Kept
from mgpu_helpers.jobs.records import Report
from mgpu_helpers.jobs.rows import CannotWrite, Row, Rows, earlier, mark

RETRY = 0.2  # seconds between two tries for a device that somebody else holds
AGAIN = 5.0  # seconds between two looks at GPUs that others use: to ask the driver takes a moment
LINGERS = 5.0  # seconds for which the GPU of a job that has ended may still seem taken


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
        self.polite = polite  # leave alone the GPUs that others use
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
        self.kept: dict[int, Running] = {}  # this runner's jobs, until their ends are written
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
            if self.time_limit and self.now() - (running.job.start or 0.0) > self.time_limit:
                running.end("timed out")
        due = time.monotonic() >= self.next_try and not self.broken
        if due and self.shares and (self.waiting or self.elsewhere):
            self.holding(self.share)
        while self.waiting and time.monotonic() >= self.next_try and not self.broken:
            places = self.claim()
            if not places:
                break
            if not self.holding(partial(self.begin, places)):
                for place in places:
                    place.release()
                self.free += places
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
        return True

    def launch(self, job: Job, places: Sequence[Place], environment: dict[str, str]) -> Kept:
        return Kept(job, places, environment, self.inherited, self.rows)

    def started(self, running: Running) -> None:
        assert isinstance(running, Kept)
        self.kept |= self.running
        self.taken.add(running.run)

    def left(self, number: int, running: Running) -> None:
        assert isinstance(running, Kept)
        if running.stuck:
            pids = ", ".join(map(str, running.stuck))
            self.progress.must(f"{'left':10} {running.job.name:12} process {pids} of it did not "
                               "end: the run goes on without it")  # fmt: skip

    def holding(self, do: Callable[[], bool | None]) -> bool | None:
        """Do it with the rows held; where that fails nothing more starts, and what runs goes on."""
        try:
            with self.rows.locked():
                return do()
        except CannotWrite as error:
            if not self.broken:
                self.broken = str(error)
                if self.running:
                    self.progress.must(f"{'stopping':10} when what runs has ended: {error}")
        return False

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
                        self.running[i] = self.kept[i] = adopted
                        del self.elsewhere[i]
            else:
                del self.elsewhere[i]
                self.from_elsewhere(i, self.rows.ended[run])

    def offered(self, job: Job) -> Row | None:
        """Give a run of the same command that stands for no job yet: done, running, or failed."""
        rank = {"done": 0, "running": 0, "failed": 1, "timed out": 1}
        rows = self.rows.by_key.get((job.command, job.folder), {}).values()
        free = [row for row in rows if mark(row) not in self.taken and row["status"] in rank]
        old = {None, *self.old}
        of_now = [row for row in free if row["status"] == "done" or row.get("run") not in old]
        return min(of_now, key=lambda row: rank[row["status"]], default=None)

    def from_elsewhere(self, number: int, row: Row) -> None:
        """Take over what became of a job elsewhere; what was stopped there is to be done here."""
        if row["status"] == "stopped":
            self.waiting = sorted([*self.waiting, number])
            return
        job = self.jobs[number]
        job = self.jobs[number] = earlier(job.name, job.command, self.rows.folder, row)
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
        kept = self.kept.pop(number, None)
        if isinstance(kept, Adopted):
            row = self.rows.ended_row(kept.row, kept.status)
            self.from_elsewhere(number, row)
            if kept.status:  # this runner has ended it
                self.waiting = [i for i in self.waiting if i != number]
                self.jobs[number] = earlier(job.name, job.command, self.rows.folder, row)
        else:
            self.jobs[number], row = job, job.row()
            self.say(f"{job.status:10} {job.name:12} on {named(places)}  {job.seconds:.1f} s")
        if isinstance(kept, Kept):
            self.holding(partial(self.rows.end, kept.run, row))
        else:  # it could not be started
            self.holding(partial(self.rows.add, row))

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
