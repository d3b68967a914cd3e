"""The checks of lesson 24's exercises, which write graph code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers.devices import short
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import PRODUCTS, call, exercise, expect, listed

TURNS = "transpose_a", "transpose_b", "adj_x", "adj_y"  # of a matrix product
GRADIENTS = "return a list with a gradient for each weight"


@exercise
def chain(function: Any) -> str:
    """Check exercise 1 of lesson 24: layers in a graph, each forward and backward on its device."""
    first, last = planned().devices[0], planned().devices[-1]
    for places in ([first, last, last], [last, first, last, first]):
        _check_chain(function, places)
    return "each device holds its weights and computes its layers, forward and backward"


def _check_chain(function: Any, places: Sequence[str]) -> None:
    import tensorflow.compat.v1 as tf1

    n = len(places)
    kernels, batch = _drawn(n)
    with tf1.Graph().as_default() as graph, tf1.device(planned().host):
        x = tf1.placeholder(tf1.float64, batch.shape)
        way = "return the loss and a list of gradients"
        made = listed(call(function, [*places], [each.copy() for each in kernels], x), way)
        expect(len(made) == 2 and _of(graph, made[:1]), way)
        fetches = [made[0], *_gradients(graph, made[1], n)]
        weights = graph.get_collection("variables")
        expect(len(weights) == n, f"it makes {len(weights)} variables, not {n}")
        initialize = tf1.global_variables_initializer()
    config = planned().session_config(soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        call(session.run, initialize)
        call(session.run, fetches, {x: batch})
        got, step = call(trace.session_step, session, fetches, {x: batch})
    names = ["the loss", *(f"the gradient of weight {i}" for i in range(n))]
    for name, ours, right in zip(names, got, _chain(kernels, batch), strict=True):
        near = np.shape(ours) == right.shape and np.allclose(ours, right, rtol=1e-6, atol=1e-9)
        expect(near, f"{name} is not right")
    for i, (weight, place) in enumerate(zip(weights, places, strict=True)):
        at = short(weight.device) if weight.device else "on no device of its own"
        expect(at == place, f"weight {i} is made for {at}, not for {place}: make it in a block of "
               "its device")  # fmt: skip
    ran = _products(graph, step)
    for place in dict.fromkeys(places):
        wanted = sum(each == place for each in places)
        expect(ran[False, place] == wanted, f"{place} has {wanted} of the layers and computes "
               f"{ran[False, place]} of the products forward: multiply in a block of the device, "
               "too")  # fmt: skip
    _check_backward(graph, step, places)


def _drawn(n: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw the weights of n layers, and a batch."""
    rng = np.random.default_rng()
    kernels = [rng.uniform(-0.5, 1, [40 + i, 41 + i]) for i in range(n)]
    return kernels, rng.uniform(-0.5, 1, [30, 40])


def _products(graph: Any, step: trace.Trace) -> Counter[tuple[bool, str]]:
    """Count the matrix products of each device, of the backward pass and others."""
    products = [op for op in step.ops if op.type in PRODUCTS]
    return Counter((_turned(graph, op.name), op.device) for op in products)


def _check_backward(graph: Any, step: trace.Trace, places: Sequence[str]) -> None:
    ran = _products(graph, step)
    for place in dict.fromkeys(places):
        layers = [i for i, each in enumerate(places) if each == place]
        wanted = sum(2 if i else 1 for i in layers)
        expect(ran[True, place] == wanted, f"{place} has {len(layers)} of the layers and computes "
               f"{ran[True, place]} of its {wanted} products of the backward pass: colocate the "
               "gradients")  # fmt: skip


