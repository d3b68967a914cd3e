"""The matrix products of a step, as lesson 08 prints them."""

from __future__ import annotations

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.trace.step import Trace


def print_products(title: str, step: Trace) -> None:
    """Print how many matrix products the host and each device computed, forward and backward.

    Those of a backward pass have "gradient" in the names of their operations.
    """
    plan = planned()
    print(title)
    for device in (plan.host, *plan.devices):
        products = [op for op in step.ops if "MatMul" in op.type and op.device == device]
        backward = sum("gradient" in op.name for op in products)
        print(f"  {device}  forward {len(products) - backward}  backward {backward}")
