# %% [markdown]
# # Predict scaling
#
# You have trained on one, two and four GPUs, and you could rent eight. Twice the speed of four is
# only a guess, and the rent is due before you know better.
#
# **In this lesson** a table of training times becomes a formula, which says what more devices would
# give, and how far it may be off.
#
# **You will learn** to
# - write the time of a step as a sum of parts, and fit them to a table,
# - test the fit on rows that it has not seen,
# - tell whether a published time can be true,
# - predict more devices and other links, each with an interval,
# - put in a table of your own.
#
# **You need** [[09]] and [[15]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, scaling, towers
from mgpu_helpers.lessons import digits, drawings, networks, published
from mgpu_helpers.lessons.checks import lesson_16 as checks
from mgpu_helpers.scaling import links

# %% [markdown]
# ## The trouble
#
# In 2017 TensorFlow's developers published how many images a second 1, 2, 4 and 8 P100 GPUs train
# with several networks ([Benchmarks](../docs/sources.md)). Suppose you had only the first three
# numbers, and guessed the fourth as twice the third:

# %%
def images(rows):
    return [row.layout.global_batch_size / row.seconds for row in rows]


rows_of = {work.name: rows for work, rows in published.DGX_1}
resnet_50, vgg16 = rows_of["ResNet-50"][:4], rows_of["VGG16"][4:]
for name, rows in (("ResNet-50, 64 to a GPU", resnet_50), ("VGG16, 32 to a GPU", vgg16)):
    one, two, four, eight = images(rows)
    print(f"{name:22} {one:.0f}, {two:.0f}, {four:.0f}; guess {2 * four:,.0f}; was {eight:,.0f}")

# %% [markdown]
# For one network the guess is right, and for the other it is a third too high. Eight GPUs cost
# eight times as much as one. If they train VGG16 820/144 = 5.7 times as fast, an image costs 1.4
# times as much.
#
# ## A step in parts
#
# What does a step spend its time on?
#
# ![Bars of the time of a step on 1, 2 and 4 devices. Arithmetic and a fixed part are the same in
# all three. Moving is missing on 1 device, and is three times as long on 4 as on
# 2.](pictures/16_parts.svg)
#
# - **Arithmetic** grows with the per-device batch.
# - A **fixed** part is there in every step: starting the operations, and the update.
# - **Moving** the weights and gradients between devices grows with their number.
#
# First without moving, on numbers that you can check in your head. One device takes 11 ms for 64
# examples, and 19 ms for 128. These are two numbers for two unknowns:

# %%
per_example = (19 - 11) / (128 - 64)
fixed = 11 - 64 * per_example
print(f"{per_example} ms an example, {fixed} ms a step")
print(f"256 examples: {256 * per_example + fixed} ms")

# %% [markdown]
# `scaling.fit` does the same for any table. A `Layout` says how many devices there are and what
# batch each of them gets, a `Measurement` what a step took, and a `Workload` how many parameters
# the network has:

# %%
toy = scaling.Workload("toy", parameters=1000)
rows = [
    scaling.Measurement(scaling.Layout(devices=1, per_device_batch=64), seconds=0.011),
    scaling.Measurement(scaling.Layout(devices=1, per_device_batch=128), seconds=0.019),
]
scaling.fit(toy, rows).predict(scaling.Layout(1, 256))

# %% [markdown]
# It predicts the same 35 ms, and says why to doubt them: 256 lies outside the table, and two
# coefficients fit any two rows, so nobody knows how far the rows scatter.
#
# ## What has to move
#
# Every device needs the weights, and every device has gradients to give:
#
# - If the variables are on the first device, it sends the weights n - 1 times and receives as many
#   gradients, one after the other.
# - If they are on the host, that happens n times.
# - In a ring ([[09]]) each device sends 2(n - 1) pieces of an nth, and receives at the same time.
#
# How many times do all parameters cross?

# %%
print("devices   first device   host   ring")
for n in (1, 2, 4, 8):
    print(f"{n:7} {2 * (n - 1):14} {2 * n:6} {2 * (n - 1) / n:6.2f}")

