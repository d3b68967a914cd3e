"""Keep of a model's activations what crosses between its parts, and compute the others again."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._models import first_calls, graph_of, ready, run_calls
from mgpu_helpers.fit.parallel import replace
from mgpu_helpers.graph import cuts


@dataclass(frozen=True, eq=False)
class _Part:
    """Calls of layers, what they take and give of a model's symbolic tensors, and what they use."""

    calls: Sequence[Any]
    takes: list[Any]
    gives: list[Any]
    variables: list[Any]


def recompute(model: Any, parts: int | Iterable[str] | None = None) -> Any:
    """Let each training step of a built model run its layers in parts, twice; give the model.

    The forward pass keeps what crosses from one part to the next. The backward pass runs each part
    forward once more before it goes back through it, with the same seeds and averages, so that
    `fit` trains as without it: dropout, BatchNormalization, masks, what layers add to the loss. The
    last part is run once. `evaluate`, `predict` and what is saved stay as they are; `fit.alone`
    undoes it. XLA is not used.

    parts is how many, of about the same bytes, cut where one tensor crosses beside the model's
    inputs and outputs: by default about the square root of the number of such places. Or it names
    the layers that begin a part, in the order in which Keras runs them, which may be anywhere. A
    model inside the model is one layer; give it itself, to have it in parts.

    >>> import keras
    >>> layers = [keras.layers.Dense(3, name=name) for name in "abcd"]
    >>> model = keras.Sequential([keras.Input((3,)), *layers])
    >>> model.compile("sgd", "mse")
    >>> history = recompute(model, ["c"]).fit(np.ones((5, 3)), np.ones((5, 3)), verbose=0)
    >>> len(history.history["loss"])
    1
    """
    import keras

    ready(model, functional=True, single=False)
    if "call" in vars(model):
        raise ValueError(
            f"the calls of {model.name!r} are not its own any more: use fit.alone first, and "
            "fit.recompute before fit.parallel."
        )
    graph = graph_of(model)
    calls = _private.calls_of(graph)
    made = _parts(graph, calls, _starts(graph, calls, parts))
    entry = keras.Model(graph.input, graph.inputs)  # it gives a flat list of what the model takes
    original = model.call

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        if not named.get("training") or named.keys() - {"inputs", "mask", "training"}:
            return original(*args, **named)
        given = args[0] if args else named["inputs"]
        flat = keras.tree.flatten(entry.call(given, mask=named.get("mask")))
        values = dict(zip(map(id, graph.inputs), flat, strict=True))
        for part in made:
            _through(model, part, values, part is made[-1])
        outputs = [values[id(t)] for t in graph.outputs]
        return (
            keras.tree.pack_sequence_as(graph.output, outputs) if len(outputs) > 1 else outputs[0]
        )

    call.recomputes = True  # type: ignore[attr-defined]
    replace(model, "call", call)
    return model


