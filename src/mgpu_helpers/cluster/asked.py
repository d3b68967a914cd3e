"""What `run` was asked for, looked at before anything is started: a sentence for each mistake."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgpu_helpers.cluster.form import form
from mgpu_helpers.wording import whole_number


def machines(hosts: Any, index: Any, workers: Any) -> tuple[list[str], int]:
    """Return the addresses of all machines, and the number of this one."""
    if workers is not None:
        other = f"index={index}" if hosts is None else "hosts"
        raise ValueError(
            f"workers={workers} and {other} are both given: workers are processes of this machine, "
            "hosts and index are about machines. Leave one out."
        )
    if hosts is None or index is None:
        raise ValueError(
            f"hosts={hosts!r} and index={index!r}: give the addresses of all machines, and which "
            "of them this is, from 0."
        )
    if isinstance(hosts, (str, bytes)) or not hasattr(hosts, "__iter__"):
        raise TypeError(f'hosts={hosts!r} is not a list of addresses: use ["a:20000", "b:20000"].')
    hosts = list(hosts)
    index = whole_number("index", index, "the number of a machine", 0)
    config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
    for problem in form(config):
        raise ValueError(problem)
    return hosts, index


def words(script: Any, args: Any) -> tuple[str, ...]:
    """Return the script and its arguments as texts."""
    if not isinstance(script, (str, os.PathLike)):
        raise TypeError(f"script={script!r} is no file: name a Python script.")
    if not Path(script).is_file():
        raise ValueError(f"There is no file {str(script)!r} here: name a Python script.")
    if isinstance(args, (str, bytes)) or not hasattr(args, "__iter__"):
        raise TypeError(f'args={args!r} is not a list of arguments: use ["--epochs", "3"].')
    said = [os.fspath(script)]
    for word in args:
        word = os.fspath(word) if isinstance(word, os.PathLike) else word
        if not isinstance(word, str):
            raise TypeError(f"args has {word!r}, which is not text: write str(...).")
        said.append(word)
    if any("\0" in word for word in said):
        raise ValueError("args has a null byte, which no program can be given.")
    return tuple(said)
