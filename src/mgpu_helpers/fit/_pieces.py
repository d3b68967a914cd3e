"""A batch in pieces, within Keras's `fit`: the memory of one piece, the update of all.

The model's own train_step runs on each piece, and the optimizer updates once, by the sum of what
the pieces give. Without stages one piece follows the other in a loop. With stages the pieces stand
side by side in the graph, and each device does its tasks in the order of a schedule.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import graph_of, instead, takes_training
from mgpu_helpers._names import of_keras
from mgpu_helpers.fit._asking import LAST, Ways, ask_parts, may_be_no_mean, own_losses
from mgpu_helpers.fit._kinds import MEAN, SUM, is_own
from mgpu_helpers.fit._means import mean_of
from mgpu_helpers.fit._order import STEP, Order, added_now
from mgpu_helpers.fit._placing import build_optimizers, placing
from mgpu_helpers.fit._recompute import check_assigned
from mgpu_helpers.fit._rows import on
from mgpu_helpers.fit._segments import kept_as_known, normalizes
from mgpu_helpers.fit.layout import SCHEDULES
from mgpu_helpers.fit.shares import as_part, noted, of_workers, part_of, scaled, workers_here
from mgpu_helpers.fit.trainer import by_few, in_force
from mgpu_helpers.towers.averages import each_row_once, has_rows_once, same_rows, times, total
from mgpu_helpers.towers.shards import like, rows


class Pieces:
    """The step of a model that takes its batch in pieces, and what asks whether it can."""

    def __init__(self, laid: Any) -> None:
        self.laid, self.model, self.count = laid, laid.model, laid.layout.pieces
        self.original, self.sums, self.known = laid.step, _Sums(), False
        self.ways: list[str] = []  # of what the step gives; else the last piece's
        self.by_step = not laid.layout.staged or laid.layout.schedule == SCHEDULES[0]
        if self.by_step and self.model.compiled:
            self._check_optimizers()

    def _check_optimizers(self) -> None:
        own = vars(self.model).values()
        several = {id(x) for x in own if isinstance(x, keras.optimizers.Optimizer)}
        if len(several) > 1:
            raise ValueError(
                f"the model {self.model.name!r} has {len(several)} optimizers, and one may need "
                "what the other has done: pieces are for a model with one."
            )

    def step(self, data: Any) -> Any:
        """Train the model once with a batch."""
        if not self.known:
            if is_own(self.original) and self.model.distribute_strategy.num_replicas_in_sync > 1:
                raise ValueError(
                    f"the train_step of {self.model.name!r} is one of your own, which replicas "
                    "cannot take in pieces: make the model outside of the scope and take "
                    f"fit.use(model, plan, pieces={self.count}), which shares each piece."
                )
            self.known = True
            if self._needed():
                by_few(self._ask, data)
        if not self.by_step:
            return self.original(data)
        batch = _Batch(self, data)
        return batch.side_by_side() if self.laid.layout.staged else batch.in_a_loop()

    def _needed(self) -> bool:
        """Say whether somebody else than Keras may have made a loss, or may give a number."""
        given = _private.compiled_with(self.model) if self.model.compiled else {}
        metrics = [given.get(name) for name in ("metrics", "weighted_metrics")]
        return self.by_step and (
            own_losses(self.model) or is_own(self.original) or is_own(self.model.compute_loss)
            or any(map(may_be_no_mean, keras.tree.flatten(metrics))) or self.laid.has_own
        )  # fmt: skip

    def _ask(self, few: Any) -> None:
        """Find out by a few examples whether losses that Keras did not make are means.

        Stages can take the pieces within one call as well, and one loss of the whole batch.
        """
        with self.model.distribute_strategy.scope():
            build_optimizers(self.model)  # where the weights lie
        try:
            self.ways = ask_parts(self._given, few, is_own(self.original), self._names)
        except ValueError as error:
            if not self.laid.layout.staged:
                raise
            self.by_step = False
            warnings.warn(
                f"all pieces of {self.model.name!r} go forward before the first goes back, and the "
                f"stages hold all of them: {error}",
                stacklevel=2,
            )

    def _given(self, data: Any) -> list[tuple[Any, str, Ways]]:
        """Run the step, and say what it may give."""
        given = []
        for path, x in keras.tree.flatten_with_path(self.original(data)):
            x, ways = tf.convert_to_tensor(x), Ways({None: LAST})
            if x.shape.is_fully_defined():
                ways |= {MEAN: MEAN, SUM: SUM} if x.dtype.is_floating else {SUM: SUM}
            given.append((x, f"{'/'.join(map(str, path))} of what its step gives", ways))
        return given

    def _names(self) -> tuple[dict[int, str], set[int]]:
        """Name variables by the `id` of their handles, "" where pieces may change them; updated."""
        model, metrics = self.model, self.model.metrics_variables
        local = model.distribute_strategy.experimental_local_results
        known = kept_as_known(model) | {id(v) for v in metrics}
        names = {id(one.handle): "" if id(v) in known else v.path
                 for v in [*model.variables, *metrics] for one in local(v.value)}  # fmt: skip
        updated = [*model.trainable_variables, getattr(model.optimizer, "iterations", None)]
        return names, {id(one.handle) for v in updated if v is not None for one in local(v.value)}

    def make_train_function(self, force: bool = False) -> Any:
        """Make the function that `fit` calls, which asks in its first step."""
        self._check_optimizers()
        self.known = False  # it may be compiled with another loss
        return self.laid.make("make_train_function", force)


def warn_of_normalizing(model: Any) -> None:
    """Warn the caller's caller of layers that see a piece, where on one device they see a batch."""
    if names := [layer.name for layer in _private.layers_of(model) if normalizes(layer)]:
        warnings.warn(
            f"{names[0]} in {model.name} normalizes by the statistics of a piece, not of the "
            "batch, so that the weights are not those of the whole batch.",
            stacklevel=4,
        )


