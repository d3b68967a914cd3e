"""What runs a word of the command line: Python, the program of a first line, or PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


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
    if os.path.isdir(word):
        raise ValueError(f"{word!r} is a folder: name a script in it, or another program.")
    try:
        first, *rest = shlex.split(word) or [word]
    except ValueError as error:
        raise ValueError(f"{word!r} cannot be split into words ({error}).") from None
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
    runs = os.access(word, os.X_OK)
    try:
        with open(word, "rb") as file:
            start = file.read(256)
    except OSError as error:
        if not runs:
            raise ValueError(f"{word!r} cannot be read ({error.strerror}): see its mode.") from None
        start = b"\0"
    first = os.fsdecode(start.partition(b"\n")[0][2:]).split(maxsplit=1)
    if runs and (start.startswith(b"#!") or b"\0" in start):
        return [word if os.sep in word else f".{os.sep}{word}"]  # or PATH would be searched
    if start.startswith(b"#!") and first:
        return [*first, word]
    if word.endswith(".sh"):
        return ["sh", word]
    if b"\0" in start:
        raise ValueError(
            f"{word!r} is not executable: chmod +x {shlex.quote(word)}, or name another."
        )
    raise ValueError(
        f"{word!r} is no Python file, and its first line names no program: begin it with a line as "
        f"#!/bin/sh, or name the program too, as in 'bash {word}'."
    )
