"""Train the network of an article of 2017 in a graph and a Session, on one GPU."""

import argparse
import hashlib
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gpu", default="0", help="a number among the GPUs that this process sees")
parser.add_argument("--steps", type=int, default=16)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the result")
options = parser.parse_args()

import tensorflow as tf  # noqa: E402  --help need not wait for TensorFlow

from mgpu_helpers.lessons import digits, networks  # noqa: E402

tf1 = tf.compat.v1
tf.config.experimental.enable_op_determinism()  # so that a GPU gives the same bits each time

network = networks.jang(hidden=2400, width=0.125)
with tf1.Graph().as_default() as graph:
    x = tf1.placeholder(tf1.float32, [None, 28, 28, 1])
    y = tf1.placeholder(tf1.int64, [None])
    weights = networks.classic(network, seed=options.seed)
    loss = networks.loss(y, networks.logits(network, weights, x))
    train = tf1.train.AdamOptimizer(0.001).minimize(loss)
    start = tf1.global_variables_initializer()

images, labels = digits.load(128 * options.steps, seed=options.seed)
batches = digits.batches(images, labels, 128, seed=options.seed)

config = tf1.ConfigProto()
config.gpu_options.visible_device_list = options.gpu
config.gpu_options.allow_growth = True
with tf1.Session(graph=graph, config=config) as session:
    session.run(start)
    losses = [session.run([loss, train], {x: images, y: labels})[0] for images, labels in batches]
    learned = session.run(list(weights.values()))

digest = hashlib.sha256(b"".join(value.tobytes() for value in learned)).hexdigest()
result = {"losses": [float(loss) for loss in losses], "weights": digest}
options.output.mkdir(parents=True, exist_ok=True)
(options.output / "train_graph.json").write_text(json.dumps(result, indent=2))
print(f"the loss went from {losses[0]:.1f} to {losses[-1]:.1f}")
