"""Let a built Keras model compute in stages, each on its device: `fit` does all the rest."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._models import crossing, graph_of, ready, run_calls
from mgpu_helpers._train import HOST
from mgpu_helpers.fit._moving import moved
from mgpu_helpers.fit._placing import placed_step
from mgpu_helpers.fit._stages import Run, Stage
from mgpu_helpers.fit.accumulate import warn_of_normalizing
from mgpu_helpers.fit.parallel import each_once, masked, replace, shared_out, tied, together
from mgpu_helpers.graph import count
from mgpu_helpers.pipeline.models import places, starts
from mgpu_helpers.towers.train import check_layers

LENGTH = 32  # of an axis that the model does not know, where layers are compared by their FLOP


def split(
    model: Any, devices: Iterable[Any], pieces: int = 1, at: Sequence[str] | None = None
) -> Any:
    """Cut the layers of a built model into a stage for each device; give the model.

    Each stage has its weights, and what the optimizer keeps of them, on its device, computes there
    and is updated there. What a layer makes for a later stage crosses, with its mask, and so does
    its gradient. `fit`, `evaluate`, `predict` and model(x) use all devices, and Keras does the rest
    as ever. Weights and history are, to rounding, those of one device.

    With `pieces` each batch goes through the stages in so many parts, all forward and then, because
    a loss is one of the whole batch, all back: the stages work at the same time. A
    BatchNormalization sees a piece at a time, which is warned of, and dropout draws for each.

    `at` names the layers that begin a stage, but the first one's; a model inside the model is one
    layer. None cuts where one tensor crosses, so that the stage with the most FLOP has as few as
    can be, see `graph.flops`, and of such cuts where the least crosses.

    The model may be compiled before or after. What is saved is the model as it was, and what is
    loaded into it stays where its stage is. `fit.alone` undoes it. XLA is not used.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = split(model, plan.devices).fit(np.ones((5, 3)), np.ones((5, 1)), verbose=0)
    >>> [layer.kernel.value.device[-5:] for layer in model.layers]
    ['CPU:1', 'CPU:2']
    """
    devices = each_once(devices)
    pieces = whole_number("pieces", pieces, "a number of pieces", 1)
    ready(model, functional=True)
    if "call" in vars(model) or "train_step" in vars(model):
        raise ValueError(
            f"the calls or steps of {model.name} are not its own any more, but taken in parts, in "
            "pieces or on several devices: use fit.alone first."
        )
    if pieces > 1:
        check_layers(model, "average")
    graph = graph_of(model)
    stages = _stages(graph, devices, _balanced(graph, len(devices)) if at is None else at)
    if pieces > 1:
        warn_of_normalizing(model)
    entry = keras_entry(graph)
    call, step = model.call, placed_step(model)

    @functools.wraps(call)
    def call_split(*args: Any, **named: Any) -> Any:
        return _call(model, entry, graph, stages, pieces, args, named)

    owned = {id(v): (v, stage.device) for stage in stages[::-1] for v in stage.variables}
    vars(call_split)["homes"] = [(v, v.value.device) for v, _ in owned.values()]
    moved(model, owned.values())
    replace(model, "call", call_split)
    replace(model, "train_step", step)
    return model


def keras_entry(graph: Any) -> Any:
    """Make what takes what a model takes, and gives it as the flat list of the model's inputs."""
    import keras

    return keras.Model(graph.input, graph.inputs, name=graph.name)


def _stages(graph: Any, devices: Sequence[str], at: Sequence[str]) -> list[Stage]:
    calls = _private.calls_of(graph)
    borders = [0, *starts(calls, at, devices), len(calls)]
    parts = [calls[a:b] for a, b in itertools.pairwise(borders)]
    stages = []
    for s, (device, own) in enumerate(zip(devices, parts, strict=True)):
        later = {id(t) for part in parts[s + 1 :] for each in part for t in each.input_tensors}
        later |= {id(t) for t in graph.outputs}
        used = {id(t): t for each in own for t in each.input_tensors}
        made = {id(t) for each in own for t in each.outputs}
        variables = {id(v): v for each in own for v in getattr(each.operation, "variables", ())}
        takes = [key for key in used if key not in made]
        stages.append(Stage(device, own, [*variables.values()], takes, made & later))
    return stages


