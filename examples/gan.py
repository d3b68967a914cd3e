"""Train a GAN with a step of its own: two networks, two optimizers, two tapes, and no `call`."""

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


class GAN(keras.Model):
    """A generator, and a discriminator that tells its images from real ones."""

    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.of_generator = keras.metrics.Mean(name="generator_loss")
        self.of_discriminator = keras.metrics.Mean(name="loss")

    def compile(self, of_generator, of_discriminator):
        super().compile()
        self.first, self.second = of_generator, of_discriminator

    @property
    def metrics(self):
        return [self.of_generator, self.of_discriminator]

    def train_step(self, data):
        real, noise = data
        fake = self.generator(noise)
        images = tf.concat([fake, real], axis=0)
        labels = tf.concat([tf.ones_like(noise[:, :1]), tf.zeros_like(noise[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            judged = self.discriminator(images)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, judged, True))
        weights = self.discriminator.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise))
            missed = keras.losses.binary_crossentropy(tf.zeros_like(judged), judged, True)
            own = tf.reduce_mean(missed)
        weights = self.generator.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(own, weights), weights, strict=True))
        self.of_generator.update_state(own)
        self.of_discriminator.update_state(loss)
        return {each.name: each.result() for each in self.metrics}


random = np.random.default_rng(0)
places = random.integers(1, 7, (300, 2))
images = np.zeros((300, 8, 8, 1), "float32")
for image, (row, column) in zip(images, places, strict=True):
    image[row - 1 : row + 2, column - 1 : column + 2] = 1.0
noise = random.normal(size=(300, 8)).astype("float32")  # with the data: the same on any devices

generator = keras.Sequential([
    layers.Dense(4 * 4 * 8), layers.LeakyReLU(0.2), layers.Reshape((4, 4, 8)),
    layers.Conv2DTranspose(8, 4, strides=2, padding="same"), layers.LeakyReLU(0.2),
    layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
])  # fmt: skip
discriminator = keras.Sequential([
    layers.Conv2D(8, 3, strides=2, padding="same"), layers.LeakyReLU(0.2),
    layers.Flatten(), layers.Dense(1),
])  # fmt: skip
model = GAN(generator, discriminator)
model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-2))
history = model.fit(images, noise, batch_size=64, epochs=options.epochs, verbose=2).history
history["made"] = [float(np.mean(generator(noise[:50])))]
print(json.dumps(history))
