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
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers import __version__, files, wording

if TYPE_CHECKING:
    from mgpu_helpers.devices import Plan

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Ratio:
    """One number that a benchmark is about, as a rule a median, and what it has to reach.

    low and high bound the middle half of its rounds, and are None where that is not known.
    target is None where nothing is asked; at_least says on which side of it the value has to be.
    """

    name: str
    value: float
    target: float | None = None
    at_least: bool = True
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        # A NaN would meet no target and miss none, and JSON does not have it.
        spread = [x for x in (self.low, self.value, self.high) if x is not None]
        finite = all(map(math.isfinite, [*spread, self.target or 0]))
        if self.value is None or len(spread) == 2 or not finite or spread != sorted(spread):
            raise ValueError(
                f"the ratio {self.name!r} has value={self.value}, target={self.target}, "
                f"low={self.low}, high={self.high}: use finite numbers, with low and high on both "
                "sides of the value or both None."
            )

    @classmethod
    def of(
        cls,
        name: str,
        rounds: Sequence[float],
        target: float | None = None,
        *,
        at_least: bool = True,
    ) -> Ratio:
        """Take the median and the middle half of some rounds, to four digits.

        >>> Ratio.of("speed-up", [1.7, 1.8, 1.9], target=1.5)
        speed-up: 1.80 (1.75 to 1.85); target at least 1.5: met
        """
        if not len(rounds):
            raise ValueError(f"the ratio {name!r} has no rounds: give one number or more.")
        low, middle, high = (float(f"{x:.4g}") for x in np.quantile(rounds, [0.25, 0.5, 0.75]))
        return cls(name, middle, target, at_least, low, high)

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
    date: str  #: as in 2026-11-21
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
    plan: Plan,
    numbers: dict[str, Any],
    ratios: Iterable[Ratio] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a card, whole or not at all, and return its path; say on stdout where it is.

    folder None is MGPU_RESULTS from the environment, or else results/ in the current folder. A
    card is called name.json. Where another machine's has that name already, or one that cannot be
    read, it stays, and this one is called name@machine.json.

    >>> write("towers", plan, {"rounds": 12}, [Ratio.of("speed-up", [1.7, 1.8])], "results").name
    written: results/towers.json
    'towers.json'
    """
    import tensorflow as tf

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
        numbers=numbers,
    )
    try:
        text = json.dumps(asdict(card), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the card {name!r} has what JSON does not hold ({error}): use finite numbers made by "
            "float() or int(), text, lists and dicts."
        ) from None
    folder = Path(folder or os.environ.get("MGPU_RESULTS") or "results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if path.exists() and not _same_machine(path, card):
        path = folder / f"{name}@{re.sub('[^a-z0-9]+', '-', card.where.lower()).strip('-')}.json"
    with files.replacing(path) as file:
        file.write(text.encode())
    print(f"written: {path}")
    return path


def read(path: str | os.PathLike[str]) -> Card:
    """Read a card; raise ValueError if the file is broken, or from a newer mgpu_helpers.

    >>> path = write("mine", plan, {}, [Ratio.of("speed-up", [1.7, 1.8, 1.9])], "cards")
    written: cards/mine.json
    >>> read(path).ratios
    (speed-up: 1.80 (1.75 to 1.85),)
    """
    path = Path(path)
    try:
        data = {} | json.loads(path.read_text(encoding="utf-8"))
        if data.get("format", FORMAT) == FORMAT:
            card = Card(**data)
            return replace(card, ratios=tuple(Ratio(**each) for each in data["ratios"]))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        why = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise ValueError(
            f"{path} cannot be read as a result card ({why}): delete it, and take it from git or "
            f"make it again with make bench ONLY={path.stem.partition('@')[0]}."
        ) from None
    raise ValueError(
        f"{path} is a result card of format {data['format']}, and mgpu_helpers {__version__} reads "
        f"format {FORMAT}: update mgpu_helpers."
    )


def read_all(folder: str | os.PathLike[str]) -> list[Card]:
    """Read every card in a folder, in the order of their files' names; [] where there is none.

    A card that cannot be read is not left out: the error has a sentence for each of them, so that
    all can be mended at once.

    >>> path = write("mine", plan, {}, [], "all")
    written: all/mine.json
    >>> [card.name for card in read_all("all")]
    ['mine']
    """
    if not Path(folder).is_dir():
        raise ValueError(f"there is no folder {folder}: make bench writes its cards to results/.")
    cards, sentences = [], []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            cards.append(read(path))
        except ValueError as error:
            sentences.append(str(error))
    if sentences:
        raise ValueError("\n".join(sentences))
    return cards


def table(cards: Iterable[Card]) -> str:
    """Write the ratios of some cards with their targets, under the name of each machine.

    >>> path = write("mine", plan, {}, [Ratio.of("speed-up", [1.7, 1.8, 1.9])], "cards")
    written: cards/mine.json
    >>> table([read(path)]).splitlines()[-1].split()
    ['mine', 'speed-up', '1.80', '1.75', 'to', '1.85']
    """
    machines: dict[str, list[tuple[str, ...]]] = {}
    for card in cards:
        rows = [(card.name, *ratio.cells()) for ratio in card.ratios]
        machines.setdefault(card.where, []).extend(rows)
    titles = ("benchmark", "what", "ratio", "middle half", "target", "")
    head, *rest = wording.table([titles, *(row for rows in machines.values() for row in rows)])
    each = iter(rest)
    parts = ([machine, head, *(next(each) for _ in rows)] for machine, rows in machines.items())
    return "\n\n".join("\n".join(part) for part in parts)


def _machine(plan: Plan) -> str:
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
