"""`mgpu batches`: what lesson 08 asks before a training, for a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mgpu_helpers.towers.check import check_batches
from mgpu_helpers.wording import counted

DESCRIPTION = """\
Say whether so many examples, in global batches, give every replica of MirroredStrategy as many as
the others. The exit status is 0 when they do, 1 when not, 2 when a number cannot be read.
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Print what the batches give each replica, and return the exit status."""
    parser = argparse.ArgumentParser(called, description=DESCRIPTION)
    for name, what in {
        "examples": "in the data set", "batch": "examples of all replicas in a step",
        "replicas": "devices that train together",
    }.items():  # fmt: skip
        parser.add_argument(name, type=int, help=what)
    asked = parser.parse_args(arguments)
    for name, number in vars(asked).items():
        if number < 1:
            parser.error(f"argument {name}: {number} is not above 0")
    try:
        check_batches(asked.examples, asked.batch, asked.replicas)
    except ValueError as error:
        print(error)
        return 1
    print(f"every batch gives each of {counted(asked.replicas, 'replica')} as many as the others")
    return 0
