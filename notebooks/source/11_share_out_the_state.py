# %% [markdown]
# # Share out the state
#
# Your model fits on a GPU, but its training does not. Each parameter takes 16 bytes: 4 for its
# weight, 4 for its gradient and 8 for its **slots**, the two numbers that Adam keeps. Sharing the
# batch does not help: the device that updates the weights still holds all 16.
#
# **In this lesson** one line gives each weight an owner among the devices. Between two steps, only
# the owner keeps the weight and its slots. Our network keeps 39.5 MB on one device. With owners,
# two devices keep 20.5 MB and 18.9 MB, and it trains as before. With four weights, A to D, a step
# looks like this:
#
# ![Each device owns some of the weights and fetches the others in a step.](pictures/11_owners.svg)
#
# This is **sharded state**, as in DeepSpeed's **ZeRO** and PyTorch's **FSDP**.
#
# ## The lines to paste
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; call it before you make the first tensor
# model = fit.use(model, plan, state="owners")  # with one GPU: state="host"
# ```
#
# `state="host"` makes the host own all weights.
#
# **You need** [[09]] and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
from collections import namedtuple
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_11 as checks
from mgpu_helpers.lessons.lesson_11 import layer_by_layer
from mgpu_helpers.lessons.state import apart, at_rest, share_of_weights, show, show_step

# %% [markdown]
# ## Try it
#
# Our network has thirteen dense layers without biases, so each layer has one weight, a matrix. We
# train on one device, and then on all, without owners and with them. `show` prints the losses, and
# what each device keeps between two steps:

# %%
images, labels = digits.load(32 * len(plan))
x, y = images.reshape(len(images), -1), labels
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")


def network():
    keras.utils.set_random_seed(0)
    dense = partial(keras.layers.Dense, use_bias=False, kernel_initializer="he_normal")
    hidden = [dense(512, activation="relu") for _ in range(12)]
    with tf.device(plan.devices[0]):
        model = keras.Sequential([keras.Input([784]), *hidden, dense(10)])
        model.compile(keras.optimizers.Adam(1e-4), loss)
        model.optimizer.build(model.trainable_variables)
    return model

# %%
train = {"x": x, "y": y, "batch_size": len(x), "epochs": 3, "shuffle": False, "verbose": 0}
model = network()
start = model.get_weights()
show(model, model.fit(**train))

# %%
models = {"without owners": fit.use(network(), plan),
          "with owners": fit.use(network(), plan, state="owners")}  # fmt: skip
for name, model in models.items():
    print(name)
    show(model, model.fit(**train))

# %% [markdown]
# The losses agree. Within a step, gradients and activations come on top. `show_step` prints the
# most that each device holds, and what crosses:

# %% tags=["nbval-ignore-output"]
for name, model in models.items():
    print(name)
    show_step(model, trace.fit_step(model, (x, y)))

# %% [markdown]
# With owners the fullest device holds about half as much, and no more crosses than without: each
# weight and each gradient once. On a GPU the saving is smaller, because a fetched weight is a copy
# there.
#
# | | |
# |---|---|
# | **Use it when** | weights, gradients and slots are most of what a step holds ([[09]]) |
# | **It costs** | all weights and all gradients cross in each step |
# | **Instead** | recompute activations, if they are most ([[10]]) |
#
# ## Owners by hand
#
# Weights and slots take 12 bytes a parameter, so each of two devices should keep about 6. `owners`
# gives each weight, the largest first, to the device with the fewest parameters so far. `begin`
# makes each weight on its owner, with an Adam of its own, so that its slots are there too:

# %%
def owners(sizes, places):
    held, owner = dict.fromkeys(places, 0), {}
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = min(held, key=held.get)
        held[owner[i]] += sizes[i]
    return [owner[i] for i in range(len(sizes))]


Owned = namedtuple("Owned", "weight adam owner")


def begin(owner, dtype="float32"):
    state = []
    for value, device in zip(start, owner):
        with tf.device(device):
            weight = keras.Variable(value, dtype=dtype)
            adam = keras.optimizers.Adam(1e-4)
            adam.build([weight])
        state.append(Owned(weight, adam, device))
    return state

# %%
owner = owners([*map(np.size, start)], plan.devices)
state = begin(owner)
held = at_rest(each for entry in state for each in [entry.weight, *entry.adam.variables])
for device in plan.devices:
    print(f"{device}  {held[device] / sum(map(np.size, start)):.1f} bytes a parameter")

