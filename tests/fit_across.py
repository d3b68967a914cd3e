"""Train cases in ways within each of several workers, as `mgpu cluster` starts this script.

Arguments: whether XLA compiles, and cells as test_fit_ways has them, such as "shares-masks", or
"halves-strategy" for its test of halves. Each is compared with one device, which every worker
computes for itself.
"""

import json
import sys

import fit_models
import test_fit_ways
from keras_models import keras
from mgpu_helpers import devices, fit

plan = devices.setup(2)
fit.strategy()
halves, kept = test_fit_ways.test_halves_have_their_loss_scaled_and_skip_the_same_steps, []
for cell in sys.argv[2:]:
    way, case = cell.split("-")
    if way == "halves":
        halves(keras, plan, case, 1024.0)
    else:
        with fit_models.double():
            test_fit_ways.keeps(way, case, plan.devices, compiled=sys.argv[1] == "xla")
    kept.append(cell)
print(json.dumps({"kept": kept}))
