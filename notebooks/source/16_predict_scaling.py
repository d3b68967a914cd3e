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
# - predict a step that you have not measured, and compare that with simply doubling.
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
from mgpu_helpers.lessons import digits, drawings, published
from mgpu_helpers.lessons.checks import lesson_16 as checks
from mgpu_helpers.scaling import links

layers, Layout = keras.layers, scaling.Layout
warnings.simplefilter("ignore", UserWarning)  # Keras has one for every Dataset in fit

# %% [markdown]
# ## The lines to paste
#
# Here is a step of VGG16 on two DGX-1, servers with eight P100 GPUs each, and a link of 10 Gbit:
#
# ![Two servers, a fast link inside each and a slow one between. In the step called least gradients
# cross between the servers after all GPUs have computed, in 0.938 s; in the one called most during
# the whole step, in 0.474 s.](pictures/16_two_links.svg)
#
# Blue and green: the step of one server, as measured. Orange: what a second server adds. Each
# server sends its sum, and receives the other sum at the same time. How many times as fast two
# servers are should lie between two numbers:
#
# - `least`: nothing else happens while gradients cross between the servers.
# - `most`: gradients cross during the whole step, and only what takes longer than the step is
#   added. This is a bound: gradients exist only after the forward pass.
#
# You need the number of parameters, as `scaling.Workload.of(model)` counts them, and the seconds of
# a step on your whole server: its images, divided by the images a second. TensorFlow's developers
# published images a second, with 64 images on each GPU ([Benchmarks](../docs/sources.md), 2017).
# Put your own in their place:

# %%
mine = {
    "VGG16": (scaling.Workload("VGG16", parameters=138_000_000), 8 * 64 / 1081),
    "ResNet-50": (scaling.Workload("ResNet-50", parameters=25_600_000), 8 * 64 / 1734),
}

# %% [markdown]
# The gradients of VGG16 are 138 million numbers of 4 bytes, 552 MB. A link of 10 Gbit is 1.25 GB a
# second, of which TCP leaves 1.19:

# %%
network, step = mine["VGG16"]
crossing = network.bytes / 1.19e9
print(f"{step:.3f} s to compute, {crossing:.3f} s to cross")
print(f"least: {2 * step / (step + crossing):.2f} times as fast as one server")

# %% [markdown]
# `gains` does this for any link and number of servers. Each server counts as one device of a
# **ring** ([[09]]), and `scaling.Cost()` counts only the link. Of m servers in a ring each sends
# 2(m - 1)/m times the gradients: once for two servers, never twice.

# %%
def gains(network, step, link, servers=2):
    crossing = scaling.ring(network, scaling.Cost(), servers, 1, link).total
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
# The dashed line is this limit. In JupyterLab a panel changes the number of servers:

# %% tags=["varies", "cover"]
ETHERNETS = (links.ETHERNET_10G, links.ETHERNET_25G, links.ETHERNET_100G)


def draw(servers):
    found = {f"{name}, {link.name}": gains(*case, link, servers)
             for name, case in mine.items() for link in ETHERNETS}  # fmt: skip
    ax = drawings.ranges(found, title=f"{servers} servers", across="times as fast as one server",
                         source="predicted from TensorFlow's benchmarks, 2017")  # fmt: skip
    ax.axvline(1.7 / 2 * servers, color="#222", linestyle="--")


drawings.panel(draw, servers=[2, 3, 4, 8])

# %% [markdown]
# Buy for ResNet-50 over 25 or 100 Gbit, and rent first over 10. For VGG16 rent first over 10 or 25.
# A link of 100 Gbit is 12.5 GB/s, of which users of NCCL measured 4 to 7.5 ([issues 22 and
# 450](../docs/sources.md)). `gains` counts with 7.5, and says: buy for VGG16. With 4, `least` is
# 1.55: rent first.
#
# All this counts images a second. Two servers train with twice the global batch, and may need more
# passes to reach the same **accuracy** ([[15]]).
#
# | | |
# |---|---|
# | **Use it when** | a second server costs money, and you have measured the first |
# | **It costs** | some minutes of measuring ([[15]]) |
# | **Instead** | let the gradients cross less often, as below |
#
# ## Proof: others have bought the second server
#
# TensorFlow's page also has times of one to eight servers with eight K80 GPUs each, on Amazon EC2,
# which lists 10 Gbit for such a server. (They hold the variables in shares; about as many bytes
# cross as in a ring.) Only the step of one server goes into the prediction. At 1.00 two servers
# would be twice as fast as one:

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
# No training gained less than `least`. Two gained more than `most`, by less than the published
# rates are rounded. But none of the 15 sends as much for its arithmetic as VGG16, whose bar would
# begin at about 0.5. So for so wide a range this proves nothing.
#
# ## When not to buy a faster link
#
# First let the gradients cross less often. If they are accumulated over four batches ([[10]]), they
# cross once for all four, as in a step that takes four times as long. Each update then sees four
# times the examples, so watch the accuracy:

# %%
network, step = mine["VGG16"]
for batches in (1, 4):
    least, most = gains(network, batches * step, links.ETHERNET_10G)
    print(f"VGG16 over 10 Gbit, crossing after {batches}: {least:.2f} to {most:.2f} times")