class _Given(NamedTuple):
    """What the train_step gives for a piece, its gradients by weight, and the scope it ran in."""

    logs: Any
    slopes: list[tuple[Any, Any]]
    scope: Any


class _Batch:
    """A batch that is trained with in pieces."""

    def __init__(self, pieces: Pieces, data: Any) -> None:
        self.pieces, self.model, self.data = pieces, pieces.model, data
        if self.model.distribute_strategy.num_replicas_in_sync == 1:  # fit has built the replicas'
            build_optimizers(self.model)
            _private.build(self.model, data)
        self.leaves = keras.tree.flatten(data)
        leaves = enumerate(self.leaves)
        self.batches = {k for k, x in leaves if tf.is_tensor(x) and x.shape.rank != 0}
        self.size = rows(self.leaves[min(self.batches)])
        self.fixed = not tf.is_tensor(self.size)
        self.totals = {  # of all replicas; a share of them, as the piece's mean becomes one
            k: scaled(of_workers(tf.cast(count, "float64")))
            if workers_here() > 1 and tf.is_tensor(count) else count
            for k, count in _totals(self.model, data).items()
        }
        self.weights = self.model.trainable_variables
        self.apart = bool(pieces.laid.layout.devices)  # gradients are added up where weights lie

    def take(self, start: Any, length: Any, known: int | None, state: Any, share: Any) -> _Given:
        """Run the train_step on some examples, with the state that the pieces before have left."""
        own = [*self.leaves]
        for k in self.batches:
            own[k] = _some_rows(self.leaves[k], start, length, known)
        counts = share * self.size if self.fixed else share
        scope = keras.StatelessScope(state, collect_losses=True)
        for weight in self.weights:  # where regularizers look; a tape knows it as a variable only
            scope.add_update((weight, weight.value))
        keep = scope.add_update

        def add_update(update: tuple[Any, Any]) -> None:
            check_assigned(update[0])
            keep(update)

        scope.add_update = add_update

        with (
            scope, _recorded(self.model) as slopes, as_part(share), in_force(),
            _private.losses_as(
                self.model, lambda k, loss: _shared(loss, self.totals.get(k), share), counts
            ),
        ):  # fmt: skip
            logs = self.pieces.original(keras.tree.pack_sequence_as(self.data, own))
        flat = [tf.convert_to_tensor(x) for x in keras.tree.flatten(logs)]
        self.ways = self.pieces.ways or [LAST] * len(flat)
        flat = [times(share, x) if way == MEAN else x
                for way, x in zip(self.ways, flat, strict=True)]  # fmt: skip
        return _Given(keras.tree.pack_sequence_as(logs, flat), slopes, scope)

    def added(self, before: Any, logs: Any) -> Any:
        """Put together what a step gives for pieces before and for a further one."""
        pairs = zip(self.ways, keras.tree.flatten(before), keras.tree.flatten(logs), strict=True)
        flat = [b if way == LAST else a + b for way, a, b in pairs]
        return keras.tree.pack_sequence_as(logs, flat)

    def scaled(self, slopes: list[tuple[Any, Any]], share: Any) -> list[tuple[Any, Any]]:
        """Let the gradients of a piece count by its share, each where its weight lies."""
        found = []
        for g, weight in slopes:
            if g is not None:
                with on(weight.value.device if self.apart else None):
                    found.append((times(share, g), weight))
        return found

    def changes(self, scope: Any) -> list[Any]:
        """List what a piece changes beside the weights."""
        may_change = [*self.model.non_trainable_variables, *self.model.metrics_variables]
        changed = [v for v in may_change if scope.get_current_value(v) is not None]
        if len(scope.state_mapping) > len(self.weights) + len(changed):
            raise ValueError(
                f"the train_step of {self.model.name!r} changes variables that are neither its "
                "weights nor those of its layers and metrics: its batch cannot be taken in pieces."
            )
        return changed

    def update(self, changed: list[Any], state: list[Any], weights: list[Any], sums: Any) -> None:
        """Write what the pieces have changed, and update the weights once."""
        for variable, value in zip(changed, state, strict=True):
            variable.assign(value)
        placed = placing(self.model) if self.apart else contextlib.nullcontext()
        found = dict(zip(map(id, weights), sums, strict=True))
        with placed:
            self.model.optimizer.apply([found.get(id(v)) for v in self.weights], self.weights)

    def in_a_loop(self) -> Any:
        """Take one piece after the other, in a loop that keeps sums of their gradients."""
        size, pieces, kept = self.size, self.pieces.count, self.pieces.sums
        size = size if self.fixed else tf.maximum(size, 1)  # a worker may have none
        last = min(pieces, size) if self.fixed else tf.minimum(pieces, size)

        def some(i: Any, state: Any) -> tuple[Any, list[tuple[Any, Any]], Any]:
            least, more = size // last, size % last  # the first pieces have one more
            start = i * least + tf.minimum(i, more)
            even = self.fixed and not more
            length = least if even else least + tf.cast(i < more, start.dtype)
            given = self.take(start, length, length if even else None, state, length / size)
            return given.logs, self.scaled(given.slopes, length / size), given.scope

        given, slopes, scope = some(tf.constant(0), ())
        weights, changed = [weight for _, weight in slopes], self.changes(scope)

        def body(i: Any, state: Any, added: Any, before: Any) -> Any:
            given, slopes, scope = some(i, zip(changed, state, strict=True))
            if self.apart:
                kept.add(slopes)
            else:
                added = total([added, [slope for slope, _ in slopes]])
            state = [scope.get_current_value(v) for v in changed]
            return i + 1, state, added, self.added(before, given)

        state = [scope.get_current_value(v) for v in changed]
        added = kept.begin(slopes) if self.apart else [slope for slope, _ in slopes]
        begun = tf.nest.flatten(added, expand_composites=True)
        with tf.control_dependencies(begun):  # or the second piece would begin beside the first
            second = tf.constant(1) + 0
        carried = (second, state, [] if self.apart else added, given)
        shapes = tf.nest.map_structure(_any_rows, carried)
        _, state, added, given = tf.while_loop(
            lambda i, *_: i < last, body, carried, shapes, parallel_iterations=1
        )
        self.update(changed, state, weights, kept.end(slopes) if self.apart else added)
        return given

    def side_by_side(self) -> Any:
        """Take pieces through the stages, each device in the order of the schedule.

        In place of a piece without examples stands an example of another one, which counts nothing.
        """
        size, count, order = self.size, self.pieces.count, Order()
        state: dict[int, tuple[Any, Any]] = {}
        sums: dict[int, tuple[Any, Any]] = {}
        logs = None
        for k in range(count):
            start, end = size * k // count, size * (k + 1) // count
            length, known = end - start, end - start if self.fixed else None
            some = tf.constant(length > 0) if self.fixed else length > 0
            most = max if self.fixed else tf.maximum
            begin = most(end, 1) - most(length, 1)
            with noted(STEP, (order, k)):
                given = self.take(begin, most(length, 1), known and max(known, 1),
                                  state.values(), most(length, 1) / most(size, 1))  # fmt: skip
            for variable in self.changes(given.scope):
                value = given.scope.get_current_value(variable)
                before = state.get(id(variable), (variable, variable.value))[1]
                state[id(variable)] = variable, tf.where(some, value, before)
            logs = given.logs if logs is None else tf.nest.map_structure(
                lambda a, b: tf.where(some, a, b), self.added(logs, given.logs), logs  # noqa: B023
            )
            with order.task(f"B{k}") as results:  # or several pieces' gradients would wait
                for slope, weight in self.scaled(given.slopes, length / most(size, 1)):
                    with tf.device(weight.value.device):
                        before = sums.get(id(weight), (weight, None))[1]
                        sums[id(weight)] = weight, added_now(before, slope)
                    results.append(sums[id(weight)][1])
        order.keep(self.pieces.laid.schedule(count, True))
        changed = [v for v, _ in state.values()]
        weights = [v for v, _ in sums.values()]
        self.update(changed, [x for _, x in state.values()], weights, [x for _, x in sums.values()])
        return logs


