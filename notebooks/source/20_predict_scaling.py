# %% [markdown]
# # Predict scaling
#
# Your server trains too slowly, and a second one costs as much as the first. The link between the
# two would be far slower than the links inside.
#
# **In this lesson** you find out from one measured step whether a second server is worth its price.
#
# ![Two servers with a slow link between them. If the exchange follows the step, two servers are
# 1.01 times as fast as one. If it begins with the backward pass, they are 1.52 times as
# fast.](pictures/20_two_links.svg)
#
# The picture shows a step of VGG16 on two servers with eight GPUs each, over a link of 10 Gbit.
# Each server adds up the gradients of its own GPUs, in green. The **exchange**, in orange, adds up
# the sums of the two servers. At worst it follows the step, and at best it begins with the backward
# pass. For your model, compare a step with an exchange:
#
# ```python
# from mgpu_helpers import scaling
#
# exchange = scaling.Workload.of(model).bytes / 1.19e9  # over 10 Gbit
# print("at least 1.33 times as fast:", step > 2 * exchange)
# ```
#
# `step` is the seconds of a step on your whole server: the images in a step, divided by the images
# a second. You pay for two servers, so at 1.33 times the speed an image costs 1.5 times as much.
# For another limit, or if it prints False, use the rule below.
#
# **You need** [[07]], [[10]] and [[19]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import matplotlib.pyplot as plt
import numpy as np

from mgpu_helpers import scaling
from mgpu_helpers.lessons import drawings, published
from mgpu_helpers.lessons.checks import lesson_20 as checks
from mgpu_helpers.scaling import links

# %% [markdown]
# ## By hand
#
# TensorFlow's developers measured a DGX-1, a server with eight P100 GPUs
# ([source](../docs/sources.md), 2017). With VGG16 and 64 images on each GPU, it trains 1081 images
# a second.
#
# VGG16 has 138 million parameters, each with a gradient of 4 bytes. A link of 10 Gbit carries 1.25
# GB a second, of which TCP delivered 95.6 % in [our benchmark](../docs/benchmarks.md), 1.19 GB:

# %%
step = 8 * 64 / 1081
exchange = 4 * 138e6 / 1.19e9
print(f"a step {step:.3f} s, an exchange {exchange:.3f} s")

# %% [markdown]
# Two servers train twice as many images in a step. What they gain has two bounds:
#
# - `least`: the exchange follows the step, and takes its full time.
# - `most`: the exchange begins with the backward pass. This pass takes about two thirds of a step,
#   because it computes two gradients for each layer, of the weights and of the input. After the
#   forward pass, the longer of backward pass and exchange counts.

# %%
least = 2 * step / (step + exchange)
most = 2 * step / (step / 3 + max(2 / 3 * step, exchange))
print(f"least {least:.2f}, most {most:.2f} times as fast")

# %% [markdown]
# `gains` computes both bounds for any link and number of servers. In a **ring** of n servers each
# sends 2(n - 1)/n times the bytes of the gradients:

# %%
def gains(network, step, link, servers=2):
    exchange = 2 * (servers - 1) / servers * network.bytes / link.bandwidth
    least = servers * step / (step + exchange)
    most = servers * step / (step / 3 + max(2 / 3 * step, exchange))
    return least, most

# %% [markdown]
# ## Is it worth it?
#
# If an image may cost at most 1.5 times as much as before, two servers have to be 2 / 1.5 = 1.33
# times as fast as one. This is our **limit**.
#
# - If `least` is above the limit, buy.
# - If `most` is below it, do not buy.
# - If the limit is between them, rent two servers for an hour.
#
# `least` is 2 · step / (step + exchange), which is above 1.33 if **a step takes over two
# exchanges**.
#
# We ask this of two networks from the same benchmark. "x 64" means 64 images on each GPU. A link of
# 100 Gbit carries 4 GB a second here, the lowest rate that users of NCCL measured ([issues 22 and
# 450](../docs/sources.md)):

