# %% [markdown]
# # Predict scaling
#
# Your server trains too slowly, and a second one costs as much as the first. Between the two is a
# link that is far slower than the links inside, and nobody can tell you what you would gain.
#
# **In this lesson** you answer from one measured step whether to buy a second server, for a link of
# 10, 25 or 100 Gbit, and see how far such answers were off.
#
# **You will learn** to
# - say what a second server gives, from one measured step and the size of the network,
# - test such a prediction on times that others have published,
# - predict a server that you do not have yet, and compare that with simply doubling,
# - tell whether a published time can be true.
#
# **You need** [[15]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import warnings

import keras
import matplotlib.pyplot as plt
import numpy as np

from mgpu_helpers import fit, scaling
from mgpu_helpers.lessons import digits, drawings, networks, published
from mgpu_helpers.lessons.checks import lesson_16 as checks
from mgpu_helpers.scaling import links

layers, Layout = keras.layers, scaling.Layout
warnings.simplefilter("ignore", UserWarning)  # Keras has one for every Dataset in fit

# %% [markdown]
# ## The lines to paste
#
# You need two numbers: how many parameters the network trains, as `scaling.Workload.of(model)`
# counts them, and how many examples a second your whole server trains. Here are those of VGG16 and
# ResNet-50 on a DGX-1, a server with eight P100 GPUs and 64 images to each, as TensorFlow's
# developers published them in 2017 ([Benchmarks](../docs/sources.md)). Put your own in their place:

# %%
mine = {
    "VGG16": (scaling.Workload("VGG16", parameters=138_000_000), 8 * 64 / 1081),
    "ResNet-50": (scaling.Workload("ResNet-50", parameters=25_600_000), 8 * 64 / 1734),
}  # each with the seconds of a step: its images over the images a second


# %%
def gains(network, step, link, servers=2, pieces=1):
    crossing = scaling.ring(network, scaling.Cost(), servers, 1, link).total
    work = pieces * step  # to compute `pieces` batches; gradients cross once, at the end
    late = max(crossing - step, 0)  # what is left when the last batch is computed
    return servers * work / (work + crossing), servers * work / (work + late)


# %% [markdown]
# `gains` says how many times as fast several servers train as one, with the same batch for each
# GPU. The first of its two numbers is the answer: nothing else happens while gradients cross
# between the servers. The second is the ceiling, where gradients cross while the GPUs compute, as
# far as one step leaves time. `scaling.ring` takes a server for one device, and `scaling.Cost()`
# leaves only the link:

# %%
ETHERNETS = (links.ETHERNET_10G, links.ETHERNET_25G, links.ETHERNET_100G)
for name, (network, step) in mine.items():
    for link in ETHERNETS:
        least, most = gains(network, step, link)
        print(f"{name:10} {link.name:17} {least:.2f} to {most:.2f} times as fast, "
              f"an image costs {2 / most:.2f} to {2 / least:.2f} times as much")  # fmt: skip

# %% [markdown]
# The second server is taken to cost what the first one costs. So for ResNet-50 a second DGX-1 over
# 25 Gbit is a fair buy. For VGG16 over 10 Gbit it may give next to nothing. Of 100 Gbit, 12.5 GB/s,
# users of NCCL have measured 4 to 7.5 ([issues 22 and 450](../docs/sources.md)). `gains` counts
# with 7.5; with 4, VGG16 gets 1.55 times.
#
# | | |
# |---|---|
# | **Use it when** | a second server costs money, and you have measured the first |
# | **It costs** | some minutes of measuring ([[15]]) |
# | **Instead** | rent two for an hour, and call `mgpu cluster` ([[17]]) |
#
# ## Two links in a step
#
# ![Two servers with four GPUs each. Inside a server the link is fast, between them it is slow.
# Below is one step: all GPUs compute, gradients are added up inside, and then they cross between
# the servers. The measured step of one server has the first two.](pictures/16_two_links.svg)
#
# The gradients are added up inside each server first. The measured step has that already, because
# all GPUs of the server worked in it. What is new is the link between the servers. Over it each
# server sends its sum, and receives the other sum at the same time. The gradients of VGG16 are 138
# million numbers of 4 bytes, 552 MB. A link of 10 Gbit is 1.25 GB a second, of which TCP leaves
# 1.19. So the sum crosses in 552 / 1190 = 0.464 s, and a step of one server takes 0.474 s:

