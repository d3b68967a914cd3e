"""A step replayed from its own trace: who waited for what, and what a change would give.

A replay takes the operations as they were traced. A change that lets TensorFlow choose other
kernels is not foreseen: without colocated gradients, for one, a MaxPoolGrad on a CPU cannot use
what oneDNN has kept of the forward pass, and takes several times as long. Nor does a trace know
what happens outside of its step, such as the input or a fetched value that Python waits for.

`trace.fit_step` gives the step of a Keras model as `fit.use` has laid it out, which is then asked
about: where its stages wait, for instance. Pieces that one device or row takes without stages are a
loop, which cannot be replayed; `towers` begins with a step of one device.

Lesson 02 builds it for five operations on two devices.
"""

from mgpu_helpers._gone import gone
from mgpu_helpers.whatif.blame import explain
from mgpu_helpers.whatif.changes import faster, link, replay, towers

__all__ = ["explain", "faster", "link", "replay", "towers"]
__getattr__ = gone(__name__)
