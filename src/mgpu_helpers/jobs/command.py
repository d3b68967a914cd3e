"""Run scripts and other programs, each on a GPU of its own, or on a core where there is no GPU.

They start in order, the next as soon as a device is free. What follows -- is given to every job.
The exit status is 0 when all ended well, 1 when one did not, 2 when nothing could be started, 130
when stopped.

GPUs on which other people's processes compute, or with less than a tenth of their memory free,
are left alone: one line names them and says why. They get jobs once they are free; where all are in
use, the jobs wait. --busy uses them all the same, and so does --devices with their numbers.

A SCRIPT is a Python file, another script (wrapper.sh), a program (nvidia-smi), or one with its own
arguments in quotes: "python3 -m train --epochs 3".

A line of JSON is added to DIR/jobs.jsonl when a job starts, with the status "running", and another
when it has ended. The last line that a job prints and that is a JSON object is its result. It is in
the table at the end, and in that file, where {"loss": 0.25} becomes the column result_loss. With
pandas, which the extra "tables" installs, pandas.read_json("DIR/jobs.jsonl", lines=True) reads it.

With --skip-done each job is done once: what is done by that file is left out, what failed or was
stopped is tried again, and what still runs, left by a runner that was killed or started by another
one, is waited for. So the same line, called again or in a second terminal, goes on with the work.

Ctrl-C ends all jobs, with everything that they have started; a second Ctrl-C does not wait for
them. Where DIR cannot be written, as on a full disk, nothing more starts, and nothing is lost.

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

from mgpu_helpers._files import check_script
from mgpu_helpers._formatting import number, signal_name, whole
from mgpu_helpers._processes import terminal
from mgpu_helpers.jobs import start, sweep
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
    add("--skip-done", action="store_true", help="leave out what is done, and wait for what runs")
    add("--devices", type=numbers, metavar="0,1", help="only these; default: all")
    add("--free", type=whole, metavar="N", help="use N devices at a time, the freest first")
    add("--busy", action="store_true", help="use also GPUs that others use")
    add("--per-device", type=whole, default=1, metavar="N", help="jobs that share one; default: 1")
    add("--devices-each", type=whole, default=1, metavar="N",
        help="devices for each job; default: 1")  # fmt: skip
    add("--time-limit", type=number, metavar="S", help="seconds for each job")
    add("--logs", default="logs", metavar="DIR", help="what they print goes here; default: logs")
    return terminal.command(parser, arguments, _run, _failed)


def numbers(text: str) -> list[int]:
    """Read the numbers of devices."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of devices: write their numbers with commas, as 0,1"
        ) from None


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
    return start.run(commands, names=names, **same)


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
    try:
        first, *rest = shlex.split(word) or [word]
    except ValueError:
        raise ValueError(
            f"In {word} a quotation mark is not closed: close it, or write \\' for an apostrophe."
        ) from None
    if rest:
        name, command = program(first)
        module = len(rest) > 1 and rest[0] == "-m"
        return rest[1] if module else name, [*command, *rest]
    if os.path.isdir(word):
        raise ValueError(f"{word!r} is a folder: name a script in it, or a program.")
    raise ValueError(
        f"There is no file {word!r} here, and no program of that name: name a script, a program, "
        "or one with its arguments in quotes, as in 'python -m train'."
    )


def _of_file(word: str) -> list[str]:
    if word.endswith(".py"):
        check_script(word)
        return [sys.executable, word]
    try:
        with open(word, "rb") as file:
            first = os.fsdecode(file.readline(256)).strip()
    except OSError as error:
        raise ValueError(
            f"{word!r} cannot be read ({error.strerror}): see that it is yours to read."
        ) from None
    if first.startswith("#!") and len(first) > 2:  # as the system reads it
        return [*first[2:].split(maxsplit=1), word]
    if word.endswith(".sh"):
        return ["sh", word]
    if os.access(word, os.X_OK):
        return [word if os.sep in word else f".{os.sep}{word}"]  # or PATH would be searched
    raise ValueError(
        f"{word!r} is no program and no Python file, and its first line names none: begin it with "
        "a line as #!/bin/sh, chmod +x it, or name the program too, as in "
        f'"bash {shlex.quote(word)}".'
    )
