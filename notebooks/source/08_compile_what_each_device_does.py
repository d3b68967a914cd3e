# %% [markdown]
# # Compile what each device does
#
# On one GPU, Keras compiles your training step with XLA. On several GPUs, Keras and `tf.distribute`
# leave XLA out, and you can lose more time by that than the second GPU saves you.
#
# **In this lesson** all that a device does between two exchanges becomes one compiled function, and
# the weights stay those of one device.
#
# ![Each of two devices runs two compiled functions: gradients, and update. Between these two the
# devices exchange gradients, and average them.](pictures/08_functions.svg)
#
# **XLA** is TensorFlow's compiler. In an **exchange**, devices send each other something, such as
# gradients. `fit` leaves exchanges as they are and compiles what comes before and after. In the
# step below, 893 operations become 4 functions. One argument of `compile` asks for this:
#
# ```python
# with fit.strategy(plan).scope():
#     model = build()
#     model.compile("adam", loss, jit_compile=True)  # on GPUs this is the default
# model.fit(x, y)
# ```
#
# The argument does the same for `fit.use(model, plan)`. On two halves of an H200, a step of
# MobileNetV2 took about 47 ms compiled, by `fit.strategy(plan, synchronized=False)`, and about
# 97 ms under `MirroredStrategy`. Other programs used this GPU, too, so [the times
# are rough](../docs/first_ten_minutes_on_a_gpu.md#14-compiled-layouts-on-an-h200).
#
# **You need** [[01]] and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import re
import warnings
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, towers
from mgpu_helpers.lessons import compiled, digits
from mgpu_helpers.lessons.checks import lesson_08 as checks
from mgpu_helpers.lessons.state import apart

# %% [markdown]
# ## Count the functions
#
# The network has seven dense layers. All numbers are float64, because there rounding cannot hide a
# mistake. An epoch is one batch, so it is one step:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")  # before the loss is made, which has a type, too
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images, labels = digits.load(64)
x, y = images.reshape(64, 784).astype("float64"), labels
train = {"batch_size": 64, "epochs": 3, "shuffle": False, "verbose": 0}


def build(optimizer="adam", **how):
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(32, "relu") for _ in range(6)]
    model = keras.Sequential([keras.Input([784]), *hidden, keras.layers.Dense(10)])
    model.compile(optimizer, entropy, **how)
    return model


# %% [markdown]
# `compiled.functions` trains the model and lists what `fit` has compiled. Reading and writing
# variables does not count as an operation here:

# %%
with fit.strategy(plan).scope():
    by_fit = build(jit_compile=True)
found, others = compiled.functions(by_fit, x, y, **train)
for device, operations in found:
    print(f"{device}: {operations} operations became one function")
print(f"in all: {sum(n for _, n in found)} became {len(found)}, and {others} stayed as they were")

# %% [markdown]
# The first function of a device takes a share of the batch and returns gradients. The second one
# updates the weights by the average of all gradients, with Adam. The first device has more
# operations, because it also adds up the gradients and the losses of both. Without XLA, TensorFlow
# starts each operation by itself, and each one writes its result to memory.
#
# ## By hand
#
# XLA refuses a function that uses variables of another device, and our model has its variables on
# one. So we write **pure functions**: the weights go in as arguments, and what changes comes out as
# results. Keras's `stateless_call` calls a model with the weights that you give it. The optimizer
# is SGD with momentum, in two lines:

# %%
first = plan.devices[0]
with tf.device(first):
    model = build()
begin = model.get_weights()


def gradients(weights, x, y):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, _ = model.stateless_call(weights, [], x)
        loss = entropy(y, outputs)
    return tape.gradient(loss, weights)


def update(weights, moves, means):
    moves = [0.5 * move - 0.125 * mean for move, mean in zip(moves, means)]
    return [weight + move for weight, move in zip(weights, moves)], moves


# %% [markdown]
# `step` calls both functions on each device, with the device's own copies of the weights. The host
# averages the gradients between the two calls. `jit` decides whether XLA compiles the functions:

