"""`run`: start a script as all workers of a cluster, after a look at what was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from mgpu_helpers.cluster import addresses as where
from mgpu_helpers.cluster import asked
from mgpu_helpers.cluster.attempt import Crew
from mgpu_helpers.cluster.check import network
from mgpu_helpers.cluster.places import alone, shared_out
from mgpu_helpers.cluster.report import Attempt, Report
from mgpu_helpers.cluster.setup import Setup
from mgpu_helpers.jobs.pool import chosen
from mgpu_helpers.jobs.process import end_of
from mgpu_helpers.jobs.progress import Progress
from mgpu_helpers.jobs.settings import log_folder, seconds
from mgpu_helpers.wording import whole_number

PORT_TAKEN = "Could not start gRPC server"
NEW_PORTS = 3  # times that a port may turn out to be taken


def run(
    script: str | os.PathLike[str],
    args: Sequence[str | os.PathLike[str]] = (),
    *,
    workers: int | None = None,
    restarts: int = 0,
    logs: str | os.PathLike[str] = "logs",
    time_limit: float | None = None,
    grace: float = 5.0,
    startup: float = 60.0,
    hosts: Sequence[str] | None = None,
    index: int | None = None,
    progress: bool = True,
) -> Report:
    """Run a Python script as all workers of a MultiWorkerMirroredStrategy, and say what happened.

    On one machine `workers` processes, 2 when None, stand for machines: each gets TF_CONFIG with
    ports that are free, an equal share of the GPUs, or of the cores where there are none, and a log
    `worker_0.log` in the folder `logs`. Over several machines make the same call on each, with the
    `hosts` of all ("host:port") and this one's `index`; then one worker drives all GPUs here.

    When one worker fails all are ended: SIGTERM, and SIGKILL `grace` seconds later. The report
    names the first that failed, and shows the end of its log. All are then started again, up to
    `restarts` times; MGPU_ATTEMPT counts that, and it is for the script to read its checkpoint. A
    worker that waits in the strategy's constructor for longer than `startup` seconds ends them,
    too, and the report says whom it waited for. `time_limit` is in seconds, for all attempts
    together; None sets no limit.

    Ctrl-C or an exception here ends all workers; what is raised carries the report as `.report`. If
    this process is killed, its workers are, too, with what they started; a child that starts a
    session of its own escapes. TensorFlow listens on all interfaces of a machine, whatever the
    addresses say.

    >>> _ = open("hello.py", "w").write("import os; print('attempt', os.environ['MGPU_ATTEMPT'])")
    >>> report = run("hello.py", workers=2, progress=False)
    >>> report.ok, [worker.tail for worker in report]
    (True, ['attempt 0', 'attempt 0'])
    """
    words = asked.words(script, args)
    restarts = whole_number("restarts", restarts, "a number of restarts", 0)
    began = time.monotonic()
    end = None
    if time_limit is not None:
        end = began + seconds("time_limit", time_limit, also=", or leave it out for no limit")
    seconds("grace", grace)
    seconds("startup", startup)
    if hosts is None and index is None:
        n = whole_number("workers", 2 if workers is None else workers, "a number of workers", 1)
        mine = range(n)
    else:
        hosts, index = asked.machines(hosts, index, workers)
        mine = range(index, index + 1)
    kind, pool = chosen(None)
    shares = dict(zip(mine, shared_out(kind, pool, len(mine)), strict=True))
    setup = Setup(words, shares, kind, pool, log_folder(logs), grace, startup, began, end,
                  Progress(progress))  # fmt: skip
    with alone(setup):
        if hosts is not None and index is not None:
            _wait_for(hosts, index, setup)
        return _attempts(setup, hosts, restarts)


def _attempts(setup: Setup, hosts: Sequence[str] | None, restarts: int) -> Report:
    done: list[Attempt] = []
    number = moved = 0
    try:
        while True:
            addresses = hosts or [f"127.0.0.1:{p}" for p in where.free_ports(len(setup.shares))]
            last = Crew(setup, number, addresses).run()
            if not last.ok and hosts is None and moved < NEW_PORTS and _port_taken(last):
                moved += 1
                setup.progress.say(f"{'again':10} with other ports: one was taken meanwhile")
                continue
            done.append(last)
            over = setup.end is not None and time.monotonic() > setup.end
            if last.ok or over or number == restarts:
                return Report(tuple(done), time.monotonic() - setup.began)
            number += 1
            setup.progress.say(f"{'restart':10} {number} of {restarts}: {last.why}")
    except BaseException as error:
        done += [error.attempt] if hasattr(error, "attempt") else []
        vars(error)["report"] = Report(tuple(done), time.monotonic() - setup.began)
        raise


def _port_taken(attempt: Attempt) -> bool:
    return any(PORT_TAKEN in line for job in attempt.workers for line in end_of(job.log))


def _wait_for(hosts: Sequence[str], index: int, setup: Setup) -> None:
    """Wait until the other machines have names and answer; raise what is wrong after that time."""
    end = time.monotonic() + setup.startup
    said: set[str] = set()
    while True:
        workers = {f"worker {i}": address for i, address in enumerate(hosts)}
        mine, others = network(workers, f"worker {index}")
        if mine:
            raise ValueError(mine[0])
        if not others:
            return
        if time.monotonic() > end or (setup.end is not None and time.monotonic() > setup.end):
            raise RuntimeError(others[0])
        for sentence in others:
            if sentence not in said:
                setup.progress.say(f"{'waiting':10} {sentence}")
        said.update(others)
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
