"""What a training step costs: a sum of six terms, counted from the network and the layout.

A step takes

    arithmetic x per-device batch + fixed + update, where the host holds the variables
    + moving x bytes that cross + input x global batch + latency x messages

The parameters cross 2(n - 1) times on n devices when the first one holds the variables and
averages, 2n times when the host does, and 2(n - 1)/n times over each road of a ring, as NCCL's. The
last two terms are zero unless asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from mgpu_helpers.scaling.links import Link
from mgpu_helpers.wording import counted, whole_number

#: The terms of a step's cost, by the names that `fit` and `holdout` take.
TERMS = ("arithmetic", "fixed", "update", "moving", "input", "latency")
DEVICES, BATCH = "a number of devices", "a batch size"
KEPT = {"device": "", "host": ", variables on the host", "ring": ", averaged in a ring"}


def positive(what: str, value: float, kind: str) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{what}={value!r} is not {kind}: use a finite number above 0.")


@dataclass(frozen=True)
class Workload:
    """What one network asks for: parameters of 4 bytes, and FLOP an example to train.

    flops is None where nobody counted them: no more than `feasible` and `Fit.flops` need them.
    split_bytes is what crosses between two devices for each example of a step, both ways together,
    when each holds a part of the network; None where no cut is known.

    >>> Workload("mine", parameters=6_640_394, flops=284e6).bytes
    26561576
    """

    name: str
    parameters: int
    flops: float | None = None
    split_bytes: int | None = None

    def __post_init__(self) -> None:
        whole_number("parameters", self.parameters, "a number of parameters", 1)
        if self.flops is not None:
            positive("flops", self.flops, "a number of FLOP")
        if self.split_bytes is not None:
            whole_number("split_bytes", self.split_bytes, "a number of bytes", 1, "None")

    @classmethod
    def of(cls, model: Any, name: str | None = None) -> Workload:
        """Count a built Keras model: the parameters that it trains, and FLOP an example.

        What is not trained, such as moving averages, has no gradient and does not cross. flops is
        None where `graph.flops` cannot count the model. name None takes the model's.

        >>> model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(3)])
        >>> Workload.of(model, "mine").parameters
        27
        """
        from mgpu_helpers.graph import flops, parameters

        count = parameters(model, trainable=True)
        name = name or model.name
        if not count:
            raise ValueError(
                f"the model {name!r} trains none of its {parameters(model):,} parameters, so that "
                "nothing would cross: make some layers trainable first."
            )
        return cls(name, count, flops(model, training=True) or None)

    @property
    def bytes(self) -> int:
        """Return the bytes of the parameters, which are those of their gradients too."""
        return 4 * self.parameters


@dataclass(frozen=True, repr=False)
class Layout:
    """How a step is laid out: each device has a shard, or two devices have half the network each.

    The variables are on the first device or on the host, which averages; "ring" stands for a copy
    on every device and gradients that are averaged in a ring. On the path "split" both devices
    see the whole batch, and it is their per-device batch.

    >>> Layout(devices=2, per_device_batch=128, variables="host")
    2 devices x 128, variables on the host
    """

    devices: int
    per_device_batch: int
    variables: str = "device"  #: or "host" or "ring"
    path: str = "data"  #: or "split"

    def __post_init__(self) -> None:
        whole_number("devices", self.devices, DEVICES, 1)
        whole_number("per_device_batch", self.per_device_batch, BATCH, 1)
        for name, known in (("variables", tuple(KEPT)), ("path", ("data", "split"))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}={value!r} is not known: use {' or '.join(known)}.")
        if self.path == "split" and self.variables == "ring":
            raise ValueError(
                "a model split over 2 devices has nothing to average in a ring: use "
                "variables='device' or 'host'."
            )
        if self.path == "split" and self.devices != 2:
            raise ValueError(
                f"a model split over {counted(self.devices, 'device')} is not in the cost model: "
                "use devices=2."
            )

    def __repr__(self) -> str:
        if self.path == "split":
            text = f"model split over 2 devices, batch {self.per_device_batch}"
        else:
            text = f"{counted(self.devices, 'device')} x {self.per_device_batch}"
        return text + KEPT[self.variables]

    @property
    def global_batch_size(self) -> int:
        """Return the examples of a step on all devices together."""
        return self.per_device_batch * (1 if self.path == "split" else self.devices)


@dataclass(frozen=True)
class Measurement:
    """A measured step in seconds; memory is MiB for each GPU and steps how many were timed.

    Both are None where nobody wrote them down.
    """

    layout: Layout
    seconds: float
    source: str = ""
    memory: tuple[int, ...] | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        positive(f"{self.layout}: seconds", self.seconds, "the time of a step")

    @classmethod
    def of_rate(cls, layout: Layout, examples_per_second: float, source: str = "") -> Measurement:
        """Make a measured step from the examples a second on all devices together.

        >>> Measurement.of_rate(Layout(8, 64), 1024).seconds
        0.5
        """
        what = f"{layout}: examples_per_second"
        positive(what, examples_per_second, "the examples of a second")
        return cls(layout, layout.global_batch_size / examples_per_second, source)

    @property
    def total(self) -> float | None:
        """Return the seconds of all timed steps together; None where their number is not known."""
        return None if self.steps is None else self.seconds * self.steps


@dataclass(frozen=True)
class Cost:
    """What each term of a step costs; zero leaves a term out."""

    arithmetic: float  #: seconds an example
    fixed: float  #: seconds a step
    update: float = 0.0  #: seconds a step, with the variables on the host
    moving: float = 0.0  #: seconds a byte
    input: float = 0.0  #: seconds an example of the global batch, fed by one host
    latency: float = 0.0  #: seconds a message

    def __post_init__(self) -> None:
        for term in TERMS:
            value = getattr(self, term)
            if not 0 <= value < math.inf:
                raise ValueError(f"{term}={value!r} is not a cost: use a finite number, 0 or more.")

    def over(self, link: Link) -> Cost:
        """Give the same cost with another link between the devices."""
        return replace(self, moving=1 / link.bandwidth, latency=link.latency)


@dataclass(frozen=True)
class Breakdown:
    """The seconds that each part takes of a step."""

    arithmetic: float = 0.0
    fixed: float = 0.0
    update: float = 0.0
    moving: float = 0.0
    input: float = 0.0
    latency: float = 0.0

    @property
    def total(self) -> float:
        """Return the seconds of the whole step."""
        return sum(getattr(self, term) for term in TERMS)


def step_time(workload: Workload, layout: Layout, cost: Cost) -> Breakdown:
    """Predict the parts of a step, in seconds.

    >>> step_time(Workload("mine", 1000, 5e6), Layout(1, 10), Cost(2e-3, 5e-3)).total
    0.025
    """
    uses = used_by(workload, layout)
    return Breakdown(**{term: uses[term] * getattr(cost, term) for term in TERMS})


def used_by(workload: Workload, layout: Layout) -> dict[str, float]:
    """Count what a step asks of each term."""
    n, batch, host = layout.devices, layout.per_device_batch, layout.variables == "host"
    if layout.path == "data":
        messages = 2 * n if host else 2 * (n - 1)
        moved = messages * workload.bytes / (n if layout.variables == "ring" else 1)
    elif workload.split_bytes is None:
        raise ValueError(
            f"{workload.name} has split_bytes=None, so a split model's traffic is not known: give "
            "Workload the bytes that cross the cut for an example, both ways together."
        )
    else:  # each parameter to the host and back once, each example over the cut and back
        messages = 2 + 2 * host
        moved = 2 * host * workload.bytes + workload.split_bytes * batch
    counts = (batch, 1, float(host), moved, layout.global_batch_size, messages)
    return dict(zip(TERMS, counts, strict=True))


def central(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None = None
) -> Breakdown:
    """Predict a step in which the first device averages and holds the variables, in seconds.

    batch is that of each device. The cost of moving is that of `link`; None: the cost's own.

    >>> work, cost = Workload("mine", 1_000_000), Cost(1e-4, 5e-3, moving=1e-10)
    >>> round(central(work, cost, 4, 32).total, 4)
    0.0106
    """
    return _data_parallel(workload, cost, n, batch, link, 2 * (n - 1))


def ring(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None = None
) -> Breakdown:
    """Predict a step in which the gradients go round in a ring, in seconds.

    Each device sends its neighbour 2(n - 1) messages of an nth of the parameters; the rest is as
    in `central`.

    >>> work, cost = Workload("mine", 1_000_000), Cost(1e-4, 5e-3, moving=1e-10)
    >>> round(ring(work, cost, 4, 32).total, 4)
    0.0088
    """
    return _data_parallel(workload, cost, n, batch, link, 2 * (n - 1) / n)


def _data_parallel(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None, passes: float
) -> Breakdown:
    whole_number("n", n, DEVICES, 1)
    positive("batch", batch, BATCH)
    cost = cost.over(link) if link else cost
    return Breakdown(
        arithmetic=cost.arithmetic * batch,
        fixed=cost.fixed,
        moving=cost.moving * passes * workload.bytes,
        input=cost.input * n * batch,
        latency=cost.latency * 2 * (n - 1),
    )