# %%
vgg16 = scaling.Workload("VGG16", parameters=138_000_000)
resnet50 = scaling.Workload("ResNet-50", parameters=25_600_000)
mine = {  # seconds of a step on eight GPUs: all images, divided by images a second
    "VGG16 x 64": (vgg16, 8 * 64 / 1081),
    "VGG16 x 32": (vgg16, 8 * 32 / 820),
    "ResNet-50 x 64": (resnet50, 8 * 64 / 1734),
}
ETHERNETS = links.ETHERNET_10G, links.ETHERNET_25G, published.ETHERNET_100G_AT_4

# %% tags=["varies", "cover"]
def draw(servers):
    found = {f"{name}, {link.name}": gains(*case, link, servers)
             for name, case in mine.items() for link in ETHERNETS}  # fmt: skip
    drawings.ranges(found, title=f"{servers} servers", across="times as fast as one server",
                    source="predicted from TensorFlow's benchmarks, 2017",
                    limit=servers / 1.5)  # fmt: skip


drawings.panel(draw, servers=[2, 3, 4, 8])

# %% [markdown]
# Over 10 Gbit, a second server is not worth it for VGG16 x 32: with half of the images a step is
# shorter, but as many gradients cross. ResNet-50 has a fifth of the gradients, so every link is
# fast enough.
#
# With twice the global batch, a training may need more passes to the same accuracy ([[19]]).
#
# | | |
# |---|---|
# | **Use it when** | a second server costs money, and you have measured the first |
# | **It costs** | some minutes of measuring |
# | **Instead** | accumulate gradients over several batches ([[10]]), as below |
#
# ## Proof: others have bought more servers
#
# The same benchmark measured up to eight servers with eight K80 GPUs each, over 10 Gbit. Each
# server holds a share of the variables, so about as many bytes cross as in a ring. We predict each
# gain from the step of one server, and divide it by the number of servers:

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
# No training gained less than `least`, the bound by which you buy. Two dots are beyond `most` by no
# more than rounding explains. Every exchange here is shorter than a backward pass, so this does not
# test one as long as that of VGG16.
#
# ## Instead of a faster link
#
# If the gradients of four batches are accumulated, they cross once instead of four times:

# %%
for batches in (1, 4):
    least, _ = gains(vgg16, batches * step, links.ETHERNET_10G)
    print(f"VGG16 x 64 over 10 Gbit, exchange after {batches}: at least {least:.2f} times as fast")

# %% [markdown]
# ## Break it
#
# Suppose that two servers share the old batch, so each GPU has 32 images of VGG16 instead of 64.
# Write down whether a step takes less time then, over 25 Gbit:

# %%
whole, half = mine["VGG16 x 64"][1], mine["VGG16 x 32"][1]
exchange = vgg16.bytes / links.ETHERNET_25G.bandwidth
print(f"one server: {whole:.3f} s")
for how, short in {"if 32 took half": whole / 2, "as 32 take": half}.items():
    best = short / 3 + max(2 / 3 * short, exchange)
    print(f"two servers over 25 Gbit, {how}: {best:.3f} to {short + exchange:.3f} s")

# %% [markdown]
# The step may become longer. 32 images take more than half of the time of 64, because small batches
# use a GPU less well. So measure the step with as many images as each server will have.
#
# ## On GPUs
#
# NCCL adds up inside each server first, as `gains` supposes ([nccl-tests issue
# 196](../docs/sources.md)). A link carries less than its name says, so measure yours with `iperf3`.
#
# ## On your own
#
# **1.** If two servers are 1.6 times as fast as one, their efficiency is 0.8. Write
# `slowest(parameters, step, servers, efficiency)`, which returns the bytes a second of the slowest
# link with which `least` is `efficiency * servers`. `step` is the seconds of a step on one server.
# Each gradient has 4 bytes, and the servers form a ring.

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
# **2.** Over how many batches do two servers have to accumulate their gradients? Write
# `batches(parameters, step, bandwidth, gain)`, which returns the smallest number with which `least`
# reaches `gain`. `step` is the seconds of one batch on a server, `bandwidth` is the bytes a second
# of the link, and `gain` is below 2.

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
# - `least` was never too high for 15 published times, and off by 3.6 % in the median.
# - With the old batch, a step would take 0.312 to 0.497 s on two servers over 25 Gbit.
#
# ## In practice
#
# Measure a step and the rate of the link. Buy if `least` is above your limit, and rent first if
# only `most` is.
#
# Next: [[next]].
