"""Train a small Keras model with `fit`, alone or as one of several workers.

Lessons 21 and 22 start it. The folder gets the model, and backups from which a restart goes on. The
last options let worker 1 be slow, be killed in attempt 0, and sleep in attempt 1.
"""

import argparse
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
parser.add_argument("--anew", action="store_true", help="train once more without a break, compare")
parser.add_argument("--slow", type=float, help="seconds that worker 1 pauses before each step")
parser.add_argument("--kill-at", type=int, metavar="STEP", help="worker 1 gets SIGKILL")
parser.add_argument("--sleep-at", type=int, metavar="STEP", help="worker 1 sleeps")
options = parser.parse_args()

import keras  # noqa: E402  --help need not wait for TensorFlow
from keras import layers  # noqa: E402

from mgpu_helpers import devices, fit  # noqa: E402
from mgpu_helpers.lessons import digits  # noqa: E402

images, labels = digits.load(901)


def build():
    model = keras.Sequential([
        keras.Input([28, 28, 1]), layers.Flatten(), layers.Dense(32, "relu"),
        layers.Dropout(options.dropout), layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def train(callbacks):
    keras.utils.set_random_seed(8)
    with fit.strategy(devices.setup()).scope():  # added
        model = build()  # indented
    passes = {"batch_size": 120, "epochs": options.epochs, "verbose": 0}
    return model, model.fit(images, labels, callbacks=callbacks, **passes).history


def digest(model):
    values = [each.numpy() for each in (*model.variables, *model.optimizer.variables)]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


class Steps(keras.callbacks.Callback):
    """Note when each step begins and ends, and let worker 1 do what the options say."""

    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        began, step = time.monotonic(), self.model.optimizer.iterations.numpy()
        print(f"step {step}", flush=True)
        if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index") == 1:
            self.worker_1(os.environ.get("MGPU_ATTEMPT"), step)
        self.times.append([began, time.monotonic()])

    def on_train_batch_end(self, batch, logs=None):
        self.times[-1].append(time.monotonic())

    def worker_1(self, attempt, step):
        time.sleep(options.slow or 0)
        if attempt == "0" and step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == "1" and step == options.sleep_at:
            time.sleep(600)


backup = keras.callbacks.BackupAndRestore(options.folder / "backup", double_checkpoint=True)
saved = keras.callbacks.ModelCheckpoint(options.folder / "model.keras")
steps = Steps()
model, history = train([saved, steps] if options.slow else [backup, saved, steps])
result = {"history": history, "state": digest(model)}
if options.anew:
    result["anew"] = digest(train([])[0])
if options.slow:
    result["times"] = steps.times
print(json.dumps(result))
