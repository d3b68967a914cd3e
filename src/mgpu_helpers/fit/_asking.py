"""What a loss that Keras did not make is: a mean over the examples of its part, or a sum over them.

Of Keras's losses the mends know which share of the whole a replica's is. Of any other scalar there
is a graph only. So before the first update it is computed for two parts of a batch and for both
together: the value of a mean lies between those of its parts, a sum is theirs added up. What is
neither is refused, for no number of a replica's own could be right. Nothing is assigned for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._names import of_keras
from mgpu_helpers.fit._kinds import (
    MEAN,
    SUM,
    Kind,
    Step,
    common,
    divided,
    exchanged,
    is_own,
    is_sum,
    made_by,
    made_of,
    tracing,
)  # fmt: skip
from mgpu_helpers.fit.shares import is_share, outputs, part_of, size_of, terms_of

NO_MEAN = "no mean over a batch's examples"
NEITHER = "neither a mean over a batch's examples nor a sum over them"
Ways = dict[str | None, str]
LAST, EACH = "last", "each"  # beside MEAN and SUM: what the last piece gives, for each example one

# How far values may be from each other that are the same, as a share of the largest.
NEAR, NEAR_IN_HALVES = 2e-5, 2e-2
# What a step does with what its replicas give each other.
ADDS, GATHERS = "adds up what is no sum over", "gathers what is not one for each of"
AVERAGES = "averages what is no mean over"
GIVES = "gives an example"  # a loss, whatever others are in the batch


class Refused(_private.Unwrapped):
    """Replicas would compute another number than one device, as a sentence says."""


class Uncomputed(Refused):
    """What is asked could not be computed for the examples that it was asked with."""


class Asked(NamedTuple):
    """A scalar of a step: what it is beside the shares of Keras in it, and its value."""

    what: str
    kinds: set[str]  # what it may be
    values: np.ndarray  # with the weights as they are, and with others
    near: np.ndarray  # how far another value may be from each that is the same
    alone: bool  # it holds no share of Keras, and nothing else that is known


def build_by_step(function: Callable[[Any], Any], specs: Any, strategy: Any) -> None:
    """Make the variables that the first step of a model makes, by tracing it once.

    Keras makes them by the model's call, which a GAN has not.
    """
    made: dict[str, int] = {}

    def named_apart(create: Callable[..., Any], **settings: Any) -> Any:
        """Make a variable of another name than all before, by which TensorFlow keeps them here."""
        name = f"{tf.get_current_name_scope()}/{settings.get('name') or 'Variable'}"
        if (n := made.get(name, 0)) and settings.get("name"):
            settings["name"] += f"_{n}"
        made[name] = n + 1
        return create(**settings)

    def traced(*given: Any) -> Any:
        apart = tf.variable_creator_scope(named_apart)
        with apart, _replica(strategy), tracing(Step(None, True, strategy)):
            function(tf.nest.pack_sequence_as(specs, given))
        return tf.constant(0)

    tf.compat.v1.wrap_function(traced, tf.nest.flatten(specs))


def ask(model: Any, function: Callable[[Any], Any], batch: Any, strategy: Any) -> list[Kind]:
    """Say what each scalar of a step is that Keras did not make, in the step's order."""
    own, metrics = is_own(function), own_metrics(model)
    traced = _Traced(function, batch, Step(None, own, strategy), metrics)
    replica, alone = _asked(traced), _asked(_Traced(function, batch, Step(None, own, strategy)))
    if len(replica) != len(alone):
        raise Refused(
            f"the step has {len(alone)} losses and numbers of its own on one device and "
            f"{len(replica)} in a replica, so that nobody can tell what they are: let it compute "
            "the same on both."
        )
    answers = []
    for each, one in zip(replica, alone, strict=True):
        ways = (1.0, 1 / strategy.num_replicas_in_sync)
        times = [t for t in ways if (abs(each.values - t * one.values) <= each.near).all()]
        kinds = each.kinds & one.kinds
        if not kinds or not times:
            raise Refused(
                f"{each.what} is {NEITHER}, so "
                "the value for the whole batch cannot be put together from those of the replicas. "
                'Say in the step what it is, fit.loss(value, "mean"), fit.loss(value, "sum") or '
                "fit.loss(value, count) for a mean of so many, or take fit.use(model, plan), by "
                "which a loss is computed once, of the whole batch."
            )
        if model.run_eagerly and not each.alone:
            raise Refused(
                f"{each.what} holds a loss of Keras, which cannot be seen without a graph: compile "
                "without run_eagerly=True, or take fit.use(model, plan)."
            )
        answers.append(Kind(MEAN if MEAN in kinds else SUM, times[0]))
    return answers


