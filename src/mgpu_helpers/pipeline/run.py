"""A batch in pieces through the stages of a model: the pipeline of lesson 10."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mgpu_helpers import towers
from mgpu_helpers.pipeline.schedule import check, one_by_one, run_times
from mgpu_helpers.pipeline.stream import stream
from mgpu_helpers.towers.split import HOST
from mgpu_helpers.wording import counted, error_line

# What Python, Keras and TensorFlow raise where a function is given something that does not fit.
_MISFITS = (ValueError, TypeError, AttributeError, LookupError)


@dataclass(frozen=True)
class Stage:
    """A part of a model: where it is, what it makes of (weights, x), and its weights by name.

    x is what the stage before it made: a tensor, or a structure of several. `state` are variables
    that a step changes without a gradient, such as moving averages. A function of a stage with
    state finds it among the weights and gives `Made`.
    """

    device: str
    function: Callable[[Mapping[str, Any], Any], Any] = field(repr=False)
    weights: Mapping[str, Any] = field(repr=False)
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Made:
    """What a stage made of a piece: outputs, new values of its state, and losses to add."""

    outputs: Any
    state: Mapping[str, Any] = field(default_factory=dict)
    losses: Sequence[Any] = ()


def _in_pieces(
    stages: Sequence[Stage],
    loss: Callable[[Any, Any], Any],
    xs: Sequence[Any],
    ys: Sequence[Any],
    shares: Sequence[Any],
    order: Sequence[tuple[int, str]],
    work_on: Callable[[str, str], contextlib.AbstractContextManager[None]],
) -> tuple[list[Any], dict[tuple[str, int], Any]]:
    """Give the loss of each piece, and the gradients by weight and stage."""
    import tensorflow as tf

    last, losses = len(stages) - 1, []
    carried = list(xs)  # what each piece takes to its next task
    kept: list[dict[int, Any]] = [{} for _ in stages]
    total: dict[Any, Any] = {}
    for s, task in order:
        stage, k = stages[s], int(task[1:])
        with work_on(stage.device, f"stage_{s}/{task}"):
            if task[0] == "F":
                given = tf.nest.map_structure(tf.identity, carried[k])
                made = stage.function(stage.weights, given)
                if s == last:
                    made = loss(ys[k], made)
                    made *= tf.cast(shares[k], made.dtype)
                    losses.append(made)
                kept[s][k], carried[k] = (given, made), made
            else:
                given, made = kept[s].pop(k)
                wanted = [*stage.weights.values(), *(_real(given) if s else [])]
                gradient = None if s == last else carried[k]
                found = tf.gradients(_real(made), wanted, gradient, unconnected_gradients="zero")
                for name, slope in zip(stage.weights, found):  # noqa: B905 (x has no name)
                    slope = tf.convert_to_tensor(slope)
                    total[name, s] = total[name, s] + slope if (name, s) in total else slope
                carried[k] = found[len(stage.weights) :]
    return losses, total


def _real(values: Any) -> list[Any]:
    """List the tensors of a structure that have gradients: token ids and masks have none."""
    import tensorflow as tf

    return [x for x in tf.nest.flatten(values) if x.dtype.is_floating or x.dtype.is_complex]


def gradients(
    stages: Sequence[Stage],
    loss: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    schedule: Sequence[Sequence[str]] | None = None,
    *,
    uneven: bool = False,
    streams: bool = True,
) -> tuple[Any, dict[str, Any]]:
    """Compute the mean loss of a batch and its gradients by weight, in a graph or a `tf.function`.

    The batch goes through the stages in as many pieces as the schedule has (None: whole).
    `loss(labels, outputs)`, in the order of Keras, is the mean over a piece. It counts by the size
    of the piece, so with uneven=True the last pieces may be smaller.
    Where two stages share a weight, both gradients are added. State is renewed piece by piece, and
    assigned at the end of the step. With streams=False a device does what it can do first, in any
    order.

    >>> double = Stage("/CPU:0", lambda weights, x: weights["w"] * x, {"w": tf.Variable(2.0)})
    >>> step = tf.function(lambda x: gradients([double], lambda _, out: tf.reduce_mean(out), x, x))
    >>> float(step(tf.constant([1.0, 3.0]))[1]["w"])
    2.0
    """
    import tensorflow as tf

    # AutoGraph takes seconds to convert this package, which no tensor decides anything in. What is
    # given here may depend on one, and is converted where the code that gives it is.
    around = tf.__internal__.autograph.control_status_ctx()
    compute = tf.autograph.experimental.do_not_convert(_gradients)
    return compute(stages, loss, x, y, schedule, uneven, streams, around)


def _gradients(
    stages: Sequence[Stage],
    loss: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    schedule: Sequence[Sequence[str]] | None,
    uneven: bool,
    streams: bool,
    around: Any,
) -> tuple[Any, dict[str, Any]]:
    import keras
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(
            "eager code does one operation after the other, so that stages never overlap: call "
            "gradients inside a tf.function or a graph."
        )
    if not callable(loss) or getattr(loss, "reduction", "") == "sum":
        raise TypeError(
            f"loss={loss!r} is not a function that gives a mean: use one of (labels, outputs), or "
            "a Keras loss such as keras.losses.MeanSquaredError()."
        )
    _check_order(loss)
    schedule = one_by_one(len(stages), 1) if schedule is None else schedule
    pieces, where = check(schedule), [stage.device for stage in stages]
    _check_stages(stages, schedule)

    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function and any(
        isinstance(v, keras.Variable) for s in stages for v in {**s.weights, **s.state}.values()
    ):
        raise RuntimeError(
            "the weights of a Keras model live in eager code, not in a graph: call gradients "
            "inside a tf.function."
        )
    queues: dict[str, list[Any]] = defaultdict(list)  # the tasks of each device, in order

    @contextlib.contextmanager
    def work_on(device: str, name: str) -> Iterator[None]:
        before = len(graph.get_operations())
        with tf.device(device), tf.name_scope(name):
            yield
        queues[device].append(graph.get_operations()[before:])

    def as_around(function: Callable[..., Any]) -> Callable[..., Any]:
        return tf.__internal__.autograph.tf_convert(function, around, convert_by_default=False)

    loss = loss if _of_keras(loss) else as_around(loss)
    xs, ys = zip(*towers.split((x, y), pieces, uneven=uneven, into="piece"), strict=True)
    with tf.device(HOST):
        some = tf.nest.flatten((y, x))[0]
        shares = towers.shares(some.shape[0] or tf.shape(some)[0], pieces)
    own: list[Stage] = []
    state: dict[str, Any] = {}
    for s, stage in enumerate(stages):
        with work_on(stage.device, f"stage_{s}"):
            stage = replace(stage, function=as_around(stage.function))
            function = functools.partial(_work, s, stage, state)
            own.append(replace(stage, function=function, weights=towers.read(stage.weights)))
            state |= towers.read({n: v for n, v in stage.state.items() if n not in state})
    before = dict(state)
    order = list(run_times(schedule, devices=where))
    losses, total = _in_pieces(
        own, functools.partial(_mean_loss, loss), [(x, []) for x in xs], ys, shares, order, work_on
    )
    with work_on(where[-1], f"stage_{len(stages) - 1}/loss"):
        mean = tf.add_n(losses)
    _renew(stages, before, state, pieces)
    result: dict[str, Any] = {}
    for name, s in sorted(total, key=lambda key: key[1]):
        with work_on(where[s], f"stage_{s}/shared"):
            sofar = result.get(name)
            result[name] = total[name, s] if sofar is None else sofar + total[name, s]
    for tasks in queues.values() if streams else ():
        stream(tasks)
    return mean, result


def _work(s: int, stage: Stage, state: dict[str, Any], weights: Mapping[str, Any], x: Any) -> Any:
    """Do a stage's work on what came with the losses so far, give both on, and renew the state."""
    import tensorflow as tf

    x, losses = x
    try:
        made = stage.function({**weights, **{name: state[name] for name in stage.state}}, x)
        made = made if isinstance(made, Made) else Made(made)
        outputs = tf.nest.map_structure(tf.convert_to_tensor, made.outputs)
    except _MISFITS as error:
        given = f"what stage {s - 1} gave it" if s else "the batch"
        raise ValueError(
            f"stage {s} failed on {given}, of shape {_shapes(x)}: {error_line(error)}"
        ) from error
    state.update({name: tf.stop_gradient(value) for name, value in made.state.items()})
    losses = [*losses, *made.losses]
    return outputs, losses and [tf.add_n([tf.cast(each, losses[0].dtype) for each in losses])]


