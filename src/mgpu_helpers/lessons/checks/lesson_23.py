"""The checks of lesson 23's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, same_as

Decay = Callable[[float, int], float]


def _slower(decay: float, n: int) -> float:
    return min(decay, (1 + n) / (10 + n))


def _follow(values: Sequence[float], decay: float, of: Decay = _slower, swapped: bool = False,
            zero: bool = False) -> float:  # fmt: skip
    """Give the moving average after the last value; swapped: the decay is the new value's share."""
    average = 0.0 if zero else values[0]
    for n, value in enumerate(values[1:], 1):
        kept = 1 - of(decay, n) if swapped else of(decay, n)
        average = kept * average + (1 - kept) * value
    return average


def _values() -> Iterator[tuple[list[float], float]]:
    yield [1.0, 2.0], 0.1
    yield [1.0, 2.0], 0.9
    yield [0.0, 1.0, 1.0, 1.0], 0.5
    draw = np.random.default_rng()
    for decay in (0.9, 0.25, 0.9999):
        yield [float(value) for value in draw.uniform(1, 9, 30)], decay


#: Check exercise 1 of lesson 23: a moving average whose decay depends on the number of updates.
followed = same_as(
    _follow,
    _values,
    told=lambda right, got, values, decay: f"after {counted(len(values) - 1, 'update')} from "
    f"{values[0]:.3g} to {values[-1]:.3g} with decay {decay} it is {right:.4g}, not {got:.4g}",
    way="return one number",
    wrong={
        "the decay of update n is no more than (1 + n) / (10 + n)":
            lambda values, decay: _follow(values, decay, of=lambda decay, n: decay),
        "the first update has n = 1":
            lambda values, decay: _follow(values, decay, of=lambda d, n: _slower(d, n - 1)),
        "take the smaller of the two decays":
            lambda values, decay: _follow(values, decay, of=lambda d, n: max(d, _slower(1, n))),
        "the decay is the share of the old average":
            lambda values, decay: _follow(values, decay, swapped=True),
        "start from values[0], and not from zero":
            lambda values, decay: _follow(values, decay, zero=True),
    },
    changed="it changes the list that it is given",
    yes="6 trainings of up to 29 updates",
)


@exercise
def hidden(function: Any) -> str:
    """Check exercise 2 of lesson 23: a dense layer with dropout and a penalty, as in 2016."""
    import tensorflow as tf

    with tf.device(planned().host):
        for units, keep, scale in ((64, 0.8, 5e-4), (48, 0.3, 0.2)):
            _check_hidden(function, units, keep, scale)
    return "the same outputs, the same penalty, and the same share is kept"


def _check_hidden(function: Any, units: int, keep: float, scale: float) -> None:
    import keras

    way = "return a list of Keras layers"
    made = listed(call(function, units, keep, scale), way)
    expect(made and all(isinstance(each, keras.Layer) for each in made), way)
    model = call(keras.Sequential, [keras.Input([8]), *made])
    shapes = [tuple(weight.shape) for weight in model.trainable_weights]
    expect(shapes == [(8, units), (units,)],
           f"the weights for 8 inputs and units={units} have the shapes {shapes}, not "
           f"[(8, {units}), ({units},)]")  # fmt: skip
    draw = np.random.default_rng(units)
    kernel, bias = draw.normal(size=(8, units)), draw.normal(size=units)
    model.set_weights([kernel, bias])
    x = draw.normal(size=(400, 8)).astype("float32")
    wanted = np.maximum(x @ kernel + bias, 0)
    near = np.allclose(np.asarray(call(model, x, training=False)), wanted, rtol=1e-3, atol=1e-3)
    expect(near, "without dropout the outputs are not those of a dense layer with ReLU")
    _check_penalty(sum(float(loss) for loss in model.losses), scale, kernel, bias)
    _check_dropped(np.asarray(call(model, x, training=True)), wanted, keep)


def _check_penalty(got: float, scale: float, kernel: np.ndarray, bias: np.ndarray) -> None:
    squares = float(np.sum(kernel**2))
    known = {
        "the kernel has no penalty yet": 0.0,
        "tf.contrib took half of the sum of squares": scale * squares,
        "the bias has no penalty": scale * (squares + float(np.sum(bias**2))) / 2,
        "square the weights: L2, and not L1": scale * float(np.sum(np.abs(kernel))) / 2,
    }
    wanted = scale * squares / 2
    hint = next((hint for hint, value in known.items() if np.isclose(got, value, rtol=1e-3)), "")
    if not np.isclose(got, wanted, rtol=1e-3):
        said = f"with scale={scale} the penalty is {got:.3g}, not {wanted:.3g}"
        raise NotYet(f"{said}: {hint}" if hint else said)


def _check_dropped(got: np.ndarray, wanted: np.ndarray, keep: float) -> None:
    alive = wanted > 0.01
    share = float(np.mean(got[alive] != 0))
    expect(share < 0.99, "nothing is dropped in training")
    left = alive & (got != 0)
    grown = got[left] / wanted[left]  # each unit that is kept, by the same
    said = f"with keep={keep} it keeps {share:.0%} of the units"
    expect(abs(share - (1 - keep)) > 0.05, f"{said}: keras.layers.Dropout takes the share to drop")
    expect(np.ptp(grown) < 0.01, "drop units after the activation, each by itself")
    expect(abs(share - keep) < 0.05, said)
