"""The callbacks of a `fit`, on each of several workers; and what a backup of Keras leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras
from mgpu_helpers.fit._workers import compare, meet
from mgpu_helpers.fit.stopping import launcher, seeds_of, stops


def of_worker(callbacks: Any, strategy: Any) -> Any:
    """Give the callbacks of a worker: what writes files does so on the chief only.

    A backup is read by all of them, and keeps the seeds of the layers too. Under `mgpu cluster` it
    is also written when SIGTERM comes.
    """
    each = keras.callbacks
    if isinstance(callbacks, each.CallbackList):
        return callbacks
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    listed: list[Any] = []
    last: list[Any] = []
    for callback in given:
        writes = each.ModelCheckpoint | each.CSVLogger | each.TensorBoard
        if callback is None or (strategy.worker and isinstance(callback, writes)):
            continue
        listed.append(callback)
        if isinstance(callback, each.BackupAndRestore):
            if launcher():
                last = [stops(strategy, callback, lambda: meet(strategy))]
            if strategy.worker:
                for does in ("on_epoch_end", "on_train_batch_end", "on_train_end"):
                    setattr(callback, does, lambda *args, **named: None)
            if strategy.workers > 1:
                _chief_first(callback, strategy)
            by_pass = callback.save_freq == "epoch" and not strategy.worker
            listed.append(_seeds(Path(callback.backup_dir) / "seeds.npz", by_pass))
    return [*listed, *last, _together(strategy)] if strategy.workers > 1 else listed + last


def _seeds(file: Path, writes: bool) -> Any:
    """Make a callback that keeps how often each layer has drawn: weights in a file are without."""
    class Seeds(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            if file.exists():
                with np.load(file) as kept:
                    if kept["passes"] == _private.first_pass(self.model):
                        for i, state in enumerate(seeds_of(self.model)):
                            state.assign(kept[f"state_{i}"])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if writes:
                seeds = seeds_of(self.model)
                states = {f"state_{i}": state.numpy() for i, state in enumerate(seeds)}
                np.savez(file, passes=epoch + 1, **states)

    return Seeds()


def _chief_first(callback: Any, strategy: Any) -> None:
    """Let the others read a backup after the chief, which may have to put the one before back."""
    read = callback.on_train_begin

    def on_train_begin(logs: Any = None) -> None:
        if strategy.worker:
            meet(strategy)
        read(logs)
        if not strategy.worker:
            meet(strategy)

    callback.on_train_begin = on_train_begin


def _together(strategy: Any) -> Any:
    """Make a callback that compares what the workers have read of the first batch, and of a pass.

    At the end each of them waits until the chief has written everything.
    """
    class Together(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.compared = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            strategy.seen.assign([0, 0])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not self.compared:
                self.compared = True
                compare(strategy, {
                    "number of examples in the first batch": strategy.seen[0],
                    "sum of the first batch": strategy.seen[1],
                    "pass to begin at": _private.first_pass(self.model),
                })  # fmt: skip

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            compare(strategy, {"number of examples in a pass": strategy.seen[0]})

        def on_train_end(self, logs: Any = None) -> None:
            meet(strategy)

    return Together()
