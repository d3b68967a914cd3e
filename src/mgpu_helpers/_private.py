"""Every name of TensorFlow and Keras that we use though it is not public, with the reason.

Nothing else in this package may use one. Each has a canary in `tests/test_private.py`, which fails
with its name where a new version has another, and nothing here fails silently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mgpu_helpers._later import keras, tf

# TensorFlow's runtime writes these into graphs and traces. They are types of operations and parts
# of names in what it hands out, and no public list says them.
MUST_COMPILE = "_XlaMustCompile"  # the attribute of a function or call that XLA compiles
PLACED = "_class"  # the attribute of an operation that has to be where another is
ARGUMENT, RESULT = "_Arg", "_Retval"  # the ends of a graph that the executor was given
BOUNDARY = {ARGUMENT, RESULT, "_DeviceArg", "_DeviceRetval", "_EagerConst"}
SENDS, RECEIVES = {"_Send", "_HostSend"}, {"_Recv", "_HostRecv"}  # a copy between devices
ONEDNN = "_Mkl"  # begins the type of an operation that oneDNN computes
FED = "_arg_"  # begins the name of what a Session is fed
LOOP = "_cloop"  # begins the name of what a loop on several devices adds


class Unwrapped(ValueError):
    """An error around which Keras writes no list of what a layer was called with."""

    _keras_call_info_injected = True


def started() -> bool:
    """Say whether TensorFlow has started, so that its devices cannot change any more.

    Every public function that would know starts it.
    """
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


def configured() -> Any:
    """Give the `ConfigProto` of what `tf.config` was told.

    A Session takes a whole one, and `tf.config` gives single settings only.
    """
    from tensorflow.python.eager import context

    return context.context().config


def device_around() -> str | None:
    """Name the device of the surrounding `tf.device`, None without one.

    The device of a new tensor would not do: without `tf.device` it says where TensorFlow chose.
    """
    from tensorflow.python.eager import context

    return context.context().device_name or None


@contextlib.contextmanager
def pretended(gpus: Sequence[Any]) -> Iterator[None]:
    """Let TensorFlow be as if it had not started and these `PhysicalDevice` were its GPUs.

    There is no public way to have devices that are not there, or to start again.
    """
    from tensorflow.python.eager import context

    before, inside = context.context(), context.Context()
    cpus = [d for d in inside.list_physical_devices() if d.device_type == "CPU"]
    _replace(inside, "_physical_devices", [*cpus, *gpus])
    _replace(inside, "_visible_device_list", [*cpus, *gpus])
    _replace(inside, "_memory_growth_map", dict.fromkeys(gpus))
    context._set_context(inside)
    try:
        yield
    finally:
        context._set_context(before)


def _replace(of: Any, name: str, value: Any) -> None:
    """Set an attribute that is there: one that has another name by now is missing."""
    getattr(of, name)
    setattr(of, name, value)


def collect_graphs() -> None:
    """Let TensorFlow keep each graph that it places, also of what ran before, until collected.

    `tf.summary.trace_on` has no devices, and a profile none of the operations' names.
    """
    from tensorflow.python.eager import context

    context.context().ensure_initialized()
    context.context().clear_kernel_cache()  # what ran before is placed anew, and so reported
    context.context().enable_graph_collection()


def collected_graphs() -> list[Any]:
    """Give the graphs since `collect_graphs`, as they were placed, and keep no more of them."""
    from tensorflow.python.eager import context

    metadata = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    return [graph.post_optimization_graph for graph in metadata.function_graphs]


def function_graph(graph: Any, name: str) -> Any:
    """Give the graph of a function that an operation of this graph calls.

    In public there is its GraphDef only, which has neither tensors nor shapes.
    """
    return graph._get_function(name).graph


def wait_for(op: Any, earlier: Iterable[Any]) -> None:
    """Let an operation of a graph wait for others.

    `tf.control_dependencies` does so for operations that are still to be made.
    """
    op._add_control_inputs(list(earlier))


def keep_apart(op: Any) -> None:
    """Let Grappler leave an operation as it is: it makes one sum of several that follow."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))


def place(op: Any, device: str) -> None:
    """Place an operation of a graph that is made already.

    `tf.device` places those that are still to be made.
    """
    op._set_device(device)


