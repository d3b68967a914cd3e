"""The checks of lesson 24's exercises, which write graph code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_helpers import trace
from mgpu_helpers.devices import short
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import PRODUCTS, NotYet, call, exercise, expect, listed

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

    rng, n = np.random.default_rng(), len(places)
    kernels = [rng.uniform(-0.5, 1, [40 + i, 41 + i]) for i in range(n)]
    batch = rng.uniform(-0.5, 1, [30, 40])
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
    ran: Counter[tuple[bool, str]] = Counter()
    for op in step.ops:
        if op.type in PRODUCTS:
            ran[_turned(graph, op.name), op.device] += 1
    for place in dict.fromkeys(places):
        layers = [i for i, each in enumerate(places) if each == place]
        many = f"{place} has {len(layers)} of the layers and computes"
        expect(ran[False, place] == len(layers), f"{many} {ran[False, place]} of the products "
               "forward: multiply in a block of the device, too")  # fmt: skip
        wanted = sum(2 if i else 1 for i in layers)
        expect(ran[True, place] == wanted, f"{many} {ran[True, place]} of its {wanted} products "
               "of the backward pass: colocate the gradients")  # fmt: skip


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
def in_turn(function: Any) -> str:
    """Check exercise 2 of lesson 24: pieces of which each waits for the gradients of the last."""
    for pieces in (2, 4):
        _check_in_turn(function, pieces)
    return "the gradients of the batch, and each piece waits for those of the piece before"


def _check_in_turn(function: Any, pieces: int) -> None:
    import tensorflow.compat.v1 as tf1

    rng, begun, losses = np.random.default_rng(), [], []
    start = [rng.normal(size=shape) for shape in ((5, 7), (7, 1))]
    batches = [[rng.normal(size=[6, width]) for _ in range(pieces)] for width in (5, 1)]
    with tf1.Graph().as_default() as graph, tf1.device(planned().host):
        weights = [tf1.get_variable(f"w{i}", initializer=each) for i, each in enumerate(start)]
        xs, ys = ([tf1.placeholder(tf1.float64, each.shape) for each in row] for row in batches)

        def loss_of(x: Any, y: Any) -> Any:
            product = tf1.matmul(x, weights[0])
            scores = tf1.matmul(tf1.nn.tanh(product), weights[1])
            loss = tf1.reduce_mean(tf1.square(scores - y))
            begun.append(product.op)
            losses.append(loss.op)
            return loss

        made = call(function, loss_of, [*weights], [*xs], [*ys])
        found = _gradients(graph, made, len(weights))
        count = len(begun)
        right = tf1.gradients(sum(map(loss_of, xs, ys)) / pieces, weights)
        initialize = tf1.global_variables_initializer()
    with tf1.Session(graph=graph, config=planned().session_config()) as session:
        session.run(initialize)
        feed = dict(zip([*xs, *ys], [*batches[0], *batches[1]], strict=True))
        got, wanted = call(session.run, [found, right], feed)
    for i, (ours, true) in enumerate(zip(got, wanted, strict=True)):
        said = f"the gradient of weight {i} is not right"
        if np.shape(ours) == true.shape and np.allclose(ours, pieces * true, rtol=1e-6):
            said += ": the loss of the batch is the mean of the losses of its pieces"
        near = np.shape(ours) == true.shape and np.allclose(ours, true, rtol=1e-6, atol=1e-9)
        expect(near, said)
    expect(count == pieces, f"it calls loss_of {count} times for {pieces} pieces")
    _check_waits(graph, begun[:count], losses, [each.op for each in found])


def _check_waits(graph: Any, begun: Sequence[Any], losses: Sequence[Any], ends: Any) -> None:
    """Check that each piece begins after all products of the backward pass of the last one."""
    run = {*ends}.union(*(_before(end, waits=False) for end in ends))  # there are more in the graph
    data = {op: _before(op, waits=False) for op in run if op.type in PRODUCTS}
    for k, (first, then) in enumerate(zip(begun, begun[1:], strict=False)):
        others = {*begun} - {first}
        back = [op for op, above in data.items()
                if first in above and not others & above and _turned(graph, op.name)]  # fmt: skip
        expect(back, f"piece {k} has no gradients of its own: call tf1.gradients for each piece")
        waited = _before(then, waits=True)
        if {*back} <= waited:
            continue
        said = f"piece {k + 1} does not wait for the gradients of piece {k}"
        raise NotYet(f"{said}, only for its loss" if losses[k] in waited else said)


def _before(op: Any, *, waits: bool) -> set[Any]:
    """List all operations that an operation needs, with `waits` also by control dependencies."""
    found, left = set(), [op]
    while left:
        one = left.pop()
        needed = [tensor.op for tensor in one.inputs] + (one.control_inputs if waits else [])
        left += [each for each in needed if each not in found]
        found.update(needed)
    return found


def _gradients(graph: Any, value: Any, count: int) -> list[Any]:
    """Give what a function returned as gradients, or raise NotYet."""
    made = listed(value, GRADIENTS)
    expect(len(made) == count and _of(graph, made), GRADIENTS)
    return made


def _of(graph: Any, values: Sequence[Any]) -> bool:
    """Say whether all values are tensors of a graph."""
    return all(getattr(value, "graph", None) is graph for value in values)
