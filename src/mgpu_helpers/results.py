"""Result cards: what a benchmark found, on which machine, with which versions, and when.

Every file in benchmarks/ writes one; lesson 08 lays those of several machines over each other.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_helpers import __version__
from mgpu_helpers.devices import MODES, Plan
from mgpu_helpers.wording import whole

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
        _need(_text(self.name), "a ratio's name", self.name, "text")
        what = f"of the ratio {self.name!r}"
        _need(_number(self.value), f"value {what}", self.value, "a finite number")
        target_fits = self.target is None or (_number(self.target) and self.target > 0)
        _need(target_fits, f"target {what}", self.target, "a number above 0, or None")
        _need(isinstance(self.at_least, bool), f"at_least {what}", self.at_least, "True or False")
        spread = self.low, self.high
        around = all(map(_number, spread)) and self.low <= self.value <= self.high
        around_it = f"two numbers around {self.value}, or None twice"
        _need(spread == (None, None) or around, f"low and high {what}", spread, around_it)

    @classmethod
    def of(
        cls,
        name: str,
        rounds: Sequence[float],
        target: float | None = None,
        *,
        at_least: bool = True,
    ) -> Ratio:
        """Take the median and the middle half of some rounds, to four digits."""
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
        spread = "" if self.low is None else f"{_digits(self.low)} to {_digits(self.high)}"
        asked = f"at {'least' if self.at_least else 'most'} {self.target:g}" if self.target else ""
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
    ratios: tuple[Ratio, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _need(self.format == FORMAT, "format", self.format, f"{FORMAT}")
        named = isinstance(self.name, str) and re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name)
        _need(named, "name", self.name, "made of lower-case letters, digits, - and _")
        _need(_date(self.date), "date", self.date, "a date such as 2026-11-21")
        _need(_text(self.machine), "machine", self.machine, "text")
        _need(self.mode in MODES, "mode", self.mode, f"one of {', '.join(MODES)}")
        whole("devices", self.devices, "a number of devices", 1)
        _need(isinstance(self.versions, dict), "versions", self.versions, "a dict")
        _need(all(map(_text, self.versions.values())), "versions", self.versions, "a dict of texts")
        _need(isinstance(self.numbers, dict), "numbers", self.numbers, "a dict")
        _keepable("numbers", self.numbers)
        ours = all(isinstance(ratio, Ratio) for ratio in self.ratios)
        _need(ours, "ratios", self.ratios, "made of results.Ratio")
        names = [ratio.name for ratio in self.ratios]
        _need(len(names) == len(set(names)), "ratios", names, "a name each")

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
    text = json.dumps(asdict(card), indent=2) + "\n"
    folder = Path(folder or os.environ.get("MGPU_RESULTS") or "results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if path.exists() and not _same_machine(path, card):
        path = folder / f"{name}@{re.sub('[^a-z0-9]+', '-', card.where.lower()).strip('-')}.json"
    part = folder / f".{path.name}.{os.getpid()}"
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    print(f"written: {path}")
    return path


def read(path: str | os.PathLike[str]) -> Card:
    """Read a card and check it; one sentence when it is broken, or from a newer version."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        newer = isinstance(data, dict) and _number(data.get("format")) and data["format"] > FORMAT
        if not newer:
            data = _only(Card, data, "the file")
            _need(isinstance(data["ratios"], list), "ratios", data["ratios"], "a list")
            ratios = (Ratio(**_only(Ratio, each, "a ratio")) for each in data["ratios"])
            return Card(**data | {"ratios": tuple(ratios)})
    except (OSError, ValueError, RecursionError) as error:
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
    """Read every card in a folder, in the order of their files' names.

    A card that cannot be read is not left out: the error has a sentence for each of them, so that
    all can be mended at once.
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
    """Write the ratios of some cards with their targets, under the name of each machine."""
    machines: dict[str, list[tuple[str, ...]]] = {}
    for card in cards:
        rows = [(card.name, *ratio.cells()) for ratio in card.ratios]
        machines.setdefault(card.where, []).extend(rows)
    head = ("benchmark", "what", "ratio", "middle half", "target", "")
    every = [head, *(row for rows in machines.values() for row in rows)]
    wide = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = []
    for machine, rows in machines.items():
        lines += ["", machine] if lines else [machine]
        for row in (head, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, wide, strict=True))
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _machine(plan: Plan) -> str:
    """Name the machine without its name in a network: its GPUs, cores and processor."""
    if plan.mode == "cores":
        return plan.machine
    gpus = (re.sub(r"^1/\d+ of |, \d+ MB$", "", real) for real in plan.real)  # of split-gpu mode
    return ", ".join([*dict.fromkeys(gpus), plan.machine])


def _same_machine(path: Path, card: Card) -> bool:
    try:
        return read(path).where == card.where
    except ValueError:
        return False


def _only(kind: type, data: Any, what: str) -> dict[str, Any]:
    """Return data if it is a dict with the fields of a dataclass, no fewer and no more."""
    _need(isinstance(data, dict), what, data, "a JSON object")
    wanted = {field.name for field in fields(kind)}
    for names, verb in ((wanted - data.keys(), "lacks"), (data.keys() - wanted, "has an unknown")):
        if names:
            raise ValueError(f"{what} {verb} {', '.join(sorted(names))}.")
    return data


def _keepable(where: str, value: Any) -> None:
    """Refuse what JSON cannot hold, or would give back as something else."""
    if isinstance(value, dict):
        for key, each in value.items():
            _need(isinstance(key, str), f"a key in {where}", key, "text")
            _keepable(f"{where}[{key!r}]", each)
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            _keepable(f"{where}[{i}]", each)
    elif isinstance(value, float):
        _need(math.isfinite(value), where, value, "a finite number")
    else:
        held = value is None or isinstance(value, (str, int))
        _need(held, where, value, "what JSON holds: use float(), int(), text, lists and dicts")


def _need(holds: Any, what: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{what}={reprlib.repr(value)} is not {wanted}.")


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _date(value: Any) -> bool:
    try:
        return datetime.date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        return False


def _digits(value: float) -> str:
    """Write a number to three digits: 1.80, 0.00491, 123."""
    return f"{value:#.3g}".rstrip(".")
