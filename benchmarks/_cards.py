"""Result cards: what a benchmark found, on which machine, with which versions, and when.

Every file in benchmarks/ writes one; docs/benchmarks.md says what they hold.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import _rounds
from mgpu_helpers import __version__, _files, _formatting, devices

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Ratio:
    """One number that a benchmark is about, as a rule a median, and what it has to reach.

    low and high bound the middle half of its rounds, and are None where that is not known, as is
    how many rounds, or cases, it is the median of.
    target is None where nothing is asked; at_least says on which side of it the value has to be.
    """

    name: str
    value: float
    target: float | None = None
    at_least: bool = True
    low: float | None = None
    high: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        # A NaN would meet no target and miss none, and JSON does not have it.
        numbers = self.value, self.target, self.low, self.high
        if not all(math.isfinite(x) for x in numbers if x is not None):
            raise ValueError(f"{asdict(self)} is no ratio: use finite numbers.")

    @classmethod
    def of(
        cls, name: str, rounds: Sequence[float], target: float | None = None, *,
        at_least: bool = True,
    ) -> Ratio:  # fmt: skip
        """Take the median and the middle half of some rounds, to four digits."""
        low, middle, high = (float(f"{x:.4g}") for x in np.quantile(rounds, [0.25, 0.5, 0.75]))
        return cls(name, middle, target, at_least, low, high, len(rounds))

    @property
    def met(self) -> bool | None:
        """Say whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, str, str, str, str]:
        """Write name, value, middle half, target, and met or not; empty where there is none."""
        spread = ""
        if self.low is not None and self.high is not None:
            spread = f"{_digits(self.low)} to {_digits(self.high)}"
        side = "least" if self.at_least else "most"
        asked = "" if self.target is None else f"at {side} {self.target:g}"
        verdict = {None: "", True: "met", False: "NOT MET"}[self.met]
        return self.name, _digits(self.value), spread, asked, verdict

    def __repr__(self) -> str:
        name, value, spread, asked, verdict = self.cells()
        spread, asked = spread and f" ({spread})", asked and f"; target {asked}: {verdict}"
        return f"{name}: {value}{spread}{asked}"


@dataclass(frozen=True, kw_only=True)
class Card:
    """One run of one benchmark; `numbers` holds whatever it wants to keep besides its ratios."""

    format: int = FORMAT
    name: str
    date: str  # as in 2026-11-21
    machine: str
    mode: str
    devices: int
    versions: dict[str, str]
    ratios: tuple[Ratio, ...]
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Name the machine and the mode: cards with the same stand for the same machine."""
        return f"{self.machine} · {self.mode} mode"


def write(
    name: str,
    plan: devices.Plan,
    numbers: dict[str, Any],
    ratios: Iterable[Ratio] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a card, whole or not at all, and return its path; say on stdout where it is.

    folder None is MGPU_RESULTS from the environment, or else results/ in the current folder. A
    card is called name.json. Where another machine's has that name already, or one that cannot be
    read, it stays, and this one is called name@machine.json.
    """
    import tensorflow as tf

    for few in _rounds.short:
        print(few)
    card = Card(
        name=name,
        date=datetime.date.today().isoformat(),
        machine=_machine(plan),
        mode=plan.mode,
        devices=len(plan),
        versions={
            "mgpu_helpers": __version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
        ratios=tuple(ratios),
        numbers=numbers | ({"short": _rounds.short} if _rounds.short else {}),
    )
    text = json.dumps(asdict(card), indent=2, allow_nan=False) + "\n"
    folder = Path(folder or os.environ.get("MGPU_RESULTS") or "results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if path.exists() and not _same_machine(path, card):
        path = folder / f"{name}@{re.sub('[^a-z0-9]+', '-', card.where.lower()).strip('-')}.json"
    with _files.replacing(path) as file:
        file.write(text.encode())
    print(f"written: {path}")
    return path


def read(path: str | os.PathLike[str]) -> Card:
    """Read a card; raise ValueError if the file is broken, or of another format."""
    path = Path(path)
    try:
        card = Card(**json.loads(path.read_text(encoding="utf-8")))
        if card.format == FORMAT:
            return replace(card, ratios=tuple(Ratio(**each) for each in card.ratios))
        why = f"format {card.format}, not {FORMAT}"
    except (OSError, TypeError, ValueError) as error:
        why = str(error)
    raise ValueError(
        f"{path} cannot be read as a result card ({why}): delete it, and take it from git or make "
        f"it again with make bench ONLY={path.stem.partition('@')[0]}."
    )


def read_all(folder: str | os.PathLike[str]) -> list[Card]:
    """Read every card in a folder, in the order of their files' names."""
    return [read(path) for path in sorted(Path(folder).glob("*.json"))]


def table(cards: Iterable[Card]) -> str:
    """Write the ratios of some cards with their targets, under the name of each machine."""
    machines: dict[str, list[tuple[str, ...]]] = {}
    for card in cards:
        rows = [(card.name, *ratio.cells()) for ratio in card.ratios]
        machines.setdefault(card.where, []).extend(rows)
    titles = ("benchmark", "what", "ratio", "middle half", "target", "")
    head, *rest = _formatting.table([titles, *(row for rows in machines.values() for row in rows)])
    each = iter(rest)
    parts = ([machine, head, *(next(each) for _ in rows)] for machine, rows in machines.items())
    return "\n\n".join("\n".join(part) for part in parts)


def _machine(plan: devices.Plan) -> str:
    """Name the machine without its name in a network: its GPUs, cores and processor."""
    if not plan.on_gpus:
        return plan.machine
    gpus = (re.sub(r"^1/\d+ of |, \d+ MB$", "", real) for real in plan.real)  # of split-gpu mode
    return ", ".join([*dict.fromkeys(gpus), plan.machine])


def _same_machine(path: Path, card: Card) -> bool:
    try:
        return read(path).where == card.where
    except ValueError:
        return False


def _digits(value: float) -> str:
    """Write a number to three digits: 1.80, 0.00491, 123."""
    return f"{value:#.3g}".rstrip(".")
