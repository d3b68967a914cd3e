"""Where to cut a model: what each stage would cost, by a trace of the whole."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers._formatting import size_text
from mgpu_helpers._layers import LayerGraph
from mgpu_helpers._models import ready
from mgpu_helpers.trace.both_passes import edges, passes
from mgpu_helpers.trace.records import curve
from mgpu_helpers.trace.step import Trace, traced


@dataclass(frozen=True)
class StageCost:
    """What a stage would cost, by a trace of the whole model on one device.

    bytes is the most that its operations hold at once, and what lies there all the time.
    """

    layers: tuple[str, ...]
    seconds: float
    bytes: int
    crossing: int  #: bytes to the next stage and, as a gradient, back


@dataclass(frozen=True)
class Cut:
    """Where to cut a model, and what each stage would cost."""

    starts: tuple[str, ...]
    parts: tuple[StageCost, ...]

    def __repr__(self) -> str:
        places = 0 if max((part.seconds for part in self.parts), default=0) >= 0.01 else 2
        seconds = " and ".join(f"{part.seconds * 1e3:.{places}f}" for part in self.parts)
        sizes = " and ".join(f"{part.bytes / 1e6:.0f}" for part in self.parts)
        crosses = "".join(f", {size_text(p.crossing)} cross" for p in self.parts[:-1])
        where = ", ".join(self.starts)
        return f"cut before {where}: {seconds} ms, {sizes} MB{crosses}" if where else "not cut"


def cuts(
    trace: Trace,
    layers: Sequence[str] | Mapping[str, Sequence[str]],
    stages: int,
    held: Mapping[str, int] | None = None,
) -> list[Cut]:
    """List every cut of a model into so many stages, with its costs by a trace of it uncut.

    `layers` are the name scopes that may begin a stage, in order, or for each of them the layers
    up to the next, as `places` gives them for a Keras model: of these some may have run nothing, as
    a softmax whose logits the loss takes. What runs outside of them belongs to the layer whose
    results it uses, and to none if it uses none. `held` are bytes by layer that lie there all the
    time: weights and slots.

    >>> from mgpu_helpers.trace import Op
    >>> conv = Op("conv/Conv2D", "Conv2D", "/CPU:1", 0.0, 0.02, bytes=4000)
    >>> dense = Op("dense/MatMul", "MatMul", "/CPU:1", 0.02, 0.01)
    >>> step = Trace((conv, dense), (), {}, (("conv/Conv2D", "dense/MatMul"),))
    >>> cuts(step, ["conv", "dense"], 2)
    [cut before dense: 20 and 10 ms, 0 and 0 MB, 8 kB cross]
    """
    traced(trace)
    groups = list(layers.values()) if isinstance(layers, Mapping) else [[each] for each in layers]
    given, layers, names = layers, list(layers), list(itertools.chain(*groups))
    if not 1 <= stages <= len(layers):
        raise ValueError(f"{stages} stages cannot be cut from {len(layers)} layers: ask for fewer.")
    held = dict(held or {})
    if lost := [name for name in held if name not in names]:
        raise ValueError(
            f"held has {lost[0]!r}, which is not one of the layers: use {', '.join(names)}."
        )
    place, back = passes(trace, groups, all_ran=not isinstance(given, Mapping))
    seconds = [0.0] * len(layers)
    last: dict[str, int] = {}  # an operation of the forward pass -> the last layer that uses it
    for maker, user in edges(trace):
        if user in place and user not in back:
            last[maker] = max(place[user], last.get(maker, 0))
    crossing = [0] * len(layers)  # over the border in front of each layer
    for op in trace.ops:
        if op.name in place:
            shared = op.type == "Const"  # each stage has its own
            seconds[place[op.name]] += op.length
            for border in range(place[op.name], 0 if shared else last.get(op.name, 0)):
                crossing[border + 1] += 2 * op.bytes

    @functools.cache
    def part(a: int, b: int) -> StageCost:
        own = [x for x in trace.allocations if a <= place.get(x.op, -1) < b and not x.scratch]
        inside = tuple(itertools.chain(*groups[a:b]))
        return StageCost(
            inside,
            sum(seconds[a:b]),
            sum(held.get(layer, 0) for layer in inside) + max(n for _, n in curve(own)),
            crossing[b] if b < len(layers) else 0,
        )

    found = []
    for inner in itertools.combinations(range(1, len(layers)), stages - 1):
        parts = tuple(part(a, b) for a, b in itertools.pairwise((0, *inner, len(layers))))
        found.append(Cut(tuple(layers[i] for i in inner), parts))
    return found


def best_cut(
    trace: Trace,
    devices: Sequence[str],
    layers: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    by: str = "time",
    held: Mapping[str, int] | None = None,
) -> Cut:
    """Choose the cut over the devices by a trace of the model uncut; see `cuts`.

    By "time" the slowest stage is as fast as can be, by "memory" the largest as small; by "bytes"
    the least crosses.

    >>> best_cut(step, plan.devices, ["conv1", "conv2", "dense"])  # doctest: +SKIP
    cut before conv2: 21 and 34 ms, 5 and 9 MB, 2.4 MB cross
    """
    costs: dict[str, Callable[[Cut], float]] = {
        "time": lambda cut: max(part.seconds for part in cut.parts),
        "memory": lambda cut: max(part.bytes for part in cut.parts),
        "bytes": lambda cut: sum(part.crossing for part in cut.parts),
    }
    if by not in costs:
        raise ValueError(f"by={by!r} is not a cost: use {', '.join(map(repr, costs))}.")
    return min(cuts(trace, layers, len(devices), held), key=costs[by])


def places(model: Any) -> dict[str, list[str]]:
    """List the layers in front of which one tensor crosses, each with the layers up to the next.

    The first is where the model begins. `best_cut` takes them, and `fit.use` takes what it finds:
    `stages=cut.starts`. A model inside the model is one layer here.

    >>> import keras
    >>> x = keras.Input((3,))
    >>> a = keras.layers.Dense(3, name="a")(x)
    >>> b = keras.layers.Dense(3, name="b")(a)
    >>> places(keras.Model(x, keras.layers.Add(name="c")([a, b])))
    {'a': ['a'], 'b': ['b', 'c']}
    """
    ready(model, functional=True, single=False)
    graph = LayerGraph(model)
    crosses = graph.crossing()
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for i, call in enumerate(graph.calls):
        name = call.name.partition("/")[0]
        if name in seen:
            continue
        seen.add(name)
        if i == 0 or len(crosses[i]) == 1:
            found[name] = start = []
        start.append(name)
    return found