# %% [markdown]
# ## A step that you have not measured
#
# If you have four GPUs and think of eight, the step has to be predicted as well, from its parts:
#
# ![Bars of a step on 1, 2 and 4 devices. Arithmetic and a fixed part are the same in all. Moving is
# missing on 1 device, and longer on 4 than on 2.](pictures/16_parts.svg)
#
# Arithmetic grows with the per-device batch, and moving the gradients with the number of devices.
# First without moving: one device takes 11 ms for 64 examples, and 19 ms for 128. So 64 examples
# more take 8 ms more, and 11 - 8 = 3 ms are **fixed**. For 256 examples that makes 4 · 8 + 3 = 35
# ms. `scaling.fit` does the same for any table of measured steps:

# %%
times = {64: 0.011, 128: 0.019}
toy = [scaling.Measurement(Layout(1, batch), seconds) for batch, seconds in times.items()]
scaling.fit(scaling.Workload("toy", parameters=1000), toy).predict(Layout(1, 256))

# %% [markdown]
# It doubts the 35 ms, also because two unknowns fit any two rows exactly.
#
# Is a fit better than doubling the rate of four GPUs? Here both predict published steps of eight,
# the fit from rows of 1, 2 and 4. Above 0 the step took longer than predicted. Behind ± is the
# fit's **interval**, in which about 95 % of such steps should lie:

# %%
def width(step):
    return f"± {step.high / step - 1:.0%}" if step.high else "without interval"


off = []
for name, network, fewer, four, eight in published.eight_after_four():
    step = scaling.fit(network, fewer).predict(eight.layout).total
    off.append([eight.seconds / four.seconds - 1, eight.seconds / step - 1])
    print("{:17} doubled {:6.1%}, fitted {:6.1%}".format(name, *off[-1]), width(step))
middle = np.median(np.abs(off), axis=0)
print("median, no sign   doubled {:6.1%}, fitted {:6.1%}".format(*middle))

# %% [markdown]
# In the median the fit is no better. For AlexNet, which has the most parameters for its arithmetic,
# doubling is four times as far off. For VGG16 with 32 images both are wrong by about a third, as
# the wide interval allows.
#
# ## Break it
#
# **A second server is not eight more GPUs.** A fit to the rows of one server answers for 16
# GPUs, too. It warns that 16 is outside its rows, but does not know of the slow link. Compare it
# with `gains`, for VGG16 with 32 images on each GPU:

# %%
vgg16, rows = published.DGX_1[-1]
fitted = scaling.fit(vgg16, rows)
eight, sixteen = (fitted.predict(Layout(n, 32, "ring")).total for n in (8, 16))
print(f"fitted: {2 * eight / sixteen:.2f} times; in doubt: {sixteen.doubts[0]}")
least, most = gains(vgg16, rows[-1].seconds, links.ETHERNET_10G)
print(f"over 10 Gbit: {least:.2f} to {most:.2f} times")

# %% [markdown]
# The fit promises more than `most`; by `least` two servers are even slower than one.
#
# ## On GPUs
#
# - If NCCL adds up in a tree, inside first, you gain about `least` ([nccl-tests issue
#   196](../docs/sources.md)).
# - If it chooses a ring of all GPUs, nearly twice all gradients cross each link: perhaps less.
# - `fit.strategy` sends packs of 25 MiB or more while the rest is computed: perhaps more.
#
# A link carries less than its name says: measure yours with `iperf3`, and make a `scaling.Link` of
# it.
#
# ## With a model of another kind
#
# Here the table is your own: times of a `fit` with two dense layers, as in [[15]]. From it
# `scaling.fit` predicts a step with another batch, and `gains` a second machine:

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
print(f"{network.parameters:,} parameters")
print(f"a step with 256 on each: {1e3 * step:.1f} ms", width(step))
for link in ETHERNETS:
    least, most = gains(network, step, link)
    print(f"{link.name:17} {least:.2f} to {most:.2f} times as fast")

# %% [markdown]
# Where the interval is wide, measure again on a less busy machine.
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
# **2.** Can a published time be true? The [P40 note](../docs/sources.md#p40) prints 22.25 s on one
# GPU beside a program of 1000 epochs of 40,000 examples. The note copied this time from a program
# of 10 epochs of 50,000 examples. Write `share_of_peak(flops, examples, epochs, seconds, peak)`,
# the share of the GPU's peak that this takes. `flops` are the additions and multiplications (FLOP)
# of training on one example, and `peak` is the most that the GPU does in a second. The check tries
# both programs, and VGG16 on a P100. Fast convolutions make a share of up to 4 possible ([Lavin and
# Gray, 2015](../docs/sources.md)).

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
# - By `least` a second DGX-1 makes VGG16 1.01 times as fast over 10 Gbit.
# - Beside 15 published times of several servers `least` was never too high. It was off by 3.6 % in
#   the median and 12 % at most.
# - If gradients cross after 4 batches, `least` for VGG16 over 10 Gbit is 1.61.
# - For eight GPUs in one server the fit was off by 3.9 % in the median, and doubling by 3.4 %. For
#   AlexNet it was 4.4 % against 17.9 %.
# - A fit to one server promised 1.54 times for the second, where `most` was 1.35.
#
# ## In practice
#
# Measure a step of your server and the rate of the link. Buy where `least` is enough, and rent
# first where only `most` is. This project's own predictions of two and three workers over slow
# links were within 13 % ([benchmarks](../docs/benchmarks.md)).
#
# Next: [[next]].
