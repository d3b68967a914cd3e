"""Layers whose results are not kept: the backward pass computes them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import Call, Value, run_calls

AGAIN = "again"  # the name of what has to wait for its control inputs, in XLA as well
MOMENTS = Value("mean"), Value("variance")  # of all rows, beside what calls are given


def computed_twice(
    calls: Sequence[Call], values: dict[Value, Any], gives: Sequence[Value], outer: Any,
    variables: Sequence[Any], program: Any = run_calls, last: bool = False,
) -> dict[Value, Any]:  # fmt: skip
    """Run calls for what they give, and run them again when gradients of that are asked for.

    Variables have the values that they have in the scope, which gets what the calls change. The
    last calls of a model run once: what they give is needed at once.
    """
    takes, whole = [*values], [*values.values()]
    xs = tf.nest.flatten(whole, expand_composites=True)  # sparse and ragged ones by their parts
    masks = {i: mask for i, x in enumerate(xs) if (mask := _private.mask_of(x)) is not None}
    held = [outer.get_current_value(v) for v in variables]
    first = len(xs) + len(masks)  # of the variables among what the calls are given
    sloped = [i for i, x in enumerate(xs) if x.dtype.is_floating]
    inputs = len(sloped)
    sloped += [first + k for k, v in enumerate(variables) if v.trainable]
    autocast, here = _private.autocast_here(), tf.get_current_name_scope()

    def run(given: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        flat = iter(given)
        own = [next(flat) for _ in xs]
        for i in masks:
            _private.set_mask(own[i], next(flat))
        known = dict(zip(takes, tf.nest.pack_sequence_as(whole, own, True), strict=True))
        with _private.without_autocast():  # or it would keep halves for the variables
            pairs = zip(variables, flat, strict=True)
            scope = keras.StatelessScope(pairs, collect_losses=True)
        call = _private.call_of(keras.layers.Layer(), training=True)
        with tf.GradientTape(persistent=last) as tape, scope, call, autocast:
            tape.watch([given[i] for i in sloped])
            program(calls, known, True)
        made = [known[value] for value in gives]
        logits = {k: x for k, y in enumerate(made) if (x := _private.logits_of(y)) is not None}
        made_of[:] = logits  # of a softmax, by its number: losses take them
        return tape, [*made, *logits.values(), *scope.losses], scope

    def forward(*given: Any) -> Any:
        before = _operations()
        with contextlib.nullcontext() if last else _private.unrecorded():
            tape, made, scope = run(given)
        if not last:
            _check_draws(before)
        kept = (tape, made, scope) if last else None

        def back(*slopes: Any, variables: Sequence[Any] = ()) -> Any:
            by = [s if s is None else tf.convert_to_tensor(s) for s in slopes]
            own: Sequence[Any] = given
            if not last:
                with tf.control_dependencies([s for s in by if s is not None]):
                    own = _again(given)  # or it would run in the forward pass
            with tf.name_scope(f"{here}/" if here else None):  # of the model, for traces
                tape, made, _ = kept or run(own)
            ends = [(y, s) for y, s in zip(made, by, strict=True)
                    if s is not None and y.dtype.is_floating]  # fmt: skip
            ys, by = [y for y, _ in ends], [s for _, s in ends]
            of = [*(own[i] for i in sloped), *variables]
            if program in (run_calls, run_met) or tf.executing_eagerly():
                found = tape.gradient(ys, of, by)
            else:  # of what runs on several devices each gradient there: a tape places none
                graph = tf.compat.v1.get_default_graph()
                with graph.colocate_with(None, ignore_existing=True), tf.device(own[0].device):
                    found = list(tf.compat.v1.gradients(
                        ys, of, by, colocate_gradients_with_ops=True, stop_gradients=own
                    ))  # fmt: skip
            weights = [w for w in tf.nest.flatten(found[inputs:], True) if w is not None]
            with tf.control_dependencies(weights):  # or what they need would be held for longer
                found[:inputs] = [x if x is None else _again([x])[0] for x in found[:inputs]]
            by_number = dict(zip(sloped, found))  # noqa: B905  variables come behind
            ours = [by_number.get(i) for i in range(len(given))]
            return (ours, found[len(sloped) :]) if variables else ours

        marks.extend(map(_private.mask_of, made))
        scopes.append(scope)
        return made, back

    made_of: list[int] = []
    marks: list[Any] = []
    scopes: list[Any] = []
    results = tf.custom_gradient(forward)(*xs, *masks.values(), *held)
    made = dict(zip(gives, results, strict=False))
    for y, mask in zip(made.values(), marks, strict=False):
        if mask is not None:
            _private.set_mask(y, mask)
    behind = results[len(gives) :]
    for k, logits in zip(made_of, behind, strict=False):
        _private.set_logits(results[k], logits)
    for loss in behind[len(made_of) :]:
        outer.add_loss(loss)
    (scope,) = scopes
    for variable, _, now in changed(scope, [*zip(variables, held, strict=True)]):
        outer.add_update((variable, now))
    return made


def run_met(calls: Sequence[Call], values: dict[Value, Any], training: Any) -> dict[Value, Any]:
    """Run calls of which the first normalizes by what is given as the moments of all rows."""
    mean, variance = map(values.pop, MOMENTS)
    with _private.with_moments(calls[0].operation, mean, variance):
        return run_calls(calls, values, training)


def _again(tensors: Iterable[Any]) -> list[Any]:
    return [tf.identity(x, name=AGAIN) for x in tensors]


def changed(scope: Any, pairs: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, Any]]:
    """Give what calls have changed, with what it was: averages, and how often seeds were used."""
    if len(scope.state_mapping) > len(pairs):
        raise ValueError(
            "a layer changes a variable that is none of its own, such as Keras's seed of all "
            "layers or a number of a metric. Give what draws a keras.random.SeedGenerator of its "
            "own, and update the metric in a train_step; or train with fit.strategy, which takes "
            "both."
        )
    for variable, before in pairs:
        now = scope.get_current_value(variable)
        if now is not before:
            check_assigned(variable)
            yield variable, before, now


def check_assigned(variable: Any) -> None:
    """Refuse what a call assigns if it is a weight, as SpectralNormalization's is."""
    if variable.trainable:
        raise ValueError(
            f"a layer assigns its weight {variable.path!r} when it is called, which can be done "
            "neither for a part of the batch nor twice. Train the model with fit.strategy, or "
            "without this layer."
        )


def _operations() -> list[Any]:
    """List the operations so far; none where they run at once."""
    eager = tf.executing_eagerly()
    return [] if eager else tf.compat.v1.get_default_graph().get_operations()


def _check_draws(before: Sequence[Any]) -> None:
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
            f"{op.name} draws other numbers the second time: draw them by a function of "
            "keras.random with a keras.random.SeedGenerator of the layer."
        )
