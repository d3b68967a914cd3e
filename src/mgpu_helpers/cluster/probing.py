"""Which addresses answer: asked all at once, in a second; and what that means for a cluster."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mgpu_helpers.cluster.addresses import parsed, taken

LISTENS, REFUSES, SILENT, UNKNOWN = "listens", "refuses", "does not answer", "does not resolve"


@dataclass
class Answer:
    """What is known of an address."""

    state: str = UNKNOWN
    numbers: tuple[str, ...] = ()  # the IP addresses of its host


def probe(addresses: Sequence[str], seconds: float = 1.0) -> list[Answer]:
    """Say of each address whether somebody listens there; what takes longer does not answer.

    >>> from mgpu_helpers.cluster.addresses import free_ports
    >>> probe([f"127.0.0.1:{free_ports(1)[0]}"])
    [Answer(state='refuses', numbers=('127.0.0.1',))]
    """
    answers = [Answer() for _ in addresses]
    # Threads that nobody waits for: a name server that is down keeps its callers for long.
    threads = [
        threading.Thread(target=_ask, args=(*parsed(address), answer, seconds), daemon=True)
        for address, answer in zip(addresses, answers, strict=True)
    ]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return answers


def _ask(host: str, port: int, answer: Answer, seconds: float) -> None:
    with contextlib.suppress(OSError, UnicodeError):  # it stays as it is: not known
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        answer.numbers = tuple(dict.fromkeys(str(each[4][0]) for each in resolved))
        answer.state = SILENT
        for number in answer.numbers:
            try:
                socket.create_connection((number, port), seconds).close()
                answer.state = LISTENS
                return
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    answer.state = REFUSES


def _elsewhere(numbers: Sequence[str]) -> bool:
    """Say whether none of these IP addresses is one of this machine."""
    for number in numbers:
        with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET) as tried:
            try:
                tried.bind((number, 0))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
        return False  # or not known
    return bool(numbers)


def network(workers: Mapping[str, str], own: str | None) -> tuple[list[str], list[str]]:
    """Say what is wrong with this machine's own address, and what with those of the others."""
    mine, others = [], []
    for (name, address), answer in zip(
        workers.items(), probe(list(workers.values())), strict=True
    ):
        host, port = parsed(address)
        if answer.state == UNKNOWN:
            others.append(
                f"The host of {name}, {host!r}, does not resolve here: TensorFlow would wait for "
                "it for an hour. Use a name or a number that every machine knows."
            )
        elif name == own and _elsewhere(answer.numbers):
            mine.append(
                f"This machine is told that it is {name} at {address}, which is not an address of "
                "its own: give each machine its own index, and the address that it has itself."
            )
        elif name == own and taken(port):
            mine.append(
                f"Port {port} of {name}, this worker, is taken on this machine: end what listens "
                "there, or choose another port."
            )
        elif name != own and answer.state == SILENT:
            others.append(
                f"{name.capitalize()} at {address} does not answer, not even that nobody listens: "
                "start its machine, or open the port in its firewall."
            )
    return mine, others
