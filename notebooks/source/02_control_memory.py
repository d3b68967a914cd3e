# %% [markdown]
# # Control memory
#
# You limit what TensorFlow takes of a GPU, and you know what a training step needs before it runs.
#
# [[previous]] chose where operations run. What they hold there was left to TensorFlow, which takes
# nearly the whole memory of every GPU that it sees.
#
# **You will learn** to
# - limit that memory, in classic and in today's code,
# - recognise settings that come too late or do not go together,
# - say what a training step holds, and when,
# - count whether a batch will fit,
# - watch memory during a training, and find what should have been freed.
#
# **You need** lessons 00 and 01.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.eager import context

from mgpu_helpers import charts, memory, nvml, towers, trace
from mgpu_helpers.lessons import count, digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_02 as checks

# %% [markdown]
# ## Who holds what
#
# "How much memory?" has three answers. The **driver** says what all processes have taken of a GPU;
# that is what `nvidia-smi` shows. The **process** has the host's memory besides:

# %%
report = nvml.query()
print("machine ", report.reason or "the driver answers")
for gpu in report.gpus:
    print("machine  GPU", gpu.index, charts.size_text(gpu.memory_used or 0), "taken")
print("machine  this process", charts.size_text(memory.process()))

# %% [markdown]
# In between, TensorFlow's **allocator** takes large pieces from the driver and hands them out, so
# it knows what tensors use:

# %%
try:
    print("machine ", memory.allocator(plan.devices[0]))
except RuntimeError as error:
    print("machine ", error)

# %% [markdown]
# Without a GPU only the process has an answer. For the devices of `cores` mode, traces will have
# one, further down.
#
# ## What can be said
#
# | what you want | classic, in the `ConfigProto` | today, in `tf.config` | from outside |
# |---|---|---|---|
# | a share of each GPU | `per_process_gpu_memory_fraction` | | |
# | start small and grow | `allow_growth` | `set_memory_growth` | `TF_FORCE_GPU_ALLOW_GROWTH` |
# | a limit in MiB | `virtual_devices` (experimental) | `memory_limit` of a logical device | |
# | another allocator | `use_cuda_malloc_async` (experimental) | | `TF_GPU_ALLOCATOR` |
# | leave a GPU alone | `visible_device_list` | `set_visible_devices` | `CUDA_VISIBLE_DEVICES` |
#
# The classic form is a message that a session gets:

# %%
config = tf1.ConfigProto()
config.gpu_options.per_process_gpu_memory_fraction = 0.4
config.gpu_options.allow_growth = True
config

# %% [markdown]
# The share is a fraction of one: 0.4 is 40 %. The message takes any number, also one above 1. It
# acts only in the first session of a process: TensorFlow makes one allocator for each GPU, when it
# starts, and keeps it until the process ends. So what a later session says about memory changes
# nothing, and `plan.session_config` has no such option.
#
# Today's form has to be said before TensorFlow starts. It has started in this notebook, and there
# may be no GPU. In the block of `memory.pretend_gpus`, TensorFlow has not started, and its list
# has GPUs that do not exist. Nothing can run on them, but all of its rules about them apply:

# %%
with memory.pretend_gpus(2) as gpus:
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    print("growth:", context.context().config.gpu_options, sep="\n")
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    tf.config.set_logical_device_configuration(gpus[0], [limit, limit])
    tf.config.set_visible_devices(gpus[0], "GPU")
    print("then a limit:", context.context().config.gpu_options, sep="\n")

# %% [markdown]
# `set_memory_growth` became the classic `allow_growth`, and `set_visible_devices` the classic
# `visible_device_list`. Then the first GPU was cut into two devices of 1024 MiB (TensorFlow writes
# MB and means MiB). Look for `allow_growth` in the second message: the limit took it away, and
# nobody said so.
#
# `devices.setup` chooses for you: growth when each device is a GPU, limits when they share one.
# `memory.logical(gpu, [1024, 1024])` sets limits of your own, and first checks that they fit the
# card.
#
# ## The memory lab
#
# What does each option take? `scripts/hold_memory.py` sets one after the other, each in a process
# of its own, makes 500 MB of tensors there, deletes them, and reports. The chart has what each
# held at most:

# %% tags=["varies"]
script = [sys.executable, "scripts/hold_memory.py"]
done = subprocess.run(script, capture_output=True, text=True, check=True)
records = [json.loads(line) for line in done.stdout.splitlines()]
drawings.lab(records)
plt.show()

# %% [markdown]
# Without a GPU there is one bar for each option, the memory of the process, TensorFlow's own code
# included. They are about alike, because these options concern GPUs. With a GPU, compare what the
# driver gave away with what the tensors needed. Whoever ran the lab on a GPU may have left a
# **result card**:

