# %% [markdown]
# # Share out the state
#
# Your model fits on a GPU, and its training does not: for each parameter of 4 bytes, Adam and the
# gradient need 12 more. In data parallel training, every GPU or one of them still holds all of
# this.
#
# **In this lesson** each weight gets an owner, one of the devices. From one step to the next only
# the owner keeps the weight and Adam's numbers for it. The field calls this **sharded state**, as
# in ZeRO and FSDP.
#
# **You will learn** to
# - share out a Keras model's state in one line,
# - do it by hand, like stages 2 and 3 of the paper *ZeRO*,
# - count what each device then holds, and what crosses.
#
# **You need** [[03]] and [[09]].

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

from mgpu_helpers import devices, fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_11 as checks
from mgpu_helpers.lessons.state import apart, at_rest, fullest, share_of_weights, show

# %% [markdown]
# ## The lines to paste
#
# Here is a network of thirteen dense layers, each with one weight, a matrix of parameters. For each
# parameter Adam keeps two numbers, called **slots**. `compiled` puts the slots on the device of
# their weight. The network first trains on one device, and `show` prints what lies on each device
# between two steps:

# %%
images, labels = digits.load(32 * len(plan))
x, y = images.reshape(len(images), -1), labels
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")


def compiled(model):
    model.compile(keras.optimizers.Adam(1e-4), loss)
    model.optimizer.build(model.trainable_variables)
    return model


def network():
    keras.utils.set_random_seed(0)
    dense = partial(keras.layers.Dense, use_bias=False, kernel_initializer="he_normal")
    hidden = [dense(512, activation="relu") for _ in range(12)]
    with tf.device(plan.devices[0]):
        return compiled(keras.Sequential([keras.Input([784]), *hidden, dense(10)]))


# %%
train = {"x": x, "y": y, "batch_size": len(x), "epochs": 3, "shuffle": False, "verbose": 0}
model = network()
start = model.get_weights()
show(model, model.fit(**train))

# %% [markdown]
# Now `fit.use` shares out each batch, and with `state="owners"` it also gives each weight an owner
# among the devices:

# %%
model = fit.use(network(), plan, state="owners")
show(model, model.fit(**train))

# %% [markdown]
# The losses agree to one decimal, and each of two devices holds about half. If weights and slots
# together do not fit on one device, call `compile` after `fit.use`: then each owner makes its
# slots. With a single GPU, let the host own all weights:

# %%
model = fit.use(network(), plan.devices[:1], state="host")
show(model, model.fit(**train))

# %% [markdown]
# | | |
# |---|---|
# | **use it when** | weights, gradients and slots are most of what a step holds ([[03]]) |
# | **it costs** | a step moves weights and gradients n - 1 times each; n times if the host owns |
# | **instead** | if activations are most, recompute them ([[10]]) |
#
# ## Count first
#
# In float32 a parameter has 4 bytes of weight, 4 of gradient and 8 of Adam's slots. The paper
# *ZeRO* (Rajbhandari and others, [2020](../docs/sources.md#zero)) shares them out over n devices in
# three stages: the slots only (1), the gradients too (2), and the weights too (3). Whatever a stage
# does not share out, every device holds in full. Stage 0 shares out nothing. Here are the bytes
# for each parameter on a device:

# %%
def parts(n, stage, sizes=(4, 4, 8)):  # of the weight, the gradient and the slots
    return [size / n if stage >= since else size for size, since in zip(sizes, [3, 2, 1])]


for n in [1, 2, 4, 8]:
    print(f"n = {n}:", *[f"({stage}) {sum(parts(n, stage)):4.1f} " for stage in range(4)])

# %% [markdown]
# ## By hand: the owners
#
# `owners` goes through the weights from the largest to the smallest and gives each to the device
# that has the fewest parameters so far. `begin` then makes each weight, and an Adam for this weight
# alone, on the owner. It returns the `state`, a list: for each weight, an entry with the weight,
# its Adam and its owner. `at_rest` counts the bytes on each device:
#
# ![Between steps each device owns some of the weights, with their slots. In a step of stage 2 it
# fetches the others; the gradients of a weight go to its owner, which
# updates.](pictures/11_owners.svg)

