"""`fit` under the strategy of `fit`, against one device's and against a loop of one's own.

All train the same network, in turn, in one run: three passes of ten global batches, from a dataset
that ends after each pass. The loop of one's own has an iterator that never ends. "a share" is one
device's `fit` of half the global batch, which a device has to do in any case.
"""

from __future__ import annotations

import os

import _cards as results
import _mirrored
import _rounds
from mgpu_helpers import devices, fit

PASSES, STEPS, MOST = 3, 10, 12


def ways(plan, size):
    """Give what is compared for a global batch of so many, each a function without arguments."""
    import tensorflow as tf

    from mgpu_helpers.lessons import digits

    images, labels = digits.load(size)

    def data(count, times=STEPS):
        batch = tf.data.Dataset.from_tensors((images[:count], labels[:count]))
        return batch.repeat(times).prefetch(2)

    to_one = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())

    def fitting(scope, count):
        with scope:
            model = _mirrored.keras_model()
        return lambda: model.fit(data(count), epochs=PASSES, verbose=0, shuffle=False)

    loop = _mirrored.loops(to_one, to_one, data(size, -1), size, STEPS)["own loop, to one device"]
    return {
        "fit": fitting(fit.strategy(plan).scope(), size),
        "own loop": lambda: [loop() for _ in range(PASSES)],
        "fit on one device": fitting(tf.device(plan.devices[0]), size),
        "fit of a share": fitting(tf.device(plan.devices[0]), size // len(plan)),
        "fit without the room": fitting(to_one.scope(), size),
    }


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    ratios, taken = [], {}
    for size in (64, 512):
        timed = _rounds.several(ways(plan, size), warmup=1, most=MOST)
        ours = timed["fit"].seconds
        taken[size] = {name: round(1e3 * each.median, 1) for name, each in timed.items()}
        for name, target in (("own loop", 1.1), ("fit on one device", None),
                             ("fit of a share", None), ("fit without the room", None)):  # fmt: skip
            rounds = [a / b for a, b in zip(ours, timed[name].seconds, strict=True)]
            said = f"fit on two devices, {size}: time over {name}"
            ratios.append(results.Ratio.of(said, rounds, target, at_least=False))
            print(ratios[-1])
    results.write("fit", plan, {"passes": PASSES, "steps": STEPS, "ms": taken}, ratios)


if __name__ == "__main__":
    main()
