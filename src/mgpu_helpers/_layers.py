"""A functional or Sequential Keras model as the calls of its layers, also of models inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import graph_of, takes_training
from mgpu_helpers._names import of_keras


@dataclass(frozen=True, eq=False)
class Value:
    """What a call takes or gives: a symbolic tensor of Keras, in one call of the model it is in."""

    tensor: Any

    @property
    def shape(self) -> Any:
        """Give its shape, with None for what is not known."""
        return self.tensor.shape

    @property
    def dtype(self) -> Any:
        """Give its type."""
        return self.tensor.dtype


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer; its name has those of the models that it is in: "backbone/dense"."""

    name: str
    operation: Any
    node: Any  # of Keras: what the call is given
    takes: Sequence[Value]  # in the order of Keras's tensors
    gives: Sequence[Value]
    enters: bool = False  # a model inside the model: takes what that takes, gives its inputs

    @property
    def variables(self) -> list[Any]:
        """List the variables of the layer, and those that it is given."""
        given = keras.tree.flatten((self.node.arguments.args, self.node.arguments.kwargs))
        every = [*getattr(self.operation, "variables", ()),
                 *(x for x in given if isinstance(x, keras.Variable))]  # fmt: skip
        return list({id(v): v for v in every}.values())


class LayerGraph:
    """The calls of a model's layers in the order in which Keras runs them.

    >>> import keras
    >>> inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="a")], name="inner")
    >>> outer = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1, name="b")])
    >>> [call.name for call in LayerGraph(outer).calls]
    ['inner', 'inner/a', 'b']
    """

    def __init__(self, model: Any) -> None:
        graph = graph_of(model)
        self.graph, self.entry = graph, _entry(graph)
        self.calls: list[Call] = []
        self.inputs = [Value(t) for t in graph.inputs]
        known = dict(zip(map(id, graph.inputs), self.inputs, strict=True))
        self._add(graph, known, "")
        self.outputs = [known[id(t)] for t in graph.outputs]

    def _add(self, graph: Any, known: dict[int, Value], path: str) -> None:
        """Append the calls of a graph; known gets what they give, by the `id` of its tensor."""
        for node in _private.calls_of(graph):
            name, takes = path + node.operation.name, [known[id(t)] for t in node.input_tensors]
            if not is_taken_apart(node):
                gives = [Value(t) for t in node.outputs]
                self.calls.append(Call(name, node.operation, node, takes, gives))
                known |= zip(map(id, node.outputs), gives, strict=True)
                continue
            inner = graph_of(node.operation)
            inputs = [Value(t) for t in inner.inputs]
            self.calls.append(Call(name, _entry(inner), node, takes, inputs, True))
            inside = dict(zip(map(id, inner.inputs), inputs, strict=True))
            self._add(inner, inside, f"{name}/")
            made = zip(node.outputs, inner.outputs, strict=True)
            known |= {id(outer): inside[id(t)] for outer, t in made}

    def flat(self, inputs: Any) -> dict[Value, Any]:
        """Give what the model is called with, by what the calls know it as."""
        return dict(zip(self.inputs, keras.tree.flatten(self.entry(inputs)), strict=True))

    def packed(self, outputs: Sequence[Any]) -> Any:
        """Give the outputs in the structure that the model gives them in."""
        output = self.graph.output
        return keras.tree.pack_sequence_as(output, outputs) if len(outputs) > 1 else outputs[0]

    def crossing(self) -> list[list[Value]]:
        """List for each call what was made before it and is used by it or later."""
        last = {value: i for i, call in enumerate(self.calls) for value in call.takes}
        last |= dict.fromkeys(self.outputs, len(self.calls))
        crossing, made = [], list(self.inputs)
        for i, call in enumerate(self.calls):
            made = [value for value in made if last.get(value, -1) >= i]
            crossing.append(made)
            made = [*made, *call.gives]
        return crossing

    def trained(self) -> set[Value]:
        """Give what gradients go through: not masks, positions, and what else is made of words."""
        found = {value for value in self.inputs if _floats(value)}
        for call in self.calls:
            if call.variables or found & {*call.takes}:
                found |= {value for value in call.gives if _floats(value)}
        return found

    def first(self) -> dict[str, int]:
        """Number the first call of each layer by its name.

        A layer of a model inside the model goes by its own name, too, where no other has it.
        """
        first: dict[str, int] = {}
        own: dict[str, set[str]] = {}
        for i, call in enumerate(self.calls):
            first.setdefault(call.name, i)
            own.setdefault(call.name.rpartition("/")[2], set()).add(call.name)
        short = {name: first[min(calls)] for name, calls in own.items() if len(calls) == 1}
        return short | first

    def names(self) -> list[str]:
        """List the layers, each once, in the order of their first calls."""
        return list(dict.fromkeys(call.name for call in self.calls))