# %%
def owners(sizes, places):
    held, owner = dict.fromkeys(places, 0), {}
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = min(held, key=held.get)
        held[owner[i]] += sizes[i]
    return [owner[i] for i in range(len(sizes))]


# %%
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


owner = owners([*map(np.size, start)], plan.devices)
state = begin(owner)
print(*owner)
held_now = at_rest(each for entry in state for each in [entry.weight, *entry.adam.variables])
for device in plan.devices:
    print(f"{device}  {held_now[device] / sum(map(np.size, start)):.1f} bytes a parameter")

# %% [markdown]
# One device would hold 12 bytes a parameter. Each of the two holds about half, because here each
# weight stays whole. ZeRO and FSDP cut every weight, so there the shares are equal.
#
# ## By hand: the step
#
# At the start of a step of stage 2, a device fetches the weights that it does not own. In the
# paper's stage 2 each device keeps all weights; here it has them all only within a step, as with
# `state="owners"`. Devices of `cores` mode share one memory, so there `Snapshot` makes the copy
# that a GPU gets over its link; on GPUs it marks that copy for the trace. In `tower_2` a device
# gets all weights, its own without a copy, and computes the gradients of its share of the batch:

# %%
def fetch(weight, device):
    read = tf.convert_to_tensor(weight)
    mine = devices.short(weight.value.device) == devices.short(device)
    return read if mine else tf.raw_ops.Snapshot(input=read)


# %%
def scores(weights, h):
    for weight in weights[:-1]:
        h = tf.nn.relu(h @ weight)
    return h @ weights[-1]


def tower_2(state, device, x, y):
    with tf.device(device):
        weights = [fetch(entry.weight, device) for entry in state]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(y, scores(weights, x))
        return tape.gradient(value, weights)

# %% [markdown]
# In `update` the owner of a weight averages the weight's gradients from all devices, and updates
# the weight. `train_step` puts towers and updates together, which is stage 2:

# %%
def update(entry, gradients):
    with tf.device(entry.owner):
        entry.adam.apply([tf.add_n(gradients) / len(gradients)], [entry.weight])


def train_step(state, places, x, y, tower=tower_2, update=update):
    with tf.device(plan.host):
        shares = zip(tf.split(x, len(places)), tf.split(y, len(places)))
    towers = [tower(state, device, *share) for device, share in zip(places, shares)]
    for entry, *gradients in zip(state, *towers):
        update(entry, gradients)


# %% [markdown]
# Does stage 2 train like one device? We compare five steps in float64, in which rounding does not
# hide a mistake. `apart` gives the largest difference, relative to the largest number of the same
# weight:

# %%
def trained(step, owner, places):
    state = begin(owner, "float64")
    compiled_step = tf.function(partial(step, state, places))
    for _ in range(5):
        compiled_step(x.astype("float64"), y)
    return [entry.weight.numpy() for entry in state]


# %%
all_on_first = [plan.devices[0]] * len(start)
of_one = trained(train_step, all_on_first, plan.devices[:1])
of_two = trained(train_step, owner, plan.devices)
print("stage 2 differs from one device by less than 1e-12:", apart(of_two, of_one) < 1e-12)
print("and from the start by more than 1e-3:", apart(of_two, start) > 1e-3)

# %% [markdown]
# ## What crosses, and what is held
#
# For each weight, n - 1 devices fetch a copy from the owner and send a gradient back. With P for
# the bytes of all weights, that is 2(n - 1)P a step. To compare, towers have all weights on the
# first device. `fullest` gives the most bytes that one device holds in a traced step, counting
# weights, copies of weights, slots, gradients and activations:

# %%
def measure(name, step, owner):
    state, P = begin(owner), sum(value.nbytes for value in start)
    traced = trace.function_step(partial(step, state, plan.devices), x, y)[1]
    print(f"{name}: {sum(traced.bytes_between().values()) / P:.1f} P cross, n = {len(plan)}")
    return state, traced


# %%
towers = measure("towers", train_step, all_on_first)
stage_2 = measure("stage 2", train_step, owner)
print("stage 2 holds below 90 % of towers:", fullest(*stage_2) < 0.9 * fullest(*towers))

# %% [markdown]
# Stage 2 sends no more bytes than towers, and holds less: by the formula, 10.0 in place of 16.0
# bytes a parameter for n = 2. `fit.use` does not offer stage 3.
#
# ## Stage 3: fetch each layer when it is needed
#
# In stage 3 a device fetches the weight of a layer when it computes this layer forward, and again
# when it computes the layer backward. TensorFlow frees a copy after its last use. Here a device
# owns two of four layers, and heights are bytes of weights:
#
# ![In stage 2 a device may have both copies from the start, each until its layer is done backward.
# In stage 3 it has one copy at a time, each of them twice.](pictures/11_one_copy.svg)
#
# TensorFlow runs an operation as soon as its inputs are there, so it could copy all weights at the
# start. In `fetch_after` the copy waits for a tensor `after`, which in the forward pass is `h`, the
# input of the layer:

# %%
def fetch_after(after, weight, device):
    with tf.control_dependencies([after]):
        return fetch(weight, device)


def forward(state, device, h):
    inputs = []
    for entry in state:
        inputs.append(h)
        product = h @ fetch_after(h, entry.weight, device)
        h = tf.nn.relu(product)
    return inputs, product

# %% [markdown]
# A `GradientTape` would keep these copies for the backward pass, so we write that pass ourselves. A
# layer's `slope` is the gradient of the loss with respect to its `product`. This slope and the
# weight, fetched again, give the slope of the layer before. Only then is the gradient of the weight
# computed:

# %%
def backward(state, device, inputs, slope):
    gradients = []
    for entry, h in zip(reversed(state), reversed(inputs)):
        copy = fetch_after(slope, entry.weight, device)  # the second copy
        slope_before = tf.matmul(slope, copy, transpose_b=True)  # the gradient of the input h
        slope_before *= tf.cast(h > 0, h.dtype)  # back through the relu
        with tf.control_dependencies([slope_before]):  # the copy is free now
            gradients.insert(0, tf.matmul(h, slope, transpose_a=True))  # of the weight
        slope = slope_before
    return gradients

# %% [markdown]
# `tower_3` joins both passes. To each device but the owner, two copies of a weight should cross,
# and one gradient back. Of the first weight only one copy crosses: no layer is before it, so
# TensorFlow leaves the second copy out. A chart then shows the weights that a device holds, in
# order and without times:

# %%
def tower_3(state, device, x, y):
    with tf.device(device):
        inputs, product = forward(state, device, x)
        with tf.GradientTape() as tape:
            tape.watch(product)
            value = loss(y, product)
        return backward(state, device, inputs, tape.gradient(value, product))


of_three = trained(partial(train_step, tower=tower_3), owner, plan.devices)
print("stage 3 differs from one device by less than 1e-12:", apart(of_three, of_one) < 1e-12)
stage_3 = measure("stage 3", partial(train_step, tower=tower_3), owner)

# %% tags=["varies", "cover"]
runs = {"towers": towers, "stage 2": stage_2, "stage 3": stage_3}
for name, run in runs.items():
    print(f"{name}: a device holds up to {share_of_weights(*run):.0%} of the weights")
drawings.weights_along(runs, plan.devices[0])

# %% [markdown]
# In stage 2 the copies add up until the device has all weights. In stage 3 it has one copy at a
# time, so it never holds much more than its own weights. The formula leaves out this copy,
# activations and Adam's temporary tensors; `fullest` counts them all. Its result differs from step
# to step, because operations run in another order each time.
#
# ## Break it
#
# **An update for each gradient.** Somebody wants to free gradients sooner, and updates a weight
# with each gradient as it comes, in place of their average:

