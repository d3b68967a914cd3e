"""Train a small Keras network on handwritten digits, and print what it has learnt as JSON.

It names no device. Lesson 16 starts it with two widths.
"""

import argparse
import hashlib
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=16, help="filters of the convolution")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", type=Path, help="folder for losses and weights; default: none")
options = parser.parse_args()

import tensorflow as tf  # noqa: E402  --help need not wait for TensorFlow

from mgpu_helpers.lessons import digits  # noqa: E402

tf.keras.utils.set_random_seed(options.seed)
tf.config.experimental.enable_op_determinism()  # so that a GPU gives the same bits each time

layers = [
    tf.keras.layers.Conv2D(options.width, 3, strides=2, activation="relu"),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
]
model = tf.keras.Sequential(layers)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.SGD(options.lr, momentum=0.9), loss, metrics=["accuracy"])
images, labels = digits.load()
losses = model.fit(images, labels, 64, epochs=options.epochs, verbose=0).history["loss"]

if options.output:
    weights = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights()))
    learnt = {"losses": losses, "weights": weights.hexdigest()}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "train.json").write_text(json.dumps(learnt, indent=2))
_, accuracy = model.evaluate(*digits.load(test=True), verbose=0)
print(json.dumps({"loss": round(losses[-1], 3), "accuracy": round(accuracy, 3)}))
