"""The FLOP that a function or a Keras model asks for, counted from its graph before it runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mgpu_helpers.graph.step import concrete_of
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, Unknown, Values, called, carried, live

# Operations that multiply as much as those below, and that nothing here knows how to count.
_UNCOUNTED = re.compile("MatMul|Conv[23]D|^Conv$|RNN|Einsum|LSTM|GRU|XlaLaunch|XlaDot|XlaConv")
_GATES = {"lstm": 4, "gru": 3}


@dataclass(frozen=True, repr=False)
class Count:
    """The FLOP of one call; flops is None where they are not known before, and reason says why."""

    flops: int | None
    by_type: dict[str, int] = field(default_factory=dict)  #: by the type of operation
    reason: str | None = None

    def __repr__(self) -> str:
        if self.flops is None:
            return f"FLOP not known: {self.reason}"
        rows = [f"{name} {work:,}" for name, work in self.by_type.items()]
        return f"{self.flops:,} FLOP" + (f": {', '.join(rows)}" if rows else "")


def flops(
    model_or_function: Any, *args: Any, batch: Any = 1, training: bool = False, length: Any = None
) -> int | None:
    """Count the FLOP of one call, 2 for each multiply-add; None where they depend on data.

    A built Keras model is counted for a batch of so many examples: its way forward, or with
    training=True a whole training step; length is what open sizes of its inputs are, as in
    `memory.predict`. A function is counted for the arguments that it is given;
    `tf.TensorSpec` will do in place of a tensor. Nothing runs.

    What is counted are the products: matrix products, convolutions, einsum, cuDNN's recurrent
    layers, and their gradients as the graph has them. Left out are what goes number by number
    (activations, biases, normalization, the update of the weights), sums, pools and look-ups. What
    nobody uses is not counted, a loop counts as often as it runs, and of branches the dearer one.
    `count` says why something is None.

    >>> flops(lambda x, y: x @ y, tf.ones([2, 3]), tf.ones([3, 5]))  # 2 * 2 * 3 * 5
    60
    """
    return count(model_or_function, *args, batch=batch, training=training, length=length).flops


def count(
    model_or_function: Any, *args: Any, batch: Any = 1, training: bool = False, length: Any = None
) -> Count:
    """Count the FLOP of one call as `flops` does, by type of operation; say why they are unknown.

    >>> count(lambda x: x @ x, tf.ones([10, 10]))
    2,000 FLOP: MatMul 2,000
    """
    concrete = concrete_of(model_or_function, *args, batch=batch, training=training, length=length)
    try:
        found = _walk(concrete.graph, None, Values(concrete.graph))
    except Unknown as reason:
        return Count(None, reason=str(reason))
    return Count(sum(found.values()), dict(found.most_common()))


def _walk(graph: Any, outputs: set[int] | None, values: Values) -> Counter[str]:
    found: Counter[str] = Counter()
    alive = live(graph, outputs)
    for op in alive.ops:
        found += of_one(op, alive.outputs.get(op.name, set()), values)
    return found


def of_one(op: Any, outputs: set[int], values: Values) -> Counter[str]:
    """Count the FLOP of one operation for these of its outputs, by the type of what multiplies."""
    if op.type in CALLS | BRANCHES:
        ways = [_walk(inner, outputs, known) for inner, known in values.inside(op)]
        return max(ways, key=Counter.total)
    if op.type in LOOPS:
        return _loop(op, outputs, values)
    if costs := [cost for kind, cost in _COSTS.items() if kind.fullmatch(op.type)]:
        return Counter({op.type: costs[0](op)})
    if _UNCOUNTED.search(op.type):
        raise Unknown(f"{op.name} is a {op.type}, which is not among what is counted.")
    return Counter()


def _loop(op: Any, outputs: set[int], values: Values) -> Counter[str]:
    each = _walk(called(op)[1], carried(op, outputs), values.round(op))
    if not each:
        return each
    rounds, _ = values.loop(op)
    if rounds is None:
        raise Unknown(
            f"the loop {op.name} runs as often as its data say: "
            f"{each.total():,} FLOP a round, and nobody knows how many rounds."
        )
    return Counter({kind: rounds * work for kind, work in each.items()})


def _size(op: Any, tensor: Any, dims: slice = slice(None)) -> int:
    shape = tensor.shape
    if shape.rank is None or None in (kept := shape.as_list()[dims]):
        raise Unknown(
            f"{op.name} works on a tensor of shape {shape}, known only when it runs: give the "
            "function arguments of a whole shape."
        )
    return math.prod(kept)


def _product(op: Any) -> int:
    """Count a matrix product: each number of the result is a sum over the inner dimension."""
    name = "adj_x" if op.type.startswith("Batch") else "transpose_a"
    inner = -2 if op.get_attr(name) else -1
    return 2 * _size(op, op.outputs[0]) * _size(op, op.inputs[0], slice(inner, inner + 1 or None))


def _einsum(op: Any) -> int:
    """Count a sum over all labels: each combination of their values is one multiply-add."""
    if len(op.inputs) < 2:
        return 0
    terms = op.get_attr("equation").decode().partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs, strict=True):
        _size(op, tensor)
        before, dots, after = term.partition("...")
        dims, rest = tensor.shape.as_list(), tensor.shape.rank - len(before) - len(after)
        wide = [f"...{i}" for i in range(rest, 0, -1)] if dots else []
        for label, size in zip([*before, *wide, *after], dims, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return 2 * math.prod(sizes.values())


def _convolution(op: Any) -> int:
    """Count a convolution: each number of its result sums over the kernel but its last dimension.

    Its gradients multiply as much. A depthwise kernel is summed over its width and height alone.
    """
    result, kernel = op.outputs[0], op.inputs[1]
    if "Backprop" in op.type:
        result = op.inputs[2]
    if "BackpropFilter" in op.type:
        kernel = op.outputs[0]
    summed = slice(-2 if op.type.startswith("Depthwise") else -1)
    return 2 * _size(op, result) * _size(op, kernel, summed)


def _recurrent(op: Any) -> int:
    """Count cuDNN's layers: in each step the input and the state meet the weights of all gates."""
    given, state = op.inputs[0], op.inputs[1]
    time_and_batch = _size(op, given, slice(2))
    first, units, layers = given.shape[-1], state.shape[-1], state.shape[0]
    ways = 2 if op.get_attr("direction") == b"bidirectional" else 1
    _size(op, given), _size(op, state)
    wide = first + (layers // ways - 1) * ways * units + layers // ways * units
    work = 2 * time_and_batch * _GATES.get(op.get_attr("rnn_mode").decode(), 1) * units * ways
    return work * wide * (2 if "Backprop" in op.type else 1)


_COSTS: dict[re.Pattern[str], Callable[[Any], int]] = {
    re.compile(r"(Sparse|Batch)?MatMul(V\d)?"): _product,
    re.compile("Einsum"): _einsum,
    re.compile(r"(Conv([23]D)?|DepthwiseConv2dNative)(Backprop\w+)?"): _convolution,
    re.compile(r"CudnnRNN(Backprop)?(V\d)?"): _recurrent,
}
