"""Where the time of a step went on each device, in numbers and in sentences."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_helpers.wording import counted

COPY, CORE, OVERHEAD = "copies", "a free core", "overhead"
_SHOWN = 3  # what a device waited for, by name
_WIDTH = 100  # letters; notebooks break what is longer in the middle of a word


@dataclass(frozen=True)
class Wait:
    """What a device waited for, and how long in seconds.

    what is a layer or a task of a pipeline, and type the operation in it that took most of this;
    or what is `COPY`, `CORE` or `OVERHEAD`, and device is "".
    """

    what: str
    device: str
    seconds: float
    type: str = ""

    def __str__(self) -> str:
        most = f" ({self.type})" if self.type not in ("", self.what) else ""
        return self.what + most + (f" on {self.device}" if self.device else "")


@dataclass(frozen=True)
class Account:
    """Where the seconds of a step went on one device; waits is None where no trace can say."""

    device: str
    length: float
    worked: float
    waits: tuple[Wait, ...] | None = ()

    def __str__(self) -> str:
        whole = f"{self.device} worked {{}} of {self.length * 1e3:.1f} ms"
        if self.waits is None:
            return whole.format(f"{100 * self.worked / self.length:.0f} %") + "."
        named = [wait for wait in self.waits if wait.device]
        shown, rest = named[:_SHOWN], named[_SHOWN:]
        others: dict[str, list[float]] = defaultdict(list)
        for wait in rest:
            others[wait.device].append(wait.seconds)
        more = [Wait(counted(len(s), "other"), device, sum(s)) for device, s in others.items()]
        parts = [*shown, *more, *(wait for wait in self.waits if not wait.device)]
        worked, *shares = _percent([self.worked, *(wait.seconds for wait in parts)])
        said = [f"{n} % for {wait}" for n, wait in zip(shares, parts, strict=True) if n]
        tail = f"; it waited {', '.join(said)}" if said else ""
        return whole.format(f"{worked} %") + tail + "."


@dataclass(frozen=True, repr=False)
class Explanation:
    """An account of each device, and sentences on what nothing ran on or cannot be known."""

    accounts: tuple[Account, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        said = "\n".join([*map(str, self.accounts), *self.notes]).replace(" %", "\xa0%")
        wrap = textwrap.TextWrapper(_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(map(wrap.fill, said.splitlines())).replace("\xa0", " ")


def _percent(parts: Sequence[float]) -> list[int]:
    """Round shares to whole percent that add up to 100."""
    whole = sum(parts) or 1.0
    exact = [100 * part / whole for part in parts]
    found = [int(share) for share in exact]
    for i in sorted(range(len(exact)), key=lambda i: found[i] - exact[i])[: 100 - sum(found)]:
        found[i] += 1
    return found