# %%
def put(variable, value):
    variable.assign(value)


def stepper(jit):
    slopes, moved = [tf.function(each, jit_compile=jit) for each in (gradients, update)]
    state = {}
    for device in plan.devices:
        with tf.device(device):
            state[device] = [[tf.Variable(a) for a in begin], [tf.Variable(0 * a) for a in begin]]

    @tf.function
    def step(x, y):
        found = []
        for device, shard in zip(plan.devices, towers.split((x, y), len(plan))):
            with tf.device(device):
                found.append(slopes(state[device][0], *shard))
        with tf.device(plan.host):
            means = [tf.add_n(column) / len(plan) for column in zip(*found)]
        for device in plan.devices:
            with tf.device(device):
                tf.nest.map_structure(put, state[device], list(moved(*state[device], means)))

    return step, state


# %%
step, state = stepper(jit=True)
for _ in range(3):
    step(x, y)
by_hand = [weight.numpy() for weight in state[plan.devices[-1]][0]]

# %% [markdown]
# ## Proof
#
# Three steps with Adam by `fit`, and three with momentum by hand, are compared with Keras's own
# three steps on one device, which nothing compiles:

# %%
def on_one(optimizer):
    with tf.device(first):
        model = build(optimizer, run_eagerly=True)
        model.fit(x, y, **train)
    return model.get_weights()


momentum = keras.optimizers.SGD(0.125, momentum=0.5)
print("fit differs by less than 1e-12:", apart(by_fit.get_weights(), on_one("adam")) < 1e-12)
print("by hand differs by less than 1e-12:", apart(by_hand, on_one(momentum)) < 1e-12)

# %% [markdown]
# ## What is fused
#
# Here is the step by hand without XLA and with it. In the trace a compiled function is one
# operation:

# %%
plain, _ = stepper(jit=False)
traces = {"Without XLA": compiled.traced(plain, x, y), "With XLA": compiled.traced(step, x, y)}
for name, traced in traces.items():
    print(f"{name}: {compiled.started(traced)}")

# %% tags=["varies", "cover"]
_, axes = plt.subplots(2, figsize=(8, 4.6), layout="constrained", sharex=True)
for ax, (name, traced) in zip(axes, traces.items()):
    charts.timeline(traced, ax).set_title(name, loc="left")
ax.set_xlim(0, max(1e3 * traced.length for traced in traces.values()))
plt.show()

# %% [markdown]
# Without XLA, each of the two devices starts 108 operations. With XLA it starts two, the wide
# boxes. Thin lines beside them read and write variables. The host starts 30 in both cases: two cut
# the batch, and for each of the 14 gradients one adds and one divides. Compare the boxes and not
# the times, which change from run to run. This network is so small that a device is often done
# before the other has begun.
#
# What has become of the 108? XLA **fuses** neighbours, such as the bias and the ReLU of a layer: it
# makes one loop of them, which reads its inputs once and writes its result once. This is what the
# compiled function for the gradients runs:

# %% tags=["nbval-ignore-output"]
shard = x[: 64 // len(plan)], labels[: 64 // len(plan)]
with tf.device(first):
    print(compiled.kernels(gradients, begin, *shard))

# %% [markdown]
# Each layer keeps its three matrix products (`dot`), but the first layer has two, because nobody
# needs the gradient of the images. All other operations are now in the fused loops.
#
# ## Break it
#
# This function subtracts from each row its median, which NumPy computes. XLA knows nothing of
# NumPy. Will it compile the rest, or refuse the function? And what does `fit` do with such a layer
# in the middle of a model? Write down what you expect.

# %%
def centre(x):
    medians = tf.numpy_function(partial(np.median, axis=1), [tf.stop_gradient(x)], tf.float64)
    return x - tf.reshape(medians, [-1, 1])


try:
    with tf.device(first):
        tf.function(centre, jit_compile=True)(x)
except tf.errors.InvalidArgumentError as error:
    print(*re.findall(r"Detected unsupported operations|No registered '\w+' OpKernel", str(error)))

# %%
with fit.strategy(plan).scope():
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Lambda(centre, name="centre")]
    odd = keras.Sequential([keras.Input([784]), *layers, keras.layers.Dense(10)], name="odd")
    odd.compile("sgd", entropy, jit_compile=True)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found, others = compiled.functions(odd, x, y, **train)
