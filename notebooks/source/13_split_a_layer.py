# %% [markdown]
# # Split a layer
#
# Your model fits on no single GPU, and after a cut between its layers ([[12]]) the GPUs take turns.
# If a single layer is too large for a GPU, such a cut does not even help.
#
# **In this lesson** two devices share every large layer of a network and work on it at the same
# time, and its weights after training are those of one device. The field calls this **tensor
# parallelism**. The cut is that of [Megatron-LM](../docs/sources.md#megatron) (2019).
#
# **You will learn** to
# - split the Dense layers and the attention of a Keras model,
# - say why the parts add up, and prove it,
# - see what each device holds, and what crosses,
# - notice a split that is wrong, or does nothing.
#
# **You need** [[12]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, memory, timing, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_13 as checks
from mgpu_helpers.lessons.state import at_rest

layers, adam = keras.layers, partial(keras.optimizers.Adam, 1e-3)
entropy = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
pair = plan.devices[:2]
first = pair[0]
images, y = digits.load(1024)
x = images.reshape(1024, 784)

# %% [markdown]
# ## The lines to paste
#
# Here is a network with two residual blocks. In each, a layer `up` makes 2048 numbers out of 256,
# relu follows, and a layer `down` makes 256 of them again. Such layers are a **pair**. The two
# pairs hold most of the weights:

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
# `layers=` of `fit.use` takes a dictionary from layer names (regular expressions) to the way to
# cut: `up` by columns of its kernel, the `down` behind it by rows. Only Dense layers can be cut so;
# MultiHeadAttention is cut by its heads. All other layers stay whole on the first device, except
# what stands inside a pair, such as Dropout. The model is built on the host, so that no device has
# to hold all of it:

# %%
where = {"up_.*": "columns", "down_.*": "rows"}
with tf.device(plan.host):
    model = network()
model = fit.use(model, pair, layers=where)

# %%
passes = {"batch_size": 256, "epochs": 3, "shuffle": False, "verbose": 0}
model.compile(adam(), entropy())
of_two = model.fit(x, y, **passes).history["loss"]
print("losses on two devices:", *[f"{value:.1f}" for value in of_two])

# %% [markdown]
# The model is trained without XLA here. Does one device without XLA come to the same losses?

# %%
with tf.device(first):
    whole = network()
    whole.compile(adam(), entropy(), jit_compile=False)
    of_one = whole.fit(x, y, **passes).history["loss"]
print("losses on one device: ", *[f"{value:.1f}" for value in of_one])
print("less than 0.001 apart:", np.allclose(of_one, of_two, rtol=0, atol=1e-3))

# %% [markdown]
# It does. Here are the shapes of one pair's weights, and where they lie:

# %%
for name in ["up_0", "down_0"]:
    for each in model.get_layer(name).weights:
        print(each.path, tuple(each.shape), devices.short(each.value.device))

# %% [markdown]
# Each device has half of the columns of the first kernel and half of the rows of the second. The
# bias of `down` is added once, after the sum, so only the first device has it.
#
# | | |
# |---|---|
# | **Use it when** | the model fits on no device, and its layers are wide or the link is fast |
# | **It costs** | four transfers in a step, for each pair and each further device |
# | **How many** | two to four devices: all transfers go through the first one's links |
# | **Instead** | if the model fits, share out the batch ([[07]]); else [[12]] or [[14]] |
#
# ## How it works
#
# A pair computes relu(x · A) · B. Each column of A makes one hidden number, and `relu` treats each
# hidden number by itself. So a device that has some columns of A can compute some hidden numbers
# completely. Hidden number k is multiplied by row k of B only:
#
# ![The input goes to both devices. Each multiplies it by its columns of A, applies relu, and
# multiplies by its rows of B. The results are added up. Gradients come back.](pictures/13_pair.svg)
#
# Small matrices show it, halved between devices:

