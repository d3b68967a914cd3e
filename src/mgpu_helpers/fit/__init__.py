"""`model.fit` on all devices and all machines, with everything that it does on one device.

`strategy` is where a model is made and compiled, and `batches` is what `fit` takes. `parallel`
shares out the calls of a model that is built already, `split` its layers, `split_layers` what is in
a layer, and `shard` its weights with what the optimizer keeps for them; `accumulate` takes a batch
in pieces, and `recompute` runs layers twice to keep less; `alone` undoes them. `check` says before
a training what would go wrong in it, and `explain` where the time of its steps goes.
"""

from mgpu_helpers.fit.accumulate import accumulate
from mgpu_helpers.fit.batches import batches
from mgpu_helpers.fit.check import check
from mgpu_helpers.fit.explain import explain
from mgpu_helpers.fit.parallel import alone, parallel
from mgpu_helpers.fit.recompute import recompute
from mgpu_helpers.fit.shard import shard
from mgpu_helpers.fit.shares import loss
from mgpu_helpers.fit.split import split
from mgpu_helpers.fit.split_layers import split_layers
from mgpu_helpers.fit.strategies import strategy

__all__ = [
    "accumulate", "alone", "batches", "check", "explain", "loss", "parallel", "recompute", "shard",
    "split", "split_layers", "strategy",
]  # fmt: skip
