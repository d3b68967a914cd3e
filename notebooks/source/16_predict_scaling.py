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
# - predict what more GPUs in the same server give, and compare that with simply doubling.
#
# **You need** [[15]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import dataclasses

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, scaling
from mgpu_helpers.lessons import digits, drawings, published
from mgpu_helpers.lessons.checks import lesson_16 as checks
from mgpu_helpers.scaling import links

layers, Setting = keras.layers, scaling.Setting

# %% [markdown]
# ## The lines to paste
#
# Here is a step of VGG16 on two DGX-1, servers with eight P100 GPUs each, and a link of 10 Gbit:
#
# ![Two servers with a slow link between them. If nothing overlaps, gradients cross after all GPUs
# have computed, and a step takes 0.938 s; if all overlaps, it takes
# 0.474 s.](pictures/16_two_links.svg)
#
# Blue and green together are the measured step of one server; where green begins is a guess. In
# orange the gradients cross. Each server adds up inside first, sends its sum, and receives the
# other sum at the same time. In this way two servers should be from `least` to `most` times as fast
# as one. (Where all GPUs form one ring, more crosses: see On GPUs.)
#
# - `least`, if nothing else happens while gradients cross, is 2 · step / (step + crossing).
# - `most`, if gradients cross during the whole step, is 2 · step, divided by the longer of step and
#   crossing. This is a bound, as gradients exist only after the forward pass.
#
# You need the number of parameters, as `scaling.Workload.of(model)` counts them, and the seconds of
# a step on your whole server: the images in a step, divided by the images a second. TensorFlow's
# developers published these, with 64 or 32 images on each GPU ([Benchmarks](../docs/sources.md),
# 2017). Put your own in their place:

# %%
vgg16 = scaling.Workload("VGG16", parameters=138_000_000)
resnet50 = scaling.Workload("ResNet-50", parameters=25_600_000)
mine = {
    "VGG16 x 64": (vgg16, 8 * 64 / 1081),
    "VGG16 x 32": (vgg16, 8 * 32 / 820),
    "ResNet-50 x 64": (resnet50, 8 * 64 / 1734),
}

# %% [markdown]
# In a name, x 64 means 64 images on each GPU. The gradients of VGG16 are 138 million numbers of 4
# bytes, 552 MB. A link of 10 Gbit is 1.25 GB a second, of which TCP leaves 1.19:

# %%
network, step = mine["VGG16 x 64"]
crossing = network.bytes / 1.19e9
print(f"{step:.3f} s to compute, {crossing:.3f} s to cross")
print(f"least: {2 * step / (step + crossing):.2f} times as fast as one server")

# %% [markdown]
# `gains` does this for any link and number of servers. In a **ring** ([[09]]) of m servers each
# sends 2(m - 1)/m times the bytes of the gradients. This factor is 1 for two servers and 1.75 for
# eight.

# %%
def gains(network, step, link, servers=2):
    crossing = 2 * (servers - 1) / servers * network.bytes / link.bandwidth
    least = servers * step / (step + crossing)
    most = servers * step / max(step, crossing)
    return least, most


# %% [markdown]
# Decide first which gain is enough. Two servers cost twice as much, so at 1.7 times as fast an
# image costs 2 / 1.7 = 1.18 times as much as before. If that is your limit, the rule is:
#
# - `least` is above 1.7: buy.
# - `most` is below 1.7: do not buy.
# - 1.7 lies between them: rent two servers for an hour and call `mgpu cluster` ([[17]]).
#
# A link of 100 Gbit is 12.5 GB/s, of which users of NCCL measured 4 to 7.5 ([issues 22 and
# 450](../docs/sources.md)), so it has two rows. The dashed line is the limit, 0.85 times the number
# of servers, and beside each bar is what to do. In JupyterLab a panel changes the number of
# servers:

# %% tags=["varies", "cover"]
at_4, at_7_5 = (dataclasses.replace(links.ETHERNET_100G, name=f"100 Gbit at {rate} GB/s",
                                    bandwidth=rate * 1e9) for rate in (4, 7.5))  # fmt: skip
ETHERNETS = (links.ETHERNET_10G, links.ETHERNET_25G, at_4, at_7_5)


