"""What `fit` of Keras does around its steps, mended for replicas and for several workers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import instead, laid_out
from mgpu_helpers._train import HOST
from mgpu_helpers.fit._asking import Uncomputed, build_by_step, own_losses, own_metrics
from mgpu_helpers.fit._islands import compiling
from mgpu_helpers.fit._kinds import Unknown, asking, is_own
from mgpu_helpers.fit._moving import optimizers_of
from mgpu_helpers.fit._segments import has_own
from mgpu_helpers.fit._workers import UntilOneEnds, compare_inputs, compare_lengths
from mgpu_helpers.fit.callbacks import of_worker
from mgpu_helpers.fit.mends import MENDS, everywhere, where
from mgpu_helpers.fit.shares import Predicted, Shared, Whole, strategy_here
from mgpu_helpers.fit.stopping import as_before

# Examples by which something is asked while only shapes are known, and the sizes of open axes.
FEW, LENGTHS = 5, (32, 8, 1)


def is_of_fit(model: Any, *_: Any, **__: Any) -> bool:
    """Say whether a model was made in the scope of a strategy of `fit`."""
    return getattr(model.distribute_strategy, "of_fit", False)


of_fit = where(is_of_fit)


@of_fit
def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build a model from the shapes of its data.

    Keras takes a batch away for that, and adds up the parts of all replicas, which fails where they
    differ in size and on several workers (keras-team/keras#20585).
    """
    strategy = self.distribute_strategy
    if iterator is None:
        with strategy.scope():
            _private.build(self, data_batch)
        return
    shared = _private.dataset_of(iterator)
    if strategy.workers > 1:
        compare_lengths(iterator, strategy)
    step = self.test_step
    if strategy.passes_before is not None:
        step = self.train_step
        _private.before_steps(iterator, strategy.passes_before)
        strategy.passes_before = None
    specs = tf.nest.map_structure(
        lambda spec: spec if hasattr(spec, "shape") else None, shared.whole.element_spec.batch
    )
    built_for(self, step, specs)


def built_for(model: Any, step: Callable[[Any], Any], specs: Any) -> Any:
    """Make the variables of a model, as its first step does; give the model."""
    strategy = model.distribute_strategy
    if (laid := laid_out(model)) is not None:
        laid.share()
    if is_of_fit(model) and is_own(step) and _is_unbuilt(model):
        build_by_step(step, specs, strategy)
    else:
        with strategy.scope():
            _private.build(model, specs)
    return model


def _is_unbuilt(model: Any) -> bool:
    """Say whether Keras would make variables in a model's first step, as in that of a GAN."""
    return not all(part.built for part in [*_private.layers_of(model), *optimizers_of(model)])


