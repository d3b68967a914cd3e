"""What a training step costs: a model in parts, fitted to measured steps and asked about others.

Lesson 08 builds it in front of the reader. A step takes

    arithmetic x per-device batch + fixed + update, where the host holds the variables
    + moving x bytes that cross + input x global batch + latency x messages

The parameters cross 2(n - 1) times on n devices when the first one holds the variables and
averages, and 2n times when the host does. The last two terms are zero unless asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from numbers import Real
from typing import NamedTuple

import numpy as np

from mgpu_helpers import models
from mgpu_helpers.wording import counted, size_text, whole

TERMS = ("arithmetic", "fixed", "update", "moving", "input", "latency")
_DEVICES, _BATCH = "a number of devices", "a batch size"
_ABSENT = {
    "update": "no row has its variables on the host: measure one that has",
    "moving": "no row moves anything between devices: measure one on 2 devices",
    "latency": "no row sends anything between devices: measure one on 2 devices",
}
_NOISE = 1e-9  # relative errors below this are rounding
# 97.5 % of Student's distribution lies below, for 1 to 10 rows more than coefficients.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def _positive(what: str, value: float, kind: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{what}={value!r} is not {kind}: use a finite number above 0.")


@dataclass(frozen=True)
class Workload:
    """What one network asks for: parameters of 4 bytes, and FLOP an example to train.

    split_bytes is what crosses between two devices for each example of a step, both ways together,
    when each holds a part of the network; None where no cut is known.
    """

    name: str
    parameters: int
    flops: float
    split_bytes: int | None = None

    def __post_init__(self) -> None:
        whole("parameters", self.parameters, "a number of parameters", 1)
        _positive("flops", self.flops, "a number of FLOP")
        if self.split_bytes is not None:
            whole("split_bytes", self.split_bytes, "a number of bytes", 1, "None")

    @property
    def bytes(self) -> int:
        """Return the bytes of the parameters, which are those of their gradients too."""
        return 4 * self.parameters

    @classmethod
    def of(cls, network: models.Network, cut: str | None = None) -> Workload:
        """Count a network from its layers; cut names the first layer on the second device."""
        enters = {  # bytes an example; not the first layer, before which there is nothing
            layer.name: 4 * math.prod(before)
            for layer, before, _ in list(models.walk(network))[1:]
            if hasattr(layer, "name")
        }
        if cut is not None and cut not in enters:
            raise ValueError(
                f"{network.name} cannot be cut before {cut!r}: use one of {', '.join(enters)}."
            )
        crossing = None if cut is None else 2 * enters[cut]
        return cls(network.name, models.parameters(network), models.flops(network), crossing)


@dataclass(frozen=True, repr=False)
class Layout:
    """How a step is laid out: each device has a shard, or two devices have half the network each.

    On the path "split" both devices see the whole batch, and it is their per-device batch.
    """

    devices: int
    per_device_batch: int
    variables: str = "device"  # or "host"
    path: str = "data"  # or "split"

    def __post_init__(self) -> None:
        whole("devices", self.devices, _DEVICES, 1)
        whole("per_device_batch", self.per_device_batch, _BATCH, 1)
        for name, known in (("variables", ("device", "host")), ("path", ("data", "split"))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}={value!r} is not known: use {' or '.join(known)}.")
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
        return text + (", variables on the host" if self.variables == "host" else "")

    @property
    def global_batch_size(self) -> int:
        """Return the examples of a step on all devices together."""
        return self.per_device_batch * (1 if self.path == "split" else self.devices)


@dataclass(frozen=True)
class Link:
    """A way between devices: bytes a second, plausibly from low to high; seconds a message."""

    name: str
    bandwidth: float
    low: float
    high: float
    latency: float
    source: str

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.bandwidth <= self.high < math.inf and self.latency >= 0):
            raise ValueError(
                f"{self.name}: bandwidth={self.bandwidth}, low={self.low}, high={self.high}, "
                f"latency={self.latency} do not fit: use 0 < low <= bandwidth <= high and a "
                "latency of 0 or more, in bytes a second and seconds."
            )


# Latencies: what one step of a ring takes by the model with which NCCL chooses its algorithm.
_NCCL = "latency: ring, simple protocol, in NVIDIA/nccl src/graph/tuning.cc (b647562)"
PCIE_3 = Link(
    "PCIe 3.0 x16", 8e9, 5e9, 12e9, 5.7e-6,
    "high: PCI_BW in NVIDIA/nccl src/graph/topo.h; low: through shared memory between two sockets, "
    "developer.nvidia.com/blog/scaling-deep-learning-training-nccl; between them a guess, near the "
    f"8.2 GB/s that the rows of seed 001 fit; {_NCCL}",
)  # fmt: skip
NVLINK_3 = Link(
    "NVLink 3 (A100)", 230e9, 200e9, 240e9, 3.4e-6,
    "12 links of 20 GB/s (SM80_NVLINK_BW) in NVIDIA/nccl src/graph/topo.h; all-reduce on 8 A100: "
    f"232.5 GB/s in NVIDIA/nccl-tests issue 175, about 200 in issue 149; {_NCCL}",
)  # fmt: skip
ETHERNET_100G = Link(
    "100 Gbit Ethernet", 7.5e9, 4e9, 12e9, 14e-6,
    "high: NET_BW in NVIDIA/nccl src/graph/topo.h; 60 Gbit/s in a ring on AWS: NVIDIA/nccl-tests "
    f"issue 22; low: 4 to 6 GB/s over TCP, NVIDIA/nccl issue 450; {_NCCL}",
)  # fmt: skip
# 3840 cores x 2 FLOP x 1.531 GHz, its highest clock; NVIDIA's data sheet rounds it to 12 TFLOP/s.
P40_FLOPS = 3840 * 2 * 1.531e9


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
        _positive(f"{self.layout}: seconds", self.seconds, "the time of a step")

    @property
    def total(self) -> float | None:
        """Return the seconds of all timed steps together; None where their number is not known."""
        return None if self.steps is None else self.seconds * self.steps


def _published(
    total: float, memory: tuple[int, ...], layout: Layout, note: str = ""
) -> Measurement:
    return Measurement(layout, total / 2000, f"seed 001{note}", memory, 2000)


SEED_001 = (  # data parallel, TitanX, 2000 steps each
    _published(37.0640978813, (4285, 108), Layout(1, 128)),
    _published(65.0734059811, (4285, 108), Layout(1, 128, "host")),
    _published(86.920060873, (1214, 1212), Layout(2, 128, "host")),
    _published(75.5817620754, (1214, 1212), Layout(2, 128, "host"), ", second run"),
    _published(109.699135065, (2238, 2236), Layout(2, 256, "host")),
    _published(168.136204004, (4324, 4348), Layout(2, 512, "host")),
    _published(117.819902897, (2236, 2236, 2274), Layout(3, 256, "host")),
    _published(91.0233440399, (2238, 2236, 2236), Layout(3, 256)),
    _published(230.154171944, (4348, 4348, 4352), Layout(3, 768, "host")),
)
_SPLIT = Layout(2, 128, path="split")
SEED_001_SPLIT = _published(40.3634259701, (2236, 2795), _SPLIT, ", gradients colocated")
# Rows that the model does not speak of: never fitted, shown beside it.
SEED_001_APART = {
    "CPU only": _published(712.075469971, (130, 108), Layout(1, 128), ", CPU only"),
    "not colocated": _published(46.6568570137, (2236, 2795), _SPLIT, ", gradients not colocated"),
    "third run": Measurement(Layout(2, 128, "host"), 0.0284, "upstream of seed 001, third run"),
}
# The times stand upstream beside 10 epochs of 55,000 // 10,000 steps: 50 steps.
SEED_004 = tuple(
    Measurement(Layout(n, 10_000 // n), total / 50, "seed 004", steps=50)
    for n, total in ((1, 22.252533), (2, 12.632623), (4, 11.083071), (8, 11.990167))
)


@dataclass(frozen=True)
class Cost:
    """What each term of a step costs; zero leaves a term out."""

    arithmetic: float  # seconds an example
    fixed: float  # seconds a step
    update: float = 0.0  # seconds a step, with the variables on the host
    moving: float = 0.0  # seconds a byte
    input: float = 0.0  # seconds an example of the global batch, fed by one host
    latency: float = 0.0  # seconds a message

    def __post_init__(self) -> None:
        for term in TERMS:
            value = getattr(self, term)
            if not 0 <= value < math.inf:
                raise ValueError(f"{term}={value!r} is not a cost: use a finite number, 0 or more.")

    def over(self, link: Link) -> Cost:
        """Give the same cost with another link between the devices."""
        return replace(self, moving=1 / link.bandwidth, latency=link.latency)


@dataclass(frozen=True)
class Parts:
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
        return sum(astuple(self))


def step_time(workload: Workload, layout: Layout, cost: Cost) -> Parts:
    """Predict the parts of a step, in seconds."""
    uses = _uses(workload, layout)
    return Parts(**{term: uses[term] * getattr(cost, term) for term in TERMS})


def _uses(workload: Workload, layout: Layout) -> dict[str, float]:
    """Count what a step asks of each term."""
    n, batch, host = layout.devices, layout.per_device_batch, layout.variables == "host"
    if layout.path == "data":
        messages = 2 * n if host else 2 * (n - 1)
        moved = messages * workload.bytes
    elif workload.split_bytes is None:
        raise ValueError(
            f"{workload.name} has no split_bytes, so a split model's traffic is not known: use "
            "Workload.of(network, cut=...)."
        )
    else:  # each parameter to the host and back once, each example over the cut and back
        messages = 2 + 2 * host
        moved = 2 * host * workload.bytes + workload.split_bytes * batch
    counts = (batch, 1, float(host), moved, layout.global_batch_size, messages)
    return dict(zip(TERMS, counts, strict=True))


@dataclass(frozen=True, repr=False)
class Fit:
    """A cost fitted to measured steps; unidentified says why the rows cannot tell a term.

    A term that was not fitted is in it too, unless the rows could tell it.
    """

    workload: Workload
    measurements: tuple[Measurement, ...]
    terms: tuple[str, ...]
    cost: Cost
    unidentified: Mapping[str, str]

    def __repr__(self) -> str:
        rows, terms = len(self.measurements), len(self.terms)
        head = (
            f"{self.workload.name}: {counted(rows, 'row')}, {counted(terms, 'coefficient')}; "
            f"error {self.median:.1%} in the median, {self.worst:.1%} at most"
        )
        if rows - terms < 2:
            more = counted(rows - terms, "row") if rows > terms else "no row"
            head += f"\n{more} more than coefficients: a description, not a test"
        flops, bandwidth = self.flops, self.bandwidth
        said = {
            "arithmetic": "0" if flops is None
            else f"{self.cost.arithmetic * 1e3:.3g} ms an example ({flops / 1e12:.3g} TFLOP/s)",
            "fixed": f"{self.cost.fixed * 1e3:.3g} ms",
            "update": f"{self.cost.update * 1e3:.3g} ms with the variables on the host",
            "moving": "0" if bandwidth is None else f"{size_text(round(bandwidth))}/s",
            "input": f"{self.cost.input * 1e3:.3g} ms an example of the global batch",
            "latency": f"{self.cost.latency * 1e6:.3g} µs a message",
        }  # fmt: skip
        lines = [f"{term:11}{said[term]}" for term in self.terms]
        lines += [f"not told: {term}; {why}" for term, why in self.unidentified.items()]
        return "\n".join([head, *lines])

    @property
    def errors(self) -> tuple[float, ...]:
        """Return predicted over measured, less 1, for each row."""
        return errors(asked(self, self.measurements))

    @property
    def median(self) -> float:
        """Return the median size of the errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """Return the largest size of the errors."""
        return float(np.max(np.abs(self.errors)))

    @property
    def flops(self) -> float | None:
        """Return the FLOP/s of one device that the arithmetic implies; None if it costs nothing."""
        return self.workload.flops / self.cost.arithmetic if self.cost.arithmetic else None

    @property
    def bandwidth(self) -> float | None:
        """Return the bytes a second that moving implies; None if it costs nothing."""
        return 1 / self.cost.moving if self.cost.moving else None

    def predict(self, layout: Layout) -> Parts:
        """Predict the parts of a step; a sentence where the rows say nothing of such a layout."""
        matrix, asks = _matrix(self.workload, self.measurements, self.terms), self._asks(layout)
        scale = _norms(matrix)
        known = np.linalg.pinv(matrix / scale, rcond=_NOISE) @ (matrix / scale)
        asks = asks / scale
        missing = np.abs(asks - asks @ known) > 1e-6 * np.linalg.norm(asks)
        if missing.any():
            lacking = [t for t, m in zip(self.terms, missing, strict=True) if m]
            why = "; ".join(f"{t}: {self.unidentified.get(t, 'not told')}" for t in lacking)
            raise ValueError(f"the rows do not tell what {layout} takes. {why}.")
        return step_time(self.workload, layout, self.cost)

    def _asks(self, layout: Layout) -> np.ndarray:
        uses = _uses(self.workload, layout)
        return np.array([uses[term] for term in self.terms], float)


