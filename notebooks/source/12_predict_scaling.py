# %% [markdown]
# # Measure and predict scaling
#
# A table of training times, measured here and published, becomes a formula that says what more
# devices would give.
#
# [[previous]] asked whether more devices pay, and measured two. Here the question is how many, and
# what can be said of machines that nobody has measured.
#
# **You will learn** to
# - time a step so that the number means something,
# - measure one network in up to eleven layouts, and check a published time with a pencil,
# - tell strong from weak scaling, and see what a growing batch does to the accuracy,
# - fit a formula to some rows, and ask it about the others,
# - predict more devices, with the band of the link between them,
# - keep results as cards that can be compared.
#
# **You need** lessons 00, 01, 06, 07 and 09.

# %%
from mgpu_helpers import devices

plan = devices.setup(3)
plan

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, results, scaling, timing, towers
from mgpu_helpers import trace as tracing
from mgpu_helpers.lessons import digits, drawings, networks, published
from mgpu_helpers.lessons.checks import lesson_11 as checks

# %% [markdown]
# ## A number that means something
#
# The step is that of lesson 07: a tower on each device of `where`, and variables, average and
# update on `home`. The network is that of the tensorlight notebook, with a quarter of its width:

# %%
network = networks.tensorlight(width=0.25)


def in_towers(where, home, x, y):
    weights = networks.classic(network, device=home)

    def tower(x, y):
        read = towers.read(weights)
        loss = networks.loss(networks.logits(network, read, x), y)
        return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

    gradients = towers.run(tower, where, *zip(*towers.split((x, y), len(where))))
    return zip(towers.average(gradients, device=home), weights.values())


# %% [markdown]
# The model split of lesson 09, with `conv1` on the first device and the rest on the second:

# %%
def split(where, colocate, x, y):
    stages = networks.stages(network, ["conv2"], where)
    for stage in stages:
        with tf.device(stage.device):
            x = stage.function(stage.weights, x)
    with tf.device(where[1]):
        loss = networks.loss(x, y)
    weights = [weight for stage in stages for weight in stage.weights.values()]
    with tf.device(where[0]):
        gradients = tf1.gradients(loss, weights, colocate_gradients_with_ops=colocate)
    return zip(gradients, weights)


# %% [markdown]
# `start` makes a session for one of them, with as many threads as devices work at a time (in a
# plain split that is one), and gives a function that runs a step and one that traces it:

# %%
def start(size, home, build, where, *more):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [size, 28, 28, 1])
            y = tf1.placeholder(tf.int64, [size])
        pairs = list(build(where, *more, x, y))
        with tf.device(home):
            train = tf1.train.AdamOptimizer(1e-4).apply_gradients(pairs)
        init = tf1.global_variables_initializer()
    working = 1 if build is split else len(where)
    config = plan.session_config(devices=working, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run(init)
    feed = dict(zip([x, y], digits.load(size)))
    return lambda: session.run(train, feed), lambda: tracing.session_step(session, train, feed)[1]


# %% [markdown]
# Two sessions of the very same step, which should take the same time. First one run of each, then
# with a warm-up and repeats, in turn:

# %%
first = plan.devices[0]
a, b = (start(128, first, in_towers, [first], first)[0] for _ in range(2))
once = timing.compare(a, b, warmup=0, repeats=1)
print(f"timing  first runs {1e3 * once.a.median:.0f} and {1e3 * once.b.median:.0f} ms")
print(timing.compare(a, b, repeats=15, names=("the one", "the other")))

# %% [markdown]
# The first run of a session prepares the graph and takes several times as long as later ones (see
# the table below), and the very first also starts TensorFlow's threads. The ratio of two first
# runs says nothing of the step. A comparison that may be believed has a warm-up, repeats in turn,
# a **median and spread**; and it must be able to answer "these two cannot be told apart".
#
# ## A published table, and yours
#
# The [tensorlight notebook](../docs/sources.md) trained for 2000 steps in eleven layouts on TitanX
# GPUs. `Layout` says how a step is laid out, and `Measurement` holds what it took. (The memory is
# what the driver showed for each GPU; one layout was run twice, and this is its second run.)

# %%
apart = published.TENSORLIGHT_APART
titanx = {"CPU only": apart["CPU only"]}
titanx |= {repr(row.layout): row for row in published.TENSORLIGHT[:2]}
titanx["split, colocated"] = published.TENSORLIGHT_SPLIT
titanx["split, not colocated"] = apart["not colocated"]
titanx |= {repr(row.layout): row for row in published.TENSORLIGHT[2:]}
for name, row in titanx.items():
    print(f"{name:40} {row.total:6.1f} s, {1e3 * row.seconds:6.2f} ms a batch, {row.memory} MiB")

# %% [markdown]
# The same eleven here, each with its global batch. A layout that asks for more devices than the
# plan has is left out. "CPU only" is the host's core, which in `cores` mode is a core like the
# others:

# %%
def here(name, row):
    n, size, host = row.layout.devices, row.layout.global_batch_size, plan.host
    if name == "CPU only":
        return start(size, host, in_towers, [host], host)
    where, home = plan.devices[:n], host if row.layout.variables == "host" else first
    if row.layout.path == "split":
        return start(size, where[0], split, where, "not" not in name)
    return start(size, home, in_towers, where, home)


possible = {n: row for n, row in titanx.items() if row.layout.devices <= len(plan)}
runs, traces = ({} for _ in range(2))
for name, row in possible.items():
    runs[name], traces[name] = here(name, row)
times = timing.several(runs, warmup=2, repeats=8)

# %% [markdown]
# For each layout: 2000 steps in total, a batch, an example, what the fullest device holds of one
# step (without weights), and the time of an example relative to one device, here, with a quarter
# of the width, and as published. With more devices than cores the time shows nothing of devices,
# and the line says so:

# %%
def per_example(name, seconds):
    return seconds / titanx[name].layout.global_batch_size


one = "1 device x 128"
for name, timed in times.items():
    batch, share = timed.median, per_example(name, timed.median)
    held = max(traces[name]().peak(device) for device in (plan.host, *plan.devices))
    mine = share / per_example(one, times[one].median)
    theirs = per_example(name, titanx[name].seconds) / per_example(one, titanx[one].seconds)
    beyond = plan.mode == "cores" and titanx[name].layout.devices > plan.cores
    print(f"timing  {name:38}{2000 * batch:6.0f} s {1e3 * batch:6.1f} ms {1e6 * share:4.0f} µs "
          f"{held / 1e6:4.0f} MB  {mine:5.2f} and {theirs:5.2f} of one",
          "more devices than cores" if beyond else "")

# %% [markdown]
# Which of these can this machine tell apart? Pairs of runs in turn decide:

# %%
hosted, third = "1 device x 128, variables on the host", "3 devices x 256"
for a, b in [("CPU only", one), (one, hosted), ("split, colocated", "split, not colocated"),
             (third, third + ", variables on the host")]:  # fmt: skip
    if a in times and b in times:
        print(timing.Comparison(times[a], times[b], (a, b)))

# %% [markdown]
# In `cores` mode devices and host share one memory, so where the variables live changes little; on
# the TitanX cards it cost 14 ms a step, and the CPU alone was 19 times as slow as a card. The
# split without colocated gradients does the whole way back on one device (lesson 09).
#
# ## With a pencil
#
# The [P40 note](../docs/sources.md) printed these times of 1, 2, 4 and 8 P40 GPUs, for a network
# with three convolutions, beside a listing with 1000 epochs and batches of 20,000 of 55,000 digits.
# The same four times stand elsewhere beside 10 epochs and batches of 10,000. Count what each asks
# for. A **FLOP** is one addition or multiplication; a training step takes three times those of the
# forward pass, and only whole batches count:

# %%
small = networks.workload(networks.p40())
print(*(f"{row.layout}: {row.total:.2f} s" for row in published.P40), sep=", ")
for epochs, batch in ((1000, 20_000), (10, 10_000)):
    examples = epochs * (55_000 // batch) * batch
    print(scaling.feasible(small, examples, 22.25, published.P40_FLOPS))

# %% [markdown]
# The listing cannot have produced the times; the other settings can. 65.4 MFLOP times 40 million,
# over 22.25 s: it takes a minute, and it says whether a number can be true before anybody explains
# it.
#
# ## Strong and weak
#
# Four GPUs were fastest there, and eight slower. (`make bench` measures that network, with a
# quarter of its width, on 1, 2, 4 and 8 devices.) Those runs kept the global batch: **strong
# scaling**. If every device keeps its batch and the global batch grows, it is **weak scaling**.
# Both here, as **efficiency**: the examples a second, against one device, over the number of
# devices. In strong scaling n devices should take an nth of the time, in weak scaling the same
# time:

# %%
counts, ways = range(1, len(plan) + 1), {}
for n in counts:
    for name, size in (("strong", 840), ("weak", 280 * n)):
        ways[name, n], _ = start(size, first, in_towers, plan.devices[:n], first)
scaled = timing.several(ways, warmup=2, repeats=8)

# %% tags=["varies"]
curves = {}
for name in ("strong", "weak"):
    ideal = {n: 1 / n if name == "strong" else 1.0 for n in counts}
    pairs = {n: timing.Comparison(scaled[name, 1], scaled[name, n]) for n in counts}
    curves[name] = scaling.Curve(tuple(counts), *(
        tuple(getattr(pairs[n], which) * ideal[n] for n in counts)
        for which in ("ratio", "low", "high")
    ))  # fmt: skip
charts.efficiency(curves, measured=(1, len(plan)))
plt.show()

# %% [markdown]
# With one device there is no curve. The axis of devices is logarithmic, and the bands are the
# middle halves. Beyond the number of cores the curves fall because there is no other core.
#
# ## What the growing batch does
#
# Weak scaling has a price that no timing shows: with a larger batch the same epochs have fewer
# updates. A small network, five passes over the digits, plain gradient descent. The batch of 16
# grows to 128, as with eight devices; the learning rate stays, or grows with the batch, at once or
# over the first pass (a **warm-up**). 10 % is guessing; here, above 85 % counts as learned:

# %%
images, labels = digits.load()
tiny = networks.tensorlight(width=1 / 16)


def accuracy(batch, rate, warm_up=0):
    weights, step = networks.variables(tiny), 0

    @tf.function
    def descend(x, y, rate):
        with tf.GradientTape() as tape:
            loss = networks.loss(networks.logits(tiny, weights, x), y)
        for weight, gradient in zip(weights.values(), tape.gradient(loss, list(weights.values()))):
            weight.assign_sub(rate * gradient)

    for epoch in range(5):
        for x, y in digits.batches(images, labels, batch, seed=epoch):
            step += 1
            descend(x, y, tf.constant(rate * min(1, step / warm_up) if warm_up else rate))
    x, y = digits.load(test=True)
    return float(networks.accuracy(networks.logits(tiny, weights, x), y))


# %%
reached = {}
for rate in (0.02, 0.1):
    reached[f"batch 16, rate {rate}"] = accuracy(16, rate)
    reached[f"batch 128, rate {rate}"] = accuracy(128, rate)
    reached[f"batch 128, rate {8 * rate:.2g}"] = accuracy(128, 8 * rate)
    warmed = accuracy(128, 8 * rate, warm_up=len(images) // 128)
    reached[f"batch 128, rate {8 * rate:.2g}, warm-up"] = warmed
for name, share in reached.items():
    print(f"{name:30} {'learned' if share > 0.85 else 'fell behind' if share > 0.2 else 'failed'}")
drawings.accuracies(reached)
plt.show()

# %% [markdown]
# At the low rate the larger batch falls behind, and eight times the rate makes up for it. At the
# higher one the larger batch learns as it is, and eight times the rate is too much: nothing is
# learned, with a warm-up or without. Scaling the rate with the batch is a rule with an end, and
# only the accuracy shows where.
#
# ## A model of the cost
#
# What does a step spend its time on? On arithmetic, which grows with the per-device batch; on
# something that is always there; on the update, where the host holds the variables; and on moving
# parameters, which cross 2n times from and to the host, and 2(n - 1) times with the variables on
# the first of n devices. How many bytes that is, is counted from the layers; what a byte costs is
# fitted:

# %%
workload = networks.workload(networks.tensorlight(), cut="conv2")
print(f"{workload.parameters:,} parameters, {workload.flops / 1e6:.1f} MFLOP an example")


def uses(layout):
    n, host = layout.devices, layout.variables == "host"
    return [layout.per_device_batch, 1, host, (2 * n if host else 2 * (n - 1)) * workload.bytes]


# %% [markdown]
# Four costs, nine published rows. Dividing each row by its seconds makes the errors relative, so
# that a slow row does not count more than a fast one:

# %%
rows, seconds = published.TENSORLIGHT, np.array([row.seconds for row in published.TENSORLIGHT])
asks = np.array([uses(row.layout) for row in rows])
costs = np.linalg.lstsq(asks / seconds[:, None], np.ones(len(rows)), rcond=None)[0]
print(f"{1e3 * costs[0]:.3f} ms an example, {1e3 * costs[1]:.1f} ms a step,",
      f"{1e3 * costs[2]:.1f} ms for the host's update, {1e-9 / costs[3]:.1f} GB/s")

# %% [markdown]
# `scaling.fit` does the same, keeps every cost from going below zero, and says which terms the
# rows cannot tell:

# %%
fitted = scaling.fit(workload, rows)
fitted

# %% [markdown]
# 8 GB/s lies below the 12 that PCIe 3 moves at best, and 2.6 TFLOP/s below the 6.6 of NVIDIA's
# specification of that card. Whether one host feeds all devices one after another (`input`), and
# what a message costs (`latency`), these rows do not tell. The split row was not fitted; the tick
# is what was measured:

# %%
every = [*rows, published.TENSORLIGHT_SPLIT]
labels_of = [f"{row.layout}{' (again)' if i == 3 else ''}" for i, row in enumerate(every)]
predicted = {name: fitted.predict(row.layout) for name, row in zip(labels_of, every)}
measured = {name: row.seconds for name, row in zip(labels_of, every)}
for name in labels_of:
    print(f"{name:40} error {predicted[name].total / measured[name] - 1:+.1%}")
charts.breakdown(predicted, measured, source="fitted to tensorlight: TitanX, 2016")
plt.show()

# %% [markdown]
# A row that helped to fit the formula is no test of it. Leave each layout out in turn, fit the
# others, and ask about the one that is missing:

# %%
answers = scaling.holdout(workload, rows)
off = np.abs(scaling.errors(answers))
print(f"left out: {np.median(off):.1%} off in the median, {off.max():.1%} at most")
from_two = scaling.fit(workload, [row for row in rows if row.layout.devices < 3])
for answer in scaling.asked(from_two, [row for row in rows if row.layout.devices == 3]):
    print(f"from 1 and 2 GPUs to {answer.measurement.layout}: {answer.error:+.1%}")
charts.held_out(answers, source="tensorlight: TitanX, 2016")
plt.show()

# %% [markdown]
# ## How far to trust it
#
# The layout of two devices with 128 each was run twice, and a third time in another place. The fit
# says between which times about 95 % of such runs should lie:

# %%
third_run = apart["third run"]
low, high = (1e3 * bound for bound in scaling.interval(fitted, third_run.layout))
alike = [row for row in (*rows, third_run) if row.layout == third_run.layout]
print("runs:", *(f"{1e3 * row.seconds:.1f} ms," for row in alike), f"{low:.0f} to {high:.0f} ms")
print(f"the third is missed by {scaling.asked(fitted, [third_run])[0].error:.0%}")

# %% [markdown]
# So: **about 10 %, inside one to three GPUs; what is beyond is extrapolation**. That is what the
# rows of one machine say of each other; a run in another place was 40 % off. The other published
# table has four rows, and three of the terms describe it:

# %%
few = scaling.fit(small, published.P40, terms=("arithmetic", "fixed", "moving"))
print(few)
print("left out:", *(f"{a.error:+.0%}" for a in scaling.holdout(small, published.P40,
                                                               terms=few.terms)))  # fmt: skip

# %% [markdown]
# Within 6 %, but that is a description and no test: four rows tell none of the three terms, and a
# row that is left out is missed by up to a third. The bandwidth that comes out is a thirtieth of
# the 8 GB/s above, too slow for a bus. So `moving` probably stands for something else that grew
# with the number of GPUs.
#
# ## What would 8 GPUs give me?
#
# The fitted costs, and another road between the devices. The ends of each `Link` have sources
# (`link.source`); for PCIe the value between them is a guess near our fit. **Central** averaging
# sends everything through one device, a **ring** (lesson 07) does not. With 128 examples on each
# device there is a ceiling, and the table has the number of GPUs for half of it. With a global
# batch of 1024 there is a best number, and more make each step slower:

# %%
links = {link.name: link for link in (scaling.PCIE_3, scaling.NVLINK_3, scaling.ETHERNET_100G)}
roads = {"central": scaling.central, "ring": scaling.ring}
for name, link in links.items():
    for road, way in roads.items():
        at_8 = scaling.efficiency(way, workload, fitted.cost, [8], per_device_batch=128, link=link)
        low, gain, high = (8 * part[0] for part in (at_8.low, at_8.middle, at_8.high))
        knee = scaling.knee(way, workload, fitted.cost, per_device_batch=128, link=link)
        best = scaling.knee(way, workload, fitted.cost, global_batch=1024, link=link)
        print(f"{name:18}{road:8} 8 GPUs: {gain:3.1f} times ({low:3.1f} to {high:3.1f}); half of "
              f"the ceiling:{knee.devices:6,.0f}; best for 1024:{best.devices:4,.0f}")

# %% [markdown]
# The best number may leave 8 examples to a device, where the rows had 128 and more. The picture
# goes up to 1024 devices. In JupyterLab a panel below the picture chooses another per-device batch
# and another network; in a stored page there is the picture alone:

# %% tags=["varies", "cover"]
def draw(batch, width):
    other = networks.workload(networks.tensorlight(width=width))
    cost = scaling.Cost(other.flops / fitted.flops, fitted.cost.fixed)
    curves = {
        f"{road}, {name}": scaling.efficiency(
            way, other, cost, [2**i for i in range(11)], per_device_batch=batch, link=link)
        for name, link in links.items() for road, way in roads.items()
    }  # fmt: skip
    charts.efficiency(curves, measured=(1, 3), source="predicted from tensorlight: TitanX, 2016")


drawings.panel(draw, batch=[128, 32, 64, 256, 512, 1024], width=[1, 0.25, 0.5, 2])

# %% [markdown]
# The shaded strip is the range of devices in the fitted rows, and of the six roads they know the
# first. On one link the ring is above central averaging; the rest depends on the links' numbers.
# And the height assumes equal devices, input that keeps up, and no averaging while others still
# compute.
#
# ## Your own numbers
#
# The same fit to this machine: one and two devices, if there are two cores, at four batches each.
# The first picture has the fit to all rows, a line for each number of devices. In the second every
# row is predicted from the others. The fit also says what four devices would give. (On two cores
# it cannot be tried, and a busy machine can double the errors.)

# %%
able = min(2, len(plan), plan.cores)
layouts = [scaling.Layout(n, b) for n in range(1, able + 1) for b in (64, 128, 256, 512)]
mine = {
    layout: start(layout.global_batch_size, first, in_towers, plan.devices[: layout.devices], first)
    for layout in layouts
}
taken = timing.several({layout: run for layout, (run, _) in mine.items()}, repeats=8)
own = [scaling.Measurement(layout, timed.median) for layout, timed in taken.items()]
quarter = networks.workload(network)
terms = ("arithmetic", "fixed", "moving")[: able + 1]

# %%
answers, own_fit = scaling.holdout(quarter, own, terms=terms), scaling.fit(quarter, own, terms)
off = np.abs(scaling.errors(answers))
four = scaling.speedup(scaling.central, quarter, own_fit.cost, 4, per_device_batch=128)
print(f"timing  left out: {np.median(off):.0%} off in the median, {off.max():.0%} at most")
print(f"timing  4 devices, 128 examples each: {four:.1f} times as fast as one, by this fit")
charts.step_times(own, own_fit)
charts.held_out(answers)
plt.show()

# %% [markdown]
# ## Result cards
#
# Every benchmark of this project writes a card: machine, mode, versions, date, and ratios with
# what they have to reach. `make bench` runs all and makes yours, beside those that are there. A
# chart lays the cards of all machines in the folder over each other. A cross marks what does not
# reach its target; "at most" is met left of the line:

# %% tags=["varies"]
cards = [card for card in results.read_all("../results") if card.name in ("cores", "scaling")]
drawings.cards(cards, relative=True)
plt.show()

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution, in JupyterLab a collapsed cell: open it with a click.
#
# **1.** Write `efficiency(seconds, kind)`. `seconds` has the time of a step by the number of
# devices, and `kind` is `"strong"` (the same global batch) or `"weak"` (the same per-device
# batch). Return the efficiency for each number.

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
# **2.** Somebody writes that a card trained a network of so many FLOP an example for some epochs
# in some seconds. Write `share_of_peak(flops, examples, epochs, seconds, peak)`: the share of the
# card's peak, in FLOP a second, that this takes. `examples` is what one epoch has. Above 1 the
# claim is false.

# %% tags=["exercise"]
def share_of_peak(flops, examples, epochs, seconds, peak):
    return flops * examples / peak


checks.share_of_peak(share_of_peak)

# %% tags=["solution"]
def share_of_peak(flops, examples, epochs, seconds, peak):
    return flops * examples * epochs / seconds / peak


checks.share_of_peak(share_of_peak)

# %% [markdown]
# **3.** Write `fewest(workload, cost, global_batch, seconds)`: the smallest number of devices, up
# to 64, on which a step with central averaging and this global batch takes at most so many
# seconds; `None` if there is none. `scaling.central(workload, cost, n, batch).total` are the
# seconds on n devices with a batch each, which may be a fraction here.

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
# - Two identical steps differed in single runs, and could not be told apart with a warm-up,
#   repeats and pairs.
# - Arithmetic with a pencil ruled out a published listing.
# - At a low rate the larger batch fell behind in accuracy, and eight times the rate made up for
#   it; at a higher one it broke the training.
# - A formula with four costs described nine published rows within 9 %, and predicted rows that
#   were left out within 11 %; a further run of one of them was missed by 40 %.
# - By the formula, central averaging over a bus stops paying long before a ring does.
#
# ## In practice
#
# - Measure your own one and two devices first; the formula then says whether four are worth a try.
# - Elsewhere the measured efficiency depends on the network: eight P100 in one machine trained
#   ResNet-50 7.92 times as fast as one, VGG16 7.02 and AlexNet 5.97 times (TensorFlow's own
#   benchmarks). AlexNet has the most parameters for its arithmetic.
# - MirroredStrategy on two 1080Ti was slower than one card on MNIST: 286 against 197 s
#   (tensorflow issue 35095). A small network has little to share.
# - Libraries start to average the last layers while the first ones still compute. The formula here
#   does not know that, and is too pessimistic there.
# - A prediction belongs on a card too, with its band, before the machine is bought.
#
# Next: [[next]].
