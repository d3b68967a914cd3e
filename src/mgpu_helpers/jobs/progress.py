"""What a runner says: a line for each event, and how much is left and until when."""

from __future__ import annotations

import contextlib
import heapq
import math
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from mgpu_helpers.jobs.job import Job

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
        if self.wanted:
            self.say(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take away the line that says what is left."""
        if self.shown:
            self._print("\r" + " " * self.shown + "\r")
            self.shown = 0
            self.due = 0.0

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
    """Say what is done, what runs, and until when, by the mean length of the jobs that are done."""
    good = sum(job.ok for job in jobs)
    bad = len(jobs) - good - len(running) - waiting
    text = f"{good} of {len(jobs)} done, {f'{bad} failed, ' if bad else ''}{len(running)} running"
    lengths = [job.seconds for job in jobs if job.ok and job.seconds is not None]
    if not lengths:
        return text
    seconds = seconds_left(sum(lengths) / len(lengths), running, waiting)
    now = datetime.now()
    until = now + timedelta(seconds=seconds)
    clock = f"{until:%H:%M}" if until.date() == now.date() else f"{until:%a %H:%M}"
    return f"{text}, about {_about(seconds)} left (until {clock})"


def seconds_left(length: float, running: Sequence[float], waiting: int) -> float:
    """Estimate when all has ended if each job takes this long; `running` run so long already.

    >>> seconds_left(60, [50, 20], 3)  # they end after 10 and 40 s, and 70, 100 and 130 s
    130
    """
    ends = [max(0, length - ran) for ran in running] or [0]
    heapq.heapify(ends)
    for _ in range(waiting):
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def _about(seconds: float) -> str:
    if seconds < 95:
        return f"{max(1, math.ceil(seconds / 10)) * 10} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
