"""Every picture of the series: takes data and `ax`, returns `ax`. One colour per device.

Lesson 00 draws the first timeline, lesson 01 the first placement map.
"""

from mgpu_helpers.charts.base import HOST, PALETTE, axes, colour, corner, style
from mgpu_helpers.charts.blame import blame
from mgpu_helpers.charts.memory import device_bars, held, live_bytes, monitor
from mgpu_helpers.charts.placement_map import placement_map
from mgpu_helpers.charts.pointer import pointer
from mgpu_helpers.charts.scaling import breakdown, efficiency, held_out, step_times
from mgpu_helpers.charts.timeline import jobs, pipeline, spans, timeline
from mgpu_helpers.wording import size_text

__all__ = [
    "axes",
    "blame",
    "breakdown",
    "colour",
    "corner",
    "device_bars",
    "efficiency",
    "held",
    "held_out",
    "HOST",
    "jobs",
    "live_bytes",
    "monitor",
    "PALETTE",
    "pipeline",
    "placement_map",
    "pointer",
    "size_text",
    "spans",
    "step_times",
    "style",
    "timeline",
]
