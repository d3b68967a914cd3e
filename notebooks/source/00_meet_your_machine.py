# %% [markdown]
# # Meet your machine
#
# TensorFlow does not spread work over several GPUs by itself. It puts a model on the first GPU, and
# the others stay idle. Nothing warns you: the results are right, and a training on four GPUs takes
# as long as on one.
#
# **In this lesson** a Keras model trains on several devices, even where there is no GPU, and you
# see that each of them did its share.
#
# **You will learn** to
# - get a host and some devices from one call,
# - train a Keras model on all of them, and check that all of them worked,
# - share out one multiplication by hand, and prove that the result is the same,
# - read a placement map and a timeline of your own run.
#
# **You need** some Python, NumPy and Keras.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %% [markdown]
# Every lesson starts with this cell. It asks for two **devices**, which do the heavy arithmetic:
# two GPUs where there are two, two shares of a GPU where there is one, and two cores of the
# processor where there is none. The **host** is the CPU, which feeds the devices and joins what
# they make. `plan.host` and `plan.devices` hold the names. Without a number, `devices.setup()`
# takes all GPUs. If a GPU is missing, the command `mgpu` in a terminal says why. The outputs
# stored in this page come from a machine without a GPU.

# %%
import os
import subprocess
import sys

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_00 as checks

# %% [markdown]
# ## The lines to paste
#
# Your own script needs `from mgpu_helpers import devices, fit`, then `plan = devices.setup()`, and
# the block of `fit.strategy` below. `pip install -e .` in the folder of this project installs
# `mgpu_helpers`. Without a GPU, leave these lines out of a training that should be fast, because
# `devices.setup` limits an operation to one core. It also switches **TF32** off, the faster but
# less exact products of newer GPUs, so that results can be compared. In your own training, switch
# it on again with `tf.config.experimental.enable_tensor_float_32_execution(True)`.
#
# Your model takes the place of this one, which reads handwritten digits:

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
# `fit.strategy` is TensorFlow's `MirroredStrategy`, changed so that `BatchNormalization` works on
# the whole batch. Build and compile the model in its scope. The call of `fit` stays as it was:

# %%
x, y = digits.load(1024)

with fit.strategy(plan).scope():
    on_all = build()
history = on_all.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{share:.2f}" for share in history["accuracy"]])

# %% [markdown]
# The strategy gives each device a share of every batch of 64 digits, and adds up the gradients.
# So the model should learn what it learns without a strategy:

# %%
on_one = build()
alone = on_one.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{share:.2f}" for share in alone["accuracy"]])
print("losses agree:", np.allclose(history["loss"], alone["loss"], rtol=1e-3))

# %% [markdown]
# The numbers agree either way, so they cannot tell you which devices worked. A **trace** can: it is
# TensorFlow's record of what ran where. `trace.fit_step` records one **step** of `fit`, which is
# one update of the weights, and leaves the model as it was. Look for the places where the
# convolutions were computed:

# %% tags=["unplaced"]
for name, model in [("with the strategy", on_all), ("without", on_one)]:
    step = trace.fit_step(model, (x[:64], y[:64]))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# With the strategy every device computed convolutions. Without it, one place computed all of them:
# the host where there is no GPU, and otherwise the first GPU.
#
# | `fit.strategy` | |
# |---|---|
# | Use it when | a model fits on a device, and gradients take longer to compute than to exchange |
# | It costs | a copy of the model on each device, and an exchange of gradients in each step |
# | Instead | [[10]] when the model does not fit; [[04]] when you have many scripts |
#
# [[07]] says how the strategy works, and what can spoil such a training.
#
# ## Devices without a GPU
#
# Without a GPU, one processor stands behind the host and all devices. TensorFlow divides it into
# *logical* devices if you ask for them before TensorFlow starts. The next cell asks for three, the
# host and two devices, in a Python process of its own:

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
# Each of the two devices has one core, and a lesson's speed-up is against one core. Plain
# TensorFlow uses all cores, so these devices make no training on a laptop faster. They share one
# memory and need no copies: the bytes that the lessons count are those that would cross between
# GPUs.
#
# TensorFlow keeps its devices once it has started. For another number of them, restart the kernel.
#
# ## One multiplication on all devices
#
# From here on you share out a single operation by hand, to see what a device, a copy and a wait
# look like. What is computed in a block of `tf.device` is computed on the device that the block
# names. The result knows where it was made:

# %%
small = tf.constant([[1.0, 2.0], [3.0, 4.0]])
for device in plan.devices:
    with tf.device(device):
        product = tf.matmul(small, small)
    print("made on", devices.short(product.device))

