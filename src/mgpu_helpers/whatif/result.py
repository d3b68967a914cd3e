"""What a replay found: seconds beside the traced ones, or beside those of a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mgpu_helpers.timing import Comparison, Timing


@dataclass(frozen=True, repr=False)
class Replay:
    """The seconds of traced steps, and those of their replays, in the order of the traces."""

    traced: Timing
    replayed: Timing

    @property
    def seconds(self) -> float:
        """Give the median of the replays, in seconds."""
        return self.replayed.median

    @property
    def errors(self) -> tuple[float, ...]:
        """Give by which share of its trace each replay is longer."""
        return tuple(
            b / a - 1 for a, b in zip(self.traced.seconds, self.replayed.seconds, strict=True)
        )

    def __repr__(self) -> str:
        where = " in the median" if len(self.errors) > 1 else ""
        off = f"{median(self.errors):+.1%}{where}{_many(self.errors)}"
        return f"replayed in {_ms(self.replayed)}, traced in {_ms(self.traced)} ({off})"


class Change(Comparison):
    """Replays of traced steps as they are (`a`, before) and with a change (`b`, after)."""

    @property
    def before(self) -> float:
        """Give the median of the replays as the steps are, in seconds."""
        return self.a.median

    @property
    def after(self) -> float:
        """Give the median of the replays with the change, in seconds."""
        return self.b.median

    def __repr__(self) -> str:
        slower = self.ratio < 1
        middle, *ends = (1 / x if slower else x for x in (self.ratio, self.low, self.high))
        spread = f" ({min(ends):.2f} to {max(ends):.2f}" if len(self.ratios) > 1 else ""
        spread += _many(self.ratios) + ")" if spread else ""
        way = "as slow" if slower else "as fast"
        said = "no faster" if f"{middle:.2f}" == "1.00" else f"{middle:.2f} times {way}"
        return f"{self.names[1]}: {_ms(self.a)} would be {_ms(self.b)}, {said}{spread}"


def _ms(timing: Timing) -> str:
    return f"{timing.median * 1e3:.1f} ms"


def _many(values: Sequence[float]) -> str:
    return f", {len(values)} traces" if len(values) > 1 else ""
