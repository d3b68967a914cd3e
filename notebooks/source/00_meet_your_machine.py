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
# TensorFlow has taken the memory of both GPUs, but it computes only on the first one. No warning
# says so. The results are right, and the training takes as long as on one GPU. These lines put the
# second GPU to work:
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
# `pip install -e .` in this repository installs `mgpu_helpers` in your environment.
#
# The model is now trained by **data parallelism**. Each device has a copy of the model, a
# **replica**, and computes the gradients of its part of the batch. The gradients of all replicas
# are added up, and each replica makes the same update with the sum:
#
# ![Each of two devices has a copy of the model and computes gradients from 32 of 64 digits. Both
# copies get the sum of the gradients and make the same update.](pictures/00_one_step.svg)
#
# **In this lesson** you train a Keras model on two devices, even if you have no GPU. You check that
# its losses are those of one device, and see in a timeline that both devices worked.
#
# **You need** some Python, NumPy and Keras. If you came with another question, the table at the end
# says which lesson answers it.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %% [markdown]
# Every lesson starts with such a cell. This one asks for two **devices**, which do the heavy
# arithmetic. They are two GPUs or two shares of a single GPU. Without a GPU they are two cores of
# the CPU, as on the machine that made the outputs stored here. The **host** is the CPU, which feeds
# the devices and joins their results. `plan.devices` has the names of the devices.
#
# Lessons compare results, so they pass `exact=True`. It switches off **TF32**, with which newer
# GPUs compute products faster, but less exactly. In your own script you can leave it out.

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
# This model reads handwritten digits:

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
# You train it twice, first without a strategy and then with one. A **strategy** decides on which
# devices Keras keeps and trains a model that is built in its scope. With a strategy, `batch_size`
# is the **global batch**, and each device gets a part of it, its **shard**:

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
# The losses on two devices are those of one device, to one part in a thousand. They may differ in
# the last digits, because two devices add up the same numbers in another order, and each sum is
# rounded.
#
# `fit.strategy` is TensorFlow's `MirroredStrategy` with repairs. One of them lets
# `BatchNormalization` see the whole batch instead of one shard.
#
# ## Break it
#
# Suppose that you forget the strategy. The losses are then the same, so they do not show that only
# one device works. A **trace** shows it, because it is TensorFlow's record of what ran where.
# `trace.fit_step` records one **step** of `fit`, which is one update of the weights, and leaves the
# model as it was. The next cell lists which devices computed convolutions:

# %% tags=["unplaced"]
steps = {"without a strategy": on_one, "with the strategy": on_all}
for name, model in steps.items():
    step = trace.fit_step(model, (x, y))
    print(f"{name}:", sorted({op.device for op in step.ops if "Conv2D" in op.type}))

# %% [markdown]
# Without a strategy all convolutions ran on the first GPU, or on the host if there is no GPU.
#
# ## See when each device worked
#
# The **timeline** of the step with the strategy shows when each device was in the forward pass and
# when in the backward pass. In this step the batch was all 1,024 digits:

# %% tags=["varies", "cover"]
drawings.both_ways(step, on_all)
plt.show()

# %% [markdown]
# The bars of the devices overlap, so the devices worked at the same time. Below its name is the
# share of the step in which a device was *busy*.
#
# `BatchNormalization` needs a sum over the whole batch, so the devices wait for each other in both
# passes. On GPUs the bars are short and the gaps long, because a GPU finishes an operation of such
# a small model before the host starts the next.
#
# ## On your own
#
# The solution is under each exercise: in JupyterLab, click *1 cell hidden*.
#
# **1.** This `build_on_all` makes the weights on one device. Change it so that `fit` trains on all
# devices of the plan, and its losses are those of one device.

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
# **2.** A trace has a list of operations, `step.ops`. Each operation has a `type` and a `device`.
# Write `idle(step)`, which lists the devices of the plan that computed no convolution, in any
# order. A longer type, such as `Conv2DBackpropInput`, is a convolution as well.

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
# Use `fit.strategy` to train, and a trace to see which devices worked. For another number of
# devices, start Jupyter with `MGPU_DEVICES=4`. If a GPU is missing, the command `mgpu` in a
# terminal says why.
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
