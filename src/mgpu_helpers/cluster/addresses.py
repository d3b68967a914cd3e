"""Where the workers listen, and the environment that tells each of them of the others."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import socket
from collections.abc import Sequence
from pathlib import Path

SPAN = 12_000  # ports below the ephemeral range to choose from


def free_ports(n: int) -> list[int]:
    """Pick n ports that nobody listens on, below those that the kernel gives to clients itself.

    A port above could be taken by any connection before TensorFlow listens. Picked at random, two
    clusters that start at once seldom meet; where they do, the launcher picks again.
    """
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        low = 32768
    low = max(low, 2048)
    found: list[int] = []
    for port in random.sample(range(max(1024, low - SPAN), low), min(SPAN, low - 1024)):
        if len(found) == n:
            break
        if not taken(port):
            found.append(port)
    if len(found) < n:
        raise RuntimeError(f"Only {len(found)} ports below {low} are free, of {n} for the workers.")
    return found


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
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    good = colon and re.fullmatch(r"[^\s/,;]+", host) and re.fullmatch("[0-9]{1,5}", port)
    if not (good and 0 < int(port) < 65536):
        raise ValueError(
            f"{address!r} is no address: write it as host:port, with a port from 1 to 65535."
        )
    return host, int(port)


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
