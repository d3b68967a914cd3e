"""What a runner says to a terminal, and the shape that its commands have."""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any, cast

from mgpu_helpers._formatting import error_line, with_options
from mgpu_helpers._processes.job import Job
from mgpu_helpers._processes.process import as_ctrl_c

TERMINAL, ELSEWHERE = 1.0, 600.0  # seconds between two lines of what is left


class Progress:
    """Lines for people: on a terminal the last one says what is left, and is rewritten in place."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.terminal = getattr(sys.stdout, "isatty", lambda: False)()
        self.every = TERMINAL if self.terminal else ELSEWHERE
        self.due = time.monotonic() + self.every
        self.shown = 0  # characters of the line that is to be rewritten

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._print(line + "\n")

    def must(self, line: str) -> None:
        """Say what a person has to know, on stderr where no progress is wanted."""
        self.say(line)
        if not self.wanted:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take away the line that says what is left."""
        if self.shown:
            self._print("\r" + " " * self.shown + "\r")
            self.shown, self.due = 0, time.monotonic()

    def left(self, jobs: Sequence[Job], running: Sequence[float], waiting: int) -> None:
        """Say what is left, from time to time; `running` is how long the running jobs run, s."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + self.every
        line = sentence(jobs, running, waiting)
        if not self.terminal:
            self.say(line)
            return
        line = line[: shutil.get_terminal_size().columns - 1]
        self._print("\r" + line.ljust(self.shown))
        self.shown = max(self.shown, len(line))

    def _print(self, text: str) -> None:
        if self.wanted:
            with contextlib.suppress(OSError):  # nobody reads any more, or the disk is full
                print(text, end="", flush=True)


def sentence(jobs: Sequence[Job], running: Sequence[float], waiting: int) -> str:
    """Say what is done, what runs, and for how long, by the mean length of the jobs done."""
    good = sum(job.ok for job in jobs)
    bad = len(jobs) - good - len(running) - waiting
    text = f"{good} of {len(jobs)} done, {f'{bad} failed, ' if bad else ''}{len(running)} running"
    lengths = [job.seconds for job in jobs if job.ok and job.seconds is not None]
    if not lengths:
        return text
    mean = sum(lengths) / len(lengths)
    left = [max(0.0, mean - ran) for ran in running] or [0.0]
    # Not before the last of those that run, nor before all is done that the places can share.
    seconds = max(*left, (sum(left) + waiting * mean) / len(left))
    about = f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{round(seconds / 60)} min"
    if seconds < 95:
        about = f"{max(1, math.ceil(seconds / 10)) * 10} s"
    return f"{text}, about {about} left"


def command(
    parser: argparse.ArgumentParser, arguments: Sequence[str],
    start: Callable[[argparse.Namespace, list[str]], Any],
    more: Callable[..., str],
) -> int:  # fmt: skip
    """Run jobs as a terminal asks, print their report and `more`; return the exit status.

    What follows -- is for the scripts, and `start` gets it beside the options.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        known = [word for word in arguments[:end] if word not in unknown]
        call = shlex.join([*known, "--", *unknown, *arguments[end + 1 :]])
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)}; arguments for the scripts stand behind "
            f"--, as in {parser.prog} {call}"
        )
    as_ctrl_c()
    # A log may hold what the terminal cannot show.
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    say = Progress(True).say  # which does not mind that nobody reads any more
    try:
        report = start(options, list(arguments[end + 1 :]))
    except (ValueError, RuntimeError, OSError) as error:
        report = getattr(error, "report", None)
        if report is None or not report.begun:
            parser.error(with_options(error_line(error), vars(options)))
        say(f"\n{report}\n\n{error}")
        return 1
    except KeyboardInterrupt as stopped:
        say(f"\n{getattr(stopped, 'report', None) or 'stopped before anything was started'}")
        return 130
    say(f"\n{report}{more(options, report)}")
    return 0 if report.ok else 1
