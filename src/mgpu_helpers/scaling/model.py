"""What a training step costs: a sum of six terms, counted from the network and its setting.

A step takes

    arithmetic x per-device batch + fixed + update, where the host holds the variables
    + moving x bytes that cross + input x global batch + latency x messages

The parameters cross 2(n - 1) times on n devices when the first one holds the variables and
averages, 2n times when the host does, and 2(n - 1)/n times over each road of a ring, as NCCL's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers.scaling.links import Link

if TYPE_CHECKING:
    from mgpu_helpers.fit.layout import Layout

KEPT = {"device": "", "host": ", variables on the host", "ring": ", averaged in a ring"}

End = float | None
Doubts = tuple[str, ...]


def positive(what: str, value: float, kind: str) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{what}={value!r} is not {kind}: use a finite number above 0.")


@dataclass(frozen=True)
class Workload:
    """What one network asks for: parameters of 4 bytes, and FLOP an example to train.

    flops is None where nobody counted them. split_bytes is what crosses between two devices for
    each example of a step, both ways together, when each holds a part of the network.

    >>> Workload("mine", parameters=6_640_394, flops=284e6).bytes
    26561576
    """

    name: str
    parameters: int
    flops: float | None = None
    split_bytes: int | None = None

    def __post_init__(self) -> None:
        whole_number(f"{self.name}: parameters", self.parameters, "a number of parameters", 1)

    @classmethod
    def of(cls, model: Any, name: str | None = None, *, length: Any = None) -> Workload:
        """Count a built Keras model: the parameters that it trains, and FLOP an example.

        What is not trained, such as moving averages, has no gradient and does not cross. flops is
        None where `graph.flops` cannot count the model. name None takes the model's. length is what
        open sizes of inputs are, a number or data, as in `memory.predict`; the name says which.

        >>> model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(3)])
        >>> Workload.of(model, "mine").parameters
        27
        """
        from mgpu_helpers._given import given
        from mgpu_helpers.graph import flops, parameters

        count, data = parameters(model, trainable=True), given(model, 1, length)
        work = count and flops(model, training=True, batch=data) or None
        return cls(name or f"{model.name} {data.took}".strip(), count, work)

    @property
    def bytes(self) -> int:
        """Return the bytes of the parameters, which are those of their gradients too."""
        return 4 * self.parameters


@dataclass(frozen=True, repr=False)
class Setting:
    """What is counted of a step: each device has a shard, or two devices have half the network.

    The variables are on the first device or on the host, which averages; "ring" stands for a copy
    on every device and gradients that are averaged in a ring. On the path "split" both devices
    see the whole batch, and it is their per-device batch.

    >>> Setting(devices=2, per_device_batch=128, variables="host")
    2 devices x 128, variables on the host
    """

    devices: int
    per_device_batch: float
    variables: str = "device"  #: or "host" or "ring"
    path: str = "data"  #: or "split"

    def __post_init__(self) -> None:
        whole_number("devices", self.devices, "a number of devices", 1)
        positive("per_device_batch", self.per_device_batch, "a batch size")
        known = {"data": tuple(KEPT), "split": ("device", "host")}.get(self.path, ())
        if self.variables not in known or (self.path == "split" and self.devices != 2):
            raise ValueError(
                f"variables={self.variables!r}, path={self.path!r} on {self.devices}: use one "
                f"of {', '.join(KEPT)}; path='split' is over 2 devices and without a ring."
            )

    def __repr__(self) -> str:
        text = f"{counted(self.devices, 'device')} x {self.per_device_batch}"
        if self.path == "split":
            text = f"model split over 2 devices, batch {self.per_device_batch}"
        return text + KEPT[self.variables]

    @classmethod
    def of(cls, layout: Layout, batch: float) -> Setting:
        """Make the setting of a `fit.Layout`, for the batch that `fit` takes, of all its devices.

        Variables at "home" are taken to be on the first device. No layout is a ring: for one, as
        `fit.strategy` has it on GPUs, write `Setting(8, 64, "ring")`. A layout with what is not
        counted here, such as pieces, raises a ValueError.

        >>> from mgpu_helpers.fit import Layout
        >>> Setting.of(Layout(("/GPU:0", "/GPU:1"), state="host"), batch=256)
        2 devices x 128, variables on the host
        """
        n, told = len(layout.devices), ("devices", "state", "stages", "schedule", "synchronized")
        beside = (f for f in fields(layout) if f.name not in told)
        more = any(getattr(layout, f.name) != f.default for f in beside)
        if not n or more or layout.state not in ("home", "host") or layout.staged and n != 2:
            raise ValueError(
                f"{layout}: what it costs is not counted here. Give one with devices, on which the "
                'whole model is, or two stages, and no other option but state="host".'
            )
        shares = 1 if layout.staged else n
        each = batch / shares if batch % shares else batch // shares
        variables = "host" if layout.state == "host" else "device"
        return cls(n, each, variables, "split" if layout.staged else "data")

    @property
    def global_batch_size(self) -> float:
        """Return the examples of a step on all devices together."""
        return self.per_device_batch * (1 if self.path == "split" else self.devices)


@dataclass(frozen=True)
class Measurement:
    """A measured step in seconds; total is that of all timed steps, and memory MiB for each GPU.

    Both are None where nobody wrote them down.
    """

    setting: Setting
    seconds: float
    source: str = ""
    memory: tuple[int, ...] | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        positive(f"{self.setting}: seconds", self.seconds, "the time of a step")

    @classmethod
    def of_rate(cls, setting: Setting, examples_per_second: float, source: str = "") -> Measurement:
        """Make a measured step from the examples a second on all devices together.

        >>> Measurement.of_rate(Setting(8, 64), 1024).seconds
        0.5
        """
        return cls(setting, setting.global_batch_size / examples_per_second, source)


@dataclass(frozen=True)
class Cost:
    """What each term of a step costs; zero leaves a term out."""

    arithmetic: float = 0.0  #: seconds an example
    fixed: float = 0.0  #: seconds a step
    update: float = 0.0  #: seconds a step, with the variables on the host
    moving: float = 0.0  #: seconds a byte
    input: float = 0.0  #: seconds an example of the global batch, fed by one host
    latency: float = 0.0  #: seconds a message

    def __post_init__(self) -> None:
        for term in TERMS:
            if not 0 <= (value := getattr(self, term)) < math.inf:
                raise ValueError(f"{term}={value!r} is not a cost: use a finite number, 0 or more.")

    def over(self, link: Link | None) -> Cost:
        """Give the same cost with another link between the devices; None leaves it as it is."""
        return replace(self, moving=1 / link.bandwidth, latency=link.latency) if link else self


TERMS = tuple(each.name for each in fields(Cost))


class Estimate(float):
    """A predicted number, between low and high in about 95 % of cases, and the doubts about it.

    low and high are None where the rows leave nothing to tell the spread by; a doubt says so.

    >>> Estimate(3.8, 3.0, 4.9, ("8 devices, where the rows have 3 at most",))
    3.8 (3 to 4.9); in doubt: 8 devices, where the rows have 3 at most
    """

    low: End
    high: End
    doubts: Doubts

    def __new__(cls, value: float, low: End = None, high: End = None, doubts: Doubts = ()) -> Self:
        self = super().__new__(cls, value)
        self.low, self.high, self.doubts = low, high, doubts
        return self

    def __repr__(self) -> str:
        return self.text()

    def text(self, factor: float = 1, parts: str = "") -> str:
        """Write the number times a factor, with its ends, some text and its doubts."""
        text = f"{self * factor:.3g}"
        if self.low is not None and self.high is not None:
            text += f" ({self.low * factor:.3g} to {self.high * factor:.3g})"
        return text + parts + ("; in doubt: " + "; ".join(self.doubts) if self.doubts else "")


@dataclass(frozen=True, repr=False)
class Breakdown(Cost):
    """The cost of one step: the seconds of each part.

    About 95 % of such steps take from low to high seconds; None where nothing tells the spread.
    """

    low: End = None
    high: End = None
    doubts: Doubts = ()

    @property
    def total(self) -> Estimate:
        """Return the seconds of the whole step, with their interval and doubts."""
        seconds = sum(getattr(self, term) for term in TERMS)
        return Estimate(seconds, self.low, self.high, self.doubts)

    def __repr__(self) -> str:
        parts = ((term, getattr(self, term)) for term in TERMS)
        named = ", ".join(f"{term} {1e3 * part:.3g}" for term, part in parts if part)
        return self.total.text(1e3, f" ms: {named}")


def used_by(workload: Workload, setting: Setting) -> dict[str, float]:
    """Count what a step asks of each term."""
    n, batch, host = setting.devices, setting.per_device_batch, setting.variables == "host"
    if setting.path == "data":
        messages = 2 * n if host else 2 * (n - 1)
        moved = messages * workload.bytes / (n if setting.variables == "ring" else 1)
    elif workload.split_bytes is None:
        raise ValueError(f"{workload.name} has split_bytes=None: give what crosses the cut.")
    else:  # each parameter to the host and back once, each example over the cut and back
        messages = 2 + 2 * host
        moved = 2 * host * workload.bytes + workload.split_bytes * batch
    counts = (batch, 1, float(host), moved, setting.global_batch_size, messages)
    return dict(zip(TERMS, counts, strict=True))


def step_time(workload: Workload, setting: Setting, cost: Cost) -> Breakdown:
    """Predict the parts of a step, in seconds, from a cost that is known."""
    uses = used_by(workload, setting)
    return Breakdown(**{term: uses[term] * getattr(cost, term) for term in TERMS})


def ring(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None = None
) -> Breakdown:
    """Predict a step in which the gradients go round in a ring, in seconds.

    Each device sends its neighbour 2(n - 1) messages of an nth of the parameters.
    batch is that of each device. The cost of moving is that of `link`; None: the cost's own.

    >>> work, cost = Workload("mine", 1_000_000), Cost(1e-4, 5e-3, moving=1e-10)
    >>> round(ring(work, cost, 4, 32).total, 4)
    0.0088
    """
    return step_time(workload, Setting(n, batch, "ring"), cost.over(link))
