"""Who was the first to fail, and whom a worker that waits is waiting for: what logs say of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mgpu_helpers._formatting import signal_name
from mgpu_helpers._processes.job import Job, end_of
from mgpu_helpers.cluster.probing import LISTENS, probe

# Two forms of TensorFlow's own lines, of 2.21 and before. Errors are kept but for the first look
# for GPUs, which says one on every machine that has none.
LOGGED = re.compile(
    r"[IW]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+\]|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|E\d{4} .*(?:cuda_platform\.cc|cuInit)|\d{4}-\d\d-\d\d .*: E .*(?:cuda|cuInit)"
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions: |/job:\w+/replica:\d+/task:\d+$"
)
INSIDE = re.compile(
    r'(\s*)File "(?:.*/site-packages/(?:tensorflow|keras)/|<frozen runpy>|.*/cluster/worker\.py)'
)
MISMATCH = "Shape mismatch in the collective"
CHIEF = "RPC: /tensorflow.CoordinationService/"  # asked of worker 0, without its name

# In the order of how far they can be trusted; each is followed by the task that was lost.
LOST = tuple(
    re.compile(before + r"/job:worker/(?:replica:\d+/)?task:(\d+)")
    for before in (
        r"\(stopped sending heartbeats\):\s+",
        r"from remote target ",
        r"Error reported from ",
    )
)


def without_noise(lines: Sequence[str]) -> list[str]:
    """Leave out what TensorFlow says of itself, and its own lines in a traceback.

    >>> without_noise(["I0000 00:00:17.5 9 port.cc:153] oneDNN is on", "step 1", "loss 0.5"])
    ['step 1', 'loss 0.5']
    """
    kept: list[str] = []
    inside = None  # the indent of a frame of TensorFlow's, while in it
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if inside is not None and indent > inside:
            continue
        frame = INSIDE.match(line)
        inside = len(frame[1]) if frame else None
        if not frame and not LOGGED.match(line) and (line.strip() or (kept and kept[-1].strip())):
            kept.append(line)
    return kept


def last(lines: Sequence[str], n: int) -> list[str]:
    """Return the last n lines; of an error that is longer the beginning, too.

    >>> last(["Traceback (most recent call last):", '  File "a.py"', "ValueError: [1", *"2345"], 4)
    ['  File "a.py"', 'ValueError: [1', '...', '5']
    """
    traces = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    after = range(traces[-1] + 1, len(lines)) if traces else range(0)
    error = next((i for i in after if lines[i][:1].strip()), len(lines))
    if error >= len(lines) - n:
        return list(lines[-n:])
    head = [*lines[max(traces[-1], error + 1 - n // 2) : error + 1], "..."]
    return head + list(lines[len(head) - n :])


def lost(lines: Sequence[str], own: int) -> int | None:
    """Return the index of the worker that was lost, as the end of another's log has it.

    >>> lost(["the following tasks are unhealthy (stopped sending heartbeats):",
    ...       "/job:worker/replica:0/task:1"], own=0)
    1
    """
    text = "\n".join(lines[-60:])
    for pattern in LOST:
        named = [int(index) for index in pattern.findall(text) if int(index) != own]
        if named:
            return named[-1]
    return 0 if own and CHIEF in text else None


@dataclass
class Worker:
    """What is known of a worker of this machine; times on the clock of time.monotonic."""

    job: Job  # as it ended, once it has
    left: float | None = None  # when its process was seen to have ended
    raised: float | None = None  # when its script raised, which is before that
    status: str = ""  # with which exit status, where it was sys.exit
    failed: float | None = None  # when it failed, if nobody ended it
    # When it said what: it "loads" TensorFlow, "waits" in the strategy's constructor and "goes" on,
    # is "ready" to save when it is told to end, by fit/stopping.py, "saves" and has "saved", and
    # its script is "done".
    said: dict[str, float] = field(default_factory=dict)
    state: str = ""  # what its process did when the first one failed, as Linux has it

    def says(self, event: str, at: float) -> None:
        """Note what it says of itself, by cluster/worker.py."""
        event, _, status = event.partition("=")
        if event == "raised" and "saved" not in self.said:
            self.raised, self.status = at, status
            self.fails(at)
        self.said[event] = at
        self.said.pop({"goes": "waits", "unready": "ready"}.get(event, ""), None)

    @property
    def came(self) -> bool:
        """Say whether it has been in the strategy's constructor."""
        return bool({"waits", "goes"} & self.said.keys())

    def fails(self, at: float) -> None:
        """Note that it failed; what was known first counts."""
        self.failed = at if self.failed is None else self.failed