def captured(placeholder: Any) -> Any:
    """Give what a function's graph has a placeholder for: a tensor outside of it; None for others.

    In public the lists of both are known when the graph is finished.
    """
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def move(variable: Any, device: str) -> None:
    """Let a variable of Keras have its value on another device.

    In public that takes another variable, which layers and optimizers do not know. An optimizer
    knows TensorFlow's variable by a name, which the new one has, too. The old one is left empty, so
    that what was traced with it raises an error, instead of training what nobody reads.
    """
    held = variable.value
    with tf.init_scope(), tf.device(device):
        moved = tf.Variable(
            tf.identity(held), trainable=held.trainable, name=variable.name, dtype=held.dtype,
            aggregation=held.aggregation, synchronization=held.synchronization,
        )  # fmt: skip
        _replace(moved, "_unique_id", held._unique_id)
        _replace(variable, "_value", moved)
        tf.raw_ops.AssignVariableOp(resource=held.handle, value=tf.zeros([0], held.dtype))


VALUE = "_value"  # the attribute of a variable of Keras that holds TensorFlow's


@contextlib.contextmanager
def held(by: Any, **values: Any) -> Iterator[None]:
    """Let one object have other attributes or methods in the block: those that it has, replaced."""
    for name in values:
        getattr(by, name)  # one that has another name by now is missing
    before = {name: vars(by)[name] for name in values if name in vars(by)}
    vars(by).update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            del vars(by)[name]
        vars(by).update(before)  # as `fit.use` has given a model a train_step


def global_seeds() -> Any:
    """Give what Keras draws seeds from where a layer or a call has none of its own."""
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator()


