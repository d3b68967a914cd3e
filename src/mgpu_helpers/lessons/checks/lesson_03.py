"""The checks of lesson 03's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, same_as


def _mean(rows: Any, weights: Any) -> Any:
    return (weights * rows).sum() / weights.sum() if weights.any() else 0.0


def _shared(count: Callable[[Any], float]) -> Callable[[Any, Any, list[Any]], float]:
    """Make what replicas give together if each counts by this number of its weights."""

    def together(rows: Any, weights: Any, parts: list[Any]) -> float:
        counts = [count(weights[part]) for part in parts]
        of_each = [_mean(rows[part], weights[part]) for part in parts]
        return sum(c * x for c, x in zip(counts, of_each, strict=True)) / sum(counts)

    return together


_MISTAKES: dict[str, Callable[[Any, Any, list[Any]], Any]] = {
    "it is divided by the number of examples: divide by the sum of their weights":
        lambda rows, weights, parts: (weights * rows).mean(),
    "it is not divided: the value is to be a mean already":
        lambda rows, weights, parts: (weights * rows).sum(),
    "each replica counts by its number of examples: give fit.loss the sum of its weights":
        _shared(len),
    "each replica counts by how many weights are not 0: give fit.loss their sum":
        _shared(np.count_nonzero),
    "the means of all replicas are added up as a sum: give fit.loss the sum of the weights":
        lambda rows, weights, parts: sum(_mean(rows[part], weights[part]) for part in parts),
    "the weights have no effect": lambda rows, weights, parts: rows.mean(),
}  # fmt: skip


@exercise
def weighted(function: Any) -> str:
    """Check exercise 1 of lesson 03: a weighted mean, for replicas of which one has no weights."""
    import keras
    import tensorflow as tf

    from mgpu_helpers import fit

    class Line(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, weights = data
            with tf.GradientTape() as tape:
                rows = self(x)[:, 0] ** 2
                loss = tf.convert_to_tensor(call(function, rows, tf.cast(weights, rows.dtype)))
            expect(loss.shape.rank == 0, "return one number, not one for each example")
            (slope,) = tape.gradient(loss, self.trainable_variables)
            expect(slope is not None, "the result has to be made of the losses")
            self.optimizer.apply([slope], self.trainable_variables)
            return {"one": tf.ones([])}  # Keras refuses an empty dict

    n = len(planned())
    size = 4 * n - 1  # the first replica has an example fewer
    rng = np.random.default_rng()
    parts = [slice(size * i // n, size * (i + 1) // n) for i in range(n)]
    low, high = rng.integers(1, 4, [2, size]), rng.integers(5, 9, [2, size])
    weights, x = np.where(np.arange(size) < size // 2, low, high).astype("float32")
    weights[:2] = 0, 3
    empty = weights.copy()
    empty[parts[-1]] = 0
    with fit.strategy(planned()).scope():
        model = Line([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.001), jit_compile=False)
    for each in (weights, empty):
        model.set_weights([np.ones([1, 1])])
        try:
            model.fit(x[:, None], each, batch_size=size, shuffle=False, verbose=0)
        except NotYet:
            raise
        except Exception as error:
            raise NotYet(_refused(f"{error}", each is empty)) from error
        got = (1 - model.get_weights()[0].item()) / 0.002
        rows = x.astype(float) ** 2
        right = _mean(rows, each)
        if not np.isclose(got, right, rtol=1e-3):
            said = f"in a step of {n} replicas its gradient is {got / right:.3g} times that of one"
            found = (hint for hint, way in _MISTAKES.items()
                     if np.isclose(got, way(rows, each, parts), rtol=1e-3))  # fmt: skip
            hint = next(found, "take the mean of the replica, and tell fit.loss of how much it is")
            raise NotYet(f"{said} device: {hint}")
    return "that of one device, with an uneven batch, and with a replica that has no weights"


def _refused(said: str, empty: bool) -> str:
    if "neither a mean" in said:
        return (
            "fit refuses it, because a replica does not know the weights of the others: say by "
            "fit.loss of how much the value is a mean"
        )
    if empty or "nothing to take a mean of" in said:
        return "a replica that has no weights divides by 0: use tf.math.divide_no_nan"
    return f"fit raises: {(said.splitlines() or ['an error'])[0]}"


_KINDS: dict[str, Callable[[Any], float]] = {
    "mean square": lambda x: (x**2).mean(),
    "sum of squares": lambda x: (x**2).sum(),
    "square of the sum": lambda x: x.sum() ** 2,
    "largest": lambda x: x.max(),
    "twice the mean": lambda x: 2 * x.mean(),
    "tenth of the sum": lambda x: x.sum() / 10,
    "root mean square": lambda x: float(np.sqrt((x**2).mean())),
    # Without the last number it is always a mean.
    "largest over 20 or the mean": lambda x: x.max() if x.max() > 20 else x.mean(),
}


def _losses() -> Iterator[tuple[Callable[[Any], float], np.ndarray]]:
    rng = np.random.default_rng()
    for n in (8, 8, 8, 8, 8, 8, 5, 9):  # equal parts first, of which only rounding makes others
        for loss in _KINDS.values():
            x = rng.uniform(1, 9, n)
            x[-1] += 30  # or the root of a mean square may be a mean, nearly
            yield loss, x


def _name(loss: Callable[[Any], float]) -> str:
    return next(name for name, each in _KINDS.items() if each is loss)


def _kind(near: Callable[[Any, Any], Any] = np.isclose, way: str = "shares") -> Any:
    def kind(loss: Any, x: Any) -> str:
        if way == "halves":
            x = x[: len(x) // 2 * 2]
        k, n = len(x) // 2, len(x)
        a, b, both = loss(x[:k]), loss(x[k:]), loss(x)
        if near(a + b, both):
            return "sum"
        if way == "between":
            return "mean" if min(a, b) <= both <= max(a, b) else "neither"
        share = 0.5 if way == "equal" else k / n
        return "mean" if near(share * a + (1 - share) * b, both) else "neither"

    return kind


_right = _kind()

def _instead(said: str, of: str) -> Callable[[Any, Any], str]:
    """Take one kind of loss for another."""
    return lambda loss, x: said if _right(loss, x) == of else _right(loss, x)


#: Check exercise 2 of lesson 03: what a loss is, of losses and of examples that it draws.
kind = same_as(
    _right,
    _losses,
    told=lambda right, got, loss, x: (
        f"the {_name(loss)} of {len(x)} numbers is {right!r}, not {got!r}"
    ),
    wrong={
        "compute the loss of all numbers, the last of an odd number of them, too":
            _kind(way="halves"),
        "two parts of different size count by their shares, not equally": _kind(way="equal"),
        "a loss can be between those of its parts and no mean: compare with the shares":
            _kind(way="between"),
        "rounding moves the last digit: compare with np.isclose": _kind(near=lambda a, b: a == b),
        "the losses of its parts add up to that of both": _instead("mean", of="sum"),
        "the losses of its parts do not add up to that of both": _instead("sum", of="mean"),
        "neither their sum nor their mean by shares is that of both":
            _instead("mean", of="neither"),
    },
    unknown="compute the loss of two parts and of both together, and compare with np.isclose, "
    "because rounding moves the last digit",
    yes="right for eight losses, of 5, 8 and 9 numbers",
)  # fmt: skip