print(f"operations outside of the compiled functions: {others}")
print(*(each.message for each in said))

# %% [markdown]
# XLA refuses the whole function. `fit` runs the operation between its functions, here once on each
# device, and says so in one sentence. On a GPU, the data then goes to the host and back in the
# middle of a step, so write such a layer with TensorFlow's own operations if you can.
#
# | | |
# |---|---|
# | **Use it when** | a step has many small operations, as activations, normalization and Adam do |
# | **It costs** | time to compile: minutes for a large model, and again for each new batch size |
# | **It holds** | the old and the new weights at once, during an update |
# | **Instead** | `jit_compile=False` while you debug, or if your batches have many lengths |
#
# ## On GPUs
#
# A GPU runs operations as **kernels**, and a small kernel often takes longer to start than to run.
# On an H200, a step of ResNet-50 took 113 ms without XLA and 36.6 ms with it ([stored
# times](../docs/first_ten_minutes_on_a_gpu.md#11-compiled-parts-of-a-step-tried-on-an-h200)), and a
# second GPU can at best halve the time. The step of MobileNetV2 above started 2,059 kernels
# compiled, and 11,578 under `MirroredStrategy`. Plain Keras with XLA took 26.5 ms on the whole GPU:
# two halves compute in turns, so they cannot be faster. Nobody has tried several GPUs yet.
#
# Without `synchronized=False`, each BatchNormalization normalizes by the whole batch. That is an
# exchange, too: with the 52 of MobileNetV2, a step has 212 functions.
#
# ## On your own
#
# **1.** The loss of a text counts its words, but not what fills up short lines. The stub asks NumPy
# for it. Write `word_loss(losses, is_word)` so that XLA compiles it: the mean of all `losses` for
# which `is_word` is True, and 0 if there is none. Both are tensors of one shape.

# %% tags=["exercise"]
def word_loss(losses, is_word):
    def mean(losses, is_word):
        return losses[is_word].mean()

    return tf.numpy_function(mean, [losses, is_word], losses.dtype)


checks.word_loss(word_loss)

# %% tags=["solution"]
def word_loss(losses, is_word):
    counts = tf.cast(is_word, losses.dtype)
    return tf.reduce_sum(losses * counts) / tf.maximum(tf.reduce_sum(counts), 1)


checks.word_loss(word_loss)

# %% [markdown]
# **2.** XLA compiles again for each new size of a device's share. An epoch has batches of `batch`
# examples; the last one has what is left. The shares of a batch differ by at most one example.
# Write `sizes(examples, batch, devices)`: how many different sizes of shares are there in one
# epoch? No batch has fewer examples than there are devices.

# %% tags=["exercise"]
def sizes(examples, batch, devices):
    return 1


checks.sizes(sizes)

# %% tags=["solution"]
def sizes(examples, batch, devices):
    batches = {min(batch, examples), examples % batch} - {0}
    return len({n // devices for n in batches} | {-(-n // devices) for n in batches})


checks.sizes(sizes)

# %% [markdown]
# ## What we saw
#
# - With `fit`, 893 operations became 4 compiled functions. By hand, 108 on a device became 2.
# - After three steps the weights differed by less than 1e-12 from those of one device.
# - XLA refused a function that asks NumPy. `fit` ran these 2 operations outside of its functions.
#
# ## Compared with other ways
#
# Compiled, the small Transformer of [[01]] starts four functions and three operations. A trace does
# not see what a function holds inside, so nothing stands under *adds*. On two cores compiling
# made the step slower, and on the H200 above faster:
#
# [[ways]]
#
# ## In practice
#
# On GPUs leave `jit_compile` out, and give all batches one size. If `fit` names an operation that
# XLA does not have, write your layer without it.
#
# Next: [[next]].
