"""The checks of lesson 09's exercises."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers, same_as


def _stacks() -> Iterator[tuple[list[int], int]]:
    rng = np.random.default_rng(seed=3)
    for falling in (True, False, None):
        for _ in range(3):
            kept = rng.choice(np.arange(50, 900), rng.integers(3, 8), replace=False).tolist()
            kept = kept if falling is None else sorted(kept, reverse=falling)
            yield kept, int(rng.integers(2, 40))
    for kept in ([700, 20, 300], [500]):  # where kept[-1] is before kept[0], or there is no other
        yield kept, int(rng.integers(2, 40))


def _moments(kept: list[int]) -> list[int]:
    """Count the numbers of one example that are held at each layer of the backward pass."""
    return [sum(kept[: i + 1]) + kept[i] + (kept[i - 1] if i else 0) for i in range(len(kept))]


#: Check exercise 1 of lesson 09: the bytes of a step, from what each layer keeps.
peak_of_a_stack = same_as(
    lambda kept, batch: 4 * batch * max(_moments(kept)),
    _stacks,
    told=lambda right, got, kept, batch: (
        f"for kept={kept} and batch={batch} it is {right:,} bytes, not {got:,.10g}"
    ),
    way="return the bytes of the moment that holds most, one number",
    wrong={
        "a float32 number takes 4 bytes": lambda kept, batch: batch * max(_moments(kept)),
        "a float32 number takes 4 bytes, and you count 8 for each":
            lambda kept, batch: 8 * batch * max(_moments(kept)),
        "layer 0 has no output before it, and kept[-1] is that of the last layer":
            lambda kept, batch: 4 * batch * max(2 * kept[0] + kept[-1], *_moments(kept)),
        "that is one example, and there are as many as the batch has":
            lambda kept, batch: 4 * max(_moments(kept)),
        "that is what the forward pass keeps; gradients come on top":
            lambda kept, batch: 4 * batch * sum(kept),
        "the backward pass may hold more at an earlier layer than at the last one":
            lambda kept, batch: 4 * batch * _moments(kept)[-1],
        "that is another moment of the backward pass; take the one that holds most":
            lambda kept, batch: 4 * batch * _moments(kept)[:2][-1],
    },
    unknown="add the outputs up to layer i and the gradients of outputs i and i - 1",
    yes="the bytes at the peak, of eleven networks",
)


@exercise
def keeps_one(train: Any) -> str:
    """Check exercise 2 of lesson 09: the losses, and no tape alive but that of the worst step."""
    rng = np.random.default_rng(seed=3)
    for steps in rng.choice(np.arange(4, 9), 2, replace=False).tolist():
        losses = rng.choice(np.arange(1, 1000), steps, replace=False).astype(float)
        worst = int(rng.integers(1, steps - 1))  # neither the first nor the last
        losses[worst] += 1000
        _judge_losses(train, losses.tolist())
    return "the losses and the worst tape of two trainings, and no other tape was alive at a step"


def _judge_losses(train: Any, values: list[float]) -> None:
    import tensorflow as tf

    tapes: list[weakref.ref[Any]] = []
    alive, steps = 0, len(values)

    def kept(but: int) -> int:
        return sum(tape() is not None for i, tape in enumerate(tapes) if i != but)

    def step() -> tuple[Any, Any]:
        nonlocal alive
        seen = values[: len(tapes)]
        alive = max(alive, kept(int(np.argmax(seen))) if seen else 0)
        with tf.GradientTape() as tape:
            loss = tf.constant(values[len(tapes)] if len(tapes) < steps else 0.0)
        tapes.append(weakref.ref(tape))
        return loss, tape

    got = call(train, step, steps)
    lazy = inspect.isgenerator(got)
    expect(not lazy, "it returns a generator, which has not run a step yet: return what it gives")
    ran = counted(len(tapes), "time")
    expect(len(tapes) == steps, f"step was called {ran} in {steps} steps")
    pair = isinstance(got, tuple) and len(got) == 2
    expect(pair, "return two things, the list of losses and a tape")
    losses, tape = got
    way = f"first it should return the {steps} losses in order, as numbers"
    losses = listed(losses, way)
    expect(not any(tf.is_tensor(loss) for loss in losses),
           "these are tensors, which stay on the device; float(loss) makes a number")
    expect(numbers(losses, (steps,), way).tolist() == values, way)
    worst = int(np.argmax(values))
    expect(tape is not None and tape is tapes[worst](),
           f"the largest loss is that of step {worst}, counted from 0: return its tape")
    if kept(worst):
        gc.collect()
    left = counted(kept(worst), "other tape")
    expect(not kept(worst), f"{left} of {steps} outlived the training: do not keep them")
    earlier = counted(alive, "tape")
    expect(not alive, f"{earlier} of smaller losses lived when a step began: free each before")
