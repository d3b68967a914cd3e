# %% [markdown]
# # Meet your machine
#
# TensorFlow does not spread work over several devices by itself. It puts a model on the first GPU,
# and the other GPUs stay idle. Nothing warns you: the results are right, and a training on four
# GPUs takes as long as on one.
#
# **In this lesson** a Keras model trains on every device of your machine, and you see when each of
# them worked.
#
# **You will learn** to
# - get a host and some devices from one call, with or without a GPU,
# - train a Keras model on all of them, and check that all of them worked,
# - share one multiplication out over them by hand, and prove that the result is the same,
# - read a timeline and a placement map of your own run.
#
# **You need** some Python, NumPy and Keras. You do not need a GPU.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %% [markdown]
# Every lesson starts with this cell. It asks for two **devices**: two GPUs where there are two,
# two shares of a GPU where there is one, and two cores of the processor where there is none.
# `plan.host` is the name of the host, and `plan.devices` are those of the devices. The outputs
# stored in this page come from a machine without a GPU.

# %%
import os
import subprocess
import sys

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, nvml, timing, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_00 as checks

# %% [markdown]
# ## The lines to paste
#
# Here is a Keras model that reads handwritten digits. Build and compile your own in its place:

# %%
def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input([28, 28, 1]),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


# %% [markdown]
# Two lines put its training on all devices. The model has to be built and compiled inside the
# block, and `fit` stays as it was:

# %%
x, y = digits.load(1024)

with fit.strategy(plan).scope():
    on_all = build()
history = on_all.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{share:.2f}" for share in history["accuracy"]])

# %% [markdown]
# Of each batch of 64 digits every device took its share, and the devices added up their gradients.
# One device alone, with the same batches, learns the same:

# %%
on_one = build()
alone = on_one.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{share:.2f}" for share in alone["accuracy"]])
print("losses agree:", np.allclose(history["loss"], alone["loss"], rtol=1e-3))

# %% [markdown]
# The numbers are the same either way, so they cannot tell you who did the work. A trace can.
# `trace.fit_step` runs one **step** of `fit`, which is one update of the weights, and keeps what
# TensorFlow recorded. Where were the convolutions computed?

# %% tags=["unplaced"]
for name, model in [("with the strategy", on_all), ("without", on_one)]:
    step = trace.fit_step(model, (x[:64], y[:64]))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# With the strategy all devices computed. Without it, everything ran in one place, which is the CPU
# where there is no GPU, and the first GPU where there is one.
#
# | `fit.strategy` | |
# |---|---|
# | Use it when | a model fits on one device, and its steps take longer than an exchange |
# | It costs | a copy of the model on each device, and an exchange of all gradients in each step |
# | Instead | [[10]] when the model does not fit; [[04]] when you have many scripts |
#
# [[07]] says more about `fit` on all devices. In the rest of this lesson you share out a single
# operation by hand, to see what a device, a copy and a wait look like.
#
# ## What is in this machine
#
# NVIDIA's driver knows the GPUs. Where there is no driver, the list is empty and the report says
# why. In a terminal, `mgpu` says more, for example why TensorFlow cannot use a GPU that is there.

# %% tags=["nbval-ignore-output"]
report = nvml.query()
print("GPUs:", [gpu.name for gpu in report.gpus], report.reason or "")

# %% [markdown]
# Without a GPU, one processor stands behind the host and all devices. TensorFlow can divide it into
# *logical* devices, if it is told before it starts. The next cell does by hand what `devices.setup`
# does on such a machine, in a Python process of its own:

