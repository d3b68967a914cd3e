"""Train cases in ways within each of several workers, as `mgpu cluster` starts this script.

Arguments: whether XLA compiles, and cells as test_fit_ways has them, such as "shares-masks". Each
is compared with one device, which every worker computes for itself.
"""

import json
import sys

import fit_models
import test_fit_ways
from mgpu_helpers import devices, fit

plan = devices.setup(2)
fit.strategy()
kept = []
with fit_models.double():
    for cell in sys.argv[2:]:
        way, case = cell.split("-")
        test_fit_ways.keeps(way, case, plan.devices, compiled=sys.argv[1] == "xla")
        kept.append(cell)
print(json.dumps({"kept": kept}))
