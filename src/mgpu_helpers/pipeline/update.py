"""An optimizer for each stage, where its weights lie: a single one would fetch all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.pipeline.run import Stage
from mgpu_helpers.towers.split import HOST
from mgpu_helpers.towers.tower import home_of


def updater(stages: Sequence[Stage], optimizer: Any) -> Callable[[Mapping[str, Any]], None]:
    """Make update(gradients), which trains the weights of stages by what `gradients` found.

    Each stage gets an optimizer of its own, like the given one, and on the device of its weights:
    so neither weights nor gradients cross. What comes out is, to rounding, what the given one would
    make of all weights, also with `global_clipnorm`. A weight that stages share is the first one's.

    optimizer is a name or an object that has not trained yet. It is not used itself:
    `update.optimizers` are those that are, to be saved, or to have their learning rate changed. A
    `LossScaleOptimizer` is refused, as no loss is scaled: of mixed_float16 give its
    `inner_optimizer`, or train in mixed_bfloat16.

    >>> double = Stage("/CPU:0", lambda weights, x: weights["w"] * x, {"w": tf.Variable(2.0)})
    >>> update = updater([double], "sgd")
    >>> update({"w": tf.constant(10.0)})
    >>> round(float(double.weights["w"]), 3), len(update.optimizers)
    (1.9, 1)
    """
    import tensorflow as tf

    given = _checked(optimizer)
    own: list[tuple[Any, str, Mapping[str, Any]]] = []  # optimizer, place, weights
    known: set[str] = set()
    for stage in stages:
        weights = {name: w for name, w in stage.weights.items() if name not in known}
        known |= weights.keys()
        if weights:
            place = home_of(list(weights.values()))
            with tf.device(place):
                made = type(given).from_config({**given.get_config(), "global_clipnorm": None})
                private.exclude_as(given, made)
                made.build(list(weights.values()))
            own.append((made, place, weights))

    def update(gradients: Mapping[str, Any]) -> None:
        scale = _clip(gradients, own, given.global_clipnorm) if given.global_clipnorm else None
        for made, place, weights in own:
            with tf.device(place):
                slopes = [gradients[name] for name in weights]
                if scale is not None:
                    slopes = [slope * tf.cast(scale, slope.dtype) for slope in slopes]
                made.apply(slopes, list(weights.values()))

    vars(update)["optimizers"] = [made for made, *_ in own]
    return update


def _clip(gradients: Mapping[str, Any], own: Sequence[Any], most: float) -> Any:
    """Give by how much Keras would scale all gradients; only a number of each stage crosses."""
    import tensorflow as tf

    squares = []
    for _, place, weights in own:
        with tf.device(place):
            each = [tf.reduce_sum(tf.square(gradients[name])) for name in weights]
            squares.append(tf.cast(tf.add_n(each), tf.float64))
    with tf.device(HOST):
        norm = tf.sqrt(tf.add_n(squares))
        return most / tf.maximum(norm, most) + (norm - norm)  # what is not finite stays so


def _checked(optimizer: Any) -> Any:
    """Give an optimizer of Keras that stages can have copies of."""
    import keras

    try:
        found = keras.optimizers.get(optimizer)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise ValueError(
            f"optimizer={optimizer!r} is not an optimizer of Keras: give a name such as 'adam', or "
            "an object of keras.optimizers."
        )
    if isinstance(found, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            f"{found.name} scales a loss, and a pipeline does not: give its inner_optimizer, or "
            "train in mixed_bfloat16, which needs no scale."
        )
    if steps := int(found.iterations.numpy()):
        raise ValueError(
            f"{found.name} has trained {steps} steps, and each stage begins with an optimizer of "
            "its own: give a new one, and restore update.optimizers."
        )
    if found.global_clipnorm and found.gradient_accumulation_steps:
        raise ValueError(
            f"{found.name} clips to a global norm of {found.global_clipnorm} what it accumulates "
            f"over {found.gradient_accumulation_steps} steps, which stages cannot: leave one out, "
            "such as the steps, for a schedule of more pieces."
        )
    return found
