"""Let devices have parts of the large layers of a built Keras model: `fit` does all the rest."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._models import graph_of, ready, run_calls
from mgpu_helpers.fit._moving import moved, optimizers_of, within
from mgpu_helpers.fit._placing import placed_step
from mgpu_helpers.fit.parallel import each_once, masked, replace
from mgpu_helpers.fit.split import keras_entry
from mgpu_helpers.graph.step import anew
from mgpu_helpers.towers.shards import shard_sizes

WAYS = {"columns": "Dense", "rows": "Dense", "heads": "MultiHeadAttention"}
# What a model does with its layers whole.
WHOLE = ("save", "save_weights", "load_weights", "get_weights", "set_weights")
Cut = tuple[Any, int, Sequence[Any]]  # a variable, and those that have its shares along an axis


def split_layers(model: Any, devices: Iterable[Any], where: Mapping[str, str]) -> Any:
    """Cut large layers of a built model into a part for each device; give the model.

    where={"up": "columns", "down": "rows", "attention_.*": "heads"} says which layers are cut, by
    regular expressions for whole names, also in a model inside the model. A Dense layer is cut by
    columns and the next one by rows; what stands between them treats each number by itself, as
    dropout does, or a product with columns of a third one. A MultiHeadAttention is cut by heads.
    Each device computes with its parts, forward and backward, and updates them. What they make is
    added up on the first device, where all other layers are. Weights and history are, to rounding,
    those of one device, and Keras does the rest of `fit`. The field calls it tensor parallelism.

    The model may be compiled before or after. It is saved and loaded, and gives and takes weights,
    as it was before; `model.weights` are the parts. The first ones may be larger by one. Each draws
    its dropout. XLA is not used. `fit.alone` undoes it.

    >>> import keras
    >>> pair = [keras.layers.Dense(8, "relu", name="up"), keras.layers.Dense(3, name="down")]
    >>> model = keras.Sequential([keras.Input((3,)), *pair])
    >>> model.compile("sgd", "mse")
    >>> model = split_layers(model, plan.devices, {"up": "columns", "down": "rows"})
    >>> history = model.fit(np.ones((5, 3)), np.ones((5, 3)), verbose=0)
    >>> [(tuple(v.shape), v.value.device[-5:]) for v in model.get_layer("up").weights[:2]]
    [((3, 4), 'CPU:1'), ((3, 4), 'CPU:2')]
    """
    import keras

    devices = each_once(devices)
    ready(model, functional=True)
    rooms = [each for each in _private.layers_of(model) if each.built
             and isinstance(each, keras.Function | keras.Sequential)
             and type(each).call.__module__.startswith("keras.")]  # fmt: skip
    if any({"call", "train_step", "sharded"} & vars(each).keys() for each in rooms):
        raise ValueError(
            f"the calls, steps or weights of {model.name} are changed already: use fit.alone first."
        )
    _check_optimizer(model)
    graphs = [graph_of(room) for room in rooms]
    ways = _asked(graphs, where) if len(devices) > 1 else {}
    made = {layer: _parts_of(layer, way, devices) for layer, way in ways.items()}
    parts = [{layer: own[i] for layer, (own, _) in made.items()} for i in range(len(devices))]
    cuts = [cut for _, own in made.values() for cut in own]
    calls = [_call(*each, ways, parts, devices) for each in zip(rooms, graphs, strict=True)]
    step = placed_step(model)

    @functools.wraps(step)
    def train_step(data: Any) -> Any:
        _check_optimizer(model, cuts)
        return step(data)

    def sharded() -> None:
        for name in (*WHOLE, "save_own_variables"):
            del vars(model)[name]
        for room in rooms[1:]:
            replace(room, "call", None)
        state.become(_join)

    inside = {id(whole) for whole, *_ in cuts}
    homes = [(v, v.value.device) for v in model.variables if id(v) not in inside]
    vars(sharded).update(homes=homes, end=sharded)
    state = _Parted(model, cuts)
    moved(model, [(v, devices[0]) for v, _ in homes])
    for room, call in zip(rooms, calls, strict=True):
        replace(room, "call", call)
    replace(model, "train_step", train_step)
    replace(model, "sharded", sharded)
    return model


def is_cut(model: Any) -> bool:
    """Say whether the weights of layers in a model are cut into parts."""
    return hasattr(vars(model).get("sharded"), "end")


def _check_optimizer(model: Any, cuts: Sequence[Cut] = ()) -> None:
    for optimizer in optimizers_of(model):
        if optimizer.clipnorm or not _by_part(optimizer):
            raise ValueError(
                f"{optimizer.name} needs a weight whole, and each device has a part: use "
                "global_clipnorm for clipnorm, and no Adafactor, Lamb, Muon or other that does "
                "more than treat each number by itself."
            )
        for whole, _, parts in cuts:
            _private.exclude_too(optimizer, whole, parts)


def _by_part(optimizer: Any) -> bool:
    """Try whether an optimizer updates the parts of a weight as it updates the whole."""
    import keras
    import tensorflow as tf

    given = np.random.default_rng(0).normal(size=[3, 4, 12])  # a weight, and gradients of two steps

    def updated(parts: int) -> Any:
        weights = [keras.Variable(part, trainable=True) for part in np.split(given[0], parts, 1)]
        made = anew(optimizer)
        for slopes in given[1:]:
            own = [tf.constant(part, weights[0].dtype) for part in np.split(slopes, parts, 1)]
            made.apply(own, weights)
        return np.concatenate([weight.numpy() for weight in weights], 1)

    def same() -> bool:
        with tf.device("/CPU:0"):
            return np.allclose(updated(1), updated(2), 1e-4, 1e-5)

    try:
        with ThreadPoolExecutor(1) as outside:  # of a tf.function, which makes variables once
            return outside.submit(same).result()
    except Exception:  # of one that cannot be made anew, so that nobody knows
        return False


def _asked(graphs: Sequence[Any], where: Mapping[str, str]) -> dict[Any, str]:
    layers = [each.operation for graph in graphs for each in _private.calls_of(graph)]
    ways: dict[Any, str] = {}
    for name, way in where.items():
        found = [layer for layer in layers if re.fullmatch(name, layer.name)]
        if not found or any(type(layer).__name__ != WAYS.get(way) for layer in found):
            raise ValueError(
                f"where={{{name!r}: {way!r}}} names no layers that can be cut so: Dense by columns "
                "or rows, MultiHeadAttention by heads; of these there are "
                + (", ".join(x.name for x in layers if type(x).__name__ in WAYS.values()) or "none")
                + "."
            )
        ways |= dict.fromkeys(found, way)
    return ways


def _ways(graph: Any, ways: Mapping[Any, str]) -> list[str | None]:
    """Say how each call runs: in a way, between columns and rows, or None on the first device."""
    columns: set[int] = set()  # by the `id` of Keras's tensors
    found: list[str | None] = []
    for each in _private.calls_of(graph):
        way, cut = ways.get(each.operation), [id(t) in columns for t in each.input_tensors]
        wrong = ""
        if way and len(each.outputs) > 1:
            wrong = "gives two results"
        elif way == "rows" and not any(cut):
            wrong = "is cut by rows, and no layer before it by columns"
        elif way not in ("rows", None) and any(cut):
            wrong = f"cannot be cut by {way}: the layer before it is cut by columns"
        if way is None and any(cut):
            way = "between"
        if way in ("columns", "between"):
            columns |= {id(t) for t in each.outputs}
            if not _by_number(each, cut):
                wrong = wrong or "does not treat each number by itself"
        if columns & {id(t) for t in graph.outputs}:
            wrong = wrong or "is cut by columns, and no layer behind it by rows"
        if wrong:
            raise ValueError(
                f"{each.operation.name} {wrong}. Cut a Dense layer by columns and the next one by "
                "rows; what stands between them treats each number by itself, as relu does and "
                "softmax does not."
            )
        found.append(way)
    return found


def _by_number(each: Any, cut: Sequence[bool]) -> bool:
    """Try whether a call, or the activation behind columns, makes of some a part of all."""
    import tensorflow as tf

    tensors = each.input_tensors if any(cut) else each.outputs
    random = np.random.default_rng(0)
    xs = [tf.cast(random.normal(size=[n or 3 for n in t.shape]), t.dtype) for t in tensors]

    def made(columns: slice) -> Any:
        if not any(cut):
            return each.operation.activation(xs[0][..., columns])
        own = [x[..., columns] if of else x for x, of in zip(xs, cut, strict=True)]
        values = dict(zip(map(id, tensors), own, strict=True))
        return run_calls([each], values, False)[id(each.outputs[0])]

    try:
        parts = tf.concat([made(slice(1)), made(slice(1, None))], -1)
        return np.allclose(tf.cast(parts - made(slice(None)), "float64"), 0, atol=1e-2)
    except Exception:  # whatever a layer raises that has a weight for each column
        return False


def _parts_of(layer: Any, way: str, devices: Sequence[str]) -> tuple[list[Any], list[Cut]]:
    """Make a narrower layer on each device, with its share of the weights.

    What is not cut is zero there, and stays with the layer: a bias that is added to the sum.
    """
    import keras
    import tensorflow as tf

    config, built = layer.get_config(), layer.get_build_config()
    config |= {"kernel_initializer": "zeros", "bias_initializer": "zeros"}
    size = layer.num_heads if way == "heads" else layer.kernel.shape[way == "columns"]
    parts = []
    for i, (device, n) in enumerate(zip(devices, shard_sizes(size, len(devices)), strict=True)):
        if n < 1:
            raise ValueError(f"{layer.name} has {size} {way}: give {size} devices at most.")
        if way == "heads":  # which draw other numbers in each
            own = {"num_heads": n, "seed": s if (s := config["seed"]) is None else s + i}
        elif way == "columns":
            own = {"units": n}
        else:
            own = {"use_bias": False, "activation": None}
            built = {"input_shape": (*built["input_shape"][:-1], n)}
        with tf.device(device):
            parts.append(type(layer).from_config(config | own))
            parts[-1].build_from_config(built)
    cuts: list[Cut] = []
    for whole, *shares in zip(layer.weights, *(part.weights for part in parts), strict=False):
        cuts += [(whole, k, shares) for k, n in enumerate(whole.shape) if n > shares[0].shape[k]]
        for share in shares:
            share.trainable = whole.trainable
    others = {*map(id, layer.weights)} - {id(whole) for whole, *_ in cuts}
    sums = keras.regularizers.L1 | keras.regularizers.L2 | keras.regularizers.L1L2 | None
    if (
        others - {id(_bias_of(layer, way))} or config.get("activity_regularizer")
        or any(w.constraint or not isinstance(w.regularizer, sums) for w in layer.weights)
    ):  # fmt: skip
        raise ValueError(
            f"{layer.name} has weights, a regularizer or a constraint that cannot be in parts: "
            "leave it out of `where`; of regularizers its weights may have L1, L2 and L1L2."
        )
    return parts, cuts


def _bias_of(layer: Any, way: str) -> Any:
    """Give what is added once to the sum of a layer's parts; None without it."""
    return None if way == "columns" else getattr(layer, "output_dense", layer).bias


