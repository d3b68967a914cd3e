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
# **In this lesson** a Keras model trains on several devices, even if you have no GPU. You check
# that its losses are those of one device, and see in a timeline that each device did its share.
#
# **You need** some Python, NumPy and Keras. If you came with another question, the table at the end
# says which lesson answers it.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %% [markdown]
# Every lesson starts with such a cell. This one asks for two **devices**, which do the heavy
# arithmetic: two GPUs, two shares of a single GPU, or two cores if there is no GPU, as when the
# outputs stored here were made. The **host** is the CPU, which feeds the devices and joins their
# results. The names are in `plan.host` and `plan.devices`. The line `timing` says how far a
# measured speed-up can be trusted here. `exact=True` is there because the lessons compare results:
# it switches off **TF32**, in which GPUs since Ampere compute products faster, but less exactly.
# Your script does not need it.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, trace
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
# The losses of all devices are those of one, to one part in a thousand. `fit.strategy` is
# TensorFlow's `MirroredStrategy`, and it also mends what would give other numbers, such as a
# `BatchNormalization` that sees only the shard of its own device.
#
# ## Break it
#
# Suppose that you forget the strategy. Equal losses cannot reveal it, because `on_one` has the
# same. A **trace** can: it is TensorFlow's record of what ran where. `trace.fit_step` records one
# **step** of `fit`, which is one update of the weights, and leaves the model as it was. The next
# cell lists the devices that computed convolutions:

# %% tags=["unplaced"]
steps = {"without a strategy": on_one, "with the strategy": on_all}
for name, model in steps.items():
    step = trace.fit_step(model, (x, y))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# Without a strategy all convolutions ran on the first GPU, or on the host if there is no GPU. With
# the strategy every device computed some.
#
# ## See when each device worked
#
# The **timeline** of this last step shows when:

# %% tags=["varies", "cover"]
drawings.both_ways(step, on_all)
plt.show()

# %% [markdown]
# For part of the step both devices worked at the same time; *busy* is the part in which a device
# worked. Grey is the rest, such as the update. Bars of half the height ran at once on one device.
# In a hatched gap a device may wait for data, for a free core, for sums from the others, which
# `BatchNormalization` needs in both passes, or, on a GPU, for the host to start the next operation.
# That takes most of so small a step, so GPUs show short bars. `charts.timeline(step)` draws every
# operation of your own code.
#
# ## On your own
#
# The solution is under each exercise: in JupyterLab, click *1 cell hidden*.
#
# **1.** Here `build_on_all` makes the weights on one device. Change it so that `fit` uses all
# devices of the plan, and gives the numbers of one.

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
# **2.** A trace has the list `step.ops`, and each of its operations has a `type` and a `device`.
# Write `idle(step)`, which lists the devices of the plan that computed no convolution, in the order
# of the plan. A type such as `Conv2DBackpropInput` counts as one.

# %% tags=["exercise"]
def idle(step):
    return []


checks.idle(idle)

# %% tags=["solution"]
def idle(step):
    worked = {op.device for op in step.ops if "Conv2D" in op.type}
    return [device for device in plan.devices if device not in worked]


checks.idle(idle)

# %% [markdown]
# ## What we saw
#
# - A model built in the scope of a strategy was trained by `fit` on all devices, with the losses of
#   one device.
# - Without a strategy all convolutions ran on the first GPU or the host. The losses did not show
#   it; the trace did.
#
# ## In practice
#
# Install `mgpu_helpers` in your environment by `pip install -e .` in this repository. Use
# `fit.strategy` to train, and a trace to see which devices worked. For another number of devices,
# start Jupyter with `MGPU_DEVICES=4`. `MGPU_MODE=cores` takes cores even if there are GPUs. If a
# GPU is missing, the command `mgpu` in a terminal says why.
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
# ## Where to go on
#
# | your question | lessons |
# |---|---|
# | I have one model and several GPUs | [[01]]; [[02]] |
# | My model has a `train_step` of its own | [[03]] |
# | What happens inside, and how do I write it myself? | [[04]]; [[06]]; [[07]]; [[08]] |
# | How do I limit the memory that TensorFlow takes? | [[05]] |
# | Does my batch fit? How do I make it fit? | [[09]]; [[10]] |
# | My model does not fit | [[11]]; [[12]]; [[13]]; [[14]]; [[15]] |
# | I have many scripts, or several models | [[16]]; [[17]]; [[18]] |
# | Is a second server worth it? | [[19]]; [[20]] |
# | I have several machines | [[21]]; [[22]] |
# | I inherited graph code | [[23]]; [[24]]; [[25]] |
#
# Next: [[next]].