def _floats(value: Value) -> bool:
    return "float" in str(value.dtype)


def _entry(graph: Any) -> Any:
    """Make what takes what a model takes, and gives it as the flat list of the model's inputs."""
    return keras.Model(graph.input, graph.inputs, name=graph.name)


def is_taken_apart(node: Any) -> bool:
    """Say whether a call is one of a model whose layers Keras runs one after the other.

    One with a call of its own, or that is given more than inputs and their masks, is run as a
    layer.
    """
    model, given = node.operation, _named(node.arguments.args, node.arguments.kwargs)
    more = {name: x for name, x in given.items() if name not in ("inputs", "mask", "training")}
    ordinary = isinstance(model, keras.Function | keras.Sequential) and model.built
    own_call = "call" in vars(model) or not of_keras(type(model).call)
    return bool(ordinary and not own_call and not _some(more))


def _named(args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Give by name what Keras's own call of a model is given."""
    return {**dict(zip(("inputs", "training", "mask", "more"), args, strict=False)), **named}


def _some(given: Any) -> bool:
    """Say whether there is anything but None, as in a dict of masks that no input has."""
    return any(x is not None for x in keras.tree.flatten(given))


def run_calls(calls: Sequence[Call], values: dict[Value, Any], training: Any) -> dict[Value, Any]:
    """Run calls of layers as Keras does, with the values that they take; give all values."""
    for call in calls:
        args, named = arguments(call, values)
        operation = call.operation
        if training is not None and takes_training(operation):
            named["training"] = training
        with _inside(call.name.split("/")[:-1]):
            made = operation(*args, **named)
        values |= zip(call.gives, keras.tree.flatten(made), strict=True)
    return values


def _inside(models: Sequence[str]) -> Any:
    """Open the scope of models inside the model, as Keras names it: each with a number."""
    if not models:
        return contextlib.nullcontext()
    here = tf.get_current_name_scope()
    return tf.name_scope("/".join([*[here][: bool(here)], *(f"{name}_1" for name in models), ""]))


def arguments(call: Call, values: Mapping[Value, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give what a call is given: values for what it takes."""
    tensors = zip(call.node.input_tensors, call.takes, strict=True)
    args, named = _private.run_call(call.node, {id(t): values[value] for t, value in tensors})
    if not call.enters:
        return args, named
    given = _named(args, named)
    return (given["inputs"],), {"mask": given["mask"]} if _some(given.get("mask")) else {}


def used_later(
    calls: Sequence[Call], after: Sequence[Call], outputs: Sequence[Value]
) -> set[Value]:
    """Give what calls make for later ones, or as outputs."""
    later = {value for call in after for value in call.takes} | {*outputs}
    return {value for call in calls for value in call.gives} & later


def taken(calls: Sequence[Call]) -> list[Value]:
    """List what calls take that they have not made."""
    made = {value for call in calls for value in call.gives}
    return list(dict.fromkeys(value for call in calls for value in call.takes if value not in made))


def variables_of(calls: Sequence[Call]) -> list[Any]:
    """List the variables that calls use, each once."""
    return list({id(v): v for call in calls for v in call.variables}.values())