@contextlib.contextmanager
def equal_draws() -> Iterator[None]:
    """Let what is drawn in the block be the same for each example, in whichever part of a batch.

    TensorFlow's functions call operations by these names, with the shape first.
    """
    from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

    def for_one(draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(shape: Any, *args: Any, **named: Any) -> Any:
            if len(shape) == 0 if isinstance(shape, list | tuple) else shape.shape[0] == 0:
                return draw(shape, *args, **named)
            shape = tf.convert_to_tensor(shape)
            first = draw(tf.concat([tf.ones([1], shape.dtype), shape[1:]], 0), *args, **named)
            return tf.broadcast_to(first, shape)

        return drawn

    def seeded(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda shape, dtype, **_: draw(shape, [0, 0], dtype=dtype)

    def integers(shape: Any, low: Any, high: Any, **_: Any) -> Any:
        return tf.random.stateless_uniform(shape, [0, 0], low, high, low.dtype)

    stateless = (
        "stateless_random_normal_v2", "stateless_random_uniform_v2",
        "stateless_random_uniform_int_v2", "stateless_random_uniform_full_int_v2",
        "stateless_truncated_normal_v2",
    )  # fmt: skip
    ops = gen_stateless_random_ops_v2
    with held(ops, **{name: for_one(getattr(ops, name)) for name in stateless}), held(
        gen_random_ops, random_uniform_int=integers,
        random_standard_normal=seeded(tf.random.stateless_normal),
        random_uniform=seeded(tf.random.stateless_uniform),
        truncated_normal=seeded(tf.random.stateless_truncated_normal),
    ):  # fmt: skip
        yield


def resource_data(tensor: Any) -> Any:
    """Give type and shape of the variable behind a handle in a graph.

    A public way needs the `tf.Variable`, and a replica's is not known by its handle.
    """
    from tensorflow.python.ops.handle_data_util import get_resource_handle_data

    return get_resource_handle_data(tensor)


def variable_without_value(**settings: Any) -> Any:
    """Make a variable that has a shape, and no memory.

    A `tf.Variable` takes its value with it.
    """
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    return UninitializedVariable(**settings)


def makes_variables(error: Exception) -> bool:
    """Say whether it is TensorFlow's error for a function that makes variables at each call.

    `tf.errors` has it not.
    """
    from tensorflow.python.eager.lift_to_graph import UnliftableError

    return isinstance(error, UnliftableError) or "singleton tf.Variable" in str(error)


def uses_onednn() -> bool:
    """Say whether TensorFlow computes with oneDNN.

    `tf.sysconfig.get_build_info` does not say it, and TF_ENABLE_ONEDNN_OPTS is one reason of two.
    """
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def layers_of(model: Any) -> list[Any]:
    """List a model's layers at any depth, those in layers of one's own too, and itself.

    `model.layers` stops at the first floor, and a layer that is no model has no such list.
    """
    return list(model._flatten_layers())


def inside(layer: Any) -> list[Any]:
    """List the layers that a layer has made itself, each once.

    In public a layer that is no model has no such list.
    """
    return list(dict.fromkeys(layer._flatten_layers(include_self=False, recursive=False)))


def of_attention(layer: Any) -> dict[str, Any]:
    """Give the projections of a layer of attention with heads; nothing for other layers.

    In public nothing says what a layer of KerasHub, or Keras's with fewer heads of keys, has made.
    """
    names = ("query", "key", "value", "output", "gate")
    found = {n: getattr(layer, f"_{n}_dense", None) or getattr(layer, f"{n}_dense", None)
             for n in names}  # fmt: skip
    return {n: own for n, own in found.items() if own} if all(map(found.get, names[:4])) else {}


# What layers of attention call their numbers of heads: of queries, keys, and queries for each key.
QUERIES, KEYS = ("num_query_heads", "num_heads", "_num_heads"), ("num_key_value_heads",)
FOR_EACH_KEY = ("num_key_value_groups", "num_repeats")


def calls_of(model: Any) -> list[Any]:
    """List the calls of layers in the order in which Keras runs them: each after what it needs.

    Each has operation, arguments, input_tensors and outputs. In public, `model.operations` has a
    layer once that is called twice, and nothing says who is given what. (`keras.Model(crossing,
    outputs)` would run a part of them, but it adds calls to the layers of the caller's model.)
    """
    by_depth = model._nodes_by_depth
    calls = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in calls if not node.is_input]


def run_call(call: Any, values: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give the arguments of one of `calls_of`, with these values by the `id` of the tensor."""
    return call.arguments.fill_in(values)


@contextlib.contextmanager
def call_of(model: Any, training: bool | None = None) -> Iterator[None]:
    """Let what layers add to the loss in the block be that of one call of the model.

    Layers forget their losses at the start of a call. Outside of one each would do so for itself,
    and a layer that is called twice would lose the first. training is what layers in a layer that
    is not told of it are told.
    """
    context = model._get_call_context()
    if training is not None:
        context.set_value("training", training)
    try:
        yield
    finally:
        model._maybe_reset_call_context()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Let variables be read in their own type in the block.

    Within a layer of half precision each would be cast to it, those of layers inside that are not
    of half precision, too. In a scope of no type a variable would be taken for one of floatx.
    """
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("autocast_scope")
    global_state.set_global_attribute("autocast_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("autocast_scope", before)


def autocast_here() -> Any:
    """Give a block in which variables are read as here: in a call of half precision, in halves."""
    from keras.src.backend import AutocastScope, get_autocast_scope

    scope = get_autocast_scope()
    return contextlib.nullcontext() if scope is None else AutocastScope(scope.dtype)


def unrecorded() -> Any:
    """Let no GradientTape record what runs in the block.

    In public only the tape itself stops, and that of `fit` nobody is given.
    """
    from tensorflow.python.eager import record

    return record.stop_recording()


def mask_of(x: Any) -> Any:
    """Give the mask that a layer has put on a tensor, which losses skip; None without one.

    In public only a layer is told of it.
    """
    from keras.src.backend import get_keras_mask

    return get_keras_mask(x)


def set_mask(x: Any, mask: Any) -> None:
    """Put a mask on a tensor, as a layer would: a copy of the tensor does not have it."""
    from keras.src.backend import set_keras_mask

    set_keras_mask(x, mask)


def logits_of(x: Any) -> Any:
    """Give what a softmax or sigmoid made a tensor of, which cross-entropies take; None for others.

    In public the activation is told by nobody. From probabilities Keras clips those below 1e-7.
    """
    return getattr(x, "_keras_logits", None)


def set_logits(x: Any, logits: Any) -> None:
    """Put on a tensor what it was made of, as an activation would: a copy does not have it."""
    x._keras_logits = logits


def losses_kept(layer: Any) -> list[Any]:
    """Give the list in which a layer keeps what it adds by `add_loss`, of all replicas."""
    return layer._losses


def moments(layer: Any, x: Any, mask: Any) -> tuple[Any, Any]:
    """Compute the mean and variance by which a BatchNormalization would normalize."""
    return layer._moments(x, mask)


def moments_of_sums(
    layer: Any, inputs: Any, mask: Any, add: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Compute the mean and variance of a batch of which add(sums) adds up the sums of all parts.

    The sums are of the distances from the moving mean: squares of large numbers would cancel.
    """
    axis = layer.axis % len(inputs.shape)
    others = [a for a in range(len(inputs.shape)) if a != axis]
    shape = [1 if a in others else -1 for a in range(len(inputs.shape))]
    center = tf.stop_gradient(tf.cast(tf.convert_to_tensor(layer.moving_mean), inputs.dtype))
    off = inputs - tf.reshape(center, shape)
    there = tf.ones_like(off)
    if mask is not None:
        there = tf.cast(tf.broadcast_to(mask[..., None], tf.shape(off)), off.dtype)
        off = tf.where(there > 0, off, 0)
    sums = tf.stack([tf.reduce_sum(each, others) for each in (off, off**2, there)])
    first, second, count = tf.unstack(add(sums))
    divisor = count + (0.0 if mask is None else 1e-7)  # as Keras has it with a mask
    mean = (first + center * count) / divisor
    apart = mean - center
    return mean, (second - 2 * apart * first + count * apart**2) / divisor


def moments_by_sums(layer: Any) -> None:
    """Let a BatchNormalization compute as one of several replicas does, whose sums are its own."""
    vars(layer)["_moments"] = lambda inputs, mask: moments_of_sums(
        layer, inputs, mask, lambda sums: sums
    )


def with_moments(layer: Any, mean: Any, variance: Any) -> Any:
    """Let a BatchNormalization take these moments in a block for those of its inputs.

    In public it can only be `synchronized=True`, within `tf.distribute`.
    """
    return held(layer, _moments=lambda inputs, mask: (mean, variance))


def compiled_with(model: Any) -> dict[str, Any]:
    """Give what `model.compile` was given, as it was given.

    `get_compile_config` writes it down, which fails for a loss or a metric of one's own.
    """
    return dict(model._compile_config.config)


def twin_of(model: Any) -> Any:
    """Make a model of the same layers and weights that can be compiled without touching this one.

    `keras.models.clone_model` makes new weights, and has no `train_step` of one's own.
    """
    twin = object.__new__(type(model))
    vars(twin).update(vars(model))
    _replace(twin, "_compile_loss", None)
    _replace(twin, "_compile_metrics", None)
    return twin


def rate_and_settings(optimizer: Any) -> tuple[Any, dict[str, Any]]:
    """Give an optimizer's rate as it was given, and its other settings.

    `learning_rate` is the number that it is now, and `get_config` fails for a function.
    """
    bare = object.__new__(type(optimizer))
    vars(bare).update(vars(optimizer))
    _replace(bare, "_learning_rate", None)
    return optimizer._learning_rate, bare.get_config()


def slots_of(optimizer: Any) -> dict[int, list[Any]]:
    """Give the variables that an optimizer keeps for each one that it trains, by its `id`.

    `optimizer.variables` has them in one list, and their names tell two weights of one path apart
    no more. Numbers, such as the step, belong to none.
    """
    trained = optimizer._trainable_variables
    lists = [each for each in vars(optimizer).values() if isinstance(each, list)
             and each is not trained and len(each) == len(trained)]  # fmt: skip
    return {
        id(variable): [x for x in kept if isinstance(x, keras.Variable) and len(x.shape)]
        for variable, *kept in zip(trained, *lists, strict=True)
    }


def stand_in(model: Any, variables: Sequence[Any], others: Sequence[Any]) -> None:
    """Let others be what a layer of the model has to train, in the place of some in a row.

    In public a layer has the variables that it has made.
    """
    for layer in layers_of(model):
        own = layer._trainable_variables
        if (k := next((k for k, v in enumerate(own) if v is variables[0]), None)) is not None:
            own[k : k + len(variables)] = others
            return
    raise ValueError(f"no layer has {variables[0].path} to train.")


def exclude_too(optimizer: Any, variable: Any, others: Iterable[Any]) -> None:
    """Let an optimizer leave variables out of weight decay where it does so with this one.

    `exclude_from_weight_decay` is for an optimizer that has no variables yet, and forgets others.
    """
    excluded: set[Any] = getattr(optimizer, "_exclude_from_weight_decay", set())
    if optimizer._var_key(variable) in excluded:
        excluded.update(map(optimizer._var_key, others))


def without_all_reduce(optimizer: Any) -> Any:
    """Let an optimizer take gradients in a block as they are, where there is one replica.

    Its sum over replicas sends all of them through one operation, which lies on one device.
    """
    return held(optimizer, _all_reduce_sum_gradients=list)


# What `fit` mends in Keras, by a word for it. What has a public name is mended by that.
KERAS = {
    "scale": "keras.src.losses.loss.scale_loss_for_distribution",
    "unscale": "keras.src.losses.loss.unscale_loss_for_distribution",
    "reduce": "keras.src.losses.loss.reduce_weighted_values",
    "losses": "keras.src.trainers.compile_utils.CompileLoss.call",
    "moments": "keras.layers.BatchNormalization._moments",
    "built": "keras.layers.BatchNormalization.build",
    "seeds": "keras.random.SeedGenerator.next",
    "sum": "keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients",
    "apply": "keras.optimizers.Optimizer.apply",
    "apply_scaled": "keras.optimizers.LossScaleOptimizer.apply",
    "build": "keras.src.backend.tensorflow.trainer.TensorFlowTrainer._maybe_symbolic_build",
    "fit": "keras.Model.fit",
    "evaluate": "keras.Model.evaluate",
    "predictions": "keras.Model.predict",
    "train_on_batch": "keras.Model.train_on_batch",
    "test_on_batch": "keras.Model.test_on_batch",
    "predict_on_batch": "keras.Model.predict_on_batch",
    "compiles": "keras.src.trainers.trainer.Trainer._resolve_auto_jit_compile",
    "train": "keras.Model.make_train_function",
    "test": "keras.Model.make_test_function",
    "predict": "keras.Model.make_predict_function",
    "whole": "keras.Model.compute_loss",
    "own": "keras.Model._compute_loss",
    "additional": "keras.Model._aggregate_additional_loss",
    "added": "keras.Layer.add_loss",
    "owned": "keras.Layer._get_own_losses",
    "cleared": "keras.Layer._clear_losses",
    "gradient": "tensorflow.GradientTape.gradient",
    "all_reduce": "tensorflow.python.distribute.distribute_lib.ReplicaContextBase.all_reduce",
    "search": "tensorflow.python.ops.custom_gradient._get_dependent_variables",
    "all_gather": "tensorflow.python.distribute.distribute_lib.ReplicaContext.all_gather",
    "assign": "keras.Variable.assign",
    "mean": "keras.metrics.Mean.update_state",
    "sums": "keras.metrics.Sum.update_state",
    "unsaved": "keras.src.saving.saving_lib.get_attr_skipset",
}


@dataclasses.dataclass
class _Mended:
    """What was there before it was mended, and what is made of it at the moment."""

    owner: Any
    name: str
    original: Any
    made: Any = None
    makers: list[Callable[[Any], Callable[..., Any]]] = dataclasses.field(default_factory=list)

    def renew(self) -> None:
        made = self.original
        for made_of in self.makers:
            made = functools.wraps(made)(made_of(made))
        self.made = made
        setattr(self.owner, self.name, made)

    def undone(self, there: Any) -> bool:
        """Say whether Keras's own is there again: what somebody wrapped first was unwrapped."""
        of_keras = os.path.dirname(str(sys.modules["keras"].__file__))
        code = getattr(there, "__code__", None)  # what `functools.wraps` gives on is no proof
        own = code is not None and code.co_filename.startswith(of_keras + os.sep)
        return own and there is not self.made


_mended: dict[str, _Mended] = {}


def mend(which: str, made_of: Callable[[Any], Callable[..., Any]]) -> None:
    """Put in place of one of `KERAS` what is made of it, unless this maker's is there already.

    Keras's losses, trainer and optimizers call these by their names, and have no public place to
    say what a replica's share of a batch is.
    """
    path, _, name = KERAS[which].rpartition(".")
    try:
        owner = pkgutil.resolve_name(path)
        there = getattr(owner, name)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            f"this Keras has no {KERAS[which]}, which mgpu_helpers has to mend for several "
            "devices: take a version that docs/package.md names."
        ) from error
    mended = _mended.setdefault(which, _Mended(owner, name, there))
    if mended.makers and mended.undone(there):
        mended.makers.clear()
    if made_of not in mended.makers:
        if not mended.makers:
            mended.original = there
        mended.makers.append(made_of)
        mended.renew()


def unmend(which: str, made_of: Callable[[Any], Callable[..., Any]]) -> None:
    """Take away what `mend` has put there."""
    mended = _mended[which]
    mended.makers.remove(made_of)
    mended.renew()


def weights_of_loss(sample_weight: Any, mask: Any, dtype: Any, reduction: str) -> Any:
    """Merge a mask and weights of examples, as the losses of Keras do."""
    from keras.src.losses.loss import apply_mask

    return apply_mask(sample_weight, mask, dtype, reduction)


def let_copies_be_numbers() -> None:
    """Let a variable of several replicas be what one device's is: a number, and NumPy's array.

    TensorFlow lets it be neither, or an array outside of scopes alone.
    """
    import numpy as np
    from tensorflow.python.distribute.values import DistributedVariable as Copies

    Copies.__int__ = lambda self: int(self.numpy())
    Copies.__float__ = lambda self: float(self.numpy())
    Copies.__array__ = lambda self, dtype=None, copy=None: np.asarray(self.numpy(), dtype)


def numbered(kind: Any, number: int) -> Any:
    """Let the next strategy of a kind number its all-reduces as no other one of the process does.

    TensorFlow numbers those of each strategy from 1, and stops where one number comes with two
    shapes or groups of devices; its own tests leave room between strategies in this way.
    """
    _replace(kind, "_collective_key_base", 100_000 * number)
    return kind


def dataset_of(epoch_iterator: Any) -> Any:
    """Give what `fit` iterates in each pass: `fit` keeps it to itself."""
    return epoch_iterator._distributed_dataset


def without_strategy(model: Any) -> Any:
    """Let a model be one of no strategy in a block."""
    return held(model, _distribute_strategy=None)


def trained_by(model: Any, strategy: Any) -> None:
    """Let a model that was made in no scope be one of a strategy, or of none again."""
    model._distribute_strategy = strategy


def keep_sums(variable: Any, strategy: Any) -> None:
    """Let a variable of Keras be added up over a strategy's replicas where it is read outside."""
    if not isinstance(variable.value, tf.distribute.DistributedValues):
        with strategy.scope():
            sums = tf.Variable(
                tf.zeros_like(variable.value), trainable=False, name=variable.name,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )  # fmt: skip
        _replace(variable, VALUE, sums)


def keep_alone(variable: Any) -> None:
    """Let a variable of Keras be one device's again, with the sum that it was."""
    if isinstance(variable.value, tf.distribute.DistributedValues):
        alone = tf.Variable(variable.value.read_value(), trainable=False, name=variable.name)
        _replace(variable, VALUE, alone)


def of_strategy(optimizer: Any, strategy: Any) -> Any:
    """Let an optimizer update what this strategy keeps in a block."""
    return held(optimizer, _distribution_strategy=strategy)


def before_steps(epoch_iterator: Any, prepare: Callable[[Any], int]) -> None:
    """Call a function with what `fit` iterates, after the callbacks' start and before a step.

    It gives the number of steps of the first pass that were done before.
    """
    enumerate_iterator = epoch_iterator._enumerate_iterator

    def first() -> Any:
        del epoch_iterator._enumerate_iterator
        done = prepare(epoch_iterator)
        for begin, end, current in enumerate_iterator():
            if begin >= done:
                yield begin, end, current
            else:
                for _ in range(begin, end + 1):
                    next(current, None)

    epoch_iterator._enumerate_iterator = first


def go_on(epoch_iterator: Any, current: Any, seen: int, batches: int | None) -> None:
    """Let passes of a number of steps go on with an iterator of which some steps have been seen."""
    epoch_iterator._current_iterator, epoch_iterator._steps_seen = current, seen
    epoch_iterator._num_batches = batches


def first_pass(model: Any) -> int:
    """Give the number of the pass at which `BackupAndRestore` lets `fit` go on; 0 without it."""
    return int(model._initial_epoch or 0)


def save_backup(backup: Any, passes: int, beside: Callable[[], None]) -> None:
    """Write a backup of `BackupAndRestore`, after what is to lie beside it; in full, or not at all.

    Keras numbers the passes from 0 after a restart, and writes over the backup before.
    """
    folder = pathlib.Path(backup.backup_dir)
    folder.mkdir(parents=True, exist_ok=True)
    weights, metadata = folder / "stopped.weights.h5", folder / "stopped.json"
    backup.model.save_weights(weights)
    metadata.write_text(json.dumps({"epoch": passes, "batch": 0}))
    beside()
    os.replace(weights, backup._weights_path)
    os.replace(metadata, backup._training_metadata_path)


def build(model: Any, batch: Any) -> None:
    """Make what a model's step makes at its first call: metrics, and an optimizer's variables.

    Without a strategy Keras does so within the step, where a loop could not.
    """
    model._symbolic_build(data_batch=batch)


@functools.cache
def _kernels() -> dict[str, list[dict[str, set[int]]]]:
    """List by operation what types XLA compiles it for, on the kind of device that there is."""
    from tensorflow.python.framework import kernels

    tf.function(lambda x: x + 1, jit_compile=True)(tf.zeros([]))  # which lets XLA say what it has
    kind = "XLA_GPU_JIT" if tf.config.list_logical_devices("GPU") else "XLA_CPU_JIT"
    found: dict[str, list[dict[str, set[int]]]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type == kind:
            found.setdefault(kernel.op, []).append({
                each.name: {*each.allowed_values.list.type} for each in kernel.constraint
            })  # fmt: skip
    return found


def compiles(op: Any) -> bool:
    """Say whether XLA has what computes an operation of a graph: no public list tells."""
    given = op.node_def.attr
    return any(all(given[name].type in {0, *types} for name, types in kernel.items())  # 0: a list
               for kernel in _kernels().get(op.type, ()))  # fmt: skip


def is_compiled_call(op: Any) -> bool:
    """Say whether an operation calls a function that XLA compiles."""
    return bool(op.node_def.attr[MUST_COMPILE].b)


def together(*tensors: Any) -> list[Any]:
    """Give tensors that XLA takes for ready only when all of them are."""
    from tensorflow.compiler.tf2xla.python import xla

    return list(xla.optimization_barrier(*tensors))


def functions_by(make: Callable[..., Any]) -> Any:
    """Let Keras's trainer make its functions of a step by another than tf.function in a block.

    It keeps them in closures.
    """
    from keras.src.backend.tensorflow import trainer

    class Instead(types.ModuleType):
        function = staticmethod(make)

        def __getattr__(self, name: str) -> Any:
            return getattr(tf, name)

    return held(trainer, tf=Instead("tensorflow"))


@contextlib.contextmanager
def losses_as(model: Any, change: Callable[[int, Any], Any], weight: Any = None) -> Iterator[None]:
    """Let the losses that `compile` was given be others in the block: change(which, loss).

    weight is how much a batch counts in the mean that Keras keeps of each: it takes the size where
    the graph knows it. In public, `compute_loss` gives their sum, and a train_step may not call it.
    """
    compiled = model._compile_loss
    losses = compiled and compiled._flat_losses or []

    def counting(mean: Any) -> Any:
        update = type(mean).update_state
        return lambda value, sample_weight=None: update(mean, value, weight)

    with contextlib.ExitStack() as stack:
        if losses:
            changed = [each._replace(loss=change(k, each.loss)) for k, each in enumerate(losses)]
            stack.enter_context(held(compiled, _flat_losses=changed))
        for mean in compiled.metrics if losses and weight is not None else ():
            stack.enter_context(held(mean, update_state=counting(mean)))
        yield


def build_compiled(model: Any, labels: Any) -> None:
    """Make what a functional model's metrics and losses keep, for labels of such shapes."""
    outputs = model.outputs[0] if isinstance(model, keras.Sequential) else model.output
    for each in (model._compile_metrics, model._compile_loss):
        if each is not None and not each.built:
            each.build(labels, outputs)


def compiled_losses(model: Any, labels: Any, outputs: Any, weights: Any) -> None:
    """Call the losses that `compile` was given, where there are some."""
    if model._compile_loss is not None:
        model._compile_loss(labels, outputs, weights)
