"""In which order the stages of a model take the pieces of a batch, and where to cut the model.

Orders are data, which lesson 13 writes down. `fit.use(model, plan, stages=2, pieces=4)` runs them.
"""

from mgpu_helpers._gone import gone
from mgpu_helpers.pipeline.cutting import best_cut, cuts, places
from mgpu_helpers.pipeline.schedule import (
    all_forward,
    one_by_one,
    one_forward_one_backward,
    run_times,
)
from mgpu_helpers.pipeline.tasks import spans

__all__ = [
    "all_forward", "best_cut", "cuts", "one_by_one", "one_forward_one_backward", "places",
    "run_times", "spans",
]  # fmt: skip

__getattr__ = gone(__name__)
