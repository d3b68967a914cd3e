"""Which addresses answer: asked all at once, in a second."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_helpers.cluster.addresses import parsed

LISTENS, REFUSES, SILENT, UNKNOWN = "listens", "refuses", "does not answer", "does not resolve"


@dataclass
class Found:
    """What is known of an address."""

    state: str = UNKNOWN
    numbers: tuple[str, ...] = ()  # the IP addresses of its host


def reach(addresses: Sequence[str], seconds: float = 1.0) -> list[Found]:
    """Say of each address whether somebody listens there; what takes longer does not answer.

    >>> from mgpu_helpers.cluster.addresses import free_ports
    >>> reach([f"127.0.0.1:{free_ports(1)[0]}"])
    [Found(state='refuses', numbers=('127.0.0.1',))]
    """
    found = [Found() for _ in addresses]
    # Threads that nobody waits for: a name server that is down keeps its callers for long.
    threads = [
        threading.Thread(target=_ask, args=(*parsed(address), here, seconds), daemon=True)
        for address, here in zip(addresses, found, strict=True)
    ]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return found


def _ask(host: str, port: int, found: Found, seconds: float) -> None:
    with contextlib.suppress(OSError, UnicodeError):  # it stays as it is: not known
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.numbers = tuple(dict.fromkeys(str(place[4][0]) for place in places))
        found.state = SILENT
        for number in found.numbers:
            try:
                socket.create_connection((number, port), seconds).close()
                found.state = LISTENS
                return
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    found.state = REFUSES


def elsewhere(numbers: Sequence[str]) -> bool:
    """Say whether none of these IP addresses is one of this machine."""
    for number in numbers:
        family = socket.AF_INET6 if ":" in number else socket.AF_INET
        with socket.socket(family) as tried:
            try:
                tried.bind((number, 0))
                return False
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    return False  # not known
    return bool(numbers)
