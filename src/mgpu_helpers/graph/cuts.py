"""Where a functional or Sequential model can be cut, and how to make parts of about one size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import LayerGraph


def narrow(graph: LayerGraph) -> dict[int, int]:
    """Number the calls in front of which one tensor crosses, and give its bytes for an example.

    The model's inputs and outputs do not count: they are held anyway. Nor does what no gradient
    goes through, such as a mask. The first call is one.
    """
    counts = graph.trained() - {*graph.inputs, *graph.outputs}
    crosses = [[value for value in each if value in counts] for each in graph.crossing()]
    at = (i for i in sorted({*graph.first().values()})
          if i and len(crosses[i]) == 1 and not graph.calls[i - 1].enters)  # fmt: skip
    return {0: 0} | {i: bytes_of(crosses[i]) for i in at}


def even(calls: Sequence[Any], at: Mapping[int, int], parts: int) -> list[int]:
    """Number the calls with which so many parts begin, but for the first; `at` is from `narrow`.

    The largest part makes as few bytes as can be in the forward pass. Of a layer of layers, such as
    a block of a decoder, each is taken to make as much as the whole gives.
    """
    sizes = [bytes_of(call.gives) * _inside(call.operation) for call in calls]
    blocks = [sum(sizes[a:b]) for a, b in itertools.pairwise([*at, len(calls)])]
    return [[*at][i] for i in balanced(blocks, [*at.values()], parts)]


def _inside(operation: Any) -> int:
    """Count the layers in a layer, at any depth; 1 for one alone, and for an operation."""
    if not isinstance(operation, keras.Layer):
        return 1
    return max(1, len(_private.layers_of(operation)) - 1)


def balanced(blocks: Sequence[float], cost: Sequence[float], parts: int) -> list[int]:
    """Find where all parts but the first begin, so that the largest is as small as can be.

    Among equals the cuts cost least.

    >>> balanced([1, 1, 5, 1, 1, 1], [0] * 6, 3)
    [2, 3]
    """
    ends = [0, *itertools.accumulate(blocks)]
    best: list[Any] = [(size, 0, []) for size in ends]  # of the blocks up to each
    for _ in range(parts - 1):
        best = [
            min(((max(best[a][0], ends[b] - ends[a]), best[a][1] + cost[a], [*best[a][2], a])
                 for a in range(1, b) if best[a]), default=None)
            for b in range(len(ends))
        ]  # fmt: skip
    return list(best[-1][2])


def bytes_of(tensors: Sequence[Any]) -> int:
    """Count the bytes of symbolic tensors for an example, as far as their shapes say."""
    return sum(math.prod(n or 1 for n in t.shape) * tf.as_dtype(t.dtype).size for t in tensors)
