"""Towers against tf.distribute and one device, and what MirroredStrategy spends its time on.

Everything trains the same network on the same global batch, in turn, in one run. Ratios "time over
towers" above 1 say that the towers are faster.

`fit` is taken apart: how often it begins with the distributed dataset (counted), what a beginning
takes (timed by itself), what a step takes (from two calls of different length). Where the three add
up to a call of `fit`, nothing is left to explain.
"""

from __future__ import annotations

import os
import time
from statistics import median

import cores
from mgpu_helpers import devices, results

GLOBAL_BATCH, STEPS, ROUNDS = cores.GLOBAL_BATCH, 4, 8
LONG = 5  # times STEPS, in the long call of fit


def today(plan, network, images, labels):
    """Return the towers of lesson 07 in today's code, as a function of the batch."""
    import tensorflow as tf

    from mgpu_helpers import towers
    from mgpu_helpers.lessons import networks

    weights = networks.variables(network, device=plan.host)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(list(weights.values()))

    def tower(x, y):
        read = towers.read(weights)
        with tf.GradientTape() as tape:
            tape.watch(read)
            loss = networks.loss(networks.logits(network, read, x), y)
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


def keras_model():
    """Return the network of `networks.tensorlight(width=0.25)` without dropout, in Keras."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 5, padding="same"),
            layers.LeakyReLU(0.2),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-3), loss)
    return model


def mirrored(plan, images, labels):
    """Return ways to train with MirroredStrategy, each STEPS steps, and the strategy's dataset."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(plan.devices)
    to_one = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())
    whole = tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2)

    def step_of(strategy):
        with strategy.scope():
            model = keras_model()
            model.optimizer.build(model.trainable_variables)  # not in the step, where it fails

        def replica(x, y):
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                loss = tf.nn.compute_average_loss(each, global_batch_size=GLOBAL_BATCH)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        @tf.function
        def step(values):
            return strategy.reduce("SUM", strategy.run(replica, args=values), axis=None)

        return step, iter(strategy.experimental_distribute_dataset(whole))

    def loop_of(strategy):
        step, values = step_of(strategy)
        return lambda: [step(next(values)).numpy() for _ in range(STEPS)]

    def in_one_call():
        step, values = step_of(strategy)

        @tf.function
        def several(values):
            loss = tf.constant(0.0)
            for _ in tf.range(STEPS):
                loss = step(next(values))
            return loss

        return lambda: several(values).numpy()

    with strategy.scope():
        fitted = keras_model()

    def fit_of(steps):
        return lambda: fitted.fit(whole, steps_per_epoch=steps, verbose=0, shuffle=False)

    ways = {
        "mirrored, own loop": loop_of(strategy),
        "mirrored, own loop, to one device": loop_of(to_one),
        "mirrored, own loop, one call": in_one_call(),
        "mirrored, fit": fit_of(STEPS),
        "mirrored, fit, long": fit_of(LONG * STEPS),
        "begin": lambda: next(iter(strategy.experimental_distribute_dataset(whole))),
    }
    return ways, strategy


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
                read = towers.read(weights)
                loss = networks.loss(networks.logits(network, read, x), y)
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


def over(seconds, base):
    """Return one way's time over another's, round by round."""
    return [ours / theirs for ours, theirs in zip(seconds, base, strict=True)]


def taken_apart(strategy, ways, taken, long, begin):
    """Return the pieces of a call of `fit`, and what they add up to, as ratios."""
    from mgpu_helpers.lessons import replicas

    times = replicas.iterators(strategy, ways["mirrored, fit"])
    call = taken["mirrored, fit"]
    steps = [(a - b) / (LONG - 1) for a, b in zip(long, call, strict=True)]
    sums = [times * each + some for each, some in zip(begin, steps, strict=True)]
    pieces = {"begins": times, "begin_ms": round(1e3 * median(begin), 1),
              "step_ms": round(1e3 * median(steps) / STEPS, 1),
              "call_ms": round(1e3 * median(call), 1), "steps": STEPS}  # fmt: skip
    ratios = [
        results.Ratio.of("fit: pieces over the call", over(sums, call)),
        results.Ratio.of("fit: its step over the loop's", over(steps, taken["mirrored, own loop"])),
    ]
    return pieces, ratios


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    from mgpu_helpers import trace
    from mgpu_helpers.lessons import digits, networks

    images, labels = digits.load(GLOBAL_BATCH)
    network = networks.tensorlight(width=0.25)
    (session, step, feed), (fed, fed_step, nothing) = feeding(plan, network, images, labels)
    strategies, strategy = mirrored(plan, images, labels)

    def often(one):
        return lambda: [one() for _ in range(STEPS)]

    ways = {
        "towers, graph": often(lambda: session.run(step, feed)),
        "towers, today": often(today(plan, network, images, labels)),
        "one device, graph": often(cores.build(plan, 1)),
        "towers, tf.data": often(lambda: fed.run(fed_step, nothing)),
        **strategies,
    }
    taken = {name: [] for name in ways}
    for run in range(ROUNDS + 2):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            if run > 1:
                taken[name].append(time.perf_counter() - begin)
    base = taken.pop("towers, graph")
    print(f"towers, graph: {median(base) / STEPS * 1e3:.1f} ms a step; {ROUNDS} rounds")
    long, begin = taken.pop("mirrored, fit, long"), taken.pop("begin")
    ratios = [results.Ratio.of(f"{name}: time over towers", over(seconds, base))
              for name, seconds in taken.items()]  # fmt: skip
    pieces, more = taken_apart(strategy, strategies, taken, long, begin)
    print(*(ratios := [*ratios, *more]), sep="\n")
    print(pieces)
    _, traced = trace.session_step(session, step, feed)
    on_host = [op for op in traced.ops if op.device == plan.host]
    averaging = sum(op.length for op in on_host if op.type in ("AddN", "Mul", "RealDiv"))
    update = sum(op.length for op in on_host if op.type.startswith("ResourceApply"))
    share = averaging / traced.length
    work = " and ".join(f"{1 - traced.idle(device):.0%}" for device in plan.devices)
    print(f"averaging takes {share:.1%} of a step, the update {update / traced.length:.1%}; "
          f"the devices work {work} of it")  # fmt: skip
    card = {"fit": pieces, "averaging_share": round(share, 4), "rounds": ROUNDS}
    results.write("distribute", plan, card, ratios)


if __name__ == "__main__":
    main()
