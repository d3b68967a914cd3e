"""Scripts shared out over devices: a queue, locks, logs, time limits.

`run` gives each command a device of its own; `allowed` says which devices it may use, and
`freest` picks GPUs by hand.
"""

from mgpu_helpers.jobs.job import Command, Job, Report
from mgpu_helpers.jobs.pool import allowed, freest
from mgpu_helpers.jobs.run import run

__all__ = ["allowed", "Command", "freest", "Job", "Report", "run"]