class _Parts:
    """What stands for a strategy where parts of a batch are computed by one step or one call."""

    of_fit, synchronized, num_replicas_in_sync = True, True, 2


def ask_parts(
    function: Callable[[Any], list[tuple[Any, str, Ways]]], batch: Any, own: bool = False,
    variables: Callable[[], tuple[dict[int, str], set[int]]] | None = None,
) -> list[str]:  # fmt: skip
    """Say how parts of a batch make the values that a function gives of it: the way of each.

    Each is given with what it is and the ways for the kinds that it may be, for None where it is
    not of the batch. Other losses have to be means. own: the function is a step that Keras did not
    make. variables is for pieces: it gives their names by handles, "" where they may be changed,
    and handles of what an optimizer updates.
    """
    step, may, begin = Step(None, own, _Parts(), pieces=True), list[Ways](), 0

    def asked(data: Any) -> None:
        nonlocal begin
        values = function(data)
        begin = len(step.asked)
        may.extend([{MEAN: MEAN}] * begin)
        for x, what, ways in values:
            before = len(step.asked)
            if x.dtype.is_floating and not x.shape.rank:
                terms_of(x, what)
            else:
                step.kind(number := _number(x), number, what, True)
            if len(step.asked) == before:  # it is a mean, as was said or asked before
                step.kind(number := tf.zeros([]), number, what, True)
                ways = {MEAN: MEAN}
            may.append(ways)

    traced = _Traced(asked, batch, step)
    if variables is not None:
        _check_variables(traced, *variables())
    answers = []
    for each, of_batch, ways in zip(_asked(traced), traced.of_batch, may, strict=True):
        found = [way for kind, way in ways.items()
                 if kind in each.kinds and (each.alone or kind == MEAN)]  # fmt: skip
        if None in ways and each.alone and not of_batch:
            found = [ways[None]]
        if not found:
            raise Refused(
                f"{each.what} is {NEITHER if SUM in ways else NO_MEAN}, "
                "and so not made of what is computed of parts of a batch: let a step without "
                "pieces or compute_loss make it of the whole batch, a metric of the model keep it, "
                'or say what a loss is, fit.loss(value, "mean") or fit.loss(value, "sum").'
            )
        answers.append(found[0])
    return answers[begin:]


def _check_variables(traced: _Traced, names: dict[int, str], updated: set[int]) -> None:
    """Refuse a step that changes in each piece what is to be changed once, or would read it."""
    graph = traced.wrapped.graph
    ops, handles = graph.get_operations(), {id(x): id(handle) for handle, x in graph.captures}
    for op in ops:
        if op.type.startswith("Assign") and (handle := handles.get(id(op.inputs[0]))) is not None:
            if name := names.get(handle, "a tf.Variable"):
                raise Refused(
                    f"the step or a layer changes {name}, and would do so for each piece of a "
                    "batch: do it in a keras.callbacks.Callback, by on_train_batch_end, let a "
                    "metric of the model keep a sum, or take no pieces."
                )
    first = traced.step.updated
    reads = [op for op in ops[first:] if op.type == "ReadVariableOp"]
    if first is not None and any(handles.get(id(op.inputs[0])) in updated for op in reads):
        raise Refused(
            "the step reads weights, or how often they were updated, after it has updated them, "
            "and pieces of a batch do so when the last one is done: read them before, or in a "
            "keras.callbacks.Callback."
        )


