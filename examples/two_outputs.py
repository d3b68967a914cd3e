"""Train one network to say the kind of a made customer and what that customer will spend."""

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

random = np.random.default_rng(0)
numbers = random.normal(size=(601, 12)).astype("float32")
places = random.integers(0, 20, (601, 1))
hidden = numbers @ random.normal(size=(12, 3)) + random.normal(size=(20, 3))[places[:, 0]]
x = {"numbers": numbers, "place": places}
y = {
    "leaves": (hidden[:, :1] > 1).astype("float32"),
    "kind": hidden.argmax(axis=1),
    "spends": hidden[:, 1:2].astype("float32") ** 2,
}
rare = np.where(y["leaves"][:, 0] > 0, 3.0, 1.0).astype("float32")
recent = np.linspace(0.2, 1.0, 601, dtype="float32")
weights = {"leaves": rare, "kind": np.ones(601, "float32"), "spends": recent}
first, last = slice(None, 500), slice(500, None)


def part(values, rows):
    return {name: each[rows] for name, each in values.items()}


given = {"numbers": keras.Input((12,), name="numbers"), "place": keras.Input((1,), name="place")}
place = layers.Flatten()(layers.Embedding(20, 4, embeddings_regularizer="l2")(given["place"]))
body = layers.Concatenate()([layers.BatchNormalization()(given["numbers"]), place])
body = layers.Dense(32, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4))(body)
body = layers.Dense(32, activation="relu")(body)
outputs = {
    "leaves": layers.Dense(1, activation="sigmoid", name="leaves")(body),
    "kind": layers.Dense(3, activation="softmax", name="kind")(body),
    "spends": layers.Dense(1, name="spends")(body),
}
model = keras.Model(given, outputs)
model.compile(
    keras.optimizers.Adam(0.01, clipnorm=1.0),
    loss={
        "leaves": "binary_crossentropy",
        "kind": "sparse_categorical_crossentropy",
        "spends": keras.losses.Huber(),
    },
    loss_weights={"leaves": 1.0, "kind": 0.5, "spends": 0.1},
    metrics={"leaves": [keras.metrics.AUC(name="auc")], "kind": ["accuracy"]},
    weighted_metrics={"leaves": ["accuracy"], "spends": ["mae", keras.metrics.R2Score(name="r2")]},
)
history = model.fit(
    part(x, first), part(y, first), sample_weight=part(weights, first),
    batch_size=64, epochs=options.epochs, verbose=2,
    validation_data=(part(x, last), part(y, last), part(weights, last)),
).history  # fmt: skip

tested = model.evaluate(part(x, last), part(y, last), verbose=0, return_dict=True)
history |= {f"tested_{name}": [value] for name, value in tested.items()}
history["predicted"] = [float(each.sum()) for each in model.predict(part(x, last)).values()]
print(json.dumps(history))
