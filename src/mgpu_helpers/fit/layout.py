"""How a training lies on devices: one value, which `use` brings a model to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._later import tf

WAYS = ("columns", "rows", "heads")
AUTO = "auto"  # layers are found in the graph
STATES = ("home", "owners", "host")
SCHEDULES = ("1F1B", "all forward first")
# What does not go together, as docs/layouts.md shows it: two options, and why.
APART = (
    ("stages", "layers", "a row of devices has either stages or parts of layers"),
    ("layers", "state", "each device has its parts of the weights already"),
)


@dataclass(frozen=True, repr=False)
class Layout:
    """How the training of a model lies on devices.

    devices: a grid, written one row after the other. A row has the model once; the rows share the
    batch. None means the devices where the model is. A row is one device, but

    - stages: the layers are cut into so many stages, a device for each, or in front of the layers
      that are named, `stages=["block_3"]`;
    - layers: large layers are cut into a part for each device of a row, by patterns for names,
      `{"up_.*": "columns", "down_.*": "rows", "attention": "heads"}`, by a layout map of Keras, or
      as they are found, "auto"; row says how many devices a row has, None all.

    shares: how much of a batch each row takes, such as (2, 1); None the same. state: where weights
    and what the optimizer keeps for them are: at "home", where they are read and updated; shared
    out over their "owners", the rows; or on the "host". pieces: a batch is taken in so many, one
    after the other. schedule: in which order stages take pieces, "1F1B" or "all
    forward first". recompute: activations are computed twice and not kept: True, in so many parts,
    or in parts that begin with the layers named. synchronized: a BatchNormalization normalizes by
    the statistics of all rows, as on one device. compiled: whether XLA compiles what each device
    does; None does as Keras was told by `compile`.

    >>> Layout(("/CPU:1", "/CPU:2", "/CPU:3", "/CPU:4"), stages=2).rows
    (('/CPU:1', '/CPU:2'), ('/CPU:3', '/CPU:4'))
    >>> Layout(("/CPU:1",), pieces=4)
    Layout(('/CPU:1',), pieces=4)
    """

    devices: Sequence[str] = ()
    shares: Sequence[float] | None = None
    state: str | Sequence[str] = "home"
    stages: int | Sequence[str] = 1
    layers: Any = ()  # pairs of a pattern and a way, or AUTO; a mapping may be given
    row: int | None = None
    pieces: int = 1
    schedule: str = SCHEDULES[0]
    recompute: bool | int | Sequence[str] = False
    synchronized: bool = True
    compiled: bool | None = None

    def __post_init__(self) -> None:
        def becomes(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        becomes("devices", _each_once(self.devices))
        if not isinstance(self.state, str):
            becomes("state", _each_once(self.state))
        elif self.state not in STATES:
            raise ValueError(f"state={self.state!r}: use one of {STATES}, or names of devices.")
        for name in ("stages", "recompute"):
            if isinstance(value := getattr(self, name), str):
                becomes(name, (value,))
            elif isinstance(value, Iterable):
                becomes(name, tuple(value))
        if not isinstance(self.stages, tuple):
            becomes("stages", whole_number("stages", self.stages, "a number of stages", 1))
        becomes("pieces", whole_number("pieces", self.pieces, "a number of pieces", 1))
        if not isinstance(self.recompute, bool | tuple):
            whole_number("recompute", self.recompute, "a number of parts", 2)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}: use one of {SCHEDULES}.")
        if isinstance(self.layers, str) and self.layers != AUTO:
            raise ValueError(f"layers={self.layers!r}: give patterns with ways, or {AUTO!r}.")
        if hasattr(self.layers, "device_mesh"):
            size, layers = _of_map(self.layers)
            becomes("layers", layers)
            becomes("row", self.row or size)
        elif self.layers != AUTO:
            pairs = self.layers.items() if isinstance(self.layers, Mapping) else self.layers
            becomes("layers", tuple((str(name), way) for name, way in pairs))
            for name, way in self.layers:
                letter = isinstance(way, str) and len(way) == 1 and way.isalpha()
                if way not in WAYS and not letter and not isinstance(way, int):
                    raise ValueError(
                        f"layers={{{name!r}: {way!r}}}: cut by one of {WAYS}, a letter of the "
                        "equation, or the number of an axis of the weight."
                    )
        if self.shares is not None:
            becomes("shares", tuple(self.shares))
        self._check()

    def _check(self) -> None:
        length, count = self.length, len(self.devices)
        said = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        for first, second, why in APART:
            if {first, second} <= said:
                raise ValueError(f"{first} and {second} do not go together: {why}.")
        if not self.devices:
            alone = ("shares", "state", "stages", "layers", "row")
            if given := [name for name in alone if name in said]:
                raise ValueError(
                    f"{given[0]}={getattr(self, given[0])!r} is said of no devices: give a plan, "
                    "or its devices."
                )
            return
        if self.row is not None and not self.layers:
            raise ValueError(f"row={self.row} is how many devices have parts of layers: give them.")
        if length < 1 or count % length:
            what = f"layers in {length} parts" if self.layers else f"{length} stages"
            raise ValueError(
                f"{counted(count, 'device')} cannot be rows of {length}, as {what} need them: "
                f"give {count - count % length or length} or "
                f"{count - count % length + length} devices."
            )
        if self.shares is not None:
            n = len(self.rows)
            if len(self.shares) != n or not all(share > 0 for share in self.shares):
                raise ValueError(
                    f"shares={self.shares} of a batch for {counted(n, 'row')} of devices: give "
                    "a number above 0 for each."
                )

    @property
    def staged(self) -> bool:
        """Say whether the layers are in several stages."""
        return bool(self.stages) and self.stages != 1

    @property
    def length(self) -> int:
        """Count the devices of a row."""
        if self.layers:
            return self.row or len(self.devices)
        return self.stages if isinstance(self.stages, int) else 1 + len(self.stages)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Give the devices by rows, each of which has the model once."""
        n = self.length
        return tuple(tuple(self.devices[i : i + n]) for i in range(0, len(self.devices), n))

    def sizes(self, size: Any) -> list[Any]:
        """Cut a number of examples, which may be a tensor, into the rows' shares of it."""
        from mgpu_helpers.towers.shards import shard_sizes

        n = max(1, len(self.rows))
        if self.shares is None:
            return shard_sizes(size, n)
        ends = [0.0, *itertools.accumulate(self.shares)]
        at = [share / ends[-1] for share in ends]
        if tf.is_tensor(size):
            exact = [tf.round(tf.cast(size, tf.float64) * share) for share in at]
            borders = [tf.cast(each, size.dtype) for each in exact]
        else:
            borders = [round(size * share) for share in at]
        return [b - a for a, b in itertools.pairwise(borders)]

    def changed(self, **options: Any) -> Layout:
        """Give this layout with other options."""
        known = [field.name for field in fields(self)]
        if unknown := sorted(options.keys() - {*known}):
            raise TypeError(f"a layout has no {unknown[0]!r}: it has {', '.join(known)}.")
        return replace(self, **options)

    def __repr__(self) -> str:
        said = [repr(self.devices)] if self.devices else []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                value = dict(value) if field.name == "layers" and value != AUTO else value
                said.append(f"{field.name}={value!r}")
        return f"Layout({', '.join(said)})"


def _of_map(layout_map: Any) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Read a layout map of Keras: how many devices have parts, and by which axes of what weights.

    Of the axes of its mesh the first is for the batch, as Keras has it.
    """
    mesh = layout_map.device_mesh
    parts = {*mesh.axis_names[1:]}
    size = math.prod(mesh.shape[1:])
    pairs = [(pattern, [i for i, axis in enumerate(own.axes) if axis in parts])
             for pattern, own in layout_map.items()]  # fmt: skip
    return size, tuple((pattern, own[0]) for pattern, own in pairs if own)


def _each_once(devices: Iterable[Any]) -> tuple[str, ...]:
    names = [getattr(each, "name", each) for each in devices]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"devices={[*names]} has {twice[0]} twice: give each device once.")
    return tuple(names)
