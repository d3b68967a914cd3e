"""Every picture of the series: takes data and `ax`, returns `ax`. One colour per device.

Lesson 00 draws the first timeline, lesson 01 the first placement map.
"""

from mgpu_helpers.charts.map import placement_map
from mgpu_helpers.charts.memory import held, live_bytes, monitor
from mgpu_helpers.charts.runs import jobs, spans
from mgpu_helpers.charts.scaling import breakdown, held_out, rates, step_times
from mgpu_helpers.charts.steps import blame, pipeline, timeline

__all__ = [
    "blame", "breakdown", "held", "held_out", "jobs", "live_bytes", "monitor",
    "pipeline", "placement_map", "rates", "spans", "step_times", "timeline",
]  # fmt: skip
