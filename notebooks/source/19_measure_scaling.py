# %% [markdown]
# # Measure scaling
#
# You have trained on one GPU, and now you have two. How many times as fast is `fit`, and how much
# of that is chance?
#
# **In this lesson** you measure it, and find out what holds it back. These lines compare one GPU
# with two:
#
# ```python
# from mgpu_helpers import timing
#
# ways = [lambda: one.fit(data, verbose=0), lambda: two.fit(data, verbose=0)]
# print(timing.compare(*ways, warmup=1, repeats=15, names=("one GPU", "two GPUs")))
# ```
#
# `one` is your model without a strategy, and `two` the same model under `fit.strategy`. `fit` takes
# some time to start, so let `data` last a second or more. On two cores in the place of GPUs, such
# lines printed:
#
# ```
# 2 devices: 1.43 times as fast as one device (1.37 to 1.49, 15 pairs)
# ```
#
# **You need** [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import warnings
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, timing
from mgpu_helpers.lessons import digits, drawings, published
from mgpu_helpers.lessons.checks import lesson_19 as checks

layers = keras.layers
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
warnings.filterwarnings("ignore", "`shuffle=True`")  # fit keeps the order of a Dataset

# %% [markdown]
# ## Two kinds of scaling
#
# In **strong scaling**, which the lines above measure, devices share the batch that one had, so
# three should take a third of the time. In **weak scaling** each device gets such a batch, so three
# should take the same time for three times the images. The dashed lines show these ideal times, and
# the bars a step, in made-up numbers:
#
# ![Three devices share a batch in strong scaling, with an efficiency of 74 %, and have a batch each
# in weak scaling, with 94 %. Each step ends in a fixed part.](pictures/19_two_ways.svg)
#
# The real steps are longer because of the grey **fixed part**. It does not shrink with the batch,
# and the exchange of gradients makes it longer. The **efficiency** is the ideal time divided by the
# real one.
#
# ## Try it
#
# `build_on(n)` makes a small network on n devices, and `ready` repeats one batch, so that no device
# waits for input:

# %%
def build_on(n):
    keras.utils.set_random_seed(8)
    with fit.strategy(plan.devices[:n]).scope():
        convolution = partial(layers.Conv2D, padding="same", activation="relu")
        stack = [convolution(32, 7), layers.MaxPool2D(4), convolution(16, 3), layers.Flatten()]
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile("sgd", entropy)
    return model


def ready(images, steps=4):
    return fit.batches(*digits.load(images), batch_size=images).cache().repeat(steps)

# %% [markdown]
# We measure both kinds with 4 and with 64 images for each device. `timing.several` lets all runs
# take turns, so that a slow moment hits them alike:

# %%
most = min(len(plan), plan.cores)  # devices that share a core gain nothing
models = {n: build_on(n) for n in (1, most)}
few, many = 4, 64
runs = {}  # for each (devices, images in a step)
for b in (few, many):
    # one device with a share, one device with the whole batch, all devices with it
    for n, images in (1, b), (1, most * b), (most, most * b):
        runs[n, images] = partial(models[n].fit, ready(images), verbose=0)

# %% tags=["nbval-ignore-output"]
took = timing.several(runs, warmup=1, repeats=15)
names = ("one device", f"{most} devices")
strong = {b: timing.Comparison(took[1, most * b], took[most, most * b], names)
          for b in (few, many)}  # fmt: skip
print(f"{most * many} images a step:", strong[many])

# %% [markdown]
# Each pair of runs gives a ratio of two times, and the line gives the median of all fifteen. The
# brackets hold a **confidence interval**: the median of far more pairs would be inside in at least
# nine of ten cases. If the brackets contain 1, the line says "cannot be told apart".
#
# Below, each dot is such a median, with its interval. `4 → 8` means 4 images on one device and 8 on
# two:

# %% tags=["varies", "nbval-ignore-output", "cover"]
weak = {b: timing.Comparison(took[1, b], took[most, most * b]) for b in (few, many)}
drawings.speedups({"strong": strong, "weak": weak}, devices=most)
plt.show()

# %% [markdown]
# In strong scaling a small batch gains little or loses, because the fixed part fills most of its
# step. Weak scaling looks better. But one device would gain from the larger batch, too, so only
# strong scaling shows what the others add.
#
# ## By hand
#
# The **speed-up** is the images a second of n devices, divided by those of one. Divided by n, it is
# the efficiency. In the [note of 2017](../docs/sources.md#p40) up to eight P40 GPUs share a batch
# of 10,000 digits, which is strong scaling:

# %%
alone = published.P40[0].seconds
for row in published.P40:
    n, speedup = row.setting.devices, alone / row.seconds
    print(f"{n} GPUs: {1e3 * row.seconds:3.0f} ms a step, speed-up {speedup:.2f}, "
          f"efficiency {speedup / n:.0%}")  # fmt: skip

# %% [markdown]
# To see why eight GPUs are no faster than four, split a step into a fixed part f and a rest r,
# which the GPUs share. One GPU takes f + r = 445 ms. If f is the same on two, they take f + r/2 =
# 253 ms. The difference, 192 ms, is r/2. So r is 384 ms, and f is 61 ms.
#
# With this f, four GPUs would take 61 + 384/4 = 157 ms, but they take 222. So f grows with the
# GPUs, as it does if one of them collects all gradients.
#
# ## How many pairs?
#
# Are fifteen pairs enough? We make up times that vary by about 10 %. In a thousand comparisons both
# ways are equal, and in another thousand one is 10 % faster. How often is a difference found?

