"""The checks of lesson 04's exercises."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks import judge
from mgpu_helpers.lessons.checks.judge import exercise, expect
from mgpu_helpers.trace import Op


@exercise
def gradients(function: Any) -> str:
    """Check exercise 1 of lesson 04: the backward pass of each product, where the product is."""
    plan, rng = planned(), np.random.default_rng(seed=3)
    x, a, b = (rng.integers(-3, 4, shape).astype("float32") for shape in ([4, 5], [5, 6], [6, 7]))
    middle = x @ a
    of_product = 2 * (middle @ b)
    rights = {"a": x.T @ (of_product @ b.T), "b": middle.T @ of_product}
    value, step = judge.traced(function, x, a, b)
    answer = judge.listed(value, "return the gradients of a and of b")
    expect(len(answer) == 2, f"two gradients are wanted, not {len(answer)}")
    for (name, right), got in zip(rights.items(), answer, strict=True):
        got = judge.numbers(got, right.shape, f"the gradient of {name} is wanted")
        way = "the function as it was returned another"
        if name == "a" and np.allclose(got, x.T @ np.ones_like(middle)):
            way = "it begins with that of middle, the third argument of its tape's gradient"
        elif np.array_equal(got, {"a": a, "b": b}[name]):
            way = f"this is {name} itself"
        expect(np.allclose(got, right), f"the gradient of {name} is wrong: {way}")
    products = [op for op in step.ops if op.type in judge.PRODUCTS]
    ran = [op.device for op in products]
    forward = [op.device for op in products if "gradient" not in op.name]
    first, last = plan.devices[0], plan.devices[-1]
    if first == last:
        return f"both gradients, and {ran.count(first)} products on {first}"
    for name, device in (("a", first), ("b", last)):
        expect(device in forward,
               f"no forward product ran on {device}: leave the one with {name} in its block")
    expect(len(ran) <= 5, f"{len(ran)} products ran, not 5: leave out what no gradient needs")
    makes = [("x times a", middle, first), ("middle times b", of_product, last),
             ("the gradient of middle", middle, last), ("the gradient of b", b, last),
             ("the gradient of a", a, first)]  # fmt: skip
    for (there, home), names in _strays(products, makes).items():
        way = "call gradient for that" if "gradient" in names[0] else "multiply"
        what = " and ".join(names)
        expect(False, f"{there} computed {what} instead of {home}: {way} in the block of {home}")
    counts = ran.count(first), ran.count(last)
    expect(counts == (2, 3),
           f"{first} ran {counts[0]} products, not 2, and {last} {counts[1]}, not 3")
    return f"both gradients, with 2 products on {first} and 3 on {last}"


def _strays(
    ran: list[Op], makes: list[tuple[str, np.ndarray, str]]
) -> dict[tuple[str, str], list[str]]:
    """Name the products that did not run on their own device, by the one that ran them and theirs.

    A product is known by its bytes; of two that are equally large, the earlier one ran first.
    """
    left = sorted(ran, key=lambda op: op.start)
    found: dict[tuple[str, str], list[str]] = {}
    for name, made, home in makes:
        op = next((op for op in left if op.bytes == made.nbytes), None)
        if op:
            left.remove(op)
            if op.device != home:
                found.setdefault((op.device, home), []).append(name)
    return found


@exercise
def add_entries(function: Any) -> str:
    """Check exercise 2 of lesson 04: one number from each device instead of a matrix."""
    plan, rng = planned(), np.random.default_rng(seed=2)
    size = int(rng.integers(50, 80))
    x = rng.integers(-3, 4, [size, size]).astype("float32")
    value, step = judge.traced(function, x)
    value, each = judge.numbers(value, (), "one number is wanted"), (x @ x).sum()
    right = len(plan) * each
    expect(value == right, f"the sum is {value:.0f}, not {right:.0f}")
    judge.products_on_all(step, "no matrix product ran on {}")
    for device, share in _shares(function, x).items():
        expect(np.isclose(share, each),
               f"the products on {device} add {share:.0f} to the sum, not {each:.0f}")
    device = max(plan.devices, key=lambda device: judge.sent(step, device))
    sent, way = judge.sent(step, device), "a float32 has only 4"
    if sent > 16:
        way = f"add up the entries of its product, here {size} x {size}, in its own block"
    expect(sent <= 4, f"{device} sent {sent:,} bytes: {way}")
    return "the same number, and no device sent more than 4 bytes"


def _shares(function: Any, x: np.ndarray) -> dict[str, float]:
    """Give what the matrix products of each device add to the number that a function returns.

    It is how much less the number is where they are zero. A device is left out where this cannot be
    told, because its products are in a loop.
    """
    import tensorflow as tf

    def parts(x: Any) -> dict[str, Any]:
        value = tf.convert_to_tensor(function(x))
        graph = tf.compat.v1.get_default_graph()
        made, ops = graph.as_graph_def(), graph.get_operations()
        given = {op.name + ":0": op.outputs[0] for op in ops if op.type == "Placeholder"}
        zeros: dict[str, dict[str, Any]] = {}
        for op in ops:
            if op.type in judge.PRODUCTS:
                product = op.outputs[0]
                own = zeros.setdefault(devices.short(product.device), dict(given))
                own[product.name] = tf.zeros_like(product)
        found = {}
        for device, own in zeros.items():
            (rest,) = tf.graph_util.import_graph_def(made, own, [value.name], name="without")
            found[device] = tf.cast(value, tf.float64) - tf.cast(rest, tf.float64)
        return found

    tf.config.run_functions_eagerly(True)  # the function's own parts then stand in this graph, too
    try:
        with tf.device(planned().devices[0]):
            added = tf.function(parts).get_concrete_function(tf.constant(x))
    except Exception:  # a loop over a tensor; what is wrong without this, the trace has met before
        return {}
    finally:
        tf.config.run_functions_eagerly(False)
    return {device: float(part) for device, part in added(tf.constant(x)).items()}