def _some_rows(x: Any, start: Any, length: Any, known: int | None) -> Any:
    """Cut rows out of a tensor, so many that XLA knows the number where it is known."""
    if not isinstance(x, tf.Tensor):  # sparse or ragged
        return part_of(x, start, start + length)
    if known is None:
        part = x[start : start + length]
        part.set_shape([None, *x.shape[1:]])
        return part
    sizes = tf.concat([[known], tf.shape(x)[1:]], 0)
    part = tf.slice(x, tf.concat([[start], tf.zeros_like(sizes[1:])], 0), sizes)
    return tf.ensure_shape(part, [known, *x.shape[1:]])


@contextlib.contextmanager
def _recorded(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Let the optimizer keep the gradients that it is given in the block, and change nothing."""
    kept: list[tuple[Any, Any]] = []

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        if kept:
            raise ValueError(
                f"the train_step of {model.name!r} updates its weights more than once, and a batch "
                "in pieces has one update: let it apply all gradients together."
            )
        kept.extend(zip(grads, trainable_variables or model.trainable_variables, strict=True))

    with instead(model.optimizer, apply=apply):
        yield kept


def _any_rows(x: Any) -> Any:
    """Give the shape of what a loop carries: sparse gradients become longer in it."""
    return tf.TensorShape([None, *x.values.shape[1:]] if hasattr(x, "values") else x.shape)


def _totals(model: Any, data: Any) -> dict[int, Any]:
    """Give, by loss, what masks or weights leave of the batch to take a mean of.

    The graph has the model's whole call for it, and TensorFlow runs of that what the counts need:
    masks. Weights are given as tensors, for a loop that reads a variable would be run.
    """
    totals: dict[int, Any] = {}
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is None and not _may_mask(model):
        return totals

    def counted(which: int, loss: Any) -> Any:
        def call(labels: Any, outputs: Any, weights: Any = None) -> Any:
            found = mean_of(loss, labels, outputs, weights)
            totals[which] = found.count
            return found.mean

        return call

    training = {"training": True} if takes_training(model) else {}
    values = [(v, tf.convert_to_tensor(v.value)) for v in model.trainable_variables]
    with (
        contextlib.suppress(Exception),  # of data for a train_step of one's own, with its own loss
        keras.StatelessScope(values),
        _private.losses_as(model, counted),
    ):
        _private.compiled_losses(model, y, model(x, **training), weights)
    return totals


def _may_mask(model: Any) -> bool:
    """Say whether a loss may leave some of a batch out, as far as the model's layers tell."""
    if not isinstance(model, keras.Function | keras.Sequential) or not model.inputs:
        return True
    losses = [each for each in keras.tree.flatten(model.loss) if each is not None]
    own = [each for each in losses if not isinstance(each, str)
           and (not of_keras(type(each))
                or getattr(each, "ignore_class", None) is not None)]  # fmt: skip
    # A mask goes through a model inside, and Keras does not say so before it runs.
    calls = _private.calls_of(graph_of(model))
    made = [_private.mask_of(t) for call in calls for t in call.outputs]
    given = keras.tree.flatten([call.arguments.kwargs.get("mask") for call in calls])
    return bool(own) or any(mask is not None for mask in (*made, *given))


def _shared(loss: Any, total: Any, share: Any) -> Any:
    """Make a loss count in a mean over the pieces, by their sizes, as it does in the batch's."""
    def call(labels: Any, outputs: Any, weights: Any = None) -> Any:
        found = mean_of(loss, labels, outputs, weights)
        if found.count is None:
            return found.mean
        count = tf.convert_to_tensor(found.count, found.mean.dtype)
        if tf.is_tensor(found.count):
            if total is None:
                raise ValueError(
                    f"the loss {loss.name} is a mean of what masks or weights leave, and the model "
                    "cannot be called with a batch's inputs to count it: use another reduction."
                )
            count = tf.math.divide_no_nan(count, tf.cast(total, count.dtype))
        return found.mean * count / like(share, count)

    return call


class _Sums:
    """The sums of gradients, each where its weight lies; what a loop carries lies on one device.

    They are variables of any shape, and empty between steps.
    """

    def __init__(self) -> None:
        self.of: dict[int, list[Any]] = {}  # by a weight's id; two are of sparse gradients

    def begin(self, slopes: list[tuple[Any, Any]]) -> list[Any]:
        """Let them be the gradients of a first piece; give what a second one has to wait for."""
        begun = []
        for slope, weight in slopes:
            tensors = _tensors(slope)
            if id(weight) not in self.of:
                with tf.init_scope(), tf.device(weight.value.device):
                    any_shape = tf.TensorShape(None)
                    self.of[id(weight)] = [tf.Variable(tf.zeros(0, x.dtype), False, shape=any_shape)
                                           for x in tensors]  # fmt: skip
            for v, x in zip(self.of[id(weight)], tensors, strict=True):
                begun.append(v.assign(x, read_value=False))
        return begun

    def add(self, slopes: list[tuple[Any, Any]]) -> None:
        """Add the gradients of a further piece; append those of rows, unless they are the same."""
        for slope, weight in slopes:
            own, new = self.of[id(weight)], _tensors(slope)
            if len(new) == 1 or same_rows(slope):
                own[0].assign_add(new[0])
            else:
                with tf.device(weight.value.device):
                    for v, x in zip(own, new, strict=True):
                        v.assign(tf.concat([v, x], 0))

    def end(self, slopes: list[tuple[Any, Any]]) -> list[Any]:
        """Give the sums, and be empty."""
        found = []
        for slope, weight in slopes:
            with tf.device(weight.value.device):
                values = []
                tensors = _tensors(slope)
                dense = len(tensors) == 1
                for v, x in zip(self.of[id(weight)], tensors, strict=True):
                    shape = weight.shape if dense else [None, *x.shape[1:]]
                    values.append(tf.ensure_shape(v, shape))
                    # Of the same rank, which TensorFlow takes what it reads for, too.
                    empty = [0, *(n or 1 for n in shape[1:])] if len(shape) else []
                    v.assign(tf.zeros(empty, v.dtype))
                rows = None if dense else tf.IndexedSlices(*values, slope.dense_shape)
                if has_rows_once(slope):
                    rows = each_row_once(rows)
            found.append(values[0] if dense else rows)
        return found


def _tensors(slope: Any) -> list[Any]:
    return [slope.values, slope.indices] if hasattr(slope, "values") else [slope]