# %% tags=["varies"]
cards = sorted(Path("../results").glob("memory-*.json"))
for card in map(json.loads, map(Path.read_text, cards)):
    drawings.lab(card["numbers"]["lab"]).set_title(f"{card['machine']}, {card['date']}", loc="left")
    plt.show()
print("cards from a GPU:", len(cards) or "none; this makes one: python benchmarks/memory.py")

# %% [markdown]
# And when the tensors are deleted? Here is one process at four moments (on a GPU: what the driver
# says):

# %% tags=["varies"]
taken = records[3]["driver"] or records[3]["process"]  # set_memory_growth
stages = ["TensorFlow not started", "holding 500 MB of tensors", "tensors deleted", "process ended"]
rows = [{"option": stage, "process": size} for stage, size in zip(stages, taken)]
drawings.lab(rows).set_title("One process at four moments", loc="left")
plt.show()

# %% [markdown]
# If the third bar is as long as the second, TensorFlow kept the memory for its next tensors. On a
# GPU it does, and on processors where it computes with the library oneDNN, as on most
# PCs. The end of the process gives it back. So of two notebooks on one GPU the first keeps what it
# once took, even while it idles: restart its kernel, or give each a limit.
#
# ## What a step holds
#
# The options do not change what a step needs. Here is a training step, on one device, of a network
# with three convolutions, each followed by a pool (its dropout is off here). `width=0.125` makes
# it an eighth as wide as the original:

# %%
def build(network):
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        weights = towers.read(networks.classic(network))
        loss = networks.loss(networks.logits(network, weights, x), y)
        tf1.train.AdamOptimizer(1e-3).minimize(loss, name="train")
        tf1.global_variables_initializer()
    config = plan.session_config(devices=1, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run("init")
    return session


network = networks.jang(width=0.125)
network

# %% [markdown]
# `step_of` traces one step on a batch. The trace has every allocation; added up, they are the
# bytes alive at each moment:

# %% tags=["varies", "cover"]
images, labels = digits.load(1024)
session = build(network)
train_step = session.graph.get_operation_by_name("train")


def step_of(batch):
    feed = {"x:0": images[:batch], "y:0": labels[:batch]}
    session.run(train_step, feed)  # the first run prepares the graph
    return trace.session_step(session, train_step, feed)[1]


step = step_of(512)
charts.live_bytes(step)
plt.show()

# %% [markdown]
# In the forward pass memory climbs, layer after layer, because the backward pass will need what
# each layer computed: its **activations**. In the backward pass gradients come on top. The peak is
# near its end, at the first and largest layers. At the end of the step everything has been freed.
# What is alive at the peak? The four largest, as float32 numbers per example:

# %%
device = plan.devices[0]
for held in memory.at_peak(step, device, scratch=False)[:4]:
    print(f"{held.bytes / 512 / 4:6.0f}  {held.op}")

# %% [markdown]
# The way back has reached the first pool. The outputs of the first convolution and of its pool are
# still there, 28 · 28 · 8 and 14 · 14 · 8 numbers. So are their gradients: the pool's backward
# operation made that of `conv1`, and the backward operation of `conv2` that of the pool.
# (`scratch=False` leaves out what an operation borrows only while it runs; that depends on the
# library that computes.)
#
# Two things are alive during the whole step and not in the trace, because they were there before
# it: the **weights**, and the **slots** of the optimizer, two numbers per weight for Adam.
#
# ## Count it
#
# So the peak can be counted from the shapes:

# %%
outputs = 28 * 28 * 8 + 14 * 14 * 8
counted, measured = 4 * 512 * 2 * outputs, step.peak(device, scratch=False)
print(f"{2 * outputs:,} numbers an example, a batch of 512: {charts.size_text(counted)}")
print("the trace says the same within 10 %:", abs(counted / measured - 1) < 0.1)

# %% [markdown]
# What is missing is small: gradients of the weights, notes that the pools take.
#
# `count.predict` counts the same way, with weights and slots. Does it hold for other batches? Of
# each pair of bars, the first is counted. In the second, activations and gradients are measured;
# activations include the gradients that pass:

# %% tags=["varies"]
in_weights = 4 * networks.parameters(network)
bars = {}
for batch in (64, 128, 256, 512):
    counted = count.predict(network, batch)
    own = {"weights": in_weights, "slots": 2 * in_weights}
    measured = memory.by_use(step_of(batch), device, **own, scratch=False)
    bars |= {f"{batch}\ncounted": counted, f"{batch}\nmeasured": measured}
    right = abs(counted.total / measured.total - 1) < 0.1
    print(f"{batch:3} examples, counted right within 10 %:", right)
charts.held(bars)
plt.show()

# %% [markdown]
# Weights, slots and the gradients of the weights stay as they are; activations grow with the
# batch, and soon they are nearly everything. An optimizer with fewer slots would help little here,
# and a smaller batch a lot.
#
# ## Will it fit?
#
# Turned around, the count says which batch fits a budget. One step is measured at that limit, and
# one with a tenth more examples:

# %%
budget = 25_000_000
largest = count.fits(network, budget)
for batch in (largest, largest * 11 // 10):
    needed = 3 * in_weights + step_of(batch).peak(device, scratch=False)
    print("at the limit" if batch == largest else "above it", "fits:", needed <= budget)

# %% [markdown]
# For a model that `predict` does not know, measure two small batches. The peak is a fixed part and
# a part for each example, a line, and two points give a line:

# %%
peaks = [step_of(batch).peak(device, scratch=False) for batch in (64, 128, 1024)]
fixed, per_example = memory.line([64, 128], peaks[:2])
ratio = (fixed + 1024 * per_example) / peaks[2]
print("1024 examples, predicted from 64 and 128, right within 10 %:", abs(ratio - 1) < 0.1)

# %% [markdown]
# ## The same today
#
# A `tf.function` with a tape and the same weights. It descends without Adam, whose slots would not
# be in the trace either. The order of its operations is less fixed than that of the graph, so this
# takes the best of three steps:

# %%
twins = networks.variables(network, device=device)


@tf.function
def train_today(x, y):
    with tf.device(device):
        with tf.GradientTape() as tape:
            loss = networks.loss(networks.logits(network, twins, x), y)
        for weight, gradient in zip(twins.values(), tape.gradient(loss, list(twins.values()))):
            weight.assign_sub(0.01 * gradient)


steps = [trace.function_step(train_today, images[:512], labels[:512])[1] for _ in range(3)]
today = min(each.peak(device, scratch=False) for each in steps)
within = abs(today / step.peak(device, scratch=False) - 1) < 0.1
print("the peak of the graph, within 10 %:", within)

# %% [markdown]
# What does not fit on one device may fit on several. Here each gets its share of 504 examples and
# reads the same weights; lessons 06 and 07 make a training of it. Compare with the peak of the one
# device in the curve above:

# %% tags=["varies"]
def shared(x, y):
    gradients = []
    with tf.device(plan.host):
        shards = zip(tf.split(x, len(plan)), tf.split(y, len(plan)))
    for each, shard in zip(plan.devices, shards):
        with tf.device(each):
            with tf.GradientTape() as tape:
                loss = networks.loss(networks.logits(network, twins, shard[0]), shard[1])
            gradients.append(tape.gradient(loss, list(twins.values())))
    return gradients


size = 504 - 504 % len(plan)
_, all_devices = trace.function_step(shared, images[:size], labels[:size])
charts.device_bars({each: all_devices.peak(each, scratch=False) for each in plan.devices})
plt.show()

# %% [markdown]
# ## Proof
#
# A step small enough to add up by hand. `y` has 1000 rows of 50 numbers, 200,000 bytes. The loss
# is the sum of its squares, so when the way back begins, two of that size are alive: `y` and its
# gradient, 2 · `y`:

# %%
with tf.Graph().as_default() as small, tf.device(device):
    x = tf1.placeholder(tf.float32, [1000, 200])
    w = tf1.get_variable("w", [200, 50])
    y = tf.nn.relu(tf.matmul(x, w))
    loss = tf.reduce_sum(tf.square(y))
    small_step = w.assign_sub(0.01 * tf1.gradients(loss, w)[0]).op

with tf1.Session(graph=small, config=plan.session_config(devices=1)) as by_hand:
    by_hand.run(w.initializer)
    for _ in range(2):
        tiny = trace.session_step(by_hand, small_step, {x: np.ones([1000, 200])})[1]
print(f"by hand {2 * 1000 * 50 * 4:,} bytes, traced {tiny.peak(device, scratch=False):,}")
print("alive at the end:", tiny.memory[device][-1][1])

# %% [markdown]
# Equal to the byte, and at the end all is back. A step gives what it took to TensorFlow's
# allocator, which keeps it or not, as you saw.
#
# ## Watch it
#
# A `Monitor` asks the process, the driver, and on a GPU also the allocator, ten times a second, in
# the background. Phases mark what ran. Here with a network four times as wide:

# %% tags=["varies"]
with memory.Monitor() as monitor:
    with monitor.phase("build"):
        bigger = build(networks.jang(width=0.5))
    for batch in (128, 1024):
        feed = {"x:0": images[:batch], "y:0": labels[:batch]}
        with monitor.phase(f"batch of {batch}"):
            for _ in range(4):
                bigger.run("train", feed)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# ## Break it
#
# **Too late.** In this notebook TensorFlow has started, and it takes no more settings:

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
except RuntimeError as error:
    print(error)

# %% [markdown]
# **What does not go together.** Growth on one of two GPUs is no error until TensorFlow starts. A
# limit and then growth is an error at once; growth and then a limit was silent. The last is a
# limit on a CPU:

# %%
def refused(call, *args):
    try:
        call(*args)
    except ValueError as error:
        print(error)


with memory.pretend_gpus(2) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    refused(tf.ones, [])
    tf.config.set_logical_device_configuration(gpus[1], [limit])
    refused(tf.config.experimental.set_memory_growth, gpus[1], True)
    refused(tf.config.set_logical_device_configuration, cpu, [limit])

# %% [markdown]
# **A list that keeps too much.** A training in today's code collects its losses. One way keeps
# numbers; the other keeps each loss with its tape, and a persistent tape holds the activations of
# its step:

# %%
def one_step():
    with tf.GradientTape(persistent=True) as tape:
        loss = networks.loss(networks.logits(network, twins, images), labels)
    tape.gradient(loss, list(twins.values()))
    return loss, tape


def numbers_only(steps):
    return [float(one_step()[0]) for _ in range(steps)]


def losses_and_tapes(steps):
    return [one_step() for _ in range(steps)]

# %% tags=["varies"]
numbers_only(2)  # warm up
with memory.Monitor(every=0.05) as monitor:
    for train in (numbers_only, losses_and_tapes):
        with monitor.phase(train.__name__):
            history = train(15)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# The numbers cost nothing to speak of. Each kept tape costs the activations of 1024 examples, and
# the curve climbs until the list is dropped or memory ends. (On a GPU look at the allocator's
# curve.)

# %% [markdown]
# **A graph that grows.** The classic form of the same mistake makes new operations in the loop.
# Each round adds to the graph, and nothing takes it away:

# %%
with small.as_default():
    for _ in range(3):
        tf.square(loss)
        print(len(small.get_operations()), "operations")

small.finalize()
try:
    with small.as_default():
        tf.square(loss)
except RuntimeError as error:
    print(error)

# %% [markdown]
# `finalize` is the check: a finished graph takes no more operations.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Build a classic configuration with which a session starts small, grows, and takes a
# quarter of each GPU at most.

# %% tags=["exercise"]
answer = tf1.ConfigProto()

checks.quarter_and_growth(answer)

# %% tags=["solution"]
answer = tf1.ConfigProto()
answer.gpu_options.per_process_gpu_memory_fraction = 0.25
answer.gpu_options.allow_growth = True

checks.quarter_and_growth(answer)

# %% [markdown]
# **2.** Find the largest batch, to 5 %, with which a step of this network, trained with momentum
# (`slots=1`), stays within 60 MB. The check runs and traces it.

# %% tags=["exercise"]
wider = networks.jang(hidden=9600, width=0.25)
answer = 1

checks.batch_that_fits(answer)

# %% tags=["solution"]
wider = networks.jang(hidden=9600, width=0.25)
answer = count.fits(wider, 60_000_000, slots=1)

checks.batch_that_fits(answer)

# %% [markdown]
# **3.** `train(step, steps)` calls `step()`, which returns a loss and its tape, and should give
# the losses as a list of numbers. Change it so that no more than one tape is alive at a time. The
# check counts them.

# %% tags=["exercise"]
def train(step, steps):
    return [step() for _ in range(steps)]


checks.lets_go(train)

# %% tags=["solution"]
def train(step, steps):
    losses = []
    for _ in range(steps):
        loss, tape = step()
        losses.append(float(loss))
    return losses


checks.lets_go(train)

# %% [markdown]
# ## What we saw
#
# - Classic and today's options became the same configuration, and a limit silenced growth.
# - Options that came too late or did not go together were refused in TensorFlow's own words.
# - Most of what a training step held at its peak was activations and their gradients. Counted from
#   the layers' shapes, they were right within 10 %, and so was the largest batch for a budget.
# - What a step took it gave back, to TensorFlow's allocator.
# - A list of losses that kept tapes grew by the activations of every step.
#
# ## In practice
#
# - Start with growth. It keeps GPUs usable for others and shows in `nvidia-smi` what you need. Set
#   a limit where two processes share a GPU for long, so that neither can starve the other.
# - Growth takes memory in pieces and cannot be undone. Where the pieces no longer fit together,
#   `TF_GPU_ALLOCATOR=cuda_malloc_async` may help: the driver then manages them.
# - "Out of memory" is a `ResourceExhaustedError` with the shape that did not fit. Halve the batch,
#   then look at the peak of a trace.
# - cuDNN and cuBLAS take workspaces of their own, and a CUDA context takes some hundred MB of each
#   GPU for each process. Leave a tenth of the card free when you count.
# - For memory over a whole training of today's code on a GPU, TensorFlow's Profiler has a memory
#   viewer.
#
# Next: [[next]].
