"""What a plan calls a layout, and the line that brings a model there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers._formatting import counted
from mgpu_helpers.fit.layout import Layout


@dataclass(frozen=True)
class How:
    """How a step is taken: in a layout, and in half precision or in what the model has.

    The rest says the same in words of what is counted.
    """

    layout: Layout = Layout()
    half: bool = False

    @property
    def rows(self) -> int:
        """Count the rows of devices that share the batch."""
        return max(1, len(self.layout.rows))

    @property
    def owners(self) -> int:
        """Count the devices that update weights; 0 where the host does."""
        return {"host": 0, "owners": self.rows}.get(str(self.layout.state), 1)

    @property
    def again(self) -> bool:
        """Say whether parts of the forward pass run again."""
        return bool(self.layout.recompute)

    @property
    def in_pieces(self) -> bool:
        """Say whether the batch is taken in several pieces."""
        return self.layout.pieces > 1

    @property
    def waits(self) -> bool:
        """Say whether weights are updated only when all gradients are there."""
        return self.in_pieces or bool(self.layout.devices)

    @property
    def rewritten(self) -> tuple[bool, bool, int]:
        """Say what is done to a step: in half precision, parts again, outputs of rows joined."""
        return self.half, self.again, self.rows if self.layout.devices else 0

    def of_row(self, batch: int) -> int:
        """Count the examples that a row takes of a batch."""
        return math.ceil(batch / self.rows)

    def share(self, batch: int) -> int:
        """Count the examples that a row takes at once."""
        return math.ceil(self.of_row(batch) / self.layout.pieces)

    def name(self, parts: int) -> str:
        """Name it, with so many parts to run again."""
        layout, rows = self.layout, self.rows
        staged = layout.length if layout.staged else 1
        what = "batch and state" if layout.state == "owners" else "batch"
        said = [
            *["mixed_bfloat16"] * self.half,
            *[f"{what} over {counted(rows, 'row')} of devices"] * (rows > 1 < staged),
            *[f"{what} over {counted(rows, 'device')}"] * (rows > 1 == staged),
            *[f"{staged} stages"] * (staged > 1),
            *["state on the host"] * (layout.state == "host"),
            *[f"recompute in {parts} parts"] * bool(layout.recompute),
            *[f"{layout.pieces} pieces"] * (layout.pieces > 1),
        ]
        return " + ".join(said) or "as it is"


def line(layout: Layout, half: bool, devices: Sequence[str]) -> str:
    """Write the line that brings a model to a layout on a plan's devices, or some of them."""
    options: list[str] = []
    for name in ("stages", "pieces", "recompute", "state", "synchronized"):
        value: Any = getattr(layout, name)
        if value != getattr(Layout(), name):
            written = repr([*value] if isinstance(value, tuple) else value)
            options.append(f"{name}={written}".replace("'", '"'))
    if layout.devices:
        n = len(layout.devices)
        options.insert(0, "plan" if n == len(devices) else f"plan.devices[:{n}]")
    code = f"fit.use(model, {', '.join(options)})" if options else ""
    if not half:
        return code
    before = 'keras.config.set_dtype_policy("mixed_bfloat16")'
    return f"{code}  # of a model that is made after {before}" if code else before
