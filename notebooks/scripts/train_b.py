"""Train the small network of lesson 04 as today, with a tf.function."""

import argparse
import hashlib
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=float, default=0.125, help="1 is the full network")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the result")
options = parser.parse_args()

from mgpu_helpers import devices  # noqa: E402  --help need not wait for TensorFlow

plan = devices.setup(1)

import tensorflow as tf  # noqa: E402

from mgpu_helpers.lessons import digits, networks  # noqa: E402

network = networks.jang(hidden=4800, width=options.width)
weights = networks.variables(network, device=plan.devices[0], seed=options.seed)
values = list(weights.values())


@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.device(plan.devices[0]):
        with tf.GradientTape() as tape:
            loss = networks.loss(networks.logits(network, weights, x), y)
        for value, gradient in zip(values, tape.gradient(loss, values), strict=True):
            value.assign_sub(0.05 * gradient)
    return loss


images, labels = digits.load(128 * options.steps, seed=options.seed)
batches = digits.batches(images, labels, 128, seed=options.seed)
losses = [step(a, b).numpy() for a, b in batches]
learned = [value.numpy() for value in values]

digest = hashlib.sha256(b"".join(value.tobytes() for value in learned)).hexdigest()
options.output.mkdir(parents=True, exist_ok=True)
result = {"losses": [float(loss) for loss in losses], "weights": digest}
(options.output / "train_b.json").write_text(json.dumps(result, indent=2))
print(f"{len(losses)} steps, the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
