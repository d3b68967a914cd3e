"""Train a small Keras model with `fit`, alone or as one of several workers.

Lessons 17 and 18 start it. The folder gets the model, and backups from which a restart goes on. The
last options let worker 1 be killed in attempt 0, and sleep in attempt 1.
"""

import argparse
import faulthandler
import hashlib
import json
import os
import signal
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", type=Path, default=Path("trained"), help="one that all workers see")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--limit", type=float, help="seconds from a step's end to the next")
parser.add_argument("--kill-at", type=int, metavar="STEP", help="worker 1 gets SIGKILL")
parser.add_argument("--sleep-at", type=int, metavar="STEP", help="worker 1 sleeps")
options = parser.parse_args()

import keras  # noqa: E402  --help need not wait for TensorFlow
from keras import layers  # noqa: E402

from mgpu_helpers import devices, fit  # noqa: E402
from mgpu_helpers.lessons import digits  # noqa: E402


class Faults(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
        attempt, step = os.environ.get("MGPU_ATTEMPT"), self.model.optimizer.iterations.numpy()
        print(f"step {step}", flush=True)
        if task["index"] == 1 and attempt == "0" and step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if task["index"] == 1 and attempt == "1" and step == options.sleep_at:
            time.sleep(600)


class Limit(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        faulthandler.dump_traceback_later(options.limit, exit=True)

    def on_train_end(self, logs=None):
        faulthandler.cancel_dump_traceback_later()


keras.utils.set_random_seed(8)
images, labels = digits.load(901)
with fit.strategy(devices.setup()).scope():  # added
    model = keras.Sequential([  # indented
        keras.Input([28, 28, 1]), layers.Flatten(), layers.Dense(32, "relu"),
        layers.Dropout(options.dropout), layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])

callbacks = [
    keras.callbacks.BackupAndRestore(options.folder / "backup", double_checkpoint=True),
    keras.callbacks.ModelCheckpoint(options.folder / "model.keras"),
    *([Limit()] if options.limit else []),
    Faults(),
]
history = model.fit(
    images, labels, batch_size=120, epochs=options.epochs, callbacks=callbacks, verbose=0
).history

values = [each.numpy() for each in (*model.variables, *model.optimizer.variables)]
digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
print(json.dumps({"history": history, "state": digest}))
