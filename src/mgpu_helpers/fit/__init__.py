"""`model.fit` on all devices and all machines, with everything that it does on one device.

`strategy` is where a model is made and compiled, and `batches` is what `fit` takes.
"""

from mgpu_helpers.fit.batches import batches
from mgpu_helpers.fit.strategies import strategy

__all__ = ["batches", "strategy"]