# %%
network, step = mine["VGG16"]
crossing = network.bytes / 1.19e9
print(f"{crossing:.3f} s to cross, {step:.3f} s to compute")
print(f"one after the other: {2 * step / (step + crossing):.2f} times as fast as one server")

# %% [markdown]
# With m servers in a **ring** ([[09]]) each sends 2(m - 1)/m times all gradients: once for two
# servers, and never twice. `scaling.ring` counts that, and a few microseconds for each message. In
# JupyterLab a panel below the chart changes the number of servers, and after how many batches the
# gradients cross:

# %% tags=["varies", "cover"]
def draw(servers, pieces):
    found = {f"{name}, {link.name}": gains(*case, link, servers, pieces)
             for name, case in mine.items() for link in ETHERNETS}  # fmt: skip
    drawings.ranges(found, title=f"{servers} servers", across="times as fast as one server",
                    source="predicted from TensorFlow's benchmarks, 2017")  # fmt: skip


drawings.panel(draw, servers=[2, 3, 4, 8], pieces=[1, 2, 4, 8])

# %% [markdown]
# ## Proof: others have bought the second server
#
# The same page has one, two, four and eight servers with eight K80 GPUs each, on Amazon EC2. Amazon
# lists 10 Gbit for such a server. Only the step of one server goes into the prediction. (There the
# servers hold the variables in shares; about as many bytes cross as in a ring.) An efficiency of 1
# would be twice the speed on two servers:

# %%
found, measured = {}, {}
for network, (one, *more) in published.SERVERS:
    for row in more:
        servers = row.layout.devices // one.layout.devices
        name = f"{network.name} x {row.layout.per_device_batch}, {servers} servers"
        least, most = gains(network, one.seconds, links.ETHERNET_10G, servers)
        found[name] = least / servers, most / servers
        measured[name] = one.seconds / row.seconds
        print("{}: {:.3f} to {:.3f}, measured {:.3f}".format(name, *found[name], measured[name]))
drawings.ranges(found, measured, title="Predicted (bars) and measured (dots)", across="efficiency",
                source="predicted and measured: TensorFlow's benchmarks, 2017")  # fmt: skip
plt.show()

# %%
inside = [least <= measured[name] <= most for name, (least, most) in found.items()]
off = [least / measured[name] - 1 for name, (least, _) in found.items()]
print(f"{sum(inside)} of {len(inside)} lie between the two numbers")
print(f"the first is off by {np.median(np.abs(off)):.1%} in the median, {-min(off):.0%} at most, "
      f"and never too high: {max(off) < 0}")  # fmt: skip

# %% [markdown]
# No training gained less than the first number said. The two outside measured 1.002.
#
# ## A server that you do not have yet
#
# What if your server has four GPUs, and you think of one with eight? Then the step has to be
# predicted as well, from its parts:
#
# ![Bars of the time of a step on 1, 2 and 4 devices. Arithmetic and a fixed part are the same in
# all three. Moving is missing on 1 device, and is one and a half times as long on 4 as on
# 2.](pictures/16_parts.svg)
#
# Arithmetic grows with the per-device batch, and moving the gradients, here in a ring, with the
# number of devices. First without moving. One device takes 11 ms for 64 examples, and 19 ms for
# 128. So 64 examples more take 8 ms more, and 11 - 8 = 3 ms are **fixed**. For 256 examples that
# makes 4 · 8 + 3 = 35 ms. `scaling.fit` does the same for any table of measured steps:

# %%
times = {64: 0.011, 128: 0.019}
toy = [scaling.Measurement(Layout(1, batch), seconds) for batch, seconds in times.items()]
scaling.fit(scaling.Workload("toy", parameters=1000), toy).predict(Layout(1, 256))

# %% [markdown]
# It also says why to doubt the 35 ms: 256 lies outside the table, and two costs fit any two rows.
# Now six rows of VGG16, on one, two and four P100 with two batches each; the first is printed:

# %%
vgg16, rows = next(table for table in published.DGX_1 if table[0].name == "VGG16")
print(f"{rows[0].layout!r} ... {1e3 * rows[0].seconds:.0f} ms")
fitted = scaling.fit(vgg16, [row for row in rows if row.layout.devices <= 4])
eight = fitted.predict(Layout(8, 64, "ring"))
print(eight)
print(f"measured: {1e3 * rows[3].seconds:.0f} ms")

