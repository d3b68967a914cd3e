"""Run a Python script as all workers of a MultiWorkerMirroredStrategy.

On one machine each worker gets a share of the GPUs that nobody else uses, or of the cores. Over
several machines call it on each, with --hosts and --index, or in Slurm with --from slurm; then one
worker drives all GPUs of its machine. The script makes its model in the scope of fit.strategy() of
mgpu_helpers, and calls model.fit; under the strategy alone Keras 3's fit fails.

When one worker fails all are ended, the first that failed is named, and all are started again, up
to R times. TensorFlow listens on all interfaces of a machine: close its ports to strangers. The
exit status is 0 when all ended well, 1 when not, 2 when nothing could be started, 130 when stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mgpu_helpers._processes import terminal
from mgpu_helpers.cluster.addresses import from_slurm
from mgpu_helpers.cluster.launch import run
from mgpu_helpers.cluster.report import Report


def main(arguments: Sequence[str], called: str) -> int:
    """Run the script as the arguments say, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        called,
        usage="%(prog)s [options] SCRIPT [-- arguments for the script]",
        description=__doc__,
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
    add("--busy", action="store_true", help="use also GPUs that others use")
    add("--logs", default="logs", metavar="DIR", help="what the workers print; default: logs")
    add("--time-limit", type=float, metavar="S", help="seconds for all attempts together")
    add("--grace", type=float, default=5.0, metavar="S", help="seconds from SIGTERM to SIGKILL; "
        "default: 5")  # fmt: skip
    add("--startup", type=float, default=60.0, metavar="S", help="seconds that a worker waits for "
        "the others; default: 60")  # fmt: skip
    return terminal.command(parser, arguments, _run, lambda options, report: "")


def _run(options: argparse.Namespace, args: list[str]) -> Report:
    asked = vars(options)
    if asked["hosts"] is not None:
        asked["hosts"] = [host.strip() for host in options.hosts.split(",")]
    if asked.pop("source"):
        if options.index is not None:
            raise ValueError("Slurm says which machine this is: leave --index out.")
        asked["hosts"], asked["index"] = from_slurm()
    return run(asked.pop("script"), args, **asked)