def _call(
    model: Any, graph: Any, ways: Mapping[Any, str], parts: Sequence[Any], devices: Sequence[str]
) -> Callable[..., Any]:
    """Make a call of the model that runs each layer where it is."""
    import keras
    import tensorflow as tf

    original, entry = model.call, keras_entry(graph)
    calls = list(zip(_private.calls_of(graph), _ways(graph, ways), strict=True))

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        with tf.device(devices[0]):
            flat = keras.tree.flatten(entry(masked(args, named)))
        here: list[dict[int, Any]] = [{} for _ in devices]  # by the `id` of Keras's tensors
        here[0] |= zip(map(id, graph.inputs), flat, strict=True)
        for each, way in calls:
            there = list(zip(devices, here, parts, strict=True))[: None if way else 1]
            for (device, values, _), t in itertools.product(there, each.input_tensors):
                if id(t) not in values:  # before any part runs, as attention takes masks away
                    values[id(t)] = _sent(here[0][id(t)], device, devices[0])
            for device, values, own in there:
                with tf.device(device):
                    run_calls([each], values, named.get("training"), own)
            if way in ("rows", "heads"):
                key = id(each.outputs[0])
                made = [_sent(own.pop(key), devices[0], device) for device, own, _ in there]
                with tf.device(devices[0]), _private.without_autocast():
                    y, bias = tf.add_n(made), _bias_of(each.operation, way)
                    y = y if bias is None else y + tf.cast(bias.value, y.dtype)
                    here[0][key] = y if way == "heads" else each.operation.activation(y)
                _private.set_mask(here[0][key], _private.mask_of(made[0]))
        outputs = [here[0][id(t)] for t in graph.outputs]
        return keras.tree.pack_sequence_as(graph.output, outputs) if outputs[1:] else outputs[0]

    return call


