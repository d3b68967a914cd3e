"""A Keras model's way forward, and its training step, as graphs: nothing runs, nothing is held."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import error_line
from mgpu_helpers._given import given
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import as_made, is_model, laid_out, ready


@dataclass(frozen=True)
class TrainingStep:
    """A training step as a concrete function, with the variables that stay from step to step."""

    concrete: Any
    weights: tuple[Any, ...]  #: all of the model's, those that are not trained too
    slots: tuple[Any, ...]  #: the optimizer's: of most their shapes only, nothing is held for them
    states: tuple[Any, ...] = ()  #: those of the metrics, likewise


def parameters(model: Any, *, trainable: bool = False) -> int:
    """Count a built model's parameters; with trainable=True those that have a gradient.

    >>> import keras
    >>> parameters(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    8
    """
    ready(model, single=False)
    found = model.trainable_weights if trainable else model.weights
    return sum(weight.shape.num_elements() for weight in found)


def concrete_of(
    model_or_function: Any, *args: Any, batch: Any, training: bool, length: Any = None
) -> Any:
    """Make the graph of one call: of a model for a batch, or of a function for its arguments."""
    if is_model(model_or_function):
        ready(model_or_function, single=False)
        if args:
            raise ValueError(
                "a model is counted for a batch, not for arguments: leave them out, or give the "
                "function model.call."
            )
        if training:
            return training_step(model_or_function, batch, "sgd", length).concrete
        x = given(model_or_function, batch, length).specs[0]
        forward = tf.function(lambda x: model_or_function(x, training=False))
        return forward.get_concrete_function(x)
    if hasattr(model_or_function, "captured_inputs") and not args:
        return model_or_function
    if training or length is not None or batch != 1:
        raise ValueError(
            "batch=, length= and training= are for Keras models: give a function its own "
            "arguments, and have it compute its gradients."
        )
    return tf.function(model_or_function).get_concrete_function(*args)


def training_step(
    model: Any, batch: Any, optimizer: Any = None, length: Any = None
) -> TrainingStep:
    """Make the graph of what `fit` runs for a batch: the model's own `train_step`. Nothing runs.

    The step is that of a twin, which shares the model's weights and is compiled as the model is:
    its loss, metrics and optimizer. optimizer overrules the latter: "adam", "sgd", "momentum" or
    another name that Keras knows, or an optimizer, whose settings are taken. Slots and metrics that
    are not there yet are made without memory; model, optimizer and metrics stay as they were.

    batch is a number of examples, and length the one number that all open sizes of inputs are; or
    either is what `fit` takes: a batch (x, y, sample_weight), or a dataset. Where that has no
    labels, they are like the outputs, and whole numbers where the loss is a sparse one. A model
    that is not compiled is trained with Adam, and one without a loss by the mean of its outputs. Of
    a model that was made under a strategy, the step is that of one replica; of one that `fit.use`
    has laid out that of one device, in its pieces and with its recompute.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> step = training_step(model, batch=4)
    >>> [tuple(slot.shape) for slot in step.slots[2:]]  # after the steps and the rate
    [(3, 2), (3, 2), (2,), (2,)]
    """
    laid, model = laid_out(model), on_one_device(model)
    x, y, weights = given(model, batch, length).specs
    refused: list[Exception] = []
    for labels in _labels(model, x) if y is None else [y]:
        with without_values(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Keras says of a step, it says in fit
            twin = _twin(model, optimizer)
            if laid is not None:
                laid.onto(twin)
            step = tf.autograph.experimental.do_not_convert(lambda *data: twin.train_step(data))  # noqa: B023
            data = (x, labels) if weights is None else (x, labels, weights)
            try:
                concrete = tf.function(step).get_concrete_function(*data)
            except Exception as error:  # whatever a loss of one's own says of such labels
                refused.append(error)
                continue
        states = [v for metric in twin.metrics for v in metric.variables]
        slots = tuple(twin.optimizer.variables)
        return TrainingStep(concrete, tuple(model.weights), slots, tuple(states))
    why = error_line(refused[0])
    if "custom_gradient" in why:  # what Keras's remat ends in
        why += " A keras.RematScope does not work with TensorFlow: make the model without it."
    raise ValueError(
        f"a step of the model {model.name!r} cannot be made for "
        f"{'labels like its outputs' if y is None else 'the data that were given'}: {why}"
    ) from refused[0]


def replicas_of(model: Any) -> int:
    """Count the replicas of the strategy that a model was made under; 1 without one."""
    return getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)


def on_one_device(model: Any) -> Any:
    """Give a built model as one device has it; of one made under a strategy, a replica of it.

    That is made anew, compiled as the model is, and its weights have shapes and no values.
    """
    ready(model, single=False)
    model = as_made(model)
    if replicas_of(model) == 1:
        return model
    synchronized = getattr(model.distribute_strategy, "synchronized", False)
    try:
        if tf.distribute.has_strategy():
            raise ValueError("this was called inside of a scope.")
        with without_values():
            made = keras.models.clone_model(model)
        if type(made).train_step is not type(model).train_step:
            raise TypeError("it has a train_step of its own.")
    except Exception as error:  # whatever a class of one's own says
        why = error_line(error)
        raise ValueError(
            f"the model {model.name!r} was built under a strategy, and a replica of it cannot be "
            f"made anew to be counted: {why} Build it once outside of strategy.scope(), and give "
            "that."
        ) from error
    for layer in _private.layers_of(made):
        if synchronized and isinstance(layer, keras.layers.BatchNormalization):
            _private.moments_by_sums(layer)
    if model.compiled:
        settings = _private.compiled_with(model) | {"optimizer": anew(model.optimizer)}
        keras.Model.compile(made, **settings)
    return made


def slot_bytes(model: Any, optimizer: Any = None) -> int:
    """Count the bytes that the optimizer of `training_step` keeps, by one weight of each shape."""
    with without_values():
        made = _twin(model, optimizer, build=False).optimizer
        if made.built:
            return sum(v.shape.num_elements() * v.value.dtype.size for v in made.variables)
        found = 0
        kinds = Counter((v.shape, v.dtype) for v in model.trainable_variables)
        one = {(v.shape, v.dtype): v for v in model.trainable_variables}
        for kind, several in kinds.items():
            (own := anew(made)).build([one[kind]])
            sizes = [v.shape.num_elements() * v.value.dtype.size for v in own.variables]
            found += several * sum(sizes[2:])  # after the steps and the rate
    return found


def _twin(model: Any, wanted: Any, build: bool = True) -> Any:
    """Make a model of the same weights, compiled anew as the model is; the model is not touched.

    Its optimizer has its slots; with build=False only where the model's own has.
    """
    settings = _private.compiled_with(model) if model.compiled else {}
    own = model.optimizer if model.compiled and wanted is None else None
    if own is not None and own.built:
        optimizer = own
    elif wanted == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    else:  # what Keras makes of an optimizer is that one
        optimizer = anew(own or keras.optimizers.get(wanted or "adam"))
    for kind in ("metrics", "weighted_metrics"):
        settings[kind] = keras.tree.map_structure(_metric_anew, settings.get(kind))
    if settings.get("loss") is None:
        settings["loss"] = _mean
    settings |= {"optimizer": optimizer, "auto_scale_loss": own is None, "jit_compile": False}
    twin = _private.twin_of(model)
    keras.Model.compile(twin, **settings)
    if build and model.trainable_variables and not twin.optimizer.built:
        twin.optimizer.build(model.trainable_variables)
    return twin


def _mean(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(outputs)


def anew(optimizer: Any) -> Any:
    """Make an optimizer of the same settings; its rate may be one that Keras cannot make anew."""
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception:
        if inner := getattr(optimizer, "inner_optimizer", None):
            return type(optimizer)(anew(inner))
        rate, settings = _private.rate_and_settings(optimizer)
        made = type(optimizer).from_config(settings)
        made.learning_rate = rate
        return made


def _metric_anew(metric: Any) -> Any:
    """Make a metric anew: one may make its variables in its first step."""
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    try:
        return type(metric).from_config(metric.get_config())
    except Exception:  # a class of one's own that takes other arguments
        return metric


def outputs_of(model: Any, inputs: Any) -> Any:
    """Describe what a model makes of inputs, for a batch of any size."""
    return model.compute_output_spec(keras.tree.map_structure(
        lambda x: keras.KerasTensor((None, *x.shape[1:]), x.dtype.name), inputs
    ))  # fmt: skip


def _labels(model: Any, inputs: Any) -> list[Any]:
    """Describe the labels of a batch: as the losses say, then whole numbers for all outputs."""
    outputs, batch = outputs_of(model, inputs), keras.tree.flatten(inputs)[0].shape[0]

    def label(output: Any, loss: Any) -> Any:
        shape, dtype = (batch, *output.shape[1:]), keras.config.floatx()
        if _sparse(loss):
            shape, dtype = shape[:-1], "int32"
        return tf.TensorSpec(shape, dtype)

    flat, losses = keras.tree.flatten(outputs), getattr(model, "loss", None)
    if isinstance(losses, dict):
        keys = sorted(outputs) if isinstance(outputs, dict) else []
        names = keys if {*keys} & {*losses} else model.output_names
        losses = [losses.get(name) for name in names]
    elif not isinstance(losses, (list, tuple)):
        losses = [losses] * len(flat)
    return [
        keras.tree.pack_sequence_as(outputs, list(map(label, flat, each)))
        for each in (losses, ["sparse"] * len(flat))
    ]


def _sparse(loss: Any) -> bool:
    names = [getattr(loss, "__name__", loss), *(each.__name__ for each in type(loss).__mro__)]
    return any("sparse" in str(name).lower() for name in names)


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Let models that are made here have weights with shapes and no values, which take no memory.

    So a model that this machine could not hold is counted, by `predict`, `fits`, `plan` and
    `scaling.Workload.of`; it cannot be called or trained. What reads values fails in here, such as
    `model.quantize`: give layers a dtype policy that is quantized instead.

    >>> import keras
    >>> from mgpu_helpers import memory
    >>> with memory.without_values():
    ...     layers = [keras.Input((100_000,)), keras.layers.Dense(1_000_000)]
    ...     model = keras.Sequential(layers)  # 400 GB
    >>> memory.predict(model, 32).weights
    400004000000
    """
    with tf.variable_creator_scope(_without_memory):
        yield


def _without_memory(create: Callable[..., Any], **settings: Any) -> Any:
    """Make a variable that has a shape and nothing in it."""
    if not callable(initial := settings["initial_value"]):
        return create(**settings)  # one number: the steps so far, the learning rate
    with tf.Graph().as_default():
        value = tf.convert_to_tensor(initial(), settings.get("dtype"))
    kept = {name: settings.get(name) for name in ("trainable", "name")}
    return _private.variable_without_value(shape=value.shape, dtype=value.dtype, **kept)
