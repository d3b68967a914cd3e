"""`model.fit` on all devices and all machines, with everything that it does on one device.

Take `fit.strategy` when your script makes the model and one device can hold it: each device then
has a copy of the weights. Take `fit.use` when the model is there already, or when one device cannot
hold it: its options cut the model, or let a device hold less. Take `mgpu train.py` when no line of
the script is to change: it runs the script as if all of it stood in the scope of `fit.strategy`.

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
