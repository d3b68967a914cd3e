"""A tower per device: split a batch, run a function on every device, average the gradients.

Lesson 06 builds the first half in front of the reader, lesson 07 the second. `fit.use` does all of
it for a Keras model.
"""

from mgpu_helpers._gone import gone
from mgpu_helpers.towers.averages import average
from mgpu_helpers.towers.shards import make_parallel, run, split

__all__ = ["average", "make_parallel", "run", "split"]

__getattr__ = gone(__name__)
