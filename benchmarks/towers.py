"""Towers against the other ways to train on two devices, what averaging costs, and how to feed.

Everything trains the same network on the same global batch, in turn, in one run. Ratios above 1 say
that the towers are faster.
"""

from __future__ import annotations

import os
import time
from statistics import median

import cores
from mgpu_helpers import devices, results

GLOBAL_BATCH, STEPS, ROUNDS = cores.GLOBAL_BATCH, 4, 8


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
    """Return MirroredStrategy with a custom loop and with fit, as functions of some steps."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(plan.devices)
    whole = tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2)
    with strategy.scope():
        model, fitted = keras_model(), keras_model()
        model.optimizer.build(model.trainable_variables)  # not in the step, where it fails
    values = iter(strategy.experimental_distribute_dataset(whole))

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

    def loop():
        for _ in range(STEPS):
            step(next(values)).numpy()

    def fit():
        fitted.fit(whole, steps_per_epoch=STEPS, verbose=0, shuffle=False)

    return loop, fit


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


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    from mgpu_helpers import trace
    from mgpu_helpers.lessons import digits, networks

    images, labels = digits.load(GLOBAL_BATCH)
    network = networks.tensorlight(width=0.25)
    (session, step, feed), (fed, fed_step, nothing) = feeding(plan, network, images, labels)
    loop, fit = mirrored(plan, images, labels)

    def often(one):
        return lambda: [one() for _ in range(STEPS)]

    ways = {
        "towers, graph": often(lambda: session.run(step, feed)),
        "towers, today": often(today(plan, network, images, labels)),
        "one device, graph": often(cores.build(plan, 1)),
        "mirrored, own loop": loop,
        "mirrored, fit": fit,
        "towers, tf.data": often(lambda: fed.run(fed_step, nothing)),
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
    ratios = []
    for name, seconds in taken.items():
        times = [other / ours for other, ours in zip(seconds, base, strict=True)]
        ratios.append(results.Ratio.of(f"{name}: time over towers", times))
    print(*ratios, sep="\n")
    _, traced = trace.session_step(session, step, feed)
    on_host = [op for op in traced.ops if op.device == plan.host]
    averaging = sum(op.length for op in on_host if op.type in ("AddN", "Mul", "RealDiv"))
    update = sum(op.length for op in on_host if op.type.startswith("ResourceApply"))
    share = averaging / traced.length
    work = " and ".join(f"{1 - traced.idle(device):.0%}" for device in plan.devices)
    print(f"averaging takes {share:.1%} of a step, the update {update / traced.length:.1%}; "
          f"the devices work {work} of it")  # fmt: skip
    numbers = {"towers, graph": 1.0}
    numbers |= {name: ratio.value for name, ratio in zip(taken, ratios, strict=True)}
    card = {"times_of_the_towers": numbers, "averaging_share": round(share, 4), "rounds": ROUNDS}
    results.write("towers", plan, card, ratios)


if __name__ == "__main__":
    main()
