# %% [markdown]
# # Meet your machine
#
# TensorFlow does not spread work over several devices by itself. It puts a model on the first GPU,
# and the other GPUs stay idle. Nothing warns you: the results are right, and a training on four
# GPUs takes as long as on one.
#
# **In this lesson** every device multiplies its share of a matrix, and you see when each of them
# worked.
#
# **You will learn** to
# - get a host and some devices from one call, with or without a GPU,
# - run an operation on a device that you name, and check that it ran there,
# - share one multiplication out over all devices and prove that the result is the same,
# - read a timeline and a placement map of your own run.
#
# **You need** some Python, NumPy and Keras. You do not need a GPU.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %% [markdown]
# Every lesson starts with this cell. It asks for two **devices** and gets them in one of three
# modes:
#
# | mode | when | a device is |
# |---|---|---|
# | `gpus` | there are as many GPUs as devices asked for, or more | a GPU |
# | `split-gpu` | there are GPUs, but fewer | a share of a GPU's memory |
# | `cores` | there is no GPU | one core of the processor |
#
# `plan.host` is the name of the host, `plan.devices` are those of the devices, and `len(plan)` is
# how many there are. The outputs stored in this page come from `cores` mode.
#
# ### What `cores` mode is worth
#
# Left to itself, TensorFlow computes one large product on all cores of the processor.
# `devices.setup` limits an operation to one core, so that a device is worth one core.
#
# - Where a lesson measures "1.7 times as fast", it compares with one core. Plain TensorFlow would
#   have used all cores from the start, so this does not make a training on a laptop faster. It is
#   real parallel work, and it shows how a training on several GPUs behaves.
# - The devices share one memory, so nothing really crosses between them. The bytes that these
#   lessons count are those that would cross between GPUs.

# %%
import os
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, nvml, timing, trace
from mgpu_helpers.lessons import drawings
from mgpu_helpers.lessons.checks import lesson_00 as checks

# %% [markdown]
# ## The trouble
#
# Here is a Keras model of two layers. A **step** is one run of work that is repeated, such as the
# update of the weights in a training. `trace.fit_step` runs one step of what `model.fit` would run,
# and keeps what TensorFlow recorded: which operation ran on which device, and when. Where did the
# matrix products run?

# %% tags=["unplaced"]
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Dense(256, activation="relu"), layers.Dense(10)])
model.compile("sgd", "mse")
inputs, targets = np.ones([64, 100], "float32"), np.zeros([64, 10], "float32")

step = trace.fit_step(model, (inputs, targets))
print("matrix products ran on", *{op.device for op in step.ops if op.type == "MatMul"})

# %% [markdown]
# All of them ran in one place: on the CPU where there is no GPU, and on the first GPU where there
# is one. The plan has more devices, and they multiplied nothing. To use them, somebody has to say
# which device does what.
#
# ## What is in this machine
#
# NVIDIA's driver knows the GPUs. Where there is no driver, the list is empty and the report says
# why:

# %% tags=["nbval-ignore-output"]
report = nvml.query()
print("GPUs:", [gpu.name for gpu in report.gpus], report.reason or "")

# %% [markdown]
# In a terminal, `python -m mgpu_helpers` says more: versions, the order of the GPUs, and why
# TensorFlow cannot use one that is there.
#
# TensorFlow keeps a list of its own. Here it is, in the short form that `tf.device` takes:

# %%
print([devices.short(device.name) for device in tf.config.list_logical_devices()])

# %% [markdown]
# These are the names in the plan: the **host**, `/CPU:0`, and then the devices. With more GPUs than
# devices, `devices.setup` has hidden the rest from TensorFlow.
#
# In `cores` mode one processor stands behind all of these names. TensorFlow can divide it into
# *logical* devices, if it is told before it starts. The next cell does this by hand, without
# `devices.setup`, in a Python process of its own:

# %%
by_hand = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
tf.config.threading.set_intra_op_parallelism_threads(1)  # an operation uses one core
tf.config.threading.set_inter_op_parallelism_threads(2)  # two operations run at once
print([device.name for device in tf.config.list_logical_devices("CPU")])
"""
alone = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}  # it leaves this machine's GPUs alone
done = subprocess.run([sys.executable, "-c", by_hand], capture_output=True, text=True, env=alone)
print(done.stdout or done.stderr, end="")

# %% [markdown]
# One processor has become three devices. The first setting of threads limits an operation to one
# core. The second lets two operations run at once, one for each device that works. `devices.setup`
# made the plan's devices in the same way.
#
# After TensorFlow has started it is too late. Here is the same call in this notebook:

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 99)
except RuntimeError as error:
    print(error)

# %% [markdown]
# So another number of devices needs a restart of the kernel. If you forget, `devices.setup` tells
# you.
#
# ## One operation on one device
#
# `tf.device` names the device for what is created inside its block. The result knows where it was
# made:

# %%
small = tf.constant([[1.0, 2.0], [3.0, 4.0]])
with tf.device(plan.devices[0]):
    product = tf.matmul(small, small)
print(product.numpy())
print("made on", devices.short(product.device))

# %% [markdown]
# The plan's first device made it. The same operation, once on each device:

# %%
for device in plan.devices:
    with tf.device(device):
        print(devices.short(tf.matmul(small, small).device))

# %% [markdown]
# ## One multiplication on all devices
#
# A row of the product needs only the same row of the left matrix, and all of the right one. So the
# left matrix can be cut into **shards** of rows, one for each device:
#
# ![A product of two matrices. The left one is cut into two shards of rows, one for each device; the
# right one stays whole; each device makes the same rows of the product, which are joined
# again.](pictures/00_shared_product.svg)
#
# The host cuts `left` and joins the pieces. Each device multiplies its own shard with all of
# `right`. In code there are two blocks, one inside the other, and the inner one wins:

# %%
def multiply(left, right):
    pieces = []
    with tf.device(plan.host):
        for device, shard in zip(plan.devices, tf.split(left, len(plan))):
            with tf.device(device):
                pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


# %% [markdown]
# The outer block is there for the cutting and the joining. Without it nobody would have placed
# them. TensorFlow would do both on the host where there is no GPU, and on the first GPU where there
# is one. All of `left` would then travel to the first GPU, and the other shards from there to the
# other GPUs.
#
# First on numbers that you can add in your head. The columns of `small` add up to 4 and 6, and a
# row of ones times `small` gives these sums. Here are as many such rows as there are devices:

# %%
print(multiply(tf.ones([len(plan), 2]), small).numpy())

# %% [markdown]
# Now two matrices of 1680 rows and columns. `trace.function_step` runs the function twice, first to
# warm up, and records the second run:

# %%
rng = np.random.default_rng(seed=0)
left = rng.integers(-3, 4, [1680, 1680]).astype("float32")
right = rng.integers(-3, 4, [1680, 1680]).astype("float32")

result, step = trace.function_step(multiply, left, right)
print("worked:", step.devices)

# %% [markdown]
# The **placement map** has a lane for each device. A thick arrow is what crosses from one to
# another, with its bytes. A thin arrow is what stays on its device. Look for what the host has to
# send:

# %%
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# With two devices, each gets a shard of 840 rows, which is 840 · 1680 · 4 = 5,644,800 bytes, and
# all of `right`, 11,289,600 bytes. It sends back 840 rows of the product. All of `right` goes to
# every device, however many there are.
#
# The **timeline** shows when each device worked. Look for bars one above the other:

# %% tags=["varies", "cover"]
charts.timeline(step)
plt.show()

# %% [markdown]
# Where bars stand one above the other, devices worked at the same time. White space in a lane is a
# device that waited, or that received data: copies are not drawn. The percentage is how much of the
# lane has bars. With several devices the host's bar is the last: it joins the pieces when all of
# them have come.
#
# On GPUs the bars are short and may lie apart, because copying the matrices takes longer than
# multiplying them. Two devices that share a GPU take turns. `make gpu`, on a machine with GPUs,
# stores the timeline of that machine, and this cell shows what is stored:

# %% tags=["varies", "nbval-ignore-output"]
drawings.from_gpus("00")

# %% [markdown]
# ## Proof: the same product
#
# The entries are whole numbers, and float32 adds whole numbers of this size exactly. So the joined
# product has to be equal to NumPy's, without any tolerance:

# %%
by_numpy = left @ right
wrong = np.count_nonzero(result != by_numpy)
print(f"{wrong} of {result.size:,} entries differ from those of NumPy")

# %% [markdown]
# Other numbers are rounded, and a GPU may round more than you expect. A float32 keeps 23 bits after
# the binary point. Since the Ampere generation of 2020, NVIDIA's GPUs can multiply float32 numbers
# as **TF32**, with 10 of these bits and several times as fast. TensorFlow lets them, unless it is
# told not to. Here is what this does to a product, imitated with NumPy:

# %%
def as_tf32(x):
    return ((x.view("uint32") + 0x1000) & 0xFFFFE000).view("float32")  # round to 10 bits


a, b = rng.standard_normal([2, 400, 400], dtype="float32")
exact = a.astype("float64") @ b.astype("float64")
for name, product in [("float32", a @ b), ("TF32", as_tf32(a) @ as_tf32(b))]:
    error = np.abs(product - exact).max() / np.abs(exact).max()
    print(f"{name:8} wrong by about 1e{np.log10(error):.0f} of the largest entry")

# %% [markdown]
# The whole numbers from -3 to 3 fit into 10 bits, so they are exact either way. A gradient is not.
# With TF32, two ways to compute the same step may differ in the third digit, and a mistake of that
# size could not be seen. So `devices.setup` has switched TF32 off in this notebook:

# %%
print("TF32:", tf.config.experimental.tensor_float_32_execution_enabled())

# %% [markdown]
# In a training of your own TF32 is usually worth having. After `devices.setup`, switch it on again
# with `tf.config.experimental.enable_tensor_float_32_execution(True)`.
#
# ## Was it faster?
#
# One device against all of them, in turn, ten times each. `tf.function` turns both into graphs
# first, so that TensorFlow knows the whole step before it starts. `.numpy()` waits for the result:

# %%
@tf.function
def on_one(left, right):
    with tf.device(plan.devices[0]):
        return tf.matmul(left, right)


on_all = tf.function(multiply)
with tf.device(plan.host):
    pair = tf.constant(left), tf.constant(right)

# %%
run_one, run_all = lambda: on_one(*pair).numpy(), lambda: on_all(*pair).numpy()
timing.compare(run_one, run_all, repeats=10, names=("one", "all"))

# %% [markdown]
# Each run of "one" and the run of "all" after it make a pair. The number is the ratio of their
# times: the median of the ten pairs, and in brackets the middle half of them. With as many free
# cores as devices it comes near the number of devices, less what cutting and joining cost. On a
# machine that is busy with something else, or where the `timing` line of the plan says so, the
# number means nothing.
#
# On GPUs do not expect "all" to win here. A GPU needs about a millisecond for this product, or
# less, and copying the matrices to it takes at least as long. Sharing pays where a device computes
# for longer than its data travels. [[07]] looks for that point in a training step.
#
# ## Break it
#
# Here is `multiply` again without one line, `with tf.device(device)`:

# %%
def multiply_somewhere(left, right):
    pieces = []
    with tf.device(plan.host):
        for shard in tf.split(left, len(plan)):
            pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


result, step = trace.function_step(multiply_somewhere, left, right)
print("equal to NumPy's product:", np.array_equal(result, by_numpy))

# %% [markdown]
# The product is right and no error is raised. A test of the value cannot reveal that the work was
# never shared. A test of the place can:

# %%
worked = {op.device for op in step.ops if op.type == "MatMul"}
print("multiplied on:", sorted(worked))
print("did not multiply:", sorted(set(plan.devices) - worked))

# %% [markdown]
# Everything was multiplied on the host: its block was the only one left.
#
# ## With your own model
#
# Any Keras model can be looked at in this way. Here is a small residual network with
# BatchNormalization. Put your own in its place, with a batch of your data. `top` lists the layers
# that took the most time, forward and backward pass together. `bytes` is the size of what their
# operations returned, and `count` is how many operations ran:

# %% tags=["nbval-ignore-output"]
def block(x, name):
    out = layers.Conv2D(16, 3, padding="same", name=name)(x)
    out = layers.BatchNormalization(name=f"{name}_norm")(out)
    return layers.Add()([x, layers.ReLU()(out)])


given = tf.keras.Input((32, 32, 3))
x = block(block(layers.Conv2D(16, 3, padding="same", name="first")(given), "block_1"), "block_2")
model = tf.keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
model.compile("adam", "mse")
images, targets = np.ones([64, 32, 32, 3], "float32"), np.zeros([64, 10], "float32")
step = trace.fit_step(model, (images, targets))
step.top(5, by="layer")

# %% [markdown]
# A block of `tf.device` around the step moves it to another device. It moves the whole step, so
# nothing is shared out:

# %%
with tf.device(plan.devices[-1]):
    step = trace.fit_step(model, (images, targets))
print("convolutions ran on", *{op.device for op in step.ops if op.type.startswith("Conv2D")})

# %% [markdown]
# The model's weights stay where they were made, and are copied to the device in each step.
#
# On a GPU, `fit` compiles the step with XLA into one operation. `fit_step` leaves that out, so that
# there are layers to see, and warns you. XLA raises an error if the weights are on another device,
# so for `fit` build the model in the block too, and compile it there.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** On which device does TensorFlow make `tf.ones([2, 2])` when nobody names one? Write the
# short name, such as `"/CPU:3"`.

# %% tags=["exercise"]
answer = None

checks.default_device(answer)

# %% tags=["solution"]
answer = devices.short(tf.ones([2, 2]).device)

checks.default_device(answer)

# %% [markdown]
# **2.** Cut `right` instead of `left`: a column of the product needs only the same column of
# `right`. Write `multiply_columns` so that each device gets all of `left` and only its columns of
# `right`. The check looks at the value, at the places and at the bytes. It puts what you leave
# unplaced on the first device, as TensorFlow does on a GPU machine.

# %% tags=["exercise"]
def multiply_columns(left, right):
    return multiply(left, right)


checks.multiply_columns(multiply_columns)

# %% tags=["solution"]
def multiply_columns(left, right):
    pieces = []
    with tf.device(plan.host):
        for device, shard in zip(plan.devices, tf.split(right, len(plan), axis=1)):
            with tf.device(device):
                pieces.append(tf.matmul(left, shard))
        return tf.concat(pieces, axis=1)


checks.multiply_columns(multiply_columns)

# %% [markdown]
# ## What we saw
#
# - A Keras model used one place, although the plan had two devices, and nothing said so.
# - An operation ran where `tf.device` said, and its result named the place.
# - All devices shared one multiplication and gave NumPy's product exactly.
# - The map counted what crossed. The timeline showed who worked when.
# - Without `tf.device` the product was still right, and the work was not shared.
#
# ## In practice
#
# Use `devices.setup` when a notebook has to run on any machine, and a trace when you want to know
# who did the work. The setup costs the start of TensorFlow, and a trace two runs of the step. Leave
# the setup out of a training that should be fast: it switches TF32 off and, in `cores` mode, limits
# an operation to one core.
#
# - What no block names goes to the host without a GPU, and to the first GPU with one. Code that
#   shares out work should name a place for what it cuts, joins and returns.
# - On whole GPUs `devices.setup` lets TensorFlow take memory as it needs it. In `split-gpu` mode
#   each device takes its share at the start. Unasked, TensorFlow takes nearly all of every GPU.
#   [[02]] is about that.
# - A trace runs the function's graph in a session ([[01]]), on copies of its
#   variables. TensorFlow's profiler watches a training itself, but tells neither the plan's devices
#   in `cores` mode nor the bytes.
# - `MGPU_DEVICES=4` and `MGPU_MODE=cores` in the environment, before the kernel starts, change
#   what every lesson runs on. `MGPU_VERBOSE=1` brings TensorFlow's own messages back.
#
# ## The lessons
#
# [[lessons]]
#
# Three ways through them:
#
# - "I have one model and several GPUs": 00, 01, 03, 06, 07, 08.
# - "I have many scripts": 00, 01, 02, 04, 05.
# - "My model does not fit": 00, 01, 03, 09, 10.
#
# | word | what it means in all of them |
# |---|---|
# | **host** | the CPU that feeds the devices and joins what they make |
# | **device** | what does the heavy arithmetic: a GPU, a share of one, or a core |
# | **step** | one run of the work that is repeated, such as one update of the weights |
# | **shard** | the piece of a batch, or of any data, that one device gets |
# | **replica** | a copy of the model, on one device; written out by hand it is a **tower** |
# | **global batch** | the examples of one step, on all devices together |
# | **per-device batch** | how many of them one device gets |
#
# Next: [[next]].
