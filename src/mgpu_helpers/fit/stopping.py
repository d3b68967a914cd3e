"""A `fit` that SIGTERM tells to end: it saves where it is, and the next start goes on from there.

Slurm and Kubernetes send SIGTERM some time before they end a job, and `mgpu cluster` passes it on.
A backup of Keras knows passes only. So beside it lies how many steps of a pass were done, how often
layers have drawn and what metrics have added up, and the number of updates that it belongs to.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras
from mgpu_helpers.fit._workers import of_all, of_replicas

STATUS = 75  # the exit status of a worker that has saved; "try again" in sysexits.h
EVERY = 1.0  # seconds between two questions to all workers whether one was told to end


def launcher() -> Callable[[str], None] | None:
    """Give what tells this worker's launcher of an event; None where none has started it."""
    return getattr(sys.modules.get("mgpu_helpers.cluster.worker"), "tell", None)


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Let SIGTERM do after the block what it did before."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        tell = launcher()
        if tell and signal.getsignal(signal.SIGTERM) is not before:
            # None is a handler of TensorFlow's strategy, which swallows the signal.
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
            tell("unready")


def seeds_of(model: Any) -> list[Any]:
    """List what counts how often each layer has drawn: weights in a file are without."""
    return [each for each in model.variables if each.name == "seed_generator_state"]


def stops(strategy: Any, backup: Any, meet: Callable[[], None]) -> Any:
    """Make the callback of a fit with a BackupAndRestore; `meet` waits for all workers."""
    file = Path(backup.backup_dir) / "stopped.npz"

    class Stops(keras.callbacks.Callback):
        """Listens to SIGTERM; all workers agree on the step after which they save and end."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.told = self.ends = False
            self.calls = self.asked = 0  # ends of steps; and the one at which all were asked
            self.due, self.since = 1, time.monotonic()
            self.kept = self.read()
            # Callbacks before this one may change the rate as a pass begins, and did so before.
            numbers = getattr(self.model.optimizer, "variables", [])
            self.numbers = [(each, each.numpy()) for each in numbers if each.shape == ()]
            strategy.steps_before = int(self.kept["steps"]) if self.kept else 0
            own = signal.getsignal(signal.SIGTERM)
            with contextlib.suppress(ValueError):  # in a thread no signal can be taken
                if own in (None, signal.SIG_DFL):  # a script that listens itself goes on to
                    signal.signal(signal.SIGTERM, self.hears)
                    launcher()("ready")  # type: ignore[misc]

        def hears(self, number: int, frame: Any) -> None:
            self.told = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            if self.kept and self.kept["steps"]:  # the first pass goes on, and does not begin
                put(strategy, self.model.metrics_variables, self.kept["metrics"])
                for number, value in self.numbers:
                    number.assign(value)
            self.kept = None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not self.ends and self.agreed():
                self.ends = True
                if batch + 1 != self.params["steps"]:  # else the pass ends first
                    self.end(self.epoch, batch + 1)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch + 1 < self.params["epochs"] and (self.ends or self.agreed()):
                self.end(epoch + 1, 0)

        def agreed(self) -> bool:
            """Say whether one of the workers was told to end: all give the same answer."""
            if strategy.workers == 1:
                return self.told
            self.calls += 1
            if self.calls < self.due:
                return False
            steps = self.calls - self.asked
            mine = [float(self.told), (time.monotonic() - self.since) / steps]
            told, seconds = of_all(strategy, mine).max(0)
            self.asked, self.since = self.calls, time.monotonic()
            self.due = self.calls + max(1, min(int(EVERY / seconds), 2 * steps))
            return bool(told)

        def end(self, passes: int, steps: int) -> None:
            """Save, and end the process."""
            tell: Any = launcher()
            tell("saves")
            kept = {f"state_{i}": each.numpy() for i, each in enumerate(seeds_of(self.model))}
            kept |= {"passes": passes, "steps": steps, "updates": self.updates()}
            kept["metrics"] = of_replicas(strategy, taken(strategy, self.model.metrics_variables))
            if not strategy.worker:
                _private.save_backup(backup, passes, lambda: np.savez(file, **kept))
            if strategy.workers > 1:
                meet()
            tell("saved")
            raise SystemExit(STATUS)

        def read(self) -> dict[str, Any] | None:
            """Read what belongs to the backup that Keras has read; put the layers' draws back."""
            if not file.exists():
                return None
            with np.load(file) as stored:
                kept = dict(stored)
            before = _private.first_pass(self.model), self.updates()
            if (kept["passes"], kept["updates"]) != before:
                return None
            for i, state in enumerate(seeds_of(self.model)):
                state.assign(kept[f"state_{i}"])
            return kept

        def updates(self) -> int:
            iterations = getattr(self.model.optimizer, "iterations", None)
            return -1 if iterations is None else int(iterations.numpy())

    return Stops()


def taken(strategy: Any, variables: Any) -> list[list[float]]:
    """Give the values that each replica of this worker has of variables, one after the other."""
    copies = [strategy.experimental_local_results(each.value) for each in variables]
    return [[float(x) for of_one in copies for x in of_one[i].numpy().ravel()]
            for i in range(strategy.local)]  # fmt: skip


def put(strategy: Any, variables: Any, values: Any) -> None:
    """Give each replica what it had; all to the first one where their number is another."""
    first = strategy.worker * strategy.local
    if len(values) != strategy.num_replicas_in_sync:
        total = values.sum(0, keepdims=True)
        values = np.concatenate([total, np.zeros((strategy.num_replicas_in_sync - 1, total.size))])
    copies = [strategy.experimental_local_results(each.value) for each in variables]
    for i in range(strategy.local):
        at = 0
        for of_one in copies:
            size = of_one[i].shape.num_elements()
            mine = np.reshape(values[first + i, at : at + size], of_one[i].shape)
            of_one[i].assign(mine.astype(of_one[i].dtype.as_numpy_dtype))
            at += size
