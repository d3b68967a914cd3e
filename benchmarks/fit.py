"""`fit` under the strategy of `fit`, against one device's and against a loop of one's own.

All train the same network, in turn, in one run: three passes of ten global batches, from a dataset
that ends after each pass. The loop of one's own has an iterator that never ends. "a share" is one
device's `fit` of half the global batch, which a device has to do in any case. Processor time counts
no waiting for other programs: it says what `fit` adds to the steps on a machine that is in use.
"""

from __future__ import annotations

import os
import time
from statistics import median

import _cards as results
import _mirrored
import _rounds
from mgpu_helpers import devices, fit

PASSES, STEPS, MOST = 3, 10, 7  # passes, steps of a pass, rounds


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


def clocked(function):
    """Give the seconds on the wall that a call takes, and those of all processors."""
    wall, processors = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processors


def in_turn(compared):
    """Call everything in turn, and give the clocks of each round by name."""
    taken = {name: [] for name in compared}

    def ratios():
        first, *others = ([each[1] for each in rounds] for rounds in taken.values())
        return [[a / b for a, b in zip(first, other, strict=True)] for other in others]

    for call in compared.values():
        call()
    for _ in _rounds.enough(MOST, ratios):
        for name, call in compared.items():
            taken[name].append(clocked(call))
    return taken


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    ratios, ms = [], {}
    for size in (64, 512):
        taken = in_turn(ways(plan, size))
        ms[size] = {
            name: [round(1e3 * median(clock), 1) for clock in zip(*rounds, strict=True)]
            for name, rounds in taken.items()
        }
        for name in (name for name in taken if name != "fit"):
            for clock, said in enumerate(("time", "processor time")):
                both = zip(taken["fit"], taken[name], strict=True)
                rounds = [ours[clock] / theirs[clock] for ours, theirs in both]
                target = 1.1 if name == "own loop" else None
                said = f"fit on two devices, {size}: {said} over {name}"
                ratios.append(results.Ratio.of(said, rounds, target, at_least=False))
                print(ratios[-1])
    results.write("fit", plan, {"passes": PASSES, "steps": STEPS, "ms": ms}, ratios)


if __name__ == "__main__":
    main()
