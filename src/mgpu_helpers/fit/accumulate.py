"""Train on a large batch in pieces, within Keras's `fit`: the memory of one, the step of all."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import whole_number
from mgpu_helpers._models import instead, ready, takes_training
from mgpu_helpers._train import updated_at_owners
from mgpu_helpers.fit._asking import ask_pieces
from mgpu_helpers.fit._kinds import is_own
from mgpu_helpers.fit._placing import build_optimizers
from mgpu_helpers.fit.parallel import replace
from mgpu_helpers.fit.shares import PIECE, Whole, part_of, size_of
from mgpu_helpers.fit.trainer import again, in_force
from mgpu_helpers.towers.averages import same_rows, times, total
from mgpu_helpers.towers.losses import part
from mgpu_helpers.towers.shards import like, rows
from mgpu_helpers.towers.sync import normalizes
from mgpu_helpers.towers.train import check_layers


def accumulate(model: Any, pieces: int) -> Any:
    """Let each step of a compiled model's `fit` take its batch in so many pieces; give the model.

    The model's own train_step runs on one piece after the other, so a step holds the activations of
    one. Their gradients are added up, after `fit.shard` each where its weight is, and the optimizer
    updates the weights once, so that weights and history are, to rounding, those of the whole
    batch; also where masks or weights leave more of it in one piece than in another, in a last
    batch that is smaller, under a MirroredStrategy (there the pieces are of each replica's share,
    and there is one all-reduce), and after `fit.parallel`. What a train_step of one's own gives
    beside metrics is that of the last piece. A loss of one's own, from `add_loss`, a `compute_loss`
    or a `train_step`, is to be a mean over the examples or `fit.loss(value, "sum")`; `fit` finds
    out before its first step and refuses others. A BatchNormalization sees a piece at a time, which
    is warned of, and Dropout draws a mask for each piece. XLA is not used. `fit.alone` undoes it.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = accumulate(model, 4).fit(np.ones((9, 3)), np.ones((9, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1
    """
    import keras

    pieces = whole_number("pieces", pieces, "a number of pieces", 1)
    ready(model, compiled=True, single=False, trained=True)
    check_layers(model, "average")
    several = {id(x) for x in vars(model).values() if isinstance(x, keras.optimizers.Optimizer)}
    if len(several) > 1:
        raise ValueError(
            f"the model {model.name!r} has {len(several)} optimizers, and one may need what the "
            "other has done: accumulation takes a model with one."
        )
    if "train_step" in vars(model):
        raise ValueError(
            f"the steps of {model.name!r} are in pieces already, or in stages: use fit.alone "
            "first, or fit.split with `pieces`."
        )
    warn_of_normalizing(model)
    original, sums, asked = model.train_step, _Sums(), _Asked(model, pieces)

    @functools.wraps(original)
    def train_step(data: Any) -> Any:
        return _step(model, original, pieces, sums, data)

    vars(train_step)["end"] = asked.end
    replace(model, "train_step", train_step)
    vars(model)["make_train_function"] = asked.make_train_function
    return model


def warn_of_normalizing(model: Any) -> None:
    """Warn the caller's caller of layers that see a piece, where on one device they see a batch."""
    if names := [layer.name for layer in _private.layers_of(model) if normalizes(layer)]:
        warnings.warn(
            f"{names[0]} in {model.name} normalizes by the statistics of a piece, not of the "
            "batch, so that the weights are not those of the whole batch.",
            stacklevel=3,
        )


def _step(model: Any, original: Any, pieces: int, sums: _Sums, data: Any) -> Any:
    import keras
    import tensorflow as tf

    if model.distribute_strategy.num_replicas_in_sync == 1:  # fit has built the replicas'
        build_optimizers(model)
        _private.build(model, data)
    leaves = keras.tree.flatten(data)
    batches = {k for k, x in enumerate(leaves) if tf.is_tensor(x) and x.shape.rank != 0}
    size = rows(leaves[min(batches)])
    fixed = not tf.is_tensor(size)
    last = min(pieces, size) if fixed else tf.minimum(pieces, size)
    totals, every = _totals(model, data), model.trainable_variables
    apart = updated_at_owners(every)

    def piece(i: Any, state: Any) -> tuple[Any, list[tuple[Any, Any]], Any]:
        """Give what the train_step gives for a piece, its gradients, and the scope it ran in."""
        least, more = size // last, size % last  # the first pieces have one more
        start = i * least + tf.minimum(i, more)
        length = least if fixed and not more else least + tf.cast(i < more, start.dtype)
        own = [*leaves]
        for k in batches:
            own[k] = leaves[k][start : start + length]
            own[k].set_shape([length if fixed and not more else None, *leaves[k].shape[1:]])
        share = length / size
        counts = share * size if fixed else share
        scope = keras.StatelessScope(state, collect_losses=True)
        token = PIECE.set(share)
        for weight in every:  # where regularizers look for it; a tape knows it as a variable only
            scope.add_update((weight, weight.value))
        with (
            scope,
            _recorded(model) as slopes,
            _private.losses_as(model, lambda k, loss: _shared(loss, totals.get(k), share), counts),
        ):
            try:
                given = original(keras.tree.pack_sequence_as(data, own))
            finally:
                PIECE.reset(token)
        scaled = []
        for g, weight in slopes:
            if g is not None:
                with tf.device(weight.value.device if apart else None):
                    scaled.append((times(share, g), weight))
        return keras.tree.map_structure(tf.convert_to_tensor, given), scaled, scope

    given, slopes, scope = piece(tf.constant(0), ())
    weights = [weight for _, weight in slopes]
    may_change = [*model.non_trainable_variables, *model.metrics_variables]
    changed = [v for v in may_change if scope.get_current_value(v) is not None]
    if len(scope.state_mapping) > len(every) + len(changed):
        raise ValueError(
            f"the train_step of {model.name!r} changes variables that are neither its weights nor "
            "those of its layers and metrics: its batch cannot be taken in pieces."
        )

    def body(i: Any, state: Any, added: Any, _: Any) -> Any:
        given, slopes, scope = piece(i, zip(changed, state, strict=True))
        if apart:
            sums.add(slopes)
        else:
            added = total([added, [slope for slope, _ in slopes]])
        return i + 1, [scope.get_current_value(v) for v in changed], added, given

    state = [scope.get_current_value(v) for v in changed]
    added = sums.begin(slopes) if apart else [slope for slope, _ in slopes]
    with tf.control_dependencies(
        tf.nest.flatten(added, expand_composites=True)
    ):  # or the second piece would begin beside the first
        second = tf.constant(1) + 0
    carried = (second, state, [] if apart else added, given)
    _, state, added, given = tf.while_loop(
        lambda i, *_: i < last, body, carried, tf.nest.map_structure(_any_rows, carried),
        parallel_iterations=1,
    )  # fmt: skip
    for variable, value in zip(changed, state, strict=True):
        variable.assign(value)
    found = dict(zip(map(id, weights), sums.end(slopes) if apart else added, strict=True))
    model.optimizer.apply([found.get(id(weight)) for weight in every], every)
    return given


class _Asked:
    """Asks by a first batch whether losses that Keras did not make are means, as pieces are."""

    def __init__(self, model: Any, pieces: int) -> None:
        self.model, self.pieces, self.step = model, pieces, model.train_step
        self.known = False

    def needed(self) -> bool:
        """Say whether somebody else than Keras may have made a loss."""
        kinds = {type(each) for each in _private.layers_of(self.model)} - {type(self.model)}
        return (
            is_own(self.step) or is_own(self.model.compute_loss)
            or any(not each.__module__.startswith("keras.") for each in kinds)
        )  # fmt: skip

    def make_train_function(self, force: bool = False) -> Any:
        """Make the function that `fit` calls, which asks before its first step."""
        import tensorflow as tf

        made = type(self.model).make_train_function(self.model, force)
        function = self.model.train_function
        if hasattr(function, "of_keras"):  # that of a strategy of fit, which asks itself
            return made
        self.known = not self.needed()

        def first(iterator: Any) -> Any:
            if self.known or isinstance(iterator, tf.distribute.DistributedIterator):
                return function(iterator)
            handed_out = isinstance(iterator, tf.data.Iterator)
            if not handed_out:  # by train_on_batch
                iterator = iter([*iterator])
            batches = [*itertools.islice(iterator, self.model.steps_per_execution)]
            if not batches:
                raise StopIteration
            batch = batches[0].batch if isinstance(batches[0], Whole) else batches[0]
            if (size := int(size_of(batch))) > 1:
                few = part_of(batch, 0, max(2, -(-size // self.pieces)))
                build_optimizers(self.model)  # where the weights lie
                with in_force():
                    ask_pieces(self.step, few)
                self.known = True
            given = again(batches, iterator.element_spec) if handed_out else batches
            return function(iter(given))

        vars(first)["of_keras"] = function
        self.model.train_function = first
        return made

    def end(self) -> None:
        """Leave the model as it was."""
        vars(self.model).pop("make_train_function", None)


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
    import tensorflow as tf

    return tf.TensorShape([None, *x.values.shape[1:]] if hasattr(x, "values") else x.shape)


def _totals(model: Any, data: Any) -> dict[int, Any]:
    """Give, by loss, what masks or weights leave of the batch to take a mean of.

    The graph has the model's whole call for it, and TensorFlow runs of that what the counts need:
    masks. Weights are given as tensors, for a loop that reads a variable would be run.
    """
    import keras
    import tensorflow as tf

    totals: dict[int, Any] = {}

    def counted(which: int, loss: Any) -> Any:
        def call(labels: Any, outputs: Any, weights: Any = None) -> Any:
            found = part(loss, labels, outputs, weights)
            totals[which] = found.count
            return found.mean

        return call

    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    training = {"training": True} if takes_training(model) else {}
    values = [(v, tf.convert_to_tensor(v.value)) for v in model.trainable_variables]
    with (
        contextlib.suppress(Exception),  # of data for a train_step of one's own, with its own loss
        keras.StatelessScope(values),
        _private.losses_as(model, counted),
    ):
        _private.compiled_losses(model, y, model(x, **training), weights)
    return totals


def _shared(loss: Any, total: Any, share: Any) -> Any:
    """Make a loss count in a mean over the pieces, by their sizes, as it does in the batch's."""
    import tensorflow as tf

    def call(labels: Any, outputs: Any, weights: Any = None) -> Any:
        found = part(loss, labels, outputs, weights)
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
        import tensorflow as tf

        begun = []
        for slope, weight in slopes:
            tensors = _tensors(slope)
            if id(weight) not in self.of:
                with tf.init_scope(), tf.device(weight.value.device):
                    self.of[id(weight)] = [
                        tf.Variable(tf.zeros(0, x.dtype), False, shape=tf.TensorShape(None))
                        for x in tensors
                    ]
            for v, x in zip(self.of[id(weight)], tensors, strict=True):
                begun.append(v.assign(x, read_value=False))
        return begun

    def add(self, slopes: list[tuple[Any, Any]]) -> None:
        """Add the gradients of a further piece; append those of rows, unless they are the same."""
        import tensorflow as tf

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
        import tensorflow as tf

        found = []
        for slope, weight in slopes:
            with tf.device(weight.value.device):
                values = []
                tensors = _tensors(slope)
                dense = len(tensors) == 1
                for v, x in zip(self.of[id(weight)], tensors, strict=True):
                    values.append(tf.ensure_shape(v, x.shape if dense else [None, *x.shape[1:]]))
                    v.assign(tf.zeros(0, v.dtype))
            found.append(values[0] if dense else tf.IndexedSlices(*values, slope.dense_shape))
        return found


def _tensors(slope: Any) -> list[Any]:
    return [slope.values, slope.indices] if hasattr(slope, "values") else [slope]
