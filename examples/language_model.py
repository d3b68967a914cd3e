"""Train a small Transformer to write the next letter of made sentences, in mixed precision."""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mgpu_helpers import devices, fit  # added

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--policy", default="mixed_bfloat16", help="float32, mixed_float16, …")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
keras.utils.set_random_seed(2)
keras.mixed_precision.set_dtype_policy(options.policy)

WORDS = ["a", "the", "small", "large", "red", "dog", "cat", "tree", "sees", "likes", "and", "is"]
LETTERS = {letter: i + 1 for i, letter in enumerate(" abcdefghijklmnopqrstuvwxyz")}
LENGTH, WIDTH = 32, 32


def sentences(count, seed):
    """Write sentences of one to six words as numbers; 0 fills them up."""
    random = np.random.default_rng(seed)
    rows = np.zeros((count, LENGTH + 1), "int32")
    for row in rows:
        text = " ".join(random.choice(WORDS, random.integers(1, 7)))[: LENGTH + 1]
        row[: len(text)] = [LETTERS[letter] for letter in text]
    return rows[:, :-1], rows[:, 1:]


@keras.saving.register_keras_serializable()
class Embedded(layers.Layer):
    """Embed letters and their positions; 0 is masked."""

    def __init__(self, **options):
        super().__init__(**options)
        self.letter = layers.Embedding(len(LETTERS) + 1, WIDTH, mask_zero=True)
        self.position = layers.Embedding(LENGTH, WIDTH)

    def build(self, shape):
        self.letter.build(shape)
        self.position.build(shape)

    def call(self, letters):
        return self.letter(letters) + self.position(keras.ops.arange(LENGTH))

    def compute_mask(self, letters, mask=None):
        return self.letter.compute_mask(letters)


class Perplexity(keras.metrics.SparseCategoricalCrossentropy):
    def result(self):
        return keras.ops.exp(super().result())


def build():
    letters = keras.Input((LENGTH,), dtype="int32")
    x = Embedded()(letters)
    for _ in range(2):
        inner = layers.LayerNormalization()(x)
        inner = layers.MultiHeadAttention(2, WIDTH // 2)(inner, inner, use_causal_mask=True)
        x = layers.Add()([x, layers.Dropout(options.dropout)(inner)])
        inner = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(options.dropout)(layers.Dense(WIDTH)(inner))])
    x = layers.LayerNormalization()(x)
    model = keras.Model(letters, layers.Dense(len(LETTERS) + 1, dtype="float32")(x))
    rate = keras.optimizers.schedules.CosineDecay(0.001, 60, warmup_target=0.01, warmup_steps=5)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy", Perplexity(name="perplexity", from_logits=True)],
    )
    return model


with fit.strategy(devices.setup()).scope():  # added
    model = build()  # indented

train = tf.data.Dataset.from_tensor_slices(sentences(400, seed=0))
train = train.shuffle(400, seed=3).batch(48).prefetch(tf.data.AUTOTUNE)
held_out = tf.data.Dataset.from_tensor_slices(sentences(100, seed=1)).batch(48)
history = model.fit(train, validation_data=held_out, epochs=options.epochs, verbose=2).history
history["tested"] = model.evaluate(held_out, verbose=0)

text = [LETTERS[letter] for letter in "the small "]
for place in range(len(text), 20):
    padded = np.array([text + [0] * (LENGTH - len(text))], "int32")
    text.append(int(model.predict(padded, verbose=0)[0, place - 1, 1:].argmax()) + 1)
print("written:", "".join(" abcdefghijklmnopqrstuvwxyz"[number - 1] for number in text))
print(json.dumps(history))
