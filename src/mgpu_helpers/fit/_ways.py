"""Which layers of a model are cut and how, by patterns, by a layout map of Keras, or as found."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras
from mgpu_helpers._layers import LayerGraph
from mgpu_helpers.fit._leaves import Leaf, Leaves, has_parts, is_dense, is_table, named
from mgpu_helpers.towers.shards import shard_sizes


@dataclass(frozen=True)
class Way:
    """How a dense layer is cut: by an axis of its kernel, and how much of it each device has.

    gathered: it stays whole, and each device has heads of what it gives, by their numbers.
    """

    kind: str
    axis: int
    shares: Sequence[Any]


def axes(layer: Any) -> tuple[str, str, str]:
    """Give a letter for each axis of what a dense layer takes, of its kernel, and what it gives."""
    if not hasattr(layer, "equation"):
        return "...a", "ab", "...b"
    given, made = layer.equation.replace(" ", "").split("->")
    takes, kernel = given.split(",")
    return takes, kernel, made


def kernel(layer: Any) -> Any:
    """Give the shape of a kernel or table; the property would compute what LoRA makes of it."""
    return next(v.shape for v in layer.weights if v.name in ("kernel", "embeddings"))


def _letters(layer: Any, kind: str) -> list[str]:
    """List the axes by which a dense layer can be cut so."""
    takes, own, gives = axes(layer)
    of, other = (gives, takes) if kind == "columns" else (takes, gives)
    return [letter for letter in of if letter in own and letter not in other]


def _way(layer: Any, way: Any) -> Any:
    """Give "heads", or columns or rows with an axis of the kernel; None if it cannot be cut so."""
    if is_table(layer):
        return ("rows", 0) if way in ("rows", 0) else None
    if not is_dense(layer):
        return way if way == "heads" and _private.of_attention(layer) else None
    own = axes(layer)[1]
    letter = own[way] if isinstance(way, int) and way < len(own) else way
    for kind in ("columns", "rows"):
        letters = _letters(layer, kind)
        if letters and way == kind or letter in letters:
            return kind, own.index(letters[0] if way == kind else letter)
    return None


def asked(graph: LayerGraph, layers: Sequence[tuple[str, Any]]) -> dict[Any, Any]:
    """Find the layers that patterns name, with the ways in which they are to be cut."""
    there = named(graph)
    around = {dense: layer for _, layer in there for dense in _private.of_attention(layer).values()}
    found: dict[Any, Any] = {}
    for pattern, way in layers:
        if isinstance(way, int):
            kernels = [layer for name, layer in there if has_parts(layer) and _matches(
                pattern, f"{name}/{'embeddings' if is_table(layer) else 'kernel'}")]  # fmt: skip
            own = {around.get(layer, layer): "heads" if layer in around else _way(layer, way)
                   for layer in kernels}  # fmt: skip
            if not own:
                warnings.warn(
                    f"{pattern!r} names no kernel of a Dense or EinsumDense layer and no table of "
                    "an Embedding: what it names stays whole on the first device.", stacklevel=6,
                )  # fmt: skip
                continue
        else:
            named_so = [pair for pair in there if _matches(pattern, pair[0])]
            able = [name for name, layer in named_so if _way(layer, way)]
            # A pattern may name what stands around such layers, or in them, too.
            own = {layer: _way(layer, way) for name, layer in named_so if name in able or not any(
                f"{name}/".startswith(f"{each}/") or each.startswith(f"{name}/") for each in able
            )}  # fmt: skip
        if not own or None in own.values():
            kinds = [name for name, layer in there if has_parts(layer) or layer in around.values()]
            raise ValueError(
                f"layers={{{pattern!r}: {way!r}}} names no layers that can be cut so: Dense and "
                "EinsumDense by columns, rows or an axis, an Embedding by rows, attention by "
                f"heads; of these there are {', '.join(kinds) or 'none'}."
            )
        found |= own
    return found


def _matches(pattern: str, name: str) -> bool:
    """Say whether a pattern is a name, with or without what stands around the layer."""
    parts = name.split("/")
    return any(re.fullmatch(pattern, "/".join(parts[i:])) for i in range(len(parts)))


def shared_out(
    found: Mapping[Any, Any], n: int
) -> tuple[dict[Any, Way], dict[Any, list[dict[str, int]]]]:
    """Share layers out to n devices: the ways of dense ones, and what attention is told of heads.

    With fewer heads of keys than devices the keys stay whole, and each device takes what its
    queries need.
    """
    ways: dict[Any, Way] = {}
    settings: dict[Any, list[dict[str, int]]] = {}
    for layer, way in found.items():
        if way != "heads":
            kind, axis = way
            ways[layer] = Way(kind, axis, _sizes(layer, kind, kernel(layer)[axis], n))
            continue
        own = _private.of_attention(layer)
        head = {name: axes(dense)[1].index(axes(dense)[0 if name == "output" else 2][-2])
                for name, dense in own.items()}  # fmt: skip
        queries, keys = (kernel(own[name])[head[name]] for name in ("query", "key"))
        each = queries // keys
        if keys >= n:
            of_keys = shard_sizes(keys, n)
            of_queries = [each * size for size in of_keys]
        else:
            of_queries = _sizes(layer, "heads", queries, n)
            begin = [0, *itertools.accumulate(of_queries)]
            taken = [[q // each for q in range(a, b)] for a, b in itertools.pairwise(begin)]
            heads = [own[:1] if len({*own}) == 1 else own for own in taken]
            of_keys = list(map(len, heads))
        for name, dense in own.items():
            if name in ("key", "value") and keys < n:
                ways[dense] = Way("gathered", -2, heads)
            else:
                sizes = of_keys if name in ("key", "value") else of_queries
                ways[dense] = Way("rows" if name == "output" else "columns", head[name], sizes)
        numbers = [
            *((name, queries, of_queries) for name in _private.QUERIES),
            *((name, keys, of_keys) for name in _private.KEYS),
            *((name, each, [q // k for q, k in zip(of_queries, of_keys, strict=True)])
              for name in _private.FOR_EACH_KEY),
        ]  # fmt: skip
        settings[layer] = [{name: shares[d] for name, whole, shares in numbers
                            if vars(layer).get(name) == whole} for d in range(n)]  # fmt: skip
    return ways, settings


def _sizes(layer: Any, what: str, size: int, n: int) -> list[int]:
    if size < n:
        raise ValueError(f"{layer.name} has {size} {what}: give {size} devices at most.")
    return shard_sizes(size, n)


def stays_whole(layer: Any) -> str:
    """Say why a dense layer cannot be in parts; nothing if it can."""
    sums = keras.regularizers.L1 | keras.regularizers.L2 | keras.regularizers.L1L2 | None
    if layer.quantization_mode:
        return "is quantized, and rounds by the largest of all numbers, of which a part has some"
    if layer.activity_regularizer or any(w.constraint for w in layer.weights):
        return "has a regularizer of what it gives, or a constraint, which need all of a layer"
    if not all(isinstance(w.regularizer, sums) for w in layer.weights):
        return "has a regularizer that is no sum over its weights, as L1, L2 and L1L2 are"
    if any(each.endswith("...") for each in axes(layer)):
        return "has axes at the end that its equation does not name"
    return ""


def by_themselves(leaves: Leaves, n: int) -> dict[Any, Any]:
    """Find attention with a head for each device, and pairs of dense layers, one behind the other.

    Between the two of a pair stands nothing with weights, nobody else takes what is there, and it
    is no narrower than what goes in and what comes out.
    """
    attention = {layer: own for _, layer in named(leaves.graph)
                 if (own := _private.of_attention(layer))}  # fmt: skip
    inside = {dense for own in attention.values() for dense in own.values()}
    every = [leaf for own in leaves.of.values() for leaf in own]
    found: dict[Any, Any] = {}
    for layer, own in attention.items():
        shape = kernel(own["query"])
        heads = shape[axes(own["query"])[1].index(axes(own["query"])[2][-2])]
        if heads >= n and not any(map(stays_whole, own.values())):
            found[layer] = "heads"
    once = {leaf for leaf in every if sum(each.layer is leaf.layer for each in every) == 1}
    ends = leaves.ends()
    for last in every:
        if last not in once or not is_dense(last.layer) or last.layer in inside | found.keys():
            continue
        first, between = _region(last)
        region = first | between
        alone = all(user is last or user in region for user in every if user.sources & region)
        if not first or not alone or region & ends or not first <= once or any(
            each.layer in inside | found.keys() for each in first
        ):  # fmt: skip
            continue
        ways = {each.layer: _way(each.layer, "columns") for each in every if each in first}
        ways[last.layer] = _way(last.layer, "rows")
        if None not in ways.values() and not any(map(stays_whole, ways)) and _widens(ways, n):
            found |= ways
    return found


def _region(last: Leaf) -> tuple[set[Leaf], set[Leaf]]:
    """Give the dense layers before a dense one, and what stands between; none if it has weights."""
    first, between, todo = set[Leaf](), set[Leaf](), [*last.sources]
    while todo:
        leaf = todo.pop()
        if is_dense(leaf.layer):
            first.add(leaf)
        elif any(v.trainable for v in getattr(leaf.layer, "variables", ())) or not leaf.sources:
            return set(), set()
        elif leaf not in between:
            between.add(leaf)
            todo += leaf.sources
    return first, between


def _widens(ways: Mapping[Any, tuple[str, int]], n: int) -> bool:
    """Say whether layers cut by columns and one cut by rows have as much between as around them."""
    middle: set[Any] = set()
    around: list[Any] = []
    for layer, (kind, axis) in ways.items():
        shape, letters = kernel(layer), axes(layer)[1]
        sizes = {name: math.prod(shape[letters.index(c)] for c in _letters(layer, name))
                 for name in ("columns", "rows")}  # fmt: skip
        middle.add((shape[axis], sizes.pop(kind)))
        around += sizes.values()
    (size, wide), *others = middle
    return not others and size >= n and wide >= max(around)
