"""Stages of a Keras model: its layers from one cut up to the next, with the model's own weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted
from mgpu_helpers._models import crossing, first_calls, graph_of, ready, run_calls
from mgpu_helpers.pipeline.run import Made, Stage


def stages(model: Any, cuts: Sequence[str], devices: Sequence[str]) -> list[Stage]:
    """Cut a functional or Sequential Keras model in front of the layers named: a stage a device.

    Layers run in the order in which Keras runs them. All that is made before a cut and used behind
    it crosses, also past a stage that does not use it. A layer that is called in two stages is in
    both; a model inside the model is one layer.

    The weights stay the model's own variables, where they lie, and are known by their `path`. A
    step reads each once, and copies those that lie elsewhere to the device of their stage: build
    the layers in the block of their device. Train with `updater(stages, "adam")`, an optimizer for
    each stage. One for the whole model would fetch gradients and slots to a single device.
    Layers run with training=True: moving averages and the seeds of dropout are renewed piece by
    piece, and what layers add to the loss counts as the loss does. No loss is scaled, so in
    mixed_float16 small gradients are lost: prefer mixed_bfloat16.

    >>> import keras
    >>> layers = [keras.layers.Dense(4, name="a"), keras.layers.Dense(2, name="b")]
    >>> model = keras.Sequential([keras.Input((3,)), *layers], name="net")
    >>> [list(stage.weights) for stage in stages(model, ["b"], plan.devices)]
    [['net/a/kernel', 'net/a/bias'], ['net/b/kernel', 'net/b/bias']]
    """
    from mgpu_helpers.devices.plan import checked

    ready(model, functional=True)
    model = graph_of(model)
    nodes = _private.calls_of(model)
    at = [0, *starts(nodes, cuts, devices), len(nodes)]
    devices = checked(devices)
    borders = [model.inputs, *(crossing(model, nodes)[i] for i in at[1:-1]), model.outputs]
    made: list[Stage] = []
    known: dict[str, Any] = {}
    for s, (a, b) in enumerate(itertools.pairwise(at)):
        layers = [node.operation for node in nodes[a:b] if hasattr(node.operation, "variables")]
        weights = {v.path: v for layer in layers for v in layer.trainable_variables}
        state = {v.path: v for layer in layers for v in layer.non_trainable_variables}
        regular = [path for path, v in weights.items() if v.regularizer and path not in known]
        for v in itertools.chain(*(layer.variables for layer in layers)):
            if known.setdefault(v.path, v) is not v:
                raise ValueError(
                    f"two variables of the model are called {v.path!r}, so their gradients cannot "
                    "be told apart: give the layers different names."
                )
        function = _function(model, nodes[a:b], borders, s, weights, state, regular)
        made.append(Stage(devices[s], function, weights, state))
    return made


def places(model: Any) -> dict[str, list[str]]:
    """List the layers in front of which one tensor crosses, each with the layers up to the next.

    The first is where the model begins. `best_cut` takes them, and `stages` takes its starts.

    >>> import keras
    >>> x = keras.Input((3,))
    >>> a = keras.layers.Dense(3, name="a")(x)
    >>> b = keras.layers.Dense(3, name="b")(a)
    >>> places(keras.Model(x, keras.layers.Add(name="c")([a, b])))
    {'a': ['a'], 'b': ['b', 'c']}
    """
    ready(model, functional=True, single=False)
    model = graph_of(model)
    nodes = _private.calls_of(model)
    crosses = crossing(model, nodes)
    found: dict[str, list[str]] = {}
    for name, i in first_calls(nodes).items():
        if i == 0 or len(crosses[i]) == 1:
            found[name] = start = []
        start.append(name)
    return found


def starts(nodes: Sequence[Any], cuts: Sequence[str], devices: Sequence[str]) -> list[int]:
    """Find where each stage but the first begins."""
    first = first_calls(nodes)
    found = [first.get(cut, 0) for cut in cuts]
    if 0 in found or found != sorted(set(found)) or len(devices) != len(cuts) + 1:
        raise ValueError(
            f"{list(cuts)} begin no stages for {counted(len(devices), 'device')}: name one "
            "layer less than devices, in the order in which Keras runs them, which is "
            f"{', '.join(list(first)[1:])}."
        )
    return found


def _function(
    model: Any,
    nodes: Sequence[Any],
    borders: Sequence[Sequence[Any]],
    s: int,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    regular: Sequence[str],
) -> Callable[[Mapping[str, Any], Any], Made]:
    """Make the function of a stage: run its calls as Keras would, with the weights it is given."""
    import keras
    import tensorflow as tf

    entry = keras.Model(model.input, model.inputs)  # it takes what the model takes, as a flat list
    variables = {**weights, **state}

    def enter(x: Any) -> dict[int, Any]:
        values, masks = (keras.tree.flatten(entry(x)), {}) if s == 0 else x
        for i, mask in masks.items():
            _private.set_mask(values[i], mask)  # which a loss uses
        return {id(t): value for t, value in zip(borders[s], values, strict=True)}

    def leave(values: Mapping[int, Any]) -> Any:
        made = [values[id(t)] for t in borders[s + 1]]
        if s + 2 == len(borders):
            return keras.tree.pack_sequence_as(model.output, made) if len(made) > 1 else made[0]
        masks = {i: _private.mask_of(value) for i, value in enumerate(made)}
        return made, {i: mask for i, mask in masks.items() if mask is not None}

    def function(given: Mapping[str, Any], x: Any) -> Made:
        values, pairs = enter(x), [(v, given[path]) for path, v in variables.items()]
        with keras.StatelessScope(pairs, collect_losses=True) as scope:
            run_calls(nodes, values, True)
        now = {path: scope.get_current_value(v) for path, v in variables.items()}
        changed = {path: value for path, value in now.items() if value is not given[path]}
        if moved := [path for path in changed if path in weights]:
            raise ValueError(
                f"a layer assigns its weight {moved[0]!r} when it is called, which a stage cannot "
                "do: take this layer out of the model."
            )
        losses = [weights[path].regularizer(given[path]) for path in regular]
        return Made(leave(values), changed, [*scope.losses, *losses])

    return tf.autograph.experimental.do_not_convert(function)  # as Keras does with its own
