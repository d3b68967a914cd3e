"""Processes that work on a word: what several of them get out of a machine at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence


def start(
    file: str, *arguments: object, python: str = sys.executable, **env: str
) -> subprocess.Popen:
    """Start a benchmark's file again, as a process that calls `serve`."""
    command, pipe = [python, file, *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | env)


def serve(work: Callable[[], float]) -> None:
    """Do the work for every line that comes in, and answer with its seconds."""
    for _ in sys.stdin:
        print(work(), flush=True)


def together(workers: Sequence[subprocess.Popen]) -> float:
    """Let the workers work at the same time; return the slowest one's seconds."""
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return max(float(worker.stdout.readline()) for worker in workers)


def stop(workers: Sequence[subprocess.Popen]) -> None:
    """End the workers."""
    for worker in workers:
        worker.stdin.close()
        worker.wait()