def fit(
    workload: Workload, measurements: Iterable[Measurement], terms: Sequence[str] = TERMS[:4]
) -> Fit:
    """Fit a cost to measured steps: least squares of the relative errors, no coefficient below 0.

    A term counts as told by the rows when they are fitted worse without it than their scatter
    allows: the sum of squares then grows by more than t squared times the variance of a row, with
    Student's t at 95 %.
    """
    measurements, terms = tuple(measurements), tuple(terms)
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms or len(set(terms)) < len(terms):
        raise ValueError(f"terms={terms} cannot be fitted: use some of {', '.join(TERMS)}, once.")
    if len(measurements) < len(terms):
        raise ValueError(
            f"{counted(len(measurements), 'row')} cannot tell "
            f"{counted(len(terms), 'coefficient')}: measure {len(terms) - len(measurements)} more, "
            "or fit fewer terms."
        )
    found = _solve(_matrix(workload, measurements, terms))[0].tolist()
    cost = Cost(**({"arithmetic": 0.0, "fixed": 0.0} | dict(zip(terms, found, strict=True))))
    reasons = {term: _why_not(workload, measurements, terms, term) for term in TERMS}
    return Fit(workload, measurements, terms, cost, {t: why for t, why in reasons.items() if why})


def _matrix(
    workload: Workload, measurements: Sequence[Measurement], terms: Sequence[str]
) -> np.ndarray:
    """Give what each row asks of each term, over its seconds: times the cost it should be 1."""
    rows = [(_uses(workload, m.layout), m.seconds) for m in measurements]
    return np.array([[uses[term] / seconds for term in terms] for uses, seconds in rows], float)


