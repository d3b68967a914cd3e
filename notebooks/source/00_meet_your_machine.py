# %% [markdown]
# # Meet your machine
#
# Every device of this computer multiplies its share of a matrix, and you see when each of them
# worked.
#
# **You will learn** to
# - get a host and some devices from one call, with or without a GPU,
# - run an operation on a device that you name, and check that it ran there,
# - share one multiplication out over all devices and prove that the result is the same,
# - read a timeline and a placement map of your own run.
#
# **You need** some Python and NumPy. You do not need a GPU.

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
# | `cores` | there is none | one thread of the processor |
#
# `plan` is what `devices.setup` returned: `plan.host` and `plan.devices` are names for `tf.device`,
# and `len(plan)` is the number of devices. Its `mode` line says which of the modes you have, and
# its `timing` line what a timing is worth there. (A GPU since 2020 adds a `float32` line, which
# this lesson explains further down.) The outputs stored in this page come from `cores` mode. Run
# the cells to replace them with yours.

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
# ## What is in this machine
#
# NVIDIA's driver knows the GPUs. Where there is no driver, the list is empty and the report says
# why:

# %%
report = nvml.query()
print("machine has GPUs:", [gpu.name for gpu in report.gpus], report.reason or "")

# %% [markdown]
# In a terminal, `python -m mgpu_helpers` says more: versions, the order of the GPUs, and why
# TensorFlow cannot use one that is there.
#
# TensorFlow keeps a list of its own. Here it is, in the short form that `tf.device` takes:

# %%
print([devices.short(device.name) for device in tf.config.list_logical_devices()])

# %% [markdown]
# These are the names in the plan: the **host**, `/CPU:0`, and then the devices. (With more GPUs
# than devices, `devices.setup` has hidden the rest from TensorFlow.)
#
# In `cores` mode one processor stands behind all of these names. TensorFlow can divide it into
# *logical* devices, if it is told before it starts. Here it is done by hand, in a separate Python
# process, without `devices.setup`:

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
print(done.stdout)

# %% [markdown]
# One processor has become three devices. The plan has made its own in the same way. The two
# settings of threads let an operation use one core, and let as many operations run at once as there
# are devices, so that a device is worth one core.
#
# After the start it is too late. The same call, now, in this notebook:

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 99)
except RuntimeError as error:
    print(error)

# %% [markdown]
# So another number of devices needs a restart of the kernel, and `devices.setup` says so.

# %% [markdown]
# ## The words of the series
#
# | word | what it means here |
# |---|---|
# | **host** | the CPU that feeds the devices and joins what they make |
# | **device** | what does the heavy arithmetic: a GPU, a share of one, or a core |
# | **step** | one run of the work that is repeated, such as one update of the weights |
# | **replica** | a copy of the model, on one device; written out by hand it is a **tower** |
# | **global batch** | the examples of one step, on all devices together |
# | **per-device batch** | how many of them one device gets |
# | **shard** | the piece of a batch, or of any data, that one device gets |
# | **stage** | a part of a model that was cut up, each part on a device of its own |
# | **micro-batch** | a piece of a batch, sent through the stages one after another |

# %% [markdown]
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
# A row of a product needs only the same row of the left matrix. So the left matrix can be cut into
# **shards** of rows, one for each device. The host cuts and joins, so its block is around
# everything. Each device multiplies its own shard, in a block of its own inside:

# %%
def multiply(left, right):
    pieces = []
    with tf.device(plan.host):
        for device, shard in zip(plan.devices, tf.split(left, len(plan))):
            with tf.device(device):
                pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


# %% [markdown]
# The inner block wins. Without the outer one nobody would have placed the cutting and the joining.
# TensorFlow would do both on the host where there is no GPU, and on the first GPU where there is
# one. All of `left` would then go to the first GPU, and the other shards from there to the other
# GPUs. These lessons name a place for what they cut, join and return, so that they do the same on
# every machine.
#
# First on numbers that you can add in your head. A row of ones times `small` gives the sums of its
# columns, 4 and 6. Here are as many such rows as there are devices:

# %%
print(multiply(tf.ones([len(plan), 2]), small).numpy())

# %% [markdown]
# Now two matrices of 1680 rows and columns. `trace.function_step` runs the function twice, once to
# warm up, and keeps what TensorFlow recorded about the second **step**:

# %%
rng = np.random.default_rng(seed=0)
left = rng.integers(-3, 4, [1680, 1680]).astype("float32")
right = rng.integers(-3, 4, [1680, 1680]).astype("float32")

result, step = trace.function_step(multiply, left, right)
print("worked:", step.devices)

# %% [markdown]
# The **placement map** has a lane for each device. A thick arrow is what crosses from one to
# another, with its bytes; a thin one stays where it is. Look for what the host has to send:

# %%
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# With two devices, each gets a shard of 840 rows, which is 840 · 1680 · 4 = 5,644,800 bytes, and
# all of `right`, 11,289,600 bytes. It sends back 840 rows of the product. All of `right` goes to
# every device, however many there are: a price of this way of sharing.
#
# The **timeline** shows when each device worked. Look for bars one above the other:

# %% tags=["varies", "cover"]
charts.timeline(step)
plt.show()

