"""A model in stages, each on its device; a batch in pieces; and the order in which devices work.

Lesson 09 builds it in front of the reader.
"""

from mgpu_helpers.pipeline.cut import Cut, StageCost, best_cut, cuts
from mgpu_helpers.pipeline.run import Stage, gradients, stream
from mgpu_helpers.pipeline.schedule import (
    Schedule,
    all_forward,
    bubble,
    check,
    one_by_one,
    one_forward_one_backward,
    run_times,
    table,
)
from mgpu_helpers.pipeline.spans import Span, spans, task_of

__all__ = [
    "all_forward",
    "best_cut",
    "bubble",
    "check",
    "Cut",
    "cuts",
    "gradients",
    "one_by_one",
    "one_forward_one_backward",
    "run_times",
    "Schedule",
    "Span",
    "spans",
    "Stage",
    "StageCost",
    "stream",
    "table",
    "task_of",
]
