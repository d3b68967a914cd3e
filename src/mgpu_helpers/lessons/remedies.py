"""What lesson 10 compares: the peak of a step as it is, and with each of three remedies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mgpu_helpers import fit, trace
from mgpu_helpers.devices.plan import planned


def compare(name: str, make: Callable[[], Any], data: tuple[Any, Any]) -> None:
    """Print the peaks of a step with two parts, four pieces and bfloat16, in % of the plain one.

    make gives the compiled model, whose layers have the policy that is set when it is called. The
    policy is float32 afterwards.
    """
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = make()
    keras.config.set_dtype_policy("float32")
    with warnings.catch_warnings():  # of a remedy that saves nothing: here it is compared
        warnings.simplefilter("ignore")
        remedies = {
            "recomputed": fit.use(make(), recompute=2), "in pieces": fit.use(make(), pieces=4),
            "in bfloat16": half,
        }  # fmt: skip
    device = planned().devices[0]

    def peak(model: Any) -> int:
        with tf.device(device):
            return trace.fit_step(model, data).peak(device)

    plain = peak(make())
    shares = (f"{key} {peak(model) / plain:4.0%}" for key, model in remedies.items())
    print(f"{name:13}", *shares, sep="   ")
