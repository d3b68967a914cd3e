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

from mgpu_helpers.lessons import digits  # noqa: E402

hidden = options.hidden // 8  # all is an eighth as wide as in the article
shapes = [3, 3, 1, 8], [3, 3, 8, 8], [3, 3, 8, 16], [256, hidden], [hidden, 10]
draw = tf1.variance_scaling_initializer(2.0, seed=9)
with tf1.Graph().as_default() as graph:
    weights = [tf1.get_variable(f"w{n}", each, tf1.float64, draw) for n, each in enumerate(shapes)]
    images = x = tf1.placeholder(tf1.float64, [None, 28, 28, 1])
    labels = tf1.placeholder(tf1.int64, [None])
    for kernel in weights[:3]:
        x = tf1.nn.relu(tf1.nn.conv2d(x, kernel, 1, "SAME"))
        x = tf1.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf1.nn.relu(tf1.matmul(tf1.reshape(x, [-1, 256]), weights[3]))
    scores = tf1.matmul(x, weights[4])
    entropy = tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    loss = tf1.reduce_mean(entropy)
    train = tf1.train.GradientDescentOptimizer(0.125).minimize(loss)
    initialize = tf1.global_variables_initializer()

data = digits.load(64 * options.steps)
batches = zip(*(np.split(each, options.steps) for each in data), strict=True)

config = tf1.ConfigProto()
config.gpu_options.visible_device_list = options.gpu
config.gpu_options.allow_growth = True
with tf1.Session(graph=graph, config=config) as session:
    session.run(initialize)
    losses = [session.run([loss, train], {images: x, labels: y})[0] for x, y in batches]

options.output.mkdir(parents=True, exist_ok=True)
(options.output / "train_graph.json").write_text(json.dumps([float(each) for each in losses]))
print(f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