# %% [markdown]
# On two devices the ring moves the same bytes, but it uses both directions at once: half the time.
# With more devices the first device has ever more to move, and the ring never moves twice the
# parameters.
#
# ## Fit a published table
#
# The table is that of the [tensorlight notebook](../docs/sources.md), from [[15]]: nine rows of 1,
# 2 and 3 TitanX GPUs. `asks` counts what a step asks for. Where the host holds the variables, it
# also updates them, which adds a part to the sum:

# %%
workload = networks.workload(networks.tensorlight(), cut="conv2")  # the cut of the model split


def asks(layout):
    n, host = layout.devices, layout.variables == "host"
    crossings = 2 * n if host else 2 * (n - 1)
    return [layout.per_device_batch, 1, int(host), crossings * workload.bytes]


# %%
rows = published.TENSORLIGHT
print(f"{'layout':40}examples  steps  updates on host     MB moved")
for row in rows[:2] + rows[-2:]:
    examples, steps, updates, moved = asks(row.layout)
    print(f"{row.layout!r:40}{examples:8}{steps:7}{updates:17}{moved / 1e6:13.1f}")

# %% [markdown]
# Four costs, one for each column, should give the seconds of all nine rows. No four costs do so
# exactly. Least squares makes the errors as small as they can be together. Each row is divided by
# its seconds first, so that a slow row counts no more than a fast one:

# %%
seconds = np.array([row.seconds for row in rows])
table = np.array([asks(row.layout) for row in rows])
costs, *_ = np.linalg.lstsq(table / seconds[:, None], np.ones(len(rows)), rcond=None)
print(f"{1e3 * costs[0]:.3f} ms an example, {1e3 * costs[1]:.1f} ms a step")
print(f"{1e3 * costs[2]:.1f} ms for the host's update, {1e-9 / costs[3]:.1f} GB/s")

# %% [markdown]
# `scaling.fit` gives the same four, lets no cost go below zero, and names the parts that these rows
# cannot tell:

# %%
fitted = scaling.fit(workload, rows)
fitted

# %% [markdown]
# Are these costs plausible? PCIe 3 moves 12 GB/s at best, and NVIDIA's data sheet gives the TitanX
# 6.6 TFLOP/s, so both lie within what the hardware can do. The last two lines name what the rows
# leave open: whether one host feeds all devices one after another (`input`), and what a single
# message costs (`latency`).
#
# The chart has the parts of each row, and a tick at what was measured. The split model was not
# among the rows of the fit:

# %%
every = {f"{row.layout}": row for row in (*rows, published.TENSORLIGHT_SPLIT)}
predicted = {name: fitted.predict(row.layout) for name, row in every.items()}
for name, row in every.items():
    print(f"{name:40} error {predicted[name].total / row.seconds - 1:+.1%}")
measured = {name: row.seconds for name, row in every.items()}
charts.breakdown(predicted, measured, source="fitted to tensorlight: TitanX, 2016")
plt.show()

# %% [markdown]
# (One layout was run twice. The chart has its second run; the first is missed by 8.6 %.) Look at
# two GPUs with 128 examples each: moving the weights and updating them on the host take 21 ms, and
# the arithmetic 14. That is why the second GPU gained nothing in [[15]].
#
# ## Proof: rows that the fit has not seen
#
# A row that helped to make the formula is no test of it. So leave out each layout in turn, fit the
# others, and ask about the one that is missing. A harder test asks about more devices than the rows
# have: a fit to the rows of one and two GPUs is asked about three.

# %%
def left_out(workload, rows, row):
    others = [other for other in rows if other.layout != row.layout]
    return scaling.fit(workload, others).predict(row.layout).total


answers = [(row, left_out(workload, rows, row)) for row in rows]
off = np.abs([seconds / row.seconds - 1 for row, seconds in answers])
print(f"left out: {np.median(off):.1%} off in the median, {off.max():.1%} at most")
from_two = scaling.fit(workload, [row for row in rows if row.layout.devices < 3])
for row in (row for row in rows if row.layout.devices == 3):
    error = from_two.predict(row.layout).total / row.seconds - 1
    print(f"from 1 and 2 GPUs, {row.layout!r:38} {error:+.1%}")
charts.held_out(answers, source="tensorlight: TitanX, 2016")
plt.show()

# %% [markdown]
# Only one row, the hollow dot, is missed by more than 10 %. Now a test that the fit fails. A later
# version of the notebook has a third run of 2 devices with 128 each:

