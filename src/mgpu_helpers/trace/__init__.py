"""One traced step: what ran where and when, what crossed, and how many bytes each device held.

Lesson 00 shows the first one, lesson 04 a map of one.
"""

from mgpu_helpers.trace.fit import fit_step
from mgpu_helpers.trace.function import function_step
from mgpu_helpers.trace.log import placement
from mgpu_helpers.trace.reading import read, session_step
from mgpu_helpers.trace.records import Op
from mgpu_helpers.trace.step import Trace, load

__all__ = [
    "fit_step", "function_step", "load", "Op", "placement", "read", "session_step", "Trace",
]  # fmt: skip
