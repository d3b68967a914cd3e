"""What `fit.explain` says a step would take without its dearest cost, against the cure itself.

Each ailment is explained on one device and under the strategy of `fit`. Then `fit` is explained
without the ailment, and the step that was foretold is compared with the one that was reached.

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

BATCH, STEPS, ROUNDS, LONG, TARGET = 128, 6, 1, 0.03, 0.15


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    rows = []
    for where, scope in (("one device", one(plan)), ("two devices", fit.strategy(plan).scope)):
        sick, cured = ailments(scope)
        for _ in range(ROUNDS):
            real = cured()
            for ailment, explained in sick.items():
                found = explained()
                dearest = next(cost for cost in found.costs if cost.name == ailment)
                foretold = found.step - dearest.seconds
                rows.append((where, ailment, found.step, foretold, real.step))
                print(*rows[-1][:2], f"{found.step:.4f} -> {foretold:.4f} {real.step:.4f}")
    errors = [abs(foretold / real - 1) for *_, foretold, real in rows]
    ratios = [results.Ratio.of("step without its dearest cost, error", errors, TARGET,
                               at_least=False),
              results.Ratio("the same, largest error", round(max(errors), 4))]  # fmt: skip
    print(*ratios, sep="\n")
    names = ("where", "ailment", "step_s", "foretold_s", "cured_s")
    results.write("explain", plan, {
        "batch": BATCH, "steps": STEPS, "rounds": ROUNDS,
        "steps_explained": [
            dict(zip(names, [*row[:2], *(round(x, 5) for x in row[2:])], strict=True))
            for row in rows
        ],
    }, ratios)  # fmt: skip


def one(plan: devices.Plan) -> Callable[[], Any]:
    import tensorflow as tf

    return lambda: tf.device(plan.devices[0])


def ailments(scope: Callable[[], Any]) -> tuple[dict[str, Callable[[], Any]], Callable[[], Any]]:
    """Give how each ailment is explained, named after its cost; and how `fit` without any is."""
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

    plain, eager = model(), model(run_eagerly=True)

    def explained(model: Any, data: Any = data, callbacks: Any = ()) -> Any:
        return lambda: fit.explain(model, data, callbacks=callbacks, steps=STEPS)

    return {
        "input": explained(plain, data.map(slowly)),
        "callback Slow": explained(plain, callbacks=[Slow()]),
        "run_eagerly": explained(eager),
    }, explained(plain)


if __name__ == "__main__":
    main()
