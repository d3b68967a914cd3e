"""A model in stages, each on its device; a batch in pieces; and the order in which devices work.

Lessons 09 and 10 build it in front of the reader.
"""

from mgpu_helpers.pipeline.cut import Cut, StageCost, best_cut, cuts
from mgpu_helpers.pipeline.run import Made, Stage, gradients
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
from mgpu_helpers.pipeline.stages import places, stages
from mgpu_helpers.pipeline.stream import stream
from mgpu_helpers.pipeline.update import updater

__all__ = [
    "all_forward",
    "best_cut",
    "bubble",
    "check",
    "Cut",
    "cuts",
    "gradients",
    "Made",
    "one_by_one",
    "one_forward_one_backward",
    "places",
    "run_times",
    "Schedule",
    "Span",
    "spans",
    "Stage",
    "StageCost",
    "stages",
    "stream",
    "table",
    "task_of",
    "updater",
]
