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

plan = devices.setup(2)
plan

# %%
import time
import warnings

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, fit, scaling, timing, towers, trace
from mgpu_helpers.lessons import digits, networks, published
from mgpu_helpers.lessons.checks import lesson_15 as checks

layers, Layout = keras.layers, scaling.Layout
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
warnings.simplefilter("ignore", UserWarning)  # Keras has one for every Dataset in fit

# %% [markdown]
# ## The lines to paste
#
# `build_on(n)` makes a small network on n devices, as in [[07]]. Put your own model in its place,
# and your own data in place of `digits.load(k)`, which gives k images with their labels:

# %%
def build_on(n):
    keras.utils.set_random_seed(8)
    with fit.strategy(plan.devices[:n]).scope():
        convolutions = [layers.Conv2D(c, 5, strides=2, activation="relu") for c in (16, 32)]
        model = keras.Sequential(
            [keras.Input([28, 28, 1]), *convolutions, layers.Flatten(), layers.Dense(10)]
        )
        model.compile("sgd", entropy)
    return model


# %% [markdown]
# `fit_of(n, batch)` gives what is timed: a `fit` of six steps on n devices, with `batch` images for
# each device. `scaling.measure` runs every number of devices with every batch, once to warm up and
# then eight times in turn, and gives the median time of a step. In six steps the start of `fit`
# still counts; take more for your model. In the chart, compare the points at 32 and at 1600:

# %%
STEPS, most = 6, min(len(plan), plan.cores)
models = {n: build_on(n) for n in range(1, most + 1)}


def fit_of(n, batch):
    data = fit.batches(*digits.load(n * batch), batch_size=n * batch).repeat(STEPS)
    return lambda: models[n].fit(data, verbose=0)


# %% tags=["varies", "nbval-ignore-output", "cover"]
sizes = sorted({16, 16 * most, 800, 800 * most})
rows = scaling.measure(fit_of, [*models], sizes, steps=STEPS, warmup=1, repeats=8)
for row in rows:
    rate = row.layout.global_batch_size / row.seconds
    print(f"{row.layout!r:16} {1e3 * row.seconds:6.1f} ms a step {rate:8,.0f} images/s")
charts.rates(rows)
plt.show()

# %% [markdown]
# At 32 the second device gains little, and may even lose. At 1600 it gains more. A still larger
# batch need not be faster.
#
# | | |
# |---|---|
# | **Use it when** | you have more devices, or want to ask for some |
# | **It costs** | some runs of a few steps for each number of devices: minutes |
# | **Instead** | `fit.explain(model, data)`, which says where the time of one training goes |
#
# ## Strong and weak scaling
#
# There are two ways to use more devices. In the grey time they exchange gradients:
#
# ![The time of a step. In strong scaling three devices share the batch and each takes a third of
# the time. In weak scaling three devices with a batch each take the whole
# time.](pictures/15_two_ways.svg)
#
# - **Strong scaling** keeps the global batch, so n devices should take an nth of the time.
# - **Weak scaling** keeps the per-device batch, so n devices should take the same time, for n times
#   the examples.
#
# The **speed-up** is the examples a second of n devices, divided by those of one. Divided by n it
# is the **efficiency**. If one device takes 8 s and two take 5 s for the same batch, it is (8 / 5)
# / 2 = 80 %. If they take 10 s for twice the batch, it is 8 / 10 = 80 %. The rows above give:

# %% tags=["nbval-ignore-output"]
took = {row.layout: row.seconds for row in rows}
for b in (16, 800):
    together, batch, whole = took[Layout(most, b)], took[Layout(1, b)], took[Layout(1, most * b)]
    strong, weak = whole / together / most, batch / together
    print(f"{most} devices x {b:3}: strong {strong:4.0%}, weak {weak:4.0%}")

# %% [markdown]
# With a small batch weak scaling can look good where strong scaling is bad: weak scaling also
# counts what one device would gain by the larger batch.
#
# ## A number that can be believed
#
# Two models that are made alike, twins, should take the same time. The next cell times the first
# pass of `fit` of each twin, a second pass, and then twenty pairs in turn:

