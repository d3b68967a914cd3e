"""Scripts shared out over devices: a queue, locks, logs, time limits, sweeps that resume.

`run` gives each command a device of its own, leaves alone the GPUs that others use, and keeps a
line of JSON for each job; `grid` makes the arguments of a sweep. `allowed` says which devices may
be used, and `freest` picks GPUs by hand.
"""

from mgpu_helpers._processes.job import Job
from mgpu_helpers._processes.pool import allowed, freest
from mgpu_helpers.jobs.records import Report
from mgpu_helpers.jobs.start import run
from mgpu_helpers.jobs.sweep import grid

__all__ = ["allowed", "freest", "grid", "Job", "Report", "run"]