def verdict(
    workers: Mapping[int, Worker], addresses: Sequence[str], began: float
) -> tuple[int, str]:
    """Find the first worker that failed: not the first to end, if that one lost another."""
    # The end of one that was killed is seen late, and is never the consequence of another's.
    failed = {i: worker for i, worker in workers.items() if worker.failed is not None}
    index = min(failed, key=lambda i: (not _killed(failed[i]), failed[i].failed))
    seen = {index}
    while index in workers:
        other = lost(end_of(workers[index].job.log), index)
        if other is None or other in seen or other >= len(addresses):
            break
        seen.add(other)
        index = other
    name = f"Worker {index}"
    if index not in workers:
        return index, (
            f"{name} at {addresses[index]} was lost. Its own launcher, on that machine, says why."
        )
    worker, code = workers[index], workers[index].job.returncode or 0
    after = f"after {(worker.failed or worker.left or began) - began:.1f} s"
    if worker.failed is None and not code:
        did = f"ended {after} with exit status 0, while the others went on and needed it"
    elif worker.failed is None:
        does = "was stopped, as by SIGSTOP," if worker.state in ("T", "t") else "ran"
        did = f"{does} and did not answer the others any more"
    elif code < 0 and worker.raised:  # by this launcher, after the time for it
        how = f"ended with exit status {worker.status}" if worker.status else "raised an error"
        did = f"failed first, {after}: its script {how}"
    elif code < 0:
        did = f"failed first, {after}: {signal_name(-code)} ended it"
    else:
        did = f"failed first, {after}, with exit status {code}"
    if any(MISMATCH in line for each in workers.values() for line in end_of(each.job.log)):
        did += (
            ". Before that the workers exchanged values of different shapes: each was at another "
            "step, perhaps since their data have different numbers of batches"
        )
    return index, f"{name} {did}."


def _killed(worker: Worker) -> bool:
    return worker.raised is None and worker.job.returncode == -signal.SIGKILL


def stuck(
    workers: Mapping[int, Worker], addresses: Sequence[str], index: int, now: float
) -> tuple[str, int | None]:
    """Say whom a worker waits for in the strategy's constructor, and who has not come."""
    absent, present = {}, []
    for other, (address, answer) in enumerate(zip(addresses, probe(addresses), strict=True)):
        worker = workers.get(other)
        if worker and worker.left is not None:
            absent[other] = f"worker {other} has ended"
        elif worker and not worker.came:
            absent[other] = f"worker {other} has not come to it"
        elif not worker and answer.state != LISTENS:
            absent[other] = f"worker {other} at {address} {answer.state}"
        else:
            present.append(f"worker {other}")
    waited = now - workers[index].said.get("waits", now)
    text = (
        f"Worker {index} waited {waited:.0f} s in the constructor of "
        f"MultiWorkerMirroredStrategy. There: {', '.join(present)}. "
    )
    if not absent:
        return text + (
            "All listen and still do not find each other: compare the lists of addresses "
            "(cluster.check), and look for a proxy or a firewall between them."
        ), None
    return text + f"Missing: {', '.join(absent.values())}.", min(absent)


def nothing_for(seconds: float) -> str:
    """Say that no worker went on for so long."""
    return (
        f"Nothing went on for {seconds:g} s: no step, no line of output, and nothing compiled, "
        "read or saved. Where that was work, let it print something, or give stalled more seconds."
    )


SAVED = "The workers were told to end by a signal, and have saved: the next start goes on there."
