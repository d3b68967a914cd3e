"""What a training step costs: a model in parts, fitted to measured steps and asked about others.

Describe a network (`Workload`), write down what steps took (`Measurement`), `fit` the parts to
them, and ask about other layouts: `fitted.predict(Layout(4, 128))`, or for a ring of eight devices
`speedup(fitted, Layout(8, 128, "ring"))`. Both say how far they may be off. With a Keras model,
`Workload.of(model)` counts it and `measure` times its steps. `links` has some links between
devices, such as `links.NVLINK_3`. `ring` takes costs that you know.
"""

from mgpu_helpers.scaling.fitting import fit, speedup
from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.measuring import measure
from mgpu_helpers.scaling.model import Cost, Layout, Measurement, Workload, ring

__all__ = [
    "Cost", "fit", "Layout", "Link", "measure", "Measurement", "ring", "speedup",
    "Workload",
]  # fmt: skip
