# %% [markdown]
# # Split a layer
#
# One layer of your model is too large for a GPU. In VGG16, the layer `fc1` has 103 of 138 million
# weights. Wherever you cut *between* layers ([[12]]), one GPU has to keep all of `fc1`.
#
# **In this lesson** two devices share every large layer of a network and work on it at the same
# time, and its weights after training are those of one device. Each keeps at most 11.3 MB, where a
# cut between layers leaves 19.3 MB on one of them.
#
# ![Two devices, each with half of the columns of A and half of the rows of
# B.](pictures/14_pair.svg)
#
# A and B are the kernels of two successive layers, here `fc1` and `fc2`. Each device multiplies the
# input x by its columns of A, applies relu, and multiplies by its rows of B. Then the results are
# added up. This is **tensor parallelism**, with the cut of
# [Megatron-LM](../docs/sources.md#megatron) (2019).
#
# ## The lines to paste
#
# ```python
# import tensorflow as tf
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs, before the first tensor
# with tf.device(plan.host):  # where the whole model has room
#     model = build()
# model = fit.use(model, plan, layers={"fc1": "columns", "fc2": "rows"})
# model.compile(...)  # then fit as before
# ```
#
# **You need** [[09]] and [[12]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_14 as checks
from mgpu_helpers.lessons.state import apart, at_rest

layers, two, first = keras.layers, plan.devices[:2], plan.devices[0]
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
x, y = digits.load(512)

# %% [markdown]
# ## One layer is too large
#
# In our network, as in VGG16, `fc1` comes after convolutions. How much does each layer keep, with
# the two numbers that Adam adds to every weight?

# %%
def network():
    keras.utils.set_random_seed(17)
    image = keras.Input([28, 28, 1])
    x = layers.Conv2D(32, 4, strides=4, activation="relu", name="conv")(image)
    x = layers.Dense(1024, "relu", name="fc1")(layers.Flatten()(x))
    x = layers.Dense(256, name="fc2")(x)
    return keras.Model(image, layers.Dense(10, name="scores")(x))

# %%
for layer in network().layers:
    if layer.weights:
        print(f"{layer.name:6} {3 * 4 * layer.count_params() / 1e6:5.1f} MB")

# %% [markdown]
# Suppose that a device has room for 15 MB. `fc1` alone needs more, so no cut between layers helps.
#
# ## Split it
#
# `layers=` maps layer names, which may be regular expressions, to the way to cut. We call `fc1` and
# `fc2` a **pair**. All other layers stay on the first device. Where are the pair's weights now?

# %%
where = {"fc1": "columns", "fc2": "rows"}
with tf.device(plan.host):
    model = fit.use(network(), two, layers=where)

# %%
for name in where:
    for each in model.get_layer(name).weights:
        print(each.path, tuple(each.shape), devices.short(each.value.device))

# %% [markdown]
# Each device has half of the columns of `fc1`, and half of the rows of `fc2`.
#
# ## Why the parts add up
#
# A pair computes relu(x · A) · B. Column k of A makes number k of relu(x · A), which only row k of
# B multiplies. So a device with some columns of A, and the same rows of B, computes its part of the
# sum alone. A small pair shows it:

# %%
batch, a, b = [np.random.default_rng(17).normal(size=n) for n in ([8, 6], [6, 10], [10, 6])]


def block(x, a, b):
    return np.maximum(x @ a, 0) @ b

# %%
halves = [*zip(np.split(a, 2, axis=1), np.split(b, 2, axis=0))]
added = sum(block(batch, *half) for half in halves)
print("the halves add up to the whole:", np.allclose(added, block(batch, a, b)))

# %% [markdown]
# In the backward pass, the gradients of x are added up in the same way.
#
# ## What it saves, and what crosses
#
# Each device updates its own weights, so no weight crosses. Every device but the first gets the
# pair's input, and sends back its part of the result. The gradients of both go the opposite ways.
# So on n devices a pair sends 2 (n − 1) times the bytes of its input and result. We compare this
# with one device, and with a cut between layers (`stages=`):

# %%
with tf.device(first):
    whole = network()
with tf.device(plan.host):
    between = fit.use(network(), two, stages=len(two))
models = {"one device": whole, "between layers": between, "inside layers": model}
steps = {}
for name, each in models.items():
    with tf.device(first if each is whole else plan.host):  # for operations without a device
        each.compile(keras.optimizers.Adam(1e-3), entropy, jit_compile=False)
        steps[name] = trace.fit_step(each, (x, y))

# %%
for name, each in models.items():
    kept = at_rest([*each.variables, *each.optimizer.variables])
    crossed = sum(n for way, n in steps[name].bytes_between().items() if plan.host not in way)
    print(f"{name:14} {crossed:9,} bytes cross; kept, in MB:",
          *[f"{device} {kept[device] / 1e6:.1f}" for device in two])  # fmt: skip
each_image = (1568 + 256) * 4  # bytes of what goes into the pair, and of what comes out
print(f"inside layers, by the rule: {2 * (len(two) - 1) * 512 * each_image:,} bytes")

# %% [markdown]
# The cut between layers is behind `fc1`, where 1024 numbers of each image cross, and their
# gradients come back. It sends less, but only the cut inside layers leaves half on each device.
#
# When does each device work?

# %% tags=["varies", "cover"]
drawings.stacked(steps)
plt.show()

