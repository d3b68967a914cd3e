"""Train a small residual network on made images, with augmentation and every common callback."""

import argparse
import json
from pathlib import Path

import keras
import numpy as np
from keras import layers

from mgpu_helpers import devices, fit  # added

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="where logs and the best model go")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--no-augmentation", action="store_true")
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(1)


def images(count, seed):
    """Make noisy stripes of four directions."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, 4, count)
    steps = np.array([(1, 0), (0, 1), (1, 1), (1, -1)])[kinds]
    rows, columns = np.mgrid[:16, :16]
    phase = steps[:, :1, None] * rows + steps[:, 1:, None] * columns
    stripes = np.sin(phase + random.uniform(0, 6, (count, 1, 1)))
    return (stripes + random.normal(0, 1.0, stripes.shape))[..., None].astype("float32"), kinds


def block(x, filters, strides=1):
    short = x
    if strides > 1:
        short = layers.Conv2D(filters, 1, use_bias=False)(layers.AveragePooling2D(strides)(x))
        short = layers.BatchNormalization()(short)
    x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.Add()([layers.BatchNormalization()(x), short]))


def build():
    inputs = x = keras.Input((16, 16, 1))
    if not options.no_augmentation:
        x = layers.RandomFlip("horizontal")(x)
        x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = block(block(x, 8), 16, strides=2)
    outputs = layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2")],
    )
    return model


with fit.strategy(devices.setup()).scope():  # added
    model = build()  # indented

best, each = options.folder / "best.keras", keras.callbacks
callbacks = [
    each.BackupAndRestore(options.folder / "backup"),
    each.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
    each.LearningRateScheduler(lambda epoch, rate: rate * (0.9 if epoch else 1.0)),
    each.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=0, min_delta=0.2),
    each.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True),
    each.CSVLogger(options.folder / "log.csv"),
]
try:
    import tensorboard  # noqa: F401

    callbacks.append(each.TensorBoard(options.folder / "board"))
except ImportError:
    pass

x, y = images(459, seed=0)
x_test, y_test = images(101, seed=1)
history = model.fit(
    x, y, batch_size=64, epochs=options.epochs, verbose=2, callbacks=callbacks,
    validation_data=(x_test, y_test),
).history  # fmt: skip
loaded = keras.models.load_model(best)
for name, each in {"restored": model, "loaded": loaded}.items():
    history[name] = each.evaluate(x_test, y_test, batch_size=64, verbose=0)
print(json.dumps(history))
