# %% [markdown]
# # Run a function on every device
#
# You want something from your Keras model that neither `fit` nor `predict` gives, such as the
# pixels that made it choose a class. Your function calls the model with a large batch, and the
# first of your GPUs does everything.
#
# **In this lesson** a function that was written for one device runs on all of them, each with its
# share of the batch, and one set of weights serves them all.
#
# ![A batch on the host in two shards; each device runs the function on one shard, the second with
# weights that the first one sends; the host joins the two results.](pictures/06_shards.svg)
#
# The host cuts the batch into **shards**. Each device runs the function on one shard, and the host
# joins the results. The first device keeps the weights and sends them to the others at each call.
# For 2,048 images of 784 pixels our function returns 1,605,632 numbers. On two devices all of them
# agree with those of one device to 0.00001.
#
# ## The lines to paste
#
# Here `saliency` stands for your function, which calls the model. `on_all` takes and returns the
# same:
#
# ```python
# import tensorflow as tf
# from mgpu_helpers import devices, towers
#
# plan = devices.setup()  # all GPUs; call it before you make the first tensor
# with tf.device(plan.devices[0]):
#     model = build()  # your code makes or loads the model here
# on_all = tf.function(towers.make_parallel(saliency, plan.devices))
# ```
#
# **You need** [[00]] and [[04]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, timing, towers, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_06 as checks

layers = keras.layers
first = plan.devices[0]

# %% [markdown]
# ## Try it
#
# A small model learns to read digits on the first device, so its weights are there:

