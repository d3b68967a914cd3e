"""Bring a model to a layout, change it, and undo it: `fit.use`, `fit.alone`, `fit.layout`."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import Call, LayerGraph
from mgpu_helpers._models import NAME, check_call, laid_out, ready
from mgpu_helpers._train import HOST
from mgpu_helpers.devices.machine import one_of_several_workers
from mgpu_helpers.fit._across import join, leave, share_metrics
from mgpu_helpers.fit._call import composed, where_it_is
from mgpu_helpers.fit._cut_layers import CutLayers
from mgpu_helpers.fit._effect import without_effect
from mgpu_helpers.fit._islands import compiling
from mgpu_helpers.fit._kinds import is_own
from mgpu_helpers.fit._moving import moved
from mgpu_helpers.fit._pieces import Pieces, warn_of_normalizing
from mgpu_helpers.fit._placing import build_optimizers, placed_step
from mgpu_helpers.fit._segments import (
    Segment,
    check_layers,
    columns,
    has_own,
    normalizes,
    parts_to_run_again,
    segments_of,
    stages_begin,
    whole,
)
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.pipeline.schedule import all_forward, one_forward_one_backward
from mgpu_helpers.towers.shards import shard_sizes


def use(model: Any, layout: Any = None, **options: Any) -> Any:
    """Let a built Keras model train as a layout says; give the model.

    layout: a `Layout`, a plan, devices by name, or what `memory.plan` proposes. None keeps the
    devices of the layout that the model has, and changes the options alone. The options are those
    of `Layout`, in any order:

        fit.use(model, plan)                                the batch shared by all devices
        fit.use(model, plan, pieces=4, recompute=True)      in pieces, activations computed twice
        fit.use(model, plan, state="owners")                weights and slots at their owners
        fit.use(model, plan, stages=2, pieces=4)            layers in stages, rows of two devices
        fit.use(model, plan, layers={"up": "columns", "down": "rows"})    layers in parts
        fit.use(model, plan, layers="auto")                 those that are found
        fit.use(model, pieces=4)                            where it is, also under a strategy

    `fit`, `evaluate`, `predict` and model(x) then use the devices, and Keras does the rest as ever:
    losses, metrics, callbacks, a train_step of one's own. Weights and histories are, to rounding,
    those of one device; dropout draws for each row and piece. The model may be compiled before or
    after. What is saved is the model as it was. `alone` undoes all of it, as before an export.
    Where Keras would compile, XLA compiles what each device does between two exchanges. Under `mgpu
    cluster` the layout lies within each worker, and the workers share each batch.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = use(model, plan, pieces=2).fit(np.ones((5, 3)), np.ones((5, 1)), verbose=0)
    >>> layout(model).pieces
    2
    """
    ready(model, built=False, single=False)
    wanted, before = _wanted(model, layout, options), laid_out(model)
    alone(model)
    try:
        laid = Laid(model, wanted)
        little = [*without_effect(laid)]
        laid.install()
    except BaseException:
        if before is not None:
            Laid(model, before.layout).install()
        raise
    for said in little:
        warnings.warn(said, stacklevel=2)
    return model


def alone(model: Any) -> Any:
    """Undo `use`: the model is what it was, and where it was; give the model.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> alone(use(model, plan)) is model
    True
    """
    if (laid := laid_out(model)) is not None:
        laid.undo()
    return model


def layout(model: Any) -> Layout:
    """Tell how a model is laid out.

    >>> import keras
    >>> layout(use(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), plan.devices[:1]))
    Layout(('/CPU:1',))
    """
    laid = laid_out(model)
    return Layout() if laid is None else laid.layout


def _wanted(model: Any, given: Any, options: Mapping[str, Any]) -> Layout:
    """Give the layout that is asked for, with devices that are there."""
    from mgpu_helpers.devices.plan import Plan, checked

    if getattr(given, "half", False) and "16" not in model.dtype_policy.name:
        raise ValueError(
            f"{given.name!r} is of a model in half precision, and {model.name!r} computes in "
            f"{model.dtype_policy.name}: make it after "
            'keras.config.set_dtype_policy("mixed_bfloat16").'
        )
    if hasattr(given, "layout"):
        if (proposed := given.layout) is None:
            raise ValueError(f"{given.name!r} is counted only: fit.use cannot do it.")
        given = proposed
    if given is None:
        wanted = layout(model).changed(**options)
    elif isinstance(given, Layout):
        wanted = given.changed(**options)
    else:
        devices = given.devices if isinstance(given, Plan) else given
        if isinstance(devices, str) or not isinstance(devices, Iterable):
            raise TypeError(f"{given!r:.60} is no layout, plan or list of devices: give one.")
        wanted = Layout(checked(devices)).changed(**options)
    written = {"devices": checked(wanted.devices) if wanted.devices else ()}
    if not isinstance(wanted.state, str):
        written["state"] = checked(wanted.state)
    return wanted.changed(**written)


class Laid:
    """A model in a layout: what its call and its step are, and how they are undone."""

    def __init__(self, model: Any, layout: Layout) -> None:
        self.model, self.layout = model, layout
        self.original, step = model.call, model.train_step
        if layout.devices:
            check_call(model)
        needs_graph = bool(layout.staged or layout.layers or layout.recompute)
        several = layout.pieces > 1
        ready(model, single=bool(layout.devices), trained=several, functional=needs_graph)
        self.graph = self._graph()
        if layout.devices or several:
            meets = layout.synchronized and len(layout.rows) > 1
            check_layers(model, self.graph, meets)
        self.has_own = has_own(model)
        self.ways: dict[str, list[str]] = {}  # of what they add to the loss, by training
        self.stages: list[int] = []
        self.again: list[int] = []
        self.cut = None
        if self.graph is not None:
            self.stages = stages_begin(self.graph, layout.stages)
            self.again = parts_to_run_again(self.graph, layout.recompute)
            if layout.layers:
                self.cut = CutLayers(model, self.graph, layout)
        if self.again and self.graph is not None:  # rows meet between two parts
            meet = {self.graph.calls.index(call) for call in self.meeting()}
            self.again = sorted({*self.again, *meet} - {0})
        own = model.distribute_strategy.num_replicas_in_sync == 1
        self.across = own and one_of_several_workers()
        if self.across and not layout.synchronized:
            raise ValueError(
                "synchronized=False would give each worker statistics of its own, and with them "
                "another model: leave it out, or build the model in the scope of fit.strategy()."
            )
        if self.across and several and is_own(step):
            raise ValueError(
                f"{model.name} has a train_step of its own, which cannot be taken in pieces where "
                "workers share a batch: leave pieces out."
            )
        self.step = placed_step(model, step, self.cut) if layout.devices else step
        self.pieces = Pieces(self) if several else None

    def _graph(self) -> LayerGraph | None:
        try:
            ready(self.model, functional=True, single=False)
        except (TypeError, ValueError):
            return None
        return LayerGraph(self.model)

    def meeting(self) -> list[Call]:
        """List the calls at which rows meet: those that normalize by a whole batch."""
        several = self.layout.synchronized and len(self.layout.rows) > 1
        if not several or self.graph is None:
            return []
        return [call for call in self.graph.calls if normalizes(call.operation)]

    def segments(self, training: Any) -> list[Segment]:
        """Give the segments of a call, each of which a row runs on one device, or cut on all."""
        layout, meeting = self.layout, self.meeting() if training else []
        again = self.again if training else []
        if self.graph is None or not (layout.staged or self.cut or again or meeting):
            return [whole(self.model)]
        return segments_of(self.graph, self.stages, again, self.cut, meeting)

    def sizes(self, size: Any, training: Any) -> list[Any]:
        """Cut a number of examples into parts: all rows' of a first piece, and so on."""
        together = self.layout.staged and not (training and self.pieces and self.pieces.by_step)
        pieces = shard_sizes(size, self.layout.pieces if together else 1)
        return [part for piece in pieces for part in self.layout.sizes(piece)]

    def schedule(self, pieces: int, one_back: bool) -> dict[str, list[str]]:
        """Give by device the tasks of a step in their order, where layers are in stages."""
        if not self.layout.staged:
            return {}
        of = one_forward_one_backward if one_back else all_forward
        by_stage = of(self.layout.length, pieces)
        return {device: by_stage[s] for row in self.layout.rows for s, device in enumerate(row)}

    def install(self) -> None:
        """Move weights, and give the model its call and its step."""
        model = self.model
        self.homes: list[tuple[Any, str]] = []
        self.before: dict[str, Any] = {}  # methods that somebody else has given the model
        if self.pieces:
            warn_of_normalizing(model)
        vars(model)[NAME] = self
        try:
            if self.cut:
                self.cut.install()
            self._move()
        except BaseException:
            self.undo()
            raise
        methods = self.methods()
        self.before = {name: own for name, own in vars(model).items() if name in methods}
        vars(model).update(methods)
        if self.across:
            join(model, self.layout)
        # Keras makes them again: the old ones have the old methods in their graphs.
        model.train_function = model.test_function = model.predict_function = None

    def methods(self) -> dict[str, Any]:
        """Give what the model has in place of its own methods."""
        given: dict[str, Any] = {}
        if self.layout.devices or self.layout.recompute:
            given["call"] = functools.wraps(self.original)(lambda *args, **named: (
                self.call(*args, **named)
            ))  # fmt: skip
        for name in ("make_train_function", "make_test_function", "make_predict_function"):
            given[name] = functools.partial(self.make, name)
        if (pieces := self.pieces) is not None:
            given["make_train_function"] = pieces.make_train_function
            given["train_step"] = functools.wraps(self.step)(lambda data: pieces.step(data))
        elif self.layout.devices:
            given["train_step"] = self.step
        return given

    def make(self, name: str, force: bool = False) -> Any:
        """Make a function of Keras's trainer, which is compiled where the model is to be."""
        own = getattr(type(self.model), name)
        if self.model.distribute_strategy.num_replicas_in_sync > 1:
            return own(self.model, force)
        with self.compiling():
            made = own(self.model, force)
        if name == "make_train_function" and not hasattr(self.model.train_function, "unbuilt"):
            self.model.train_function = self._built_first(self.model.train_function)
        return made

    def compiling(self) -> Any:
        """Let Keras make functions in the block that are compiled on each of the devices."""
        devices = {*(self.layout.devices or ["/GPU:0", "/CPU:0"])}
        if self.layout.state != "host":
            devices |= {v.value.device for v in self.model.trainable_variables}
        return compiling(self.model, devices, self.layout.compiled)

    def share(self) -> None:
        """Make what the first step makes, of a model that several workers share."""
        if self.across:
            build_optimizers(self.model)
            share_metrics(self.model)

    def _built_first(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make variables before the step is traced: TensorFlow traces what makes some again."""
        model = self.model
        ours = (self.step, model.compute_loss, model.compute_metrics)
        known = self.graph is not None and not any(map(is_own, ours))

        def first(iterator: Any) -> Any:
            build_optimizers(model)
            if known and isinstance(iterator, tf.data.Iterator):
                _, labels, _ = keras.utils.unpack_x_y_sample_weight(iterator.element_spec)
                if labels is not None:
                    _private.build_compiled(model, labels)
            return function(iterator)

        first.unbuilt = function  # type: ignore[attr-defined]
        return first

    def _move(self) -> None:
        """Move each variable to the device that has it, with what the optimizer keeps for it."""
        layout, model = self.layout, self.model
        if layout.state == "home" and not (layout.staged or self.cut):
            return
        used = columns(self.segments(False), layout.length)
        first: dict[int, tuple[Any, int]] = {}  # the device of a row that uses a variable first
        for d in reversed(used):
            first |= {id(v): (v, d) for v in used[d]}
        inside = self.cut.inside if self.cut else set()
        held = dict.fromkeys((d for row in layout.rows for d in row), 0)
        places = []
        # What is trained first: the optimizer keeps as much again for it, once or more often.
        for v in sorted(model.weights, key=lambda v: (v.trainable, _bytes(v)), reverse=True):
            if id(v) in inside:
                continue
            device = self._owner(first.get(id(v), (v, 0))[1], held)
            held[device] = held.get(device, 0) + _bytes(v)
            places.append((v, device))
        self.homes += [(v, v.value.device) for v, _ in places]
        moved(model, places)

    def _owner(self, d: int, held: Mapping[str, int]) -> str:
        """Choose who has a variable that is used on one device of each row."""
        state, rows = self.layout.state, self.layout.rows
        if state == "home":
            return rows[0][d]
        if state == "host":
            return HOST
        owners = [row[d] for row in rows] if state == "owners" else state
        return min(owners, key=lambda device: held.get(device, 0))

    def call(self, *args: Any, **named: Any) -> Any:
        """Call the model as its layout says."""
        if self.layout.devices:
            return composed(self, args, named)
        if not named.get("training") or named.keys() - {"inputs", "mask", "training"}:
            return self.original(*args, **named)
        return where_it_is(self, args, named)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Let the model compute in the block as Keras has made it, its weights where they are."""
        names = {*self.methods()} & vars(self.model).keys()
        ours = {name: vars(self.model).pop(name) for name in names}
        vars(self.model).update(self.before)
        try:
            yield
        finally:
            vars(self.model).update(ours)

    def undo(self) -> None:
        """Leave the model as it was."""
        self.leave(self.model)
        if self.across:
            leave(self.model)
        if self.cut:
            self.cut.undo()
        moved(self.model, self.homes)

    def leave(self, model: Any) -> None:
        """Give the model, or a twin of it, the methods that it had before."""
        for name in (NAME, *self.methods()):
            vars(model).pop(name, None)
        vars(model).update(self.before)

    def onto(self, twin: Any) -> None:
        """Let a twin of the model take the pieces and parts on one device; it asks no loss."""
        own = Laid(twin, Layout(pieces=self.layout.pieces, recompute=self.layout.recompute))
        if own.pieces:
            own.pieces.known = True
        vars(twin).update(own.methods())


def _bytes(variable: Any) -> int:
    return int(variable.value.dtype.size * variable.shape.num_elements())
