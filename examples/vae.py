"""Train a variational autoencoder with a step of its own, whose loss is made of two sums."""

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


class VAE(keras.Model):
    """An encoder to means and variances, and a decoder of what is drawn from them."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "image", "kl")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        images, drawn = data
        with tf.GradientTape() as tape:
            mean, spread = tf.split(self.encoder(images), 2, axis=1)
            made = self.decoder(mean + tf.exp(0.5 * spread) * drawn)
            differences = keras.losses.binary_crossentropy(images, made)
            image = tf.reduce_mean(tf.reduce_sum(differences, axis=(1, 2)))
            kl = -0.5 * (1 + spread - tf.square(mean) - tf.exp(spread))
            kl = tf.reduce_mean(tf.reduce_sum(kl, axis=1))
            loss = image + kl
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for tracker, value in zip(self.trackers, (loss, image, kl), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


random = np.random.default_rng(0)
images = np.zeros((300, 8, 8, 1), "float32")
for image, (row, column) in zip(images, random.integers(1, 7, (300, 2)), strict=True):
    image[row - 1 : row + 2, column - 1 : column + 2] = 1.0
drawn = random.normal(size=(300, 2)).astype("float32")  # with the data: the same on any devices

encoder = keras.Sequential([
    layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"), layers.Flatten(),
    layers.Dense(4),
])  # fmt: skip
decoder = keras.Sequential([
    layers.Dense(4 * 4 * 8, activation="relu"), layers.Reshape((4, 4, 8)),
    layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
])  # fmt: skip
model = VAE(encoder, decoder)
model.compile(optimizer=keras.optimizers.Adam(1.5e-2))
history = model.fit(images, drawn, batch_size=64, epochs=options.epochs, verbose=2).history
history["made"] = [float(np.mean(decoder(drawn[:50])))]
print(json.dumps(history))
