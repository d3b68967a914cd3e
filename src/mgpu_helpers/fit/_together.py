"""Calls in which layers are cut, as the devices of a row run them together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import Call, Value, run_calls
from mgpu_helpers._models import instead
from mgpu_helpers.fit._leaves import inner, instead_of, layers_in, wrapped


class _Reached(BaseException):
    """A device has come to where parts are added up; no Exception, which Keras would change."""


@dataclass
class Together:
    """The first device runs calls; at each layer cut by rows the others come up to it.

    For that the calls begin again on each other device, and what has run is not run again: a layer
    cut by columns gives the device's part, one that runs on the first device alone gives a copy.
    Only what stands between columns and rows runs on each. So layers inside a layer may be called
    by any code that calls them in one order.

    steps: the leaves, and how each is run. parts: by device what runs for a layer that is cut.
    gathered: for heads of keys, an axis and which of it each device takes. settings: by layer what
    attention has for numbers of heads on each device.
    """

    steps: Sequence[tuple[Any, str]]
    parts: Sequence[Mapping[Any, Any]]
    gathered: Mapping[Any, tuple[int, Sequence[Any]]]
    settings: Mapping[Any, Sequence[dict[str, Any]]]
    devices: Sequence[Any]

    def run(self, calls: Sequence[Call], values: dict[Value, Any], training: Any) -> Any:
        """Run calls with the values that they take; give all values, of the first device."""
        self.made: dict[tuple[int, int], Any] = {}  # by step and device
        self.copies: dict[tuple[int, int], Any] = {}  # by `id` and device, with what they are of
        self.k = self.d = 0
        given = [(value, x, _private.mask_of(x)) for value, x in values.items()]

        def again(d: int) -> None:
            own = {value: self._copied(x, d) for value, x, _ in given}
            for value, _, mask in given:  # which attention takes away
                if mask is not None:
                    _private.set_mask(own[value], self._copied(mask, d))
            run_calls(calls, own, training)

        self.again = again
        every = {layer for call in calls for _, layer in inner(call.operation)}
        leaves = {layer for layer, _ in self.steps}
        for call in calls:  # in others than these, too, which are called only now
            leaves |= {*layers_in(call.operation)} if call.operation not in leaves else set()
        with instead_of(leaves, self._leaf), contextlib.ExitStack() as stack:
            for layer in self.settings.keys() & every:
                own = wrapped(layer, "call", self._attention)
                stack.enter_context(instead(layer, call=own))
            made = run_calls(calls, values, training)
        self._check(self.k == len(self.steps))
        return made

    def _check(self, as_before: bool) -> None:
        if not as_before:
            raise ValueError(
                f"{self.steps[0][0].name} and what follows it are called in another order than "
                "when their layers were cut: leave them out of `layers`."
            )

    def _attention(self, layer: Any, call: Any, *args: Any, **named: Any) -> Any:
        with instead(layer, **self.settings[layer][self.d]):
            return call(*args, **named)

    def _leaf(self, layer: Any, call: Any, *args: Any, **named: Any) -> Any:
        """Give what a leaf makes on the device that is at work."""
        k, d = self.k, self.d
        self._check(k < len(self.steps) and self.steps[k][0] is layer)
        kind = self.steps[k][1]
        if d and (k, 0) not in self.made:
            raise _Reached(_given(args, named))
        self.k += 1
        if d == 0:
            self.made[k, 0] = self._first(k, kind, layer, call, args, named)
        elif (k, d) not in self.made:
            own = kind == "between"
            self.made[k, d] = call(*args, **named) if own else self._copied(self.made[k, 0], d)
        return self.made[k, d]

    def _first(self, k: int, kind: str, layer: Any, call: Any, args: Any, named: Any) -> Any:
        """Run a leaf on the first device; what is cut, on the others, too."""
        others = range(1, len(self.devices))
        if kind == "table":
            return self._looked_up(layer, _given(args, named), args[1:], named)
        if kind == "columns":
            x = _given(args, named)
            for d in others:
                with self._on(d):
                    self.made[k, d] = self.parts[d][layer].call(self._copied(x, d))
            return self.parts[0][layer].call(x)
        if kind == "rows":
            sums = [self.parts[0][layer].call(_given(args, named))]
            for d in others:
                with self._on(d):
                    sums.append(self.parts[d][layer].call(self._come(k, d)))
            y = tf.add_n([sums[0], *map(tf.identity, sums[1:])])
            y = y if layer.bias is None else keras.ops.add(y, layer.bias)
            return y if layer.activation is None else layer.activation(y)
        made = call(*args, **named)
        if kind == "gathered":
            axis, heads = self.gathered[layer]
            made, *rest = (tf.gather(made, own, axis=axis) for own in heads)
            for d, own in zip(others, rest, strict=True):
                with self._on(d):
                    self.made[k, d] = self._copied(own, d)
        return made

    def _looked_up(self, layer: Any, x: Any, more: Any, named: Any) -> Any:
        """Look words up where their rows are; or, in reverse, make each device's part of logits."""
        named, made, first = {k: v for k, v in named.items() if k != "inputs"}, [], 0
        back, ids = named.get("reverse", any(more)), x
        if not back:
            x = tf.cast(x, "int32")
            x = tf.where(x < 0, x + layer.input_dim, x)  # as Keras counts from the end
        for d, parts in enumerate(self.parts):
            with self._on(d) if d else contextlib.nullcontext():
                part, own = parts[layer], self._copied(x, d)
                if back:
                    made.append(part.call(own, *more, **named))
                    continue
                there = (own >= first) & (own < first + part.input_dim)
                y = part.call(tf.where(there, own - first, 0), *more, **named)
                made.append(tf.where(there[..., None], y, tf.zeros_like(y)))
                first += part.input_dim
        if back:
            return tf.concat(made, -1)
        y = tf.add_n([made[0], *map(tf.identity, made[1:])])
        if layer.mask_zero:
            _private.set_mask(y, tf.not_equal(ids, 0))
        return y

    def _come(self, k: int, d: int) -> Any:
        """Let a device come up to a step; give what the layer there takes."""
        self.k, self.d = 0, d
        try:
            self.again(d)
            raise RuntimeError("a step is not reached")
        except _Reached as reached:
            self._check(self.k == k)
            return reached.args[0]
        finally:
            self.k, self.d = k + 1, 0

    @contextlib.contextmanager
    def _on(self, d: int) -> Iterator[None]:
        """Place what is made in the block, also where a gradient is to be with its operation."""
        apart: Any = contextlib.nullcontext()
        if not tf.executing_eagerly():
            apart = tf.compat.v1.get_default_graph().colocate_with(None, ignore_existing=True)
        with apart, tf.device(self.devices[d]):
            yield

    def _copied(self, made: Any, d: int) -> Any:
        """Copy tensors to a device, each once."""
        def copied(x: Any) -> Any:
            if not tf.is_tensor(x) or not d:
                return x
            if (id(x), d) not in self.copies:
                self.copies[id(x), d] = x, tf.identity(x)
            return self.copies[id(x), d][1]

        return keras.tree.map_structure(copied, made)


def _given(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Give the one tensor that a dense layer takes."""
    return args[0] if args else named["inputs"]
