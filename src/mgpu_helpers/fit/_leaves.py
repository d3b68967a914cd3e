"""What calls of layers do inside: the layers that compute, and what each takes from which."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import Call, LayerGraph, Value, run_calls
from mgpu_helpers._models import instead

SOME = 3  # of an axis that the model does not know
CUT = ("columns", "between", "gathered")  # what gives each device a part


@dataclass(frozen=True, eq=False)
class Leaf:
    """One call of a layer that has no dense layers inside, in a call of the model."""

    name: str  # with those of the layers and models around it
    layer: Any
    sources: frozenset[Leaf]  # whose results it takes, as they are or computed with


def is_dense(layer: Any) -> bool:
    """Say whether a layer is a product with a kernel, which can be cut along an axis of it."""
    return type(layer) in (keras.layers.Dense, keras.layers.EinsumDense) and layer.built


def is_table(layer: Any) -> bool:
    """Say whether a layer looks words up in a table, which can be cut by its rows."""
    return isinstance(layer, keras.layers.Embedding) and layer.built


def has_parts(layer: Any) -> bool:
    """Say whether a layer can be cut itself."""
    return is_dense(layer) or is_table(layer)


def inner(layer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Give a layer and those inside it with their names; what none of can be cut stays closed."""
    yield name, layer
    if not isinstance(layer, keras.layers.Layer) or has_parts(layer):
        return
    if any(map(has_parts, _private.layers_of(layer))):
        for each in _private.inside(layer):
            yield from inner(each, f"{name}/{each.name}")


def named(graph: LayerGraph) -> list[tuple[str, Any]]:
    """List the layers of a model's calls, and those inside them, with their names."""
    every = [pair for call in graph.calls if not call.enters
             for pair in inner(call.operation, call.name)]  # fmt: skip
    return list({id(layer): (name, layer) for name, layer in reversed(every)}.values())[::-1]


