"""Keras on replicas, mended: its losses, statistics, gradients and seeds count examples.

Each mend does something only in a replica of a strategy of `fit`. What Keras does without it:

- It divides each replica's loss by the number of replicas, and a mask's by the replica's own count,
  so an example of a smaller part counts more.
- It clips a replica's gradients before it adds them up, and not their sum.
- A BatchNormalization takes its own replica's statistics, and with a mask even if synchronized.
- Every replica drops out the same places of its part.
- A position embedding's gradient has each row once for each replica, and AdamW squares them.
- A metric that a `train_step` of one's own updates with a loss shows a replica's share of it.
- A number that it keeps, such as the learning rate, is none for `float`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import instead
from mgpu_helpers.fit._asking import GIVES, Refused, check_inside
from mgpu_helpers.fit._kinds import alike, asking, common, is_of_replica, is_sum, now
from mgpu_helpers.fit._rows import APART
from mgpu_helpers.fit.shares import (
    PIECE,
    as_share,
    is_share,
    noted,
    scaled,
    share_of,
    sized,
    strategy_here,
    terms_of,
    unscaled,
)  # fmt: skip
from mgpu_helpers.towers.averages import each_row_once, has_rows_once, same_rows
from mgpu_helpers.towers.shards import like

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
# Whether the metric of an output's loss is updated, and whether replicas add something up.
_of_outputs = contextvars.ContextVar("of_outputs", default=False)
_adding_up = contextvars.ContextVar("adding_up", default=False)
_equal_seeds = False  # of all replicas, each of which is traced in a thread of its own


def where(here: Callable[..., Any]) -> Callable[..., Any]:
    """Make what makes a mend: `does` in place of what Keras has, which it is given first.

    That runs as ever where `here` says no, of what it is called with.
    """

    def decorate(does: Callable[..., Any]) -> Callable[..., Any]:
        def mend(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                if not here(*args, **named):
                    return original(*args, **named)
                return does(original, *args, **named)

            return call

        return mend

    return decorate


on_replicas = where(lambda *_, **__: strategy_here())
everywhere = where(lambda *_, **__: True)


def noting(
    what: contextvars.ContextVar[bool], of: Callable[[Any], Any] = lambda found: found
) -> Callable[..., Any]:
    """Make a mend that lets others know while a method is called, and looks at what it gives."""

    @everywhere
    def mend(has: Any, *args: Any, **named: Any) -> Any:
        with noted(what, True):
            return of(has(*args, **named))

    return mend


@everywhere
def _exchange(has: Any, self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
    """Let a mean of what replicas have count them by their examples, and packs have one type."""
    if not strategy_here():
        return has(self, reduce_op, value, options)
    step, flat = now(), tf.nest.flatten(value)
    if step is not None and step.own and not is_sum(reduce_op):
        if all(tf.is_tensor(each) and each.dtype.is_floating for each in flat):
            reduce_op, flat = "SUM", [scaled(each) for each in flat]
    by_type = defaultdict(list)  # of which TensorFlow puts several into one pack
    for k, each in enumerate(flat):
        by_type[getattr(each, "dtype", None)].append(k)
    for places in by_type.values():
        found = has(self, reduce_op, [flat[k] for k in places], options)
        for k, each in zip(places, found, strict=True):
            flat[k] = each
    return tf.nest.pack_sequence_as(value, flat)


def exchange(has: Callable[..., Any]) -> Callable[..., Any]:
    """Know what all replicas have alike by what they have exchanged."""
    return noting(_adding_up, alike)(_exchange(has))


@on_replicas
def scale(original: Any, value: Any) -> Any:
    """Let a loss count by the replica's share of the examples."""
    if (step := now()) is not None and step.pieces and not _of_outputs.get():
        return value
    return as_share(scaled(value))


