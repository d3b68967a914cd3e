"""A tower per device: split a batch, run a function on every device, average the gradients.

Lesson 06 builds the first half in front of the reader, lesson 07 the second; `train_step` does all
of it for a Keras model. `check_batches` is for the replicas of lesson 08.
"""

from mgpu_helpers.towers.average import average
from mgpu_helpers.towers.check import check_batches, replica_sizes
from mgpu_helpers.towers.ring import ring
from mgpu_helpers.towers.run import make_parallel, read, run
from mgpu_helpers.towers.split import shares, split
from mgpu_helpers.towers.train import train_step

__all__ = [
    "average",
    "check_batches",
    "make_parallel",
    "read",
    "replica_sizes",
    "ring",
    "run",
    "shares",
    "split",
    "train_step",
]