# %% [markdown]
# Now all devices work on one product. A row of the product needs only the same row of the left
# matrix, and all of the right one. So the left matrix can be cut into **shards** of rows, one for
# each device. In the drawing, device 0 is `plan.devices[0]`:
#
# ![A product of two matrices. The left one is cut into two shards of rows, one for each device; the
# right one stays whole; each device makes the same rows of the product, which are joined
# again.](pictures/00_shared_product.svg)
#
# The host cuts `left` and joins the pieces. Where one block of `tf.device` stands inside another,
# the inner one counts:

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
# The host and all devices worked. The **placement map** has a lane for each of them. A thick arrow
# is data that crosses to another lane, with its bytes, and a thin arrow is data that stays. Look
# for what the host has to send:

# %%
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# Each of two devices gets a shard of 840 rows, whose 840 · 1680 entries of 4 bytes are 5,644,800
# bytes, and all of `right`, which is twice as much. Each device sends back 840 rows of the product.
# With more devices the shards become smaller, but all of `right` still goes to every device.
#
# The **timeline** shows when each device worked. Look for bars one above the other:

# %% tags=["varies", "cover"]
charts.timeline(step)
plt.show()

# %% [markdown]
# Where bars stand one above the other, devices worked at the same time. Copies are not drawn, so
# white space in a lane means that the device waited or, on GPUs, received data. The percentage is
# how much of the lane has bars. The host's bar is the last, because the host joins the finished
# pieces; its cut is too short to be seen. Whether a training also becomes faster is another
# question, which [[15]] answers.
#
# ## Proof: the same product
#
# The entries are whole numbers, and float32 adds whole numbers of this size exactly. So the joined
# product has to be equal to NumPy's:

# %%
by_numpy = left @ right
wrong = np.count_nonzero(result != by_numpy)
print(f"{wrong} of {result.size:,} entries differ from those of NumPy")

# %% [markdown]
# ## Break it
#
# Here is `multiply` again without its inner block, `with tf.device(device)`:

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
# The product is right and no error is raised, so a test of the value cannot reveal that the work
# was never shared. Look at the places instead:

# %%
worked = {op.device for op in step.ops if op.type == "MatMul"}
print("multiplied on:", sorted(worked))
print("did not multiply:", sorted(set(plan.devices) - worked))

# %% [markdown]
# Everything was multiplied on the host, whose block was the only one left.
#
# ## On GPUs
#
# Do not expect two GPUs to be faster at this product: copying the matrices to a GPU usually takes
# longer than multiplying them there. Sharing pays where a device computes for longer than its data
# travels, and [[09]] looks for that point in a training step. As a rule, what no block names goes
# to the first GPU, so name a place for cutting and joining, too.  On a machine with GPUs, the
# command `make gpu` in a terminal keeps their timeline. The next cell shows it where there is one:

# %% tags=["varies", "nbval-ignore-output"]
drawings.from_gpus("00")

# %% [markdown]
# ## On your own
#
# The solution of each exercise stands under it, closed until you click *1 cell hidden*.
#
# **1.** Here `build_on_all` only makes the weights on one device. Change it so that `fit` uses all
# devices of the plan.

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
# `right`. The check takes small matrices and looks at the value, the places and the bytes. What you
# leave unplaced goes to the first device, as TensorFlow does it on a GPU machine.

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
# - In the scope of a strategy `fit` trained on all devices, and its losses agreed with those of
#   plain `fit`.
# - Without a strategy one place computed all convolutions, and only the trace said so.
# - All devices shared one multiplication, and 0 entries differed from NumPy's.
# - Each of two devices got 16,934,400 bytes, and the timeline showed when each device worked.
# - Without the inner block of `multiply` the product was still right, and nothing was shared.
#
# ## In practice
#
# Use `fit.strategy` to train, a trace to see which devices worked, and `tf.device` for what nothing
# else places.
#
# In the environment, `MGPU_DEVICES=4` gives every lesson four devices, and `MGPU_MODE=cores` takes
# cores even where there are GPUs. Set them before the kernel starts.
#
# ## The lessons
#
# [[lessons]]
#
# Four ways through the lessons:
#
# - "I have one model and several GPUs": 07, then 08 and 09 for what happens inside, and 19
#   when the training is not faster.
# - "I have many scripts": 04, 05, 06.
# - "My model does not fit": 03, 10 to 14.
# - "Is a second server worth it?": 15 to 18.
#
# | word | what it means in all lessons |
# |---|---|
# | **host** | the CPU that feeds the devices and joins what they make |
# | **device** | what does the heavy arithmetic: a GPU, a share of one, or a core |
# | **step** | one run of the work that is repeated, such as one update of the weights |
# | **shard** | the piece of a batch, or of any data, that one device gets |
# | **replica** | a copy of the model on one device; a replica written out by hand is a **tower** |
# | **global batch** | the examples of one step, on all devices together |
# | **per-device batch** | how many examples of the global batch one device gets |
#
# Next: [[next]].