def _norms(matrix: np.ndarray) -> np.ndarray:
    """Give the length of each column, 1 for an empty one."""
    norms = np.linalg.norm(matrix, axis=0)
    return np.where(norms > 0, norms, 1.0)


def _solve(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Give the x of 0 or more with the least |matrix x - 1|, and the sum of its squares.

    Every set of columns is tried, the smaller ones first, so that a column that only repeats
    others stays at 0.
    """
    rows, columns = matrix.shape
    scale = _norms(matrix)
    best, least = np.zeros(columns), float(rows)
    for size in range(1, columns + 1):
        for active in map(list, itertools.combinations(range(columns), size)):
            part = np.linalg.lstsq(matrix[:, active] / scale[active], np.ones(rows), rcond=None)[0]
            squares = float(np.sum((matrix[:, active] / scale[active] @ part - 1) ** 2))
            if part.min() >= 0 and squares < least * (1 - _NOISE) - rows * _NOISE**2:
                best, least = np.zeros(columns), squares
                best[active] = part / scale[active]
    return best, least


def _why_not(
    workload: Workload, measurements: Sequence[Measurement], terms: Sequence[str], term: str
) -> str | None:
    """Say why the rows cannot tell a term beside the others; None if they can."""
    others = [other for other in terms if other != term]
    matrix = _matrix(workload, measurements, [*others, term])
    matrix = matrix / _norms(matrix)
    rest, column = matrix[:, :-1], matrix[:, -1]
    if not column.any():
        return _ABSENT[term]
    weights = np.linalg.lstsq(rest, column, rcond=_NOISE)[0]
    if np.linalg.norm(rest @ weights - column) < 1e-6:
        same = [other for other, w in zip(others, weights, strict=True) if abs(w) > 1e-6]
        return f"from row to row it changes as {' and '.join(same)} {'do' if same[1:] else 'does'}"
    rows, columns = matrix.shape
    if rows == columns:
        return f"{counted(rows, 'row')} and {counted(columns, 'coefficient')} leave no scatter"
    _, with_it = _solve(matrix)
    _, without = _solve(rest)
    variance = with_it / (rows - columns)
    if without - with_it > _student(rows - columns) ** 2 * variance:
        return None
    return (
        f"the rows are fitted to {math.sqrt(without / rows):.1%} without it, to "
        f"{math.sqrt(with_it / rows):.1%} with it: too close for their scatter"
    )


def _student(spare: int) -> float:
    """Give the t below which 97.5 % of Student's distribution lies."""
    if spare <= len(_T):
        return _T[spare - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * spare) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * spare**2)