# %%
by_hand = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
tf.config.threading.set_intra_op_parallelism_threads(1)  # an operation uses one core
tf.config.threading.set_inter_op_parallelism_threads(2)  # two operations run at once
print([device.name for device in tf.config.list_logical_devices("CPU")])
"""
without_gpus = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
done = subprocess.run(
    [sys.executable, "-c", by_hand], capture_output=True, text=True, env=without_gpus
)
print(done.stdout or done.stderr, end="")

# %% [markdown]
# One core is then worth one device. Where a lesson measures "1.7 times as fast", it compares with
# one core. Plain TensorFlow would have used all cores from the start, so a training on a laptop
# does not become faster. The parallel work is real, and it shows how a training on several GPUs
# behaves. The bytes that the lessons count are those that would cross between GPUs.
#
# Once TensorFlow has started, it keeps its devices. For another number of them, restart the kernel.
#
# ## One multiplication on all devices
#
# `tf.device` names the device for what is created inside its block. The result knows where it was
# made:

# %%
small = tf.constant([[1.0, 2.0], [3.0, 4.0]])
for device in plan.devices:
    with tf.device(device):
        product = tf.matmul(small, small)
    print("made on", devices.short(product.device))

# %% [markdown]
# Now all devices work on one product. A row of it needs only the same row of the left matrix, and
# all of the right one. So the left matrix can be cut into **shards** of rows, one for each device:
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
# Here are two matrices of 1680 rows and columns. `trace.function_step` runs the function twice,
# first to warm up, and records the second run:

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
# lane has bars. The host's bar is the last, because it joins the pieces when all of them have come.
#
# ## Proof: the same product
#
# The entries are whole numbers, and float32 adds whole numbers of this size exactly. So the joined
# product has to be equal to NumPy's, without any tolerance:

# %%
by_numpy = left @ right
wrong = np.count_nonzero(result != by_numpy)
print(f"{wrong} of {result.size:,} entries differ from those of NumPy")

# %% [markdown]
# ## How long it takes
#
# One device against all of them, in turn, ten times each. `tf.function` turns both into graphs
# first, so that TensorFlow knows the whole step before it starts. `.numpy()` waits for the result:

# %%
@tf.function
def by_one(left, right):
    with tf.device(plan.devices[0]):
        return tf.matmul(left, right)


by_all = tf.function(multiply)
with tf.device(plan.host):
    pair = tf.constant(left), tf.constant(right)
run_one, run_all = lambda: by_one(*pair).numpy(), lambda: by_all(*pair).numpy()
timing.compare(run_one, run_all, repeats=10, names=("one", "all"))

# %% [markdown]
# The two are timed in turn, and each pair of neighbouring runs gives one ratio. The number is the
# median of the ten ratios, and in brackets stands the middle half of them. With as many free cores
# as devices it comes near the number of devices, less what cutting and joining cost. On a machine
# that is busy with something else the number means nothing.
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
# Everything was multiplied on the host, whose block was the only one left.
#
# ## On GPUs
#
# A GPU needs about a millisecond for this product, or less, and copying the matrices to it takes at
# least as long. So do not expect "all" to win: sharing pays where a device computes for longer than
# its data travels, and [[09]] looks for that point in a training step. What no block names goes to
# the first GPU, so code that shares out work should name a place for what it cuts and joins. Two
# devices that share a GPU take turns. `devices.setup` switches **TF32** off, the fast float32
# products of newer GPUs with 10 bits in place of 23, so that results can be compared; in a training
# of your own, `tf.config.experimental.enable_tensor_float_32_execution(True)` brings it back. The
# next cell shows the timeline of a machine with GPUs, once `make gpu` has stored one:

# %% tags=["varies", "nbval-ignore-output"]
drawings.from_gpus("00")

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Somebody has put this model on a device. Change `build_on_all` so that `fit` uses all
# devices of the plan. The check traces a step of the model that it returns.

# %% tags=["exercise"]
def build_on_all():
    with tf.device(plan.devices[0]):
        return build()


checks.on_all(build_on_all)

# %% tags=["solution"]
def build_on_all():
    with fit.strategy(plan).scope():
        return build()


checks.on_all(build_on_all)

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
# - Two more lines put `fit` on all devices, and it learned what one device learns.
# - Without them one place did all the work, and only a trace said so.
# - All devices shared one multiplication, and 0 entries differed from NumPy's.
# - The map counted 16,934,400 bytes to each of two devices. The timeline showed who worked when.
# - Without `tf.device` the product was still right, and the work was not shared.
#
# ## In practice
#
# Use `fit.strategy` to train, a trace when you want to know who did the work, and `tf.device` only
# for what nobody else places. Leave `devices.setup` out of a training that should be fast on a
# processor: without a GPU it limits an operation to one core.
#
# `MGPU_DEVICES=4` and `MGPU_MODE=cores` in the environment, before the kernel starts, change what
# every lesson runs on. `MGPU_VERBOSE=1` brings TensorFlow's own messages back.
#
# ## The lessons
#
# [[lessons]]
#
# Four ways through them:
#
# - "I have one model and several GPUs": 07, and 08 and 09 for what happens inside.
# - "I have many scripts": 04, 05, 06.
# - "My model does not fit": 03, 10 to 14.
# - "Is a second server worth it?": 15 to 18.
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