def _chain(kernels: Sequence[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    """Give the loss and the gradients."""
    inputs, outputs = [], []
    for kernel in kernels:
        inputs.append(x)
        x = np.maximum(x @ kernel, 0)
        outputs.append(x)
    back, gradients = np.full(x.shape, 1 / x.size), []
    for kernel, before, after in zip(kernels[::-1], inputs[::-1], outputs[::-1], strict=True):
        back = back * (after > 0)
        gradients.append(before.T @ back)
        back = back @ kernel.T
    return [np.asarray(x.mean()), *gradients[::-1]]


def _turned(graph: Any, name: str) -> bool:
    """Say whether a matrix product turns one of its factors round, as the backward pass does."""
    try:
        made = graph.get_operation_by_name(name)
    except KeyError:
        return "gradients" in name
    known = {attr.name for attr in made.op_def.attr}
    return any(made.get_attr(each) for each in TURNS if each in known)


@exercise
def clipped(function: Any) -> str:
    """Check exercise 2 of lesson 24: gradients that are clipped on the devices of their weights."""
    first, last = planned().devices[0], planned().devices[-1]
    for places in ([first, last, last], [last, first, last]):
        _check_clipped(function, places)
    return "each device computes the gradients of its layers and clips them"


def _check_clipped(function: Any, places: Sequence[str]) -> None:
    import tensorflow.compat.v1 as tf1

    kernels, batch = _drawn(len(places))
    _, *slopes = _chain(kernels, batch)
    norms = sorted(float(np.linalg.norm(each)) for each in slopes)
    limit = (norms[0] + norms[1]) / 2  # so one stays as it is
    with tf1.Graph().as_default() as graph, tf1.device(planned().host):
        x, weights = tf1.placeholder(tf1.float64, batch.shape, name="x"), []
        for i, (place, kernel) in enumerate(zip(places, kernels, strict=True)):
            with tf1.device(place):
                weights.append(tf1.get_variable(f"w{i}", initializer=kernel))
                x = tf1.nn.relu(tf1.matmul(x, weights[-1]))
        loss, sgd = tf1.reduce_mean(x), tf1.train.GradientDescentOptimizer(1.0)
        train = call(function, sgd, loss, limit)
        expect(_of(graph, [train]), "return the operation that apply_gradients makes")
        initialize = tf1.global_variables_initializer()
    feed = {"x:0": batch}
    config = planned().session_config(soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(initialize)
        call(session.run, train, feed)
        moved = [a - b for a, b in zip(kernels, session.run(weights), strict=True)]
        step = call(trace.session_step, session, train, feed)[1]
    whole = float(np.sqrt(sum(norm**2 for norm in norms)))
    _check_moved(moved, {
        "": [g * min(1, limit / float(np.linalg.norm(g))) for g in slopes],
        "the gradients are not clipped to a norm": slopes,
        "the weights do not change": [0 * g for g in slopes],
        "clip each gradient by its own norm": [g * min(1, limit / whole) for g in slopes],
        "make each gradient as long as limit only where it is longer":
            [g * limit / float(np.linalg.norm(g)) for g in slopes],
    })  # fmt: skip
    _check_backward(graph, step, places)
    large = min(kernel.nbytes for kernel in kernels)  # outputs are smaller
    for copy in step.copies:
        expect((copy.bytes or 0) < large, f"a gradient crosses from {copy.source} to "
               f"{copy.target}: clip it in a block of its weight's device")  # fmt: skip


def _check_moved(moved: Sequence[Any], known: dict[str, Any]) -> None:
    """Expect the first of the known changes, or say which other one it is."""
    found = [hint for hint, each in known.items()
             if all(np.allclose(a, b, rtol=1e-6, atol=1e-12)
                    for a, b in zip(moved, each, strict=True))]  # fmt: skip
    hint = found[0] if found else "the weights do not move by clipped gradients"
    expect(not hint, hint)


def _gradients(graph: Any, value: Any, count: int) -> list[Any]:
    """Give what a function returned as gradients, or raise NotYet."""
    made = listed(value, GRADIENTS)
    expect(len(made) == count and _of(graph, made), GRADIENTS)
    return made


def _of(graph: Any, values: Sequence[Any]) -> bool:
    """Say whether all values are of a graph."""
    return all(getattr(value, "graph", None) is graph for value in values)
