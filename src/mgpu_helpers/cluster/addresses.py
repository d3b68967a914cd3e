"""Where the workers listen, and the environment that tells each of them of the others."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mgpu_helpers._formatting import counted

SPAN = 12_000  # ports below the ephemeral range to choose from
SLURM_FIRST, SLURM_SPAN = 20_000, 10_000  # ports of Slurm's jobs, below that range as well
NAME = r"(?:[\w.-]|\[\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*\])+"


def free_ports(n: int) -> list[int]:
    """Pick n ports that nobody listens on, below those that the kernel gives to clients itself.

    A port above could be taken by any connection before TensorFlow listens. Picked at random, two
    clusters that start at once seldom meet; where they do, the launcher picks again.
    """
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        low = 32768
    drawn = random.sample(range(max(1024, low - SPAN), low), min(SPAN, low - 1024))
    ports = list(itertools.islice((port for port in drawn if not taken(port)), n))
    if len(ports) < n:
        raise RuntimeError(f"Only {len(ports)} ports below {low} are free, of {n} for the workers.")
    return ports


def taken(port: int) -> bool:
    """Say whether a port of this machine cannot be listened on, on all its interfaces."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.create_server(("", port), family=family).close()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return True
    return False


def parsed(address: object) -> tuple[str, int]:
    """Split "host:port", also "[::1]:port"; raise a ValueError with a sentence if it is no such."""
    whole = re.fullmatch(r"(?:\[([^\s/,;]+)\]|([^\s/,;]+)):([0-9]{1,5})", str(address))
    if not whole or not 0 < int(whole[3]) < 65536:
        raise ValueError(
            f"{address!r} is no address: write it as host:port, with a port from 1 to 65535."
        )
    return whole[1] or whole[2], int(whole[3])


def environment(addresses: Sequence[str], index: int) -> dict[str, str]:
    """Give TF_CONFIG for a worker, and no_proxy: gRPC would ask a proxy for the other workers."""
    task = {"type": "worker", "index": index}
    hosts = [parsed(address)[0] for address in addresses]
    names = ["no_proxy", "NO_PROXY"] + ["no_grpc_proxy"] * ("no_grpc_proxy" in os.environ)
    before = {name: os.environ.get(name, "").split(",") for name in names}
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": list(addresses)}, "task": task}),
        **{name: ",".join(dict.fromkeys(filter(None, before[name] + hosts))) for name in names},
    }


def from_slurm(environment: Mapping[str, str] | None = None) -> tuple[list[str], int]:
    """Return the addresses of all workers and this one's index; None means os.environ.

    There is one worker a machine, so that `srun` has to start one task on each. The port is made of
    the job's number: all machines find the same, and two jobs on one machine seldom do.

    >>> from_slurm({"SLURM_STEP_NODELIST": "gpu[09-10],b", "SLURM_STEP_NUM_TASKS": "3",
    ...             "SLURM_NODEID": "1", "SLURM_JOB_ID": "7"})
    (['gpu09:20007', 'gpu10:20007', 'b:20007'], 1)
    """
    given = os.environ if environment is None else environment
    needed = ("SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST")
    for name in needed:
        pattern = "[0-9]{1,9}" if name != needed[-1] else f"{NAME}(?:,{NAME})*"
        if not re.fullmatch(pattern, given.get(name, "")):
            raise ValueError(
                f"{name} is {given.get(name)!r}: start the command with srun in a Slurm job."
            )
    tasks, node, job = (int(given[name]) for name in needed[:3])
    nodes = expanded(given["SLURM_STEP_NODELIST"])
    if tasks != len(nodes):
        raise ValueError(
            f"srun has started {counted(tasks, 'task')} on {counted(len(nodes), 'machine')}, and "
            "one worker drives all GPUs of its machine: use --ntasks-per-node=1."
        )
    return [f"{host}:{SLURM_FIRST + job % SLURM_SPAN}" for host in nodes], node


def expanded(nodes: str) -> list[str]:
    """Write out Slurm's list of machines.

    >>> expanded("a[1-2,05]b,c")
    ['a1b', 'a2b', 'a05b', 'c']
    """
    names: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        parts = re.split(r"[\[\]]", name)  # every second one was in brackets
        parts_of = (_numbers(part) if i % 2 else [part] for i, part in enumerate(parts))
        names += map("".join, itertools.product(*parts_of))
    return names


def _numbers(ranges: str) -> Iterator[str]:
    for low, _, high in (each.partition("-") for each in ranges.split(",")):
        yield from (f"{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1))
