# %% [markdown]
# # Predict scaling
#
# Your server trains too slowly, and a second one costs as much as the first. The link between the
# two would be far slower than the links inside, and you want to know what you would gain.
#
# **In this lesson** you answer from one measured step, before you pay, whether a second server is
# worth it.
#
# ![Two servers with a slow link between them. If nothing hides the exchange, it follows the step,
# which takes 0.938 s. If it begins with the backward pass, the step takes 0.622
# s.](pictures/20_two_links.svg)
#
# The picture has a step of VGG16 on two DGX-1, servers with eight P100 GPUs each, and a link of 10
# Gbit. The GPUs of a server add up their gradients, in green, and the servers exchange these sums,
# in orange. At worst the exchange waits for all sums. At best each sum leaves as soon as it is
# ready, so the exchange begins with the backward pass. So two servers are between 1.01 and 1.52
# times as fast as one. For your model, count the seconds of an exchange:
#
# ```python
# from mgpu_helpers import scaling
#
# exchange = scaling.Workload.of(model).bytes / 1.19e9  # over 10 Gbit
# print("worth it at 1.5 times the cost:", step > 2 * exchange)
# ```
#
# `step` is the seconds of a step on your whole server: the images in a step, divided by the images
# a second. True means that an image costs at most 1.5 times as much as before. For another limit,
# and where it is False, the rule below says what to do.
#
# **You need** [[07]], [[10]] and [[19]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import dataclasses

import matplotlib.pyplot as plt
import numpy as np

from mgpu_helpers import scaling
from mgpu_helpers.lessons import drawings, published
from mgpu_helpers.lessons.checks import lesson_20 as checks
from mgpu_helpers.scaling import links

# %% [markdown]
# ## By hand
#
# TensorFlow's developers published what one DGX-1 trains in a second
# ([Benchmarks](../docs/sources.md), 2017): 1081 images with VGG16, and 64 images on each of its
# eight GPUs. VGG16 has 138 million parameters, so the gradients have 552 MB. A link of 10 Gbit
# carries 1.25 GB a second, of which TCP delivered 95.6 % in our benchmark, 1.19:

# %%
step = 8 * 64 / 1081
exchange = 4 * 138e6 / 1.19e9
print(f"a step {step:.3f} s, an exchange {exchange:.3f} s")

# %% [markdown]
# Two servers train twice the images in a step. What they gain has two bounds:
#
# - `least`: nothing happens during the exchange, so the step takes step + exchange.
# - `most`: the exchange begins with the backward pass, which makes the first gradients.
#   The forward pass takes about a third of a step: for each layer, the backward pass computes two
#   gradients, that of the weights and that of the input. So the step takes this third, and then two
#   thirds or the exchange, whichever is longer.

# %%
least = 2 * step / (step + exchange)
most = 2 * step / (step / 3 + max(2 / 3 * step, exchange))
print(f"least {least:.2f}, most {most:.2f} times as fast")

# %% [markdown]
# `gains` does the same for any link and number of servers. In a **ring** of n servers each sends
# 2(n - 1)/n times the bytes of the gradients, once for two servers and 1.75 times for eight:

# %%
def gains(network, step, link, servers=2):
    exchange = 2 * (servers - 1) / servers * network.bytes / link.bandwidth
    least = servers * step / (step + exchange)
    most = servers * step / (step / 3 + max(2 / 3 * step, exchange))
    return least, most

# %% [markdown]
# ## Is it worth it?
#
# Two servers cost twice as much as one. If an image may cost at most 1.5 times as much as before,
# they have to be 2 / 1.5 = 1.33 times as fast. This is our **limit**; you may choose another.
#
# - If `least` is above the limit, buy.
# - If `most` is below it, do not buy.
# - If the limit is between them, rent two servers for an hour.
#
# `least` is above 1.33 if **a step takes over two exchanges**. In the chart, "x 64" is 64 images on
# each GPU, and 100 Gbit carry 4 GB/s, the lowest of the rates that users of NCCL measured ([issues
# 22 and 450](../docs/sources.md)):

# %%
vgg16 = scaling.Workload("VGG16", parameters=138_000_000)
resnet50 = scaling.Workload("ResNet-50", parameters=25_600_000)
mine = {  # seconds of a step on eight GPUs: all images, divided by images a second
    "VGG16 x 64": (vgg16, 8 * 64 / 1081),
    "VGG16 x 32": (vgg16, 8 * 32 / 820),
    "ResNet-50 x 64": (resnet50, 8 * 64 / 1734),
}
at_4 = dataclasses.replace(links.ETHERNET_100G, name="100 Gbit at 4 GB/s", bandwidth=4e9)
ETHERNETS = links.ETHERNET_10G, links.ETHERNET_25G, at_4

# %% tags=["varies", "cover"]
def draw(servers):
    found = {f"{name}, {link.name}": gains(*case, link, servers)
             for name, case in mine.items() for link in ETHERNETS}  # fmt: skip
    drawings.ranges(found, title=f"{servers} servers", across="times as fast as one server",
                    source="predicted from TensorFlow's benchmarks, 2017",
                    limit=servers / 1.5)  # fmt: skip


drawings.panel(draw, servers=[2, 3, 4, 8])

