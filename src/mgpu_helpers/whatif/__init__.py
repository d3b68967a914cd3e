"""A step replayed from its own trace: who waited for what, and what a change would give.

A replay takes the operations as they were traced. A change that lets TensorFlow choose other
kernels is not foreseen: without colocated gradients, for one, a MaxPoolGrad on a CPU cannot use
what oneDNN has kept of the forward pass, and takes several times as long. Nor does a trace know
what happens outside of its step, such as the input or a fetched value that Python waits for.

Lesson 19 builds it for five operations on two devices.
"""

from mgpu_helpers.whatif.blame import explain
from mgpu_helpers.whatif.changes import faster, link, replay, scaled, towers

__all__ = ["explain", "faster", "link", "replay", "scaled", "towers"]