def _sent(x: Any, there: str, back: str) -> Any:
    """Copy a tensor to a device; its gradient comes back, which a tape would place anywhere."""
    import tensorflow as tf

    @tf.custom_gradient
    def copy(x: Any) -> Any:
        def slope(by: Any) -> Any:
            with tf.device(back):
                return tf.identity(by)

        return tf.identity(x), slope

    with tf.device(there):
        y = copy(x) if x.dtype.is_floating else tf.identity(x)
        if (mask := _private.mask_of(x)) is not None:
            _private.set_mask(y, tf.identity(mask))
    return y


class _Parted:
    """A model whose layers are in parts, as when this is made, or whole."""

    def __init__(self, model: Any, cuts: Sequence[Cut]) -> None:
        self.model, self.cuts = model, {id(cut[0]): cut for cut in cuts}
        self.become(_share_out)
        vars(model).update({name: functools.partial(self._whole, name) for name in WHOLE})
        vars(model)["save_own_variables"] = self._save

    def become(self, state: Callable[..., None]) -> None:
        """Change the model, and its optimizer with it."""
        if made := self._change(state):
            vars(self.model.optimizer).update(vars(made))

    def _save(self, store: Any) -> None:
        if self.state is _share_out:
            raise ValueError(f"{self.model.name} has layers in parts: save it by model.save.")
        type(self.model).save_own_variables(self.model, store)

    def _whole(self, name: str, *args: Any, **named: Any) -> Any:
        """Call a method of the model, whole; what it changes reaches the parts."""
        own = getattr(self.model, "optimizer", None)
        if made := self._change(_join):
            self.model.optimizer = made
        try:
            return getattr(type(self.model), name)(self.model, *args, **named)
        finally:
            self._change(_share_out, own)
            self.model.optimizer = own

    def _change(self, state: Callable[..., None], made: Any = None) -> Any:
        """Change the model's weights; give an optimizer for them, if it has one that is built."""
        given = getattr(self.model, "optimizer", None)
        if given is None or not given.built:
            return self._weights(state)
        made = made or anew(given)
        self._weights(state)
        try:
            if not made.built:
                made.build(self.model.trainable_variables)
            ours, theirs = map(_kept, (made, given) if state is _join else (given, made))
            for key, slots in ours.items():
                _, axis, parts = self.cuts.get(key, (None, 0, ()))
                found = [theirs[id(part)] for part in parts] or [theirs[key]]
                for slot, *own in zip(slots, *found, strict=True):
                    state(slot, axis, own)
        except BaseException:  # such as floatx, when it is another than before
            self._weights(_share_out if state is _join else _join)
            raise
        return made

    def _weights(self, state: Callable[..., None]) -> None:
        self.state = state
        for whole, axis, parts in self.cuts.values():
            state(whole, axis, parts)
            if state is _share_out:
                _join(whole, 0, ())  # its memory is for others
            before, after = (parts, [whole]) if state is _join else ([whole], parts)
            _private.stand_in(self.model, before, after)


def _kept(optimizer: Any) -> dict[int, list[Any]]:
    """List what an optimizer has for each variable, by its `id`, and numbers by 0."""
    kept = {key: own for o in within(optimizer) for key, own in _private.slots_of(o).items()}
    known = {id(v) for own in kept.values() for v in own}
    return kept | {0: [v for v in optimizer.variables if id(v) not in known]}


def _share_out(whole: Any, axis: int, parts: Sequence[Any]) -> None:
    """Write a variable into its parts."""
    import tensorflow as tf

    sizes, value = [part.shape[axis] for part in parts[1:]], whole.value
    shares = tf.split(value, [-1, *sizes], axis) if sizes else [value]
    for part, share in zip(parts, shares, strict=True):
        part.assign(share)


def _join(whole: Any, axis: int, parts: Sequence[Any]) -> None:
    """Write parts into a variable, of any shape, as its own methods do not; none empty it."""
    import tensorflow as tf

    with tf.device(whole.value.device):
        value = tf.concat([part.value for part in parts] or [tf.zeros([0], whole.dtype)], axis)
        tf.raw_ops.AssignVariableOp(resource=whole.value.handle, value=value)
