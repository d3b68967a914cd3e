"""What `fit.explain` says a step would take without its dearest cost, against the cure itself.

Each ailment is explained on one device and under the strategy of `fit`. The step that was foretold
is compared with the one of `fit` without the ailment, timed before and after the explanation.

python benchmarks/explain.py    writes results/explain.json
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import _cards as results
import _mirrored
from mgpu_helpers import devices, fit
from mgpu_helpers.lessons import digits

BATCH, STEPS, LONG, TARGET = 128, 10, 0.03, 0.15


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2, exact=True)
    print(plan)
    rows = []
    for where, scope, eager in (("one device", one(plan), True),
                                ("two devices", fit.strategy(plan).scope, False)):  # fmt: skip
        sick, cured = ailments(scope, eager)
        cured()
        before = cured()
        for ailment, explained in sick.items():
            found, after = explained(), cured()
            dearest = next((cost.seconds for cost in found.costs if cost.name == ailment), 0.0)
            real = (before + after) / 2  # a machine that drifts is the same in the middle
            rows.append((where, ailment, found.step, found.step - dearest, real))
            print(where, ailment, *(f"{value:.4f}" for value in rows[-1][2:]), flush=True)
            before = after
    errors = [abs(foretold / real - 1) for *_, foretold, real in rows]
    ratios = [results.Ratio.of("step without its dearest cost, error", errors, TARGET,
                               at_least=False),
              results.Ratio("the same, largest error", round(max(errors), 4))]  # fmt: skip
    print(*ratios, sep="\n")
    names = ("where", "ailment", "step_s", "foretold_s", "cured_s")
    results.write("explain", plan, {
        "batch": BATCH, "steps": STEPS,
        "steps_explained": [
            dict(zip(names, [*row[:2], *(round(x, 5) for x in row[2:])], strict=True))
            for row in rows
        ],
    }, ratios)  # fmt: skip


def one(plan: devices.Plan) -> Callable[[], Any]:
    import tensorflow as tf

    return lambda: tf.device(plan.devices[0])


def ailments(
    scope: Callable[[], Any], eager: bool
) -> tuple[dict[str, Callable[[], Any]], Callable[[], float]]:
    """Give how each ailment is explained, named after its cost; and a step's seconds without."""
    import keras
    import tensorflow as tf

    images, labels = digits.load(BATCH)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat(STEPS)

    def slowly(x: Any, y: Any) -> Any:
        def wait(x: Any) -> Any:
            time.sleep(LONG)
            return x

        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape), y

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(LONG)

    def model(**settings: Any) -> Any:
        with scope():
            model = _mirrored.keras_model()
            model.compile(model.optimizer, model.loss, **settings)
        return model

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            begun = self.begun[1:]
            self.steps.append((begun[-1] - begun[0]) / (len(begun) - 1))

    plain, well = model(), model()

    def cured() -> float:
        """Time a step as `explain` does: one pass to warm up, and the faster of two."""
        clock = Clock()
        clock.steps = []
        well.fit(data, epochs=3, callbacks=[clock], verbose=0, shuffle=False)
        return min(clock.steps[1:])

    def explained(model: Any, data: Any = data, callbacks: Any = ()) -> Any:
        return lambda: fit.explain(model, data, callbacks=callbacks, steps=STEPS)

    sick = {
        "input": explained(plain, data.map(slowly)),
        "callback Slow": explained(plain, callbacks=[Slow()]),
    }
    if eager:  # eager steps of several devices take longest, and say no more
        sick["run_eagerly"] = explained(model(run_eagerly=True))
    return sick, cured


if __name__ == "__main__":
    main()
