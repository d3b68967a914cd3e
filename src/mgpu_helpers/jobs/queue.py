"""The queue: each job gets the first place that is free, in the order given."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace

from mgpu_helpers import nvml
from mgpu_helpers.jobs.job import Job, Report
from mgpu_helpers.jobs.locks import Place, lock_folder
from mgpu_helpers.jobs.process import Running, held_back
from mgpu_helpers.wording import counted

GLANCE = 0.02  # seconds between two looks at the running jobs
RETRY = 0.2  # seconds between two tries for a device that somebody else holds


class Queue:
    """Jobs that wait, jobs that run, and the places for them."""

    def __init__(
        self,
        jobs: list[Job],
        pool: dict[int, str | None],
        per_device: int,
        time_limit: float | None,
        progress: bool,
    ) -> None:
        self.jobs, self.pool, self.time_limit, self.progress = jobs, pool, time_limit, progress
        self.kind = jobs[0].kind
        folder = lock_folder()
        # Slot by slot, so that jobs fill the devices before they share one.
        self.places = [
            Place(self.kind, number, slot, per_device > 1,
                  folder / f"{self.kind.lower()}-{uuid or number}".replace("/", "_"))
            for slot in range(per_device)
            for number, uuid in pool.items()
        ]  # fmt: skip
        for place in self.places:
            place.check()
        self.free = list(self.places)
        self.waiting = list(range(len(jobs)))  # numbers in the order given
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
                place = self.claim()
                if place:
                    self.start(self.waiting.pop(0), place)
                else:
                    next_try = time.monotonic() + RETRY
            if self.waiting and not self.free and not self.running:
                self.give_up()
            time.sleep(GLANCE)

    def run(self) -> Report:
        """Share out the jobs; whatever is raised meanwhile ends them all."""
        try:
            self.share_out()
        except BaseException as error:
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: end them at once
                    self.end_all()
            finally:
                for i, running in self.running.items():
                    running.kill()
                    self.jobs[i] = running.ended(self.now())
                for place in self.places:
                    place.release()
                error.report = self.report()
            raise
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

    def say(self, line: str) -> None:
        if self.progress:
            with contextlib.suppress(OSError):  # nobody reads any more, or the disk is full
                print(line, flush=True)

    def collect(self) -> bool:
        """Take the jobs that are over off their places; say whether there were any."""
        before = len(self.running)
        for i, running in list(self.running.items()):
            late = self.time_limit is not None and self.now() - running.job.start > self.time_limit
            if late and running.process.poll() is None:
                running.end("timed out")
            if running.over():
                self.finish(i, running.ended(self.now()), running.place)
                del self.running[i]
        return len(self.running) < before

    def finish(self, i: int, job: Job, place: Place) -> None:
        """Note how a job ended, and free its place unless the device has gone."""
        self.jobs[i] = job
        place.release()
        if place.number in self.pool:
            self.free.append(place)
        self.say(f"{job.status:10} {job.name:12} on {place}  {job.end - job.start:.1f} s")

    def claim(self) -> Place | None:
        """Lock the first place that nobody uses; None where there is none now."""
        held = []
        for place in list(self.free):
            if not place.lock():
                held.append(str(place))
                continue
            self.drop_gone()
            if place in self.free:
                self.free.remove(place)
                return place
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
        """Leave what waits: every device has gone."""
        for i in self.waiting:
            reason = f"No {self.kind} is left, so that it was not started."
            self.jobs[i] = replace(self.jobs[i], tail=reason)
        count = counted(len(self.waiting), "job")
        self.say(f"no {self.kind} is left: {count} not started")
        self.waiting.clear()

    def start(self, i: int, place: Place) -> None:
        job = replace(self.jobs[i], device=place.number, slot=place.slot, start=self.now())
        self.say(f"{'start':10} {job.name:12} on {place}")
        try:
            with held_back():
                self.running[i] = Running(job, place, self.environment(place))
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                job.log.write_text(f"{error}\n")
            self.finish(i, replace(job, end=self.now(), status="failed", tail=str(error)), place)

    def environment(self, place: Place) -> dict[str, str]:
        visible = self.pool[place.number] or str(place.number) if self.kind == "GPU" else "-1"
        rest = {name: value for name, value in os.environ.items() if name != "MGPU_DEVICES"}
        return rest | {  # the number of devices is the runner's own
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            "MGPU_JOB_DEVICE": str(place),
            "PYTHONUNBUFFERED": "1",
        }
