"""One step of a model on all devices beside the same step on one: what differs, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers._models import laid_out
from mgpu_helpers._train import HOST
from mgpu_helpers.fit._steps import Done, in_reverse, numbers_of, steps, undisturbed
from mgpu_helpers.fit.laying import alone, layout, use
from mgpu_helpers.fit.shares import part_of, size_of

# How far numbers may be apart that are the same, as a share of their norm: so many times what
# another order of the examples changes, and what the type of the numbers rounds off.
ORDERS = 20
NEAR = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 3e-2, "float16": 3e-2}
SURE = 1000  # a gradient of so many times its noise has a sign
OF_ORDER = 0.05  # where another order changes more, the step depends on the order


def differences(model: Any, batch: Any) -> list[str]:
    """Give a sentence for each number in which a step on all devices is not that of one."""
    # A thread of its own is in no scope of a strategy and of no device.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_differences, model, batch, model.distribute_strategy).result()


def _differences(model: Any, batch: Any, strategy: Any) -> list[str]:
    if layout(model).layers:
        return _of_whole_and_cut(model, batch)
    with undisturbed(model, batch) as (variables, back):
        n, rows = strategy.num_replicas_in_sync, int(size_of(batch))
        device = strategy.extended.worker_devices[0] if n > 1 else "/GPU:0"
        try:
            one, turned = steps(model, variables, device, back, (batch, in_reverse(batch)))
        except tf.errors.ResourceExhaustedError:
            device, rows = HOST, min(rows, 2 * max(n, 2))
            batch = part_of(batch, 0, rows)
            one, turned = steps(model, variables, device, back, (batch, in_reverse(batch)))
        (everywhere,) = steps(model, variables, None, back, (batch,))
        before = {each.name: numbers_of(each.copies[0]) for each in variables}
    return list(_sentences(model, n, (one, turned, everywhere), before))


def _of_whole_and_cut(model: Any, batch: Any) -> list[str]:
    """Compare a model whose layers are cut with itself whole: the parts of its weights joined."""
    cut = layout(model)
    alone(model)
    try:
        with undisturbed(model, batch) as (variables, back):
            one, turned = steps(model, variables, "/GPU:0", back, (batch, in_reverse(batch)))
            before = {each.name: numbers_of(each.copies[0]) for each in variables}
    finally:
        cuts = laid_out(use(model, cut)).cut.cuts
    with undisturbed(model, batch) as (variables, back):
        (parts,) = steps(model, variables, None, back, (batch,))
        names = {id(each.holder): each.name for each in variables}

    def joined(found: dict[str, Any]) -> dict[str, Any]:
        whole = {
            weight.path: np.concatenate([found[names[id(part)]] for part in own], axis)
            for weight, axis, own in cuts if all(names[id(part)] in found for part in own)
        }  # fmt: skip
        return found | whole

    def common(done: Done) -> Done:  # of slots those of whole weights
        return done._replace(state={k: v for k, v in done.state.items() if k in state})

    everywhere = parts._replace(gradients=joined(parts.gradients), state=joined(parts.state))
    state = {name for name, x in one.state.items() if name in everywhere.state
             and everywhere.state[name].shape == x.shape}  # fmt: skip
    done = common(one), common(turned), common(everywhere)
    return list(_sentences(model, 1, done, before))


def _sentences(
    model: Any, replicas: int, done: tuple[Done, Done, Done], before: dict[str, np.ndarray]
) -> Iterator[str]:
    one, turned, everywhere = done
    near = max(NEAR.get(dtype, 0) for dtype in _dtypes(model))
    on = f"on {replicas} replicas" if replicas > 1 else "on all devices"
    for kind, values in (("a loss", one.shown), ("the gradient of a weight", one.gradients)):
        wrong = [name for name, x in values.items() if not np.isfinite(x).all()]
        if wrong:
            yield (
                f"a step of {model.name!r} gives {kind}, {wrong[0]}, that is NaN or infinite, on "
                "one device as well, so that nothing can be compared: look for a logarithm or a "
                "division by 0, and for numbers in the data that are none."
            )
            return
    changed = [_apart(getattr(turned, kind), getattr(one, kind)) for kind in ("shown", "gradients")]
    if max(changed) > max(OF_ORDER, near):
        half = [dtype for dtype in _dtypes(model) if dtype in ("float16", "bfloat16")]
        why = f"because {half[0]} rounds so much" if half else "which also cuts it for replicas"
        todo = ": check the model in float32" if half else ""
        yield (
            f"a step of {model.name!r} changes by {max(changed):.0%} when its batch has the same "
            f"examples in another order, {why}, so that one device and what it trains {on} cannot "
            f"be compared{todo}."
        )
        return
    shown = _unlike(one.shown, turned.shown, everywhere.shown, near)
    for name, _, _ in shown:
        a, b = float(everywhere.shown[name]), float(one.shown[name])
        yield f"a step of {model.name!r} shows {name} {a:.5g} {on} and {b:.5g} on one device."
    gradients = _unlike(one.gradients, turned.gradients, everywhere.gradients, near)
    if gradients:
        yield _of_many("gradients", len(one.gradients), gradients, model, on, replicas)
        return
    state = [{name: _sure(name, x - before[name], done) for name, x in each.state.items()}
             for each in done]  # fmt: skip
    changes = _unlike(state[0], state[1], state[2], near)
    if changes:
        total = sum(bool(x.any()) for x in state[0].values())
        yield _of_many("changes of variables", total, changes, model, on, replicas)


def _of_many(what: str, total: int, found: list[Any], model: Any, on: str, replicas: int) -> str:
    name, times, apart = found[0]
    if times is None:
        said = f"that of {name} by {apart:.2g} times its size"
    else:
        said = f"that of {name} is {times:.3g} times as large"
        for factor, why in (
            (replicas, "as where a mean of each replica is added up like a sum"),
            (1 / replicas, "as where a sum of each replica is averaged like a mean"),
        ):
            if replicas > 1 and abs(times / factor - 1) < 0.02:
                said += f", {why}"
    return (
        f"{len(found)} of {total} {what} in a step of {model.name!r} {on} are not those of one "
        f"device: {said}."
    )


def _unlike(
    one: dict[str, Any], turned: dict[str, Any], everywhere: dict[str, Any], near: float
) -> list[tuple[str, float | None, float]]:
    """List what differs by more than rounding: its name, the factor where it is one, how much."""
    largest = max((_size(x) / max(1, x.size) ** 0.5 for x in one.values()), default=0.0)
    found = []
    for name, wanted in one.items():
        got, size = everywhere[name], _size(wanted)
        noise = ORDERS * _size(turned[name] - wanted)
        noise += near * (size + 0.1 * largest * wanted.size**0.5)
        if (apart := _size(got - wanted)) <= noise and np.isfinite(got).all():
            continue
        times = float(np.vdot(wanted, got) / size**2) if size else None
        if times is not None and not _size(got - times * wanted) <= noise + 1e-3 * size:
            times = None
        found.append((name, times, apart / size if size else float("inf")))
    return found


def _sure(name: str, change: Any, done: tuple[Done, Done, Done]) -> Any:
    """Leave out of a weight's change what rounding decides.

    Optimizers such as Adam take the sign of a gradient that is nearly 0 like that of a large one.
    """
    if name not in done[0].gradients:
        return change
    one, turned, everywhere = (each.gradients[name] for each in done)
    noise = _size(turned - one) + _size(everywhere - one)
    return np.where(abs(one) > SURE * noise / max(1, one.size) ** 0.5, change, 0)


def _apart(turned: dict[str, Any], one: dict[str, Any]) -> float:
    size = sum(_size(x) for x in one.values())
    return sum(_size(turned[name] - x) for name, x in one.items()) / size if size else 0.0


def _size(x: Any) -> float:
    return float(np.linalg.norm(np.ravel(x)))


def _dtypes(model: Any) -> set[str]:
    return {str(layer.compute_dtype) for layer in _private.layers_of(model)} or {"float32"}