# %% [markdown]
# Two rows of a device are two operations at the same time, and grey is a wait. Between layers, the
# cut keeps the device with `fc1` busy, and the other one mostly waits. Inside layers, both work on
# the pair. The dotted lines are the pair's two sums, the first just before the backward pass.
#
# The gain in time is small, because one device alone already uses both cores in the backward pass.
#
# | | |
# |---|---|
# | **Use it when** | one layer is too large for a device, or wide layers are too slow on one |
# | **It costs** | four transfers for each pair and each further device, in every step |
# | **Instead** | if the model fits, share out the batch ([[01]]); if each layer fits, [[12]] |
#
# ## Proof
#
# We train a whole and a split network in float64, where rounding hides no mistake. The optimizer is
# SGD, because Adam would hide a gradient that is twice as large:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
with tf.device(plan.host):
    split = fit.use(network(), two, layers=where)
with tf.device(first):
    whole = network()
    start = whole.get_weights()
    for each in (whole, split):
        each.compile(keras.optimizers.SGD(0.01), entropy, jit_compile=False)
        each.fit(x, y, batch_size=256, shuffle=False, verbose=0)

# %%
print("equal to 1e-12:", apart(split.get_weights(), whole.get_weights()) < 1e-12)
print("training moved a weight by over 0.001:", apart(start, whole.get_weights()) > 0.001)

# %% [markdown]
# ## Break it
#
# Suppose that you split a pair by hand and give every part the bias of `fc2`. In a new network all
# biases are zero. Write down what you expect of the outputs, and of the bias after a step:

# %%
bias, *biases = [tf.Variable(np.zeros(6)) for _ in range(3)]
with tf.GradientTape() as tape:
    once = block(batch, a, b) + bias
    twice = sum(block(batch, *half) + own for half, own in zip(halves, biases))
    losses = [tf.reduce_mean(each**2) for each in (once, twice)]

right, *both = tape.gradient(losses, [bias, *biases])
print("the outputs are equal:", np.allclose(once, twice))
print(f"the sum of both biases moves {sum(both)[0] / right[0]:.1f} times as far")

# %% [markdown]
# The outputs are equal, but each part gets the whole gradient, so two biases learn twice as fast.
# Only a comparison after a step catches this. `fit.use` makes one bias, on the first device.
#
# ## On GPUs
#
# Does a split also save time? A pair with `in` inputs, h columns in A and `out` outputs has h (in +
# out) weights. For each example, every weight multiplies and adds three times: once forward, and
# twice for gradients. Half of these 6 h (in + out) operations move to the second device. The
# transfers are 8 (in + out) bytes. So the split pays if
#
# **h > 8/3 · operations a second / bytes a second.**
#
# At 10 TFLOP/s, and 12 GB/s over PCIe, h has to be over 2,222, so VGG16 gains with its 4096. All
# transfers pass the first GPU, so the limit grows with the number of GPUs: take two to four.
#
# In a Transformer, `layers="auto"` finds the pairs, and splits attention by heads ([Parts of
# layers](../docs/parts_of_layers.md)).
#
# ## On your own
#
# **1.** Many language models have a gated pair: (silu(x · G) ∗ (x · U)) · D. Here ∗ and silu work
# number by number, as relu does. Write `gated(g, u, d, n)`. It returns a list with a triple of
# matrices for each of n devices, an n-th of each matrix. Their outputs have to add up to that of
# the whole.

# %% tags=["exercise"]
def gated(g, u, d, n):
    return [(g, u, d) for i in range(n)]


checks.gated(gated)

# %% tags=["solution"]
def gated(g, u, d, n):
    return list(zip(np.split(g, n, axis=1), np.split(u, n, axis=1), np.split(d, n, axis=0)))


checks.gated(gated)

# %% [markdown]
# **2.** The output layer of a language model has a column for each word. Split by columns, it
# leaves each `logits[i]` on another device, with the scores of an equal share of the classes, in
# order. Write `losses(logits, y)`, the cross entropy of each example: the log of the sum of
# exp(score) over all classes, less the score of class `y`. Two conditions:
#
# - At most 16 bytes for each example may leave a device. The score of class `y` is on one device
#   only; `tf.one_hot` of a class outside its range is all zeros.
# - Scores of 1000 must not overflow: log Σ exp(s) = m + log Σ exp(s − m) for any m, so each device
#   can take its own highest score as m.

# %% tags=["exercise"]
def losses(logits, y):
    with tf.device(first):
        scores = tf.concat(logits, axis=1)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)


checks.losses(losses)

# %% tags=["solution"]
def losses(logits, y):
    tops, sums, own = [], [], []
    for i, part in enumerate(logits):
        with tf.device(part.device):
            top, width = tf.reduce_max(part, axis=1), part.shape[1]
            tops.append(top)
            sums.append(tf.reduce_sum(tf.exp(part - top[:, None]), axis=1))
            own.append(tf.reduce_sum(part * tf.one_hot(y - i * width, width), axis=1))
    with tf.device(first):
        highest = tf.reduce_max(tops, axis=0)
        total = sum(each * tf.exp(top - highest) for each, top in zip(sums, tops))
        return highest + tf.math.log(total) - sum(own)


checks.losses(losses)

# %% [markdown]
# ## What we saw
#
# - Between layers, a cut left 19.3 of 22.5 MB on one device. Inside layers it left 11.3 MB, and
#   7,471,104 bytes crossed instead of 4,194,304.
# - In float64 the weights after training were those of one device to 1e-12.
# - A bias in both parts learned 2.0 times as fast, while the outputs were equal.
#
# ## Compared with other ways
#
# In the small Transformer of [[01]], parts of layers send more than stages, and take less time:
#
# [[ways: 00 12 13]]
#
# ## In practice
#
# `memory.plan` names a layer that is larger than a device's share. Split it with the layer behind
# it.
#
# Next: [[next]].
