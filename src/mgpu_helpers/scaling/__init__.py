"""What a training step costs: a model in parts, fitted to measured steps and asked about others.

Describe a network (`Workload`), write down what steps took (`Measurement`), `fit` the parts to
them, and ask about other settings: `fitted.predict(Setting(4, 128))`, or for a ring of eight
devices `speedup(fitted, Setting(8, 128, "ring"))`. Both say how far they may be off. A setting is
what a `fit.Layout` and a batch come to here: `Setting.of(layout, batch)`. With a Keras model,
`Workload.of(model)` counts it and `measure` times its steps. `links` has some links between
devices, such as `links.NVLINK_3`. `ring` takes costs that you know.
"""

from mgpu_helpers._gone import gone
from mgpu_helpers.scaling.fitting import fit, speedup
from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.measuring import measure
from mgpu_helpers.scaling.model import Cost, Measurement, Setting, Workload, ring

__all__ = [
    "Cost", "fit", "Link", "measure", "Measurement", "ring", "Setting", "speedup", "Workload",
]  # fmt: skip

__getattr__ = gone(__name__)