@everywhere
def fit(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Let a fit go on with the data where it was, and only the chief of several workers write."""
    strategy = self.distribute_strategy
    # Of Keras's own: what is mended may be somebody's function around it.
    signature = inspect.signature(super(keras.Model, keras.Model).fit)
    given = signature.bind(self, *args, **named).arguments
    del given["self"]
    if not is_of_fit(self):
        if not is_across(self):
            _check_scope(self, strategy)  # it may have an optimizer of ours
        return original(self, **given)
    check_model(self, strategy)
    given = {name: batches_of(value) for name, value in given.items()}
    for name, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
        _check_end(given.get(name), name, steps, given.get(steps))
    if isinstance(given.get("x"), tf.data.Dataset):
        given.setdefault("shuffle", False)  # which is what it is, and Keras warns of
    given["callbacks"] = of_worker(given.get("callbacks"), strategy)

    def passes_before(iterator: Any) -> int:
        """Bring the data to where they were when a backup was written."""
        if passes := _private.first_pass(self):
            _go_on(iterator, passes, given.get("steps_per_epoch"), self.steps_per_execution)
        done, strategy.steps_before = strategy.steps_before, 0
        return done

    strategy.passes_before = passes_before
    try:
        with in_force(), as_before():
            return original(self, **given)
    finally:
        strategy.passes_before, strategy.steps_before = None, 0


@of_fit
def compiles(original: Any, self: Any) -> Any:
    """Let XLA compile the step of a strategy where it does without the strategy."""
    with _private.without_strategy(self):
        return original(self)


def makes(attribute: str, around: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Make a mend of what makes a function of steps: `around` puts its own around that."""

    @of_fit
    def make(original: Any, self: Any, force: bool = False) -> Any:
        with each_compiled(self):
            made = original(self, force)
        function = getattr(self, attribute)
        if not hasattr(function, "of_keras"):
            ours = around(self, function)
            if ours is not function:
                ours.of_keras = function
            setattr(self, attribute, ours)
        return made

    return make


def each_compiled(model: Any) -> Any:
    """Let Keras make functions in the block that are compiled on each device of a strategy."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return contextlib.nullcontext()
    if is_across(model):
        return laid_out(model).compiling()
    return compiling(model, strategy.extended.worker_devices)


def _stepping(step: str, model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return _asking_first(model, step, function)
    return _there(model, function) if model.jit_compile else function


def _there(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function of steps on the strategy's device, where XLA looks for the weights."""

    def there(iterator: Any) -> Any:
        with tf.device(model.distribute_strategy.extended.worker_devices[0]):
            return function(iterator)

    return there


def _predicting(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let each replica predict its part of what predict_on_batch is given."""
    return lambda data: function([Predicted(*whole(each)) for each in data])


def _asking_first(model: Any, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    known, strategy = False, model.distribute_strategy
    strategy.forget(getattr(model, step))  # it may be compiled with another loss
    if is_own(getattr(model, step)):
        function = results_of_all(model)(function)

    def first(iterator: Any) -> Any:
        nonlocal known
        tell = strategy.before_training if step == "train_step" and not known else None
        handed_out = isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator)
        if isinstance(iterator, UntilOneEnds):
            iterator = [*itertools.islice(iterator, model.steps_per_execution)]
            if not iterator:
                raise StopIteration
        elif not handed_out:  # by train_on_batch
            iterator = [whole(data) for data in iterator]
        asks = not known and (own_losses(model) or own_metrics(model) or has_own(model))
        try:
            # Eagerly it would have begun to change the model before it finds out.
            if known or not (tell or asks or model.run_eagerly):
                return function(iterator if handed_out else iter(iterator))
        except Unknown as error:
            if known:
                raise ValueError(
                    f"{error} was not there at the first step of {model.name!r}, where fit finds "
                    "out what its losses are: say what it is, by fit.loss."
                ) from None
        known = True
        batches = list(itertools.islice(iterator, model.steps_per_execution))
        if tell:
            strategy.before_training = None  # it trains a step itself
            tell(model, batches[0].batch)
            strategy.before_training = tell
        strategy.ask(model, getattr(model, step), batches[0])
        if handed_out:
            return function(iter(again(batches, iterator.element_spec)))
        return function(iter(batches))

    return first


@contextlib.contextmanager
def results_of_all(model: Any) -> Iterator[None]:
    """Let metrics give a step of one's own what they have of all replicas, as on one device."""
    def of_all(metric: Any) -> Callable[[], Any]:
        result = metric.result

        def of_all_replicas() -> Any:
            own = metric.variables
            if not own or not strategy_here() or asking():
                return result()
            values, context = [*map(tf.identity, own)], tf.distribute.get_replica_context()
            sums = context.all_reduce("SUM", values)
            with keras.StatelessScope([*zip(own, sums, strict=True)]):
                return result()

        return of_all_replicas

    with contextlib.ExitStack() as stack:
        for metric in model.metrics:
            stack.enter_context(instead(metric, result=of_all(metric)))
        yield


def batches_of(data: Any) -> Any:
    """Give the dataset that the strategy has made something of, all else as it is."""
    if isinstance(data, Shared):
        return data.batches
    of_function = isinstance(data, tf.distribute.DistributedDataset) and hasattr(data, "of_all")
    return data.of_all() if of_function else data


def whole(data: Any) -> Whole:
    """Let each replica take its part of data that no dataset of `fit` has handed out."""
    return data if isinstance(data, Whole) else Whole(data)


def unsaved(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let Keras make no variable when it saves: on several workers all would have to make it.

    It makes an optimizer to see what each has that needs no file; here in another thread, where no
    scope is.
    """

    @functools.cache
    def skipped(kind: str) -> Any:
        with ThreadPoolExecutor(1) as outside:
            return outside.submit(original, kind).result()

    return skipped


def again(batches: list[Any], spec: Any) -> Any:
    """Make a dataset of batches that were taken already, of any sizes that the spec allows."""
    def like(*given: Any) -> Any:
        pairs = zip(tf.nest.flatten(given, True), tf.nest.flatten(spec, True), strict=True)
        return tf.nest.pack_sequence_as(spec, [
            tf.compat.v1.placeholder_with_default(x, of.shape) if tf.is_tensor(x) else x
            for x, of in pairs
        ], True)  # fmt: skip

    each = [tf.data.Dataset.from_tensors(batch).map(like) for batch in batches]
    return functools.reduce(lambda first, second: first.concatenate(second), each)


def _go_on(iterator: Any, passes: int, steps: int | None, at_once: int) -> None:
    """Begin with the data as often as so many passes do, since a shuffle has an order for each.

    Without a number of steps Keras begins before each pass, and after it where it knew the end.
    With one it goes on in the next pass where it was, and begins again after one that saw the end.
    """
    data, batches = _private.dataset_of(iterator).whole, iterator.data_adapter.num_batches
    if steps is None:
        for _ in range(passes if batches is None else 2 * passes):
            iter(data)
        return
    begun, size = 0, batches
    if data.cardinality() == tf.data.UNKNOWN_CARDINALITY:
        current, begun = iter(data), 1
        size, most = 0, passes * -(-steps // at_once) * at_once
        while size < most and next(current, None) is not None:
            size += 1
        if size < most:  # Keras learns the end by a call that finds nothing
            batches = (-(-size // at_once) + 1) * at_once
    times = seen = 0
    for _ in range(passes):
        for _ in range(0, steps, at_once):
            if not batches or seen < batches:
                seen += at_once
        if batches and seen >= batches:
            times, seen = times + 1, 0
    for _ in range(begun, times):
        iter(data)
    if times >= begun:
        current = iter(data.skip(seen if size is None else min(seen, size)))
    _private.go_on(iterator, current, seen, batches)


def check_model(model: Any, strategy: Any) -> None:
    """Raise ValueError for a model that the strategy could not train."""
    across = is_across(model)
    if not across:
        _check_choices(model, strategy)
        _check_scope(model, strategy)
    if getattr(strategy, "of_fit", False):
        _check_loop(model, strategy)
        if not across and strategy.num_replicas_in_sync > 1:
            _check_metrics(model)


def is_across(model: Any) -> bool:
    """Say whether a model is laid out within each of several workers."""
    laid = laid_out(model)
    return laid is not None and laid.across


def _check_metrics(model: Any) -> None:
    """Refuse metrics that were made outside of the scope: replicas would write over each other."""
    given = _private.compiled_with(model) if model.compiled else {}
    for each in keras.tree.flatten([given.get("metrics"), given.get("weighted_metrics")]):
        own = each.variables if isinstance(each, keras.Metric) else []
        if not all(isinstance(v.value, tf.distribute.DistributedValues) for v in own):
            raise ValueError(
                f"the metric {each.name} of {model.name!r} was made outside of the scope, so that "
                "replicas share its sums, or each worker has its own: make it in the `with "
                "fit.strategy(plan).scope()` in which the model is compiled, or give its name."
            )


def _check_scope(model: Any, strategy: Any) -> None:
    several, copies = strategy.num_replicas_in_sync > 1, tf.distribute.DistributedValues
    in_one = several or not model.weights or isinstance(model.weights[0].value, copies)
    if in_one and not getattr(strategy, "of_fit", False):
        return  # TensorFlow's own, which keeps copies also for one replica
    own = model.trainable_variables if several else []
    outside = [v for v in own if not isinstance(v.value, copies)]
    if outside:
        raise ValueError(
            f"{outside[0].path} of {model.name!r} was made outside of the scope: make all layers "
            "that are trained in the `with fit.strategy(plan).scope()` in which the model is "
            "compiled."
        )
    iterations = getattr(model.optimizer, "iterations", None)
    copied = isinstance(getattr(iterations, "value", None), copies)
    if iterations is not None and copied != several:
        which, other = ("optimizer", "model") if copied else ("model", "optimizer")
        todo = "build and compile the model in one" if copied else "compile the model again in a"
        raise ValueError(
            f"the {which} of {model.name!r} was made in the scope of a strategy and its {other} "
            f"was not: {todo} `with fit.strategy(plan).scope()`"
            f"{'' if copied else ', which keeps its weights'}."
        )


def _check_loop(model: Any, strategy: Any) -> None:
    on_cores = "CPU" in strategy.extended.worker_devices[0]
    if strategy.workers > 1 and on_cores and model.steps_per_execution > 1:
        raise ValueError(
            f"{model.name!r} takes steps_per_execution={model.steps_per_execution} in a loop, in "
            "which TensorFlow cannot add up what workers without a GPU exchange: compile with 1."
        )


def _check_choices(model: Any, strategy: Any) -> None:
    """Explain what TensorFlow says of a merge_call: a step that only sometimes updates (#20582)."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    for name, remedy in (
        ("gradient_accumulation_steps", "take fit.use(model, pieces={})"),
        ("ema_overwrite_frequency", "take keras.callbacks.SwapEMAWeights"),
    ):
        value = getattr(optimizer, name, None)
        if value and strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"the optimizer of {model.name!r} has {name}={value}, so some steps do what others "
                "do not, and there TensorFlow cannot add up what "
                f"{strategy.num_replicas_in_sync} replicas have: leave it out and "
                f"{remedy.format(value)}."
            )


def _check_end(data: Any, name: str, argument: str, steps: int | None) -> None:
    if isinstance(data, tf.data.Dataset) and steps is None:
        if data.cardinality().numpy() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"the Dataset of {name} has no end, and neither would its first pass: give "
                f"{argument}=…, or leave out .repeat()."
            )


@of_fit
def entered(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Let the mends be in force while a model of ours does something."""
    named = {name: batches_of(value) for name, value in named.items()}
    with in_force():
        return original(self, *map(batches_of, args), **named)


@of_fit
def predicted(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Let several workers compare what they have for a predict, and ask so at each step."""
    strategy = self.distribute_strategy
    if strategy.workers > 1:
        compare_inputs(batches_of(args[0] if args else named.get("x")), strategy)
        strategy.asks_at_each_step = True
    try:
        return entered(original)(self, *args, **named)
    finally:
        vars(strategy).pop("asks_at_each_step", None)


# What looks first whether a model is ours: always there.
ALWAYS = {"fit": fit, "predictions": predicted} | dict.fromkeys(
    ("evaluate", "train_on_batch", "test_on_batch", "predict_on_batch"), entered
)
INSIDE = MENDS | {
    "build": build, "compiles": compiles, "unsaved": unsaved,
    "train": makes("train_function", functools.partial(_stepping, "train_step")),
    "test": makes("test_function", functools.partial(_stepping, "test_step")),
    "predict": makes("predict_function", _predicting),
}  # fmt: skip
_uses, _lock, _undo = 0, threading.RLock(), contextlib.ExitStack()


@contextlib.contextmanager
def in_force() -> Iterator[None]:
    """Let Keras be mended in the block, in all threads; else its own code runs."""
    global _uses
    with _lock:
        if not _uses:
            with contextlib.ExitStack() as done:
                for which, how in INSIDE.items():
                    _private.mend(which, how)
                    done.callback(_private.unmend, which, how)
                _undo.push(done.pop_all())
        _uses += 1
    try:
        yield
    finally:
        with _lock:
            _uses -= 1
            if not _uses:
                _undo.close()


def by_few(ask: Callable[[Any], Any], like: Any) -> Any:
    """Ask something with a few examples like those of a batch that is traced, which has none yet.

    It is asked in a thread, which knows nothing of what is traced in this one.
    """
    def few(x: Any, length: int) -> Any:
        if not (hasattr(x, "dtype") and hasattr(x, "shape")):
            return x
        shape = [FEW, *(n or length for n in x.shape[1:])] if x.shape.rank else []
        if x.dtype == tf.string:
            return tf.fill(shape, "")
        values = np.random.default_rng(0).random(shape)
        return tf.cast(values if x.dtype.is_floating else values > 0.5, x.dtype)

    def asked() -> Any:
        with in_force(), tf.device(HOST):
            for length in LENGTHS:
                try:
                    return ask(tf.nest.map_structure(functools.partial(few, length=length), like))
                except Uncomputed:
                    if length == LENGTHS[-1]:
                        raise

    with ThreadPoolExecutor(1) as outside:
        return outside.submit(asked).result()


def mend_entries() -> None:
    """Mend what a user calls, once in a process."""
    _private.let_copies_be_numbers()
    for which, how in ALWAYS.items():
        _private.mend(which, how)