class Leaves:
    """The leaves of each call, in the order in which they run, and what values are made of.

    Of calls in which layers are cut the inside is looked at: they run once in a graph. Any other
    call is a leaf as a whole.
    """

    def __init__(
        self, graph: LayerGraph, wanted: Callable[[Any], bool], strict: bool = True
    ) -> None:
        self.graph = graph
        self.of: dict[Call, list[Leaf]] = {}
        self.made_of: dict[Value, frozenset[Leaf]] = {}
        for call in graph.calls:
            layers = [layer for _, layer in inner(call.operation)]
            if len(layers) > 1 and any(map(wanted, layers)):
                with contextlib.nullcontext() if strict else contextlib.suppress(Exception):
                    self._open(call)
                    continue
            sources = [self.made_of.get(value, frozenset()) for value in call.takes]
            leaf = Leaf(call.name, call.operation, frozenset().union(*sources))
            self.of[call] = [leaf]
            self.made_of |= dict.fromkeys(call.gives, frozenset([leaf]))

    def _open(self, call: Call) -> None:
        """Run a call in a graph, and see what comes from where."""
        names = {id(layer): name for name, layer in inner(call.operation, call.name)}
        by_layer = {id(v) for layer in layers_in(call.operation) for v in layer.variables}
        for v in call.operation.variables:
            if v.name == "seed_generator_state" and id(v) not in by_layer:
                raise ValueError(
                    f"{call.name} draws random numbers itself, which would be others for each "
                    "part: give them to a layer, as Dropout is, or leave it out of `layers`."
                )
        found: list[Leaf] = []
        known: dict[Any, frozenset[Leaf]] = {}  # what tensors are made of
        graphs: list[Any] = []

        def sources(given: Any) -> frozenset[Leaf]:
            todo = [x for x in keras.tree.flatten(given) if tf.is_tensor(x)]
            seen, every = set(), frozenset[Leaf]()
            while todo:
                x = todo.pop()
                if x.graph is not graphs[0]:
                    raise ValueError(
                        f"{call.name} calls layers in a loop, where they cannot be cut: leave them "
                        "out of `layers`."
                    )
                if (origin := known.get(x.ref())) is not None:
                    every |= origin
                elif x.op not in seen:
                    seen.add(x.op)
                    todo += x.op.inputs
            return every

        def record(layer: Any, original: Any, *args: Any, **named: Any) -> Any:
            leaf = Leaf(names[id(layer)], layer, sources((args, named)))
            made = keras.tree.map_structure(tf.identity, original(*args, **named))
            known.update({x.ref(): frozenset([leaf]) for x in keras.tree.flatten(made)})
            found.append(leaf)
            return made

        def run(*xs: Any) -> Any:
            graphs.append(tf.compat.v1.get_default_graph())
            for value, x in zip(call.takes, xs, strict=True):
                known[x.ref()] = self.made_of.get(value, frozenset())
            with keras.StatelessScope(), instead_of(layers_in(call.operation), record):
                made = run_calls([call], dict(zip(call.takes, xs, strict=True)), False)
            for value in call.gives:
                self.made_of[value] = sources(made[value])
            return [made[value] for value in call.gives]

        specs = [tf.TensorSpec([n or SOME for n in v.shape], v.dtype) for v in call.takes]
        tf.function(run, autograph=False).get_concrete_function(*specs)
        self.of[call] = found

    def ends(self) -> frozenset[Leaf]:
        """Give the leaves whose results leave a call that has more inside, or the model."""
        values = {*self.graph.outputs}
        for call, leaves in self.of.items():
            if [leaf.layer for leaf in leaves] != [call.operation]:
                values |= {*call.gives}
        return frozenset().union(*(self.made_of[value] for value in values & self.made_of.keys()))

    def kinds(self, ways: Mapping[Any, Any]) -> dict[Leaf, str]:
        """Say of each leaf how it is run: cut, between columns and rows, or alone."""
        kinds: dict[Leaf, str] = {}
        for leaves in self.of.values():
            for leaf in leaves:
                way = ways[leaf.layer].kind if leaf.layer in ways else ""
                cut = any(kinds[each] in CUT for each in leaf.sources)
                table = bool(way) and is_table(leaf.layer)
                if way == "rows" and not cut and not table:
                    why = "is cut by rows, and no layer before it by columns"
                    raise ValueError(wrong(leaf.name, why))
                if (way in CUT or table) and cut:
                    why = f"cannot be cut by {way}: the layer before it is cut by columns"
                    raise ValueError(wrong(leaf.name, why))
                kinds[leaf] = "table" if table else way or ("between" if cut else "alone")
        for leaf in self.ends():
            if kinds[leaf] in CUT:
                why = "is cut by columns, and no layer behind it by rows"
                raise ValueError(wrong(leaf.name, why))
        return kinds


def wrong(names: str, why: str) -> str:
    """Say why layers cannot be cut so, and how they can."""
    return (
        f"{names} {why}. Cut a layer by columns and the next one by rows; what stands between "
        "them treats each number by itself, as relu does and softmax does not."
    )


def layers_in(operation: Any) -> list[Any]:
    """List the layers in an operation that may be leaves: those with nothing dense inside."""
    every = [layer for _, layer in inner(operation)]
    return [each for each in every if len(list(inner(each))) == 1]


def wrapped(layer: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Make call(layer, original, …) a method, with the arguments that the original one says."""
    original = getattr(layer, name)
    return functools.wraps(original)(functools.partial(call, layer, original))


@contextlib.contextmanager
def instead_of(layers: Iterable[Any], call: Callable[..., Any]) -> Iterator[None]:
    """Let call(layer, original, …) be what layers do in the block when they are called.

    Nor do they look at sizes there: what is cut by rows is given a part.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers:
            for name in ("call", "quantized_call"):
                if hasattr(layer, name):
                    stack.enter_context(instead(layer, **{name: wrapped(layer, name, call)}))
            if hasattr(layer, "input_spec"):
                stack.callback(setattr, layer, "input_spec", layer.input_spec)
                layer.input_spec = None
        yield


def some(values: Sequence[Value]) -> dict[Value, Any]:
    """Draw numbers for values of the model; ones for whole numbers and masks."""
    return {value: drawn([n or SOME for n in value.shape], value.dtype) for value in values}


def drawn(shape: Sequence[int], dtype: Any, added: int = 1) -> Any:
    """Draw numbers of which so many are added up in products with others of size 1."""
    dtype = tf.as_dtype(dtype)
    numbers = np.random.default_rng(0).normal(size=shape) / added**0.5
    return tf.cast(numbers if dtype.is_floating else np.ones(shape), dtype)
