"""Every picture of the series: takes data and `ax`, returns `ax`. One colour per device.

Lesson 00 draws the first placement map, lesson 12 the first timeline.
"""

from mgpu_helpers.charts.map import placement_map
from mgpu_helpers.charts.memory import held, live_bytes, monitor
from mgpu_helpers.charts.runs import jobs, spans
from mgpu_helpers.charts.steps import blame, pipeline, timeline

__all__ = [
    "blame", "held", "jobs", "live_bytes", "monitor", "pipeline", "placement_map", "spans",
    "timeline",
]  # fmt: skip
