"""One traced step: what ran where and when, what crossed, and how many bytes each device held.

Lesson 00 shows the first one.
"""

from mgpu_helpers.trace.export import load
from mgpu_helpers.trace.fit import fit_step
from mgpu_helpers.trace.function import function_step
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.read import read
from mgpu_helpers.trace.session import session_step
from mgpu_helpers.trace.step import Allocation, Collective, Copy, Op, Trace, curve
from mgpu_helpers.trace.summary import Row, Top

__all__ = [
    "Allocation",
    "Collective",
    "Copy",
    "curve",
    "fit_step",
    "function_step",
    "layer",
    "load",
    "Op",
    "read",
    "Row",
    "session_step",
    "Top",
    "Trace",
]
