"""Count what some work sends over this network's loopback interface."""

from __future__ import annotations

from collections.abc import Callable


def sent() -> int:
    """Read how many bytes the interface has sent; Linux counts them."""
    with open("/proc/net/dev") as file:
        return next(int(line.split()[9]) for line in file if line.strip().startswith("lo:"))


def crossed(work: Callable[[], object], repeats: int = 5) -> int:
    """Count the bytes of some work: the least of some times, as others may use loopback, too."""
    counts = []
    for _ in range(repeats + 1):
        before = sent()
        work()
        counts.append(sent() - before)
    return min(counts[1:])