def draw(servers):
    found = {f"{name}, {link.name}": gains(*case, link, servers)
             for name, case in mine.items() for link in ETHERNETS}  # fmt: skip
    drawings.ranges(found, title=f"{servers} servers", across="times as fast as one server",
                    source="predicted from TensorFlow's benchmarks, 2017",
                    limit=1.7 / 2 * servers)  # fmt: skip


drawings.panel(draw, servers=[2, 3, 4, 8])

# %% [markdown]
# VGG16 x 32 does half the work before the same gradients cross: over 10 Gbit even `most` is below
# the limit.
#
# For VGG16 x 64 over 100 Gbit the measured rate of the link decides: buy at 7.5 GB/s, rent at 4.
#
# All these gains are in images a second. Two servers train with twice the global batch, and may
# need more passes to reach the same **accuracy** ([[15]]).
#
# | | |
# |---|---|
# | **Use it when** | a second server costs money, and you have measured the first |
# | **It costs** | some minutes of measuring ([[15]]) |
# | **Instead** | of a faster link: accumulate gradients over several batches, as below |
#
# ## Proof: others have bought the second server
#
# TensorFlow's page also has times of one to eight servers with eight K80 GPUs each, on Amazon EC2,
# which lists 10 Gbit for such a server. (There each server holds a share of the variables. As many
# bytes cross as in a ring, or more if only some servers hold shares.) Only the step of one server
# goes into the prediction. 1.00 means that n servers are n times as fast as one:

# %%
found, measured = {}, {}
for name, network, servers, one, several in published.on_servers():
    least, most = gains(network, one, links.ETHERNET_10G, servers)
    found[name] = least / servers, most / servers
    measured[name] = one / several
inside = [least <= measured[name] <= most for name, (least, most) in found.items()]
off = [least / measured[name] - 1 for name, (least, _) in found.items()]
print(f"{sum(inside)} of {len(inside)} lie between least and most")
print(f"least is off by {np.median(np.abs(off)):.1%} in the median, {-min(off):.0%} at most, "
      f"and never too high: {max(off) < 0}")  # fmt: skip
drawings.ranges(found, measured, title="Predicted (bars) and measured (dots)",
                across="times as fast / number of servers",
                source="predicted and measured: TensorFlow's benchmarks, 2017")  # fmt: skip
plt.show()

# %% [markdown]
# No training gained less than `least`. Two gained more than `most`, by no more than rounding
# explains. VGG16 is not among them. It sends more for its arithmetic, and no dot here tests bars
# that begin so low.
#
# ## When not to buy a faster link
#
# First accumulate the gradients over four batches ([[10]]). The gradients then cross once for four
# batches, as in a step four times as long. Each update sees four times the examples, so watch the
# accuracy:

# %%
network, step = mine["VGG16 x 64"]
for batches in (1, 4):
    least, most = gains(network, batches * step, links.ETHERNET_10G)
    print(f"VGG16 x 64 over 10 Gbit, crossing after {batches}: {least:.2f} to {most:.2f} times")

# %% [markdown]
# ## More GPUs in the same server: double the rate
#
# You have four GPUs, and think of eight in the same server. Doubling the rate of four assumes that
# a step stays as long. `scaling.fit` predicts the step instead, from what arithmetic, moving the
# gradients and a fixed part took in a table of measured steps. Here are published steps of eight
# GPUs, predicted in both ways, the fit from rows of 1, 2 and 4. Above 0, the measured step was
# longer than predicted:

# %%
off = {}
for name, network, fewer, four, eight in published.eight_after_four():
    step = scaling.fit(network, fewer).predict(eight.setting).total
    off[name] = eight.seconds / four.seconds - 1, eight.seconds / step - 1
off["median, no sign"] = np.median(np.abs([*off.values()]), axis=0)
for name in ("ResNet-50 x 64", "AlexNet x 512", "VGG16 x 32", "median, no sign"):
    print("{:15}  doubled {:5.1%}, fitted {:5.1%}".format(name, *off[name]))

# %% [markdown]
# In the median of nine trainings the fit is slightly worse than doubling. It is much better for
# AlexNet x 512 alone. VGG16 x 32 sends even more for the arithmetic of a step, and took about a
# third longer than either predicted: rent before you buy.
#
# ## Break it
#
# **A second server is behind a slow link.** A fit made on one server also gives a number for 16
# GPUs. It warns that 16 is outside its rows, but does not know of that link. Compare it with
# `gains`, for VGG16 x 32:

