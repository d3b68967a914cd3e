"""A model in stages, each on its device; a batch in pieces; and the order in which devices work.

Lessons 12 and 14 build it in front of the reader.
"""

from mgpu_helpers.pipeline.cutting import best_cut, cuts
from mgpu_helpers.pipeline.models import places, stages
from mgpu_helpers.pipeline.run import Stage, gradients, updater
from mgpu_helpers.pipeline.schedule import all_forward, one_by_one, one_forward_one_backward
from mgpu_helpers.pipeline.tasks import spans

__all__ = [
    "all_forward",
    "best_cut",
    "cuts",
    "gradients",
    "one_by_one",
    "one_forward_one_backward",
    "places",
    "spans",
    "Stage",
    "stages",
    "updater",
]