# %% [markdown]
# In brackets is the **interval** in which about 95 % of such steps should lie, by the scatter of
# the rows. The measured step does. These rows cannot tell fixed, moving and **latency**, the time
# of messages, apart. Is the fit better than a guess, twice the rate of four GPUs? Here are both for
# every network of the page, in images a second on eight P100:

# %%
off = []
print("8 P100        batch  measured  doubled     fit")
for work, table in published.DGX_1:
    found = scaling.fit(work, [row for row in table if row.layout.devices <= 4])
    for four, eight in zip(table[2::4], table[3::4]):
        size, seconds = eight.layout.global_batch_size, found.predict(eight.layout).total
        was, doubled, fit_says = size / eight.seconds, size / four.seconds, size / seconds
        off.append([abs(doubled / was - 1), abs(fit_says / was - 1)])
        known = seconds.low is not None
        between = f"({size / seconds.high:,.0f} to {size / seconds.low:,.0f})" if known else ""
        print(f"{work.name:12}{eight.layout.per_device_batch:7}{was:10,.0f}{doubled:9,.0f}"
              f"{fit_says:8,.0f}  {between}")  # fmt: skip
    if work.name == "AlexNet":
        print("AlexNet is missed by {:.1%} and {:.1%}".format(*off[-1]))
print("in the median, doubling is off by {:.1%}, the fit by {:.1%}".format(*np.median(off, axis=0)))

# %% [markdown]
# In the median the fit is no better than doubling: most of these networks scale so well inside a
# server that twice the rate of four is nearly right. For AlexNet, which has the most parameters for
# its arithmetic, doubling is four times as far off. For VGG16 with 32 both are wrong by about a
# third. What the fit adds is the interval. All eight contain the measured rate, one only just.
# AlexNet's three rows give none.
#
# ## Can it be true?
#
# Before a published time goes into a prediction, work out whether it is possible. The [P40
# note](../docs/sources.md#p40) has times of 1, 2, 4 and 8 P40 GPUs. The note prints a program with
# 1000 epochs and batches of 20,000. The original of that program has the same times beside 10
# epochs and batches of 10,000. Both train on 55,000 digits, in whole batches only. A **FLOP** is
# one addition or multiplication, and the **peak** of a GPU is the most it does in a second:

