"""What a device holds and sends in a training step, from a number of parameters: no model needed.

In bytes a parameter, weights, gradients and slots are 2 + 2 + 12 in mixed precision, where the
optimizer has the weights in float32 too, and 4 + 4 + 8 in float32, with Adam. What is shared out
lies on one of n devices. A sum over all of them goes round a ring, so each device sends 2 (n - 1)/n
times its bytes; half of that gives each device its part of the sum, or all devices all parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mgpu_helpers._formatting import counted, size_text, table, whole_number
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.model import positive

# Times what a Transformer layer gives to the next: what it keeps that is not split with it. These
# are the inputs of two norms and of two pairs of products, and masks of a byte (docs/sources.md).
KEPT_WHOLE = 5
HALF = "mixed_bfloat16"


@dataclass(frozen=True)
class Share:
    """What the fullest device holds, and the busiest sends, in bytes; and the seconds of sending.

    seconds is None where nobody said what it is sent over. half says that the model is one of
    mixed_bfloat16. devices and options are those of `layout`.
    """

    name: str
    weights: float
    gradients: float
    slots: float
    activations: float
    sends: float
    seconds: float | None = None
    half: bool = False
    devices: int = 0
    options: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def layout(self) -> Layout | None:
        """Give what `fit.use` takes, on /GPU:0 and so on; None if it has no way that holds this.

        On devices of other names it is `fit.use(model, way, devices=plan.devices)`.
        """
        if self.options is None:
            return None
        return Layout([f"/GPU:{i}" for i in range(self.devices)], **self.options)

    @property
    def held(self) -> float:
        """Return all that the device holds."""
        return self.weights + self.gradients + self.slots + self.activations


@dataclass(frozen=True, repr=False)
class Paper:
    """The ways to lay out a training, those that send least first, and which of them fit."""

    parameters: float
    devices: int
    budget: float  #: bytes a device may hold
    ways: tuple[Share, ...]

    @property
    def fitting(self) -> tuple[Share, ...]:
        """List the ways that fit into the budget."""
        return tuple(way for way in self.ways if way.held <= self.budget)

    def __repr__(self) -> str:
        limited, timed = self.budget < math.inf, any(way.seconds for way in self.ways)
        of = f" of {size_text(int(self.budget))}" if limited else ""
        head = ("", "held", *["fits"] * limited, "weights", "gradients", "slots", "activations",
                "sends", *["takes"] * timed)  # fmt: skip
        rows = [[
            way.name, size_text(round(way.held)),
            *["yes" if way.held <= self.budget else "no"] * limited,
            *(size_text(round(each)) if each else "-" for each in
              (way.weights, way.gradients, way.slots, way.activations, way.sends)),
            *[f"{way.seconds:.3g} s" if way.seconds else "-"] * timed,
        ] for way in self.ways]  # fmt: skip
        text = f"{self.parameters:,.0f} parameters on {counted(self.devices, 'device')}{of}:"
        return "\n".join([text, *table([head, *rows])])


def on_paper(
    parameters: float, devices: int, budget: float = math.inf, *, precision: str = "mixed",
    slots: int = 2, activations: float = 0, layers: int = 0, between: float = 0,
    pieces: int = 1, recomputed: bool = False, link: Link | None = None,
    to_host: Link | None = None,
) -> Paper:  # fmt: skip
    """Count what each device would hold and send in a training step, for GPUs that are not here.

    precision is "mixed" or "float32", and slots how many numbers the optimizer keeps for each
    parameter: 2 for Adam, 1 for momentum, 0 for SGD. activations are the bytes that one device
    would keep of the whole batch, and between those that a layer gives to the next one. layers are
    Transformer layers: where they are split, each has two sums over all devices in the forward pass
    and two in the backward pass. recomputed says that the forward pass runs twice. Without layers
    and between, recompute, tensor parallel and pipeline are left out, and so are rows of devices
    that share the batch, each of them a pipeline. pieces are those of `fit.use`, which keeps the
    sum of their gradients beside those of one piece. link lies between the devices, such as
    `scaling.links.NVLINK_3`, and to_host between each device and the memory of the host.

    Not counted are outputs, buffers, weights in a second precision, and memory in pieces that
    nothing fits into. `layout` of a way is what `fit.use` takes. It is None for ZeRO 1 and 3, and
    for tensor parallel, as a number of parameters names no layers.

    >>> from mgpu_helpers.scaling import links
    >>> found = on_paper(7e9, 8, budget=80e9, link=links.NVLINK_3)
    >>> [way.name for way in found.fitting]
    ['ZeRO 1', 'ZeRO 2', 'ZeRO 3', 'state on the host']
    >>> found.ways[3].held, round(found.ways[3].seconds, 2)
    (26250000000.0, 0.11)
    >>> on_paper(7e9, 2).ways[3].layout
    Layout(('/GPU:0', '/GPU:1'), state='owners')
    """
    positive("parameters", parameters, "a number of parameters")
    n = whole_number("devices", devices, "a number of devices", 1)
    pieces = whole_number("pieces", pieces, "a number of pieces", 1)
    known = {"mixed": (2, 2, 4 + 4 * slots), "float32": (4, 4, 4 * slots)}
    if precision not in known:
        raise ValueError(f"precision={precision!r} is not known: use one of {', '.join(known)}.")
    if not budget > 0:
        raise ValueError(f"budget={budget!r} is no number of bytes: use one above 0.")
    if bool(layers) != bool(between):
        raise ValueError(f"layers={layers!r} and between={between!r}: give both, or none.")
    w, g, s = (parameters * each for each in known[precision])
    ring, mine = (n - 1) / n, activations / n
    ways: list[Share] = []

    def add(
        name: str, weights: float, gradients: float, slots: float, kept: float,
        options: Mapping[str, Any] | None, sends: float = 0, messages: int = 0,
        over: Link | None = link,
    ) -> None:  # fmt: skip
        seconds = sends / over.bandwidth + messages * over.latency if over and sends else None
        held, on = (weights, gradients, slots, kept), n if sends else 0
        ways.append(Share(name, *held, sends, seconds, name == HALF, on, options))

    add("as it is", w, g, s, activations, {})
    if precision == "float32":  # Keras's weights, gradients and slots stay as they are
        add(HALF, w, g, s, activations / 2, {})
    if pieces > 1:
        add(f"{pieces} pieces", w, 2 * g, s, activations / pieces, {"pieces": pieces})
    if layers > 1:  # the input of each part, and what one of them keeps
        parts = max(2, round(layers**0.5))
        kept = parts * between + activations / parts
        add(f"recompute in {parts} parts", w, g, s, kept, {"recompute": parts})
    if n > 1:
        turns = 2 * (n - 1)
        add(f"batch over {n} devices", w, g, s, mine, {}, ring * 2 * g, turns)
        add("ZeRO 1", w, g, s / n, mine, None, ring * (g + w), turns)
        add("ZeRO 2", w, g / n, s / n, mine, {"state": "owners"}, ring * (g + w), turns)
        turns = 3 * max(1, layers) * (n - 1)
        add("ZeRO 3", w / n, g / n, s / n, mine, None, ring * (g + 2 * w), turns)
    if n > 1 and layers:
        share = w / n, g / n, s / n
        sums, whole = (6 if recomputed else 4) * layers, KEPT_WHOLE * layers * between
        kept, turns = mine + ring * min(activations, whole), sums * 2 * (n - 1)
        add("tensor parallel", *share, kept, None, sums * ring * 2 * between, turns)
        cuts = min(2, n - 1)
        add("pipeline", *share, mine, {"stages": n}, cuts * between, cuts)
        for rows in range(2, n // 2 + 1):  # each of which has the model once, in stages
            stages, left = divmod(n, rows)
            if left or stages > layers:
                continue
            share, cuts = (w / stages, g / stages, s / stages), min(2, stages - 1)
            sends = cuts * between / rows + (rows - 1) / rows * 2 * g / stages
            add(f"{rows} rows of {stages} stages", *share, mine, {"stages": stages}, sends,
                cuts + 2 * (rows - 1))  # fmt: skip
    add("state on the host", w, 0, 0, mine, {"state": "host"}, w + g, 2, to_host)
    return Paper(parameters, n, budget, tuple(ways))
