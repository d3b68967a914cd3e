"""The layers of a model in segments: what a row of devices does one after the other."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import (
    Call,
    LayerGraph,
    Value,
    run_calls,
    taken,
    used_later,
    variables_of,
)
from mgpu_helpers._names import of_keras
from mgpu_helpers.graph import count, cuts

LENGTH = 32  # of an axis that the model does not know, where layers are compared by their FLOP


@dataclass(frozen=True, eq=False)
class Segment:
    """Calls that run one after the other, on one device of a row or, cut, on all of them."""

    calls: Sequence[Call]
    device: int  # of the row
    takes: Sequence[Value]
    gives: Sequence[Value]
    variables: Sequence[Any]
    again: bool = False  # computed a second time for its gradients,
    last: bool = False  # unless it is the last one
    steps: Sequence[tuple[Any, str]] | None = None  # how each layer is run, if some are cut


def segments_of(
    graph: LayerGraph, stages: Sequence[int], again: Sequence[int], cut: Any,
    meeting: Sequence[Call],
) -> list[Segment]:  # fmt: skip
    """Cut the calls where stages begin, where parts that run twice do, and around layers in parts.

    A call at which rows meet is a segment by itself, or begins a part that runs twice. All but the
    last segment run twice where any do. No part of a layer's result goes from one to the next.
    """
    calls = graph.calls
    alone = [i for i, call in enumerate(calls) if call in {*meeting}]
    steps, between = (cut.steps, cut.between) if cut else ({}, set())
    inside = {i for i, crosses in enumerate(graph.crossing()) if between.intersection(crosses)}
    if both := inside & {*alone, *(i + 1 for i in alone)}:
        raise ValueError(
            f"{calls[min(both)].name} runs while a layer is in parts, and rows meet at "
            f"{calls[alone[0]].name}: use synchronized=False."
        )
    turns = [i for i in range(1, len(calls)) if calls[i] in steps or calls[i - 1] in steps]
    behind = [i + 1 for i in alone if not again]
    borders = sorted({0, *stages, *again, *turns, *alone, *behind, len(calls)} - inside)
    found = []
    for a, b in itertools.pairwise(borders):
        own = calls[a:b]
        later = used_later(own, calls[b:], graph.outputs)
        gives = [value for call in own for value in call.gives if value in later]
        variables = [v for v in variables_of(own) if not cut or id(v) not in cut.inside]
        parted = any(call in steps for call in own)
        found.append(Segment(
            own, sum(start <= a for start in stages), taken(own), gives, variables,
            bool(again), b == len(calls),
            [step for call in own for step in steps.get(call, [(call.operation, "alone")])]
            if parted else None,
        ))  # fmt: skip
    return found


def parts_to_run_again(graph: LayerGraph, parts: Any) -> list[int]:
    """Number the calls with which the parts after the first begin, which are computed twice."""
    if parts is False:
        return []
    if isinstance(parts, tuple):
        return _begin(graph, parts, "recompute", "parts")
    at = cuts.narrow(graph)
    parts = max(2, round(len(at) ** 0.5)) if parts is True else parts
    parts = whole_number("recompute", parts, "a number of parts", 2)
    if parts > len(at):
        raise ValueError(
            f"{graph.graph.name!r} has {counted(len(at) - 1, 'place')} to cut, where one tensor "
            f"crosses, and {parts} parts need {parts - 1}: name the layers that begin a part, in "
            "a list."
        )
    return cuts.even(graph.calls, at, parts)


def stages_begin(graph: LayerGraph, stages: int | Sequence[str]) -> list[int]:
    """Number the calls with which the stages after the first begin."""
    names = balanced(graph, stages) if isinstance(stages, int) else stages
    return _begin(graph, names, "stages", "stages") if names else []


def _begin(graph: LayerGraph, names: Sequence[str], option: str, what: str) -> list[int]:
    """Number the first calls of layers that are to begin parts or stages after the first."""
    first = graph.first()
    for name in names:
        alike = [each for each in graph.names() if each.endswith(f"/{name}")]
        if name not in first and len(alike) > 1:
            raise ValueError(
                f"{option}={[*names]}: {graph.graph.name!r} has a layer {name!r} in "
                f"{counted(len(alike), 'model')}: say which one, {' or '.join(alike)}."
            )
    found = [first.get(name, 0) for name in names]
    if not found or 0 in found or found != sorted({*found}):
        raise ValueError(
            f"{option}={[*names]} begin no {what} of {graph.graph.name!r}: name layers in the "
            f"order in which Keras runs them, which is {', '.join(graph.names()[1:])}."
        )
    return found


def narrow_places(graph: LayerGraph) -> list[str]:
    """List the layers in front of which one tensor crosses, but for the first."""
    return list(dict.fromkeys(graph.calls[i].name for i in [*cuts.narrow(graph)][1:]))


def balanced(graph: LayerGraph, n: int) -> list[str]:
    """Choose where n stages begin: the most FLOP in one are as few, then the least crosses."""
    if n == 1:
        return []
    found = narrow_places(graph)
    if len(found) + 1 < n:
        raise ValueError(
            f"{graph.graph.name} can begin a stage at {counted(len(found) + 1, 'layer')} where one "
            f"tensor crosses ({', '.join([graph.calls[0].name, *found])}), and {n} stages are "
            "asked for: ask for fewer, or name the layers that begin a stage."
        )
    first, calls = graph.first(), graph.calls
    borders = [0, *(first[name] for name in found), len(calls)]
    costs = [_cost(calls[a:b]) for a, b in itertools.pairwise(borders)]
    sizes = [sum(map(numbers, each)) for each in graph.crossing()]

    @functools.cache
    def best(a: int, n: int) -> tuple[float, int, tuple[int, ...]]:
        if n == 1:
            return sum(costs[a:]), 0, ()
        rest = ((b, *best(b, n - 1)) for b in range(a + 1, len(costs) - n + 2))
        return min((max(sum(costs[a:b]), most), sizes[borders[b]] + crosses, (b, *later))
                   for b, most, crosses, later in rest)  # fmt: skip

    return [found[i - 1] for i in best(0, n)[2]]


def numbers(value: Any) -> int:
    """Count the numbers of a tensor of the model for an example."""
    return math.prod(n or LENGTH for n in value.shape[1:])


def _cost(calls: Sequence[Call]) -> float:
    """Count the FLOP of calls for an example; where they are unknown, two for each weight."""
    takes = taken(calls)
    given = [tf.TensorSpec([1, *(n or LENGTH for n in x.shape[1:])], x.dtype) for x in takes]

    def run(*xs: Any) -> Any:
        with keras.StatelessScope():
            return list(run_calls(calls, dict(zip(takes, xs, strict=True)), False).values())

    found = count(run, *given).flops
    return 2 * sum(math.prod(v.shape) for v in variables_of(calls)) if found is None else found


def normalizes(layer: Any) -> bool:
    """Say whether a layer normalizes by the statistics of a batch."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def has_own(model: Any) -> bool:
    """Say whether what parts of a batch give of some layer or operation only its author knows."""
    means = keras.regularizers.L1 | keras.regularizers.L2 | keras.regularizers.L1L2 | None
    every = _private.layers_of(model)
    inside = [x for each in every if isinstance(each, keras.Function) for x in each.operations]
    return any(
        not of_keras(type(each).call, "keras_hub.")
        or isinstance(each, keras.layers.Lambda)
        or not isinstance(each.activity_regularizer, means)
        for each in every
    ) or not all(isinstance(each, keras.Layer) for each in inside)


