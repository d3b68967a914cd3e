"""A Keras model's way forward, and its training step, as graphs: nothing runs, nothing is held."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.wording import whole_number


@dataclass(frozen=True)
class TrainingStep:
    """A training step as a concrete function, with the variables that stay from step to step."""

    concrete: Any
    weights: tuple[Any, ...]  #: all of the model's, those that are not trained too
    slots: tuple[Any, ...]  #: the optimizer's: their shapes only, nothing is held for them


def parameters(model: Any, *, trainable: bool = False) -> int:
    """Count a built model's parameters; with trainable=True those that have a gradient.

    >>> import keras
    >>> parameters(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    8
    """
    check_built(model)
    found = model.trainable_weights if trainable else model.weights
    return sum(weight.shape.num_elements() for weight in found)


def concrete_of(model_or_function: Any, *args: Any, batch: int, training: bool) -> Any:
    """Make the graph of one call: of a model for a batch, or of a function for its arguments."""
    import numpy as np
    import tensorflow as tf

    if is_model(model_or_function):
        check_built(model_or_function)
        if args:
            raise ValueError(
                "a model is counted for a batch, not for arguments: leave them out, or give the "
                "function model.call."
            )
        if training:
            return training_step(model_or_function, batch, "sgd").concrete
        given = inputs_of(model_or_function, batch)
        forward = tf.function(lambda x: model_or_function(x, training=False))
        return forward.get_concrete_function(given)
    if not callable(model_or_function):
        raise TypeError(f"{model_or_function!r:.60} is neither a Keras model nor a function.")
    if hasattr(model_or_function, "captured_inputs") and not args:
        return model_or_function
    if training or batch != 1:
        raise ValueError(
            "batch= and training= are for Keras models: give a function its own arguments, and "
            "have it compute its gradients."
        )
    args = tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a, args
    )
    function = model_or_function
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    return function.get_concrete_function(*args)


def training_step(
    model: Any,
    batch: int,
    optimizer: Any = "adam",
    loss: Callable[[Any], Any] | None = None,
) -> TrainingStep:
    """Make the graph of one training step: forward, loss, gradients, update. Nothing runs.

    optimizer is "adam", "sgd", "momentum" or another name that Keras knows, an optimizer, or None
    for the model's own; it is made anew without memory for its slots, and neither it nor the model
    is changed. loss takes the model's outputs and gives a number. Without one it is what the model
    was compiled with, for labels like the outputs (whole numbers where the loss is a sparse one);
    an output that was given no loss has none. For a model without any it is the outputs' mean.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> step = training_step(model, batch=4)
    >>> [tuple(slot.shape) for slot in step.slots[2:]]  # after the steps and the rate
    [(3, 2), (3, 2), (2,), (2,)]
    """
    import tensorflow as tf

    given = inputs_of(model, batch)
    check_single(model)
    with tf.variable_creator_scope(_without_memory):
        own = _twin(model, optimizer)
        own.build(model.trainable_variables)
    measured = loss or _loss_of(model)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = own.scale_loss(measured(model(x, training=True)))
        own.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    concrete = tf.function(step).get_concrete_function(given)
    return TrainingStep(concrete, tuple(model.weights), tuple(own.variables))


def is_model(what: Any) -> bool:
    """Say whether it is a Keras model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(what, keras.Model)


def takes_training(layer: Any) -> bool:
    """Say whether a layer, a model or another operation is called with training=True or False."""
    return "training" in inspect.signature(layer.call).parameters


def check_built(model: Any) -> None:
    """Raise unless it is a Keras model that has its weights."""
    if not is_model(model):
        raise TypeError(f"{model!r} is not a Keras model: give a keras.Model.")
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} was not built and has no weights yet: call it once on a "
            "batch, or model.build(shape of a batch)."
        )


def check_single(model: Any) -> None:
    """Raise if a model has a copy of its weights for each replica of a strategy."""
    if (n := getattr(model.distribute_strategy, "num_replicas_in_sync", 1)) > 1:
        raise ValueError(
            f"the model {model.name!r} was built under a strategy and has {n} copies of its "
            "weights: build it once outside of strategy.scope(), and give that."
        )


