# %% [markdown]
# # Split a layer
#
# One layer of your model is too large for a GPU. In VGG16, the layer `fc1` has 103 of 138 million
# parameters. Wherever you cut *between* layers ([[12]]), one GPU has to keep all of `fc1`.
#
# **In this lesson** one option splits the two largest layers of a network, and two devices work on
# them at the same time. The weights after training are those of one device. Each device keeps at
# most 11.3 MB, where a cut between layers leaves 19.3 MB on one of them.
#
# ![Two devices, each with half of the columns of A and half of the rows of
# B.](pictures/14_pair.svg)
#
# A and B are the kernels of two successive layers, here `fc1` and `fc2`. Each device multiplies the
# input x by its columns of A, applies relu, and multiplies by its rows of B. Then the first device
# adds up the results. This is **tensor parallelism**, with the cut of
# [Megatron-LM](../docs/sources.md#megatron).
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
# Name your own layers. In a Transformer, `layers="auto"` finds what to cut, and splits attention by
# heads ([Parts of layers](../docs/parts_of_layers.md)).
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
# How much does each layer of our network keep, at 12 bytes a parameter, 8 of them for Adam?

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
# If a device has room for 15 MB, `fc1` alone is too large, and no cut between layers helps.
#
# ## Split it
#
# We cut `fc1` and `fc2`, together a **pair**. All other layers stay on the first device. Where are
# the pair's weights now?

# %%
where = {"fc1": "columns", "fc2": "rows"}
with tf.device(plan.host):
    model = fit.use(network(), two, layers=where)

# %%
for name in where:
    for each in model.get_layer(name).weights:
        print(each.path, tuple(each.shape), devices.short(each.value.device))

# %% [markdown]
# Only the bias of `fc2` is whole, because it is added to the sum once.
#
# ## Why the parts add up
#
# A pair computes relu(x · A) · B. Number k of relu(x · A) needs only column k of A, and is then
# multiplied only by row k of B. So a device with some columns of A, and the same rows of B,
# computes its part of the sum alone. A small pair shows it:

# %%
batch, a, b = [np.random.default_rng(17).normal(size=n) for n in ([8, 6], [6, 10], [10, 6])]


def block(x, a, b):
    return np.maximum(x @ a, 0) @ b

# %%
halves = [*zip(np.split(a, 2, axis=1), np.split(b, 2, axis=0))]
added = sum(block(batch, *half) for half in halves)
print("the halves add up to the whole:", np.allclose(added, block(batch, a, b)))

# %% [markdown]
# ## What it saves, and what crosses
#
# No weight crosses, because each device updates its own. In the forward pass, the pair's input goes
# to every device but the first, and each of them sends back its part of the result. In the backward
# pass, the gradients of both go the opposite way, and those of the input are added up. So on n
# devices a pair sends 2 (n − 1) times the bytes of its input and result.
#
# We compare this with one device, and with a cut between layers, `stages=2`:

# %%
with tf.device(first):
    whole = network()
with tf.device(plan.host):
    between = fit.use(network(), two, stages=len(two))
models = {"one device": whole, "between layers": between, "inside layers": model}
steps = {}
for name, each in models.items():
    with tf.device(first if each is whole else plan.host):
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
# The cut between layers is behind `fc1`. There 1024 numbers of each image cross, and as many
# gradients come back. That is less than inside layers, but it leaves 19.3 MB on one device.
#
# When does each device work? Where it has two rows, two operations run at a time. Grey is a wait,
# and the dotted lines are the two sums of the pair, one in each pass:

# %% tags=["varies", "cover"]
drawings.stacked(steps)
plt.show()

# %% [markdown]
# Between layers, the device with `fc1` is busy, and the other one mostly waits. Inside layers, both
# work on the pair. A step does not take half the time, because one device alone already uses both
# cores in the backward pass.
#
# | | |
# |---|---|
# | **Use it when** | one layer is too large for a device, or wide layers are too slow on one |
# | **It costs** | four transfers for each pair and each further device, in every step |
# | **Instead** | if the model fits, share out the batch ([[01]]); if each layer fits, [[12]] |
#
# ## Proof
#
# We train a whole and a split network in float64, where rounding hides no mistake. We take SGD,
# because Adam would hide a gradient that is twice as large. `apart` returns the largest difference,
# as a share of the largest number of each kernel or bias:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
with tf.device(plan.host):
    split = fit.use(network(), two, layers=where)
