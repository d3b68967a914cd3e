# %% [markdown]
# # Measure scaling
#
# You add a second GPU, and your training takes as long as before. The cause may be the batch, the
# input, the link between the GPUs, or the way you timed it. Each of them has a remedy of its
# own.
#
# **In this lesson** you time a training step so that the number can be believed, draw how it
# scales, and find out what holds it back.
#
# **You will learn** to
# - tell a difference from noise,
# - measure strong and weak scaling, and prove that the work stayed the same,
# - recognize a step that is too small, and an input that is too slow,
# - see what a growing batch does to the accuracy,
# - repeat a published table of eleven layouts.
#
# **You need** [[00]], [[08]] and [[09]].

# %%
from mgpu_helpers import devices

plan = devices.setup(3)
plan

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, scaling, timing, towers, trace
from mgpu_helpers.lessons import digits, drawings, networks, published
from mgpu_helpers.lessons.checks import lesson_15 as checks

# %% [markdown]
# ## The trouble
#
# In 2016 the author of the [tensorlight notebook](../docs/sources.md) trained a network for digits
# on TitanX GPUs and wrote down the times. Compare what an example took on one GPU and on two:

# %%
for row in (published.TENSORLIGHT[0], published.TENSORLIGHT[3]):
    example = row.seconds / row.layout.global_batch_size
    print(f"{row.layout!r:39}{1e3 * row.seconds:.1f} ms a step, {1e6 * example:.0f} µs an example")

# %% [markdown]
# The second GPU gained nothing: each had 128 examples, and yet the step took twice as long. Is the
# batch too small, or is it the place of the variables, which changed as well? By the end of this
# lesson you will know.
#
# ## A step to measure
#
# The network is the one of that notebook, an eighth as wide. One step is the towers of [[09]] in
# today's code: each device computes the gradients of its shard, and the first device averages them
# and updates the weights.

# %%
network = networks.tensorlight(width=0.125)
first = plan.devices[0]


def gradients(weights, x, y, net=network):
    read = networks.read(weights)
    with tf.GradientTape() as tape:
        tape.watch(read)
        loss = networks.loss(y, networks.logits(net, read, x))
    return tape.gradient(loss, list(read.values()))


def descend(weights, shards):
    where = plan.devices[: len(shards)]
    each = towers.run(lambda shard: gradients(weights, *shard), where, shards)
    mean = towers.average(each, device=first)
    with tf.device(first):
        for weight, gradient in zip(weights.values(), mean):
            weight.assign_sub(0.01 * gradient)


# %% [markdown]
# `make_step(n)` makes a step on n devices. `timed` runs it on a batch that lies ready on the host,
# and waits for its end. On a GPU a call returns before the work is done, and a clock without
# `sync_devices` measures the call only.

# %%
def make_step(n):
    weights = networks.variables(network, device=first)

    @tf.function
    def step(x, y):
        descend(weights, towers.split((x, y), n))

    return step


def batch_of(size):
    with tf.device(plan.host):
        return tuple(tf.constant(part) for part in digits.load(size))


def timed(step, size):
    batch = batch_of(size)

    def run():
        step(*batch)
        tf.test.experimental.sync_devices()

    return run


# %% [markdown]
# ## A number that can be believed
#
# Here are two steps that are made alike, so they should take the same time. First a single run of
# each, fresh from the start, and then one more of each:

# %% tags=["nbval-ignore-output"]
twins = [timed(make_step(1), 128) for _ in range(2)]
for name in ("first runs", "second runs"):
    seconds = [timing.measure(run, warmup=0, repeats=1).median for run in twins]
    print(f"{name:12}", *(f"{1e3 * each:7.1f} ms" for each in seconds))

# %% [markdown]
# The first run takes many times as long as a later one, because TensorFlow builds the step's graph
# then. The second runs differ too, by chance, and one run of each does not say how far chance goes.
# So a comparison needs a **warm-up** and **repeats**. The two steps have to run **in turn**, so
# that a machine that slows down slows both. Here are twenty pairs:

# %%
timing.compare(*twins, names=("the one", "the other"))

# %% [markdown]
# The number is the median of the ratios of the pairs. In brackets is their middle half. Two steps
# count as different if the middle half lies on one side of 1. How often does chance tell twins
# apart? The next cell makes up a thousand comparisons of twins whose times scatter by 3 %:

# %%
def told_apart(pairs, comparisons=1000):
    rng = np.random.default_rng(seed=0)
    drawn = 1 + 0.03 * rng.standard_normal([comparisons, 2, pairs])
    made = [timing.Comparison(timing.Timing(tuple(a)), timing.Timing(tuple(b))) for a, b in drawn]
    return np.mean([one.distinguishable for one in made])


# %%
for pairs in (5, 8, 15, 20):
    print(f"{pairs:2} pairs: {told_apart(pairs):.0%} of the comparisons found a difference")

# %% [markdown]
# With eight pairs every tenth comparison reports a difference that is not there. Twenty pairs, the
# default of `timing.compare`, are wrong about once in a hundred. So a small ratio such as 1.04 from
# a few pairs is no finding yet: take more pairs.
#
# ## Strong and weak scaling
#
# There are two ways to use more devices. The grey part is averaging the gradients:
#
# ![The time of a step. One device: one batch. Strong scaling: three devices share the same batch,
# each takes a third of the time, and gradients are averaged. Weak scaling: three devices with a
# batch each take the whole time, and gradients are averaged.](pictures/15_two_ways.svg)
#
# - **Strong scaling** keeps the global batch. Each device gets less to do, so n devices should take
#   an nth of the time.
# - **Weak scaling** keeps the per-device batch. The global batch grows, so n devices should take
#   the same time, for n times the examples.
#
# **Efficiency** is the speed-up, in examples a second, divided by the number of devices. On small
# numbers: one device takes 8 s. If two devices take 5 s for the same batch, the efficiency is
# (8 / 5) / 2 = 80 %. If they take 10 s for twice the batch, it is 8 / 10 = 80 % as well.
#
# Now the step. 840 examples divide over up to 8 devices, so they are the batch for strong scaling.
# For weak scaling each device gets 120. More devices than cores would share a core, so they are
# left out here:

# %% tags=["nbval-ignore-output"]
steps = {n: make_step(n) for n in range(1, len(plan) + 1)}
counts = [n for n in steps if n <= plan.cores]
strong = timing.several({n: timed(steps[n], 840) for n in counts}, warmup=1, repeats=8)
weak = timing.several({n: timed(steps[n], 120 * n) for n in counts}, warmup=1, repeats=8)
print("devices   strong, ms   examples/s   weak, ms   examples/s")
for n in counts:
    a, b = strong[n].median, weak[n].median
    print(f"{n:7}{1e3 * a:13.1f}{840 / a:13,.0f}{1e3 * b:11.1f}{120 * n / b:13,.0f}")

# %% [markdown]
# The chart shows the efficiencies. The bands are the middle halves of the pairs. Look at how far
# each curve stays below the dashed line:

# %%
def curve(times, divisors):
    pairs = [timing.Comparison(times[1], times[n]) for n in counts]
    middle, low, high = np.transpose([(p.ratio, p.low, p.high) for p in pairs]) / divisors
    return counts, middle, low, high


# %% tags=["varies", "cover"]
charts.efficiency({"strong": curve(strong, counts), "weak": curve(weak, 1)})
plt.show()

# %% [markdown]
# What a curve loses is time in which no shard is computed: starting the step, the average, the
# update. (With a single device in the plan there is nothing to see.)
#
# In `cores` mode one more thing pulls the curves down. All functions of a process share one pool of
# threads, so "one device" may compute two gradients of a layer on two idle cores. A session can
# have threads of its own: in the graph further down, one device is one core.
#
# ## Proof: the same work
#
# A step that does less is faster too. So a step on all devices has to change the weights as a step
# on one device does. The difference between the two changes is divided by the change itself:

# %%
def moved(shards):
    weights = networks.variables(network, device=first)
    before = [weight.numpy() for weight in weights.values()]
    descend(weights, shards)
    return [weight.numpy() - b for weight, b in zip(weights.values(), before)]


