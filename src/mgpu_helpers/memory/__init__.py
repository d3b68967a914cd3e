"""What a step holds on each device: predicted, split by use, watched over time, and limited.

Lessons 02 and 03 build it in front of the reader.
"""

from mgpu_helpers.memory.count import Held, at_peak, by_use, line
from mgpu_helpers.memory.limits import logical, pretend_gpus
from mgpu_helpers.memory.measure import Estimate, Measured, measure
from mgpu_helpers.memory.predict import Predicted, fits, predict
from mgpu_helpers.memory.watch import Allocator, Monitor, Phase, Sample, allocator, process

__all__ = [
    "Allocator",
    "allocator",
    "at_peak",
    "by_use",
    "Estimate",
    "fits",
    "Held",
    "line",
    "logical",
    "measure",
    "Measured",
    "Monitor",
    "Phase",
    "predict",
    "Predicted",
    "pretend_gpus",
    "process",
    "Sample",
]
