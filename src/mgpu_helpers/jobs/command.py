"""Run scripts and other programs, each on a GPU of its own, or on a core where there is no GPU.

They start in order, the next as soon as a device is free. What follows -- is given to every job.
The exit status is 0 when all ended well, 1 when one did not, 2 when nothing could be started, 130
when stopped.

GPUs on which other people's processes compute, or with less than a tenth of their memory free,
are left alone: one line names them and says why. They get jobs once they are free; where all are in
use, the jobs wait. --busy uses them all the same, and so does --devices with their numbers.

A SCRIPT is a Python file, another script (wrapper.sh), a program (nvidia-smi), or one with its own
arguments in quotes: "python3 -m train --epochs 3".

A line of JSON about each job is added to DIR/jobs.jsonl. The last line that a job prints and that
is a JSON object is its result. It is in the table at the end, and in that file, where
{"loss": 0.25} becomes the column result_loss. With pandas, which the extra "tables" installs,
pandas.read_json("DIR/jobs.jsonl", lines=True) reads it.

  %(prog)s train.py --grid width=32,64 seed=0,1,2 --skip-done -- --epochs 3

is six jobs: train.py --epochs 3 --width=32 --seed=0, and so on. Quote commas in values:
'shape="2,3","4,5"'. In a FILE each line has a job's arguments, as a shell splits them; empty
lines and those that begin with # do not count.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mgpu_helpers._formatting import signal_name
from mgpu_helpers._processes import terminal
from mgpu_helpers.jobs import queue, sweep
from mgpu_helpers.jobs.records import Report

WIDTH = 1000  # characters of a line of a log that are shown


def main(arguments: Sequence[str], called: str) -> int:
    """Run the scripts as the arguments say, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        called,
        usage="%(prog)s SCRIPT [SCRIPT ...] [options] [-- arguments for every job]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT", help="what to run; before --grid")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--grid", nargs="+", action="extend", metavar="NAME=A,B",
                     help="a job for every combination: --NAME=A, --NAME=B")  # fmt: skip
    own.add_argument("--each", metavar="FILE",
                     help="a job for every line of arguments; - is standard input")  # fmt: skip
    add = parser.add_argument
    add("--skip-done", action="store_true", help="leave out what DIR/jobs.jsonl says is done")
    add("--devices", type=numbers, metavar="0,1", help="only these; default: all")
    add("--free", type=int, metavar="N", help="use N devices at a time, the freest first")
    add("--busy", action="store_true", help="use also GPUs that others use")
    add("--per-device", type=int, default=1, metavar="N", help="jobs that share one; default: 1")
    add("--devices-each", type=int, default=1, metavar="N", help="devices for each job; default: 1")
    add("--time-limit", type=float, metavar="S", help="seconds for each job")
    add("--logs", default="logs", metavar="DIR", help="what they print goes here; default: logs")
    return terminal.command(parser, arguments, _run, _failed)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _run(options: argparse.Namespace, common: list[str]) -> Report:
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
    same = {name: value for name, value in vars(options).items()
            if name not in ("scripts", "grid", "each")}  # fmt: skip
    return queue.run(commands, names=names, **same)


def _failed(options: argparse.Namespace, report: Report) -> str:
    """Show the ends of the logs of what failed."""
    texts = [f"\n\nwhat they printed is in {Path(options.logs)}"]
    for job in report:
        if not job.ok:
            how, code = job.status, job.returncode
            if how == "failed" and code:
                with_status = f" with exit status {code}"
                how += with_status if code > 0 else f", {signal_name(-code)} ended it"
            tail = "\n".join(line[:WIDTH] for line in job.tail.splitlines()) or "(nothing)"
            texts.append(f"\n\n{job.name}, {how}; the end of {job.log}:\n{tail}")
    return "".join(texts)


def program(word: str) -> tuple[str, list[str]]:
    """Give the name and the command of a script, of a program, or of both with its arguments.

    A Python file runs in this Python, executable or not, and another script by the program of its
    first line. A ValueError says what the word is instead.

    >>> program("python -m train --epochs 3")
    ('train', ['python', '-m', 'train', '--epochs', '3'])
    """
    if os.path.isfile(word):
        return Path(word).stem, _of_file(word)
    if shutil.which(word):
        return Path(word).name, [word]
    first, *rest = shlex.split(word) or [word]
    if rest:
        name, command = program(first)
        module = len(rest) > 1 and rest[0] == "-m"
        return rest[1] if module else name, [*command, *rest]
    raise ValueError(
        f"There is no file {word!r} here, and no program of that name: name a script, a program, "
        "or one with its arguments in quotes, as in 'python -m train'."
    )


def _of_file(word: str) -> list[str]:
    if word.endswith(".py"):
        return [sys.executable, word]
    with open(word, "rb") as file:
        first = os.fsdecode(file.readline(256)).strip()
    if first.startswith("#!") and len(first) > 2:  # as the system reads it
        return [*first[2:].split(maxsplit=1), word]
    if word.endswith(".sh"):
        return ["sh", word]
    if os.access(word, os.X_OK):
        return [word if os.sep in word else f".{os.sep}{word}"]  # or PATH would be searched
    raise ValueError(
        f"{word!r} is no program and no Python file, and its first line names none: begin it with "
        f"a line as #!/bin/sh, chmod +x it, or name the program too, as in 'bash {word}'."
    )