# %% [markdown]
# Over 10 Gbit, VGG16 x 32 is not worth a second server: half of the images take less time, and the
# same gradients cross. ResNet-50 has a fifth of the gradients, so every link is good enough. In
# JupyterLab, a panel changes the number of servers.
#
# These gains are in images a second. With twice the global batch, two servers may need more passes
# to the same accuracy ([[19]]).
#
# | | |
# |---|---|
# | **Use it when** | a second server costs money, and you have measured the first |
# | **It costs** | some minutes of measuring |
# | **Instead** | accumulate gradients over several batches ([[10]]), as below |
#
# ## Proof: others have bought more servers
#
# The same page has times of up to eight servers with eight K80 GPUs each, over 10 Gbit. We predict
# these from the step of one server, the parameters and the rate of the link. 1.00 means that n
# servers are n times as fast as one:

# %%
found, measured = {}, {}
for name, network, servers, one, several in published.on_servers():
    least, most = gains(network, one, links.ETHERNET_10G, servers)
    found[name] = least / servers, most / servers
    measured[name] = one / several
inside = [least <= measured[name] <= most for name, (least, most) in found.items()]
off = [least / measured[name] - 1 for name, (least, _) in found.items()]
print(f"{sum(inside)} of {len(inside)} are between least and most")
print(f"least is off by {np.median(np.abs(off)):.1%} in the median, {-min(off):.0%} at most, "
      f"and never too high: {max(off) < 0}")  # fmt: skip
drawings.ranges(found, measured, title="Predicted (bars) and measured (dots)",
                across="times as fast / number of servers",
                source="predicted and measured: TensorFlow's benchmarks, 2017")  # fmt: skip
plt.show()

# %% [markdown]
# No training gained less than `least`. Two gained more than `most`, by no more than rounding
# explains. Here an exchange is at most about a fifth of a step, so `most` is always 1.00. No dot
# tests it, or an exchange as long as that of VGG16.
#
# ## Instead of a faster link
#
# If four batches are accumulated, the gradients cross once for all four. An update then sees four
# batches, so watch the accuracy:

# %%
for batches in (1, 4):
    least, _ = gains(vgg16, batches * step, links.ETHERNET_10G)
    print(f"VGG16 x 64 over 10 Gbit, exchange after {batches}: at least {least:.2f} times as fast")

# %% [markdown]
# ## Break it
#
# So far the second server brought its own batch. Suppose that you keep the old batch for the sake
# of the accuracy, so each GPU has 32 images instead of 64. Write down whether two servers with 25
# Gbit between them are then faster than one with VGG16:

# %%
whole, half = mine["VGG16 x 64"][1], mine["VGG16 x 32"][1]
exchange = vgg16.bytes / links.ETHERNET_25G.bandwidth
print(f"a step takes over two exchanges over 25 Gbit: {whole > 2 * exchange}")
print(f"one server, 64 images on each GPU: {whole:.3f} s")
print(f"two servers, if 32 took half: {whole / 2 + exchange:.3f} s")
print(f"two servers, as 32 take: {half + exchange:.3f} s")

# %% [markdown]
# With the old batch the second server makes each step slower, though `step > 2 * exchange` is true.
# 32 images take two thirds of the time of 64, because small batches use a GPU less well. So measure
# the step with the images that each server will have.
#
# ## On GPUs
#
# NCCL adds up inside each server first ([nccl-tests issue 196](../docs/sources.md)), so the
# gradients cross the slow link once, as in `gains`. One ring through all GPUs would send nearly
# twice the bytes. Expect about `least`, and more if the exchange begins during the backward pass,
# as under `fit.strategy`. A link carries less than its name says, so measure yours with `iperf3`.
#
# ## On your own
#
# **1.** `efficiency` is 0.8 if two servers are 1.6 times as fast as one. Write
# `slowest(parameters, step, servers, efficiency)`: the bytes a second of the slowest link with
# which `least` for `servers` servers is `efficiency` times `servers`. `step` is the seconds of a
# step on one server. The gradients have 4 bytes for each parameter and go in a ring.

# %% tags=["exercise"]
def slowest(parameters, step, servers, efficiency):
    return 4 * parameters / step


checks.slowest(slowest)

# %% tags=["solution"]
def slowest(parameters, step, servers, efficiency):
    exchange = step / efficiency - step
    return 2 * (servers - 1) / servers * 4 * parameters / exchange


checks.slowest(slowest)

# %% [markdown]
# **2.** Write `batches(parameters, step, bandwidth, gain)`, which returns the smallest number of
# batches over which two servers have to accumulate their gradients, so that `least` reaches `gain`.
# `gain` is below 2, and `bandwidth` is the bytes a second of the link.

# %% tags=["exercise"]
def batches(parameters, step, bandwidth, gain):
    exchange = 4 * parameters / bandwidth
    return round(exchange / step)


checks.batches(batches)

# %% tags=["solution"]
def batches(parameters, step, bandwidth, gain):
    exchange, count = 4 * parameters / bandwidth, 1
    while 2 * count * step / (count * step + exchange) < gain:
        count += 1
    return count


checks.batches(batches)

# %% [markdown]
# ## What we saw
#
# - Over the slow link, a second DGX-1 would make VGG16 between 1.01 and 1.52 times as fast.
# - `least` was never too high for 15 published times, and off by 3.6 % in the median. They test
#   neither `most` nor an exchange as long as that of VGG16.
# - With the old batch, a step of 0.474 s would take 0.497 s on two servers over 25 Gbit.
#
# ## In practice
#
# Measure a step and the rate of the link. Buy if the step takes over two exchanges, and rent first
# if only `most` is above your limit.
#
# Next: [[next]].
