"""`run`: start a script as all workers of a cluster, and all again when one has failed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._processes import locks
from mgpu_helpers._processes.job import end_of
from mgpu_helpers._processes.locks import Place
from mgpu_helpers._processes.pool import chosen, left_alone, others_use
from mgpu_helpers._processes.process import seconds
from mgpu_helpers._processes.terminal import Progress
from mgpu_helpers.cluster import addresses, asked
from mgpu_helpers.cluster.attempt import Run, Workers
from mgpu_helpers.cluster.probing import network
from mgpu_helpers.cluster.report import Report
from mgpu_helpers.cluster.tf_config import text_problems

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
    stalled: float | None = 600.0,
    hosts: Sequence[str] | None = None,
    index: int | None = None,
    busy: bool = False,
    progress: bool = True,
    quiet: bool = False,
) -> Report:
    """Run a Python script as all workers of a MultiWorkerMirroredStrategy, and say what happened.

    On one machine `workers` processes, 2 when None, stand for machines: each gets TF_CONFIG with
    ports that are free, an equal share of the GPUs, or of the cores where there are none, and a log
    `worker_0.log` in the folder `logs`. Over several machines make the same call on each, with the
    `hosts` of all ("host:port") and this one's `index`; then one worker drives all GPUs here.

    GPUs that others use are left alone, by the rule of `jobs.run`: one line names them, and the
    workers share the rest. With hosts that is refused, because every worker of the strategy has to
    have as many GPUs. With busy=True nobody looks.

    While they run, what worker 0 prints is shown, without TensorFlow's own messages; quiet=True
    leaves it to the log, and progress=False shows nothing at all.

    When one worker fails all are ended: SIGTERM, and SIGKILL `grace` seconds later. The report
    names the first that failed, and shows the end of its log. All are then started again, up to
    `restarts` times; MGPU_ATTEMPT counts that, and it is for the script to read its checkpoint.
    `time_limit` is in seconds, for all attempts together; None sets no limit.

    They are ended likewise when nothing goes on in any worker of this machine for `stalled`
    seconds, before the first step as well: no step, no line of output, and nothing compiled, read
    or saved. The report then shows what each printed last and where its Python was, and whom a
    worker waits for in the strategy's constructor. None sets no limit.

    A worker gives a result by printing a JSON object, `print(json.dumps({"loss": loss}))`. The last
    that is a line of its log is the `result` of `report[0]`, of worker 0; {} where there is none. A
    list, text or number alone is no result, since libraries print such lines: put it in an object.

    Ctrl-C or an exception here ends all workers; what is raised carries the report as `.report`. If
    this process is killed, its workers are, too. With them ends what they started; what has started
    a session of its own, at the latest with the last of them, on Linux. TensorFlow listens on all
    interfaces of a machine, whatever the addresses say.

    >>> script = "import json, os; print(json.dumps({'attempt': os.environ['MGPU_ATTEMPT']}))"
    >>> _ = open("hello.py", "w").write(f"{script}; print([3])")
    >>> report = run("hello.py", workers=2, progress=False)
    >>> report.ok, [worker.result for worker in report]
    (True, [{'attempt': '0'}, {'attempt': '0'}])
    """
    command = asked.command(script, args)
    restarts = whole_number("restarts", restarts, "a number of restarts", 0)
    for name, value in {"time_limit": time_limit, "grace": grace, "stalled": stalled}.items():
        seconds(name, value)
    if hosts is None and index is None:
        own = list(range(whole_number("workers", 2 if workers is None else workers, "a number", 1)))
    else:
        hosts = asked.machines(workers, hosts, index)
        config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        for problem in text_problems(config):
            raise ValueError(problem)
        own = [int(index or 0)]
    began = time.monotonic()
    end = began + (float("inf") if time_limit is None else time_limit)
    limit, said = float("inf") if stalled is None else stalled, Progress(progress)
    shares = dict(zip(own, _shared_out(len(own), _free(hosts, busy, said)), strict=True))
    run = Run(command, shares, asked.folder(logs), grace, limit, began, end,
              said, quiet)  # fmt: skip
    with _alone(run):
        if hosts:
            _wait_for(hosts, own[0], run)
        return _attempts(run, hosts, restarts)


def _free(hosts: Sequence[str] | None, busy: bool, progress: Progress) -> list[Place]:
    """List the places that may be used, without the GPUs that others use."""
    kind, pool = chosen(None)
    if kind == "GPU" and not busy and not _in_a_job():  # whose runner has looked
        others = others_use(pool)
        if others and hosts:
            raise RuntimeError(
                f"{left_alone(others)}, and every machine has to use as many GPUs: name as many on "
                "each in CUDA_VISIBLE_DEVICES, or give the option busy."
            )
        if others:
            progress.must(f"{'skipped':10} {left_alone(others)}; the option busy overrules that")
        pool = {number: uuid for number, uuid in pool.items() if number not in others}
    return locks.places(kind, pool)


def _in_a_job() -> bool:
    return "MGPU_JOB_DEVICE" in os.environ


def _shared_out(n: int, places: list[Place]) -> list[list[Place]]:
    """Share the devices out in equal parts; more workers than cores have all cores in common."""
    if n > len(places) and (not places or places[0].kind == "GPU"):
        raise ValueError(
            f"workers={n} for {counted(len(places), 'GPU')}, and two workers cannot share one: ask "
            "for fewer, or set MGPU_MODE=cores."
        )
    each = len(places) // n
    return [places[i * each : (i + 1) * each] or places for i in range(n)]


@contextlib.contextmanager
def _alone(run: Run) -> Iterator[None]:
    """Hold the GPUs against other runners, and the logs against other clusters, for the block."""
    with contextlib.ExitStack() as held:
        for index, places in run.shares.items():
            file = held.enter_context(asked.opened(run.log(index, 0)))
            if not locks.lock_logs(file.fileno()):
                raise RuntimeError(
                    f"Another cluster writes to {file.name}: choose another folder with logs=..."
                )
            # Cores are not locked: the kernel shares them out. In a job the runner has the locks.
            for place in () if places[0].kind == "core" or _in_a_job() else places:
                if not place.lock():
                    raise RuntimeError(
                        f"{place} is held by another runner: wait until that has ended, or "
                        f"name other GPUs in CUDA_VISIBLE_DEVICES. lsof {place.path} shows it."
                    )
                held.callback(place.release)
        yield


def _attempts(run: Run, hosts: Sequence[str] | None, restarts: int) -> Report:
    done = []
    number = moved = 0
    try:
        while True:
            where = hosts or [f"127.0.0.1:{p}" for p in addresses.free_ports(len(run.shares))]
            last = Workers(run, number, where).run()
            ends = (line for job in last.workers for line in end_of(job.log))
            if not (last.ok or hosts) and moved < NEW_PORTS and any(PORT_TAKEN in x for x in ends):
                moved += 1
                run.progress.say(f"{'again':10} with other ports: one was taken meanwhile")
                continue
            done.append(last)
            if last.ok or time.monotonic() > run.end or number == restarts:
                return Report(tuple(done), time.monotonic() - run.began)
            number += 1
            doing = f"\n{last.doing}" if last.doing else ""
            run.progress.say(f"{'restart':10} {number} of {restarts}: {last.why}{doing}")
    except BaseException as error:
        done += [vars(error)["report"]] if hasattr(error, "report") else []
        vars(error)["report"] = Report(tuple(done), time.monotonic() - run.began)
        raise


def _wait_for(hosts: Sequence[str], index: int, run: Run) -> None:
    """Wait until the other machines have names and answer; raise what is wrong after that time."""
    end = min(run.end, time.monotonic() + run.stalled)
    said: set[str] = set()
    while True:
        workers = {f"worker {i}": address for i, address in enumerate(hosts)}
        mine, others = network(workers, f"worker {index}")
        if mine:
            raise ValueError(mine[0])
        if not others:
            return
        if time.monotonic() > end:
            raise RuntimeError(others[0])
        for sentence in set(others) - said:
            run.progress.say(f"{'waiting':10} {sentence}")
        said.update(others)
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
