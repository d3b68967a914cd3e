"""The checks of lesson 14's exercises."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers, sent, traced

MOST = 16  # bytes an example that a device may send


def _gated(x: Any, g: Any, u: Any, d: Any) -> Any:
    gate = x @ g
    return (gate / (1 + np.exp(-gate)) * (x @ u)) @ d


@exercise
def gated(function: Any) -> str:
    """Check exercise 1 of lesson 14: the matrices of a gated pair, an n-th of each for a device."""
    rng = np.random.default_rng(0)
    for n, wide, hidden in ((2, 4, 6), (3, 5, 12)):
        x = rng.normal(size=[7, wide])
        shapes = [(wide, hidden), (wide, hidden), (hidden, wide)]
        whole = [rng.normal(size=shape) for shape in shapes]
        got = listed(call(function, *whole, n), "a list with a triple for each device")
        expect(len(got) == n, f"{n} devices need {n} triples, not {len(got)}")
        parts = [listed(each, "a triple of matrices for each device") for each in got]
        for part in parts:
            expect(len(part) == 3, f"a device needs 3 matrices, not {len(part)}")
            for name, matrix, (down, over) in zip("gud", part, shapes, strict=True):
                matrix = numbers(matrix, np.shape(matrix), f"a matrix for {name}")
                expect(matrix.size == down * over // n,
                       f"a device has {matrix.size} of the {down * over} numbers of {name}, not "
                       f"1/{n} of them")
                by = "rows" if name == "d" else "columns"
                right = (down // n, over) if name == "d" else (down, over // n)
                given = " x ".join(map(str, matrix.shape))
                expect(matrix.shape == right,
                       f"{name} is {down} x {over}, and a part of it {given}: cut it by {by}")
        added = sum(_gated(x, *(np.asarray(m) for m in part)) for part in parts)
        expect(np.allclose(added, _gated(x, *whole), rtol=1e-3, atol=1e-3),
               f"with {n} devices the shapes are right, and the outputs do not add up to that of "
               "the whole: a device needs columns of g and u and rows of d that belong to the same "
               "hidden numbers, and all devices together need each of them once")
    return "the outputs of 2 and of 3 devices add up to that of the whole"


def _run(function: Any, parts: Any, y: Any) -> Any:
    # The variables are no argument of what is traced, so that they stay where they lie.
    return traced(lambda labels: call(function, [*parts], labels), y)


@exercise
def losses(function: Any) -> str:
    """Check exercise 2 of lesson 14: the losses of logits that lie in parts, and what is sent."""
    import tensorflow as tf

    where = list(dict.fromkeys([planned().devices[0], planned().devices[-1]]))
    rng = np.random.default_rng(0)
    batch = 50
    # Each example, or each part, has its own highest score.
    for classes, by, shift in (
        (24, "none", 0.0), (36, "all", 1000.0), (24, "examples", 1000.0), (24, "parts", 1000.0),
        (24, "all", -1000.0),
    ):  # fmt: skip
        logits = rng.normal(size=[batch, classes]) * 3
        rows = slice(batch // 2 if by == "examples" else 0, None)
        logits[rows, classes // 2 if by == "parts" else 0 :] += shift
        logits = logits.astype("f")
        y = rng.integers(0, classes, batch)
        parts = []
        for device, part in zip(where, np.split(logits, len(where), axis=1), strict=True):
            with tf.device(device):
                parts.append(tf.Variable(part))
        got, step = _run(function, parts, y)
        got = numbers(got, (batch,), "one loss for each example")
        highest = logits.max(1, keepdims=True).astype("float64")
        right = np.log(np.exp(logits - highest).sum(1)) + highest[:, 0] - logits[range(batch), y]
        odd = [float(one) for one in got if not np.isfinite(one)]
        expect(not odd,
               f"with scores near {shift:.0f} a loss is {odd[:1]}: take each example's own highest "
               "score away before exp, and add it again after log, as tf.reduce_logsumexp does")
        first = int(np.argmax(np.abs(got - right)))
        expect(np.allclose(got, right, atol=2e-3),
               f"an example of class {y[first]}, of {classes}, has the loss {right[first]:.3f}, "
               f"not {got[first]:.3f}")
        for device in where:
            each = sent(step, device) / batch
            expect(each <= MOST,
                   f"{device} sends {each:.0f} bytes for each example: reduce its scores to a few "
                   "numbers where they lie, in a block tf.device(logits[i].device)")
    return f"right also for scores near 1000, and no device sends over {MOST} bytes for an example"
