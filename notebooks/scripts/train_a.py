"""Train the small network of lesson 04 the classic way, in a graph and a Session."""

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

import tensorflow.compat.v1 as tf1  # noqa: E402

from mgpu_helpers.lessons import digits, networks  # noqa: E402

network = networks.jang(hidden=2400, width=options.width)
with tf1.Graph().as_default() as graph, tf1.device(plan.devices[0]):
    x = tf1.placeholder(tf1.float32, [None, 28, 28, 1])
    y = tf1.placeholder(tf1.int64, [None])
    weights = networks.classic(network, seed=options.seed)
    loss = networks.loss(networks.logits(network, weights, x), y)
    train = tf1.train.AdamOptimizer(0.001).minimize(loss)
    start = tf1.global_variables_initializer()

images, labels = digits.load(128 * options.steps, seed=options.seed)
config = plan.session_config(soft_placement=True)
with tf1.Session(graph=graph, config=config) as session:
    session.run(start)
    batches = digits.batches(images, labels, 128, seed=options.seed)
    losses = [session.run([loss, train], {x: a, y: b})[0] for a, b in batches]
    learned = session.run(list(weights.values()))

digest = hashlib.sha256(b"".join(value.tobytes() for value in learned)).hexdigest()
options.output.mkdir(parents=True, exist_ok=True)
result = {"losses": [float(loss) for loss in losses], "weights": digest}
(options.output / "train_a.json").write_text(json.dumps(result, indent=2))
print(f"{len(losses)} steps, the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