# %% [markdown]
# The shares are not equal, because a weight stays whole.
#
# ## A step by hand
#
# `fetch` brings a weight to a device. The devices of `cores` mode share one memory, so `Snapshot`
# makes the copy that a GPU would receive:

# %%
def scores(weights, h):
    for weight in weights[:-1]:
        h = tf.nn.relu(h @ weight)
    return h @ weights[-1]


def fetch(weight, device):
    read = tf.convert_to_tensor(weight)
    mine = devices.short(weight.value.device) == devices.short(device)
    return read if mine else tf.raw_ops.Snapshot(input=read)

# %% [markdown]
# A tower fetches all weights to its device, and computes the gradients of its share of the batch.
# If all devices fetch all weights, this is an **all-gather**:

# %%
def tower_once(state, device, x, y):
    with tf.device(device):
        weights = [fetch(entry.weight, device) for entry in state]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(y, scores(weights, x))
        return tape.gradient(value, weights)

# %% [markdown]
# The gradients of a weight go to its owner, which takes their mean and updates the weight. So each
# device receives only the gradients of its own weights, which is a **reduce-scatter**:

# %%
def update(entry, gradients):
    with tf.device(entry.owner):
        entry.adam.apply([tf.add_n(gradients) / len(gradients)], [entry.weight])


def train_step(state, places, x, y, tower=tower_once, update=update):
    with tf.device(plan.host):
        shares = zip(tf.split(x, len(places)), tf.split(y, len(places)))
    towers = [tower(state, device, *share) for device, share in zip(places, shares)]
    for entry, *gradients in zip(state, *towers):
        update(entry, gradients)

# %% [markdown]
# ## Fetch layer by layer
#
# `tower_once` fetches every weight at its start, so for a time each device holds all of them.
# ZeRO's last stage and FSDP fetch a layer's weight just before the layer is computed, drop it, and
# fetch it again for the backward pass. With four layers, this is what the owner of A and C holds:
#
# ![Fetched once, a copy stays until the backward pass has used it; layer by layer, there is one at
# a time.](pictures/11_one_copy.svg)
#
# TensorFlow would fetch all weights at the start, so `fetch_after` waits for another tensor, such
# as the layer's input. A `GradientTape` would keep all copies, so `layer_by_layer` has a backward
# pass of its own:

# %%
def fetch_after(after, weight, device):
    with tf.control_dependencies([after]):
        return fetch(weight, device)


tower_layers = layer_by_layer(fetch_after, loss)

# %% [markdown]
# ## Proof
#
# We take five steps in float64, where rounding hides no mistake. `apart` returns the largest
# difference, relative to the largest number of a weight:

# %%
def trained(owner, places, **options):
    state = begin(owner, "float64")
    step = tf.function(partial(train_step, state, places, **options))
    for _ in range(5):
        step(x.astype("float64"), y)
    return [entry.weight.numpy() for entry in state]


all_on_first = [plan.devices[0]] * len(start)
of_one = trained(all_on_first, plan.devices[:1])
of_two = trained(owner, plan.devices)
by_layer = trained(owner, plan.devices, tower=tower_layers)
for name, ours in [("fetched once", of_two), ("layer by layer", by_layer)]:
    print(f"{name:14} equal to 1e-12: {apart(ours, of_one) < 1e-12}")
print("training changed the weights:", apart(of_one, start) > 1e-3)

# %% [markdown]
# ## What crosses, and what a device holds
#
# Let P be the bytes of all weights. We trace both steps, and one in which the first device owns
# everything. The chart shows what this device holds of the weights:

# %%
cases = {"one owner": (all_on_first, tower_once), "fetched once": (owner, tower_once),
         "layer by layer": (owner, tower_layers)}  # fmt: skip
runs, P = {}, sum(value.nbytes for value in start)
for name, (of_case, tower) in cases.items():
    state = begin(of_case)
    step = partial(train_step, state, plan.devices, tower=tower)
    runs[name] = state, trace.function_step(step, x, y)[1]
    print(f"{name:14} {sum(runs[name][1].bytes_between().values()) / P:.1f} P cross,", end=" ")
    print(f"a device holds up to {share_of_weights(*runs[name]):.0%} of the weights")

# %% tags=["varies", "cover"]
drawings.weights_along(runs, plan.devices[0])

