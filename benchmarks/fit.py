"""`fit` under the strategy of `fit`, against one device's and against a loop of one's own.

All train the same network, in turn, in one run: two passes of ten global batches, from a dataset
that ends after each pass. The loop of one's own has an iterator that never ends. "a share" is one
device's `fit` of half the global batch, which a device has to do in any case. Processor time counts
no waiting for other programs: it says what `fit` adds to the steps on a machine that is in use.

On two workers, each of which has a core, both train in the same two processes, which add up what
they took. They end after the least of rounds, for both have to end after the same one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from statistics import median

import _cards as results
import _mirrored
import _rounds
from mgpu_helpers import cluster, devices, fit

PASSES, STEPS, LEAST = 2, 10, 3  # passes, steps of a pass, rounds
SIZES = 64, 512  # global batches
ONE, PARALLEL = "fit on one device", "fit.parallel"
LIMIT = 240.0  # seconds for the workers, which take about 25


def batches(size, times=STEPS):
    """Give a dataset of so many batches, all the same."""
    import tensorflow as tf

    from mgpu_helpers.lessons import digits

    return tf.data.Dataset.from_tensors(digits.load(size)).repeat(times).prefetch(2)


def fitting(scope, size, change=lambda model: model):
    """Make a model in a scope, change it; give a function that fits it."""
    with scope:
        model = change(_mirrored.keras_model())
    return lambda passes=PASSES: model.fit(
        batches(size), epochs=passes, verbose=0, shuffle=False
    )


def looping(strategy, data, size):
    """Give a loop of one's own that takes as many steps."""
    loop = _mirrored.loop(strategy, data, size, STEPS)
    return lambda passes=PASSES: [loop() for _ in range(passes)]


def ways(plan, size):
    """Give what is compared for a global batch of so many, each a function of passes."""
    import tensorflow as tf

    to_one = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())

    def on_one(size, change=lambda model: model):
        return fitting(tf.device(plan.devices[0]), size, change)

    compared = {
        "fit": fitting(fit.strategy(plan).scope(), size),
        "own loop": looping(to_one, batches(size, -1), size),
        ONE: on_one(size),
        "fit of a share": on_one(size // len(plan)),
    }
    if size == SIZES[0]:  # where what a step costs besides its work weighs most
        compared["fit without the room"] = fitting(to_one.scope(), size)
    else:
        compared[PARALLEL] = on_one(size, lambda model: fit.use(model, plan.devices))
    return compared


def clocked(function):
    """Give the seconds on the wall that a call takes, and those of all processors."""
    wall, processors = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processors


def in_turn(compared, share):
    """Call everything in turn, and give the clocks of each round by name."""
    for call in compared.values():
        call(1)
    clocks = {name: lambda call=call: clocked(call) for name, call in compared.items()}
    return _rounds.in_turn(clocks, seconds=lambda clocks: clocks[1], least=LEAST, share=share)


def worker():
    """Be one of the workers: print what all of them took, added up."""
    import tensorflow as tf

    strategy, size = fit.strategy(), SIZES[-1]

    @tf.function
    def added(clocks):
        return strategy.reduce("SUM", strategy.run(lambda: tf.identity(clocks)), axis=None)

    compared = {
        "fit": fitting(strategy.scope(), size),
        "own loop": looping(strategy, lambda each: batches(
            each.get_per_replica_batch_size(size), -1), size),
    }  # fmt: skip
    for call in compared.values():
        call(1)
    taken = {name: [] for name in compared}
    for _ in range(LEAST):
        for name, call in compared.items():
            taken[name].append(added(tf.constant(clocked(call), tf.float64)).numpy().tolist())
    print(json.dumps(taken))
    sys.stdout.flush()
    # The others may still receive, and need the chief until they end.
    time.sleep(2 if strategy.cluster_resolver.task_id else 4)
    _mirrored.leave()


def on_workers():
    """Run the workers and give what they took, each on its own, in the middle."""
    with tempfile.TemporaryDirectory() as logs:
        report = cluster.run(__file__, ["worker"], workers=2, logs=logs, time_limit=LIMIT,
                             progress=False)  # fmt: skip
    if not report.ok:
        raise RuntimeError(f"the workers failed: {report}")
    return {
        name: [[clock / 2 for clock in clocks] for clocks in rounds]
        for name, rounds in report[0].result.items()
    }


def over(said, taken, name, other):
    """Give one way's time and processor time over another's, as two ratios."""
    target = 1.1 if other == "own loop" else None
    for clock, kind in enumerate(("time", "processor time")):
        both = zip(taken[name], taken[other], strict=False)  # one may have had enough before
        rounds = [ours[clock] / theirs[clock] for ours, theirs in both]
        ratio = results.Ratio.of(f"{said}: {kind} over {other}", rounds, target, at_least=False)
        print(ratio)
        yield ratio


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    workers = on_workers()  # before this process has a use for the cores
    plan = devices.setup(2, exact=True)
    print(plan)
    taken, ratios, made = {}, [], {size: ways(plan, size) for size in SIZES}
    for size in SIZES:
        compared = taken[str(size)] = in_turn(made[size], 1 / (len(SIZES) - len(taken)))
        for name in [name for name in compared if name not in ("fit", PARALLEL)]:
            ratios += over(f"fit on two devices, {size}", compared, "fit", name)
    ratios += over(f"{PARALLEL} on two devices, {SIZES[-1]}", compared, PARALLEL, ONE)
    ratios += over(f"fit on two workers, {SIZES[-1]}", workers, "fit", "own loop")
    taken[f"{SIZES[-1]}, two workers"] = workers
    ms = {
        case: {
            name: [round(1e3 * median(clock), 1) for clock in zip(*rounds, strict=True)]
            for name, rounds in compared.items()
        }
        for case, compared in taken.items()
    }
    results.write("fit", plan, {"passes": PASSES, "steps": STEPS, "ms": ms}, ratios)
    _mirrored.leave()


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
