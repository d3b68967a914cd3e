"""The queue: each job gets the first place that is free, in the order given."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mgpu_helpers import nvml
from mgpu_helpers.jobs import locks, records
from mgpu_helpers.jobs.job import Job, Report
from mgpu_helpers.jobs.locks import Place
from mgpu_helpers.jobs.pool import environment, look, rank
from mgpu_helpers.jobs.process import Running, held_back
from mgpu_helpers.jobs.progress import Progress
from mgpu_helpers.wording import counted

GLANCE = 0.02  # seconds between two looks at the running jobs
RETRY = 0.2  # seconds between two tries for a device that somebody else holds
AGAIN = 5.0  # seconds between two looks at GPUs that others use: to ask the driver takes a moment
LINGERS = 5.0  # seconds for which the GPU of a job that has ended may still seem taken


class Queue:
    """Jobs that wait, jobs that run, and the places for them."""

    def __init__(
        self,
        jobs: list[Job],
        kind: str,
        pool: dict[int, str | None],
        *,
        per_device: int,
        devices_each: int,
        time_limit: float | None,
        progress: bool,
        record: Path,
        held: tuple[int, ...] = (),
        most: int | None = None,
        polite: bool = False,
    ) -> None:
        self.jobs, self.kind, self.pool, self.each = jobs, kind, pool, devices_each
        self.most = most  # devices at a time, the freest first; None is all, in their order
        self.polite = polite and kind == "GPU"  # leave alone the GPUs that others use
        self.others: dict[int, str] = {}  # who uses those, by number
        self.unsaid: set[int] = set()  # the numbers of which that has not been said yet
        self.stalled = False  # it was said that all wait for them
        self.look_again: dict[int, float] = {}  # when, on the clock of time.monotonic
        self.ended: dict[int, float] = {}  # when the last job of this runner on a device ended
        self.time_limit, self.record = time_limit, record
        self.held = held  # open files that a job inherits: the folder of the logs
        self.progress = Progress(progress)
        self.say = self.progress.say
        self.places = locks.places(kind, pool, per_device)
        for place in self.places:
            place.check()
        self.free = list(self.places)
        # Numbers in the order given.
        self.waiting = [i for i, job in enumerate(jobs) if not job.ok]
        self.running: dict[int, Running] = {}  # by the same numbers
        self.waited: set[str] = set()
        self.began = time.monotonic()

    def share_out(self) -> None:
        """Start what waits as places become free, until everything has ended."""
        next_try = 0.0
        while self.waiting or self.running:
            if self.collect():
                next_try = 0.0
            while self.waiting and time.monotonic() >= next_try:
                places = self.claim()
                if places:
                    self.start(self.waiting.pop(0), places)
                else:
                    next_try = time.monotonic() + RETRY
            if self.waiting and len(self.free) < self.each and not self.running:
                self.give_up()
            ran = [self.now() - (running.job.start or 0.0) for running in self.running.values()]
            self.progress.left(self.jobs, ran, len(self.waiting))
            time.sleep(GLANCE)

    def run(self) -> Report:
        """Share out the jobs; whatever is raised meanwhile ends them all."""
        before = len(self.jobs) - len(self.waiting)
        if before:
            self.say(f"{'skipped':10} {before} of {counted(len(self.jobs), 'job')}, done before")
        try:
            self.share_out()
        except BaseException as error:
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: end them at once
                    self.end_all()
            finally:
                for i, running in self.running.items():
                    running.kill()
                    self.keep(i, running.ended(self.now()))
                for place in self.places:
                    place.release()
                vars(error)["report"] = self.report()
            raise
        finally:
            self.progress.clear()
        return self.report()

    def end_all(self) -> None:
        for running in self.running.values():
            running.end("stopped")
        while self.running:
            self.collect()
            time.sleep(GLANCE)

    def report(self) -> Report:
        return Report(tuple(self.jobs), self.now())

    def now(self) -> float:
        return time.monotonic() - self.began

    def collect(self) -> bool:
        """Take the jobs that are over off their places; say whether there were any."""
        before = len(self.running)
        for i, running in list(self.running.items()):
            ran = self.now() - (running.job.start or 0.0)
            late = self.time_limit is not None and ran > self.time_limit
            if late and running.process.poll() is None:
                running.end("timed out")
            if running.over():
                with held_back():  # so that a job ends once
                    self.finish(i, running.ended(self.now()), running.places)
                    del self.running[i]
        return len(self.running) < before

    def finish(self, i: int, job: Job, places: list[Place]) -> None:
        """Note how a job ended, and free its places unless the device has gone."""
        for place in places:
            place.release()
            self.ended[place.number] = time.monotonic()
        self.free += [place for place in places if place.number in self.pool]
        self.say(f"{job.status:10} {job.name:12} on {_named(places)}  {job.seconds:.1f} s")
        self.keep(i, job)

    def keep(self, i: int, job: Job) -> None:
        """Note how a job ended, here and in the file for the runs to come."""
        self.jobs[i] = job
        try:
            records.append(self.record, job)
        except OSError as error:
            self.say(f"{'not kept':10} {job.name:12} in {self.record} ({error.strerror})")

    def claim(self) -> list[Place] | None:
        """Lock the first places that nobody uses, all that a job needs; None where there are none.

        No lock is waited for while another is held, and all runners lock in the same order; so
        two that want the same devices cannot keep each other from them.
        """
        held: list[str] = []
        claimed, seen = None, None
        left = [p for p in self.free if time.monotonic() >= self.look_again.get(p.number, 0.0)]
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
                left = [p for p in left if p in self.free and p.number not in avoid]
                if all(place in left for place in places):
                    claimed = places
                    continue
            for place in places:
                place.release()
        self.say_others(claimed)
        news = [name for name in dict.fromkeys(held) if name not in self.waited]
        if news and claimed is None:
            self.waited.update(news)
            self.say(
                f"{'waiting':10} for {', '.join(news)}, held by another runner or by a process "
                "that one left running"
            )
        if claimed:
            self.free = [place for place in self.free if place not in claimed]
        return claimed

    def used(self) -> set[int]:
        """Give the numbers of the devices on which this runner's jobs are."""
        return {place.number for job in self.running.values() for place in job.places}

    def in_use(self, places: list[Place], seen: dict[int, nvml.Gpu]) -> set[int]:
        """Give the numbers of those places that others use, and note when to look there again."""
        now, used = time.monotonic(), self.used()
        found = set()
        for number in {place.number for place in places} & set(seen):
            why = seen[number].others(mine=number in used)
            if not why:
                self.others.pop(number, None)
                continue
            found.add(number)
            lingers = now < self.ended.get(number, -LINGERS) + LINGERS
            lingers = lingers and not seen[number].others(mine=True)
            self.look_again[number] = now + (RETRY if lingers else AGAIN)
            if not lingers:
                self.unsaid |= {number} - set(self.others)
                self.others[number] = why
        return found

    def say_others(self, claimed: list[Place] | None) -> None:
        """Say which GPUs others use: those found just now, or all if every job waits for them."""
        left = [place for place in self.free if place.number not in self.others]
        stalled = claimed is None and not self.running and len(left) < self.each
        why = ": in use, and left alone until free; the options busy and devices overrule that"
        if self.others and stalled and (self.unsaid or not self.stalled):
            self.progress.must(f"{'waiting':10} for {self.named_others(self.others)}{why}")
        elif self.unsaid:
            self.say(f"{'skipped':10} {self.named_others(self.unsaid)}{why}")
        self.stalled = stalled
        self.unsaid = set()

    def named_others(self, numbers: Iterable[int]) -> str:
        return ", ".join(f"{self.kind} {n} ({self.others[n]})" for n in sorted(numbers))

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
        none = f"no {self.kind} is left"
        if self.each > 1:
            none = f"fewer than {counted(self.each, self.kind)} are left"
        for i in self.waiting:
            reason = f"{none[0].upper()}{none[1:]}, so that it was not started."
            self.jobs[i] = replace(self.jobs[i], tail=reason)
        count = counted(len(self.waiting), "job")
        self.say(f"{none}: {count} not started")
        self.waiting.clear()

    def start(self, i: int, places: list[Place]) -> None:
        date = datetime.now(UTC).isoformat(timespec="milliseconds")
        numbers = tuple(place.number for place in places)
        job = replace(self.jobs[i], devices=numbers, slot=places[0].slot, start=self.now(),
                      started_at=date)  # fmt: skip
        self.say(f"{'start':10} {job.name:12} on {_named(places)}")
        try:
            with held_back():
                self.running[i] = Running(job, places, self.environment(places), None, self.held)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                job.log.write_text(f"{error}\n")
            now = self.now()
            ended = replace(
                job, end=now, seconds=now - (job.start or now), status="failed", tail=str(error)
            )
            self.finish(i, ended, places)

    def environment(self, places: list[Place]) -> dict[str, str]:
        device = {"MGPU_JOB_DEVICE": _named(places)}
        return environment(self.kind, self.pool, [place.number for place in places]) | device


def _named(places: list[Place]) -> str:
    return ", ".join(map(str, places))
