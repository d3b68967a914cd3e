# %% [markdown]
# # Split a layer
#
# A single layer of your model is too large for a GPU, so a cut between layers does not help.
#
# **In this lesson** two devices share every large layer of a network and work on it at the same
# time, and its weights after training are those of one device. Each of them keeps 15.1 MB or less,
# and one device alone would keep 27.7 MB.
#
# ![Each device multiplies the input by its columns of A, applies relu, and multiplies by its rows
# of B. The results are added up; gradients come back.](pictures/14_pair.svg)
#
# This is **tensor parallelism**, with the cut of [Megatron-LM](../docs/sources.md#megatron) (2019).
#
# ## The lines to paste
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; call it before you make the first tensor
# with tf.device(plan.host):  # so that no GPU has to hold the whole model
#     model = build()
# model = fit.use(model, plan, layers={"up.*": "columns", "down.*": "rows"})
# model.compile(...)  # here or before fit.use; then fit as before
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

layers, pair, first = keras.layers, plan.devices[:2], plan.devices[0]
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images, y = digits.load(1024)
x = images.reshape(1024, 784)

# %% [markdown]
# ## Split a network
#
# Our network has two residual blocks, whose input is added to their output. In each, a layer `up`
# makes 2048 numbers out of 256, relu follows, and a layer `down` makes 256 of them again. We call
# `up` and `down` a **pair**. The pairs hold most of the weights:

# %%
def network():
    keras.utils.set_random_seed(17)
    image = keras.Input([784])
    x = layers.Dense(256, name="stem")(image)
    for i in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.Dense(2048, "relu", name=f"up_{i}")(y)
        x = layers.Add(name=f"sum_{i}")([x, layers.Dense(256, name=f"down_{i}")(y)])
    return keras.Model(image, layers.Dense(10, name="scores")(x))

# %% [markdown]
# `layers=` maps layer names (regular expressions) to the way to cut: `up` by the columns of its
# kernel, and the `down` behind it by rows. All other layers stay on the first device. Where are the
# weights of a pair now?

# %%
where = {"up_.*": "columns", "down_.*": "rows"}
with tf.device(plan.host):
    model = fit.use(network(), pair, layers=where)

# %%
for name in ["up_0", "down_0"]:
    for each in model.get_layer(name).weights:
        print(each.path, tuple(each.shape), devices.short(each.value.device))

# %% [markdown]
# Each device has half of the columns of the first kernel, and half of the rows of the second. Only
# the first device has the bias of `down`.
#
# ## Why the parts add up
#
# A pair computes relu(x · A) · B. Each column of A makes one hidden number, and relu treats each
# hidden number by itself, so a device with some columns of A completes some hidden numbers. Hidden
# number k is then multiplied by row k of B only. A small pair, cut in two, shows it:

# %%
batch, a, b = [np.random.default_rng(17).normal(size=n) for n in ([8, 6], [6, 10], [10, 6])]


def block(x, a, b):
    return np.maximum(x @ a, 0) @ b

# %%
halves = [*zip(np.split(a, 2, axis=1), np.split(b, 2, axis=0))]
added = sum(block(batch, *half) for half in halves)
print("the halves add up to the whole:", np.allclose(added, block(batch, a, b)))

# %% [markdown]
# The forward pass adds up the results of a pair once, and the backward pass the gradients of its
# input. Each device updates its own weights, so no weight crosses. With `"heads"` for an
# attention layer, each device computes some of its heads.
#
# ## What it saves, and what crosses
#
# We compare three ways: one device, a cut between layers (`stages=`), and our cut inside layers:

# %%
with tf.device(first):
    whole = network()
with tf.device(plan.host):
    between = fit.use(network(), pair, stages=len(pair))
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
          *[f"{device} {kept[device] / 1e6:.1f}" for device in pair])  # fmt: skip
S = 1024 * 256 * 4
print(f"two pairs, by the formula: {2 * 4 * (len(pair) - 1) * S:,} bytes")

# %% [markdown]
# Both cuts leave about half of the weights and of Adam's state on each device. But the cut inside
# layers sends more. Call the bytes that go into a pair S, here 1024 · 256 numbers of 4 bytes. In
# the forward pass every device but the first gets S and sends S back, and in the backward pass
# again. So on n devices each pair sends 4 (n − 1) S in a step. A cut between layers sends 2 S,
# however many pairs there are.
#
# How long does a step take?