def difference(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


batch = batch_of(840)
alone, shared = moved([batch]), moved(towers.split(batch, len(plan)))
print("moved at all:", all(np.abs(each).max() > 0 for each in alone))
print("the same to one part in a thousand:", difference(shared, alone) < 1e-3)

# %% [markdown]
# Every weight moved, and with all devices as far as with one.
#
# ## What holds it back: a step that is too small
#
# Here are ever larger batches, each on one device and on all. Look at the time of an example on one
# device, and at the speed-up:

# %% tags=["nbval-ignore-output"]
print("batch   one, ms   µs an example   all, ms speed-up")
for size in (len(plan), 120, 840):
    pair = timing.compare(*(timed(steps[n], size) for n in (1, len(plan))), warmup=1, repeats=5)
    one, every = pair.a.median, pair.b.median
    print(f"{size:5}{1e3 * one:10.2f}{1e6 * one / size:16.0f}{1e3 * every:10.2f}{one / every:9.2f}")

# %% [markdown]
# Part of a step is the same for any batch: starting the operations, and updating the weights. In
# the first row hardly anything else is measured, so an example is expensive there. More devices
# divide the arithmetic only; each of them has the fixed part in full. **The remedy** is a larger
# per-device batch. On GPUs, where the arithmetic is much faster and the fixed part is not, it has
# to be larger still.
#
# ## What holds it back: an input that is too slow
#
# A real training has to read its batches. This input takes 40 ms for each batch of 120, as if from
# a disk. Three inputs are compared, with one device and with all: the batch that lay ready until
# here, the slow input, and the slow input with `prefetch`, which reads the next batch while the
# devices work.

# %%
READ, STEPS, SIZE = 0.04, 8, 120
ready = batch_of(SIZE)


def reading():
    for _ in range(STEPS):
        time.sleep(READ)
        yield ready


kinds = tuple(tf.type_spec_from_value(part) for part in ready)
slow = tf.data.Dataset.from_generator(reading, output_signature=kinds)


def pace(step, batches):
    start = time.perf_counter()
    feed = iter(batches)
    for _ in range(STEPS):
        step(*next(feed))
    tf.test.experimental.sync_devices()
    return STEPS * SIZE / (time.perf_counter() - start)


# %% tags=["nbval-ignore-output"]
inputs = {"ready": [ready] * STEPS, "slow": slow, "slow, ahead": slow.prefetch(2)}
print("devices", *(f"{name:>12}" for name in inputs), " examples/s")
for n in (1, len(plan)):
    steps[n](*ready)  # the first run builds the graph
    rates = [pace(steps[n], batches) for batches in inputs.values()]
    print(f"{n:7}", *(f"{each:12,.0f}" for each in rates))
    assert max(rates[1:]) <= SIZE / READ

# %% [markdown]
# The input gives 120 / 0.04 = 3,000 examples a second. No number of devices exceeds that, as the
# cell asserts. With the slow input the devices wait most of the time, so more of them hardly help.
# Reading ahead hides their work, and then the reading alone sets the pace.
#
# This is how to recognize it: **time the step on one batch that lies ready.** If the training with
# its input is much slower than that, fix the input first: read ahead, decode in parallel
# (`map(..., num_parallel_calls=tf.data.AUTOTUNE)`), or keep what was decoded (`cache`).
#
# ## What a growing batch does to the accuracy
#
# Weak scaling has a price that no clock shows: with a larger batch the same examples give fewer
# updates. Here is a tiny network, trained by plain gradient descent with four passes over the
# digits. `accuracy` gives the share of unseen digits that it then recognizes. Chance has a part in
# that, too: `order` says in which of many orders the examples come.
#
# There are ten digits, so 10 % is guessing. The batch of 16 grows to 128, as with eight devices. A
# common rule lets the rate grow with the batch: eight times the batch, eight times the rate. Look
# at whether that helps at a low rate, in three orders, and at a higher one:

# %%
images, labels = digits.load()
tiny = networks.tensorlight(width=1 / 16)
weights = networks.variables(tiny, device=first)
untrained = [weight.numpy() for weight in weights.values()]


@tf.function
def descent(x, y, rate):
    with tf.device(first):
        for weight, gradient in zip(weights.values(), gradients(weights, x, y, tiny)):
            weight.assign_sub(rate * gradient)


def accuracy(batch, rate, order=0):
    for weight, value in zip(weights.values(), untrained):
        weight.assign(value)
    for epoch in range(4):
        for x, y in digits.batches(images, labels, batch, seed=4 * order + epoch):
            descent(x, y, tf.constant(rate, tf.float32))
    x, y = digits.load(test=True)
    return float(networks.accuracy(networks.logits(tiny, weights, x), y))


# %%
orders = {(16, 0.02): 1, (128, 0.02): 3, (128, 0.16): 3, (16, 0.1): 1, (128, 0.8): 1}
reached = {}
for sized, rate in orders:
    for order in range(orders[sized, rate]):
        reached[f"batch {sized}, rate {rate}, order {order}"] = accuracy(sized, rate, order)
small, *large, _, too_fast = reached.values()
print("batch 128 falls behind, in each order:  ", max(large[:3]) < small)
print("eight times the rate helps, on average: ", np.mean(large[3:]) > np.mean(large[:3]))
print("it makes up for the batch, in each:     ", min(large[3:]) >= small)
print("eight times the higher rate is a failure:", too_fast < 0.2)
drawings.accuracies(reached)
plt.show()

# %% [markdown]
# At the low rate the larger batch falls behind. Eight times the rate helps on average, and does not
# always make up for it: how much it gains depends on the order of the examples, so one training
# proves little. At the higher rate the small batch learns more, and eight times the rate is too
# much. The rule has a limit, and only the accuracy shows where it is.
#
# ## The same in a graph
#
# The tensorlight notebook is written with graphs and sessions, and so is this section:
#
# - `in_towers` puts a tower on each device of `where`. Variables, average and update are on `home`,
#   which is a device or the host.
# - `split` is the model split of [[12]]: `conv1` is on the first device, and the rest on the
#   second. With `colocate=False` the gradients are not placed where their operations are.

# %%
def in_towers(where, home, x, y):
    weights = networks.classic(network, device=home)

    def tower(x, y):
        read = networks.read(weights)
        loss = networks.loss(y, networks.logits(network, read, x))
        return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

    each = towers.run(tower, where, *zip(*towers.split((x, y), len(where))))
    return zip(towers.average(each, device=home), weights.values())


def split(where, colocate, x, y):
    stages = networks.stages(network, ["conv2"], where)
    for stage in stages:
        with tf.device(stage.device):
            x = stage.function(stage.weights, x)
    with tf.device(where[1]):
        loss = networks.loss(y, x)
    weights = [weight for stage in stages for weight in stage.weights.values()]
    with tf.device(where[0]):
        return zip(tf1.gradients(loss, weights, colocate_gradients_with_ops=colocate), weights)


# %% [markdown]
# `start` builds one of them, with Adam as in the notebook. `threads` is the number of devices that
# work at the same time. In `cores` mode the session gets that many threads, so one device is one
# core.
#
# From the same weights and the same batch, the graph on all devices has to compute the gradients by
# which today's code moved the weights on one device:

# %%
def start(size, home, threads, build, *more):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [size, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [size], name="y")
        pairs = list(build(*more, x, y))
        with tf.device(home):
            for i, (gradient, _) in enumerate(pairs):
                tf.identity(gradient, name=f"gradient_{i}")
            tf1.train.AdamOptimizer(1e-4).apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    config = plan.session_config(devices=threads, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run("init")
    return session


# %%
x, y = digits.load(840)
session = start(840, first, len(plan), in_towers, plan.devices, first)
classic = session.run([f"gradient_{i}:0" for i in range(len(alone))], {"x:0": x, "y:0": y})
off = difference([-0.01 * each for each in classic], alone)
print(len(classic), "gradients, the same to one part in a thousand:", off < 1e-3)

# %% [markdown]
# The graph and today's code compute the same gradients.
#
# ## The published table, and yours
#
# `published` holds the notebook's eleven layouts: what 2000 steps took on TitanX GPUs, and what the
# driver showed as memory of each GPU. Two GPUs with 128 examples each were run twice; the table has
# the second run.

# %%
theirs = {repr(row.layout): row for row in published.TENSORLIGHT}
theirs["model split, gradients colocated"] = published.TENSORLIGHT_SPLIT
theirs["model split, gradients not colocated"] = published.TENSORLIGHT_APART["not colocated"]
theirs["CPU only"] = published.TENSORLIGHT_APART["CPU only"]
print(f"{'layout':40}{'s':>6}{'ms a step':>11}{'µs an example':>15}  MiB")
for name, row in theirs.items():
    share = 1e6 * row.seconds / row.layout.global_batch_size
    print(f"{name:40}{row.total:6.1f}{1e3 * row.seconds:11.1f}{share:15.0f}  {row.memory}")

# %% [markdown]
# This answers the question of the beginning:
#
# - **The place of the variables** was most of it. With them on the host, a step on one GPU took
#   32.5 ms instead of 18.5: 26.6 MB of weights go to the GPU in every step, and as many bytes of
#   gradients come back. The second GPU made it 37.8. On three GPUs with 256 each, the host cost 13
#   ms a step.
# - **A larger batch** spreads that cost over more examples. On two GPUs an example took 148 µs with
#   128 to each, 107 with 256, and 82 with 512.
#
# (Why 4285 MiB on a single GPU and 1214 on each of two? The allocator probably took blocks of 1, 2,
# 4 GiB. Such figures say which block was reached, and not what was needed.)
#
# Now the same layouts here, with an eighth of the width. A layout that needs more devices than the
# plan has is left out:

# %%
def towers_of(layout):
    home = plan.host if layout.variables == "host" else first
    where = plan.devices[: layout.devices]
    return start(layout.global_batch_size, home, len(where), in_towers, where, home)


possible = [row.layout for row in published.TENSORLIGHT if row.layout.devices <= len(plan)]
here = {repr(layout): towers_of(layout) for layout in dict.fromkeys(possible)}
if len(plan) > 1:
    two = plan.devices[:2]
    for name, colocate in (("colocated", True), ("not colocated", False)):
        here[f"model split, gradients {name}"] = start(128, first, 1, split, two, colocate)
here["CPU only"] = start(128, plan.host, 1, in_towers, [plan.host], plan.host)


def step_of(session, size):
    x, y = digits.load(size)
    return lambda: session.run("train", {"x:0": x, "y:0": y})


runs = {name: step_of(s, theirs[name].layout.global_batch_size) for name, s in here.items()}
times = timing.several(runs, warmup=1, repeats=3)

# %% [markdown]
# The last two columns have the time of an example, here and there, as a multiple of that in the
# first row. In `cores` mode the rows of more devices than cores say nothing:

# %% tags=["nbval-ignore-output"]
def example(name, seconds):
    return seconds / theirs[name].layout.global_batch_size


one = "1 device x 128"
print(f"{'layout':40}{'ms a step':>10}{'here':>8}{'TitanX':>8}")
for name, each in times.items():
    mine = example(name, each.median) / example(one, times[one].median)
    titanx = example(name, theirs[name].seconds) / example(one, theirs[one].seconds)
    print(f"{name:40}{1e3 * each.median:10.1f}{mine:8.2f}{titanx:8.2f}")

# %% [markdown]
# In `cores` mode nothing has to travel, because devices and host share one memory. So on a machine
# with nothing else to do, two devices with 128 gain here what the two TitanX did not, and the place
# of the variables changes little. The host is a core like the others, whereas the CPU of the TitanX
# machine took 19 times as long as a GPU.
#
# Three runs cannot tell apart two layouts that are close. Here are twenty pairs for the place of
# the variables:

# %%
hosted = "1 device x 128, variables on the host"
timing.compare(runs[one], runs[hosted], names=("variables on the device", "on the host"))

# %% [markdown]
# In `cores` mode they can rarely be told apart.
#
# ## Break it
#
# **The batch that nobody split.** It is easy to write a step that gives each device the whole
# batch. The average of equal gradients is the gradient, so the weights are right. Only the time is
# not: n devices take as long as one, or longer. Here is such a step. Its weights are compared with
# those of one device, and a trace counts the bytes that the host sends, first for the step from
# above and then for this one:

# %%
careless = networks.variables(network, device=first)


@tf.function
def careless_step(x, y):
    descend(careless, [(x, y)] * len(plan))


print("the same to one part in a thousand:", difference(moved([batch] * len(plan)), alone) < 1e-3)
for name, step in (("split", steps[len(plan)]), ("whole", careless_step)):
    between = trace.function_step(step, *batch)[1].bytes_between()
    print(f"{name}:", {to: size for (source, to), size in between.items() if source == plan.host})

# %% [markdown]
# A batch is 840 · (784 · 4 + 8) = 2,640,960 bytes. In the first line each device gets an nth of it,
# in the second all of it. The weights cannot reveal that the work was never shared; the bytes do.
#
# ## With your own model
#
# `scaling.measure` times a step of yours in this way. It takes a function that makes the step for n
# devices and a per-device batch. It warms all steps up, times them in turn, waits for the devices,
# and gives a row for each. Here is a Keras network with BatchNormalization. `towers.train_step`
# makes its step ([[09]]):

# %%
layers, loss = tf.keras.layers, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def my_step(n, batch, batch_norm="average"):
    tf.keras.utils.set_random_seed(0)
    with tf.device(first):
        model = tf.keras.Sequential([
            tf.keras.Input([28, 28, 1]), layers.Conv2D(16, 3, strides=2),
            layers.BatchNormalization(), layers.ReLU(), layers.Flatten(), layers.Dense(10)])
    step = towers.train_step(model, "sgd", loss, plan.devices[:n], batch_norm=batch_norm)
    return step, *digits.load(n * batch)


# %% tags=["nbval-ignore-output"]
rows = scaling.measure(my_step, devices=(1, len(plan)), batches=(8, 128), repeats=10)
for row in rows:
    rate = row.layout.global_batch_size / row.seconds
    print(f"{row.layout!r:18} {1e3 * row.seconds:6.2f} ms, {rate:8,.0f} examples/s")

# %% [markdown]
# Strong scaling makes the shards small, and BatchNormalization normalizes by the shard unless you
# ask for `"sync"` ([[09]]). Here is the loss of two steps with 2 examples on each device, against
# one device that has them all:

# %%
for n, kind in ((1, "average"), (len(plan), "average"), (len(plan), "sync")):
    step, x, y = my_step(n, 2 * len(plan) // n, kind)
    losses = [f"{float(step(x, y)):.2f}" for _ in range(2)]
    print(f"{n} x {len(x) // n}, {kind:8} losses", *losses)

# %% [markdown]
# On shards of 2 the losses are not those of one device; with `"sync"` they are. Most people train
# with the statistics of the shards, and that is no mistake. But the smaller the shard, the more it
# matters.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `efficiency(seconds, kind)`. `seconds` is a dictionary with the time of a step by the
# number of devices, 1 among them. `kind` is `"strong"` (the same global batch) or `"weak"` (the
# same per-device batch). Return a dictionary with the efficiency for each of these numbers of
# devices, not rounded.

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
# turn, so `a[0]` and `b[0]` are a pair. Return True if the middle half of the ratios of the pairs
# lies on one side of 1, and False if not. The middle half reaches from the quantile 0.25 to the
# quantile 0.75 (`np.quantile`).

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
# - The first run of a step took many times as long as a later one. Chance alone told twins apart in
#   11 % of the comparisons of 8 pairs, and in 1 % of those of 20.
# - Strong and weak scaling were measured on the same step, and after a step all devices had the
#   weights of one.
# - A small batch gained nothing from more devices, and neither did a step that waited for its
#   input.
# - At a low learning rate the larger batch fell behind. Eight times the rate helped, and did not
#   always make up for it. At a higher rate it broke the training.
# - In the published table the second GPU gained nothing, 145 and 148 µs an example, mostly because
#   the variables had gone to the host. On two GPUs with 512 to each, an example took 82 µs.
# - A step that gave the whole batch to each device had the right weights, and gave itself away by
#   its bytes.
#
# ## In practice
#
# Use this when a training on several devices is slower than you hoped, and before you ask for more
# of them. It costs an hour, and some twenty runs of a step for each number of devices.
#
# - Time one batch that lies ready first. That tells the input from everything else.
# - Then raise the per-device batch. If that helps, the step was too small. Watch the accuracy.
# - If a large per-device batch scales badly too, look at what crosses between the devices ([[09]]),
#   and at where the variables are.
# - Publish a time with its batch, its number of devices and its spread, and say which kind of
#   scaling it is.
# - MirroredStrategy on two GTX 1080 Ti was slower than one of them on MNIST: 286 against 197 s
#   ([TensorFlow issue 35095](../docs/sources.md), olk, 2019). A small network has little to share.
# - `python benchmarks/scaling.py` in the project measures all eleven layouts at a quarter of the
#   width; [benchmarks](../docs/benchmarks.md) says how.
#
# Next: [[next]].
