"""A step replayed from its own trace: who waited for what, and what a change would give.

Lesson 14 builds it for five operations on two devices.
"""

from mgpu_helpers.whatif.blame import Account, Explanation, Wait, explain
from mgpu_helpers.whatif.changes import Change, Replay, faster, link, replay, scaled, towers
from mgpu_helpers.whatif.machine import Machine, measured

__all__ = [
    "Account",
    "Change",
    "explain",
    "Explanation",
    "faster",
    "link",
    "Machine",
    "measured",
    "replay",
    "Replay",
    "scaled",
    "towers",
    "Wait",
]
