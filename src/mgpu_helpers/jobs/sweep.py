"""One script with many arguments: every combination of some values, or a file of lines."""

from __future__ import annotations

import csv
import itertools
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def grid(**axes: Iterable[Any]) -> dict[str, list[str]]:
    """Give the arguments of every combination of the axes' values, by a name that says them.

    An argument is one word, as `--width=32`: argparse, absl and click all take that, also for
    values that begin with a dash, as `--shift=-1e-3`. Values are written by str.

    >>> sweep = grid(width=[32, 64], seed=[0])
    >>> sweep
    {'width=32,seed=0': ['--width=32', '--seed=0'], 'width=64,seed=0': ['--width=64', '--seed=0']}
    >>> import sys
    >>> commands = [[sys.executable, "-c", "pass", *arguments] for arguments in sweep.values()]
    >>> run(commands, names=sweep, progress=False).ok
    True
    """
    words = []
    for axis, values in axes.items():
        texts = [values] if isinstance(values, str) else list(map(str, values))
        if not texts or "" in texts or len(set(texts)) < len(texts):
            raise ValueError(f"The axis {axis} has {texts}: give it values, and each of them once.")
        words.append([f"--{axis}={text}" for text in texts])
    return {called(each): list(each) for each in itertools.product(*words)}


def parsed_grid(texts: Sequence[str]) -> list[list[str]]:
    """Read the axes of a grid as a terminal gives them: width=32,64 seed=0,1."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals or not re.fullmatch(r"\w[\w.-]*", axis) or axis in axes:
            raise ValueError(
                f"{text!r} is no axis of a grid, or one of two: write it once, as in width=32,64."
            )
        try:
            axes[axis] = next(csv.reader([values], strict=True), [])
        except csv.Error as error:
            raise ValueError(
                f"{text!r} cannot be read ({error}): quote what has a comma, "
                "as in 'shape=\"2,3\",\"4,5\"'."
            ) from None
    return list(grid(**axes).values())


def lines(path: str) -> list[list[str]]:
    """Read a file with the arguments of a job on each line; "-" is standard input."""
    what = "standard input" if path == "-" else repr(path)
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(
            f"{what} cannot be read ({error.strerror}): name a file with a line of arguments for "
            "each job, or - for standard input."
        ) from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{what} is not UTF-8 in line {line}: write it as that, as with iconv -t UTF-8."
        ) from None
    jobs = []
    for i, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        try:
            jobs.append(shlex.split(line))
        except ValueError as error:
            said = str(error)[0].lower() + str(error)[1:]
            raise ValueError(
                f"Line {i} of {what} cannot be split into arguments ({said}): close the quotes, or "
                "write \\' for an apostrophe."
            ) from None
    jobs = [words for words in jobs if words]
    if not jobs:
        raise ValueError(f"{what} has no jobs: write a line of arguments for each.")
    return jobs


def called(arguments: Sequence[str]) -> str:
    """Name a job after its arguments.

    >>> called(["--width", "32", "--seed=0", "--fast", "-v"])
    'width=32,seed=0,fast,v'
    """
    parts: list[str] = []
    takes_a_value = False  # the last part is an option whose value may be the next word
    for word in arguments:
        option = re.match("--?[A-Za-z]", word)
        if takes_a_value and not option:
            parts[-1] += f"={word}"
        else:
            parts.append(word.lstrip("-") if option else word)
        takes_a_value = bool(option) and "=" not in word
    return ",".join(parts)


def numbered(names: Sequence[str]) -> list[str]:
    """Number the names that come more than once.

    >>> numbered(["a", "b", "a"])
    ['a-1', 'b', 'a-2']
    """
    total, seen = Counter(names), Counter[str]()
    found = list(names)
    for i, name in enumerate(names):
        while total[found[i]] > 1 or (found[i] != name and found[i] in total):
            seen[name] += 1
            found[i] = f"{name}-{seen[name]}"
    return found