def _through(model: Any, part: _Part, values: dict[int, Any], last: bool) -> None:
    """Run a part for what it gives; all but the last again when its gradients are asked for."""
    import keras
    import tensorflow as tf

    xs = [values[id(t)] for t in part.takes]
    masks = {i: mask for i, x in enumerate(xs) if (mask := _private.mask_of(x)) is not None}
    with _private.without_autocast():
        held = [tf.convert_to_tensor(v.value) for v in part.variables]
    first = len(xs) + len(masks)  # of the variables among what the part is given
    sloped = [i for i, x in enumerate(xs) if x.dtype.is_floating]
    inputs = len(sloped)
    sloped += [first + k for k, v in enumerate(part.variables) if v.trainable]
    autocast = _private.autocast_here()

    def run(given: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        flat = iter(given)
        own = [next(flat) for _ in xs]
        for i in masks:
            _private.set_mask(own[i], next(flat))
        known = dict(zip(map(id, part.takes), own, strict=True))
        with _private.without_autocast():  # or it would keep halves for the variables
            pairs = zip(part.variables, flat, strict=True)
            scope = keras.StatelessScope(pairs, collect_losses=True)
        call = _private.call_of(keras.layers.Layer(), training=True)
        with tf.GradientTape(persistent=last) as tape, scope, call, autocast:
            tape.watch([given[i] for i in sloped])
            run_calls(part.calls, known, True)
        gives = [known[id(t)] for t in part.gives]
        logits = {k: x for k, y in enumerate(gives) if (x := _private.logits_of(y)) is not None}
        made_of[:] = logits  # of a softmax, by its number: losses take them
        return tape, [*gives, *logits.values(), *scope.losses], scope

    def forward(*given: Any) -> Any:
        before = _operations()
        with contextlib.nullcontext() if last else _private.unrecorded():
            tape, made, scope = run(given)
        if not last:
            _check_draws(model, before)
        kept = (tape, made, scope) if last else None

        def back(*slopes: Any, variables: Sequence[Any] = ()) -> Any:
            by = [s if s is None else tf.convert_to_tensor(s) for s in slopes]
            own: Sequence[Any] = given
            if not last:
                with tf.control_dependencies([s for s in by if s is not None]):
                    own = list(map(tf.identity, given))  # or it would run in the forward pass
            tape, made, _ = kept or run(own)
            ends = [(y, s) for y, s in zip(made, by, strict=True)
                    if s is not None and y.dtype.is_floating]  # fmt: skip
            found = tape.gradient(
                [y for y, _ in ends], [*(own[i] for i in sloped), *variables], [s for _, s in ends]
            )
            weights = [w for w in tf.nest.flatten(found[inputs:], True) if w is not None]
            with tf.control_dependencies(weights):  # or what they need would be held for longer
                found[:inputs] = [x if x is None else tf.identity(x) for x in found[:inputs]]
            of = dict(zip(sloped, found))  # noqa: B905  variables come behind
            ours = [of.get(i) for i in range(len(given))]
            return (ours, found[len(sloped) :]) if variables else ours

        marks.extend(map(_private.mask_of, made))
        scopes.append(scope)
        return made, back

    made_of: list[int] = []
    marks: list[Any] = []
    scopes: list[Any] = []
    results = tf.custom_gradient(forward)(*xs, *masks.values(), *held)
    for t, y, mask in zip(part.gives, results, marks, strict=False):
        if mask is not None:
            _private.set_mask(y, mask)
        values[id(t)] = y
    behind = results[len(part.gives) :]
    for k, logits in zip(made_of, behind, strict=False):
        _private.set_logits(results[k], logits)
    for loss in behind[len(made_of) :]:
        keras.layers.Layer.add_loss(model, loss)  # a functional model has not implemented its own
    _keep(model, part.variables, held, *scopes)


def _keep(model: Any, variables: Sequence[Any], held: Sequence[Any], scope: Any) -> None:
    """Write what a part has changed: averages, and how often seeds were used."""
    if len(scope.state_mapping) > len(variables):
        raise ValueError(
            f"a layer of {model.name!r} changes a variable that is not among those of its layers, "
            "which would be changed twice: give what draws a keras.random.SeedGenerator of its own."
        )
    for variable, before in zip(variables, held, strict=True):
        now = scope.get_current_value(variable)
        if now is not before and variable.trainable:
            raise ValueError(
                f"a layer assigns its weight {variable.path!r} when it is called, which cannot be "
                "done twice: take this layer out of the model."
            )
        if now is not before:
            variable.assign(now)


def _operations() -> list[Any]:
    """List the operations so far; none where they run at once."""
    import tensorflow as tf

    eager = tf.executing_eagerly()
    return [] if eager else tf.compat.v1.get_default_graph().get_operations()


def _check_draws(model: Any, before: Sequence[Any]) -> None:
    """Raise where what was made since then draws numbers that are others the second time."""
    from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, called

    def draws(ops: Iterable[Any]) -> Iterator[Any]:
        for op in ops:
            if op.op_def.is_stateful and any(each.name == "seed2" for each in op.op_def.attr):
                yield op
            if op.type in CALLS | LOOPS | BRANCHES:
                for graph in called(op):
                    yield from draws(graph.get_operations())

    for op in draws(_operations()[len(before) :]):
        raise ValueError(
            f"{op.name} in {model.name!r} draws other numbers the second time: draw them by a "
            "function of keras.random with a keras.random.SeedGenerator of the layer."
        )


def _parts(graph: Any, calls: Sequence[Any], starts: Sequence[int]) -> list[_Part]:
    import keras

    outputs = {id(t) for t in graph.outputs}
    found = []
    for a, b in itertools.pairwise([0, *starts, len(calls)]):
        own = {id(t) for call in calls[a:b] for t in call.outputs}
        later = outputs | {id(t) for call in calls[b:] for t in call.input_tensors}
        takes = {id(t): t for call in calls[a:b] for t in call.input_tensors if id(t) not in own}
        gives = [t for call in calls[a:b] for t in call.outputs if id(t) in later]
        used = [  # an operation that is no layer may be given a variable
            v for call in calls[a:b]
            for v in [*getattr(call.operation, "variables", ()),
                      *keras.tree.flatten((call.arguments.args, call.arguments.kwargs))]
            if isinstance(v, keras.Variable)
        ]  # fmt: skip
        variables = list({id(v): v for v in used}.values())
        found.append(_Part(calls[a:b], list(takes.values()), gives, variables))
    return found


def _starts(graph: Any, calls: Sequence[Any], parts: int | Iterable[str] | None) -> list[int]:
    """Number the calls with which the parts after the first begin."""
    first = first_calls(calls)
    if isinstance(parts, Iterable):
        names = [parts] if isinstance(parts, str) else list(parts)
        starts = [first.get(name, 0) for name in names]
        if not starts or 0 in starts or starts != sorted({*starts}):
            raise ValueError(
                f"parts={names} begin no parts of {graph.name!r}: name layers in the order in "
                f"which Keras runs them, which is {', '.join([*first][1:])}."
            )
        return starts
    at = cuts.narrow(graph, calls)
    parts = max(2, round(len(at) ** 0.5)) if parts is None else parts
    parts = whole_number("parts", parts, "a number of parts", 2)
    if parts > len(at):
        raise ValueError(
            f"{graph.name!r} has {counted(len(at) - 1, 'place')} to cut, where one tensor crosses, "
            f"and {parts} parts need {parts - 1}: name the layers that begin a part, in a list."
        )
    return cuts.even(calls, at, parts)