class Answer(NamedTuple):
    """A measured step and the seconds predicted for it."""

    measurement: Measurement
    seconds: float

    @property
    def error(self) -> float:
        """Return predicted over measured, less 1."""
        return self.seconds / self.measurement.seconds - 1


def asked(fit: Fit, measurements: Iterable[Measurement]) -> list[Answer]:
    """Ask a fit for the steps of some rows, in seconds, beside what was measured."""
    return [Answer(m, fit.predict(m.layout).total) for m in measurements]


def errors(answers: Iterable[tuple[Measurement, float]]) -> tuple[float, ...]:
    """Give predicted over measured, less 1, for each answer."""
    return tuple(Answer(*answer).error for answer in answers)


def holdout(
    workload: Workload,
    measurements: Iterable[Measurement],
    by: str = "layout",
    terms: Sequence[str] = TERMS[:4],
) -> list[Answer]:
    """Predict each row from a fit to the others, in seconds; rows alike in `by` are left together.

    `by` is "layout", so that repeats do not help each other, or one of its fields.
    """
    measurements = tuple(measurements)
    known = ("layout", *Layout.__dataclass_fields__)
    if by not in known:
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(known)}.")

    def key(m: Measurement) -> object:
        return m.layout if by == "layout" else getattr(m.layout, by)

    fits = {
        out: fit(workload, [m for m in measurements if key(m) != out], terms)
        for out in dict.fromkeys(map(key, measurements))
    }
    return [answer for m in measurements for answer in asked(fits[key(m)], [m])]


