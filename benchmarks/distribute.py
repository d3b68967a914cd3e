"""Towers against tf.distribute at its best, one device and two processes; and `fit` in pieces.

Everything trains the same network on the same global batch, in turn, in one run. Ratios "time over
towers" above 1 say that the towers are faster. The most that this machine can give are two
processes with a core each, against one of them: so much is a device of cores mode worth.

`fit` is taken apart by processor time, which counts no waiting: what it takes to begin with the
distributed dataset, as often as it does, and its steps. What both leave over is Keras's own Python.
The seconds that an iterator takes to end are waited, so they are kept by themselves.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median

import _cards as results
import _mirrored
import _rounds
import _workers
from _steps import Step
from mgpu_helpers import devices, scaling

GLOBAL_BATCH, STEPS, LEAST, TARGET = 512, 4, 3, 0.9


def today(plan, network, images, labels):
    """Return the towers of lesson 07 in today's code, as a function that takes a step."""
    import tensorflow as tf

    from mgpu_helpers import towers
    from mgpu_helpers.lessons import networks

    weights = networks.variables(network, device=plan.host)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(list(weights.values()))

    def tower(x, y):
        read = networks.read(weights)
        with tf.GradientTape() as tape:
            tape.watch(read)
            loss = networks.loss(y, networks.logits(network, read, x))
        return tape.gradient(loss, list(read.values()))

    @tf.function
    def step(x, y):
        shards = towers.split(x, len(plan)), towers.split(y, len(plan))
        gradients = towers.run(tower, plan.devices, *shards)
        mean = towers.average(gradients, device=plan.host)
        with tf.device(plan.host):
            optimizer.apply(mean, list(weights.values()))
        return mean[-1]

    x, y = tf.constant(images), tf.constant(labels)
    return lambda: step(x, y).numpy()


def feeding(plan, network, images, labels):
    """Return one step fed by feed_dict, and one fed by tf.data with prefetch, in a session."""
    import tensorflow.compat.v1 as tf

    from mgpu_helpers import towers
    from mgpu_helpers.lessons import networks

    def build(from_data):
        with tf.Graph().as_default() as graph:
            with tf.device(plan.host):
                if from_data:
                    x0 = tf.placeholder(tf.float32, images.shape, name="x0")
                    y0 = tf.placeholder(tf.int64, labels.shape, name="y0")
                    data = tf.data.Dataset.from_tensors((x0, y0)).repeat().prefetch(2)
                    batches = tf.data.make_initializable_iterator(data)
                    x, y = batches.get_next()
                else:
                    x = tf.placeholder(tf.float32, images.shape, name="x")
                    y = tf.placeholder(tf.int64, labels.shape, name="y")
            weights = networks.classic(network, device=plan.host)

            def tower(x, y):
                read = networks.read(weights)
                loss = networks.loss(y, networks.logits(network, read, x))
                return tf.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

            n = len(plan)
            gradients = towers.run(tower, plan.devices, towers.split(x, n), towers.split(y, n))
            mean = towers.average(gradients, device=plan.host)
            pairs = list(zip(mean, weights.values(), strict=True))
            step = tf.train.AdamOptimizer(1e-3).apply_gradients(pairs)
            init = tf.global_variables_initializer()
        session = tf.Session(graph=graph, config=plan.session_config(soft_placement=True))
        session.run(init)
        if from_data:
            session.run(batches.initializer, {x0: images, y0: labels})
        feed = {} if from_data else {x: images, y: labels}
        return session, step, feed

    return build(False), build(True)


CEILING = "one device", "one process", "two processes"  # of one batch, half a batch, a half each


