"""One script with many arguments: every combination of some values, or a file of lines."""

from __future__ import annotations

import csv
import io
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
        if not re.fullmatch(r"\w[\w.-]*", axis):
            raise ValueError(f"{axis!r} is no name of an axis: write it as in width=32,64.")
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            raise TypeError(f"{axis}={values!r} is not a list of values: use {axis}=[{values!r}].")
        texts = [str(value) for value in values]
        twice = [text for text, count in Counter(texts).items() if count > 1]
        if not texts or "" in texts or twice:
            said = f"{twice[0]!r} twice" if twice else "an empty value" if texts else "no values"
            raise ValueError(f"The axis {axis} has {said}: give it each value once.")
        words.append([f"--{axis}={text}" for text in texts])
    if not words:
        raise ValueError("A grid without an axis has no jobs: write it as in width=32,64.")
    return {called(each): list(each) for each in itertools.product(*words)}


def parsed_grid(texts: Sequence[str]) -> list[list[str]]:
    """Read the axes of a grid as a terminal gives them: width=32,64 seed=0,1."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is no axis of a grid: write it as in width=32,64.")
        if axis in axes:
            raise ValueError(f"The axis {axis} is given twice: write all its values after one =.")
        try:
            axes[axis] = next(csv.reader([values], strict=True), [])
        except csv.Error as error:
            raise ValueError(
                f"{text!r} cannot be read ({error}): quote what has a comma, "
                'as in shape="2,3","4,5".'
            ) from None
    return list(grid(**axes).values())


def lines(path: str) -> list[list[str]]:
    """Read a file with the arguments of a job on each line; "-" is standard input."""
    where = "Standard input" if path == "-" else repr(path)
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ValueError(
            f"{where} cannot be read ({reason}): name a file with a line of arguments for each job."
        ) from None
    jobs = []
    for i, line in enumerate(text.splitlines(), 1):
        try:
            jobs.append(_split(line))
        except ValueError as error:
            raise ValueError(
                f"{where}, line {i}, cannot be split into arguments ({error}): close the quote, or "
                "put a backslash before it."
            ) from None
    jobs = [words for words in jobs if words]
    if not jobs:
        raise ValueError(f"{where} has no jobs: write a line of arguments for each.")
    return jobs


def _split(line: str) -> list[str]:
    """Split a line as a shell does; shlex alone would end the word a#b before the #."""
    text = io.StringIO(line)
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    while not line[text.tell() :].lstrip().startswith("#"):
        word = lexer.get_token()
        if word is None:
            break
        words.append(word)
    return words


def called(arguments: Sequence[str]) -> str:
    """Name a job after its arguments.

    >>> called(["--width", "32", "--seed=0", "--fast", "-v"])
    'width=32,seed=0,fast,v'
    """
    parts: list[str] = []
    takes = False  # the last part may be an option whose value is the next word
    for word in arguments:
        if re.match("--?[A-Za-z]", word):
            parts.append(word.lstrip("-"))
            takes = "=" not in word
        elif takes:
            parts[-1] += f"={word}"
            takes = False
        else:
            parts.append(word)
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
