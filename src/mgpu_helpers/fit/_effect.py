"""Say of options that change nothing: what a step holds with and without them, counted roughly.

Counted are the weights, their gradients and slots, and what the layers make on their way forward,
by one trace of the layers without a step. That is enough to see that an option has no effect.
`memory.plan` counts a whole step.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mgpu_helpers._formatting import counted
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import LayerGraph, run_calls
from mgpu_helpers.fit._segments import LENGTH, numbers, parts_to_run_again, stages_begin
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.graph import cuts
from mgpu_helpers.graph.step import slot_bytes
from mgpu_helpers.graph.walk import called

FEW, MANY = 1, 256  # examples: with which an option for weights, or for activations, would do most
SMALL = 10e6  # bytes that nobody needs to save
LITTLE = 0.9  # of what is held without an option: what it has to come below
QUARTER = 0.25  # of a fair share of what is held: what a stage has to have
VIEWS = {"Identity", "Reshape", "ExpandDims", "Squeeze", "ReadVariableOp", "StopGradient"}
OTHERS: tuple[dict[str, Any], ...] = (
    {"recompute": True}, {"pieces": 4}, {"state": "owners"}, {"state": "host"}, {"stages": 0},
)  # fmt: skip


def without_effect(laid: Any) -> Iterator[str]:
    """Give a sentence for each option of a layout that saves nothing, and for each poor stage."""
    layout, graph = laid.layout, laid.graph
    asked = layout.recompute or layout.pieces > 1 or layout.state != "home" or layout.staged
    if graph is None or layout.layers or not asked:
        return
    with contextlib.suppress(Exception):  # layers that take no batch of one, for example
        yield from [*Held(laid.model, graph).sentences(laid)]


class Held:
    """What the calls of a model hold, in bytes: their weights, and what they make of an example."""

    def __init__(self, model: Any, graph: LayerGraph) -> None:
        trained = sum(_bytes(v) for v in model.trainable_variables)
        slots = slot_bytes(model) / max(1, trained) if model.compiled else 2
        self.name, self.graph = model.name, graph
        self.weights: list[float] = []  # of each call: what no call before it has
        self.states: list[float] = []  # their gradients and slots
        known: set[int] = set()
        for call in graph.calls:
            own = [v for v in call.variables if id(v) not in known]
            known |= {id(v) for v in own}
            self.weights.append(sum(map(_bytes, own)))
            self.states.append((1 + slots) * sum(_bytes(v) for v in own if v.trainable))
        shapes = sum(_of_example(value) for call in graph.calls for value in call.gives)
        small = sum(self.weights) + sum(self.states) + MANY * 4 * shapes < SMALL
        self.made = [0.0] * len(graph.calls) if small else made_by(graph)
        self.kept = [*self.made]  # for gradients, which reach nothing before the first weight
        reached: set[Any] = set()
        for i, call in enumerate(graph.calls):
            if reached & {*call.takes} or any(v.trainable for v in call.variables):
                reached |= {*call.gives}
            else:
                self.kept[i] = 0.0
        every = graph.crossing()
        self.crosses = [sum(map(_of_example, each)) for each in every]
        self.hold = [sum(_of_example(x) for x in each if x in reached) for each in every]

    def by_stage(
        self, layout: Layout, stages: Sequence[int], again: Sequence[int], batch: int = MANY
    ) -> list[float]:
        """Count what the fullest device of each stage holds."""
        n, borders = 1 + len(stages), [0, *stages, len(self.graph.calls)]
        examples, pieces = max(layout.sizes(batch)), layout.pieces
        owners = max(1, len(layout.rows)) if isinstance(layout.state, str) else len(layout.state)
        held = []
        for s, (a, b) in enumerate(itertools.pairwise(borders)):
            states = sum(self.states[a:b])
            if layout.state != "home":
                states = 0 if layout.state == "host" else states / owners
            inside = [a, *(i for i in again if a < i < b), b]
            kept = max(sum(self.kept[x:y]) for x, y in itertools.pairwise(inside))
            kept += sum(self.hold[x] for x in inside[1:-1])
            ahead = 1 if n == 1 else min(pieces, n - s) if layout.schedule == "1F1B" else pieces
            runs = max(self.crosses[i] + self.made[i] for i in range(a, b))
            held.append(sum(self.weights[a:b]) + states
                        + max(kept * ahead, runs) * examples / pieces)  # fmt: skip
        return held

    def of(self, layout: Layout, batch: int = MANY) -> float:
        """Count what the fullest device holds."""
        begin = stages_begin(self.graph, layout.stages)
        again = parts_to_run_again(self.graph, layout.recompute)
        return max(self.by_stage(layout, begin, again, batch))

    def sentences(self, laid: Any) -> Iterator[str]:
        """Compare a layout with itself without each of its options."""
        layout = laid.layout
        if self.by_stage(Layout(), (), ())[0] < SMALL:
            return
        for name in ("recompute", "pieces", "state"):
            default = getattr(Layout(), name)
            if getattr(layout, name) == default or name == "pieces" and layout.staged:
                continue
            batch = FEW if name == "state" else MANY
            again = () if name == "recompute" else laid.again
            other = layout.changed(**{name: default})
            now = max(self.by_stage(layout, laid.stages, laid.again, batch))
            before = max(self.by_stage(other, laid.stages, again, batch))
            if now > LITTLE * before and before > SMALL:
                yield (
                    f"{name}={getattr(layout, name)!r} saves {self.name!r} next to nothing: by a "
                    f"count for {counted(batch, 'example')} a step holds {now / before:.0%} of "
                    f"what it holds without, as {self._why(name)}. {self._better(other, name)}"
                )
        stages = self.by_stage(layout, laid.stages, laid.again)
        if layout.staged and min(stages) < QUARTER * sum(stages) / len(stages):
            yield self._poor(laid, stages.index(min(stages)), stages)

    def _why(self, name: str) -> str:
        """Say why an option has no effect."""
        kept, weights, states = sum(self.kept), sum(self.weights), sum(self.states)
        if name == "state":
            return f"gradients and slots are {states / (weights + states):.0%} of all for weights"
        if MANY * kept > weights + states:
            most = max(range(len(self.kept)), key=self.kept.__getitem__)
            return (
                f"{self.graph.calls[most].name!r}, which is not taken apart, makes "
                f"{self.kept[most] / kept:.0%} of what is kept for gradients"
            )
        if kept < sum(self.made) / 10:
            return "most layers are frozen, and nothing of theirs is kept for gradients"
        share = (weights + states) / (weights + states + MANY * kept)
        return f"weights, gradients and slots are {share:.0%} of that"

    def _better(self, layout: Layout, name: str) -> str:
        """Say which other option would hold the least in place of one."""
        found, before = [], self.of(layout)
        for option in OTHERS:
            ((other, value),) = option.items()
            value = value or len(layout.devices)
            if other == name or getattr(layout, other) != getattr(Layout(), other):
                continue
            with contextlib.suppress(ValueError):  # no devices, or nowhere to cut
                found.append((self.of(layout.changed(**{other: value})), other, value))
        if not found or min(found)[0] > LITTLE * before:
            return "A smaller batch, fewer trained weights or further devices would help."
        held, other, value = min(found)
        return (
            f"{other}={value!r} would hold {held / before:.0%}, for {counted(MANY, 'example')}."
        )

    def _poor(self, laid: Any, s: int, stages: Sequence[float]) -> str:
        calls, n = self.graph.calls, len(stages)
        begins = calls[[0, *laid.stages][s]].name
        said = (
            f"stage {s + 1} of {n}, which begins with {begins!r}, holds "
            f"{stages[s] / sum(stages):.0%} of what all stages of {self.name!r} hold, by a count "
            f"for {MANY} examples"
        )
        at = cuts.narrow(self.graph)
        each = self.by_stage(laid.layout.changed(pieces=1), [*at][1:], laid.again)
        best = [[*at][i] for i in cuts.balanced(each, [*at.values()], n)]
        held = self.by_stage(laid.layout, best, laid.again)
        if min(held) > 2 * min(stages):
            names = [calls[i].name for i in best]
            share = min(held) / sum(held)
            return f"{said}. With stages={names} the poorest would hold {share:.0%}."
        i = max(range(len(each)), key=each.__getitem__)
        a, b = [*at, len(calls)][i : i + 2]
        most = max(range(a, b), key=self.made.__getitem__)
        return (
            f"{said}. No place to cut is better, since {calls[most].name!r} is not taken apart: "
            "let the devices share the batch in place of the layers."
        )


def made_by(graph: LayerGraph) -> list[float]:
    """Count for each call the bytes that its operations make of one example, in one trace."""
    specs = [tf.TensorSpec([1, *(n or LENGTH for n in x.shape[1:])], x.dtype) for x in graph.inputs]
    ends: list[int] = []

    def run(*xs: Any) -> Any:
        values = dict(zip(graph.inputs, xs, strict=True))
        with keras.StatelessScope():
            for call in graph.calls:
                values = run_calls([call], values, True)
                ends.append(len(tf.compat.v1.get_default_graph().get_operations()))
        return [values[value] for value in graph.outputs]

    ops = tf.function(run, autograph=False).get_concrete_function(*specs).graph.get_operations()
    of_batch = {op.name for op in ops[: len(specs)]}
    made = []
    for a, b in itertools.pairwise([len(specs), *ends]):
        size = 0.0
        for op in ops[a:b]:
            if {x.op.name for x in op.inputs} & of_batch:
                of_batch.add(op.name)
                size += _made(op)
        made.append(size)
    return made


def _made(op: Any) -> float:
    if op.type in VIEWS:
        return 0.0
    own = sum(_size(x) for x in op.outputs)
    inside = [sum(map(_made, each.get_operations())) for each in called(op)]
    return max([own, *inside])


def _size(x: Any) -> float:
    if not x.shape.rank or not x.dtype.is_floating:
        return 0.0
    return float(math.prod(n or 1 for n in x.shape) * x.dtype.size)


def _of_example(value: Any) -> float:
    return numbers(value) * tf.as_dtype(value.dtype).size


def _bytes(variable: Any) -> float:
    return float(variable.value.dtype.size * math.prod(variable.shape))
