"""Train the network of an article of 2017 in a graph and a Session, on one GPU.

Lesson 25 starts it twice, with two widths of the hidden layer.
"""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gpu", default="0", help="a number among the GPUs that this process sees")
parser.add_argument("--hidden", type=int, default=2400, help="hidden units of the article")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the result")
options = parser.parse_args()

import numpy as np  # noqa: E402  --help need not wait for TensorFlow
import tensorflow.compat.v1 as tf1  # noqa: E402

from mgpu_helpers.lessons import digits, networks  # noqa: E402

network = networks.jang(options.hidden, width=0.125)  # an eighth of the article's
with tf1.Graph().as_default() as graph:
    x = tf1.placeholder(tf1.float64, [None, 28, 28, 1])
    y = tf1.placeholder(tf1.int64, [None])
    start = networks.initial(network).items()
    weights = {name: tf1.get_variable(name, initializer=np.float64(each)) for name, each in start}
    loss = networks.loss(y, networks.logits(network, weights, x))
    train = tf1.train.GradientDescentOptimizer(0.125).minimize(loss)
    initialize = tf1.global_variables_initializer()

images, labels = digits.load(64 * options.steps)
batches = zip(np.split(images, options.steps), np.split(labels, options.steps), strict=True)

config = tf1.ConfigProto()
config.gpu_options.visible_device_list = options.gpu
config.gpu_options.allow_growth = True
with tf1.Session(graph=graph, config=config) as session:
    session.run(initialize)
    losses = [session.run([loss, train], {x: images, y: labels})[0] for images, labels in batches]

options.output.mkdir(parents=True, exist_ok=True)
(options.output / "train_graph.json").write_text(json.dumps([float(each) for each in losses]))
print(f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