# %% tags=["varies", "cover"]
drawings.stacked(steps)
plt.show()

# %% [markdown]
# Each bar is an operation, a second row of bars is a second operation at the same time, and grey is
# a wait. With a cut between layers, the devices nearly take turns. Inside layers, both work on each
# pair at the same time. At each dotted line a pair's results or gradients are added up, for the
# second time just before the backward pass. Between the pairs only the first device works, on all
# other layers.
#
# The titles give the times. On two cores a split can gain little or lose, because one device alone
# already uses both in the backward pass.
#
# | | |
# |---|---|
# | **Use it when** | the model fits on no device, and its layers are wide or the link is fast |
# | **It costs** | four transfers for each pair and each further device, in every step |
# | **Instead** | if the model fits, share out the batch ([[01]]); else [[12]] or [[13]] |
#
# ## Proof
#
# We train the split network and the whole one in float64, where rounding hides no mistake. The
# optimizer is SGD, because Adam would hide a gradient that is twice as large:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
with tf.device(plan.host):
    split = fit.use(network(), pair, layers=where)
with tf.device(first):
    whole = network()
    start = whole.get_weights()
    for each in (whole, split):
        each.compile(keras.optimizers.SGD(0.01), entropy, jit_compile=False)
        each.fit(x[:512], y[:512], batch_size=256, shuffle=False, verbose=0)

# %%
print("equal to 1e-12:", apart(split.get_weights(), whole.get_weights()) < 1e-12)
print("training moved a weight by over 0.001:", apart(start, whole.get_weights()) > 0.001)

# %% [markdown]
# ## Break it
#
# Suppose that you split a pair by hand and give every part the bias of `down`. In a new network all
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
# Only a comparison after a step catches this. If `down` were cut by columns, too, a device would
# need all hidden numbers and has only its own. `fit.use` refuses that.
#
# ## On GPUs
#
# A split pays if it saves more time than its transfers take. Here four transfers of S = 1.05 MB
# take 0.35 ms over PCIe at 12 GB/s. Half of a pair's 6.4 GFLOP is 0.32 ms at 10 TFLOP/s, so nothing
# is won. With twice as many hidden numbers it would be 0.64 ms, for the same bytes. All transfers
# pass the first GPU, so take two to four.
#
# Keras's own `ModelParallel` is for JAX, and with TensorFlow it splits nothing.
#
# ## On your own
#
# **1.** Many language models have a gated pair: (silu(x · G) ∗ (x · U)) · D. Here ∗ multiplies
# number by number, and silu(z) is z/(1 + exp(−z)). Write `gated(g, u, d, n)`. It returns a list
# with a triple of matrices for each of n devices, an n-th of each matrix, whose outputs add up to
# that of the whole.

# %% tags=["exercise"]
def gated(g, u, d, n):
    return [(g, u, d) for i in range(n)]


checks.gated(gated)

# %% tags=["solution"]
def gated(g, u, d, n):
    return list(zip(np.split(g, n, axis=1), np.split(u, n, axis=1), np.split(d, n, axis=0)))


checks.gated(gated)

# %% [markdown]
# **2.** The output layer of a language model has a column for each word, and Megatron-LM splits it
# by columns. Then `logits[i]` is on one device and has the scores of an equal share of the classes,
# in order. Write `losses(logits, y)`, the cross entropy of each example: the log of the sum of
# exp(score) over all classes, less the score of class `y`. At most 16 bytes for each example may
# leave a device, and scores of 1000 must not overflow: log Σ exp(s) = m + log Σ exp(s − m) for any
# m, so each device can take its own highest score as m.

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
# - Split inside its layers, the network sent 8,388,608 bytes in a step, and split between them
#   2,097,152; the fullest device kept 15.1 MB instead of 27.7 MB.
# - In float64 the weights after training were those of one device to 1e-12.
# - A bias in both parts learned 2.0 times as fast, while the outputs were equal.
#
# ## Compared with other ways
#
# The small Transformer of [[01]] has two splits in each block, so more bytes cross than in any
# other way:
#
# [[ways]]
#
# ## In practice
#
# If a model fits on no device, split it inside its layers if these are wide or the link is fast.
# Otherwise, and across machines, split it between layers.
#
# Next: [[next]].
