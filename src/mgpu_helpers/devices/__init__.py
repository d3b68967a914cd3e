"""One plan for 0, 1 or N GPUs: a host and n devices, configured before TensorFlow starts.

Lesson 00 builds it in front of the reader.
"""

from mgpu_helpers._names import short
from mgpu_helpers.devices.choose import adopt, setup, tf32
from mgpu_helpers.devices.messages import explain
from mgpu_helpers.devices.plan import Plan, current

__all__ = ["adopt", "current", "explain", "Plan", "setup", "short", "tf32"]
