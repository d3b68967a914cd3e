"""`mgpu cluster`: the launcher for a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import cast

from mgpu_helpers.cluster.run import run
from mgpu_helpers.cluster.slurm import from_slurm
from mgpu_helpers.jobs.process import as_ctrl_c
from mgpu_helpers.jobs.progress import Progress
from mgpu_helpers.wording import with_options

DESCRIPTION = """\
Run a Python script as all workers of a MultiWorkerMirroredStrategy. On one machine each worker gets
a share of the GPUs, or of the cores. Over several machines call it on each, with --hosts and
--index, or in Slurm with --from slurm; then one worker drives all GPUs of its machine. The script
needs a training loop of its own: the fit of Keras 3 fails under this strategy.

When one worker fails all are ended, the first that failed is named, and all are started again, up
to R times. TensorFlow listens on all interfaces of a machine: close its ports to strangers. The
exit status is 0 when all ended well, 1 when not, 2 when nothing could be started, 130 when stopped.
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Run the script as the arguments say, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        called,
        usage="%(prog)s [options] SCRIPT [-- arguments for the script]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="a Python file")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="on this machine; default: 2")
    where.add_argument("--hosts", metavar="A:P,B:P", help="the addresses of all machines")
    where.add_argument("--from", dest="source", choices=["slurm"], help="ask Slurm for them")
    add("--index", type=int, metavar="I", help="which of the hosts this machine is, from 0")
    add("--restarts", type=int, default=0, metavar="R", help="times to start again; default: 0")
    add("--logs", default="logs", metavar="DIR", help="what the workers print; default: logs")
    add("--time-limit", type=float, metavar="S", help="seconds for all attempts together")
    add("--grace", type=float, default=5.0, metavar="S", help="seconds from SIGTERM to SIGKILL; "
        "default: 5")  # fmt: skip
    add("--startup", type=float, default=60.0, metavar="S", help="seconds that a worker waits for "
        "the others; default: 60")  # fmt: skip
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        behind = "; arguments for the script stand behind --"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{behind}")
    as_ctrl_c()
    # A log may hold what the terminal cannot show.
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    say = Progress(True).say  # which does not mind that nobody reads any more
    try:
        hosts, index = options.hosts, options.index
        if hosts is not None:
            hosts = [host.strip() for host in hosts.split(",")]
        if options.source:
            if index is not None:
                raise ValueError(f"Slurm says which machine this is: leave --index {index} out.")
            hosts, index = from_slurm()
        report = run(
            options.script, arguments[end + 1 :], workers=options.workers, hosts=hosts, index=index,
            restarts=options.restarts, logs=options.logs, time_limit=options.time_limit,
            grace=options.grace, startup=options.startup,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        if hasattr(error, "report") and any(each.workers for each in error.report.attempts):
            say(f"\n{error.report}\n\n{error}")
            return 1
        parser.error(with_options(str(error), vars(options)))
    except KeyboardInterrupt as stopped:
        say(f"\n{getattr(stopped, 'report', 'stopped before a worker was started')}")
        return 130
    say(f"\n{report}")
    return 0 if report.ok else 1