@on_replicas
def whole(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Remember that the sum of a model's losses is a share, as each of them is."""
    value = original(self, *args, **named)
    return as_share(value) if value.shape.rank == 0 else value


@on_replicas
def own(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Let a compute_loss of one's own give a replica's share."""
    value = original(self, *args, **named)
    if value.shape.rank != 0:
        raise Refused(
            f"the loss of {self.name} is a number for each example, of which a step shows "
            'something else on replicas: take their mean, as reduction="sum_over_batch_size" does.'
        )
    return share_of(value, f"the compute_loss of {self.name}")


@on_replicas
def additional(original: Any, self: Any, loss: Any) -> Any:
    """Let what a layer adds by `add_loss` count as on one device; a regularizer counts once."""
    if is_share(loss):
        return loss
    if not hasattr(loss, "of_replica"):  # of a regularizer
        return original(self, loss)
    loss = loss if loss.dtype.is_floating else keras.ops.cast(loss, keras.config.floatx())
    return share_of(keras.ops.sum(loss), f"a loss that a layer of {self.name} adds")


@on_replicas
def added(original: Any, self: Any, loss: Any) -> None:
    """Remember of which replica a loss of a layer is: all replicas call the same layer."""
    for each in tf.nest.flatten(loss):
        each.of_replica = _replica()
    original(self, loss)


@on_replicas
def cleared(original: Any, self: Any) -> None:
    """Leave the losses of other replicas, which wait in an exchange and have not read theirs."""
    others = [each for each in _private.losses_kept(self) if not _is_ours(each)]
    original(self)
    _private.losses_kept(self).extend(others)


@on_replicas
def owned(original: Any, self: Any) -> list[Any]:
    """Give the losses that a layer has in this replica."""
    return [each for each in original(self) if _is_ours(each)]


def _replica() -> Any:
    return tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _is_ours(loss: Any) -> bool:
    return bool(getattr(loss, "of_replica", _replica()) == _replica())


@everywhere
def gradient(
    original: Any, self: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """Let a train_step of one's own have the gradients of all examples, as on one device.

    So it may clip them, or add to them. What is no variable has examples of one replica alone.
    """
    variables = (keras.Variable, tf.Variable, tf.distribute.DistributedValues)
    step, targets = now(), tf.nest.flatten(target)
    of_weights = [isinstance(each, variables) for each in tf.nest.flatten(sources)]
    scalars = all(tf.is_tensor(each) and each.shape.rank == 0 for each in targets)
    known = step is None or not step.own or not (scalars or any(of_weights))
    if step is None or known or output_gradients is not None:
        return original(self, target, sources, output_gradients, *args, **named)
    terms = [term for each in targets for term in _sloped(each)]
    targets, slopes = zip(*terms, strict=True)
    found = original(self, [*targets], sources, [*slopes], *args, **named)
    if asking():
        return common(found)
    strategy = strategy_here()
    step.late |= (
        strategy is None or strategy.num_replicas_in_sync == 1 or PIECE.get() is not None
        or step.graph is not None and step.graph is not tf.compat.v1.get_default_graph()
    )  # fmt: skip
    if step.late:
        return found
    flat = tf.nest.flatten(found)
    of_all = iter(_of_all([x for x, ours in zip(flat, of_weights, strict=True) if ours]))
    return tf.nest.pack_sequence_as(found, [
        next(of_all) if ours else x for x, ours in zip(flat, of_weights, strict=True)
    ])  # fmt: skip


def _sloped(target: Any) -> Any:
    """Give what a replica's share of a target's sum is made of, each with its slope."""
    total = target if target.shape.rank == 0 or is_share(target) else tf.reduce_sum(target)
    for x, times in terms_of(total, "a loss whose gradient its step takes"):
        x = target if x is total else x
        yield x, tf.ones_like(x) * tf.cast(times, x.dtype)


@everywhere
def search(original: Any, *args: Any, **named: Any) -> Any:
    """Do not search for variables in what replicas add up, where there are none.

    TensorFlow goes back from the sum through all that the other replicas have computed, for each
    BatchNormalization twice. With MobileNetV2 that was two thirds of the first step.
    """
    return [] if _adding_up.get() else original(*args, **named)


@everywhere
def mean(original: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Let a metric that is updated with a number of the batch show that of all examples."""
    number = tf.is_tensor(values) and values.shape.rank == 0 and values.dtype.is_floating
    share, weight = PIECE.get() if number else None, None
    if strategy_here() and number and not getattr(values, "is_mean_of_replica", False):
        values = unscaled(share_of(values, f"what the metric {self.name} is updated with"))
        weight = scaled(tf.ones([], values.dtype))  # the replicas are one batch
    if share is not None:
        weight = like(share, values) * (1.0 if weight is None else weight)
    return original(self, values, weight if sample_weight is None else sample_weight)


@on_replicas
def unscale(original: Any, value: Any) -> Any:
    """Give the metric of a loss what it shows of all replicas.

    The metric of an output counts a batch by its examples only where its shape says how many.
    """
    return unscaled(value, by_share=sized() or not _of_outputs.get())


@on_replicas
def reduce(
    original: Any, values: Any, sample_weight: Any = None, mask: Any = None,
    reduction: str | None = "sum_over_batch_size", dtype: Any = None,
) -> Any:  # fmt: skip
    """Let a masked loss be divided by what the masks of all replicas leave."""
    value = original(values, sample_weight, mask, reduction, dtype)
    if value.shape == (0,):  # eagerly, of a replica without examples: Keras leaves it as it is
        value = tf.reduce_sum(value)
    shape = tf.TensorShape(getattr(values, "shape", []))  # a function may give Python's 0
    by_example = shape.rank and shape[0] is None and _of_outputs.get()
    if by_example and (step := now()) is not None and step.asking:
        step.exchanged.append((values, GIVES))
    if shape.rank == 0 and reduction in MEANS:  # a function has reduced it already
        return share_of(value, "the number that a loss function gives")
    if reduction not in MEANS or asking() or PIECE.get() is not None:
        return value
    counted = mask
    if reduction == "mean_with_sample_weight":
        counted = _private.weights_of_loss(sample_weight, mask, value.dtype, reduction)
    if counted is None:
        return value
    ours = tf.reduce_sum(tf.cast(counted, value.dtype))
    of_all = tf.distribute.get_replica_context().all_reduce("SUM", ours)
    return as_share(unscaled(value) * tf.math.divide_no_nan(ours, of_all))


@everywhere
def built(original: Any, self: Any, input_shape: Any) -> None:
    """Let a BatchNormalization remember what the strategy in whose scope it is built was asked.

    Averages that replicas keep of their own statistics are one for all, their mean: Keras keeps
    another for each, and `predict` would depend on the replica.
    """
    asked = getattr(tf.distribute.get_strategy(), "synchronized", None)
    add = {} if asked is not False else {
        "add_weight": functools.partial(self.add_weight, aggregation="mean")
    }  # fmt: skip
    with instead(self, **add):
        original(self, input_shape)
    self.of_all_replicas = asked


@everywhere
def moments(original: Any, self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Let a BatchNormalization normalize by the statistics of all replicas, masked or not."""
    strategy = strategy_here()
    asked = getattr(self, "of_all_replicas", None)
    if strategy is None or not (strategy.synchronized if asked is None else asked):
        return alike(original(self, inputs, mask))
    if asking():
        return tuple(common(original(self, inputs, mask)))
    replica = tf.distribute.get_replica_context()
    return _private.moments_of_sums(
        self, inputs, mask, lambda sums: replica.all_reduce("SUM", sums)
    )


@everywhere
def assigned(original: Any, self: Any, value: Any) -> Any:
    """Refuse what a layer or a step keeps of a replica's examples: each would keep another."""
    step = now()
    if step is None or not step.examples or self.synchronization == "on_read":
        return original(self, value)
    several = step.strategy.num_replicas_in_sync > 1 and self.aggregation == "none"
    if several and is_of_replica(value, step):
        raise Refused(
            f"{self.path} is given what a replica computes of its examples, so that each replica "
            "would keep another value: let tf.distribute.get_replica_context()"
            '.all_reduce("SUM", …) make it of all examples before, or take fit.use(model, plan), '
            "by which a step sees whole batches."
        )
    return original(self, value)


@on_replicas
def seeds(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Give each replica seeds of its own, the same ones in every run."""
    seed = original(self, *args, **named)
    if _equal_seeds:
        return seed
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return seed + tf.cast(tf.stack([number * APART, 0]), seed.dtype)


def equal_seeds() -> Any:
    """Give all replicas the seeds of one device in the block."""
    return _private.held(sys.modules[__name__], _equal_seeds=True)


@everywhere
def apply(original: Any, self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Add the replicas' gradients up before an optimizer looks at them.

    One that scales the loss hands on to another what it has added up.
    """
    if (step := now()) is not None and step.asking:
        if not self.built and trainable_variables is not None:
            self.build(trainable_variables)
        if step.pieces:
            step.updated = len(tf.compat.v1.get_default_graph().get_operations())
        if step.pieces and step.own:
            _check_unchanged([*grads], step, self.name)
        return None
    grads = list(grads)
    strategy = strategy_here()
    if strategy and not getattr(self, "gradients_are_sums", False):
        grads = _known(grads, self.name)
    if (inner := getattr(self, "inner_optimizer", None)) is not None:
        inner.gradients_are_sums = strategy is not None
    with _where_its_variables_are(self, strategy):
        return original(self, grads, trainable_variables)


def _where_its_variables_are(optimizer: Any, strategy: Any) -> Any:
    """Let an optimizer whose variables are a worker's own update them as on one machine."""
    copied = isinstance(optimizer.variables[0].value, tf.distribute.DistributedValues)
    if strategy is None or copied or strategy.num_replicas_in_sync == 1:
        return contextlib.nullcontext()
    with tf.Graph().as_default():
        return tf.distribute.get_replica_context()


def _check_unchanged(grads: list[Any], step: Any, name: str) -> None:
    """Refuse gradients that a step has changed: it would change those of each piece."""
    check_inside(step, tf.compat.v1.get_default_graph())
    known = {id(each) for each in step.common}
    flat = tf.nest.flatten(grads, expand_composites=True)
    if any(each is not None and id(each) not in known for each in flat):
        raise ValueError(
            f"the step changes gradients before it gives them to {name}, and would do so with "
            "those of each piece: let the optimizer change their sum, by clipnorm, "
            "global_clipnorm, clipvalue or weight_decay."
        )


def _known(grads: list[Any], name: str) -> list[Any]:
    """Add up what is not yet of all examples of the gradients that an optimizer is given."""
    step = now()
    if step is None or not step.own or step.late:
        return _of_all(grads)
    for each in grads:
        if each is not None and not is_share(each) and is_of_replica(each, step):
            raise Refused(
                f"the step gives {name} a gradient that is made of a replica's examples otherwise "
                "than by a tf.GradientTape, whose gradients are those of all examples: take it by "
                "one outside of loops and of @tf.function, which all replicas share, or take "
                'that of fit.loss(loss, "mean") and say fit.loss(gradient, "sum").'
            )
    of_all = iter(_of_all([each for each in grads if each is not None and is_share(each)]))
    return [next(of_all) if each is not None and is_share(each) else each for each in grads]


def _of_all(grads: list[Any]) -> list[Any]:
    """Add up the gradients of all replicas."""
    there = [_rows(each) for each in grads if each is not None]
    if not there:
        return grads
    context, packs = tf.distribute.get_replica_context(), strategy_here().packs
    of_all = iter(context.all_reduce("SUM", there, packs))
    return alike([None if each is None else _as(each, next(of_all)) for each in grads])


def _rows(gradient: Any) -> Any:
    return gradient.values if same_rows(gradient) else gradient


def _as(gradient: Any, of_all: Any) -> Any:
    """Make a gradient for the same rows of what `_rows` of all replicas add up to."""
    if not same_rows(gradient):
        alone = strategy_here().num_replicas_in_sync == 1
        return of_all if alone or not has_rows_once(gradient) else each_row_once(of_all)
    return tf.IndexedSlices(of_all, gradient.indices, gradient.dense_shape)


@on_replicas
def sum_gradients(original: Any, self: Any, pairs: Any) -> list[Any]:
    """Leave alone what is a sum already."""
    return list(pairs)


MENDS = {
    "scale": scale, "unscale": unscale, "losses": noting(_of_outputs), "reduce": reduce,
    "moments": moments, "built": built, "seeds": seeds, "apply": apply, "apply_scaled": apply,
    "sum": sum_gradients, "whole": whole, "mean": mean, "own": own, "additional": additional,
    "gradient": gradient, "added": added, "owned": owned, "cleared": cleared,
    "all_reduce": exchange, "sums": mean, "all_gather": noting(_adding_up, alike), "search": search,
    "assign": assigned,
}  # fmt: skip
