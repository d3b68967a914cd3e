"""What a training step costs: a model in parts, fitted to measured steps and asked about others.

Describe a network (`Workload`), write down what steps took (`Measurement`), `fit` a `Cost` to
them, and ask about other layouts: `fitted.predict(Layout(4, 128))`, or for a ring of eight devices
`speedup(ring, work, fitted, 8, per_device_batch=128)`. Both say how far they may be off. With a
Keras model, `Workload.of(model)` counts it and `measure` times its steps. `terms_for` says what a
table of your own can tell.
"""

from mgpu_helpers.scaling.estimate import Estimate, Prediction, interval
from mgpu_helpers.scaling.feasible import Verdict, feasible
from mgpu_helpers.scaling.fit import Fit, fit
from mgpu_helpers.scaling.forecast import Curve, Knee, efficiency, knee
from mgpu_helpers.scaling.holdout import Answer, asked, errors, holdout
from mgpu_helpers.scaling.links import ETHERNET_100G, NVLINK_3, PCIE_3, Link
from mgpu_helpers.scaling.measure import measure
from mgpu_helpers.scaling.model import (
    TERMS,
    Breakdown,
    Cost,
    Layout,
    Measurement,
    Workload,
    central,
    ring,
    step_time,
)
from mgpu_helpers.scaling.solve import terms_for
from mgpu_helpers.scaling.speedup import speedup

__all__ = [
    "Answer",
    "asked",
    "Breakdown",
    "central",
    "Cost",
    "Curve",
    "efficiency",
    "errors",
    "Estimate",
    "ETHERNET_100G",
    "feasible",
    "Fit",
    "fit",
    "holdout",
    "interval",
    "knee",
    "Knee",
    "Layout",
    "Link",
    "measure",
    "Measurement",
    "NVLINK_3",
    "PCIE_3",
    "Prediction",
    "ring",
    "speedup",
    "step_time",
    "TERMS",
    "terms_for",
    "Verdict",
    "Workload",
]
