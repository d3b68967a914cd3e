"""The checks of lesson 01's exercises."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers import devices
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks import judge
from mgpu_helpers.lessons.checks.judge import call, exercise, expect


@exercise
def full_name(function: Any) -> str:
    """Check exercise 1 of lesson 01: the full name of a device, from its short name."""
    import tensorflow as tf

    some = [0, *np.random.default_rng(seed=3).choice(np.arange(2, 60), 2, replace=False)]
    ways = [form.format(kind, i) for form in ("/{}:{}", "/device:{}:{}")
            for kind in ("GPU", "cpu") for i in some]
    for name in [*planned().devices, *ways]:
        device = tf.DeviceSpec.from_string(name).to_string()
        answer = call(function, name)
        expect(answer is not None, "the function returns nothing: return the full name")
        a_spec = isinstance(answer, tf.DeviceSpec)
        expect(not a_spec, "it returns a spec; the name is in its to_string()")
        expect(isinstance(answer, str), f"a device name is a string, not {answer!r}")
        missing = [p for p in ("job:localhost", "replica:0", "task:0") if p not in answer]
        why = f"the device is not {devices.short(device)}"
        if missing:
            why = f"{', '.join(missing)} is missing"
        elif devices.short(answer) == devices.short(device):
            why = f"in a full name the device part is written {device}"
        right = f"/job:localhost/replica:0/task:0{device}"
        expect(answer == right, f"for {name} it gives {answer!r}: {why}")
    return f"{len(ways)} names of devices, each in full"


@exercise
def add_entries(function: Any) -> str:
    """Check exercise 2 of lesson 01: one number from each device instead of a matrix."""
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
