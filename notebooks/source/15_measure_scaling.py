# %% [markdown]
# # Measure scaling
#
# You have trained on one GPU, and now you have two. Is `fit` faster, by how much, and is that the
# second GPU or chance?
#
# **In this lesson** you measure how many times as fast your own `fit` trains on more devices, so
# that the number can be believed, and find out what holds it back.
#
# **You will learn** to
# - read strong and weak scaling from the times of your `fit`,
# - tell a difference from chance, and prove that the work stayed the same,
# - recognize a step that is too small, and an input that is too slow,
# - see what a growing batch does to the accuracy.
#
# **You need** [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import time
import warnings
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, timing, towers
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_15 as checks

layers, sync = keras.layers, tf.test.experimental.sync_devices
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
warnings.filterwarnings("ignore", "`shuffle=True`")  # fit keeps the order of a Dataset

# %% [markdown]
# ## The lines to paste
#
# `build_on(n)` makes a small network on n devices, as in [[07]]. Put your own model in its place:

# %%
def build_on(n):
    keras.utils.set_random_seed(8)
    with fit.strategy(plan.devices[:n]).scope():
        convolution = partial(layers.Conv2D, padding="same", activation="relu")
        stack = [convolution(32, 7), layers.MaxPool2D(4), convolution(16, 3), layers.Flatten()]
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile("sgd", entropy)
    return model


# %% [markdown]
# `ready_batch` repeats one batch; let it load your data. `fit` takes some time to start, which a
# long training does not feel, so the clock of `seconds_of` starts after two steps. At both ends
# `sync` waits until the devices have finished:

# %%
STEPS = 4


def ready_batch(images, times=2 + STEPS):
    return fit.batches(*digits.load(images), batch_size=images).cache().repeat(times)


def seconds_of(model, data, steps=STEPS):
    def look(batch, logs):
        if batch in (1, 1 + steps):  # counted from 0
            sync()
            seen.append(time.perf_counter())

    seen, clock = [], keras.callbacks.LambdaCallback(on_train_batch_end=look)
    model.fit(data, verbose=0, callbacks=[clock])
    return (seen[1] - seen[0]) / steps


# %% [markdown]
# Which is faster for the same batch, one device or all? The batch has 64 images times the
# number of devices. `in_turn` lets one and all train by turns, so a machine that slows down slows
# both: once to warm up, and then fifteen times:

# %% tags=["nbval-ignore-output"]
def in_turn(runs):
    seconds = {name: [] for name in runs}

    def ask(name):
        seconds[name].append(seconds_of(*runs[name]))

    timing.several({name: partial(ask, name) for name in runs}, warmup=1, repeats=15)
    return {name: timing.Timing(tuple(each[1:])) for name, each in seconds.items()}


most = min(len(plan), plan.cores)  # devices that share a core gain nothing
models, data = {n: build_on(n) for n in (1, most)}, ready_batch(64 * most)
took = in_turn({n: (model, data) for n, model in models.items()})
names = ("one device", f"{most} devices")
print(f"{64 * most} images a step:", timing.Comparison(took[1], took[most], names))

# %% [markdown]
# The line says how many times as fast: the median of fifteen ratios, one for each pair of times,
# with their middle half in brackets. They count as different if both numbers in brackets, rounded
# to two decimals, are above 1 or both below. If not, the line says "cannot be told apart", and its
# ratio is the time of one device, divided by that of all.
#
# | | |
# |---|---|
# | **Use it when** | you have more devices, or want to ask for some |
# | **It costs** | some runs of a few steps for each number of devices: minutes |
# | **Instead** | `fit.explain(model, data)`, which says where the time of one training goes |
#
# ## Strong and weak scaling
#
# More devices are used in two ways:
#
# - **Strong scaling** keeps the global batch, so n devices should take an nth of the time.
# - **Weak scaling** keeps the per-device batch, so n devices should take the same time, for n times
#   the images.
#
# The **speed-up** is the images a second of n devices, divided by those of one. The **efficiency**
# is the speed-up, divided by n. If one device takes 8 s and two take 5 s for the same batch, the
# efficiency is (8 / 5) / 2 = 80 %.
#
# ![Three devices share a batch in strong scaling, with an efficiency of 74 %, and have a batch each
# in weak scaling, with 94 %. Each step ends in a fixed part.](pictures/15_two_ways.svg)
#
# The dashed line is the time that n devices should take. Grey is the **fixed part** of a step,
# which does not depend on the batch. A step ends after the dashed line: the exchange of gradients
# lengthens the fixed part, and strong scaling does not divide it.
#
# Which way looks better, and for which batch? The next cell measures both, with 4 and with 64
# images for each device. `took[n, b]` are the times of n devices with b images for each. For strong
# scaling, one device also trains on the whole batch. For weak scaling, the chart multiplies the
# ratio of the times by n:

# %%
few, many = 4, 64
layouts = sorted({each for b in (few, many) for each in [(1, b), (1, most * b), (most, b)]})
took = in_turn({(n, b): (models[n], ready_batch(n * b)) for n, b in layouts})

# %% tags=["varies", "nbval-ignore-output", "cover"]
drawings.speedups({
    "strong": {b: timing.Comparison(took[1, most * b], took[most, b]) for b in (few, many)},
    "weak": {b: timing.Comparison(took[1, b], took[most, b]) for b in (few, many)},
}, devices=most)  # fmt: skip
plt.show()

# %% [markdown]
# Each bar is the middle half of fifteen ratios; their median stands at the right. A bar is grey if
# it cannot be told apart from 1. In strong scaling the large batch gains more than the small one;
# on a GPU perhaps neither gains. With 4 images for each, weak scaling looks better than strong
# scaling, because a larger batch also helps one device. Only strong scaling shows what the others
# add.
#
# ## A number that can be believed
#
# How often does chance alone make a difference? The next cell makes up a thousand comparisons
# of two equal steps, whose times scatter by 3 %, or by 10 % as on a busy machine:

# %%
def told_apart(pairs, scatter):
    rng = np.random.default_rng(seed=0)
    drawn = 1 + scatter * rng.standard_normal([1000, 2, pairs])
    made = [timing.Comparison(timing.Timing(tuple(a)), timing.Timing(tuple(b))) for a, b in drawn]
    return np.mean([one.distinguishable for one in made])


for pairs in (5, 8, 15, 20):
    steady, busy = told_apart(pairs, 0.03), told_apart(pairs, 0.1)
    print(f"{pairs:2} pairs: {steady:.0%} found a difference, and {busy:.0%} on a busy machine")

# %% [markdown]
# With eight pairs at least one comparison in nine finds a difference that is not there. So take
# fifteen pairs, and twenty on a busy machine.
#
# ## Proof: the same work
#
# Less work is faster, too. So the next cells check that four steps on all devices change the
# weights as one device does, within a thousandth of the change:

# %%
def moved(n, steps=STEPS):
    model, data = build_on(n), fit.batches(*digits.load(840), batch_size=840).repeat(STEPS)
    before = model.get_weights()
    model.fit(data, steps_per_epoch=steps, verbose=0)
    images = 840 * int(model.optimizer.iterations.numpy())
    return [after - b for after, b in zip(model.get_weights(), before)], images


def same(ours, theirs):
    apart = max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))
    return "the same" if apart < 1e-3 else "not the same"


# %%
alone, images = moved(1)
print(f"one device: {images:,} images")
shared, images = moved(len(plan))
print(f"all devices: {images:,} images, {same(shared, alone)} to one part in a thousand")

# %% [markdown]
# ## What holds it back: a step that is too small
#
# A step takes some time for each image, and its fixed part. Say that it takes 3 ms with 4 images
# and 9 ms with 64. Then an image takes 6 / 60 = 0.1 ms, and the rest, 3 - 4 · 0.1 = 2.6 ms, is the
# fixed part. What share of our own steps is the fixed part?

# %% tags=["nbval-ignore-output"]
for n, name in zip(models, names):
    times = {b: took[n, b].median for b in (few, many)}
    fixed = min(*times.values(), times[few] - few * (times[many] - times[few]) / (many - few))
    shares = [f"{fixed / t:.0%} of {1e3 * t:.1f} ms with {b}" for b, t in times.items()]
    print(f"{name}: {1e3 * fixed:.1f} ms,", ", ".join(shares))

# %% [markdown]
# The fixed part is spent on Python, on starting operations, on updating the weights, and with more
# devices on the exchange. With 4 images it is most of a step, on a GPU also with 64. **The remedy**
# is a larger batch. If a step with 64 grew by more than its fixed part did, its images take longer:
# cores share memory.
#
# ## What holds it back: an input that is too slow
#
# Here a batch of 120 takes 40 ms to read. Compare a batch that lies ready with batches read one by
# one, and four at a time:

# %% tags=["nbval-ignore-output"]
READ, SIZE, MANY = 0.04, 120, 18


def read(x, y):
    tf.numpy_function(lambda: np.int64(time.sleep(READ) or 0), [], tf.int64)
    return x, y