# %%
fitted = scaling.fit(*published.DGX_1[-1])
eight, sixteen = (fitted.predict(Setting(n, 32, "ring")).total for n in (8, 16))
print(f"fitted: {2 * eight / sixteen:.2f} times; in doubt: {sixteen.doubts[0]}")
least, most = gains(*mine["VGG16 x 32"], links.ETHERNET_10G)
print(f"over 10 Gbit: {least:.2f} to {most:.2f} times")

# %% [markdown]
# The fit promises more than `most`; by `least` two servers are even slower than one.
#
# ## On GPUs
#
# | how gradients are sent | bytes on the link | you gain |
# |---|---|---|
# | NCCL adds up in each server, then in a tree | those of the gradients | about `least` |
# | in a ring of all GPUs | nearly twice as many | perhaps less |
# | `fit.strategy`: in packs, while the rest is computed | as one of these | perhaps more |
#
# The first row is from [nccl-tests issue 196](../docs/sources.md). A pack has 25 MiB or more.
#
# A link carries less than its name says: measure yours with `iperf3`, for a `scaling.Link`.
#
# ## With a model of another kind
#
# Two hidden layers of 1024 units have many parameters for their arithmetic. `scaling.measure` times
# a step ([[09]]) here, with 8 and with 128 images on each device, as if this machine were the
# server:

# %% tags=["nbval-ignore-output"]
with tf.device(plan.devices[0]):
    hidden = [layers.Dense(1024, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input([28, 28, 1]), layers.Flatten(), *hidden,
                              layers.Dense(10)])  # fmt: skip
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
network, n = scaling.Workload.of(model), min(len(plan), plan.cores)
fit.use(model, plan.devices[:n])


def step_of(n, batch):
    return model.train_on_batch, *digits.load(n * batch)


for row in scaling.measure(step_of, [n], [8, 128], warmup=1, repeats=5):
    least, most = gains(network, row.seconds, links.ETHERNET_10G)
    print(f"{row.setting}: {1e3 * row.seconds:.1f} ms a step; a second machine over 10 Gbit: "
          f"{least:.2f} to {most:.2f} times as fast")  # fmt: skip

# %% [markdown]
# Once a batch fills the device (on a GPU perhaps thousands of images), a larger one takes longer.
# The same bytes cross, so a second machine gives more, as it does if gradients are accumulated.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `slowest(parameters, step, servers, efficiency)`: the least bytes a second of a link
# with which `servers` servers reach `efficiency` (times as fast / number of servers) if nothing
# else happens while gradients cross. `step` is the seconds of a step on one server. The gradients
# have 4 bytes for each parameter and go in a ring. Ignore the delay of messages.

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
# **2.** Write `batches(parameters, step, bandwidth, gain)`: after how many batches, at the fewest,
# gradients have to cross so that `least` for two servers reaches `gain`. A gain is below 2, and
# `bandwidth` is the bytes a second of the link. `step` and the gradients are as in exercise 1.

# %% tags=["exercise"]
def batches(parameters, step, bandwidth, gain):
    crossing = 4 * parameters / bandwidth
    return round(crossing / step)


checks.batches(batches)

# %% tags=["solution"]
def batches(parameters, step, bandwidth, gain):
    crossing, count = 4 * parameters / bandwidth, 1
    while 2 * count * step / (count * step + crossing) < gain:
        count += 1
    return count


checks.batches(batches)

# %% [markdown]
# ## What we saw
#
# - By `least` a second DGX-1 makes VGG16 x 64 only 1.01 times as fast over 10 Gbit.
# - Beside 15 published times of several servers `least` was never too high. It was off by 3.6 % in
#   the median and 12 % at most.
# - If gradients cross after 4 batches, `least` for VGG16 x 64 over 10 Gbit is 1.61.
# - For eight GPUs in one server the fit was off by 3.9 % in the median, and doubling by 3.4 %. For
#   AlexNet it was 4.4 % against 17.9 %.
# - A fit to one server promised VGG16 1.54 times for the second, where `most` was 1.35.
#
# ## In practice
#
# Measure a step of your server and the rate of the link. Buy where `least` is enough, and rent
# first where only `most` is. This project's own predictions of two and three workers over slow
# links were within 13 % ([benchmarks](../docs/benchmarks.md)).
#
# Next: [[next]].