def kept_as_known(model: Any) -> set[int]:
    """Give the `id` of variables that parts of a batch may change: moving averages and seeds."""
    normal = [each for each in _private.layers_of(model)
              if isinstance(each, keras.layers.BatchNormalization)]  # fmt: skip
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    return {id(v) for v in [*seeds, *(v for each in normal for v in each.variables)]}


def check_layers(model: Any, graph: LayerGraph | None, synchronized: bool) -> None:
    """Refuse a model whose layers a share or a piece of the batch cannot train, or not so."""
    layers = _private.layers_of(model)
    if keeps := [layer.name for layer in layers if getattr(layer, "stateful", False)]:
        raise ValueError(
            f"the layer {keeps[0]!r} of {model.name} keeps a state for each example from batch to "
            "batch (stateful=True), which a share or a piece has not: make it without."
        )
    there = {id(call.operation) for call in graph.calls} if graph else set()
    apart = [each.name for each in layers if normalizes(each) and id(each) not in there]
    if synchronized and apart:
        raise ValueError(
            f"rows of devices cannot meet at {apart[0]} in {model.name}, since only layers of "
            "functional and Sequential models can be run one at a time: use synchronized=False, by "
            "which each normalizes by the statistics of its share, or make the model in the scope "
            "of fit.strategy."
        )


def whole(model: Any) -> Segment:
    """Give a model that is not taken apart as one segment."""
    return Segment((), 0, (), (), [*model.trainable_variables, *model.non_trainable_variables])


def columns(segments: Iterable[Segment], length: int) -> dict[int, list[Any]]:
    """List by device of a row the variables that its segments use."""
    used: dict[int, dict[int, Any]] = {d: {} for d in range(length)}
    for segment in segments:
        used[segment.device] |= {id(v): v for v in segment.variables}
    return {d: list(each.values()) for d, each in used.items()}