# %% [markdown]
# Fetched once, each weight and each gradient crosses once: 2 P. Layer by layer, the device holds
# only its own weights and one copy, but nearly every weight crosses twice. `fit.use` fetches once.
#
# ## Break it
#
# Somebody updates each weight twice in a step, once with each device's gradient, instead of once
# with their mean. Write down what you expect: does the loss still fall?

# %%
def one_by_one(entry, gradients):
    for gradient in gradients:
        update(entry, [gradient])


mixed = trained(owner, plan.devices, update=one_by_one)
for name, weights in [("start", start), ("mean", of_two), ("one by one", mixed)]:
    value = loss(y, scores([tf.cast(each, "float64") for each in weights], x.astype("float64")))
    print(f"{name:10} loss {value:.2f}, equal to one device: {apart(weights, of_one) < 1e-12}")

# %% [markdown]
# The loss falls even further, because Adam made twice as many updates. Only the comparison with one
# device reveals the mistake.
#
# ## The stages of ZeRO
#
# [ZeRO](../docs/sources.md#zero) shares out a parameter's 16 bytes in three stages. Stage 1 shares
# the slots over n devices, stage 2 also the gradients, stage 3 also the weights, and stage 0
# nothing. How many bytes does each device hold?

# %%
def parts(n, stage, sizes=(4, 4, 8)):  # of the weight, the gradient and the slots
    return [size / n if stage >= since else size for size, since in zip(sizes, [3, 2, 1])]


print("stage    0     1     2     3")
for n in [2, 4, 8]:
    print(f"n = {n}", *[f"{sum(parts(n, stage)):5.1f}" for stage in range(4)])

# %% [markdown]
# ## On GPUs
#
# > With a billion parameters P is 4 GB, so two GPUs exchange 8 GB in each step. Over a link of 10
# > GB/s that takes up to 0.8 s, so take a batch whose step computes for longer.
#
# ## On your own
#
# **1.** Write `fullest_holds(sizes, n, stage)`: the bytes of weights, gradients and slots on the
# fullest of n devices. `sizes` lists how many float32 numbers each weight has, and
# `owners(sizes, range(n))` gives the owners. What a stage shares out lies only with the owner of
# its weight. Every device holds the rest.

# %% tags=["exercise"]
def fullest_holds(sizes, n, stage):
    return sum(sizes) * sum(parts(n, stage))


checks.fullest_holds(fullest_holds)

# %% tags=["solution"]
def fullest_holds(sizes, n, stage):
    owner, shared = owners(sizes, range(n)), sum([8, 4, 4][:stage])
    own = max(sum(size for size, o in zip(sizes, owner) if o == i) for i in range(n))
    return (16 - shared) * sum(sizes) + shared * own


checks.fullest_holds(fullest_holds)

# %% [markdown]
# **2.** To clip gradients, owners need the **global norm**: the root of the sum of *all* gradients'
# squares. Write `clipped(owned, limit)`, where `owned` maps each device to the list of its
# gradients. If the global norm is over the limit, multiply every gradient by limit / norm. Return
# the same kind of dictionary. Only single numbers may leave a device.

# %% tags=["exercise"]
def clipped(owned, limit):  # runs in a graph: tf.minimum or tf.where instead of if
    return {device: tf.clip_by_global_norm(owned[device], limit)[0] for device in owned}


checks.clipped(clipped)

# %% tags=["solution"]
def clipped(owned, limit):
    squares, scaled = [], {}
    for device, gradients in owned.items():
        with tf.device(device):
            squares.append(tf.add_n([tf.reduce_sum(each**2) for each in gradients]))
    with tf.device(plan.host):
        factor = tf.minimum(1.0, limit / tf.sqrt(tf.add_n(squares)))
    for device, gradients in owned.items():
        with tf.device(device):
            scaled[device] = [each * factor for each in gradients]
    return scaled


checks.clipped(clipped)

# %% [markdown]
# ## What we saw
#
# - One device kept 39.5 MB. With one line, two devices kept 20.5 MB and 18.9 MB.
# - Both steps by hand were equal to one device to 1e-12.
# - 2.0 P crossed if each device fetched a weight once, and 2.9 P layer by layer.
#
# ## Compared with other ways
#
# With owners, a device keeps half of the small Transformer of [[01]]:
#
# [[ways: 00 01]]
#
# ## In practice
#
# Begin with `state="owners"`, and take `state="host"` if that is not enough. If the weights
# do not fit on one GPU, split the model.
#
# Next: [[next]].
