"""Run a Python script as all workers of a MultiWorkerMirroredStrategy.

    mgpu cluster --workers 2 train.py -- --epochs 3
    mgpu cluster --hosts a:20000,b:20000 --index 0 --restarts 2 train.py    # --index 1 on b
    srun --ntasks-per-node=1 mgpu cluster --from slurm train.py

On one machine each worker gets a share of the GPUs that nobody else uses, or of the cores. Over
several machines call it on each, or in Slurm with srun; then one worker drives all GPUs of its
machine. The script makes its model in the scope of fit.strategy() of mgpu_helpers (under the
strategy alone Keras 3's fit fails), and all workers read the same data in the same order:

    with fit.strategy(devices.setup()).scope():
        model = keras.Sequential([...])
        model.compile(...)
    backup = keras.callbacks.BackupAndRestore("/shared/backup")
    model.fit(x, y, callbacks=[backup])

What worker 0 prints is shown while it runs, and what each prints is in its log. When one worker
fails all are ended, the first that failed is named, and all are started again, up to R times. They
are ended, too, when nothing goes on in any of them for --stalled seconds: no step, no line of
output, and nothing compiled, read or saved. Then the last line of each is shown, and the stack of
its Python. TensorFlow listens on all interfaces of a machine: close its ports to strangers.

Ctrl-C, SIGTERM and SIGHUP end all workers. In a fit with BackupAndRestore all of them first save
after the same step, and the next start of this command goes on with the next one, to the same bits;
SIGTERM at one worker does the same. Slurm sends it with --signal=TERM@120 before the time is over.
A second Ctrl-C ends all at once. After a crash fit goes on from the last whole pass: leave out
BackupAndRestore(save_freq=...), with which Keras itself repeats a part of a pass.

exit status: 0 when all ended well, 1 when a worker failed, 2 when nothing could be started, 75 when
all have saved, 124 when nothing went on or the time limit was over, 130 when stopped by Ctrl-C, 143
by SIGTERM and 129 by SIGHUP without having saved.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

from mgpu_helpers._processes import terminal
from mgpu_helpers.cluster.addresses import from_slurm
from mgpu_helpers.cluster.launch import run
from mgpu_helpers.cluster.report import SAVED, Report


def main(arguments: Sequence[str], called: str) -> int:
    """Run the script as the arguments say, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        called,
        usage="%(prog)s [options] SCRIPT [-- arguments for the script]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="a Python file; what follows -- are its arguments")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="processes of this machine that "
        "stand for machines; default: 2")  # fmt: skip
    where.add_argument("--hosts", metavar="A:P,B:P", help="the addresses of all machines, in the "
        "same order on each, with --index")  # fmt: skip
    where.add_argument("--from", dest="source", choices=["slurm"], help="ask Slurm for both; call "
        "it with srun, one task a machine")  # fmt: skip
    add("--index", type=int, metavar="I", help="which of the hosts this machine is, from 0")
    add("--restarts", type=int, default=0, metavar="R", help="times that all start again after a "
        "failure; default: 0")  # fmt: skip
    add("--stalled", type=float, default=600.0, metavar="S", help="seconds without anything that "
        "goes on, after which all are ended; default: 600, inf for no limit")  # fmt: skip
    add("--time-limit", type=float, metavar="S", help="seconds for all attempts together")
    add("--grace", type=float, default=5.0, metavar="S", help="seconds from SIGTERM to SIGKILL for "
        "a worker that does not save; default: 5")  # fmt: skip
    add("--logs", default="logs", metavar="DIR", help="what each worker prints goes to "
        "DIR/worker_0.log and so on; default: logs")  # fmt: skip
    add("--quiet", action="store_true", help="do not show what worker 0 prints")
    add("--busy", action="store_true", help="use also GPUs that others use")
    ended: list[int] = []

    def start(options: argparse.Namespace, args: list[str]) -> Report:
        _listen()
        try:
            report = _run(options, args)
        except Told as told:
            saved = getattr(getattr(told, "report", None), "saved", False)
            ended.append(SAVED if saved else 128 + told.number)
            raise
        ended.append(report.status)
        return report

    status = terminal.command(parser, arguments, start, lambda options, report: "")
    return ended[0] if ended else status


class Told(KeyboardInterrupt):
    """This launcher was told to end by a signal that is no Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _listen() -> None:
    """Let the first signal end the workers, which may save; later ones but Ctrl-C are nothing.

    Slurm sends SIGTERM again at its time limit, when a worker may be saving yet.
    """
    heeded = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
              if signal.getsignal(each) is not signal.SIG_IGN]  # fmt: skip

    def stop(number: int, frame: Any) -> NoReturn:
        for other in heeded:
            if other != signal.SIGINT:
                signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Told(number)

    for each in heeded:
        signal.signal(each, stop)


def _run(options: argparse.Namespace, args: list[str]) -> Report:
    asked = vars(options)
    if asked["hosts"] is not None:
        asked["hosts"] = [host.strip() for host in options.hosts.split(",")]
    if asked.pop("source"):
        if options.index is not None:
            raise ValueError("Slurm says which machine this is: leave --index out.")
        asked["hosts"], asked["index"] = from_slurm()
    return run(asked.pop("script"), args, **asked)