def inputs_of(model: Any, batch: int) -> Any:
    """Describe a batch of the model's inputs, as `tf.TensorSpec`."""
    import keras
    import tensorflow as tf

    check_built(model)
    batch = whole_number("batch", batch, "a number of examples", 1)
    given = [(tuple(each.shape), each.dtype) for each in getattr(model, "inputs", None) or ()]
    if not given:  # a subclassed model knows the shape that it was built for, but no type
        shape = (model.get_build_config() or {}).get("input_shape")
        given = [((None, *shape[1:]), "float32")] if isinstance(shape, (tuple, list)) else []
    if not given or any(isinstance(size, (tuple, list)) for shape, _ in given for size in shape):
        raise ValueError(
            f"the model {model.name!r} does not say what its inputs are: make it with keras.Input, "
            "or count and trace a function that calls it on a batch."
        )
    # A Sequential without Input has the size of the batch that it was first called on.
    any_size = isinstance(model, keras.Sequential) and not any(
        getattr(layer, "stateful", False) for layer in model.layers
    )
    for shape, _ in given:
        if None in shape[1:] or shape[0] not in (None, batch) and not any_size:
            raise ValueError(
                f"the model {model.name!r} takes inputs of shape {shape}, which do not say what a "
                f"batch of {batch} is: give keras.Input every size except the batch."
            )
    specs = [tf.TensorSpec((batch, *shape[1:]), dtype) for shape, dtype in given]
    if len(specs) == 1:
        return specs[0]
    structure = model.input if isinstance(model, keras.Function) else specs
    return keras.tree.pack_sequence_as(structure, specs)


def _twin(model: Any, wanted: Any) -> Any:
    """Make the optimizer that is wanted anew, of the same settings."""
    import keras

    if wanted is None and (wanted := getattr(model, "optimizer", None)) is None:
        raise ValueError(
            f"the model {model.name!r} was not compiled and has no optimizer: name one, such as "
            "optimizer='adam'."
        )
    if isinstance(wanted, keras.optimizers.Optimizer):
        return type(wanted).from_config(wanted.get_config())
    if wanted == "momentum":
        return keras.optimizers.SGD(momentum=0.9)
    try:
        return keras.optimizers.get(wanted)
    except ValueError:
        raise ValueError(
            f"optimizer={wanted!r} is not known to Keras: use 'adam', 'sgd', 'momentum' or a "
            "keras.optimizers.Optimizer."
        ) from None


def _without_memory(create: Callable[..., Any], **settings: Any) -> Any:
    """Make a variable that has a shape and nothing in it."""
    import tensorflow as tf

    if not callable(initial := settings["initial_value"]):
        return create(**settings)  # one number: the steps so far, the learning rate
    with tf.Graph().as_default():
        value = tf.convert_to_tensor(initial(), settings.get("dtype"))
    kept = {name: settings.get(name) for name in ("trainable", "name")}
    return private.variable_without_value(shape=value.shape, dtype=value.dtype, **kept)


def _loss_of(model: Any) -> Callable[[Any], Any]:
    """Give the loss of a compiled model as a function of its outputs; else their mean."""
    import keras
    import tensorflow as tf

    def each(loss: Any, output: Any) -> Any:
        loss = keras.losses.get(loss)
        name = getattr(loss, "__name__", type(loss).__name__)
        shape, dtype = output.shape, output.dtype
        if "sparse" in name.lower():
            shape, dtype = shape[:-1], tf.int32
        return tf.reduce_mean(loss(tf.compat.v1.placeholder(dtype, shape), output))

    def measured(outputs: Any) -> Any:
        flat, losses = tf.nest.flatten(outputs), getattr(model, "loss", None)
        if isinstance(losses, dict):
            keys = sorted(outputs) if isinstance(outputs, dict) else []
            names = keys if {*keys} & {*losses} else model.output_names
            losses = [losses.get(name) for name in names]
        elif not isinstance(losses, (list, tuple)):
            losses = [losses] * len(flat)
        found = [each(*pair) for pair in zip(losses, flat, strict=True) if pair[0] is not None]
        return tf.add_n([*(found or map(tf.reduce_mean, flat)), *model.losses])

    return measured