def interval(fit: Fit, layout: Layout) -> tuple[float, float]:
    """Give the seconds between which a step lies in about 95 % of cases, errors being relative.

    It holds the scatter of the rows and what they leave open of the coefficients, so it is wider
    the further a layout lies from them. It knows nothing of what the model leaves out.
    """
    rows, terms = len(fit.measurements), len(fit.terms)
    if rows <= terms:
        raise ValueError(
            f"{counted(rows, 'row')} and {counted(terms, 'coefficient')} leave nothing to tell the "
            f"spread by: measure {counted(terms + 1 - rows, 'more row')}."
        )
    seconds = fit.predict(layout).total
    matrix = _matrix(fit.workload, fit.measurements, fit.terms)
    scale = _norms(matrix)
    asks = fit._asks(layout) / scale / seconds
    leverage = float(np.linalg.norm(asks @ np.linalg.pinv(matrix / scale, rcond=_NOISE)))
    scatter = math.sqrt(sum(e**2 for e in fit.errors) / (rows - terms))
    reach = _student(rows - terms) * scatter * math.sqrt(1 + leverage**2)
    return seconds * math.exp(-reach), seconds * math.exp(reach)


Way = Callable[..., Parts]


def central(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None = None
) -> Parts:
    """Predict a step in which the first device averages and holds the variables, in seconds.

    batch is that of each device. The cost of moving is that of `link`; None: the cost's own.
    """
    return _data_parallel(workload, cost, n, batch, link, 2 * (n - 1))


def ring(workload: Workload, cost: Cost, n: int, batch: float, link: Link | None = None) -> Parts:
    """Predict a step in which the gradients go round in a ring (see lesson 07), in seconds.

    Each device sends 2(n - 1) messages of an nth of the parameters; the rest as in `central`.
    """
    return _data_parallel(workload, cost, n, batch, link, 2 * (n - 1) / n)


def _data_parallel(
    workload: Workload, cost: Cost, n: int, batch: float, link: Link | None, passes: float
) -> Parts:
    whole("n", n, _DEVICES, 1)
    _positive("batch", batch, _BATCH)
    cost = cost.over(link) if link else cost
    return Parts(
        arithmetic=cost.arithmetic * batch,
        fixed=cost.fixed,
        moving=cost.moving * passes * workload.bytes,
        input=cost.input * n * batch,
        latency=cost.latency * 2 * (n - 1),
    )