# %%
batch, a, b = [np.random.default_rng(17).normal(size=n) for n in ([8, 6], [6, 10], [10, 6])]
halves = [*zip(np.split(a, 2, axis=1), np.split(b, 2, axis=0))]

def block(x, a, b):
    return np.maximum(x @ a, 0) @ b


added = sum(block(batch, *half) for half in halves)
print("equal to 1e-12:", np.allclose(added, block(batch, a, b), rtol=0, atol=1e-12))

# %% [markdown]
# The results of a pair are added up once in the forward pass, and the gradients of its input once
# in the backward pass, both on the first device. Each device finds the gradients of its own parts
# and updates these parts, so no weight crosses.
#
# **Attention** is split by its heads: queries, keys and values by columns, and the output
# projection, which adds up the heads, by rows.
#
# ## Proof
#
# Are the gradients right, too? The split and the whole network are trained in float64, where
# rounding hides no mistake, and with plain gradient descent, as Adam would hide a gradient
# that is twice as large. `get_weights` of a split model gives whole weights:

# %%
def everything_in(dtype):
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def apart(ours, theirs):
    return max(np.max(np.abs(a - b)) for a, b in zip(ours, theirs, strict=True))


# %%
def proof(build, where, x, y):
    everything_in("float64")
    with tf.device(plan.host):
        model = build()
    begin, split = model.get_weights(), fit.use(model, pair, layers=where)
    with tf.device(first):
        whole = build()
        for each in (whole, split):
            each.compile(keras.optimizers.SGD(0.01), entropy(), jit_compile=False)
            each.fit(x, y, **passes)
    ours, theirs = split.get_weights(), whole.get_weights()
    everything_in("float32")
    print("equal to 1e-12:", apart(ours, theirs) < 1e-12)
    print("apart from the beginning by over 0.001:", apart(ours, begin) > 0.001)


proof(network, where, x[:256], y[:256])

# %% [markdown]
# ## What crosses, and what each device holds
#
# From here on a batch has 1024 examples. Into a pair go 1024 · 256 numbers of 4 bytes. Call this S
# bytes; what comes out is as large. Each device but the first
# - receives the input and sends back its result, in the forward pass,
# - receives the gradient of the result and sends back that of the input, in the backward pass.
#
# So on n devices a pair sends 4 (n − 1) S in a step.
#
# To compare, `stages=2` ([[12]]) cuts the same network between its layers. `crossed` adds up what
# the devices send to each other in a traced step:

# %%
def crossed(step):
    return sum(size for way, size in step.bytes_between().items() if plan.host not in way)


with tf.device(plan.host):
    between = fit.use(network(), pair, stages=2)
between.compile(adam(), entropy())
models = {"one device": whole, "between layers": between, "inside layers": model}

# %%
S, steps = 1024 * 256 * 4, {}
for name, each in models.items():
    with tf.device(first if each is whole else plan.host):  # where operations without a device go
        steps[name] = trace.fit_step(each, (x, y))
    print(f"{name:14} {crossed(steps[name]):9,} bytes cross")
print(f"two pairs, by the formula: {2 * 4 * (len(pair) - 1) * S:,} bytes")

# %% [markdown]
# The pairs send what the formula says. A cut between layers sends 2 S, however many pairs there
# are.
#
# Scratch memory aside, what does each device hold at the peak of the step? The number in a bar is
# what it keeps between steps: weights and slots, Adam's two numbers for each weight. "Gradients"
# are those of weights that exist at the peak, with Adam's temporary copies:

# %% tags=["varies"]
bars = {}
for name, each in models.items():
    kept = [at_rest(own.variables) for own in (each, each.optimizer)]
    for device in [first] if each is whole else pair:
        weights, slots = [size[device] for size in kept]
        bars[f"{name}\n{device}"] = memory.by_use(
            steps[name], device, weights=weights, slots=slots, scratch=False)  # fmt: skip
        print(f"{name:14} {device} keeps {(weights + slots) / 1e6:4.1f} MB of weights and slots")
