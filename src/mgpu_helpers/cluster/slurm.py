"""The machines of a Slurm job step, and which of them this is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from mgpu_helpers.wording import counted

FIRST, SPAN = 20_000, 10_000  # ports, below those that the kernel gives to clients itself
NAME = r"(?:[\w.-]|\[\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*\])+"
LIST = f"{NAME}(?:,{NAME})*"


def from_slurm(environment: Mapping[str, str] | None = None) -> tuple[list[str], int]:
    """Return the addresses of all workers and this one's index; None means os.environ.

    There is one worker a machine, so that `srun` has to start one task on each. The port is made of
    the job's number: all machines find the same, and two jobs on one machine seldom do.

    >>> from_slurm({"SLURM_STEP_NODELIST": "gpu[09-10],b", "SLURM_STEP_NUM_TASKS": "3",
    ...             "SLURM_NODEID": "1", "SLURM_JOB_ID": "7"})
    (['gpu09:20007', 'gpu10:20007', 'b:20007'], 1)
    """
    said = os.environ if environment is None else environment
    needed = ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_JOB_ID")
    missing = [name for name in needed if not said.get(name)]
    if missing:
        raise ValueError(f"{missing[0]} is not set: start the command with srun in a Slurm job.")
    for name in needed[1:]:
        if not re.fullmatch("[0-9]{1,9}", said[name]):
            raise ValueError(f"{name} is {said[name]!r}, which is no number: use srun.")
    tasks, node, job = (int(said[name]) for name in needed[1:])
    nodes = expanded(said["SLURM_STEP_NODELIST"])
    if tasks != len(nodes):
        raise ValueError(
            f"srun has started {counted(tasks, 'task')} on {counted(len(nodes), 'machine')}, and "
            "one worker drives all GPUs of its machine: use --ntasks-per-node=1."
        )
    return [f"{host}:{FIRST + job % SPAN}" for host in nodes], node


def expanded(nodes: str) -> list[str]:
    """Write out Slurm's list of machines.

    >>> expanded("a[1-2,05]b,c")
    ['a1b', 'a2b', 'a05b', 'c']
    """
    if not re.fullmatch(LIST, nodes):
        raise ValueError(f"SLURM_STEP_NODELIST is {nodes!r}, which is no list of machines.")
    found = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        whole = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", name)
        if not whole:
            found.append(name)
            continue
        before, inside, after = whole.groups()
        for part in inside.split(","):
            low, _, high = part.partition("-")
            for number in range(int(low), int(high or low) + 1):
                found += expanded(f"{before}{number:0{len(low)}d}{after}")
    return found