with tf.device(first):
    whole = network()
    start = whole.get_weights()
    for each in (whole, split):
        each.compile(keras.optimizers.SGD(0.1), entropy, jit_compile=False)
        each.fit(x, y, batch_size=256, shuffle=False, verbose=0)

# %%
moved = min(np.abs(a - b).max() for a, b in zip(start, whole.get_weights()))
print("equal to 1e-12:", apart(split.get_weights(), whole.get_weights()) < 1e-12)
print("training moved every kernel and bias by over 0.0005:", moved > 0.0005)

# %% [markdown]
# ## Break it
#
# Suppose that you split a pair by hand, and give each part a bias of its own, at first zero. Write
# down what you expect of the outputs and the gradients:

# %%
bias, left, right = [tf.Variable(np.zeros(6)) for _ in range(3)]
with tf.GradientTape(persistent=True) as tape:
    whole_pair = block(batch, a, b) + bias
    parts = [block(batch, *half) + own for half, own in zip(halves, (left, right))]
    loss_whole, loss_parts = [tf.reduce_mean(each**2) for each in (whole_pair, sum(parts))]

print("the outputs are equal:", np.allclose(whole_pair, sum(parts)))
print(f"gradient of the bias:      {tape.gradient(loss_whole, bias)[0]:.2f}, ...")
for own in (left, right):
    print(f"gradient of a part's bias: {tape.gradient(loss_parts, own)[0]:.2f}, ...")

# %% [markdown]
# The outputs are equal, but each bias gets the whole gradient, so their sum learns twice as fast.
# Only a comparison after a step catches this.
#
# ## On GPUs
#
# A split saves time if moving the data takes less time than the computing that it saves. At 10
# TFLOP/s, and 12 GB/s over PCIe, A needs over 2,222 columns for that on two GPUs ([the
# rule](../docs/parts_of_layers.md#when-it-saves-time)), so VGG16 gains with its 4096.
#
# ## On your own
#
# **1.** Many language models have a gated pair: (silu(x · G) ∗ (x · U)) · D. Here ∗ and silu work
# number by number, as relu does. Write `gated(g, u, d, n)`, which returns a triple for each of n
# devices, with an n-th of each NumPy matrix. Their outputs have to add up to that of the whole.

# %% tags=["exercise"]
def gated(g, u, d, n):
    return [(g, u, d) for i in range(n)]


checks.gated(gated)

# %% tags=["solution"]
def gated(g, u, d, n):
    return list(zip(np.split(g, n, axis=1), np.split(u, n, axis=1), np.split(d, n, axis=0)))


checks.gated(gated)

# %% [markdown]
# **2.** The output layer of a language model has a column for each word. Split by columns, it makes
# a list `logits`: `logits[i]`, on device i, has the scores of an equal share of the words, in
# order. Write `losses(logits, y)`, the cross entropy of each example: the log of the sum of
# exp(score) over all words, less the score of word `y`. At most 16 bytes for each example may leave
# a device.
#
# `tf.reduce_logsumexp` returns such a log, also for scores of 1000. The score of word `y` is on one
# device only; `tf.one_hot` of a number outside its range is all zeros.

# %% tags=["exercise"]
def losses(logits, y):
    with tf.device(first):
        scores = tf.concat(logits, axis=1)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)


checks.losses(losses)

# %% tags=["solution"]
def losses(logits, y):
    logs, own = [], []
    for i, part in enumerate(logits):
        with tf.device(part.device):
            width = part.shape[1]
            logs.append(tf.reduce_logsumexp(part, axis=1))
            own.append(tf.reduce_sum(part * tf.one_hot(y - i * width, width), axis=1))
    with tf.device(first):
        return tf.reduce_logsumexp(logs, axis=0) - sum(own)


checks.losses(losses)

# %% [markdown]
# ## What we saw
#
# - Between layers, a cut left 19.3 of 22.5 MB on one device. Inside layers it left 11.3 MB, and
#   7,471,104 bytes crossed instead of 4,194,304.
# - In float64 the weights after training were those of one device to 1e-12.
# - With a bias in both parts, each got the whole gradient, while the outputs were equal.
#
# ## In practice
#
# `memory.plan` names a layer that is larger than a device's share. Split it with the layer behind
# it. [Which line for what](../docs/layouts.md) compares this with the other ways.
#
# Next: [[next]].