drawings.kept(charts.held(bars), bars)
plt.show()

# %% [markdown]
# Split either way, each device keeps less and holds less.
#
# ## When devices work
#
# Each bar is an operation; very short ones side by side look pale. A device that ran two at once
# has two lanes; which lane means nothing. Grey is a wait; on a GPU mostly for the host, which
# starts the operations. A dotted line is where the results of a pair, or the gradients of its
# input, are added up:

# %% tags=["varies", "cover"]
drawings.stacked(steps)
plt.show()

# %% [markdown]
# Split between layers, the devices take turns. Both work at once only while the second still
# computes the gradients of its own weights. Split inside layers, both have work on each pair at the
# same time, forward and backward. Between the pairs the second device waits for the first, which
# computes all other layers.
#
# Which way is the fastest without tracing? The brackets hold the middle half of the ten ratios:

# %% tags=["nbval-ignore-output"]
runs = {name: partial(each.train_on_batch, x, y) for name, each in models.items()}
with tf.device(first):  # where the whole model computes; the others place their own operations
    times = timing.several(runs, warmup=1, repeats=10)
for name in ["between layers", "one device"]:
    print(timing.Comparison(times[name], times["inside layers"], (name, "inside layers")))

# %% [markdown]
# On cores, a step split inside layers is the fastest, if no other program runs. One device is
# second, as it also ran two operations at once (two lanes above). On a GPU one device may be the
# fastest, as it has the fewest operations.
#
# ## Break it
#
# **Columns after columns.** Somebody cuts `down` by columns as well. `fit.use` refuses:

# %%
try:
    with tf.device(plan.host):
        fit.use(network(), pair, layers=dict.fromkeys(where, "columns"))
except ValueError as error:
    print(error)

# %% [markdown]
# A device has half of the hidden numbers, so it uses only half of the rows of its columns of B.
# Look at the number of weights:

# %%
parts = [*zip(np.split(a, 2, axis=1), [b[:5, :3], b[5:, 3:]])]
joined = np.concatenate([block(batch, up, down) for up, down in parts], axis=1)
print("the shape is right:", joined.shape == added.shape)
print("equal to 1e-12:", np.allclose(joined, added, rtol=0, atol=1e-12))
print(f"{a.size + b.size} weights, here {sum(up.size + down.size for up, down in parts)}")

# %% [markdown]
# Half of B is never used. To catch this in a split by hand, count the weights.
#
# **A bias in every part.** In a new network each bias of `down` is zero, so with one in every part
# the outputs are still equal. The gradient says how far the bias moves in a step:

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
# Each part gets the whole gradient, so n biases learn n times as fast. To catch this, compare the
# weights after a step.
#
# **A setting that does nothing.** `ModelParallel` of `keras.distribution` splits layers on JAX.
# TensorFlow accepts it without a word. Look at the kernel's shape and place:

# %% tags=["unplaced"]
mesh = keras.distribution.DeviceMesh((len(plan),), ["model"], plan.devices)
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))
kernel = keras.Sequential([keras.Input([8]), layers.Dense(840)]).layers[0].kernel
keras.distribution.set_distribution(None)
print(kernel.shape, "on", devices.short(kernel.value.device))

# %% [markdown]
# The kernel is one whole variable on one device. To catch this, print where the weights lie.
#
# ## On GPUs
#
# Does a split save time? The next layer waits for the sum, so a pair's transfers must take less
# time than the split saves. Above, S is 1.05 MB, so on two GPUs a pair's four transfers take 0.35
# ms over PCIe at 12 GB/s. The split saves half of a pair's 6.4 GFLOP, which is 0.32 ms at 10
# TFLOP/s, and less with TF32: nothing is won. Twice as many hidden numbers would save 0.64 ms and
# send no more.
#
# With 8 GPUs of one server [version 1.0 of Megatron-LM](https://nv-adlr.github.io/MegatronLMV1)
# reached 79.6 % of ideal weak scaling, where the model grows with the number of GPUs. Megatron-LM
# adds up by an all-reduce ([[09]]), `fit.use` on the first GPU. Received copies take memory, too,
# which the bars above do not count.
#
# ## With a model of another kind
#
# A Transformer block has attention and a pair. Here a digit is a sequence of 28 rows, and the
# attention has five heads, which two devices cannot share evenly:

# %%
def transformer():
    keras.utils.set_random_seed(17)
    image = keras.Input([28, 28])
    x = layers.Dense(64)(image)
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(5, key_dim=8, name="heads")(y, y)])
    y = layers.Dense(256, "gelu", name="up")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(64, name="down")(y)])
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


ways = {"heads": "heads", "up": "columns", "down": "rows"}
rows = images[:, :, :, 0]
proof(transformer, ways, rows[:256], y[:256])

# %%
with tf.device(plan.host):
    model = fit.use(transformer(), pair, layers=ways)
    model.compile("sgd", entropy())

for each in model.get_layer("heads").weights[:2]:
    print(each.path, tuple(each.shape), devices.short(each.value.device))

# %%
S = 64 * 28 * 64 * 4
with tf.device(plan.host):
    step = trace.fit_step(model, (rows[:64], y[:64]))
print(f"{crossed(step):,} bytes, by the formula {2 * 4 * (len(pair) - 1) * S:,}")

# %% [markdown]
# The proof holds with three heads on the first device and two on the second. Attention and the pair
# send 4 (n − 1) S each.
#
# `save` and `save_weights` write the whole model, which loads without a split, too. With Dropout in
# a pair or a head, other numbers are dropped than on one device.
# [docs/fit.md](../docs/fit.md#a-layer-that-is-too-large-for-a-device) says what `fit.use` refuses.
#
# ## On your own
#
# Under each exercise is its solution, closed until you click *1 cell hidden*.
#
# **1.** Many language models have a gated pair: (silu(x · G) ∗ (x · U)) · D, where ∗ multiplies
# number by number. Write `gated(g, u, d, n)`: a list with a triple of matrices, an n-th of each,
# for each of n devices, whose outputs add up to that of the whole.

# %% tags=["exercise"]
def gated(g, u, d, n):
    return [(g, u, d) for i in range(n)]


checks.gated(gated)

# %% tags=["solution"]
def gated(g, u, d, n):
    return list(zip(np.split(g, n, axis=1), np.split(u, n, axis=1), np.split(d, n, axis=0)))


checks.gated(gated)

# %% [markdown]
# **2.** The output layer of a language model has a column for each word. Megatron-LM splits it by
# columns. Then `logits` is a list: `logits[i]` lies on one device and has the scores of an equal
# share of the classes, in order. Write `losses(logits, y)`: the cross entropy of each example,
# which is the log of the sum of exp(score) over all classes, less the score of the right class,
# which `y` names. At most 16 bytes for each example may leave a device, and scores of 1000 must not
# overflow.

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
# - Columns, then rows: results only have to be added up. Heads are cut in the same way.
# - In float64 the weights were those of one device to 1e-12, in Dense pairs and in a Transformer.
# - Split inside its layers, the network sent 8,388,608 bytes in a step, and split between them
#   2,097,152 bytes.
# - One device alone keeps 27.7 MB of weights and slots; split either way, none kept more than
#   15.1 MB.
# - Split between layers, the devices took turns; split inside them, both had work at the same
#   time.
# - A bias in both parts learned 2.0 times as fast, while the outputs were equal.
#
# ## In practice
#
# If a model fits on no device, split it inside its layers where these are wide or the link is fast.
# Otherwise, and across machines, split it between layers ([[14]]).
#
# Next: [[14]].