# %%
keras.utils.set_random_seed(0)
with tf.device(first):
    hidden = [layers.Dense(512, activation="tanh"), layers.Dense(512, activation="tanh")]
    model = keras.Sequential([layers.Flatten(), *hidden, layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

# %%
images, labels = digits.load(1024 * len(plan))
with tf.device(first):
    model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
with tf.device(plan.host):
    images = tf.constant(images)

# %% [markdown]
# The function to share, `saliency`, returns for each image the gradient of its highest score with
# respect to the pixels. The tape has to watch the pixels, because by itself it follows only
# variables:

# %%
def saliency(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        highest = tf.reduce_max(model(x), axis=1)
    return tape.gradient(highest, x)


# %% [markdown]
# One line shares the function. The chart shows each pixel times its gradient, which is roughly what
# this pixel adds to the score of the class that the model chose:

# %%
on_all = tf.function(towers.make_parallel(saliency, plan.devices))
found = on_all(images)

# %% tags=["varies"]
drawings.attributions(images[:10], images[:10] * found[:10])
plt.show()

# %% [markdown]
# ## Proof
#
# Are these the numbers of one device?

# %%
with tf.device(first):
    close = np.isclose(found, saliency(images), rtol=0, atol=1e-5)
print(f"{np.count_nonzero(close):,} of {close.size:,} numbers agree to 0.00001")

# %% [markdown]
# Did every device work? `saliency` needs six matrix products, three forward and three backward. A
# trace tells where each one ran:

# %%
def show_products(step):
    for device in [plan.host, *plan.devices]:
        ran = [op for op in step.ops if "MatMul" in op.type and op.device == device]
        backward = sum("gradient" in op.name for op in ran)
        print(f"{device}  forward {len(ran) - backward}  backward {backward}")


# %%
inside = trace.function_step(on_all, images)[1]
show_products(inside)
sent = sum(size for ends, size in inside.bytes_between().items() if plan.host not in ends)
print(f"the devices sent each other {sent:,} bytes")

# %% [markdown]
# Every device computed six products for its own shard. The bytes are the model's weights.
#
# ## By hand
#
# `on_each` calls a function on each device with the shards of that device. `make_parallel`, after
# *Effective TensorFlow* ([2017](../docs/sources.md#make_parallel)), cuts the batches before and
# joins the results after:

# %%
def on_each(function, places, *shards):
    outputs = []
    for device, *shard in zip(places, *shards):
        with tf.device(device):
            outputs.append(function(*shard))
    return outputs

# %%
def make_parallel(function, places):
    def parallel(*batches):
        with tf.device(plan.host):
            shards = [tf.split(batch, len(places)) for batch in batches]
            return tf.concat(on_each(function, places, *shards), axis=0)

    return parallel


# %%
by_hand = make_parallel(saliency, plan.devices)(images)
print("the numbers of the helper:", np.allclose(by_hand, found, rtol=0, atol=1e-5))

# %% [markdown]
# Called like this, each core waits for the one before it. In the line to paste, `tf.function` makes
# a graph of the whole call, in which all devices work at the same time.
#
# ## Break it
#
# `saliency` has its tape inside. Suppose that the devices compute only the scores, and that one
# tape goes around all of them. Write down where the backward pass will run:

# %%
def highest_scores(x):
    return tf.reduce_max(model(x), axis=1)


def tape_around(x):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            tape.watch(x)
            highest = towers.make_parallel(highest_scores, plan.devices)(x)
        return tape.gradient(highest, x)


# %%
numbers, around = trace.function_step(tape_around, images)
print("the same numbers:", np.allclose(numbers, found, rtol=0, atol=1e-5))
show_products(around)

# %% [markdown]
# The numbers are right, but the host computed the whole backward pass, three products for each
# shard. A tape remembers operations, not their devices. The backward pass runs in the block in
# which `tape.gradient` is called. Here that is the block of the host, and in `saliency` that of
# each device.
#
# Two maps show both ways, with the bytes that crossed. `tower_0` and `tower_1` are the function on
# the two shards, and `gradient_tape` is the backward pass. The blue part of `tower_1` only reads
# the weights for the second device:

# %% tags=["varies", "cover"]
for title, step in {"One tape around all": around, "A tape on each": inside}.items():
    charts.placement_map(step).set_title(title, loc="left")
    plt.show()

# %% [markdown]
# With one tape, the host needs the outputs of all layers, 4.24 MB of each shard, and the kernels,
# 2.67 MB for each shard. The arrow of 6.91 MB is both. With a tape on each device, only the results
# cross to the host.
#
# ## Was it faster?
#
# At best, two devices take half of the time of one. We time ten pairs of calls, in which `.numpy()`
# waits for the result:

# %%
on_one = tf.function(towers.make_parallel(saliency, [first]))
timing.compare(
    lambda: on_all(images).numpy(), lambda: on_one(images).numpy(),
    names=("on all", "on one"), repeats=10)  # fmt: skip

# %% [markdown]
# You see the gain only if both cores are free. The brackets give a 90 % confidence interval, which
# is wide because ten pairs are few.
#
# | | `towers.make_parallel` |
# |---|---|
# | **Use it when** | your function treats each row of a batch by itself, with much work for each |
# | **It costs** | at each call, the first device sends the weights to every other one |
# | **Instead** | [[01]] to train or predict; `strategy.run` for copies of the weights ([[03]]) |
#
# If the function mixes rows, its numbers change, and no error says so. BatchNormalization called
# with `training=True` does this, because it takes the mean of its shard. A batch that does not
# divide is refused, unless you pass `uneven=True` to `towers.make_parallel`.
#
# ## On GPUs
#
# > For a ResNet-50 the weights are 102 MB, which cross in 10 ms at 10 GB/s. The saliency of 256
# > photos takes about 4 TFLOP, so 270 ms on a GPU of 15 TFLOP/s. A second GPU saves half of that,
# > much more than the copy takes.
#
# ## On your own
#
# **1.** Write `make_parallel_uneven(function, places)`. It does what `make_parallel` does, with
# any number of batches, and also takes batches that do not divide: 11 examples over 2 devices are 6
# and 5. The sizes of the shards may differ by one at most; `tf.split` accepts a list of sizes. Cut
# and join in a block of the host, because the check, like a GPU machine, puts unplaced operations
# on the first device.

# %% tags=["exercise"]
def make_parallel_uneven(function, places):
    return make_parallel(function, places)


checks.uneven(make_parallel_uneven)

# %% tags=["solution"]
def make_parallel_uneven(function, places):
    def parallel(*batches):
        least, more = divmod(len(batches[0]), len(places))
        sizes = [least + 1] * more + [least] * (len(places) - more)
        with tf.device(plan.host):
            shards = [tf.split(batch, sizes) for batch in batches]
            return tf.concat(on_each(function, places, *shards), axis=0)

    return parallel


checks.uneven(make_parallel_uneven)

# %% [markdown]
# **2.** `mean_map` returns the mean saliency of all images. Every device sends the host the
# saliency of each image, and the host takes the mean. Change `mean_map` so that each device sends
# the host only the mean of its shard, one image of 784 numbers. The result has to stay the same.
#
# Give this lesson's `make_parallel` a function that returns the mean of a shard as a batch of one,
# which `keepdims=True` does. `towers.make_parallel` would refuse it, because it wants a row for
# each example.

# %% tags=["exercise"]
def mean_map(x):
    return tf.reduce_mean(make_parallel(saliency, plan.devices)(x), axis=0)


checks.mean_map(mean_map, saliency)

# %% tags=["solution"]
def mean_map(x):
    def mean_of_shard(x):
        return tf.reduce_mean(saliency(x), axis=0, keepdims=True)

    return tf.reduce_mean(make_parallel(mean_of_shard, plan.devices)(x), axis=0)


checks.mean_map(mean_map, saliency)

# %% [markdown]
# ## What we saw
#
# - One line ran a function around a model on all devices, and all 1,605,632 numbers agreed with
#   those of one device to 0.00001.
# - Each device computed 3 matrix products forward and 3 backward, and a call sent 2,678,824 bytes
#   of weights to the second device.
# - With one tape around all devices, the host computed the whole backward pass: 6 products.
#
# ## In practice
#
# Put `towers.make_parallel(function, plan.devices)` inside `tf.function`, with the tape in your
# function. Compare its numbers and its time once with those of one device.
#
# Next: [[next]].
