"""Who was the first to fail, and whom a worker that waits is waiting for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mgpu_helpers.cluster.blame import lost
from mgpu_helpers.cluster.reach import LISTENS, reach
from mgpu_helpers.jobs.process import end_of
from mgpu_helpers.wording import signal_name

if TYPE_CHECKING:
    from mgpu_helpers.cluster.attempt import Crew


def verdict(crew: Crew) -> tuple[int, str]:
    """Find the first worker that failed: not the first to end, if that one lost another."""
    # The end of one that was killed is seen late, and is never the consequence of another's.
    index = min(crew.failed, key=lambda i: (not _killed(crew, i), crew.failed[i]))
    seen = {index}
    while index in crew.jobs:
        other = lost(end_of(crew.jobs[index].log), index)
        if other is None or other in seen or other >= len(crew.addresses):
            break
        seen.add(other)
        index = other
    name = f"Worker {index}"
    if index not in crew.jobs:
        return index, (
            f"{name} at {crew.addresses[index]} was lost. Its own launcher, on that machine, "
            "says why."
        )
    job = crew.jobs[index]
    after = f"after {(crew.failed.get(index) or crew.left[index]) - crew.began:.1f} s"
    if index not in crew.failed and not job.returncode:
        return index, (
            f"{name} ended {after} with exit status 0, while the others went on and needed it."
        )
    if index not in crew.failed:
        stopped = crew.states.get(index) in ("T", "t")
        does = "was stopped, as by SIGSTOP," if stopped else "ran"
        return index, f"{name} {does} and did not answer the others any more."
    status_of = job.returncode or 0
    if status_of < 0 and index in crew.raised:  # by this launcher, after the time for it
        status = crew.status[index]
        did = f"ended with exit status {status}" if status else "raised an error"
        return index, f"{name} failed first, {after}: its script {did}."
    if status_of < 0:
        return index, f"{name} failed first, {after}: {signal_name(-status_of)} ended it."
    return index, f"{name} failed first, {after}, with exit status {job.returncode}."


def stuck(crew: Crew, index: int) -> tuple[str, int | None]:
    """Say whom a worker waits for in the strategy's constructor, and who has not come."""
    absent, present = [], []
    found = reach(crew.addresses)
    for other, (address, here) in enumerate(zip(crew.addresses, found, strict=True)):
        if other in crew.came and other not in crew.left:
            present.append(f"worker {other}")
            continue
        if other in crew.left:
            fact = "has ended"
        elif other in crew.setup.shares:
            fact = "has not come to it"
        else:
            fact = f"at {address} {here.state}"
        if other in crew.setup.shares or here.state != LISTENS:
            absent.append((other, f"worker {other} {fact}"))
        else:
            present.append(f"worker {other}")
    text = (
        f"Worker {index} waited {crew.setup.startup:g} s in the constructor of "
        f"MultiWorkerMirroredStrategy. There: {', '.join(present)}. "
    )
    if not absent:
        return text + (
            "All listen and still do not find each other: compare the lists of addresses "
            "(cluster.check), and look for a proxy or a firewall between them."
        ), None
    return text + f"Missing: {', '.join(fact for _, fact in absent)}.", absent[0][0]


def _killed(crew: Crew, index: int) -> bool:
    return index not in crew.raised and crew.jobs[index].returncode == -signal.SIGKILL