# %% tags=["nbval-ignore-output"]
def one_pass(model):
    data = fit.batches(*digits.load(32), batch_size=32).repeat(2)
    return lambda: model.fit(data, verbose=0)


twins = [one_pass(build_on(1)) for _ in range(2)]
for name in ("first passes", "second passes"):
    seconds = [timing.measure(run, warmup=0, repeats=1).median for run in twins]
    print(f"{name:14}", *(f"{1e3 * each:7.1f} ms" for each in seconds))
timing.compare(*twins, warmup=1, names=("the one", "the other"))

# %% [markdown]
# A first pass takes many times as long as a later one, because Keras then builds the graph of the
# step. So a comparison needs a **warm-up**. As later passes differ by chance, it also needs
# **repeats**, taken **in turn**, so that a machine that slows down slows both twins.
#
# The last line has the median of the ratios of the pairs, and in brackets their middle half. If
# that half, rounded to two decimals, lies on one side of 1, the steps count as different. How often
# does that happen to twins by chance? The next cells draw a thousand comparisons whose times
# scatter by 3 %:

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
# With eight pairs one comparison in nine finds a difference that is not there. So take twenty, as
# `timing.compare` does. Give it `fit_of(1, 1600)` and `fit_of(2, 800)` to tell the second device's
# gain from chance.
#
# ## Proof: the same work
#
# A training that does less work is faster, too. So the next cells check that a pass on all devices
# changes the weights as a pass on one device does, to a thousandth of the change. They count 840
# images for each step:

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
# A step takes some time for each image, and a **fixed part** that does not depend on the batch. Two
# rows of one device estimate both:

# %% tags=["nbval-ignore-output"]
small, large = (took[Layout(1, size)] for size in (16, 800))
an_image = (large - small) / (800 - 16)
fixed = small - 16 * an_image
print(f"{1e6 * an_image:.0f} µs an image, and {1e3 * fixed:.1f} ms fixed: {fixed / small:.0%} of "
      f"a step with 16, {fixed / large:.0%} with 800")  # fmt: skip

# %% [markdown]
# The fixed part is spent on Python, on starting the operations, and on updating the weights. Here
# most of it is a sixth of the start of `fit`. More devices share the images but not the fixed part.
# **The remedy** is a larger per-device batch.
#
# ## What holds it back: an input that is too slow
#
# In the next cell a batch of 120 takes 40 ms to read. Compare a batch that lies ready with batches
# read one by one, and up to four at a time:

# %% tags=["nbval-ignore-output"]
READ, SIZE = 0.04, 120


def read(x, y):
    tf.numpy_function(lambda: np.int64(time.sleep(READ) or 0), [], tf.int64)
    return x, y


ready = fit.batches(*digits.load(SIZE), batch_size=SIZE).cache().repeat(STEPS)
four = ready.map(read, num_parallel_calls=4)
inputs = {"ready": ready, "one by one": ready.map(read), "four at a time": four}
print("devices", *(f"{name:>15}" for name in inputs), " images/s")
for n in (1, most):
    rates = {}
    for name, data in inputs.items():
        run = timing.measure(lambda: models[n].fit(data, verbose=0), warmup=1, repeats=3)
        rates[name] = STEPS * SIZE / run.median
    print(f"{n:7}", *(f"{each:15,.0f}" for each in rates.values()))
    assert rates["one by one"] <= SIZE / READ

# %% [markdown]
# One by one, the input gives 120 / 0.04 = 3,000 images a second, which no number of devices
# exceeds. Asked for four at a time, TensorFlow reads no more at once than there are cores: two
# cores can at most double the rate. To recognize a slow input, **time `fit` on one batch that lies
# ready.** If your training is much slower, read several batches at a time
# (`num_parallel_calls=tf.data.AUTOTUNE`), or keep what was read (`cache`).
#
# ## What a growing batch does to the accuracy
#
# Weak scaling has a price that no clock shows: with a larger batch the same examples give fewer
# updates. `accuracy` trains a small network for four passes over 1,437 digits, and returns the
# share of unseen digits that it recognizes. Each setting has five seeds. The batch of 16 grows to
# 128, as with eight devices. A common rule makes the learning rate eight times as high, too:

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


