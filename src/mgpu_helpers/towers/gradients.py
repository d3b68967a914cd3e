"""What all towers make of a model together: its gradients, added up, and its new state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers._train import home_of
from mgpu_helpers.towers.averages import average, total
from mgpu_helpers.towers.sync import Tower


def summed(
    ys: Sequence[Any],
    towers: Sequence[Tower],
    trained: Sequence[Any],
    xs: Sequence[Any] = (),
    by: Any = None,
) -> tuple[list[Any], list[Any]]:
    """Add up, over the towers, the gradients of all ys for each weight; give those for xs too.

    A tower's gradients are computed where its forward pass was, and added up where the weight lies.
    `by` is the gradient for each of ys, 1 when None.
    """
    import tensorflow as tf

    # One pass for all, because a loss goes back into all towers where they have met.
    found = iter(tf.compat.v1.gradients(
        ys, [*xs, *(w for tower in towers for w in tower.weights)], by,
        colocate_gradients_with_ops=True,
    ))  # fmt: skip
    own = [next(found) for _ in xs]
    each = [[next(found) for _ in tower.weights] for tower in towers]
    sums = []
    with tf.name_scope("average"):
        for weight, *column in zip(trained, *each, strict=True):
            with tf.device(home_of([weight])):
                slope = as_alone(*total([[each] for each in column]), *column)
                # A sum of one is no operation, and so would not say that it is here.
                sums.append(slope if slope is None else tf.identity(slope))
    return sums, own


def as_alone(total: Any, *gradients: Any) -> Any:
    """Let a sum overflow where one device has it in float16, which the towers have in float32.

    So a step is skipped, and the loss scaled less, when one device would do so.
    """
    import tensorflow as tf

    if not any(isinstance(g, tf.Tensor) and _of_halves(g) for g in gradients):  # or sparse, or None
        return total
    half = tf.cast(total, tf.float16)
    return tf.where(tf.math.is_finite(half), total, tf.cast(half, total.dtype))


def _of_halves(gradient: Any) -> bool:
    """Say whether a gradient was made in float16, or added up from some that were."""
    import tensorflow as tf

    op = gradient.op
    if op.type == "Cast":
        return op.inputs[0].dtype == tf.float16
    return op.type == "AddN" and any(_of_halves(each) for each in op.inputs)


def keep(variables: Sequence[Any], towers: Sequence[Tower], held: Sequence[Any]) -> None:
    """Write what the layers have changed beside the weights, once: the average over the towers.

    What cannot be averaged, such as how often a seed was used, is the first tower's.
    """
    new = [[tower.scope.get_current_value(v) for v in variables] for tower in towers]
    changed = [k for k, value in enumerate(new[0]) if value is not towers[0].state[k]]
    averaged = [k for k in changed if variables[k].dtype.startswith(("float", "bfloat"))]
    values = dict(zip(changed, (new[0][k] for k in changed), strict=True))
    if averaged:
        means = average([[tower[k] for k in averaged] for tower in new], weights=held)
        values |= zip(averaged, means, strict=True)
    for k, value in values.items():
        variables[k].assign(value)
