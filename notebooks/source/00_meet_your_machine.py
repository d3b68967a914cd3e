# %% [markdown]
# # Meet your machine
#
# You start a training on a machine with several GPUs, and `nvidia-smi` shows something like this:
#
# ```
#   GPU   Memory-Usage              GPU-Util
#     0   78,420 MiB / 81,559 MiB       96 %
#     1   78,032 MiB / 81,559 MiB        0 %
# ```
#
# TensorFlow has taken the memory of all GPUs, and it computes on the first one only. Nothing warns
# you: the results are right, and the training takes as long as on one GPU. These lines change that:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()           # all GPUs; before anything else uses TensorFlow
# with fit.strategy(plan).scope():
#     model = build()              # build and compile the model here
# model.fit(x, y, batch_size=64)   # 64 examples for all devices together
# ```
#
# This is **data parallelism**: each device has a copy of the model, a **replica**, and computes the
# gradients of its part of the batch. The replicas add up their gradients and make the same update:
#
# ![Each of two devices has a copy of the model and computes gradients from 32 of 64 digits. Both
# copies get the sum of the gradients and make the same update.](pictures/00_one_step.svg)
#
# **In this lesson** a Keras model trains on several devices, even if you have no GPU. You prove
# that it learns what it learns on one device, and see in a timeline that each device did its share.
#
# **You need** some Python, NumPy and Keras. Choose your way; a table at the end lists all lessons:
#
# | your question | start with | go on with |
# |---|---|---|
# | I have one model and several GPUs | [[01]] | 02 if it is not faster, 06 to 08 for the inside |
# | My model has a `train_step` of its own | [[03]] | 06 to 08 |
# | My model does not fit | [[09]] | 10 to 15 |
# | I have many scripts | [[16]] | 17, 18 |
# | Is a second server worth it? | [[19]] | 20 to 22 |
# | How do I place operations, and limit memory, myself? | [[04]] | 05 |
# | I inherited graph code | [[23]] | 24, 25 |

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %% [markdown]
# Every lesson starts with such a cell. This one asks for two **devices**, which do the heavy
# arithmetic. If the machine has two GPUs, they are the devices. If it has one, each device is a
# share of it. If it has none, as when the outputs stored here were made, each device is a core. The
# **host** is the CPU. It feeds the devices and joins their results. The names are in `plan.host`
# and `plan.devices`. If a GPU is missing, the command `mgpu` in a terminal says why. The line
# `timing` says how far a measured speed-up can be trusted here. `exact=True` switches off a
# rounding of GPUs, because the lessons compare results.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_00 as checks

# %% [markdown]
# ## `fit` on all devices
#
# Put your model in place of this one, which reads handwritten digits:

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
    loss = "sparse_categorical_crossentropy"
    # no XLA, a compiler that Keras would use on one GPU, but not on several
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


# %% [markdown]
# You train this model twice: without a strategy, and with one. A **strategy** decides on which
# devices Keras keeps and trains a model that is built in its scope. In the second training,
# `batch_size` is the **global batch**. Each device gets a part of it, its **shard**.

# %%
x, y = digits.load(1024)
given = {"x": x, "y": y, "batch_size": 64, "epochs": 3, "verbose": 0}

on_one = build()
alone = on_one.fit(**given).history

# %%
with fit.strategy(plan).scope():
    on_all = build()
history = on_all.fit(**given).history

# %%
print("accuracy:", *[f"{value:.2f}" for value in history["accuracy"]])
print("losses agree:", np.allclose(history["loss"], alone["loss"], rtol=1e-3))

# %% [markdown]
# The losses of all devices are those of one. `fit.strategy` is TensorFlow's `MirroredStrategy`, and
# it also mends what would give other numbers, such as a `BatchNormalization` that sees only the
# shard of its own device.
#
# Equal numbers cannot tell you which devices worked. A **trace** can: it is TensorFlow's record of
# what ran where. `trace.fit_step` records one **step** of `fit`, which is one update of the
# weights. The next cell lists the devices that computed convolutions:

# %% tags=["unplaced"]
steps = {"without a strategy": on_one, "with the strategy": on_all}
for name, model in steps.items():
    step = trace.fit_step(model, (x, y))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# Without a strategy all convolutions ran on the first GPU, or on the host if there is no GPU. With
# the strategy every device computed some. The **timeline** of this last step shows when. Look for
# bars of several devices one above the other:

# %% tags=["varies", "cover"]
drawings.both_ways(step, on_all)
plt.show()

