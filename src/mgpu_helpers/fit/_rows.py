"""A row of devices that has a model once: what it reads, makes and changes in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import Value, run_calls
from mgpu_helpers.fit._recompute import MOMENTS, changed, computed_twice, run_met
from mgpu_helpers.fit._segments import Segment
from mgpu_helpers.fit.shares import workers_here

APART = 10**9  # between the seeds of two rows; Keras draws none that is larger


class Row:
    """Devices, what each has read of a model's variables, and what layers have made on them.

    used: the variables that each device reads. cut has layers that are cut, and what runs in their
    place. known are weights that calls before have read in the same step.
    """

    def __init__(
        self, number: int, devices: Sequence[str | None], used: dict[int, list[Any]],
        cut: Any = None, names: str = "", known: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        known = {} if known is None else known
        self.number, self.devices, self.cut, self.names = number, devices, cut, ""
        if names:
            with tf.name_scope(names) as self.names:  # with a slash: it can be opened again
                pass
        self.read: list[dict[int, Any]] = []
        self.state: dict[int, tuple[Any, Any]] = {}  # what layers have changed, with its value now
        for d, device in enumerate(devices):
            every = [*used.get(d, ()), *(own[d] for _, _, own in (cut.cuts if cut else ()))]
            with on(device), tf.name_scope(f"{self.names}read"), _private.without_autocast():
                self.read.append({})
                for v in every:
                    key = (number, d, id(v))
                    if not v.trainable or key not in known:
                        value = tf.convert_to_tensor(v)
                        known[key] = value if device is None else tf.identity(value)
                    self.read[d][id(v)] = known[key]
                    if v.name == "seed_generator_state" and number:  # each row draws for itself
                        apart = number * APART * workers_here()
                        self.read[d][id(v)] += tf.constant([apart, 0], known[key].dtype)

    def begin(self, values: dict[Value, Any]) -> None:
        """Take the inputs of a piece."""
        self.made: list[dict[Value, Any]] = [dict(values), *({} for _ in self.devices[1:])]
        self.maker = dict.fromkeys(values, 0)
        self.losses: list[Any] = []

    def at(self, d: int, value: Value) -> Any:
        """Give a value on a device of the row: a copy of it where it is made elsewhere."""
        if value not in self.made[d]:
            x = self.made[self.maker[value]][value]
            with on(self.devices[d]):
                self.made[d][value] = copied(x)
        return self.made[d][value]

    @contextlib.contextmanager
    def reading(self, d: int, variables: Sequence[Any], size: Any, name: str = "") -> Iterator[Any]:
        """Give a scope in which layers read what a device has read; keep what they change in it."""
        pairs = [(v, self.state.get(id(v), (v, self._value(d, v)))[1]) for v in variables]
        with on(self.devices[d]), tf.name_scope(name) if name else contextlib.nullcontext():
            with _private.without_autocast():
                scope = keras.StatelessScope(pairs, collect_losses=True)
            yield scope
            self._keep(pairs, scope, size)
        self.losses += scope.losses

    def _value(self, d: int, variable: Any) -> Any:
        """Give what is read of a variable for a device: of a part the device's, or the first's."""
        if self.cut:
            variable = self.cut.same.get(id(variable), (None, variable))[1]
        key = id(variable)
        return next(read[key] for read in (self.read[d], *self.read) if key in read)

    def _keep(self, pairs: Sequence[tuple[Any, Any]], scope: Any, size: Any) -> None:
        for variable, before, value in changed(scope, pairs):
            # In place of a share without examples stands an example of another one.
            if tf.is_tensor(size):
                value = tf.where(size > 0, value, before)
            elif size is not None and not size:
                continue
            self.state[id(variable)] = variable, value

    def run(
        self, segment: Segment, training: Any, size: Any, name: str, moments: Sequence[Any] = ()
    ) -> None:
        """Run a segment; moments are of what all rows give its first call, where they meet."""
        run, variables, d = run_calls, [*segment.variables], segment.device
        if segment.steps is not None:
            run = self.cut.together(segment, self.devices).run
            variables += self.cut.variables({layer for layer, _ in segment.steps})
        with self.reading(d, variables, size, name) as scope:
            values = {value: self.at(d, value) for value in segment.takes}
            if moments:
                run, values = run_met, values | dict(zip(MOMENTS, moments, strict=True))
            if segment.again:
                made = computed_twice(
                    segment.calls, values, segment.gives, scope, variables, run, segment.last
                )
            else:
                with scope:
                    made = run(segment.calls, values, training)
        for value in segment.gives:
            self.made[d][value] = made[value]
            self.maker.setdefault(value, d)


def on(device: str | None) -> Any:
    """Place what is made in the block; None leaves it where it would be."""
    return contextlib.nullcontext() if device is None else tf.device(device)


def copied(x: Any) -> Any:
    """Copy a tensor to where the block places it, with its mask."""
    copy = tf.identity(x)
    if (mask := _private.mask_of(x)) is not None:
        _private.set_mask(copy, tf.identity(mask))
    return copy