# %% tags=["nbval-ignore-output"]
reached = {}
with tf.device(plan.devices[0]):
    for way in [(16, 0.02), (128, 0.02), (128, 0.16), (16, 0.1), (128, 0.8)]:
        reached[way] = [accuracy(*way, seed) for seed in range(5)]
        print("batch {}, rate {}:".format(*way), *(f"{each:.0%}" for each in reached[way]))

# %%
mean = {key: np.mean(found) for key, found in reached.items()}
lost, won = mean[16, 0.02] - mean[128, 0.02], mean[128, 0.16] - mean[128, 0.02]
print("a batch of 128 falls behind:              ", lost > 0)
print("eight times the rate makes up for most:   ", lost > won > lost / 2)
print("eight times the higher rate is a failure: ", mean[128, 0.8] < 0.3)

# %% [markdown]
# The rule makes up for most of what the larger batch loses at the low rate. At the higher rate it
# fails: 10 % is guessing.
#
# ## Break it
#
# **A pass that is cut short.** In Horovod you divide the steps of a pass by the number of devices.
# If you do so in Keras, where you give the global batch, `fit` seems to scale perfectly. The proof
# from above notices:

# %%
hurried, images = moved(len(plan), steps=max(1, STEPS // len(plan)))
print(f"all devices, steps divided: {images:,} images, {same(hurried, alone)}")

# %% [markdown]
# Half of the images are missing.
#
# **A batch that nobody split.** In a loop of your own, `strategy.run` hands its arguments to every
# device, here the whole batch. Each device divides its loss by the number of devices, so the
# gradients add up to the right ones, and only time is lost. The bytes from the host show this,
# first in `fit`, then in this step:

# %%
strategy, careless = fit.strategy(plan), build_on(len(plan))
weights = [each.value for each in careless.trainable_variables]
with strategy.scope():
    careless.optimizer.build(careless.trainable_variables)


@tf.function
def step(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = entropy(y, careless(x, training=True)) / len(plan)
        careless.optimizer.apply(tape.gradient(loss, weights), careless.trainable_variables)

    strategy.run(replica, args=(x, y))


x, y = digits.load(840)
with tf.device(plan.host):
    traced = trace.fit_step(build_on(len(plan)), (x, y)), trace.function_step(step, x, y)[1]
for each in traced:
    print({to: size for (where, to), size in each.bytes_between().items() if where == plan.host})

# %% [markdown]
# The whole batch has 2,640,960 bytes. `fit` gives each device its share, this step all of it.
# `experimental_distribute_dataset` would split it.
#
# ## On GPUs
#
# On one GPU Keras compiles with XLA by itself, but not under a strategy such as that of
# `build_on(1)`, so time your usual training on one GPU as well. A GPU hardly speeds up the fixed
# part, so raise the batch until the images a second no longer grow. A small network can lose by a
# second GPU: MNIST took 286 s with `MirroredStrategy` on two GTX 1080 Ti, and 197 s on one
# ([TensorFlow issue 35095](../docs/sources.md), olk, 2019). A loop of your own has to call
# `tf.test.experimental.sync_devices` before the clock stops, as `scaling.measure` does.
#
# ## With a model of another kind
#
# A step for `scaling.measure` is a function, or a function with its arguments. Here it times
# `towers.train_step` ([[09]]), for a network that reads sentences of 20 words:

# %% tags=["nbval-ignore-output"]
def my_step(n, batch):
    keras.utils.set_random_seed(0)
    with tf.device(plan.devices[0]):
        words = layers.Embedding(500, 64)
        reader = keras.Sequential([keras.Input([20], dtype="int32"), words, layers.LSTM(64),
                                   layers.Dense(10)])  # fmt: skip
    sentences = np.arange(n * batch * 20, dtype="int32").reshape(-1, 20) % 500
    step = towers.train_step(reader, "sgd", entropy, plan.devices[:n])
    return step, sentences, sentences[:, 0] % 10


for row in scaling.measure(my_step, devices=sorted({1, most}), batches=[128], repeats=5):
    rate = row.layout.global_batch_size / row.seconds
    print(f"{row.layout!r:18} {1e3 * row.seconds:6.1f} ms, {rate:8,.0f} sentences/s")

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# In 2016 the author of the [tensorlight notebook](../docs/sources.md#tensorlight) trained a network
# for digits on TitanX GPUs, in towers. Here are the times of 2000 steps in eleven layouts, and the
# memory of each GPU. Rows 3 to 5 are one layout. In a split model each GPU holds some of the
# layers. A colocated gradient is computed where its operation is:

# %%
apart = published.TENSORLIGHT_APART
theirs = [(repr(row.layout), row) for row in published.TENSORLIGHT]
theirs.insert(4, ("the same in a later version", apart["third run"]))
theirs.append(("model split, gradients colocated", published.TENSORLIGHT_SPLIT))
theirs.append(("model split, gradients not colocated", apart["not colocated"]))
theirs.append(("CPU only", apart["CPU only"]))
print(f"{'layout':40}{'s':>6}{'ms a step':>11}{'µs an example':>15}  MiB")
for name, row in theirs:
    share = 1e6 * row.seconds / row.layout.global_batch_size
    print(f"{name:40}{2000 * row.seconds:6.1f}{1e3 * row.seconds:11.1f}{share:15.0f}"
          f"  {row.memory or 'not told'}")  # fmt: skip

# %% [markdown]
# In two of three runs the second GPU gained nothing: an example took 145 µs on one GPU, and 170,
# 148 and 111 on two with 128 each. The main reason was **the place of the variables**. With the
# variables on the host, a step on one GPU took 32.5 ms in place of 18.5, because weights and
# gradients cross in every step.
#
# The next cells build such towers on the devices of `where`, with variables, average and Adam on
# `home`. In three layouts they compute the gradients of today's code:

# %%
network, first = networks.tensorlight(width=1 / 16), plan.devices[0]


def in_towers(where, home, x, y):
    weights = networks.classic(network, device=home)

    def tower(x, y):
        read = networks.read(weights)
        loss = networks.loss(y, networks.logits(network, read, x))
        return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

    each = towers.run(tower, where, *zip(*towers.split((x, y), len(where))))
    return zip(towers.average(each, device=home), weights.values())


# %%
def start(where, home, size):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [size, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [size], name="y")
        pairs = list(in_towers(where, home, x, y))
        with tf.device(home):
            for i, (gradient, _) in enumerate(pairs):
                tf.identity(gradient, name=f"gradient_{i}")
            tf1.train.AdamOptimizer(1e-4).apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config(devices=len(where)))
    session.run("init")
    return session


# %%
today = networks.variables(network, device=first)
with tf.device(first), tf.GradientTape() as tape:
    loss = networks.loss(y, networks.logits(network, today, x))
wanted = [each.numpy() for each in tape.gradient(loss, list(today.values()))]
layouts = {"all devices": (plan.devices, first), "variables on the host": (plan.devices, plan.host),
           "CPU only": ([plan.host], plan.host)}  # fmt: skip
for name, layout in layouts.items():
    session = start(*layout, len(x))
    found = session.run([f"gradient_{i}:0" for i in range(len(wanted))], {"x:0": x, "y:0": y})
    session.run("train", {"x:0": x, "y:0": y})
    print(f"{name:21} {len(found)} gradients, {same(found, wanted)} to one part in a thousand")

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
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
# Unlike `timing.compare`, do not round.

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
# - With a small global batch the second device gained little, or lost: the fixed part is not
#   shared.
# - By chance alone twins counted as different in 11 % of the comparisons of 8 pairs, and in 1 % of
#   those of 20.
# - 5,040 images changed the weights alike on one device and on all. A pass cut short had 2,520.
# - An input that read batches one by one set the pace, whatever the number of devices.
# - A larger batch cost accuracy. Eight times the rate made up for most of that at a low rate, and
#   failed at a higher one.
#
# ## In practice
#
# Time one batch that lies ready, on one device and on all. If all gain little, raise the per-device
# batch, and watch the accuracy. If they gain much and your training does not, mend the input.
# Beside a time, write the batch, the devices, and the kind of scaling.
#
# Next: [[next]].