# %%
third = published.TENSORLIGHT_APART["third run"]
runs = [row.seconds for row in (*rows, third) if row.layout == third.layout]
print("the three runs:", ", ".join(f"{1e3 * each:.1f} ms" for each in runs))
print(f"predicted: {fitted.predict(third.layout)}")
print(f"the third run is missed by {fitted.predict(third.layout).total / third.seconds - 1:.0%}")

# %% [markdown]
# In brackets is the **interval** in which about 95 % of such steps should lie. It is made of the
# scatter of the nine rows. The third run lies outside: it was taken later, perhaps on another
# machine or with another TensorFlow, of which the rows know nothing. So an interval holds for **the
# machine and the program that the rows come from**.
#
# ## A table that is too short
#
# The [P40 note](../docs/sources.md) has four rows, 1, 2, 4 and 8 P40 GPUs that share one batch.
# Three parts describe them:

# %%
small = networks.workload(networks.p40())
few = scaling.fit(small, published.P40)
print("fitted:  ", *(f"{error:+.0%}" for error in few.errors))
asked = [left_out(small, published.P40, row) / row.seconds - 1 for row in published.P40]
print("left out:", *(f"{error:+.0%}" for error in asked))
print("16 GPUs: ", few.predict(scaling.Layout(16, 625)))

# %% [markdown]
# The fit meets the four rows within 5.2 %, but it misses a row that is left out by up to 31 %.
# Three costs can describe four rows; that does not make a prediction. The interval for 16 GPUs says
# so itself: 35 ms to 4 s.
#
# ## Can it be true?
#
# Before a published time goes into a fit, work out whether it is possible. The P40 note gives 22.25
# s for one GPU, and prints a program with 1000 epochs and batches of 20,000. The original of that
# program gives the same times, with 10 epochs and batches of 10,000. Both train on 55,000 digits,
# in whole batches only. Which of them can take 22.25 s?