# %% [markdown]
# For part of the step both devices worked. In a hatched gap a device may wait for sums from the
# others, because `BatchNormalization` needs them in both passes. It may also wait for data, for a
# free core, or, on a GPU, for the host to start the next operation. In so small a model starting
# operations takes most of the step, so GPUs show short bars. `charts.timeline(step)` draws every
# operation of your own code.
#
# | `fit.strategy` | |
# |---|---|
# | Use it when | a model fits on a device, and gradients take longer to compute than to exchange |
# | It costs | a copy of the model on each device, and an exchange of gradients in each step |
# | Instead | [[10]] when the model does not fit; [[16]] when you have many scripts |
#
# ## By hand: one multiplication on all devices
#
# What a strategy does for a whole model, you can do for one operation. A block of `tf.device` names
# the device for what is computed in it; if blocks are nested, the innermost counts.
#
# Each row of a product needs only the same row of the left matrix, and all of the right one. So you
# cut the left matrix into shards of rows, one for each device:
#
# ![A product of two matrices. The left one is cut into two shards of rows, the right one stays
# whole, and each device makes its rows of the product.](pictures/00_shared_product.svg)

# %%
def multiply(left, right):
    pieces = []
    with tf.device(plan.host):  # cuts, and joins
        for device, shard in zip(plan.devices, tf.split(left, len(plan))):
            with tf.device(device):
                pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


# %% [markdown]
# `trace.function_step` runs a function twice and records the second run. The entries are whole
# numbers, which float32 adds exactly at this size, so the result has to be equal to NumPy's. The
# **placement map** below has a lane for the host and for each device. A thick arrow is data that
# crosses to another lane, with its bytes.

# %%
rng = np.random.default_rng(seed=0)
left, right = rng.integers(-3, 4, [2, 840, 840]).astype("float32")
by_numpy = left @ right

# %%
result, step = trace.function_step(multiply, left, right)
wrong = np.count_nonzero(result != by_numpy)
print(f"{wrong} of {result.size:,} entries differ from those of NumPy")

# %%
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# Each of two devices gets a shard of 420 rows, whose 420 · 840 entries of 4 bytes are 1,411,200
# bytes, and all of `right`, which is twice as much. Cores share one memory, so between them nothing
# is copied: the lessons count the bytes that GPUs would exchange.
#
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


# %%
result, step = trace.function_step(multiply_somewhere, left, right)
worked = {op.device for op in step.ops if op.type == "MatMul"}
print("equal to NumPy's product:", np.array_equal(result, by_numpy))
print("multiplied on:", sorted(worked))
print("did not multiply:", sorted(set(plan.devices) - worked))

# %% [markdown]
# The product is right and no error is raised, so a test of the value cannot reveal that the work
# was never shared. The trace reveals it: the host alone multiplied, because the only block left
# names the host.
#
# ## On GPUs
#
# GPUs since Ampere round the numbers of a product to **TF32**, which is faster. This is what
# `exact=True` switches off. Your script needs no such argument.
#
# Two GPUs are not faster at this product: copying the matrices to a GPU usually takes longer than
# multiplying them there. Name the host for cutting and joining, or TensorFlow does both on the
# first GPU.
#
# ## On your own
#
# The solution of each exercise is under it. In JupyterLab it is closed until you click *1 cell
# hidden*.
#
# **1.** Here `build_on_all` makes the weights on one device. Change it so that `fit` uses all
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
# **2.** A column of a product needs only the same column of `right`. Write `multiply_columns` so
# that each device gets all of `left` and only its columns of `right`. The check takes small
# matrices and looks at the value, the places and the bytes. In the check, operations without a
# block run on the first device, as on GPUs.

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
# - A model built in the scope of a strategy was trained by `fit` on all devices, with the losses of
#   one device.
# - Without a strategy all convolutions ran on the first GPU or the host. Only the trace showed it.
# - All devices shared one multiplication: 0 entries differed from NumPy's, and each of two devices
#   got 4,233,600 bytes.
#
# ## In practice
#
# Use `fit.strategy` to train, a trace to see which devices worked, and `tf.device` for operations
# of your own. For another number of devices, start Jupyter with `MGPU_DEVICES=4` in its
# environment. `MGPU_MODE=cores` takes cores even if there are GPUs.
#
# ## The lessons
#
# [[lessons]]
#
# | word | what it means in all lessons |
# |---|---|
# | **host** | the CPU, which feeds the devices and joins their results |
# | **device** | what does the heavy arithmetic: a GPU, a share of one, or a core |
# | **step** | one run of the work that is repeated, such as one update of the weights |
# | **shard** | the part of a batch, or of any data, that one device gets |
# | **replica** | a copy of the model on one device; a replica written by hand is a **tower** |
# | **global batch** | the examples of one step, on all devices together |
# | **per-device batch** | how many examples of the global batch one device gets |
#
# Next: [[next]].
