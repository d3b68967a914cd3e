"""What a step holds on each device: predicted, split by use, watched over time, and limited.

Lessons 05 and 09 build it in front of the reader.
"""

from mgpu_helpers._formatting import size_text  # noqa: F401  lessons print bytes with it
from mgpu_helpers.graph.step import without_values
from mgpu_helpers.memory.limits import logical
from mgpu_helpers.memory.measuring import measure
from mgpu_helpers.memory.paper import on_paper
from mgpu_helpers.memory.planning import Plan, plan
from mgpu_helpers.memory.predicting import fits, predict
from mgpu_helpers.memory.use import MemoryUse, at_peak, by_use
from mgpu_helpers.memory.watch import Monitor, process
from mgpu_helpers.memory.ways import Way

__all__ = [
    "at_peak", "by_use", "fits", "logical", "measure", "MemoryUse", "Monitor", "on_paper",
    "plan", "Plan", "predict", "process", "Way", "without_values",
]  # fmt: skip