def _balanced(graph: Any, n: int) -> list[str]:
    """Choose where n stages begin: the most FLOP in one are as few, then the least crosses."""
    found = list(places(graph))
    if len(found) < n:
        raise ValueError(
            f"{graph.name} can begin a stage at {counted(len(found), 'layer')} where one tensor "
            f"crosses ({', '.join(found)}), and {n} devices need {n} stages: give fewer devices, "
            "or name the layers that begin a stage in `at`."
        )
    calls = _private.calls_of(graph)
    names = [each.operation.name for each in calls]
    borders = [*map(names.index, found), len(calls)]
    costs = [_cost(calls[a:b]) for a, b in itertools.pairwise(borders)]
    sizes = [sum(map(_numbers, each)) for each in crossing(graph, calls)]

    @functools.cache
    def best(a: int, n: int) -> tuple[float, int, tuple[int, ...]]:
        if n == 1:
            return sum(costs[a:]), 0, ()
        rest = ((b, *best(b, n - 1)) for b in range(a + 1, len(costs) - n + 2))
        return min((max(sum(costs[a:b]), most), sizes[borders[b]] + crosses, (b, *later))
                   for b, most, crosses, later in rest)  # fmt: skip

    return [found[i] for i in best(0, n)[2]]


def _numbers(tensor: Any) -> int:
    """Count the numbers of a tensor of the model for an example."""
    return math.prod(n or LENGTH for n in tensor.shape[1:])


def _cost(calls: Sequence[Any]) -> float:
    """Count the FLOP of calls for an example; where they are unknown, two for each weight."""
    import keras
    import tensorflow as tf

    made = {id(t) for each in calls for t in each.outputs}
    takes = {id(t): t for each in calls for t in each.input_tensors if id(t) not in made}
    given = [
        tf.TensorSpec([1, *(n or LENGTH for n in t.shape[1:])], t.dtype) for t in takes.values()
    ]

    def run(*xs: Any) -> Any:
        with keras.StatelessScope():
            return list(run_calls(calls, dict(zip(takes, xs, strict=True)), False).values())

    weights = {id(v): v for each in calls for v in getattr(each.operation, "variables", ())}
    found = count(run, *given).flops
    return 2 * sum(math.prod(v.shape) for v in weights.values()) if found is None else found


def _call(
    model: Any, entry: Any, graph: Any, stages: Sequence[Stage], pieces: int, args: Any, named: Any
) -> Any:
    import keras
    import tensorflow as tf

    trained = model.trainable_variables
    xs, sizes, given = shared_out(model, args, named, pieces)
    with tf.device(HOST):
        inputs = [keras.tree.flatten(entry(masked(*each))) for each in given]
    values = [dict(zip(map(id, graph.inputs), each, strict=True)) for each in inputs]
    run = Run(stages, trained, named.get("training"))
    for k, s in itertools.product(range(pieces), range(len(stages))):
        run.forward(s, k, values[k], sizes[k])
    run.finish()
    outputs = [[each[id(t)] for t in graph.outputs] for each in values]
    losses = [[x for s in range(len(stages)) for x in run.losses[s, k]] for k in range(pieces)]

    def tie(ends: list[Any]) -> list[Any]:
        def back(chosen: Sequence[Any], by: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            run.begin(chosen, by, [x for each in (*outputs, *losses) for x in each])
            for k, s in itertools.product(range(pieces), reversed(range(len(stages)))):
                run.backward(s, k)
            run.in_order()
            return run.found(trained), run.found_of(xs, [x for each in inputs for x in each])

        return tied(ends, xs, trained, back)

    homes = [next((stage.device for stage in stages if id(t) in stage.gives), HOST)
             for t in graph.outputs]  # fmt: skip
    packed = [keras.tree.pack_sequence_as(graph.output, each) if len(each) > 1 else each[0]
              for each in outputs]  # fmt: skip
    return together(model, packed, losses, sizes, tie, homes)
