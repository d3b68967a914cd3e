"""Large layers of a model in parts, one for each device of a row: columns, rows, heads."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._layers import Call, LayerGraph, run_calls
from mgpu_helpers.fit._moving import optimizers_of, within
from mgpu_helpers.fit._segments import bias_of
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.graph.step import anew
from mgpu_helpers.towers.shards import shard_sizes

KINDS = {"columns": "Dense", "rows": "Dense", "heads": "MultiHeadAttention"}
# What a model does with its layers whole.
WHOLE = ("save", "save_weights", "load_weights", "get_weights", "set_weights")
Cut = tuple[Any, int, Sequence[Any]]  # a variable, and those that have its shares along an axis


class CutLayers:
    """The layers of a model that are cut: narrower ones on each device, and whole ones again."""

    def __init__(self, model: Any, graph: LayerGraph, layout: Layout) -> None:
        devices = layout.rows[0]
        self.model = model
        check_optimizer(model)
        layers = _asked(graph, layout.layers) if len(devices) > 1 else {}
        made = {layer: _parts_of(layer, way, devices) for layer, way in layers.items()}
        self.parts = [{layer: own[i] for layer, (own, _) in made.items()}
                      for i in range(len(devices))]  # fmt: skip
        self.cuts = [cut for _, own in made.values() for cut in own]
        self.inside = {id(whole) for whole, *_ in self.cuts} | {
            id(share) for *_, shares in self.cuts for share in shares
        }
        self.ways = _ways(graph, layers)
        self.whole: _Parted | None = None

    def install(self) -> None:
        """Let the model have the parts for weights."""
        self.whole = _Parted(self.model, self.cuts)

    def check_optimizer(self) -> None:
        """Look at the optimizer before a step: the model may be compiled with another one."""
        check_optimizer(self.model, self.cuts)

    def undo(self) -> None:
        """Let the model have its layers whole."""
        if self.whole is not None:
            self.whole.end()
            self.whole = None


def check_optimizer(model: Any, cuts: Sequence[Cut] = ()) -> None:
    """Refuse an optimizer that needs weights whole; let others treat parts as the whole."""
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


def _asked(graph: LayerGraph, layers: Sequence[tuple[str, str]]) -> dict[Any, str]:
    ways: dict[Any, str] = {}
    for name, way in layers:
        names = [(call, (call.name, call.operation.name)) for call in graph.calls]
        found = [call.operation for call, own in names
                 if not call.enters and any(re.fullmatch(name, each) for each in own)]  # fmt: skip
        if not found or any(type(layer).__name__ != KINDS[way] for layer in found):
            there = [call.name for call in graph.calls
                     if type(call.operation).__name__ in KINDS.values()]  # fmt: skip
            raise ValueError(
                f"layers={{{name!r}: {way!r}}} names no layers that can be cut so: Dense by "
                "columns or rows, MultiHeadAttention by heads; of these there are "
                f"{', '.join(dict.fromkeys(there)) or 'none'}."
            )
        ways |= dict.fromkeys(found, way)
    return ways


def _ways(graph: LayerGraph, layers: Mapping[Any, str]) -> dict[Call, str]:
    """Say how calls are cut: in a way, or "between" columns and rows; others are not in it."""
    columns: set[Any] = set()  # what is cut by columns
    found: dict[Call, str] = {}
    for call in graph.calls:
        way, cut = layers.get(call.operation), [value in columns for value in call.takes]
        wrong = ""
        if way and len(call.gives) > 1:
            wrong = "gives two results"
        elif way == "rows" and not any(cut):
            wrong = "is cut by rows, and no layer before it by columns"
        elif way not in ("rows", None) and any(cut):
            wrong = f"cannot be cut by {way}: the layer before it is cut by columns"
        if way is None and any(cut):
            way = "between"
        if way in ("columns", "between"):
            columns.update(call.gives)
            if not _by_number(call, cut):
                wrong = wrong or "does not treat each number by itself"
        if columns.intersection(graph.outputs):
            wrong = wrong or "is cut by columns, and no layer behind it by rows"
        if wrong:
            raise ValueError(
                f"{call.name} {wrong}. Cut a Dense layer by columns and the next one by rows; what "
                "stands between them treats each number by itself, as relu does and softmax does "
                "not."
            )
        if way:
            found[call] = way
    return found


def _by_number(call: Call, cut: Sequence[bool]) -> bool:
    """Try whether a call, or the activation behind columns, makes of some a part of all."""
    import tensorflow as tf

    values = call.takes if any(cut) else call.gives
    random = np.random.default_rng(0)
    xs = [tf.cast(random.normal(size=[n or 3 for n in v.shape]), v.dtype) for v in values]

    def made(columns: slice) -> Any:
        if not any(cut):
            return call.operation.activation(xs[0][..., columns])
        own = [x[..., columns] if of else x for x, of in zip(xs, cut, strict=True)]
        return run_calls([call], dict(zip(values, own, strict=True)), False)[call.gives[0]]

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
        others - {id(bias_of(layer, way))} or config.get("activity_regularizer")
        or any(w.constraint or not isinstance(w.regularizer, sums) for w in layer.weights)
    ):  # fmt: skip
        raise ValueError(
            f"{layer.name} has weights, a regularizer or a constraint that cannot be in parts: "
            "leave it out of `layers`; of regularizers its weights may have L1, L2 and L1L2."
        )
    return parts, cuts


class _Parted:
    """A model whose layers are in parts, as when this is made, or whole."""

    def __init__(self, model: Any, cuts: Sequence[Cut]) -> None:
        self.model, self.cuts = model, {id(cut[0]): cut for cut in cuts}
        self.become(_share_out)
        vars(model).update({name: functools.partial(self._whole, name) for name in WHOLE})
        vars(model)["save_own_variables"] = self._save

    def end(self) -> None:
        """Join the parts again, and leave nothing."""
        for name in (*WHOLE, "save_own_variables"):
            del vars(self.model)[name]
        self.become(_join)

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