def worker() -> None:
    """Be a one-core process: train on half the batch for every line that comes in."""
    from mgpu_helpers.lessons import networks

    setting = scaling.Setting(1, GLOBAL_BATCH // 2, "host")
    step = Step(devices.setup(1, exact=True), networks.tensorlight(width=0.25), setting)
    step()
    _workers.serve(lambda: clocked(lambda: [step() for _ in range(STEPS)])[0])


def clocked(function) -> tuple[float, float]:
    """Give the seconds on the wall that a call takes, and those of all processors."""
    wall, processors = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processors


def in_turn(ways):
    """Call everything in turn, and give the clocks of each round by name."""
    for way in ways.values():
        way()
    clocks = {name: lambda way=way: clocked(way) for name, way in ways.items()}
    taken = _rounds.in_turn(
        clocks, seconds=lambda clocks: clocks[0], least=LEAST,
        always=("call", "begins", "steps", "own loop", *CEILING),
    )  # fmt: skip
    wall, processors = ({name: [each[clock] for each in rounds] for name, rounds in taken.items()}
                        for clock in (0, 1))  # fmt: skip
    return wall, processors


def over(seconds, base):
    """Return one way's time over another's, for each round of both."""
    return [ours / theirs for ours, theirs in zip(seconds, base, strict=False)]


def taken_apart(wall, processors, loop, ends):
    """Return what a call of `fit` is made of, in ms, and what its pieces add up to, as ratios."""
    pieces = {
        name: round(1e3 * median(processors[name]), 1) for name in ("begins", "steps", "call")
    }
    pieces |= {"steps_in_call": STEPS, "call_on_the_wall": round(1e3 * median(wall["call"]), 1)}
    pieces["an_end_waits"] = [round(1e3 * each, 1) for each in (median(ends), max(ends))]
    sums = map(sum, zip(processors["begins"], processors["steps"], strict=True))
    ratios = [
        results.Ratio.of("fit: begins and steps, share of call", over(sums, processors["call"])),
        results.Ratio.of("fit: steps over own loop", over(processors["steps"], processors[loop])),
    ]
    return pieces, ratios


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2, exact=True)
    print(plan)
    import tensorflow as tf

    from mgpu_helpers import trace
    from mgpu_helpers.lessons import digits, networks

    images, labels = digits.load(GLOBAL_BATCH)
    network = networks.tensorlight(width=0.25)
    (session, step, feed), (fed, fed_step, nothing) = feeding(plan, network, images, labels)
    strategy = tf.distribute.MirroredStrategy(plan.devices)
    to_one = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())
    data = tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2)
    loops = _mirrored.loops(strategy, to_one, data, GLOBAL_BATCH, STEPS)
    fit = _mirrored.fit(strategy, data, STEPS)
    end, ends = fit.pop("end"), []
    workers = [_workers.start(__file__, "worker") for _ in range(2)]
    one = Step(plan, network, scaling.Setting(1, GLOBAL_BATCH, "host"))
    _workers.together(workers)

    def often(one):
        return lambda: [one() for _ in range(STEPS)]

    wall, processors = in_turn({
        "towers, graph": often(lambda: session.run(step, feed)),
        "towers, today": often(today(plan, network, images, labels)),
        "towers, tf.data": often(lambda: fed.run(fed_step, nothing)),
        "one device": often(one),
        "one process": lambda: _workers.together(workers[:1]),
        "two processes": lambda: _workers.together(workers),
        **loops, **fit, "end": lambda: ends.append(end()),
    })  # fmt: skip
    _workers.stop(workers)
    base = wall["towers, graph"]
    print(f"towers, graph: {median(base) / STEPS * 1e3:.1f} ms a step; {len(base)} rounds")
    best = min(loops, key=lambda name: median(wall[name]))
    named = {"mirrored, fit": wall["call"]} | {
        f"mirrored, {name}" if name in loops else name: seconds
        for name, seconds in wall.items()
        if name not in ("towers, graph", "one process", "end", *fit)
    }
    ratios = [results.Ratio.of("mirrored at its best: time over towers", over(wall[best], base), 1)]
    ratios += [results.Ratio.of(f"{name}: time over towers", over(seconds, base))
               for name, seconds in named.items()]  # fmt: skip
    alone, both = (over(wall[name], wall[other]) for name, other in (
        ("one device", "towers, graph"), ("one process", "two processes")))  # fmt: skip
    ceiling = [2 * each for each in both]
    ratios += [results.Ratio.of("two towers, speed-up", alone),
               results.Ratio.of("two processes, speed-up", ceiling),
               results.Ratio.of("towers, share of processes", over(alone, ceiling), TARGET),
    ]  # fmt: skip
    pieces, more = taken_apart(wall, processors, "own loop", ends[1:])
    print(*(ratios := [*ratios, *more]), f"best: {best}", pieces, sep="\n")
    _, traced = trace.session_step(session, step, feed)
    on_host = [op for op in traced.ops if op.device == plan.host]
    averaging = sum(op.length for op in on_host if op.type in ("AddN", "Mul", "RealDiv"))
    update = sum(op.length for op in on_host if op.type.startswith("ResourceApply"))
    share = averaging / traced.length
    work = " and ".join(f"{1 - traced.idle(device):.0%}" for device in plan.devices)
    print(f"averaging takes {share:.1%} of a step, the update {update / traced.length:.1%}; "
          f"the devices work {work} of it")  # fmt: skip
    card = {"best": best, "fit_ms": pieces, "averaging_share": round(share, 4), "rounds": len(base)}
    results.write("distribute", plan, card, ratios)
    _mirrored.leave()


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