# %%
def at_once(entry, gradients):
    for gradient in gradients:
        update(entry, [gradient])


mixed = trained(partial(train_step, update=at_once), owner, plan.devices)
for name, weights in [("start", start), ("right", of_two), ("at once", mixed)]:
    value = loss(y, scores([tf.cast(each, "float64") for each in weights], x.astype("float64")))
    same = apart(weights, of_one) < 1e-12
    print(f"{name}: the loss is {value:.2f}, same weights as one device: {same}")

# %% [markdown]
# The loss falls with this mistake, too. Only the comparison with one device catches it.
#
# ## On GPUs
#
# With a billion parameters, P is 4 GB, so two GPUs send 2P = 8 GB in a step. That takes up to 0.8 s
# at 10 GB/s. So take large batches. Where the host owns all weights, one GPU also moves 2P: it gets
# P and sends P, and the CPU updates.
#
# In `cores` mode `fit.use` reads weights of other devices without a copy. A GPU also holds,
# within a step, copies of all weights that it does not own.
#
# ## With a model of another kind
#
# In a model of text, the embedding table may be larger than all other weights together, and
# `state="owners"` does not cut a weight. But two tables with half of the columns each can replace
# one. How evenly is each of these two models shared out?

# %%
layers = keras.layers
words = train | {"x": np.random.default_rng(0).integers(0, 20_000, [len(y), 20])}


def reader(columns, tables):
    given = keras.Input([20])
    with tf.device(plan.devices[0]):
        found = [layers.Embedding(20_000, columns)(given) for _ in range(tables)]
        mean = layers.GlobalAveragePooling1D()(layers.Concatenate()(found))
        return compiled(keras.Model(given, layers.Dense(10)(layers.Dense(256, "relu")(mean))))


# %%
for columns, tables in [(64, 1), (32, 2)]:
    model = reader(columns, tables)
    model = fit.use(model, plan, state="owners")
    print(f"\n{tables} x {columns} columns:")
    show(model, model.fit(**words))

# %% [markdown]
# With two tables, each of two devices holds about half. So cut a weight yourself where it is larger
# than a fair share.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Weights do not always divide evenly. Write `fullest_holds(sizes, n, stage)`: the bytes that
# the fullest of n devices holds of weights, gradients and slots. `sizes` lists how many numbers
# each weight has, all are float32, and Adam trains them. The owners are those that `owners` finds.

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
# **2.** In a Keras optimizer, `global_clipnorm` scales all gradients down if their **global norm**,
# the root of the sum of all squares, is over a limit. Here each owner has the gradients of its own
# weights only. Write `clipped(owned, limit)`: `owned` is a dictionary with the list of gradients of
# each device. Give a dictionary of the same form, with every gradient on its device, scaled by
# limit / norm where the norm of all is over the limit, and else unchanged. No gradient may leave
# its device, but single numbers may.

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
# - One line shared out weights and slots. One device held 39.5 MB. Two held 20.5 MB and 18.9 MB.
# - By the formula, of the 16.0 bytes a parameter, stage 3 leaves 2.0 on each of 8 devices.
# - By hand, both stages differed from one device by less than 1e-12.
# - In a step of stage 2, 2.0 P crossed, as with towers. In one of stage 3, it was 2.9 P.
# - In stage 2 a device came to hold 100% of the weights, in stage 3 at most 60%.
# - Only the comparison with one device caught the update for each gradient.
#
# ## In practice
#
# If activations are most of what a step holds, begin with [[10]]. If weights, gradients and slots
# are, share them out over your GPUs with `state="owners"`; if that is not enough, let the host own
# them. Where all weights together do not fit on one GPU, split the model ([[12]]) or its layers
# ([[13]]).
#
# `fit.use` takes any built model. All of `fit` works as before. What is saved is
# the same, and `fit.alone` moves the weights back.