ready = ready_batch(SIZE, times=MANY)
options = tf.data.Options()
options.threading.private_threadpool_size = 4  # who waits needs no core: four threads
four = ready.map(read, num_parallel_calls=4).with_options(options)
inputs = {"ready": ready, "one by one": ready.map(read), "four at a time": four}
print("devices", *(f"{name:>15}" for name in inputs), " images/s")
for n, model in models.items():
    model.fit(ready.take(2), verbose=0)  # to warm up
    rates = {name: SIZE / seconds_of(model, data, MANY - 2) for name, data in inputs.items()}
    print(f"{n:7}", *(f"{each:15,.0f}" for each in rates.values()))

# %% [markdown]
# One by one, the input gives 120 / 0.04 = 3,000 images a second at most, for any number of devices;
# four at a time, 12,000. Computing, the column `ready`, comes on top or is the other limit.
#
# To recognize a slow input, **time `fit` on one batch that lies ready.** If your training is much
# slower, keep what was read (`cache`), or read several batches at a time (`num_parallel_calls`).
#
# ## What a growing batch does to the accuracy
#
# Weak scaling has a price that no clock shows: with a larger batch the same examples give fewer
# updates. `accuracy` is the share of unseen digits that a small network recognizes after four
# passes over 1,437 others. The batch grows from 16 to 128, as on eight devices. The **linear
# scaling rule** makes the learning rate eight times as high, too:

# %%
images, labels = digits.load()
unseen, right = digits.load(test=True)
with tf.device(plan.devices[0]):
    stack = [layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10)]
    net = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    net.compile("sgd", entropy, steps_per_execution=40)


def accuracy(batch, rate, seed):
    keras.utils.set_random_seed(seed)
    net.set_weights(keras.models.clone_model(net).get_weights())
    net.optimizer.learning_rate = rate
    data = fit.batches(images, labels, batch_size=batch, shuffle=True, seed=seed)
    net.fit(data.repeat(4), verbose=0)
    return np.mean(net(unseen).numpy().argmax(1) == right)


# %% tags=["varies", "nbval-ignore-output"]
ways = [(16, 0.02), (128, 0.02), (128, 0.16)]
with tf.device(plan.devices[0]):
    reached = {way: [accuracy(*way, seed) for seed in range(4)] for way in ways}
drawings.seeds({"batch {}, rate {}".format(*way): found for way, found in reached.items()})
plt.show()

# %% [markdown]
# Each point is one of four seeds, and each red line is their mean. The larger batch recognizes
# fewer digits, and the rule makes up for most of that. But eight times a high rate can be too high
# to train at all.
#
# ## Break it
#
# In Horovod, where each device takes a batch of its own, you divide the steps by the devices. Keras
# takes the global batch, so with divided steps `fit` trains on fewer images, and n devices look n
# times as fast even if the others add nothing. The proof notices:

# %%
hurried, images = moved(len(plan), steps=max(1, STEPS // len(plan)))
print(f"all devices, steps divided: {images:,} images, {same(hurried, alone)}")

# %% [markdown]
# ## On GPUs
#
# On GPUs Keras compiles with XLA by itself, under a strategy of `fit` what each GPU does between
# two exchanges. So time also your model on one GPU without a strategy: two GPUs have to beat that.
# A GPU hardly speeds up the fixed part, so raise the batch until the images a second no longer
# grow. A second GPU can make a small network slower: MNIST took 286 s with `MirroredStrategy` on
# two GTX 1080 Ti, and 197 s on one ([TensorFlow issue 35095](../docs/sources.md), olk, 2019).
#
# ## With a model of another kind
#
# For a step that is a function, `timing.several` times its calls, which have to wait for the
# devices. The next cell times `train_on_batch` in towers ([[09]]), for a network that reads
# sentences:

# %% tags=["nbval-ignore-output"]
def my_step(n, batch):
    with tf.device(plan.devices[0]):
        words = layers.Embedding(500, 64)
        reader = keras.Sequential([keras.Input([20], dtype="int32"), words, layers.LSTM(64),
                                   layers.Dense(10)])  # fmt: skip
    sentences = np.arange(batch * 20, dtype="int32").reshape(-1, 20) % 500
    reader.compile("sgd", entropy)
    fit.use(reader, plan.devices[:n])
    return lambda: (reader.train_on_batch(sentences, sentences[:, 0] % 10), sync())


times = timing.several({n: my_step(n, 256 * most) for n in models}, warmup=1, repeats=15)
print(f"{256 * most} sentences a step:", timing.Comparison(times[1], times[most], names))

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution, closed until you click *1 cell hidden*.
#
# **1.** Write `efficiency(seconds, kind)`. `seconds` is a dictionary with the time of a step for
# some numbers of devices, 1 among them. `kind` is `"strong"` or `"weak"`. Return a dictionary with
# the efficiency for each of these numbers, not rounded.

# %% tags=["exercise"]
def efficiency(seconds, kind):
    return {n: seconds[1] / (n * t) for n, t in seconds.items()}


checks.efficiency(efficiency)

# %% tags=["solution"]
def efficiency(seconds, kind):
    shared = {n: n if kind == "strong" else 1 for n in seconds}
    return {n: seconds[1] / (shared[n] * t) for n, t in seconds.items()}


checks.efficiency(efficiency)

# %% [markdown]
# **2.** Write `differ(a, b)`. `a` and `b` are lists of seconds of two steps that were timed in
# turn, so `a[0]` and `b[0]` are a pair. Return True if the middle half of the ratios, from the
# quantile 0.25 to the quantile 0.75 (`np.quantile`), lies on one side of 1, and False if not.
# Unlike `timing.Comparison`, do not round.

# %% tags=["exercise"]
def differ(a, b):
    return np.median(a) != np.median(b)


checks.differ(differ)

# %% tags=["solution"]
def differ(a, b):
    low, high = np.quantile(np.divide(a, b), [0.25, 0.75])
    return low > 1 or high < 1


checks.differ(differ)

# %% [markdown]
# ## What we saw
#
# - In strong scaling a small batch gained nothing: devices share its images, not the fixed part of
#   a step.
# - On a steady machine, two equal steps counted as different in 11 % of the comparisons of 8 pairs,
#   and in 1 % of those of 15.
# - Four steps on one batch, 3,360 images in all, changed the weights alike on one device and all.
# - An input that read batches one by one set the pace, nearly whatever the number of devices.
# - A larger batch cost accuracy. Eight times the rate made up for most of that.
#
# ## In practice
#
# Time one batch that lies ready, on one device and on all. If the devices gain little, raise the
# batch, and watch the accuracy. If the ready batch gains and your training does not,
# mend the input. Beside a time, write the batch, the devices, and the kind of scaling.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# In 2016 the author of the [tensorlight notebook](../docs/sources.md#tensorlight) trained in towers
# on TitanX GPUs. Of these five runs the last three have one layout:

# %%
import tensorflow.compat.v1 as tf1

from mgpu_helpers.lessons import networks, published

for row in [*published.TENSORLIGHT[:4], published.TENSORLIGHT_APART["third run"]]:
    share = 1e6 * row.seconds / row.setting.global_batch_size
    print(f"{row.setting!r:40}{1e3 * row.seconds:5.1f} ms a step,{share:4.0f} µs an example")

# %% [markdown]
# In two of the three runs on two GPUs an example took longer than in the best layout of one. One
# reason was **the place of the variables**. On the host, they made a step on one GPU take 32.5 ms
# in place of 18.5, because weights and gradients cross in every step.
#
# `start` builds such towers on `where`, with variables, average and Adam on `home`.
# `colocate_gradients_with_ops` computes a gradient on its operation's device. Three layouts should
# give the gradients of today's code:

# %%
network, first = networks.tensorlight(width=1 / 16), plan.devices[0]


def start(where, home, size):
    with tf.Graph().as_default() as graph, tf.device(home):
        x = tf1.placeholder(tf.float32, [size, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [size], name="y")
        weights = networks.classic(network, device=home)

        def tower(x, y):
            read = networks.read(weights)
            loss = networks.loss(y, networks.logits(network, read, x))
            return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

        each = towers.run(tower, where, *zip(*towers.split((x, y), len(where))))
        averaged = towers.average(each, device=home)
        adam = tf1.train.AdamOptimizer(1e-4)
        train = adam.apply_gradients(zip(averaged, weights.values()))
        session = tf1.Session(graph=graph, config=plan.session_config(devices=len(where)))
        session.run(tf1.global_variables_initializer())
    return session, averaged, train


# %%
x, y = digits.load(840)
today = networks.variables(network, device=first)
with tf.device(first), tf.GradientTape() as tape:
    loss = networks.loss(y, networks.logits(network, today, x))
wanted = [each.numpy() for each in tape.gradient(loss, list(today.values()))]
layouts = {"all devices": (plan.devices, first), "variables on the host": (plan.devices, plan.host),
           "CPU only": ([plan.host], plan.host)}  # fmt: skip
for name, layout in layouts.items():
    session, *both = start(*layout, len(x))
    found, _ = session.run(both, {"x:0": x, "y:0": y})
    print(f"{name:21} {len(found)} gradients, {same(found, wanted)} to one part in a thousand")
