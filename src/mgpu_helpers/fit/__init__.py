"""`model.fit` on all devices and all machines, with everything that it does on one device.

`strategy` is where a model is made and compiled, and `batches` is what `fit` takes. `use` brings a
model that is built already to a `Layout`: how its training lies on devices. `layout` tells it, and
`alone` undoes it. `check` says before a training what would go wrong in it, `loss` what a loss of
one's own is, and `explain` where the time of its steps goes.
"""

from mgpu_helpers._gone import gone
from mgpu_helpers.fit.checks import check
from mgpu_helpers.fit.data import batches
from mgpu_helpers.fit.explaining import explain
from mgpu_helpers.fit.laying import alone, layout, use
from mgpu_helpers.fit.layout import Layout
from mgpu_helpers.fit.shares import loss
from mgpu_helpers.fit.strategies import strategy

__all__ = [
    "Layout", "alone", "batches", "check", "explain", "layout", "loss", "strategy", "use",
]  # fmt: skip

__getattr__ = gone(__name__)
