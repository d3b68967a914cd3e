"""The checks of lesson 23's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, same_as


def _own(name: str) -> str:
    """Give a variable's name without its outer scope and without ":0"."""
    return name.partition(":")[0].partition("/")[2]


def _several(names: Sequence[str], own: Callable[[str], str] = _own) -> list[str]:
    """List the weights of which there are several, each once, in the order of the variables."""
    weights = [own(name) for name in names]
    return [name for name in dict.fromkeys(weights) if weights.count(name) > 1]


def _programs() -> Iterator[tuple[list[str]]]:
    yield (["tower_0/k1:0", "tower_0/b1:0"],)
    yield (["shared/k1:0", "shared/b1:0", "gpu_0/k2:0", "gpu_1/k2:0"],)
    yield (["a/k2:0", "a/k1:0", "b/k2:0", "b/k1:0"],)
    yield (["net/conv/k:0", "net/dense/k:0", "one/last/k:0", "two/last/k:0", "six/last/k:0"],)
    yield ([f"tower_{i}/{name}:0" for i in range(12) for name in ("out/w", "conv/w", "conv/b")],)


#: Check exercise 1 of lesson 23: which weights a graph has more than once.
unshared = same_as(
    lambda names: sorted(_several(names)),
    _programs,
    told=lambda right, got, names: (
        f"of {counted(len(names), 'variable')}, the first of them "
        f"{names[0]}, the answer is {right}, not {got!r}"
    ),
    wrong={
        "leave out what is in a single outer scope":
            lambda names: sorted({_own(each) for each in names}),
        "leave out the outer scope": lambda names: sorted(
            name.partition(":")[0] for name in names if _own(name) in _several(names)
        ),
        "leave out the :0": lambda names: sorted(f"{name}:0" for name in _several(names)),
        "name each weight once": lambda names: sorted(
            _own(name) for name in names if _own(name) in _several(names)
        ),
        "sort the names": _several,
        "its own name is all behind the outer scope":
            lambda names: sorted(_several(names, lambda name: _own(name).rpartition("/")[2])),
    },
    unknown="count the outer scopes of each weight",
    changed="it changes the list that it is given",
    yes="right for five programs",
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