def speedup(
    way: Way,
    workload: Workload,
    cost: Cost,
    n: int,
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> float:
    """Give how many times as many examples a second n devices train as one.

    Either each device keeps its batch (weak scaling), or n devices share one (strong scaling).
    """
    batch = _one_of(per_device_batch, global_batch)
    whole("n", n, _DEVICES, 1)
    share = batch if global_batch is None else batch / n
    alone = way(workload, cost, 1, batch, link).total
    together = way(workload, cost, n, share, link).total
    return alone / together * n * share / batch


@dataclass(frozen=True)
class Curve:
    """Efficiencies, 0 to 1, at some numbers of devices; low and high are those of the link."""

    counts: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def efficiency(
    way: Way,
    workload: Workload,
    cost: Cost,
    counts: Iterable[int],
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> Curve:
    """Give the speed-up of n devices over n, for each n, with the band of the link.

    Without a link low and high are the middle.
    """
    counts = tuple(counts)
    links = [link] * 3
    if link:
        links = [replace(link, bandwidth=b) for b in (link.bandwidth, link.low, link.high)]
    batch = {"per_device_batch": per_device_batch, "global_batch": global_batch}
    return Curve(counts, *(
        tuple(speedup(way, workload, cost, n, link=each, **batch) / n for n in counts)
        for each in links
    ))  # fmt: skip


@dataclass(frozen=True)
class Knee:
    """Where more devices stop paying: the number of devices, the speed-up there, and at most."""

    devices: float
    speedup: float
    most: float


def knee(
    way: Way,
    workload: Workload,
    cost: Cost,
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> Knee:
    """Find where more devices stop paying, in closed form.

    With a fixed per-device batch the speed-up has a ceiling, and the knee is where half of it is
    reached. With a fixed global batch there is a fastest number of devices. Either may be infinite.
    """
    batch = _one_of(per_device_batch, global_batch)
    if way not in (central, ring):
        raise ValueError("this way of averaging has no closed form: use central or ring.")
    cost = cost.over(link) if link else cost
    passes = 2 * cost.moving * workload.bytes
    # A step takes alone + each (n - 1) + turns (1 - 1/n), and arithmetic / n with a fixed batch.
    each, turns = 2 * cost.latency, passes
    if way is central:
        each, turns = each + passes, 0.0
    if global_batch is not None:
        saved = max(cost.arithmetic * batch - turns, 0.0)
        if saved and not each:
            all_of_it = way(workload, cost, 1, batch).total
            most = all_of_it / (all_of_it - saved) if all_of_it > saved else math.inf
            return Knee(math.inf, most, most)
        near = math.sqrt(saved / each) if saved else 1.0
        gains = {
            n: speedup(way, workload, cost, n, global_batch=batch)
            for n in (max(1, math.floor(near)), math.ceil(near))
        }
        best = max(gains, key=gains.__getitem__)
        return Knee(best, gains[best], gains[best])
    each += cost.input * batch
    alone = way(workload, cost, 1, batch).total
    if not each:
        return Knee(math.inf, math.inf, math.inf)
    # Half of alone / each: each n² + (each - alone - turns) n + turns = 0.
    half = (alone + turns - each) / (2 * each)
    inside = half**2 - turns / each
    devices = max(1.0, half + math.sqrt(inside)) if inside >= 0 else 1.0
    taken = alone + each * (devices - 1) + turns * (1 - 1 / devices)
    return Knee(devices, devices * alone / taken, max(1.0, alone / each))


@dataclass(frozen=True)
class Verdict:
    """Whether a published time is possible; share is that of the peak, 0 to 1 if it is."""

    ok: bool
    share: float
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def feasible(workload: Workload, examples: float, seconds: float, peak_flops: float) -> Verdict:
    """Compare the FLOP of training so many examples in so many seconds with a device's peak."""
    _positive("examples", examples, "a number of examples")
    _positive("seconds", seconds, "a time")
    _positive("peak_flops", peak_flops, "a peak in FLOP/s")
    speed = workload.flops * examples / seconds
    share = speed / peak_flops
    sentence = (
        f"{workload.flops / 1e6:.1f} MFLOP x {examples:,.0f} examples in {seconds:.2f} s are "
        f"{speed / 1e12:.3g} TFLOP/s, "
    )
    if share > 1:
        sentence += f"{share:.1f} times the peak of {peak_flops / 1e12:.3g}: impossible"
    else:
        sentence += f"{share:.0%} of the peak of {peak_flops / 1e12:.3g}: possible"
    return Verdict(share <= 1, share, sentence)


def _one_of(per_device_batch: float | None, global_batch: float | None) -> float:
    if (per_device_batch is None) == (global_batch is None):
        raise ValueError(
            f"per_device_batch={per_device_batch} and global_batch={global_batch}: give one of "
            "them, the one that stays the same on any number of devices."
        )
    batch = per_device_batch if global_batch is None else global_batch
    _positive("batch", batch, _BATCH)
    return batch