def _number(x: Any) -> Any:
    """Make one number of many, which shows whether each of them is a mean or a sum."""
    if not (x.dtype.is_floating or x.dtype.is_integer):
        return tf.zeros([])
    weights = 1 + _noise(x.shape) if x.shape.is_fully_defined() else 1.0
    return tf.reduce_sum(tf.cast(x, tf.float64) * weights)


class _Traced:
    """A step that was traced for batches of any size, of which a part can be computed.

    With the metrics of one's own it is that of a replica, else that of one device.
    """

    def __init__(self, function: Any, batch: Any, step: Step, metrics: Any = None) -> None:
        batch = tf.nest.map_structure(
            lambda x: tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x, batch
        )
        self.step, self.batch, self.size = step, batch, int(size_of(batch))
        leaves = tf.nest.flatten(batch, expand_composites=True)
        self.tensors = [k for k, x in enumerate(leaves) if tf.is_tensor(x)]  # beside None
        self.first = max(1, self.size * 2 // 5)  # examples of the first part

        def traced(*given: Any) -> Any:
            for k, x in zip(self.tensors, given, strict=True):
                leaves[k] = x
            data = tf.nest.pack_sequence_as(batch, leaves, expand_composites=True)
            with _alone(step) if metrics is None else _replica(step.strategy), tracing(step):
                given = function(data)
                if not step.pieces:
                    outputs(given)
            return tf.constant(0)

        specs = [tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype)
                 for x in self.examples(0, self.size)]  # fmt: skip
        self.wrapped = tf.compat.v1.wrap_function(traced, specs)
        graph = self.wrapped.graph
        check_inside(step, graph)
        self.inputs = graph.inputs[: len(specs)]
        self.floating = [op for op in graph.get_operations()
                         if op.outputs and op.outputs[0].dtype.is_floating]  # fmt: skip
        self.reads = [op.outputs[0] for op in self.floating
                      if op.type == "ReadVariableOp" and not op.control_inputs]  # fmt: skip
        draws = [op.outputs[0] for op in self.floating if op.type.startswith("StatelessRandom")]
        self.by_example = {id(x) for x in draws if x.shape.rank and x.shape[0] is None}
        self.states = [*_states(graph, metrics or [], step.strategy)]
        batch_ops = {x.op for x in self.inputs}
        # Not those of variables alone, such as the result of a metric, which workers exchange.
        self.of_batch = [made_by(rest, batch_ops) for rest, *_ in step.asked]
        with graph.as_default():
            pairs = zip(step.asked, self.of_batch, strict=True)
            self.scalars = [tf.cast(x if of_batch else 0, tf.float64)
                            for each, of_batch in pairs for x in each[:2]]  # fmt: skip
        self.exchanged = [(x, how) for x, how in step.exchanged
                          if x.graph is graph and made_by(x, batch_ops)]  # fmt: skip
        wanted = [*self.scalars, *(x for _, x, _ in self.states), *(x for x, _ in self.exchanged)]
        makers = {op for x in wanted for op in made_of(x)}  # of gradients mostly nothing is
        shared = {id(x): x for x in [*step.common, *draws] if x.graph is graph and x.op in makers}
        self.shared = [*shared.values()]
        # What divides a loss is no number of a batch where it is Keras's, or all examples' own.
        means = [one for one, _ in step.shares if is_share(one)]
        self.known = [*step.common, *means, *(inside for _, inside in graph.captures)]

    def examples(self, begin: int, end: int) -> list[Any]:
        """Give the tensors of some of the batch's examples."""
        leaves = tf.nest.flatten(part_of(self.batch, begin, end), expand_composites=True)
        return [leaves[k] for k in self.tensors]

    def run(self, feeds: list[Any], fetches: Any, given: list[Any]) -> Any:
        """Compute some tensors from others, and assign nothing."""
        part = self.wrapped.prune(feeds, fetches)
        if any(op.type.startswith("Assign") for op in part.graph.get_operations()):
            raise Refused(f"{self.step.asked[0][2]} is made of what its step has just assigned.")
        return part(*given)

    def of_parts(self, weights: list[Any]) -> tuple[np.ndarray, list[Any]]:
        """Give scalars, and what else is judged, of the first part, of the other one, and both."""
        feeds = [*self.inputs, *self.reads[: len(weights)]]
        states = [state for _, state, _ in self.states]
        wanted = [*self.scalars, *states, *(x for x, _ in self.exchanged)]
        whole = [*self.examples(0, self.size), *weights]
        both, shared = self.run(feeds, [wanted, self.shared], whole)
        found = []
        for begin, end in ((0, self.first), (self.first, self.size)):
            own = [value[begin:end] if id(x) in self.by_example else value
                   for x, value in zip(self.shared, shared, strict=True)]  # fmt: skip
            given = [*self.examples(begin, end), *weights, *own]
            found.append(self.run([*feeds, *self.shared], wanted, given))
        n = len(self.scalars)
        parts = [*found, both]
        return np.array([values[:n] for values in parts], float), [values[n:] for values in parts]


