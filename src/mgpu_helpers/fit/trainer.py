"""What `fit` of Keras does around its steps, mended for replicas and for several workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers.fit.callbacks import of_worker


def build(keras_has: Callable[..., Any]) -> Callable[..., Any]:
    """Build a model from the shapes of its data.

    Keras takes a batch away for that, and adds up the parts of all replicas, which fails where they
    differ in size and on several workers (keras-team/keras#20585).
    """
    import tensorflow as tf

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if not getattr(strategy, "of_fit", False):
            return keras_has(self, iterator, data_batch)
        if iterator is not None:
            shared = _private.dataset_of(iterator)
            if strategy.passes_before is not None:
                _private.before_steps(iterator, strategy.passes_before)
                strategy.passes_before = None
            data_batch = tf.nest.map_structure(
                lambda spec: spec if hasattr(spec, "shape") else None,
                shared.whole.element_spec.batch,
            )
        with strategy.scope():
            _private.build(self, data_batch)

    return build


def fit(keras_has: Callable[..., Any]) -> Callable[..., Any]:
    """Let a fit go on with the data where it was, and only the chief of several workers write."""
    import tensorflow as tf

    signature = inspect.signature(keras_has)

    def fit(self: Any, *args: Any, **named: Any) -> Any:
        strategy = self.distribute_strategy
        given = signature.bind(self, *args, **named).arguments
        _check_choices(self, strategy)
        _check_scope(self, strategy)
        if not getattr(strategy, "of_fit", False):
            return keras_has(**given)
        _check_loop(self, strategy)
        for name, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
            _check_end(given.get(name), name, steps, given.get(steps))
        if isinstance(given.get("x"), tf.data.Dataset):
            given.setdefault("shuffle", False)  # which is what it is, and Keras warns of
        given["callbacks"] = of_worker(given.get("callbacks"), strategy)

        def passes_before(iterator: Any) -> None:
            """Bring the data to where they were when a backup was written."""
            if passes := _private.first_pass(self):
                _go_on(iterator, passes, given.get("steps_per_epoch"), self.steps_per_execution)

        strategy.passes_before = passes_before
        try:
            return keras_has(**given)
        finally:
            strategy.passes_before = None

    return fit


def _go_on(iterator: Any, passes: int, steps: int | None, at_once: int) -> None:
    """Begin with the data as often as so many passes do, since a shuffle has an order for each.

    Without a number of steps Keras begins before each pass, and after it where it knew the end.
    With one it goes on in the next pass where it was, and begins again after one that saw the end.
    """
    import tensorflow as tf

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


def _check_scope(model: Any, strategy: Any) -> None:
    import tensorflow as tf

    several, copies = strategy.num_replicas_in_sync > 1, tf.distribute.DistributedValues
    in_one = several or not model.weights or isinstance(model.weights[0].value, copies)
    if in_one and not getattr(strategy, "of_fit", False):
        return  # TensorFlow's own, which keeps copies also for one replica
    iterations = getattr(model.optimizer, "iterations", None)
    copied = isinstance(getattr(iterations, "value", None), copies)
    if iterations is not None and copied != several:
        which, other = ("optimizer", "model") if copied else ("model", "optimizer")
        raise ValueError(
            f"the {which} of {model.name!r} was made in the scope of a strategy and its {other} "
            "was not: build and compile the model in one `with fit.strategy(plan).scope()`."
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
    for name, instead in (
        ("gradient_accumulation_steps", "take fit.accumulate(model, {})"),
        ("ema_overwrite_frequency", "take keras.callbacks.SwapEMAWeights"),
    ):
        value = getattr(optimizer, name, None)
        if value and strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"the optimizer of {model.name!r} has {name}={value}, so some steps do what others "
                "do not, and there TensorFlow cannot add up what "
                f"{strategy.num_replicas_in_sync} replicas have: leave it out and "
                f"{instead.format(value)}."
            )


def _check_end(data: Any, name: str, argument: str, steps: int | None) -> None:
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset) and steps is None:
        if data.cardinality().numpy() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"the Dataset of {name} has no end, and neither would its first pass: give "
                f"{argument}=…, or leave out .repeat()."
            )


def mend_trainer() -> None:
    """Mend Keras's trainer for strategies of `fit`, once in a process."""
    _private.mend("build", build)
    _private.mend("fit", fit)
