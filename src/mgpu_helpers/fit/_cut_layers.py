"""Large layers of a model in parts, one for each device of a row: columns, rows, heads."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import LayerGraph, run_calls
from mgpu_helpers._models import instead
from mgpu_helpers._train import HOST
from mgpu_helpers.fit._leaves import CUT, Leaves, drawn, inner, is_dense, some, wrong
from mgpu_helpers.fit._moving import optimizers_of, within
from mgpu_helpers.fit._segments import Segment, segments_of
from mgpu_helpers.fit._together import Together
from mgpu_helpers.fit._ways import Way, asked, axes, by_themselves, shared_out, stays_whole
from mgpu_helpers.fit.layout import AUTO, Layout
from mgpu_helpers.graph.step import anew

# What a model does with its layers whole.
WHOLE = (
    "save", "save_weights", "load_weights", "get_weights", "set_weights",
    "generate", "save_to_preset", "save_lora_weights", "load_lora_weights",  # of KerasHub
)  # fmt: skip
NOT_IN_PARTS = ("quantize", "enable_lora")  # what changes a layer whose weights it has to see whole
Cut = tuple[Any, int, Sequence[Any]]  # a variable, and those that have its shares along an axis


class CutLayers:
    """The layers of a model that are cut: narrower ones on each device, and whole ones again."""

    def __init__(self, model: Any, graph: LayerGraph, layout: Layout) -> None:
        self.model, self.graph, self.devices = model, graph, layout.rows[0]
        self.whole: _Parted | None = None
        self.refused = contextlib.ExitStack()
        check_optimizer(model)
        n, auto = len(self.devices), layout.layers == AUTO
        if auto:
            leaves = Leaves(graph, is_dense, strict=False)
            found = by_themselves(leaves, n) if n > 1 else {}
        else:
            found = asked(graph, layout.layers) if n > 1 else {}
            leaves = Leaves(graph, shared_out(found, n)[0].__contains__)
        while refused := self._cut(found, leaves):
            if not auto:
                raise ValueError(refused[0])
            found = {layer: way for layer, way in found.items() if layer not in refused[1]}
        if auto and n > 1 and not found:
            raise ValueError(
                f'{graph.graph.name} has no attention and no pairs of layers that layers="auto" '
                "could cut: name the layers."
            )

    def _cut(self, found: Mapping[Any, Any], leaves: Leaves) -> tuple[str, set[Any]] | None:
        """Cut layers in the ways that are found; where they cannot be, say why, and which."""
        self.ways, self.settings = shared_out(found, len(self.devices))
        kinds = leaves.kinds(self.ways)
        self.steps = {call: [(leaf.layer, kinds[leaf]) for leaf in own]
                      for call, own in leaves.of.items()
                      if any(kinds[leaf] != "alone" for leaf in own)}  # fmt: skip
        self.between = {value for value, made_of in leaves.made_of.items()
                        if any(kinds[leaf] in CUT for leaf in made_of)}  # fmt: skip
        names = {leaf.layer: leaf.name for leaf in kinds}
        made = {layer: _parts_of(layer, names[layer], way, self.devices)
                for layer, way in self.ways.items()
                if way.kind != "gathered" and layer in names}  # fmt: skip
        self.parts = [{layer: own[i] for layer, (own, *_) in made.items()}
                      for i in range(len(self.devices))]  # fmt: skip
        self.cuts = [cut for _, own, _ in made.values() for cut in own]
        self.same = {id(share): (share, whole) for *_, own in made.values() for share, whole in own}
        self.inside = {id(whole) for whole, *_ in self.cuts} | {
            id(share) for *_, shares in self.cuts for share in shares
        }
        known: list[Any] = []  # of blocks that are alike one is tried
        for segment in segments_of(self.graph, (), (), self, ()):
            inside = [layer for call in segment.calls for _, layer in inner(call.operation)]
            like = list(map(_settings, inside)), [kind for _, kind in segment.steps or ()]
            if segment.steps is None or like in known:
                continue
            known.append(like)
            if why := self._differs(segment):
                cut = [names[layer] for layer, kind in segment.steps if kind != "alone"]
                why = wrong(", ".join(dict.fromkeys(cut)), f"cannot be in parts: {why}")
                return why, {*inside}
        return None

    def _differs(self, segment: Segment) -> str:
        """Try out on random numbers whether calls give in parts what they give whole; say how."""
        layers = {layer for layer, _ in segment.steps or () if layer in self.ways}
        own = {id(v) for layer in layers for v in layer.variables}
        values, empty = some(segment.takes), []
        with tf.device(HOST):
            pairs = [(v, drawn(v.shape, v.dtype, math.prod(v.shape[:-1])))
                     for layer in layers for v in layer.variables]  # fmt: skip
            number = {id(v): x for v, x in pairs}
            for whole, axis, shares in self.cuts:
                if id(whole) in own:
                    sizes = [share.shape[axis] for share in shares]
                    pairs += zip(shares, tf.split(number[id(whole)], sizes, axis), strict=True)
                    empty.append((whole, tf.zeros_like(number[id(whole)])))
            pairs += [(share, number[id(whole)]) for share, whole in self.same.values()
                      if id(whole) in own]  # fmt: skip
            with keras.StatelessScope(pairs, collect_losses=True) as scope:
                wanted = run_calls(segment.calls, dict(values), False)
            try:
                with keras.StatelessScope([*pairs, *empty], collect_losses=True) as parted:
                    together = self.together(segment, [HOST] * len(self.devices))
                    made = together.run(segment.calls, dict(values), False)
            except Exception as error:
                return f"in parts they raise {type(error).__name__}"
            ends = [(wanted[value], made[value]) for value in segment.gives]
            ends.append((tf.add_n(scope.losses or [0.0]), tf.add_n(parted.losses or [0.0])))
        half = "16" in getattr(segment.calls[-1].operation, "compute_dtype", "")
        same = all(_near(*pair, 3e-2 if half else 1e-4) for pair in ends)
        return "" if same else "they give something else than whole"

    def variables(self, layers: Iterable[Any]) -> list[Any]:
        """List what the parts of layers have on all devices."""
        return [v for own in self.parts for layer in layers if layer in own
                for v in own[layer].variables]  # fmt: skip

    def together(self, segment: Segment, devices: Sequence[Any]) -> Together:
        """Give what runs a segment in parts on a row of devices."""
        gathered = {layer: (way.axis, way.shares) for layer, way in self.ways.items()
                    if way.kind == "gathered"}  # fmt: skip
        return Together(segment.steps or (), self.parts, gathered, self.settings, devices)

    def install(self) -> None:
        """Let the model have the parts for weights."""
        self.whole = _Parted(self.model, self.cuts)
        for layer in (self.model, *self.ways):
            self.refused.enter_context(instead(layer, **{
                name: functools.partial(_refuse, layer.name, name)
                for name in NOT_IN_PARTS if hasattr(layer, name)
            }))  # fmt: skip

    def undo(self) -> None:
        """Let the model have its layers whole."""
        if self.whole is not None:
            self.whole.end()
            self.whole = None
            self.refused.close()


def _refuse(name: str, does: str, *_: Any, **__: Any) -> None:
    raise ValueError(
        f"{name} has weights in parts: call fit.alone(model) before {does}, and fit.use(model, …) "
        "after it."
    )


def _settings(layer: Any) -> Any:
    """List what makes a layer another one than one of its kind, beside its name and its weights."""
    told = [(name, value) for name, value in vars(layer).items()
            if "name" not in name and "path" not in name
            and isinstance(value, str | int | float | FunctionType)]  # fmt: skip
    return type(layer), told, [(v.shape, v.dtype) for v in getattr(layer, "variables", ())]


def _near(a: Any, b: Any, much: float) -> bool:
    if a.shape != b.shape or not a.dtype.is_floating:
        return bool(a.shape == b.shape)
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    return bool(np.abs(a - b).max(initial=0) <= much * (1e-3 + np.abs(a).max(initial=0)))


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


def _parts_of(
    layer: Any, name: str, way: Way, devices: Sequence[str]
) -> tuple[list[Any], list[Cut], list[tuple[Any, Any]]]:
    """Make a narrower layer on each device: these, what is cut, and their weights that are whole.

    A bias that is added to the sum stays with the layer.
    """
    takes, letters, gives = axes(layer)
    letter, columns = letters[way.axis], way.kind == "columns"
    config, built = layer.get_config(), (layer.get_build_config() or {}).get("input_shape") or ()
    config |= {name: "zeros" for name in config if name.endswith("initializer")}
    if why := stays_whole(layer):
        raise ValueError(f"{name} {why}: leave it out of `layers`.")
    parts, cuts, same = [], list[Cut](), []
    for device, n in zip(devices, way.shares, strict=True):
        own: dict[str, Any] = {}
        shape = [*built]
        if "input_dim" in config:
            own = {"input_dim": n, "mask_zero": False}
        elif not columns:
            own = {"use_bias": False, "bias_axes": None, "activation": None}
            shape[takes.index(letter) - len(takes)] = n
        elif "units" in config:
            own = {"units": n}
        else:
            made = config["output_shape"]
            made = [made] if isinstance(made, int) else [*made]
            made[gives.index(letter) - len(gives)] = n
            own = {"output_shape": made}
        with tf.device(device):
            parts.append(type(layer).from_config({k: (config | own)[k] for k in config}))
            parts[-1].build(tuple(shape))
    shares = [{v.name: v for v in part.weights} for part in parts]
    for whole in layer.weights:
        if whole.name not in shares[0]:
            continue
        every = [own[whole.name] for own in shares]
        axis = next((k for k, n in enumerate(whole.shape) if n > every[0].shape[k]), None)
        if axis is None:
            same += [(share, whole) for share in every]
        else:
            cuts.append((whole, axis, every))
        for share in every:
            share.trainable = whole.trainable
    return parts, cuts, same


class _Parted:
    """A model whose layers are in parts, as when this is made, or whole."""

    def __init__(self, model: Any, cuts: Sequence[Cut]) -> None:
        self.model, self.cuts = model, {id(cut[0]): cut for cut in cuts}
        self.holders = [x for x in _private.layers_of(model) if isinstance(x, keras.Model)
                        or any(id(v) in self.cuts for v in x.weights)]  # fmt: skip
        self.become(_share_out)
        for each in self.holders:
            names = [name for name in WHOLE if hasattr(each, name)]
            own = {name: functools.partial(self._whole, each, name) for name in names}
            vars(each).update(own, save_own_variables=functools.partial(self._save, each))

    def end(self) -> None:
        """Join the parts again, and leave nothing."""
        for each in self.holders:
            for name in (*WHOLE, "save_own_variables"):
                vars(each).pop(name, None)
        self.become(_join)

    def become(self, state: Callable[..., None]) -> None:
        """Change the model, and its optimizer with it."""
        if made := self._change(state):
            vars(self.model.optimizer).update(vars(made))

    def _save(self, holder: Any, store: Any) -> None:
        if self.state is _share_out:
            raise ValueError(f"{holder.name} has layers in parts: save it by model.save.")
        type(holder).save_own_variables(holder, store)

    def _whole(self, holder: Any, name: str, *args: Any, **named: Any) -> Any:
        """Call a method of the model or of a layer, whole; what it changes reaches the parts."""
        does = functools.partial(getattr(type(holder), name), holder, *args, **named)
        if self.state is _join:  # by another one
            return does()
        own = getattr(self.model, "optimizer", None)
        if made := self._change(_join):
            self.model.optimizer = made
        try:
            return does()
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
    sizes, value = [part.shape[axis] for part in parts[1:]], whole.value
    shares = tf.split(value, [-1, *sizes], axis) if sizes else [value]
    for part, share in zip(parts, shares, strict=True):
        part.assign(share)


def _join(whole: Any, axis: int, parts: Sequence[Any]) -> None:
    """Write parts into a variable, of any shape, as its own methods do not; none empty it."""
    with tf.device(whole.value.device):
        value = tf.concat([part.value for part in parts] or [tf.zeros([0], whole.dtype)], axis)
        tf.raw_ops.AssignVariableOp(resource=whole.value.handle, value=value)
