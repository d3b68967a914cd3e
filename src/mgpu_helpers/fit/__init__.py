"""Train with Keras's own `model.fit`, on several devices and in less memory."""

from mgpu_helpers.fit.accumulate import accumulate
from mgpu_helpers.fit.parallel import alone, parallel

__all__ = ["accumulate", "alone", "parallel"]
