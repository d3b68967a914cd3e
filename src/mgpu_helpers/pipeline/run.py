"""A batch in pieces through the stages of a model, and its update: the pipeline of lesson 14."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mgpu_helpers import _private, towers
from mgpu_helpers._formatting import error_line
from mgpu_helpers._train import HOST, home_of, read
from mgpu_helpers.pipeline.schedule import one_by_one, run_times
from mgpu_helpers.pipeline.tasks import stream
from mgpu_helpers.towers.shards import rows, shares


@dataclass(frozen=True)
class Stage:
    """A part of a model: where it is, what it makes of (weights, x), and its weights by name.

    x is what the stage before it made: a tensor, or a structure of several. `state` are variables
    that a step changes without a gradient, such as moving averages. A function of a stage with
    state finds it among the weights and gives `Made`, of `mgpu_helpers.pipeline.run`.
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


def gradients(
    stages: Sequence[Stage],
    loss: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    schedule: Sequence[Sequence[str]] | None = None,
    *,
    uneven: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """Compute the mean loss of a batch and its gradients by weight, in a graph or a `tf.function`.

    The batch goes through the stages in as many pieces as the schedule has (None: whole), and each
    device does its tasks in that order.
    `loss(labels, outputs)`, in the order of Keras, is the mean over a piece. It counts by the size
    of the piece, so with uneven=True the last pieces may be smaller.
    Where two stages share a weight, both gradients are added. State is renewed piece by piece, and
    assigned at the end of the step.

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
    return compute(around, stages, loss, x, y, schedule, uneven)


def _gradients(
    around: Any, stages: Sequence[Stage], loss: Any, x: Any, y: Any, schedule: Any, uneven: bool
) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    from mgpu_helpers.devices.plan import checked

    graph, last = tf.compat.v1.get_default_graph(), len(stages) - 1
    where = checked([stage.device for stage in stages])
    _check(stages, loss, graph)
    schedule = one_by_one(len(stages), 1) if schedule is None else schedule
    if len(schedule) != len(stages):
        raise ValueError(f"a schedule for {len(schedule)} does not fit {len(stages)} stages.")
    order, pieces = list(run_times(schedule, devices=where)), len(schedule[0]) // 2
    queues: dict[str, list[Any]] = defaultdict(list)  # the tasks of each device, in order

    @contextlib.contextmanager
    def work_on(s: int, name: str) -> Iterator[None]:
        before = len(graph.get_operations())
        with tf.device(where[s]), tf.name_scope(f"stage_{s}{name}"):
            yield
        queues[where[s]].append(graph.get_operations()[before:])

    def as_around(function: Callable[..., Any]) -> Callable[..., Any]:
        return tf.__internal__.autograph.tf_convert(function, around, convert_by_default=False)

    loss = loss if _of_keras(loss) else as_around(loss)
    xs, ys = zip(*towers.split((x, y), pieces, uneven=uneven, into="piece"), strict=True)
    with tf.device(HOST):
        held = shares(rows(tf.nest.flatten((y, x))[0]), pieces)
    state: dict[str, Any] = {}
    own: list[Stage] = []
    for s, stage in enumerate(stages):
        with work_on(s, ""):
            function = as_around(stage.function)
            own.append(replace(stage, function=function, weights=read(stage.weights)))
            state |= read({n: v for n, v in stage.state.items() if n not in state})
    before = dict(state)

    carried: list[Any] = [(x, []) for x in xs]  # what each piece takes to its next task
    kept: list[dict[int, Any]] = [{} for _ in stages]
    losses: list[Any] = []
    total: dict[Any, Any] = {}
    for s, task in order:
        stage, k = own[s], int(task[1:])
        with work_on(s, f"/{task}"):
            if task[0] == "F":
                given = tf.nest.map_structure(tf.identity, carried[k])
                made = _forward(s, stage, state, given)
                if s == last:
                    made = _mean_loss(loss, ys[k], made)
                    made *= tf.cast(held[k], made.dtype)
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
    with work_on(last, "/loss"):
        mean = tf.add_n(losses)
    _renew(stages, before, state, pieces)
    result: dict[str, Any] = {}
    for name, s in sorted(total, key=lambda key: key[1]):
        with work_on(s, "/shared"):
            sofar = result.get(name)
            result[name] = total[name, s] if sofar is None else sofar + total[name, s]
    for tasks in queues.values():
        stream(tasks)
    return mean, result


def _real(values: Any) -> list[Any]:
    """List the tensors of a structure that have gradients: token ids and masks have none."""
    import tensorflow as tf

    return [x for x in tf.nest.flatten(values) if x.dtype.is_floating or x.dtype.is_complex]


def _forward(s: int, stage: Stage, state: dict[str, Any], x: Any) -> Any:
    """Do a stage's work on what came with the losses so far, give both on, and renew the state."""
    import tensorflow as tf

    x, losses = x
    given = f"what stage {s - 1} gave it" if s else "the batch"
    with _explained(f"stage {s} failed on {given}", x):
        made = stage.function({**stage.weights, **{name: state[name] for name in stage.state}}, x)
        made = made if isinstance(made, Made) else Made(made)
        outputs = tf.nest.map_structure(tf.convert_to_tensor, made.outputs)
    state.update({name: tf.stop_gradient(value) for name, value in made.state.items()})
    losses = [*losses, *made.losses]
    return outputs, losses and [tf.add_n([tf.cast(each, losses[0].dtype) for each in losses])]


def _mean_loss(loss: Callable[[Any, Any], Any], labels: Any, made: Any) -> Any:
    """Add what stages have to add to the loss of a piece, which has to be a single value."""
    import tensorflow as tf

    outputs, losses = made
    with _explained("loss failed on labels and outputs", (labels, outputs)):
        part = tf.convert_to_tensor(loss(labels, outputs))
        if part.shape.rank:  # the gradient would be that of its sum, and nothing would say so
            raise ValueError("it gave one number for each example: return their mean")
    return tf.add_n([part, *(tf.cast(each, part.dtype) for each in losses)])


@contextlib.contextmanager
def _explained(what: str, given: Any) -> Iterator[None]:
    """Say of an error in the block where it was, and on what."""
    import tensorflow as tf

    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        shapes = " and ".join(str(x.shape) for x in tf.nest.flatten(given)) or "nothing"
        raise ValueError(f"{what}, of shape {shapes}: {error_line(error)}") from error


# How people call what a model gives, and what it should have given.
_OUTPUTS = ("y_pred", "y_hat", "outputs", "output", "out", "logits", "scores", "predictions")
_LABELS = ("y_true", "labels", "label", "targets", "target", "truth")


def _check(stages: Sequence[Stage], loss: Callable[[Any, Any], Any], graph: Any) -> None:
    """Refuse what would give other gradients without a word, or an error that points elsewhere."""
    import keras
    import tensorflow as tf

    used = [v for stage in stages for v in (*stage.weights.values(), *stage.state.values())]
    of_keras = not graph.building_function and any(isinstance(v, keras.Variable) for v in used)
    if tf.executing_eagerly() or of_keras:
        raise RuntimeError(
            "eager code does one operation after the other, so that stages never overlap, and the "
            "weights of a Keras model are in no graph: call gradients inside a tf.function."
        )
    if getattr(loss, "reduction", "") == "sum":
        raise TypeError(f"{loss!r} gives a sum, and pieces need a mean: 'sum_over_batch_size'.")
    with contextlib.suppress(ValueError):  # some functions do not tell their arguments
        first, second, *_ = [*inspect.signature(loss).parameters, "", ""]
        if first in _OUTPUTS or second in _LABELS and first not in _LABELS:
            raise TypeError(
                f"the loss takes ({first}, {second}), and gradients gives it the labels first, as "
                "Keras does: write it as loss(labels, outputs)."
            )
    owners: dict[str, tuple[int, Any]] = {}
    for s, stage in enumerate(stages):
        for name, weight in stage.weights.items():
            first_stage, same = owners.setdefault(name, (s, weight))
            if weight is not same:
                raise ValueError(
                    f"stages {first_stage} and {s} have different weights under one name, "
                    f"{name!r}: give each weight its own, or share one."
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


def updater(stages: Sequence[Stage], optimizer: Any) -> Callable[[Mapping[str, Any]], None]:
    """Make update(gradients), which trains the weights of stages by what `gradients` found.

    Each stage gets an optimizer of its own, like the given one, and on the device of its weights:
    so neither weights nor gradients cross. What comes out is, to rounding, what the given one would
    make of all weights, also with `global_clipnorm`. A weight that stages share is the first one's.

    optimizer is a name or an object that has not trained yet. It is not used itself:
    `update.optimizers` are those that are, to be saved, or to have their learning rate changed. A
    `LossScaleOptimizer` is refused, as no loss is scaled: of mixed_float16 give its
    `inner_optimizer`, or train in mixed_bfloat16.

    >>> double = Stage("/CPU:0", lambda weights, x: weights["w"] * x, {"w": tf.Variable(2.0)})
    >>> update = updater([double], "sgd")
    >>> update({"w": tf.constant(10.0)})
    >>> round(float(double.weights["w"]), 3), len(update.optimizers)
    (1.9, 1)
    """
    import keras
    import tensorflow as tf

    given = keras.optimizers.get(optimizer)
    if problem := _unlike(given):
        raise ValueError(f"{given.name} {problem}.")
    own: list[tuple[Any, str, Mapping[str, Any]]] = []  # optimizer, place, weights
    known: set[str] = set()
    for stage in stages:
        weights = {name: w for name, w in stage.weights.items() if name not in known}
        known |= weights.keys()
        if weights:
            place = home_of(list(weights.values()))
            with tf.device(place):
                made = type(given).from_config({**given.get_config(), "global_clipnorm": None})
                _private.exclude_as(given, made)
                made.build(list(weights.values()))
            own.append((made, place, weights))

    def update(gradients: Mapping[str, Any]) -> None:
        scale = _clip(gradients, own, given.global_clipnorm) if given.global_clipnorm else None
        for made, place, weights in own:
            with tf.device(place):
                slopes = [gradients[name] for name in weights]
                if scale is not None:
                    slopes = [slope * tf.cast(scale, slope.dtype) for slope in slopes]
                made.apply(slopes, list(weights.values()))

    vars(update)["optimizers"] = [made for made, *_ in own]
    return update


def _unlike(given: Any) -> str:
    """Say why copies of an optimizer would not do what it does: they have its settings only."""
    import keras

    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        return (
            "scales a loss, and a pipeline does not: give its inner_optimizer, or train in "
            "mixed_bfloat16, which needs no scale"
        )
    if steps := int(given.iterations.numpy()):
        return f"has trained {steps} steps: give a new one, and restore update.optimizers"
    if given.global_clipnorm and (steps := given.gradient_accumulation_steps):
        return f"accumulates {steps} steps, and stages clip each step to a global norm: leave one"
    return ""


def _clip(gradients: Mapping[str, Any], own: Sequence[Any], most: float) -> Any:
    """Give by how much Keras would scale all gradients; only a number of each stage crosses."""
    import tensorflow as tf

    squares = []
    for _, place, weights in own:
        with tf.device(place):
            each = [tf.reduce_sum(tf.square(gradients[name])) for name in weights]
            squares.append(tf.cast(tf.add_n(each), tf.float64))
    with tf.device(HOST):
        norm = tf.sqrt(tf.add_n(squares))
        return most / tf.maximum(norm, most) + (norm - norm)  # what is not finite stays so
