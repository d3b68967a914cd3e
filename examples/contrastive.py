"""Train embeddings of two views of each image, which are told from those of all other images."""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mgpu_helpers import devices, fit  # added

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
options = parser.parse_args()
keras.utils.set_random_seed(3)
tf.distribute.experimental_set_strategy(fit.strategy(devices.setup()))  # added


def like_itself(views, others):
    """Give a cross-entropy for each view: which of all the others is of the same image."""
    context = tf.distribute.get_replica_context()
    of_all = context.all_gather(others, axis=0)  # on one device the batch's own
    alike = tf.matmul(views, of_all, transpose_b=True) / 0.2
    return tf.reduce_logsumexp(alike, axis=1) - tf.reduce_sum(views * others, axis=1) / 0.2


class SimCLR(keras.Model):
    """An encoder, and a projection of what it finds that only the loss sees."""

    def __init__(self, encoder, projection):
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            first, second = (
                tf.math.l2_normalize(self.projection(self.encoder(views)), axis=1)
                for views in data
            )
            losses = like_itself(first, second) + like_itself(second, first)
            loss = tf.reduce_mean(losses) / 2
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


random = np.random.default_rng(0)
patches = random.uniform(size=(301, 4, 4, 1)).astype("float32")
images = np.kron(patches, np.ones((1, 2, 2, 1), "float32"))
# The views are with the data: the same on any devices. Each is a part of its image, in noise.
views = [
    np.roll(images, shift, axis=2) + random.normal(0, 0.1, images.shape).astype("float32")
    for shift in (0, 1)
]

encoder = keras.Sequential([
    layers.Conv2D(8, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
    layers.Flatten(), layers.Dense(16, activation="relu"),
])  # fmt: skip
projection = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8)])
model = SimCLR(encoder, projection)
model.compile(optimizer=keras.optimizers.Adam(1e-2))
history = model.fit(*views, batch_size=64, epochs=options.epochs, verbose=2).history
first, second = (tf.math.l2_normalize(projection(encoder(each)), axis=1) for each in views)
found = np.argmax(tf.matmul(first, second, transpose_b=True), axis=1)
history["found"] = [float(np.mean(found == np.arange(len(found))))]
print(json.dumps(history))
