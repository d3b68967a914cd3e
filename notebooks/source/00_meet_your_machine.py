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
# - train a Keras model on all of them, and see in a timeline that all of them worked,
# - share out one multiplication by hand, and prove that the result is the same,
# - read a map of what crosses between the devices.
#
# **You need** some Python, NumPy and Keras.
#
# The other nineteen lessons build on this one. A table at the end names them. Choose your way:
#
# | your question | lessons |
# |---|---|
# | I have one model and several GPUs | 07; then 08, 09 for the inside, 19 when it is not faster |
# | I have many scripts | 04, 05, 06 |
# | My model does not fit | 03, 10 to 14 |
# | Is a second server worth it? | 15 to 18 |
# | How do I place operations, and limit memory, myself? | 01, 02 |

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %% [markdown]
# Every lesson starts with this cell. It asks for two **devices**, which do the heavy arithmetic:
# two GPUs where there are two, two shares of a GPU where there is one, and otherwise two cores, as
# in the outputs stored here. The **host** is the CPU, which feeds the devices and joins what they
# make. `plan.host` and `plan.devices` hold the names. If a GPU is missing, the command `mgpu` in a
# terminal says why. The line `timing` says how far a measured speed-up can be trusted here.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, trace
from mgpu_helpers.lessons import digits, drawings, fresh
from mgpu_helpers.lessons.checks import lesson_00 as checks

# %% [markdown]
# ## The lines to paste
#
# `pip install -e .` in the folder of this project installs `mgpu_helpers`. Your script then needs:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; before anything else uses TensorFlow
# with fit.strategy(plan).scope():
#     model = build()  # build and compile the model here
# model.fit(x, y, batch_size=64)  # 64 for all devices together
# ```
#
# `fit.strategy` is TensorFlow's `MirroredStrategy`, changed so that `BatchNormalization` works on
# the whole batch. Put your model in place of this one, which reads handwritten digits:

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
    # otherwise Keras compiles a step on one GPU with XLA, and the trace below does not
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


# %% [markdown]
# The `batch_size` of `fit` is now the **global batch**. Each device gets a piece of it, its
# **shard**. Here are 64 digits on two devices:
#
# ![Each of two devices has a copy of the model and computes gradients from 32 of 64 digits. Both
# copies get the sum of the gradients and make the same update.](pictures/00_one_step.svg)

# %%
x, y = digits.load(1024)

with fit.strategy(plan).scope():
    on_all = build()
history = on_all.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{value:.2f}" for value in history["accuracy"]])

# %% [markdown]
# With `fit.strategy` each device divides the sum of its losses by the size of the global batch, so
# the added gradients, and the losses, should be those of one device. Here is the same model without
# a strategy:

# %%
on_one = build()
alone = on_one.fit(x, y, batch_size=64, epochs=3, verbose=0).history
print("accuracy:", *[f"{value:.2f}" for value in alone["accuracy"]])
print("losses agree:", np.allclose(history["loss"], alone["loss"], rtol=1e-3))

# %% [markdown]
# The numbers agree, so they cannot tell you which devices worked. A **trace** can: it is
# TensorFlow's record of what ran where. `trace.fit_step` records one **step** of `fit`, which is
# one update of the weights, here from all 1024 digits. Look for the devices that computed
# convolutions:

# %% tags=["unplaced"]
steps = {"without a strategy": on_one, "with the strategy": on_all}
for name, model in steps.items():
    step = trace.fit_step(model, (x, y))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# Without a strategy all convolutions ran on the first GPU, or on the host where there is none. With
# the strategy every device computed some. The **timeline** of this last step shows when. A device
# that runs two operations at once has two rows of bars. In a hatched gap a device may be waiting:
# for sums from the other devices, which `BatchNormalization` needs in both passes; for data; on
# cores, for a free thread; or, on GPUs, for the host to start the next operation. That takes most
# of the step of so small a model, so GPUs have short bars, and few overlap. Pale ones at the start
# prepare the backward pass. Look for bars of several devices one above the other:

# %% tags=["varies", "cover"]
drawings.both_ways(step, on_all)
plt.show()

# %% [markdown]
# For part of the step several devices worked at the same time. In your code,
# `charts.timeline(step)` draws every operation. We do not time the two ways: seconds on cores
# say little about GPUs.
#
# | `fit.strategy` | |
# |---|---|
# | Use it when | a model fits on a device, and gradients take longer to compute than to exchange |
# | It costs | a copy of the model on each device, and an exchange of gradients in each step |
# | Instead | [[10]] when the model does not fit; [[04]] when you have many scripts |
#
# [[07]] says how the strategy works, and what can spoil it. Shards that are too small are the usual
# reason why a training on GPUs is not faster ([[15]]).

