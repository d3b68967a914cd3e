"""The checks of lesson 08's exercises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, numbers, same_as

WAY = "return one number, a tensor of the losses' type"


@exercise
def word_loss(function: Any) -> str:
    """Check exercise 1 of lesson 08: a mean of some losses that XLA compiles."""
    import tensorflow as tf

    expect(callable(function), f"a function is wanted, its name without brackets, not {function!r}")
    own = getattr(function, "python_function", function)

    @tf.function(jit_compile=True)
    def both(losses: Any, is_word: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(losses)
            made = call(own, losses, is_word)
            expect(made is not None, f"the function returns nothing: {WAY}")
            made = call(tf.convert_to_tensor, made)
        expect(made.dtype == losses.dtype, f"it returns {made.dtype.name}: {WAY}")
        return made, tape.gradient(made, losses, unconnected_gradients="zero")

    for losses, is_word in _texts():
        with tf.device(planned().devices[0]):
            given = tf.constant(losses), tf.constant(is_word)
            try:
                got, slope = both(*given)
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                refused = re.search(r"No registered '(\w+)' OpKernel", str(error))
                said = "XLA does not compile it: a shape in it may depend on values"
                if refused:
                    said = f"XLA has no {refused[1]}: write it with TensorFlow's own operations"
                raise NotYet(said) from error
        _judge(losses, is_word, numbers(got, (), WAY), slope.numpy())
    return "XLA compiles it, and four texts and their gradients are right"


def _texts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(25)
    for shape, words in [((2, 3), 3), ((2, 3), 6), ((4, 5), 7), ((2, 3), 0)]:
        is_word = np.arange(np.prod(shape)) < words
        yield rng.integers(1, 9, shape).astype("f"), rng.permutation(is_word).reshape(shape)


def _judge(losses: np.ndarray, is_word: np.ndarray, got: Any, slope: np.ndarray) -> None:
    counts = is_word.astype("f")
    many = counts.sum()
    total = (losses * counts).sum()
    right = total / max(many, 1)
    hints = {
        "divide by the number of words, not of all places": total / losses.size,
        "divide by the number of words": total,
        "what fills up a line does not count": losses.mean(),
        "those are the losses that do not count": (losses * (1 - counts)).sum()
        / max(losses.size - many, 1),
        "count how many words there are in all, not in a line":
            np.mean([(a * b).sum() / max(b.sum(), 1) for a, b in zip(losses, counts, strict=True)]),
    }  # fmt: skip
    if not many:
        expect(got == 0, f"without any word the loss is 0, not {got:g}: do not divide by 0")
    elif not np.isclose(got, right):
        hint = next((hint for hint, other in hints.items() if np.isclose(got, other)), "")
        said = f"{many:g} words of {losses.size} have a mean of {right:.4g}, not {got:.4g}"
        raise NotYet(f"{said}: {hint}" if hint else said)
    expect(np.isfinite(slope).all(), "its gradient is no number if there is no word: do not "
           "divide by 0")  # fmt: skip
    expect(np.allclose(slope, counts / max(many, 1)),
           "the mean is right, but its gradient is not: let it go through the losses")  # fmt: skip


def _epochs() -> Iterator[tuple[int, int, int]]:
    yield from [(67, 35, 4), (60, 32, 4), (62, 35, 4), (96, 32, 4), (60, 64, 2), (97, 64, 2)]
    rng = np.random.default_rng()
    for _ in range(5):
        devices, batch = int(rng.integers(2, 5)), int(rng.integers(8, 50))
        left = int(rng.choice([0, int(rng.integers(devices, batch))]))
        yield int(rng.integers(1, 6)) * batch + left, batch, devices


def _of(batches: set[int], devices: int) -> int:
    return len({(n + i) // devices for n in batches for i in range(devices)})


def _batches(examples: int, batch: int) -> set[int]:
    return {min(batch, examples), examples % batch} - {0}


#: Check exercise 2 of lesson 08: how many sizes XLA compiles for, in epochs that it draws.
sizes = same_as(
    lambda examples, batch, devices: _of(_batches(examples, batch), devices),
    _epochs,
    told=lambda right, got, examples, batch, devices: (
        f"{examples} examples in batches of {batch} on {devices} devices have {right} sizes, "
        f"not {got:g}"
    ),
    way="one whole number of sizes",
    wrong={
        "count shares, not batches":
            lambda examples, batch, devices: len(_batches(examples, batch)),
        "the last batch may be smaller":
            lambda examples, batch, devices: _of({min(batch, examples)}, devices),
        "the shares of one batch may differ by an example":
            lambda examples, batch, devices: len({n // devices for n in _batches(examples, batch)}),
        "two batches may have shares of the same size":
            lambda examples, batch, devices: sum(_of({n}, devices)
                                                 for n in _batches(examples, batch)),
        "a batch that is not there has no size":
            lambda examples, batch, devices: _of({min(batch, examples), examples % batch}, devices),
        "a share of one size is compiled once, however many there are":
            lambda examples, batch, devices: -(-examples // batch) * devices,
    },
    unknown="list the sizes of all shares, and count those that differ",
    yes="right for eleven epochs, five of them drawn at random",
)  # fmt: skip
