"""A tower per device: split a batch, run a function on every device, average the gradients.

Lesson 06 builds the first half in front of the reader, lesson 07 the second; `train_step` does all
of it for a Keras model. `check_batches` is for the replicas of lesson 08.
"""

from mgpu_helpers.towers.averages import average
from mgpu_helpers.towers.batches import check_batches
from mgpu_helpers.towers.shards import make_parallel, run, split
from mgpu_helpers.towers.train import train_step

__all__ = ["average", "check_batches", "make_parallel", "run", "split", "train_step"]
