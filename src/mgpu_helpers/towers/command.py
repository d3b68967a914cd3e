"""`mgpu batches`: what lesson 08 asks before a training, for a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mgpu_helpers.towers.check import check_batches
from mgpu_helpers.wording import counted

DESCRIPTION = """\
Say whether so many examples, in global batches, give every replica of MirroredStrategy as many as
the others. The exit status is 0 when they do, 1 when not.
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Print what the batches give each replica, and return the exit status."""
    parser = argparse.ArgumentParser(called, description=DESCRIPTION)
    for name in ("examples", "batch", "replicas"):
        parser.add_argument(name, type=int)
    asked = parser.parse_args(arguments)
    try:
        check_batches(asked.examples, asked.batch, asked.replicas)
    except ValueError as error:
        print(error)
        return 1
    print(f"every batch gives each of {counted(asked.replicas, 'replica')} as many as the others")
    return 0