# %%
print("seconds:", *(row.total for row in published.P40))
note = networks.workload(networks.p40())
print(f"{note.flops / 1e6:.1f} million FLOP to train on one example")
for epochs, batch in ((1000, 20_000), (10, 10_000)):
    examples = epochs * (55_000 // batch) * batch
    speed = note.flops * examples / published.P40[0].total
    print(f"{examples:,} examples in 22.25 s are {speed / 1e12:.3g} TFLOP/s, "
          f"{speed / published.P40_FLOPS:.1f} times the peak")  # fmt: skip
speed = 64 * vgg16.flops / rows[0].seconds
print(f"VGG16 on one P100: {speed / published.P100_FLOPS:.1f} times the peak")

# %% [markdown]
# VGG16 took 1.3 times the peak, and that can be true: for convolutions of 3x3 Winograd's algorithm
# needs as little as a quarter of the multiplications counted here ([Fast algorithms for
# convolutional neural networks](../docs/sources.md), Lavin and Gray, 2015). The program of the note
# needs ten times the peak, so it cannot have produced the times.
#
# ## Break it
#
# **The second server taken for more of the first.** A fit to the rows of one server answers for 16
# GPUs, too. It doubts the number 16, and does not know that the other eight are behind a slow link,
# over which the first number is lower:

# %%
fitted = scaling.fit(vgg16, rows)
sixteen, eight = (fitted.predict(Layout(n, 64, "ring")).total for n in (16, 8))
print(f"16 GPUs: {2 * eight / sixteen:.2f} times as fast as 8; in doubt: {sixteen.doubts[0]}")
print("over 10 Gbit: {:.2f} to {:.2f} times".format(*gains(*mine["VGG16"], links.ETHERNET_10G)))

# %% [markdown]
# **One batch only, and two machines in one table.** Rows with a single batch cannot tell arithmetic
# from the fixed part, and the rows of a fit have to come from one machine. Here both are refused;
# rows of two machines in different layouts would go unnoticed:

# %%
one_batch = scaling.fit(vgg16, rows[:4], ["arithmetic", "fixed", "moving"])
slower = scaling.Measurement(rows[0].layout, 3 * rows[0].seconds)
for ask in (lambda: one_batch.predict(Layout(8, 128, "ring")),
            lambda: scaling.fit(vgg16, [*rows, slower])):  # fmt: skip
    try:
        ask()
    except ValueError as error:
        print(error)

# %% [markdown]
# ## When not to buy a faster link
#
# First let the gradients cross less often. If they are accumulated over four batches ([[10]]), they
# cross once for all four. Each update then sees four times the examples, so watch the accuracy
# ([[15]]):

# %%
for pieces in (1, 4):
    least, most = gains(*mine["VGG16"], links.ETHERNET_10G, pieces=pieces)
    print(f"VGG16 over 10 Gbit, crossing after {pieces}: {least:.2f} to {most:.2f} times")

# %% [markdown]
# ## On GPUs
#
# Between two servers NCCL often adds up in a tree, inside first ([nccl-tests issue
# 196](../docs/sources.md)). A ring of all GPUs, which NCCL may choose as well, sends nearly twice
# all gradients over each link, so the first number may be too high. `fit.strategy` lets the
# gradients of the last layers cross while those of the first are still computed, which gives more
# than the first number. A link carries less than its name says. Measure yours with `iperf3`, and
# make a `scaling.Link` of it.
#
# ## With a model of another kind
#
# Now the times are your own, of a `fit` with two dense layers, as in [[15]]. From them
# `scaling.fit` predicts a step with a batch that is not among them:

# %%
def build_on(n):
    keras.utils.set_random_seed(8)
    with fit.strategy(plan.devices[:n]).scope():
        stack = [layers.Flatten(), layers.Dense(256, activation="relu"), layers.Dense(10)]
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


models = {n: build_on(n) for n in range(1, min(len(plan), plan.cores) + 1)}


def fit_of(n, batch):
    data = fit.batches(*digits.load(n * batch), batch_size=n * batch).repeat(5)
    return lambda: models[n].fit(data, verbose=0)


# %% tags=["nbval-ignore-output"]
network, server = scaling.Workload.of(models[1]), max(models)
rows = scaling.measure(fit_of, [*models], [32, 128, 512], steps=5, variables="ring", warmup=1,
                       repeats=5)  # fmt: skip
step = scaling.fit(network, rows).predict(Layout(server, 256, "ring")).total
print(f"{network.parameters:,} parameters, a step with 256 on each: {1e3 * step:.1f} ms")
for link in ETHERNETS:
    print(f"{link.name:17} {{:.2f}} to {{:.2f}} times".format(*gains(network, step, link)))

# %% [markdown]
# Print `step.low` and `step.high`. If they are far apart, measure again on a less busy machine.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `slowest(parameters, step, servers, efficiency)`: the least bytes a second of a link
# with which `servers` servers reach `efficiency` if nothing else happens while gradients cross.
# `step` is the seconds of a step on one server. The gradients have 4 bytes for each parameter and
# go in a ring. Messages cost nothing.

# %% tags=["exercise"]
def slowest(parameters, step, servers, efficiency):
    return 4 * parameters / step


checks.slowest(slowest)

# %% tags=["solution"]
def slowest(parameters, step, servers, efficiency):
    crossing = step / efficiency - step
    return 2 * (servers - 1) / servers * 4 * parameters / crossing


checks.slowest(slowest)

# %% [markdown]
# **2.** Somebody writes that a GPU trained a network for some epochs in some seconds. Write
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
# ## What we saw
#
# - By the first number a second DGX-1 over 10 Gbit makes VGG16 1.01 times as fast, and over 25 Gbit
#   1.44 times.
# - Beside 15 published times of several servers the first number was never too high. It was off by
#   3.6 % in the median and 12 % at most.
# - For eight GPUs in one server, the fit was off by 3.9 % in the median, and doubling by 3.4 %. For
#   AlexNet it was 4.4 % against 17.9 %.
# - A published program needed ten times the peak of its GPU.
# - A fit to one server said 1.70 times for the second, where the first number over 10 Gbit is 1.01.
#
# ## In practice
#
# Measure a step of your server and the rate of the link, and buy where the second server pays by
# the first number of `gains`. This project has compared such predictions with two and three
# workers over slow links: the steps were within 13 % ([benchmarks](../docs/benchmarks.md)).
#
# Next: [[next]].
