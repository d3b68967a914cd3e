"""Fit a small network, alone or as one worker of several, with every common callback.

"plain" drops out; "inside" does so too, in the scope, where the chief alone saves before another
pass; "kill" does too, and worker 1 is killed once, or is told to end in "told-worker" and its
launcher in "told-launcher", as Slurm would at that step; a third argument, "laid", lays a model
of no scope out in stages within each worker; "seeds" gives each worker an order of its
own; "rates" drops nothing out, so that it is the same one on any number of workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from mgpu_helpers import devices, fit

folder, how = Path(sys.argv[1]), sys.argv[2]
index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
plan = devices.current() or devices.setup(2)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = random.normal(size=(45, 8)).astype("float32"), random.integers(0, 3, 45)
strategy = fit.strategy(plan)
if how == "inside":
    tf.distribute.experimental_set_strategy(strategy)
with contextlib.nullcontext() if "laid" in sys.argv else strategy.scope():
    model = keras.Sequential([keras.Input([8]), layers.Dense(16, "relu"),
                              layers.Dropout(0.0 if how == "rates" else 0.3),
                              layers.BatchNormalization(), layers.Dense(3, "softmax")])  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
if "laid" in sys.argv:
    fit.use(model, plan, stages=2)


class Kill(keras.callbacks.Callback):
    """Kill worker 1 in the third pass of the first attempt."""

    def on_train_batch_end(self, batch, logs=None):
        if how == "kill" and index == 1 and os.environ["MGPU_ATTEMPT"] == "0":
            if self.model.optimizer.iterations.numpy() == 8:
                os.kill(os.getpid(), signal.SIGKILL)


class Told(keras.callbacks.Callback):
    """Send SIGTERM at the end of a step, the number of which "told" is followed by."""

    def on_train_batch_end(self, batch, logs=None):
        who, _, step = how.removeprefix("told-").partition("-")
        time.sleep(0.6 * how.startswith("told-"))  # so that workers ask each other after each step
        told = how.startswith("told-") and index == 1 and not (folder / "was_told").exists()
        if told and self.model.optimizer.iterations.numpy() == int(step):
            (folder / "was_told").touch()
            os.kill(os.getpid() if who == "worker" else os.getppid(), signal.SIGTERM)


class Late(keras.callbacks.ModelCheckpoint):
    """Save after the last pass only, when the other worker could have gone on long ago."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 4:
            time.sleep(3)
            super().on_epoch_end(epoch, logs)


each = keras.callbacks
callbacks = [
    each.BackupAndRestore(folder / "backup"), Kill(), Told(),
    each.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True),
    Late(folder / "last.keras"),
    each.CSVLogger(folder / "log.csv", append=True), each.TensorBoard(folder / "board"),
    each.EarlyStopping(patience=50),
    each.ReduceLROnPlateau(patience=1 if how == "rates" else 50, min_delta=10.0),
    each.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
]  # fmt: skip
seed = index if how == "seeds" else 0
data = fit.batches(x, y, batch_size=16, shuffle=True, seed=seed)
history = model.fit(data, validation_data=fit.batches(x[:7], y[:7]), epochs=5, verbose=0,
                    callbacks=callbacks).history  # fmt: skip
saved = (folder / "last.keras").exists()
values = [each.numpy() for each in (*model.variables, *model.optimizer.variables)]
digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
if how == "inside":
    if index == 0:
        model.save(folder / "chief.keras")
    model.fit(data, verbose=0)
    keras.models.load_model(folder / "chief.keras").save(folder / f"{index}.keras")
print(json.dumps({"state": digest, "history": history, "saved": saved}))
