"""`fit`."""

from mgpu_helpers.fit.check import check
from mgpu_helpers.fit.explain import explain

__all__ = ["check", "explain"]
