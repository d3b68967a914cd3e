"""The queue: each job gets the first place that is free, in the order given."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from mgpu_helpers import nvml
from mgpu_helpers.jobs import locks, records
from mgpu_helpers.jobs.job import Job, Report
from mgpu_helpers.jobs.locks import Place
from mgpu_helpers.jobs.pool import environment
from mgpu_helpers.jobs.process import Running, held_back
from mgpu_helpers.jobs.progress import Progress
from mgpu_helpers.wording import counted

GLANCE = 0.02  # seconds between two looks at the running jobs
RETRY = 0.2  # seconds between two tries for a device that somebody else holds


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
    ) -> None:
        self.jobs, self.kind, self.pool, self.each = jobs, kind, pool, devices_each
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
        held = []
        left = list(self.free)
        if self.each > 1:  # neighbours, as long as it can be
            left.sort(key=self.places.index)
        while len(left) >= self.each:
            places = left[: self.each]
            for place in sorted(places, key=lambda place: place.path):
                if not place.lock():
                    held.append(str(place))
                    left.remove(place)
                    break
            else:
                self.drop_gone()
                left = [place for place in left if place in self.free]
                if all(place in left for place in places):
                    self.free = [place for place in self.free if place not in places]
                    return places
            for place in places:
                place.release()
        news = [name for name in dict.fromkeys(held) if name not in self.waited]
        if news:
            self.waited.update(news)
            self.say(
                f"{'waiting':10} for {', '.join(news)}, held by another runner or by a process "
                "that one left running"
            )
        return None

    def drop_gone(self) -> None:
        """Take the GPUs that the driver has lost, or no longer lists, out of the pool."""
        if self.kind != "GPU":
            return
        gpus = nvml.query().gpus
        there = {gpu.index: gpu.uuid for gpu in gpus if not gpu.problem}
        problems = {gpu.index: gpu.problem for gpu in gpus}
        for number, uuid in list(self.pool.items()):
            # By UUID where there is one: the driver may number the rest anew. It lists no MIG
            # devices, so that nothing can be said of those.
            if uuid.startswith("MIG-") or uuid in there.values() if uuid else number in there:
                continue
            del self.pool[number]
            self.free = [place for place in self.free if place.number != number]
            why = problems.get(number) or f"GPU {number}: the driver does not list it any more"
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
        date = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
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
