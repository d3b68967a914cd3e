"""Train a step of a model, on one device or on all, and leave the model as it was.

The step is that of the model itself, since a clone would lose what is the user's own in it. What it
changes is kept on the host before, and put back after, to the bit.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import instead, laid_out
from mgpu_helpers._train import HOST
from mgpu_helpers.fit._moving import within
from mgpu_helpers.fit.mends import equal_seeds
from mgpu_helpers.fit.shares import Whole
from mgpu_helpers.fit.trainer import built_for, in_force


class Done(NamedTuple):
    """What a step has shown and left behind, each by a name for people."""

    shown: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    state: dict[str, np.ndarray]


class Variable(NamedTuple):
    """A variable: where it is held, its name, and its copies on the devices."""

    holder: Any  # a variable of Keras, or the layer that has one of TensorFlow as an attribute
    attribute: str
    name: str
    copies: tuple[Any, ...]
    shown: bool  # it is of a metric, of which each replica keeps its part


def steps(
    model: Any, variables: Sequence[Variable], on: str | None, back: Callable[[], None],
    batches: Sequence[Any],
) -> list[Done]:  # fmt: skip
    """Train the model once with each batch: on one device, or on all where none is named."""
    strategy, done = model.distribute_strategy, []
    with contextlib.ExitStack() as stack:
        if on is not None:
            stack.enter_context(_on_one(model, variables, on))
        taken = stack.enter_context(_gradients(model, variables))
        several = on is None and strategy.num_replicas_in_sync > 1
        if several:
            stack.enter_context(strategy.scope())
        model.make_train_function(force=True)
        for batch in batches:
            data = batch
            if several and getattr(strategy, "of_fit", False):
                data = Whole(batch)
            elif several:
                one = tf.data.Dataset.from_tensors(batch)
                data = next(iter(strategy.experimental_distribute_dataset(one)))
            model.reset_metrics()
            try:
                logs = model.train_function([data])
                done.append(_done(model, variables, logs, taken))
            finally:
                back()
    return done


def _done(model: Any, variables: Sequence[Variable], logs: Any, taken: dict[str, Any]) -> Done:
    if isinstance(logs, dict) and logs.keys() == (kept := model.get_metrics_result()).keys():
        logs = kept  # of all replicas, which fit shows at the end of a pass
    state = {each.name: numbers_of(each.copies[0]) for each in variables if not each.shown}
    shown = {name: numbers_of(value) for name, value in _flat(logs).items()}
    return Done(shown, {name: numbers_of(x) for name, x in taken.items()}, state)


@contextlib.contextmanager
def _on_one(model: Any, variables: Sequence[Variable], device: str) -> Iterator[None]:
    """Let a model be one of plain Keras in the block, whose variables are those of one device."""
    with contextlib.ExitStack() as stack:
        if (laid := laid_out(model)) is not None:
            stack.enter_context(laid.aside())
        for each in variables:
            stack.enter_context(instead(each.holder, **{each.attribute: each.copies[0]}))
        stack.enter_context(_private.without_strategy(model))
        for each in _parts(model)[0]:
            stack.enter_context(_private.of_strategy(each, tf.distribute.get_strategy()))
        stack.enter_context(tf.device(device))
        yield


@contextlib.contextmanager
def _gradients(model: Any, variables: Sequence[Variable]) -> Iterator[dict[str, Any]]:
    """Keep the gradients that the optimizers of a model take in the block, on the host."""
    with tf.device(HOST):
        hosts = {
            id(each.copies[0]): (each.name, tf.Variable(tf.zeros_like(each.copies[0])))
            for each in variables
            if getattr(each.holder, "trainable", False) and each.copies[0].dtype.is_floating
        }
    taken: dict[str, Any] = {}

    def keeping(update: Callable[..., Any]) -> Callable[..., Any]:
        def update_step(gradient: Any, variable: Any, learning_rate: Any) -> Any:
            if id(variable) in hosts:
                name, held = hosts[id(variable)]
                taken[name] = held
                with tf.device(HOST):
                    held.assign(tf.convert_to_tensor(gradient))
            return update(gradient, variable, learning_rate)

        return update_step

    with contextlib.ExitStack() as stack:
        for each in _parts(model)[0]:
            stack.enter_context(instead(each, update_step=keeping(each.update_step)))
        yield taken


def in_reverse(batch: Any) -> Any:
    def reverse(x: Any) -> Any:
        if isinstance(x, tf.SparseTensor):
            return tf.sparse.from_dense(tf.reverse(tf.sparse.to_dense(x), [0]))
        if isinstance(x, tf.RaggedTensor):
            return tf.gather(x, tf.range(x.nrows())[::-1])
        return x[::-1] if getattr(x, "shape", None) is not None else x

    return tf.nest.map_structure(reverse, batch)


def _each(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values()]
    return [*value] if isinstance(value, list | tuple) else [value]


def _parts(model: Any) -> tuple[list[Any], list[Variable]]:
    """List the optimizers in a model, and all variables: of layers, metrics, optimizers, seeds."""
    optimizers: dict[int, Any] = {}
    found: dict[int, tuple[Any, str]] = {}
    layers = [model, *_private.layers_of(model), _private.global_seeds()]
    variables, metrics = [*model.variables], [*model.metrics]
    for layer in layers:
        variables += getattr(layer, "variables", [])
        for attribute, value in list(vars(layer).items()):
            for each in _each(value):
                for optimizer in within(each):
                    optimizers[id(optimizer)] = optimizer
                if isinstance(each, keras.Metric):
                    metrics.append(each)
                elif isinstance(each, keras.random.SeedGenerator):
                    variables.append(each.state)
                elif isinstance(each, keras.Variable):
                    variables.append(each)
                elif isinstance(each, tf.Variable | tf.distribute.DistributedValues):
                    found[id(each)] = (layer, attribute if each is value else "")
    for optimizer in optimizers.values():
        variables += optimizer.variables
    of_metrics = [each for metric in metrics for each in metric.variables]
    variables += of_metrics
    shown = {id(each) for each in of_metrics}
    laid = laid_out(model)
    empty = {id(whole) for whole, *_ in laid.cut.cuts} if laid and laid.cut else set()
    for each in variables:
        if id(each) not in empty:  # its parts are there
            found[id(each)] = (each, _private.VALUE)
    strategy, names, made = model.distribute_strategy, set(), []
    for i, (holder, attribute) in enumerate(found.values()):
        value = holder.value if isinstance(holder, keras.Variable) else vars(holder)[attribute]
        name = getattr(holder, "path", attribute)
        name = f"{name} ({i})" if name in names else name
        names.add(name)
        copies = strategy.experimental_local_results(value)
        made.append(Variable(holder, attribute, name, tuple(copies), id(holder) in shown))
    return [*optimizers.values()], made


@contextlib.contextmanager
def undisturbed(model: Any, batch: Any) -> Iterator[tuple[list[Variable], Callable[[], None]]]:
    """Let a model be trained in the block, and be after it what it was before."""
    strategy = model.distribute_strategy
    specs = tf.nest.map_structure(
        lambda x: tf.type_spec_from_value(x) if tf.is_tensor(x) else x, batch
    )
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    exact = tf.config.experimental.tensor_float_32_execution_enabled()
    names = ("train_function", "stop_training", "steps_per_execution", "jit_compile")
    set_to = {name: getattr(model, name) for name in names}
    with in_force(), strategy.scope():
        built_for(model, model.train_step, specs)
    variables = _parts(model)[1]
    before = [[tf.identity(copy).numpy() for copy in each.copies] for each in variables]

    def back() -> None:
        for each, values in zip(variables, before, strict=True):
            for copy, value in zip(each.copies, values, strict=True):
                copy.assign(value)

    tf.config.experimental.enable_tensor_float_32_execution(False)
    model.steps_per_execution, model.jit_compile = 1, False
    try:
        with _private.equal_draws(), equal_seeds():
            yield variables, back
    finally:
        back()
        for name, value in set_to.items():
            setattr(model, name, value)
        tf.config.experimental.enable_tensor_float_32_execution(exact)
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)


def _flat(logs: Any) -> dict[str, Any]:
    pairs = keras.tree.flatten_with_path(logs)
    return {"/".join(map(str, path)) or "loss": x for path, x in pairs if np.ndim(x) == 0}


def numbers_of(x: Any) -> np.ndarray:
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x).astype(float)