def check_inside(step: Step, graph: Any) -> None:
    """Raise where something that is asked is in another graph than the step."""
    if strangers := [what for value, _, what, _ in step.asked if value.graph is not graph]:
        raise Refused(
            f"{strangers[0]} is made within a loop, a branch or a @tf.function, where nobody can "
            "compute it for parts of a batch: make it outside. Keras makes one tf.function of the "
            "whole step."
        )


def _asked(traced: _Traced) -> list[Asked]:
    """Compute the scalars of a step for two parts of a batch and for both, and judge them."""
    step, first, size = traced.step, traced.first, traced.size
    if not step.asked and not traced.states and not traced.exchanged:
        return []
    halves = {tf.float16, tf.bfloat16} & {op.outputs[0].dtype for op in traced.floating}
    tolerance = NEAR_IN_HALVES if halves else NEAR
    try:
        # What is 0 with these weights, or the same by chance, may be another number with others.
        values = traced.run(traced.inputs, traced.reads, traced.examples(0, size))
        now, states = traced.of_parts([])
        for part in (8, 64, 512, 4096):  # of the numbers of an exponential none might be left
            others = [x + tf.cast(_noise(x.shape), x.dtype) / part for x in values]
            found = np.stack([now, traced.of_parts(others)[0]])  # by weights, part and scalar
            if not (np.isfinite(now) & ~np.isfinite(found[1])).any():
                break
    except tf.errors.OpError as error:
        raise Uncomputed(
            f"the losses of the step could not be computed for {first} and for {size - first} of "
            f"{size} examples: {error.message.splitlines()[0]}. Say in the step what they are, "
            "by fit.loss."
        ) from error
    n = len(traced.states)
    for (_, how), *parts in zip(traced.exchanged, *(each[n:] for each in states), strict=True):
        a, b, both = map(np.asarray, parts)
        if how in (GATHERS, GIVES):
            of_all = np.concatenate([a, b])
        else:
            of_all = a + b if how == ADDS else (first * a + (size - first) * b) / size
        if of_all.shape != both.shape or not _near(of_all, both, tolerance):
            if how == GIVES:
                raise Refused(
                    "what the model or a loss of compile gives for an example depends on the "
                    "others of the batch, of which a part of it has not all: where it is the loss, "
                    "take fit.use(model, plan), by which losses are computed of the whole batch."
                )
            raise Refused(
                f"with all_{'gather' if how == GATHERS else 'reduce'} the step {how} the batch's "
                "examples, so that replicas get another number than one device: give all_reduce a "
                '"SUM" of sums or a "MEAN" of means over examples. What is only to be shown needs '
                "none: return it, or give it to a metric, and fit makes one number of it."
            )
    states = [each[:n] for each in states]
    for (name, _, before), *parts in zip(traced.states, *states, strict=True):
        a, b, both = (np.asarray(part, float) - before for part in parts)
        if not np.allclose(a + b, both, tolerance, tolerance):
            raise Refused(
                f"the metric {name} keeps more than sums over examples, so that what the replicas "
                "keep cannot be added up to what one device keeps: take fit.use(model, plan), by "
                "which metrics see whole batches, or leave it out."
            )
    answers = []
    for i, (_, value, what, alone) in enumerate(step.asked):
        a, b, both = found[..., 2 * i].T
        near = tolerance * abs(found[..., 2 * i : 2 * i + 2]).max((1, 2))
        kinds = {MEAN: (first * a + (size - first) * b) / size, SUM: a + b}
        fitting = {kind for kind, wanted in kinds.items() if (abs(wanted - both) <= near).all()}
        if not traced.of_batch[i]:
            fitting = {MEAN}
        elif divided(value, traced.known):  # in this batch it may be a mean by chance
            fitting = set()
        answers.append(Asked(what, fitting, both, near, alone))
    return answers