# %%
print(f"{small.flops / 1e6:.1f} million FLOP to train on one example")
for epochs, batch in ((1000, 20_000), (10, 10_000)):
    examples = epochs * (55_000 // batch) * batch
    speed = small.flops * examples / published.P40[0].total
    print(f"{examples:,} examples in 22.25 s are {speed / 1e12:.3g} TFLOP/s, "
          f"{speed / published.P40_FLOPS:.1f} times the peak")

# %% [markdown]
# A **FLOP** is one addition or multiplication. The count includes the backward pass, which computes
# two products for each one of the forward pass. The program of the note needs ten times the peak of
# the GPU, so it cannot have produced the times.
#
# More than the peak is not always impossible. Here is VGG16 on one P100 with 64 images, from the
# same benchmarks:

# %%
(work,) = [work for work, _ in published.DGX_1 if work.name == "VGG16"]
speed = work.flops * images(rows_of["VGG16"])[0]
print(f"{speed / 1e12:.3g} TFLOP/s, {speed / published.P100_FLOPS:.1f} times the peak")

# %% [markdown]
# This was measured. Nearly all of VGG16 is convolutions of 3x3. Winograd's algorithm needs up to 4
# times fewer multiplications for them than are counted here
# ([Fast algorithms for convolutional neural networks](../docs/sources.md), Lavin and Gray, 2015).
# Above 4 a claim is false. From 1 to 4 only such convolutions can do it. Take the peak for the
# format of the numbers: for float16 it is higher than for float32, which is meant here.
#
# ## What would eight GPUs give?
#
# Back to the trouble. For each network, the rows of 1, 2 and 4 GPUs are fitted, and the row of 8 is
# predicted. A part that grows from row to row as others do cannot be told from them, so a fit
# leaves it out. Beside the fit stands the guess of the beginning, twice the rate of four. In
# brackets is the interval of the fit. (AlexNet has none: its three rows leave nothing over for it.)

# %%
def eight_from_fewer(work, rows):
    fitted = scaling.fit(work, [row for row in rows if row.layout.devices < 8])
    return [(row, fitted.predict(row.layout).total) for row in rows if row.layout.devices == 8]


off = []
print("8 P100        batch  measured    guess     fit")
for work, rows in published.DGX_1:
    of_four = {r.layout.per_device_batch: r.seconds for r in rows if r.layout.devices == 4}
    for row, seconds in eight_from_fewer(work, rows):
        batch = row.layout.global_batch_size
        was, guess, fit = (batch / each for each in (row.seconds, of_four[batch // 8], seconds))
        off.append([abs(guess / was - 1), abs(fit / was - 1)])
        known = seconds.low is not None
        between = f"({batch / seconds.high:,.0f} to {batch / seconds.low:,.0f})" if known else ""
        print(f"{work.name:12}{batch // 8:7}{was:10,.0f}{guess:9,.0f}{fit:8,.0f}  {between}")
    if work.name == "AlexNet":
        print("AlexNet is missed by {:.1%} and {:.1%}".format(*off[-1]))
print("in the median the guess is off by {:.1%}, the fit by {:.1%}".format(*np.median(off, axis=0)))
print("doubts about the last:", "; ".join(seconds.doubts))

# %% [markdown]
# In the median the fit is no better than the guess: most of these networks scale so well that twice
# the rate of four is nearly right. For AlexNet the guess is four times as far off. For VGG16 with
# 32 both are wrong by a third or nearly so. What the fit adds is the interval, and the measured
# number is inside each of the eight. That of VGG16 with 32 begins below the 820 that were measured,
# and its doubts say why it is so wide: six rows are too few to tell three of the four costs from
# chance. A guess has neither.
#
# So should you rent eight? Divide the lower end of the interval by the rate of one GPU. For
# ResNet-50 with 64 that is 1,450/219 = 6.6, so an image should cost at most 8/6.6 = 1.2 times as
# much as on one GPU. For VGG16 with 32 it is 808/144 = 5.6, and 1.4 times as much.
#
# ## Another link between the devices
#
# The fitted costs also answer what another link would give: keep the arithmetic and the fixed part,
# and change what moving costs. `links.PCIE_3` is a `Link` of 5 to 12 GB/s; its `source` says who
# measured that. `speedup` says how many times as fast a layout would be as one device, here for the
# tensorlight network on eight devices with 128 examples on each:

# %%
first, in_a_ring = scaling.Layout(8, 128), scaling.Layout(8, 128, variables="ring")
print("first device:", scaling.speedup(fitted, first, link=links.PCIE_3))
print("ring:        ", scaling.speedup(fitted, in_a_ring, link=links.PCIE_3))

# %% [markdown]
# The first device is a bottleneck: eight GPUs do little more than the work of two. The ring over
# the same link gives six. Here are other links:

# %%
for link in (links.PCIE_3, links.ETHERNET_100G, links.NVLINK_3):
    for name, layout in (("central", first), ("ring", in_a_ring)):
        gain = scaling.speedup(fitted, layout, link=link)
        ends = f"({gain.low:.1f} to {gain.high:.1f})"
        print(f"{link.name:18} {name:8} {gain:.1f} times {ends}")

# %% [markdown]
# An interval that ends above 8 does not promise more than 8: it says how little is known. On a slow
# link the ring changes most. On a fast one there is little left to change.
#
# With the variables on the first device, every further device adds the same time to a step. So the
# speed-up has a ceiling, a step on one device divided by that time, and one device less than the
# ceiling reaches half of it. With a fixed global batch, here 1024, there is a fastest number of
# devices, and beyond it each step takes longer. `central` gives a step from costs that are known:

# %%
def step(n, batch, link):
    return scaling.central(workload, fitted.cost, n, batch, link).total


for link in (links.PCIE_3, links.NVLINK_3):
    one, two = step(1, 128, link), step(2, 128, link)
    ceiling = one / (two - one)
    best = min(range(1, 65), key=lambda n: step(n, 1024 / n, link))
    print(f"{link.name:16} ceiling {ceiling:5.1f} times, half of it with {ceiling - 1:.0f}; "
          f"a batch of 1024 is fastest on {best}")

# %% [markdown]
# The picture has all of them, up to 1024 devices. In JupyterLab a panel below it changes the
# per-device batch and the width of the network; a stored page has the picture alone:

# %% tags=["varies", "cover"]
def draw(batch, width):
    other = networks.workload(networks.tensorlight(width=width))
    per_example = fitted.cost.arithmetic * other.flops / workload.flops
    cost = scaling.Cost(per_example, fitted.cost.fixed)
    counts, curves = [2**i for i in range(11)], {}
    for link in (links.PCIE_3, links.ETHERNET_100G, links.NVLINK_3):
        band = [link, *(replace(link, bandwidth=end) for end in (link.low, link.high))]
        for way in (scaling.central, scaling.ring):
            one = way(other, cost, 1, batch).total
            curves[f"{way.__name__}, {link.name}"] = counts, *(
                [one / way(other, cost, n, batch, each).total for n in counts] for each in band)
    charts.efficiency(curves, measured=(1, 3), source="predicted from tensorlight: TitanX, 2016")


drawings.panel(draw, batch=[128, 32, 64, 256, 512, 1024], width=[1, 0.25, 0.5, 2])

# %% [markdown]
# The shaded strip is the range of devices in the rows, and the rows were measured on PCIe only. All
# the rest is extrapolation. The bands are the range of each link's speed. The formula assumes equal
# devices, an input that keeps up, and no averaging during the backward pass. Libraries do average
# the last layers while the first ones are still computed, so for them it is too pessimistic.
#
# ## Your table
#
# Put your own numbers in the next cell: the parameters of your network, and for each run the number
# of GPUs, the batch of each, and the images a second of all together. `"ring"` is right for NCCL
# and MirroredStrategy, `"host"` where the CPU holds the variables. (This lesson has no section on
# graphs, because a row is the same whether a graph or today's code was timed.) The numbers below
# are those of ResNet-50 on K80 GPUs, from the same benchmarks. Look at what the rows of four GPUs
# change:

# %%
mine = scaling.Workload("ResNet-50", parameters=25_600_000)
runs = [(1, 32, 49.5), (1, 64, 51.9), (2, 32, 95.4), (2, 64, 99.0), (4, 32, 183), (4, 64, 195)]
my_rows = [
    scaling.Measurement.of_rate(scaling.Layout(n, batch, "host"), rate) for n, batch, rate in runs
]

# %%
wanted = scaling.Layout(8, 64, "host")
for rows in (my_rows[:4], my_rows):
    step = scaling.fit(mine, rows).predict(wanted).total
    rates = (wanted.global_batch_size / each for each in (step, step.high, step.low))
    print(f"{len(rows)} rows:", "{:.0f} images a second ({:.0f} to {:.0f})".format(*rates))
print("in doubt:", "; ".join(step.doubts))

# %% [markdown]
# TensorFlow's developers measured 387. One and two GPUs say next to nothing about eight: measure at
# least two batches on three numbers of devices.
#
# ## Break it
#
# **One batch only.** Rows with a single batch cannot tell arithmetic from the fixed part. A fit
# describes them well, but it knows nothing of another batch. `predict` refuses:

# %%
one_batch = [row for row in published.TENSORLIGHT if row.layout.per_device_batch == 256]
guess = scaling.fit(workload, one_batch, terms=("arithmetic", "fixed", "moving"))
try:
    guess.predict(scaling.Layout(2, 512, "host"))
except ValueError as error:
    print(error)

# %% [markdown]
# **Two machines in one table.** The same layout, once on a fast machine and once on a slow one:

# %%
table = published.TENSORLIGHT
try:
    scaling.fit(workload, [*table, scaling.Measurement(table[0].layout, 3 * table[0].seconds)])
except ValueError as error:
    print(error)

# %% [markdown]
# ## With your own model
#
# `scaling.measure` makes the rows of a table from a step of yours. Here is a Keras network with
# BatchNormalization. `Workload.of` counts it, and `towers.train_step` makes its step on n devices
# ([[09]]):

# %%
layers, loss = tf.keras.layers, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def my_model():
    with tf.device(plan.devices[0]):
        return tf.keras.Sequential([
            tf.keras.Input([28, 28, 1]), layers.Conv2D(16, 3, strides=2),
            layers.BatchNormalization(), layers.ReLU(), layers.Flatten(), layers.Dense(10)])


def my_step(n, batch):
    step = towers.train_step(my_model(), "sgd", loss, plan.devices[:n], batch_norm="average")
    return step, *digits.load(n * batch)


work = scaling.Workload.of(my_model(), "my network")
print(f"{work.parameters:,} parameters, {work.flops / 1e6:.2f} MFLOP an example")

# %% [markdown]
# The network has 27,274 numbers. The 32 that are missing here are the moving averages of
# BatchNormalization: they have no gradients to move, so they do not count. The fit to one and two
# devices, with three batches each, is tested on rows that are left out, and asked for four devices:

# %% tags=["nbval-ignore-output"]
able = [n for n in (1, 2) if n <= len(plan)]
measured = scaling.measure(my_step, devices=able, batches=(32, 128, 512), repeats=10)
off = np.abs([left_out(work, measured, row) / row.seconds - 1 for row in measured])
print(f"rows left out: {np.median(off):.0%} off in the median, {off.max():.0%} at most")
my_fit = scaling.fit(work, measured)
answer = my_fit.predict(scaling.Layout(4 if len(able) > 1 else 1, 128))
print(answer)
assert answer.low <= answer.total <= answer.high
charts.step_times(measured, my_fit)
plt.show()

# %% [markdown]
# The dots are what was measured. The fit has a line for each number of devices. (With a single
# device in the plan it is asked for one, because such rows do not determine what moving costs.)
# Watch the interval: on a busy machine the rows scatter, and the interval gets so wide that it says
# little. Then measure again. In `cores` mode nothing has to move, and what the fit calls moving is
# the average. Where devices share a core, a step grows with the global batch, and
# `terms=("arithmetic", "fixed", "input")` fits it better.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Somebody writes that a GPU trained a network for some epochs in some seconds. Write
# `share_of_peak(flops, examples, epochs, seconds, peak)`: the share of the GPU's peak that this
# takes, not rounded. `flops` are those of training on one example, forward and backward pass
# together. `examples` is the number in one epoch, and `peak` is in FLOP a second.

# %% tags=["exercise"]
def share_of_peak(flops, examples, epochs, seconds, peak):
    return flops * examples / peak


checks.share_of_peak(share_of_peak)

# %% tags=["solution"]
def share_of_peak(flops, examples, epochs, seconds, peak):
    return flops * examples * epochs / seconds / peak


checks.share_of_peak(share_of_peak)

# %% [markdown]
# **2.** Write `fewest(workload, cost, global_batch, seconds)`: the smallest number of devices, from
# 1 to 64, on which a step with this global batch takes at most `seconds`, with the variables on the
# first device. Return `None` if there is none. `scaling.central(workload, cost, n, batch).total`
# gives the seconds on n devices with `batch` examples on each, which may be a fraction here.

# %% tags=["exercise"]
def fewest(workload, cost, global_batch, seconds):
    return 64


checks.fewest(fewest)

# %% tags=["solution"]
def fewest(workload, cost, global_batch, seconds):
    took = {n: scaling.central(workload, cost, n, global_batch / n).total for n in range(1, 65)}
    return next((n for n in took if took[n] <= seconds), None)


checks.fewest(fewest)

# %% [markdown]
# ## What we saw
#
# - Twice the speed of four GPUs was right for ResNet-50, and for VGG16 with 32 images to a GPU a
#   third too high.
# - Four costs described nine published rows, and rows that were left out were missed by 3.2 % in
#   the median and 10.3 % at most. A run from later was missed by 40 %.
# - Four rows and three costs looked good, and a row that was left out was missed by 31 %.
# - A published listing needed ten times the peak of its GPU. A published rate at 1.3 times the peak
#   was true.
# - For eight GPUs, the fit was off by 3.9 % in the median, and the guess by 3.4 %. For AlexNet it
#   was 4.4 % against 17.9 %. All intervals held what was measured.
#
# ## In practice
#
# Use this when more devices cost money and you have measured one, two and four. It costs two
# batches on each number of devices, so some minutes of measuring.
#
# - Write the prediction down with its interval before you rent, and compare afterwards.
# - Ask for the lower end of the interval. If eight GPUs pay there, they pay.
# - Predict at most twice the devices that were measured. Every doubling widens the interval.
# - A step that crosses from one machine to another has another link: fit rows from there, or give
#   `speedup` the link.
# - Eight P100 in one machine trained ResNet-50 7.92 times as fast as one, VGG16 7.02 and AlexNet
#   5.97 times ([Benchmarks](../docs/sources.md), TensorFlow, 2017). AlexNet has the most parameters
#   for its arithmetic.
# - [The benchmarks of this project](../docs/benchmarks.md) compare such predictions with what was
#   measured.
#
# Next: [[next]].