# %% [markdown]
# Where bars stand one above the other, devices worked at the same time. White space in a lane is a
# device that waited, or that received data: copies are not drawn. With several devices the host's
# bar is the last: it joins the pieces when all of them have come. Cutting `left` takes next to no
# time. (On GPUs the bars are short and may lie apart, because copying the matrices takes longer
# than multiplying them. Two devices that share a GPU take turns.)
#
# `make gpu`, on a machine with GPUs, stores the timeline of that machine. This cell shows those
# that are stored:

# %% tags=["varies", "nbval-ignore-output"]
drawings.from_gpus("00")

# %% [markdown]
# ## Proof: the same product
#
# The entries are whole numbers, and float32 adds whole numbers of this size exactly. So the joined
# product has to be equal to NumPy's, without any tolerance:

# %%
print("equal to NumPy's product:", np.array_equal(result, left @ right))

# %% [markdown]
# Other numbers are rounded, and a GPU may round more than you expect. A float32 has 23 bits behind
# the point. TensorFlow lets NVIDIA's GPUs since the Ampere generation of 2020 multiply float32
# numbers as **TF32**, unless it is told not to: with 10 of these bits, and several times as fast.
# Here is what this does to a product, imitated with NumPy:

# %%
def as_tf32(x):
    return ((x.view("uint32") + 0x1000) & 0xFFFFE000).view("float32")  # round to 10 bits


a, b = rng.standard_normal([2, 400, 400], dtype="float32")
exact = a.astype("float64") @ b.astype("float64")
for name, product in [("float32", a @ b), ("TF32", as_tf32(a) @ as_tf32(b))]:
    error = np.abs(product - exact).max() / np.abs(exact).max()
    print(f"{name:8} wrong by about 1e{np.log10(error):.0f} of the largest entry")

# %% [markdown]
# The whole numbers from -3 to 3 fit into 10 bits, so they are exact either way. A gradient is not:
# with TF32, two ways to compute the same step may differ in the third digit, and a mistake of that
# size could not be seen. So `devices.setup` has switched it off in this notebook:

# %%
print("TF32:", tf.config.experimental.tensor_float_32_execution_enabled())

# %% [markdown]
# In a training of your own TF32 is usually worth having. It is on unless you call
# `tf.config.experimental.enable_tensor_float_32_execution(False)`.
#
# ## Was it faster?
#
# One device against all of them, in turn, twenty times each. `tf.function` turns both into graphs
# first, so that TensorFlow knows the whole step before it starts, and `.numpy()` waits for the
# result:

# %%
@tf.function
def on_one(left, right):
    with tf.device(plan.devices[0]):
        return tf.matmul(left, right)


on_all = tf.function(multiply)
with tf.device(plan.host):
    pair = tf.constant(left), tf.constant(right)

# %%
timing.compare(lambda: on_one(*pair).numpy(), lambda: on_all(*pair).numpy(), names=("one", "all"))

# %% [markdown]
# The number is one device's time over that of all, the median of the pairs; in brackets, the
# middle half of them. With as many free cores as devices it comes near the number of devices, less
# what cutting and joining cost. On a machine that is busy with something else, or where the
# `timing` line of the plan says so, the number means nothing.
#
# On GPUs do not expect "all" to win here. A GPU needs about a millisecond for this product, or
# less, and copying the matrices to it takes at least as long. Sharing pays where a device computes
# for longer than its data travels; lesson 07 looks for that point in a training step.
#
# ## Break it
#
# Here is `multiply` again without one line, `with tf.device(device)`. Such a line is easily lost:

# %%
def multiply_somewhere(left, right):
    pieces = []
    with tf.device(plan.host):
        for shard in tf.split(left, len(plan)):
            pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


result, step = trace.function_step(multiply_somewhere, left, right)
print("equal to NumPy's product:", np.array_equal(result, left @ right))

# %% [markdown]
# The product is right and no error is raised. A test of the value cannot reveal that the work was
# never shared. A test of the place does:

# %%
worked = {op.device for op in step.ops if op.type == "MatMul"}
print("multiplied on:", sorted(worked))
print("did not multiply:", sorted(set(plan.devices) - worked))

# %% [markdown]
# Everything was multiplied on the host: its block was the only one left.
#
# ## On your own
#
# Under each exercise is its solution, in JupyterLab a collapsed cell: open it with a click.
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
# - One call gave a host and some devices, and said what stood behind them.
# - An operation ran where `tf.device` said, and its result named the place.
# - All devices shared one multiplication and gave NumPy's product exactly.
# - The map counted what crossed; the timeline showed who worked when.
# - Without `tf.device` the product was still right, and the work was not shared.
#
# ## In practice
#
# - Between two logical CPUs nothing moves: a tensor is handed over. The bytes are counted from its
#   shape, as they would cross to a GPU, and there the copy takes time.
# - `devices.setup` sees to it that TensorFlow takes memory from a GPU as it needs it. Unasked, it
#   takes nearly all of every GPU at the start; lesson 02 is about that.
# - What no block names goes to the host without a GPU, and to the first GPU with one. Code that
#   shares out work should name a place for what it cuts, joins and returns.
# - `trace.function_step` runs the function's graph in a session (lesson 01), on copies of its
#   variables, because only a session keeps such a trace.
# - `MGPU_DEVICES=4` and `MGPU_MODE=cores` in the environment, before the kernel starts, change
#   what every lesson runs on. `MGPU_VERBOSE=1` brings TensorFlow's own messages back.
#
# ## The lessons
#
# [[lessons]]
#
# Next: [[next]].