# %%
def found(pairs, gain):
    times = 1 + 0.1 * np.random.default_rng(pairs).standard_normal([1000, 2, pairs])
    times[:, 0] *= gain
    made = [timing.Comparison(*(timing.Timing(tuple(each)) for each in both)) for both in times]
    return np.mean([comparison.distinguishable for comparison in made])


for pairs in (5, 15, 40):
    print(f"{pairs:2} pairs: a difference in {found(pairs, 1.0):.0%} by chance, "
          f"and in {found(pairs, 1.1):.0%} with a gain of 10%")  # fmt: skip

# %% [markdown]
# If there is no difference, one is seldom found. But fifteen pairs miss a real gain of 10 % more
# often than not, and forty nearly always find it. So "cannot be told apart" does not prove that two
# ways are equal: take more pairs.
#
# ## Proof: the same work
#
# A training that does less is faster, too. So we check that four steps on all devices move the
# weights as on one, within a thousandth of the move:

# %%
start = build_on(1).get_weights()


def moved(n, steps=4):
    models[n].set_weights(start)
    models[n].fit(ready(120), steps_per_epoch=steps, verbose=0)
    return [after - before for after, before in zip(models[n].get_weights(), start)]


def same(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs)) < 1e-3

# %%
of_one = moved(1)
print("all devices, 4 steps of 120 images: the same", same(moved(most), of_one))

# %% [markdown]
# Does the check notice if all devices take only half of the steps?

# %%
steps = 4 // len(plan)
print(f"all devices, {steps} steps of 120 images: the same", same(moved(most, steps), of_one))

# %% [markdown]
# ## Break it
#
# Weak scaling has a price that no clock shows: with a larger batch, the same images give fewer
# updates. On eight devices a batch of 16 grows to 128. We first keep the learning rate, and then
# take eight times that. Which share of unseen digits does a small network recognize after four
# passes? Write down what you expect:

# %%
images, labels = digits.load()
unseen, right = digits.load(test=True)
with tf.device(plan.devices[0]):
    stack = [layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10)]
    net = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    net.compile("sgd", entropy, steps_per_execution=40)  # 40 steps in one call, to save time


def accuracy(batch, rate, seed):
    keras.utils.set_random_seed(seed)
    net.set_weights(keras.models.clone_model(net).get_weights())
    net.optimizer.learning_rate = rate
    data = fit.batches(images, labels, batch_size=batch, shuffle=True, seed=seed)
    net.fit(data.repeat(4), verbose=0)
    return np.mean(net(unseen).numpy().argmax(1) == right)

# %% tags=["nbval-ignore-output"]
for batch, rate in [(16, 0.02), (128, 0.02), (128, 0.16)]:
    with tf.device(plan.devices[0]):
        shares = [accuracy(batch, rate, seed) for seed in range(4)]
    print(f"batch {batch:3}, rate {rate}: {np.mean(shares):.0%} in the mean of four seeds "
          f"({min(shares):.0%} to {max(shares):.0%})")  # fmt: skip

# %% [markdown]
# With the old rate, the large batch recognizes far fewer digits. Eight times the rate, the **linear
# scaling rule**, makes up for most of that.
#
# | | |
# |---|---|
# | **Use it when** | you have more devices, or want to ask for some |
# | **It costs** | a minute of training for each number of devices |
# | **Instead** | `fit.explain(model, data)` says why one training is slow ([[02]]) |
#
# ## On GPUs
#
# A small network may be slower on two GPUs: in [TensorFlow issue 35095](../docs/sources.md) they
# took 286 s for MNIST, and one took 197 s.
#
# ## On your own
#
# **1.** Write `efficiency(seconds, kind)`. `seconds` maps some numbers of devices, 1 among them, to
# the time of a step, and `kind` is `"strong"` or `"weak"`. Return a dictionary with the efficiency
# for each of these numbers, not rounded. `efficiency({1: 8, 2: 5}, "strong")` has 0.8 for 2.

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
# **2.** `a` and `b` list the seconds that two ways took in fifteen pairs of runs. Each pair has a
# ratio, a divided by b, and the brackets go from the fourth smallest ratio to the fourth largest.
# Write `differ(a, b)`, which returns True if both of these ratios are above 1 or both below 1, and
# False if not. Do not round.

# %% tags=["exercise"]
def differ(a, b):
    return np.median(a) != np.median(b)


checks.differ(differ)

# %% tags=["solution"]
def differ(a, b):
    ratios = np.sort(np.divide(a, b))
    low, high = ratios[3], ratios[-4]
    return low > 1 or high < 1


checks.differ(differ)

# %% [markdown]
# ## What we saw
#
# - Fifteen pairs of runs found a real gain of 10 % in 42 % of the cases, and forty pairs in 94 %.
# - Four steps on all devices moved the weights as on one, and fewer steps did not.
#
# ## In practice
#
# Give both models the same global batch, and believe a number only with its brackets. If the other
# devices gain little, raise the batch and the learning rate, and watch the accuracy.
#
# Next: [[next]].