def _mean_loss(loss: Callable[[Any, Any], Any], labels: Any, made: Any) -> Any:
    """Add what stages have to add to the loss of a piece, which has to be a single value."""
    import tensorflow as tf

    outputs, losses = made
    try:
        part = tf.convert_to_tensor(loss(labels, outputs))
    except _MISFITS as error:
        raise ValueError(
            f"loss failed on labels of shape {_shapes(labels)} and outputs of shape "
            f"{_shapes(outputs)}: {error_line(error)}"
        ) from error
    if part.shape.rank or not part.dtype.is_floating:
        raise ValueError(
            f"loss gave an array of shape {part.shape} and type {part.dtype.name} for a "
            "micro-batch: return its mean, a single number; of Keras take a loss object."
        )
    return tf.add_n([part, *(tf.cast(each, part.dtype) for each in losses)]) if losses else part


# How people call what a model gives, and what it should have given.
_OUTPUTS = ("y_pred", "y_hat", "outputs", "output", "out", "logits", "scores", "predictions")
_LABELS = ("y_true", "labels", "label", "targets", "target", "truth")


def _check_order(loss: Callable[[Any, Any], Any]) -> None:
    """Refuse a loss whose names say (outputs, labels): most would give a number all the same."""
    with contextlib.suppress(ValueError):  # some functions do not tell their arguments
        first, second, *_ = [*inspect.signature(loss).parameters, "", ""]
        if first in _OUTPUTS or second in _LABELS and first not in _LABELS:
            raise TypeError(
                f"the loss takes ({first}, {second}), and gradients gives it the labels first, as "
                "Keras does: write it as loss(labels, outputs)."
            )


