"""Several models trained at once, one per device: names, threads, votes, and weights on disk.

Lesson 05 builds it in front of the reader.
"""

from mgpu_helpers.ensemble.members import (
    Member,
    from_functions,
    from_keras,
    from_session,
    named,
)
from mgpu_helpers.ensemble.training import MemberError, Run, predictions, train
from mgpu_helpers.ensemble.votes import mean, vote
from mgpu_helpers.ensemble.weights import resume, save

__all__ = [
    "from_functions",
    "from_keras",
    "from_session",
    "mean",
    "Member",
    "MemberError",
    "named",
    "predictions",
    "resume",
    "Run",
    "save",
    "train",
    "vote",
]
