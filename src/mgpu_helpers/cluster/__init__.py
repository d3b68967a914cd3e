"""Several machines, or several processes that stand for them: the launcher TensorFlow lacks.

`run` starts the workers of a `MultiWorkerMirroredStrategy`, ends all when one fails, says which was
the first, and starts them again. `check` says what is wrong with a TF_CONFIG before TensorFlow
waits for an hour. `from_slurm` reads the machines and this one's number from Slurm.
"""

from mgpu_helpers.cluster.addresses import from_slurm
from mgpu_helpers.cluster.launch import run
from mgpu_helpers.cluster.report import Attempt, Report
from mgpu_helpers.cluster.tf_config import check

__all__ = ["Attempt", "check", "from_slurm", "Report", "run"]