def _of_keras(loss: Any) -> bool:
    """Say whether it is a loss of Keras: an object, or a function of keras.losses."""
    import keras

    own = getattr(loss, "__module__", None) or ""
    return isinstance(loss, keras.losses.Loss) or own.startswith("keras.")


def _renew(
    stages: Sequence[Stage], before: Mapping[str, Any], state: Mapping[str, Any], pieces: int
) -> None:
    """Assign the state that the last piece left, and warn where it depends on the pieces."""
    changed = {name: value for name, value in state.items() if value is not before[name]}
    variables = {name: v for stage in stages for name, v in stage.state.items()}
    for name, value in changed.items():
        variables[name].assign(value)
    averages = [name for name, value in changed.items() if value.dtype.is_floating]
    if pieces > 1 and averages:
        warnings.warn_explicit(  # warn would say it once, and of a line in here
            f"layers such as BatchNormalization see one micro-batch at a time ({averages[0]} and "
            f"{len(averages) - 1} more): with {pieces} pieces their statistics, and so the "
            "gradients, are not those of the whole batch; use 1 piece for the same.",
            UserWarning,
            __name__,
            1,
        )


def _shapes(values: Any) -> str:
    import tensorflow as tf

    return " and ".join(str(x.shape) for x in tf.nest.flatten(values)) or "nothing"


def _check_stages(stages: Sequence[Stage], schedule: Sequence[Sequence[str]]) -> None:
    from mgpu_helpers.devices.plan import checked

    p = len(stages)
    if len(schedule) != p:
        raise ValueError(
            f"a schedule for {counted(len(schedule), 'stage')} does not fit {p}: make one for {p}."
        )
    checked([stage.device for stage in stages])
    owners: dict[str, tuple[int, Any]] = {}
    for s, stage in enumerate(stages):
        for name, weight in stage.weights.items():
            first, same = owners.setdefault(name, (s, weight))
            if weight is not same:
                raise ValueError(
                    f"stages {first} and {s} have different weights under one name, {name!r}: "
                    "give each weight its own, or share one."
                )
