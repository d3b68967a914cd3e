"""What a Keras model has to be, before somebody computes with it: one gate for all rooms."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._names import of_keras

NAME = "laid_out"  # of what a model holds of ours
instead = _private.held  # give one object other methods for a while


def laid_out(model: Any) -> Any:
    """Give what a model holds of ours; None where it is as Keras made it."""
    return vars(model).get(NAME)


def as_made(model: Any) -> Any:
    """Give a model without what it holds of ours: a twin, which has its layers and weights."""
    if (laid := laid_out(model)) is None:
        return model
    twin = _private.twin_of(model)
    laid.leave(twin)
    return twin


def is_model(what: Any) -> bool:
    """Say whether it is a Keras model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(what, keras.Model)


def ready(
    model: Any,
    *,
    built: bool = True,
    compiled: bool = False,
    single: bool = True,
    trained: bool = False,
    functional: bool = False,
) -> None:
    """Raise, with the remedy, unless it is a Keras model that is what its user needs.

    built: it has its weights. compiled: it has an optimizer and a loss. single: it was not built
    under a strategy of several replicas. trained: it has weights to train. functional: its layers
    and what goes from one to the next are known, as in a functional or Sequential model.
    """
    if not is_model(model):
        raise TypeError(f"{model!r:.60} is not a Keras model: give a keras.Model.")
    name = f"the model {model.name!r}"
    if functional:
        _check_functional(model)
    if built and not (model.built and (not functional or model.inputs) and _makes_weights(model)):
        check_call(model)
        raise ValueError(
            f"{name} has no weights yet: begin it with keras.Input, or call it once on a batch, "
            "since model.build(shape) makes weights only where the model says how."
        )
    if compiled and not model.compiled:
        raise ValueError(
            f"{name} is not compiled, so fit has no loss and no optimizer: call "
            "model.compile(optimizer, loss) first."
        )
    if trained and not model.trainable_variables:
        raise ValueError(f"{name} has nothing to train: make some layers trainable.")
    if single and (n := getattr(model.distribute_strategy, "num_replicas_in_sync", 1)) > 1:
        raise ValueError(
            f"{name} was built under a strategy and has {n} copies of its weights: build it once "
            "outside of strategy.scope(), and give that."
        )


def check_call(model: Any) -> None:
    """Raise ValueError for a model without a call, such as a GAN."""
    if type(model).call in (keras.Layer.call, keras.Model.call):
        inside = [key for key, each in vars(model).items() if isinstance(each, keras.Model)]
        raise ValueError(
            f"the model {model.name!r} has a train_step and no call: give the networks that the "
            f"train_step calls ({', '.join(inside)}), each built, one by one, or make the model in "
            "the scope of fit.strategy, which runs the train_step on each device."
        )


def _makes_weights(model: Any) -> bool:
    """Say whether a built model has weights; make those that `build` has left to its first call."""
    if all(layer.built for layer in _private.layers_of(model)):
        return True
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is not None:
        with contextlib.suppress(ValueError, TypeError, tf.errors.InvalidArgumentError):
            model(keras.tree.map_shape_structure(
                lambda one: tf.zeros([1 if n is None else n for n in one]), shape
            ))  # fmt: skip
    return bool(model.weights)


def _check_functional(model: Any) -> None:
    kind = type(model).__name__
    if not isinstance(model, keras.Function | keras.Sequential):
        raise TypeError(
            f"{kind} has no list of layers to take apart: give a functional or a Sequential Keras "
            "model."
        )
    if not of_keras(type(model).call):
        raise TypeError(
            f"{kind} has a `call` of its own, which its layers alone do not do: give the "
            "functional model inside it."
        )


def takes_training(layer: Any) -> bool:
    """Say whether a layer, a model or another operation is called with training=True or False."""
    return "training" in inspect.signature(layer.call).parameters


def graph_of(model: Any) -> Any:
    """Give a functional or Sequential model as a functional one of the same layers."""
    if not isinstance(model, keras.Sequential):
        return model
    outputs = model.outputs if len(model.outputs) > 1 else model.outputs[0]
    return keras.Model(model.inputs[0], outputs, name=model.name)