def _near(a: Any, b: Any, tolerance: float) -> bool:
    if a.dtype.kind in "OSU":  # words
        return bool((a == b).all())
    return np.allclose(a.astype(float), b.astype(float), tolerance, tolerance, equal_nan=True)


def own_losses(model: Any) -> bool:
    """Say whether a loss of compile may give another number than one for each example, or both."""
    each_loss = keras.tree.flatten(getattr(model, "loss", None))
    for each in each_loss:
        if isinstance(each, keras.losses.Loss) and not of_keras(type(each).__call__):
            raise Refused(
                f"the loss {each.name} has a __call__ of its own, and Keras knows nothing of what "
                "it gives for a part of a batch: compile with a function, lambda y, p: loss(y, p)."
            )
    return any(map(may_be_no_mean, each_loss))


def may_be_no_mean(loss: Any) -> bool:
    """Say whether a loss or a metric may give one number, and not one for each example."""
    if isinstance(loss, str) or of_keras(type(loss)):
        return getattr(loss, "name", loss) in ("dice", "tversky")
    return loss is not None and not of_keras(loss)


def own_metrics(model: Any) -> list[Any]:
    """List the metrics of a model whose updates are not Keras's."""
    every = list(model.metrics)
    for each in every:
        every += getattr(each, "metrics", [])
    return [each for each in every if isinstance(each, keras.Metric)
            and not of_keras(type(each).update_state)]  # fmt: skip


def _states(graph: Any, metrics: list[Any], strategy: Any) -> Iterator[tuple[str, Any, Any]]:
    """Give the name of a metric, what a variable of it becomes in a graph, and what it was."""
    inside = {id(outside): tensor for outside, tensor in graph.captures}
    for metric in metrics:
        for variable in metric.variables:
            one = strategy.experimental_local_results(variable.value)[0]
            handle = inside.get(id(one.handle))
            for op in graph.get_operations():
                if op.type.startswith("Assign") and op.inputs[0] is handle:
                    adds = op.type == "AssignAddVariableOp"
                    yield metric.name, op.inputs[1], 0 if adds else one.numpy()


def _noise(shape: Any) -> np.ndarray:
    return np.random.default_rng(0).random(tuple(shape))


@contextlib.contextmanager
def _replica(strategy: Any) -> Iterator[None]:
    """Trace what a replica computes, where what it asks of the others is what it has itself."""
    with strategy.scope(), _exchanging(strategy, common):
        yield


def _alone(step: Step) -> Any:
    """Trace what one device computes, in a scope of a strategy or where one is the default, too."""
    with tf.Graph().as_default():
        context = tf.distribute.get_replica_context()
    # A piece of a batch has nothing in common with the others.
    return context if step.pieces else _exchanging(context.strategy, lambda mean: mean)


def _exchanging(strategy: Any, of_means: Callable[[Any], Any]) -> Any:
    """Make the context of a replica that knows what is the whole batch's in what it computes."""
    class Replica(tf.distribute.ReplicaContext):
        def all_reduce(self, op: Any, value: Any, options: Any = None) -> Any:
            return exchanged(value, ADDS if is_sum(op) else AVERAGES)

        def all_gather(self, value: Any, axis: Any, options: Any = None) -> Any:
            return exchanged(value, GATHERS) if axis == 0 else of_means(value)

    return Replica(strategy, 0)