# %% [markdown]
# ## One multiplication on all devices
#
# Now you share out a single operation by hand. A block of `tf.device` names the device for what is
# computed in it. Where blocks are nested, the innermost counts.
#
# Each row of a product needs only the same row of the left matrix, and all of the right one. So the
# left matrix can be cut into shards of rows, one for each device:
#
# ![A product of two matrices. The left one is cut into two shards of rows, the right one stays
# whole, and each device makes its rows of the product.](pictures/00_shared_product.svg)
#
# The host cuts `left` and joins the pieces:

# %%
def multiply(left, right):
    pieces = []
    with tf.device(plan.host):
        for device, shard in zip(plan.devices, tf.split(left, len(plan))):
            with tf.device(device):
                pieces.append(tf.matmul(shard, right))
        return tf.concat(pieces, axis=0)


# %% [markdown]
# `trace.function_step` runs a function twice and records the second run. The entries are whole
# numbers, which float32 adds exactly at this size, so the result has to be equal to NumPy's:

# %%
rng = np.random.default_rng(seed=0)
left, right = rng.integers(-3, 4, [2, 840, 840]).astype("float32")
by_numpy = left @ right

result, step = trace.function_step(multiply, left, right)
wrong = np.count_nonzero(result != by_numpy)
print(f"{wrong} of {result.size:,} entries differ from those of NumPy")

# %% [markdown]
# The **placement map** has a lane for the host and each device. A thick arrow is data that crosses
# to another lane, with its bytes, and a thin arrow is data that stays. Devices that are cores share
# one memory, so nothing is copied there: the lessons count the bytes that GPUs would exchange. Look
# for what the host sends:

# %%
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# Each of two devices gets a shard of 420 rows, whose 420 · 840 entries of 4 bytes are 1,411,200
# bytes, and all of `right`, which is twice as much. Each device sends back 420 rows of the product.
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


result, step = trace.function_step(multiply_somewhere, left, right)
worked = {op.device for op in step.ops if op.type == "MatMul"}
print("equal to NumPy's product:", np.array_equal(result, by_numpy))
print("multiplied on:", sorted(worked))
print("did not multiply:", sorted(set(plan.devices) - worked))

# %% [markdown]
# The product is right and no error is raised, so a test of the value cannot reveal that the work
# was never shared. The trace can: it shows that the host alone multiplied, because the only block
# left names the host.
#
# ## On GPUs
#
# The lessons compare results, so their first cell switches off **TF32** with `exact=True`, which
# your script can do without.
#
# Do not expect two GPUs to be faster at this product: copying the matrices to a GPU usually takes
# longer than multiplying them there. Sharing pays where a device computes for longer than its data
# travels ([[09]]). Name the host for cutting and joining, or TensorFlow does both on the first GPU.
#
# ## On your own
#
# The solution of each exercise stands under it, closed until you click *1 cell hidden*.
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
# **2.** Cut `right` instead of `left`: a column of the product needs only the same column of
# `right`. Write `multiply_columns` so that each device gets all of `left` and only its columns of
# `right`. The check takes small matrices and looks at the value, the places and the bytes. In the
# check, unplaced operations run on the first device, as on GPUs.

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
# - A model built in the scope of a strategy was trained by `fit` on all devices, and its losses
#   agreed with those of plain `fit`.
# - Without a strategy all convolutions ran on the first GPU or the host. Only the trace said so.
# - All devices shared one multiplication, and 0 entries differed from NumPy's. For it each of two
#   devices got 4,233,600 bytes.
# - Without the inner block of `multiply` the product was still right, and nothing was shared.
#
# ## In practice
#
# Use `fit.strategy` to train, a trace to see which devices worked, and `tf.device` for operations
# of your own.
#
# To change the number of devices, start Jupyter again with `MGPU_DEVICES=4` in its environment,
# which gives the lessons four devices. `MGPU_MODE=cores` takes cores even where there are GPUs.
#
# ## Without a GPU
#
# One processor stands behind the host and all devices. TensorFlow divides it into *logical* devices
# if you ask before the first operation. This makes a host and two devices, in a new Python process:

# %%
by_hand = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
tf.config.threading.set_intra_op_parallelism_threads(1)  # an operation uses one core
tf.config.threading.set_inter_op_parallelism_threads(2)  # two operations run at once
print([device.name for device in tf.config.list_logical_devices("CPU")])
"""
print(fresh.python(by_hand))

# %% [markdown]
# The devices share one pool, with a thread for each of them; any thread may serve any device. Plain
# TensorFlow lets an operation use all cores, so `devices.setup` without GPUs is slower.
#
# ## The lessons
#
# [[lessons]]
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
