"""`mgpu run`: the runner for a terminal."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from mgpu_helpers.jobs import sweep
from mgpu_helpers.jobs.process import as_ctrl_c
from mgpu_helpers.jobs.programs import program
from mgpu_helpers.jobs.progress import Progress
from mgpu_helpers.jobs.run import run
from mgpu_helpers.wording import with_options

WIDTH = 1000  # characters of a line of a log that are shown
DESCRIPTION = """\
Run scripts and other programs, each on a GPU of its own, or on a core where there is no GPU; in
order, the next as soon as a device is free. What follows -- is given to every job. The exit status
is 0 when all ended well, 1 when one did not, 2 when nothing could be started, 130 when stopped.

GPUs on which other people's processes compute, or with less than a tenth of their memory free,
are left alone: one line names them and says why. They get jobs once they are free; where all are in
use, the jobs wait. --busy uses them all the same, and so does --devices with their numbers.
"""
AFTER = """\
A SCRIPT is a Python file, another script (wrapper.sh), a program (nvidia-smi), or one with its own
arguments in quotes: "python3 -m train --epochs 3".

A line of JSON about each job is added to DIR/jobs.jsonl. The last line that a job prints and that
is a JSON object is its result. It is in the table at the end, and in that file, where
{"loss": 0.25} becomes the column result_loss. With pandas, which the extra "tables" installs,
pandas.read_json("DIR/jobs.jsonl", lines=True) reads it.

  %(prog)s train.py --grid width=32,64 seed=0,1,2 --skip-done -- --epochs 3

is six jobs: train.py --epochs 3 --width=32 --seed=0, and so on. Quote commas in values:
'shape="2,3","4,5"'. In a FILE each line has a job's arguments, as a shell splits them; empty
lines and # comments do not count.
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Run the scripts as the arguments say, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        called,
        usage="%(prog)s SCRIPT [SCRIPT ...] [options] [-- arguments for every job]",
        description=DESCRIPTION,
        epilog=AFTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT", help="what to run; before --grid")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--grid", nargs="+", action="extend", metavar="NAME=A,B", help="a job for "
                     "every combination: --NAME=A, --NAME=B")  # fmt: skip
    own.add_argument("--each", metavar="FILE", help="a job for every line of arguments; - is "
                     "standard input")  # fmt: skip
    add = parser.add_argument
    add("--skip-done", action="store_true", help="leave out the commands that DIR/jobs.jsonl says "
        "are done")  # fmt: skip
    add("--devices", type=_numbers, metavar="0,1", help="only these; default: all")
    add("--free", type=int, metavar="N", help="use N devices at a time, the freest first")
    add("--busy", action="store_true", help="use also GPUs that others use")
    add("--per-device", type=int, default=1, metavar="N", help="jobs that share a device; "
        "default: 1")  # fmt: skip
    add("--devices-each", type=int, default=1, metavar="N", help="devices for each job; default: 1")
    add("--time-limit", type=float, metavar="S", help="seconds for each job")
    add("--logs", default="logs", metavar="DIR", help="what the jobs print goes here; "
        "default: logs")  # fmt: skip
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        left, known = list(unknown), []
        for word in arguments[:end]:
            (left.pop(0) if left[:1] == [word] else known.append(word))
        call = shlex.join([*known, "--", *unknown, *arguments[end + 1 :]])
        behind = f"arguments for the scripts stand behind --, as in {called} {call}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; {behind}")
    as_ctrl_c()
    # A log may hold what the terminal cannot show.
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    say = Progress(True).say  # which does not mind that nobody reads any more
    try:
        commands, names = _commands(options, arguments[end + 1 :])
        report = run(
            commands, names=names, devices=options.devices, per_device=options.per_device,
            devices_each=options.devices_each, free=options.free, busy=options.busy,
            time_limit=options.time_limit, logs=options.logs, skip_done=options.skip_done,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        failed = getattr(error, "report", ())
        if any(job.start is not None for job in failed):
            say(f"\n{failed}\n\n{error}")
            return 1
        parser.error(with_options(str(error), vars(options)))
    except KeyboardInterrupt as stopped:
        begun = getattr(stopped, "report", None)  # None before the first script starts
        say(f"\n{begun or 'stopped before a script was started'}")
        return 130
    say(f"\n{report}\n\nwhat they printed is in {Path(options.logs)}")
    for job in report.jobs:
        if not job.ok:
            last = "\n".join(line[:WIDTH] for line in job.tail.splitlines()) or "(nothing)"
            say(f"\n{job.name}, {job.how}; the end of {job.log}:\n{last}")
    return 0 if report.ok else 1


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no devices: write their numbers with commas between, as 0,1"
        ) from None


def _commands(
    options: argparse.Namespace, common: Sequence[str]
) -> tuple[list[list[str]], list[str]]:
    """Make the commands and their names."""
    programs = [program(script) for script in options.scripts]  # now, and not hours later
    own: list[list[str]] = [[]]
    if options.each is not None:
        own = sweep.lines(options.each)
    elif options.grid:
        own = sweep.parsed_grid(options.grid)
    # A job's own arguments come last, as argparse takes the last value of an option.
    commands = [[*command, *common, *each] for _, command in programs for each in own]
    # One script in a sweep is known, and not named.
    named = len(programs) > 1 or own == [[]]
    names = [sweep.called([name] * named + each) for name, _ in programs for each in own]
    return commands, sweep.numbered(names)
