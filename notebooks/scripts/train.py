"""Train a small Keras network on handwritten digits. It names no device. Lesson 04 starts it."""

import argparse
import hashlib
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=16, help="filters of the convolution")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the result")
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
model.compile("adam", loss)
images, labels = digits.load()
losses = model.fit(images, labels, batch_size=64, epochs=4, verbose=0).history["loss"]

weights = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights()))
result = {"losses": losses, "weights": weights.hexdigest()}
options.output.mkdir(parents=True, exist_ok=True)
(options.output / "train.json").write_text(json.dumps(result, indent=2))
print(f"the loss went from {losses[0]:.1f} to {losses[-1]:.1f}")
