"""One plan for 0, 1 or N GPUs: a host and n devices, configured before TensorFlow starts.

Lesson 00 builds it in front of the reader.
"""

from mgpu_helpers.devices.adopt import adopt
from mgpu_helpers.devices.check import checked, placed
from mgpu_helpers.devices.choose import setup, tf32
from mgpu_helpers.devices.plan import Plan, current
from mgpu_helpers.devices.trial import explain
from mgpu_helpers.names import order, short

__all__ = [
    "adopt",
    "checked",
    "current",
    "explain",
    "order",
    "placed",
    "Plan",
    "setup",
    "short",
    "tf32",
]
