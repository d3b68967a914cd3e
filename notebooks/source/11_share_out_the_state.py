# %% [markdown]
# # Share out the state
#
# Your model fits on a GPU, and its training does not: for each parameter of 4 bytes, Adam and the
# gradient need 12 more. More GPUs alone do not help: in data parallel training at least one GPU
# still holds all of this.
#
# **In this lesson** each weight gets an owner, one of the devices. Only the owner keeps the
# weight, and what Adam stores for it, from one step to the next. The field calls this **sharded
# state**, as in ZeRO and FSDP.
#
# **You will learn** to
# - share out a Keras model's state in one line,
# - do it by hand, like stages 2 and 3 of the paper *ZeRO*,
# - count what each device then holds, and what crosses.
#
# **You need** [[03]] and [[09]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, devices, fit, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_11 as checks
from mgpu_helpers.lessons.state import apart, at_rest, fullest, show

# %% [markdown]
# ## The lines to paste
#
# Here is a network of thirteen dense layers. Each has one weight, a matrix of parameters. For each
# parameter Adam keeps two numbers, called **slots**. `compiled` makes Adam's slots on the device of
# their weights. The network first trains on one device, and `show` prints what lies on each device
# between two steps:

# %%
images, labels = digits.load(32 * len(plan))
x, y = images.reshape(len(images), -1), labels
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


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
# Now `fit.shard` gives each weight an owner among the devices, and `fit.parallel` shares out each
# batch:

# %%
model = fit.parallel(fit.shard(network(), plan.devices), plan.devices)
show(model, model.fit(**train))

# %% [markdown]
# The losses agree to one decimal, and each of two devices holds about half. If weights and slots
# together do not fit on one device, call `fit.shard` first and `compile` afterwards: then each
# owner makes its slots.
#
# If there is a single device, the host can own all weights:

# %%
model = fit.parallel(fit.shard(network(), [plan.host]), plan.devices[:1])
show(model, model.fit(**train))

# %% [markdown]
# Now the device holds nothing between steps. In a step the weights cross, and gradients as large
# come back.
#
# | | |
# |---|---|
# | **use it when** | weights, gradients and slots are most of what a step holds ([[03]]) |
# | **it costs** | in a step, n devices together send 2(n - 1) times the bytes of the weights |
# | **instead** | recompute activations, if they are most ([[10]]) |
#
# ## Count first
#
# In float32 a parameter has 4 bytes of weight, 4 of gradient and 8 of Adam's slots. The paper
# *ZeRO* (Rajbhandari and others, [2020](../docs/sources.md#zero)) shares them out over n devices in
# three stages: the slots only (1), the gradients too (2), and the weights too (3). What is not
# shared out, each device holds whole. Stage 0 shares out nothing.
#
# In the paper's stage 2 each device keeps all weights. In this lesson's stage 2, and with
# `fit.shard` and `fit.parallel`, it has all weights only within a step. FSDP calls this
# `SHARD_GRAD_OP`.
#
# The next cell prints the bytes for each parameter on a device, by stage. The last line is the
# paper's example: 7.5 billion parameters on 64 devices in mixed precision, with 2 bytes of weight,
# 2 of gradient, and 12 for the slots and a copy of the weight in float32. The paper has 120, 31.4,
# 16.6 and 1.9 GB a device:

# %%
def held_by_formula(n, stage, weight=4, gradient=4, slots=8):
    shared = [slots, gradient, weight][:stage]
    return weight + gradient + slots - sum(shared) + sum(shared) / n


for n in [1, 2, 4, 8]:
    print(f"n = {n}:", *[f"({stage}) {held_by_formula(n, stage):4.1f} " for stage in range(4)])
print(*[f"{7.5 * held_by_formula(64, stage, 2, 2, 12):.1f} GB" for stage in range(4)])

# %% [markdown]
# ## By hand: the owners
#
# `owners` goes through the weights from the largest to the smallest and gives each to the device
# that has the fewest parameters so far. `begin` then makes each weight, and an Adam for this weight
# alone, on the owner. It returns the `state`: a list of each weight with its Adam and its owner.
# How many bytes does `at_rest` count on each device?
#
# ![Stage 2. Between steps each device owns some of the weights, with their slots. In a step it
# fetches the others and goes forward and backward. The gradients of a weight go to its owner, which
# averages them and updates.](pictures/11_owners.svg)

# %%
def owners(sizes, places):
    held, owner = dict.fromkeys(places, 0), {}
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = min(held, key=held.get)
        held[owner[i]] += sizes[i]
    return [owner[i] for i in range(len(sizes))]


# %%
def begin(owner, dtype="float32"):
    state = []
    for value, device in zip(start, owner):
        with tf.device(device):
            weight = keras.Variable(value, dtype=dtype)
            adam = keras.optimizers.Adam(1e-4)
            adam.build([weight])
        state.append((weight, adam, device))
    return state


owner = owners([*map(np.size, start)], plan.devices)
state = begin(owner)
print(*owner)
held_now = at_rest(each for weight, adam, _ in state for each in [weight, *adam.variables])
for device in plan.devices:
    print(f"{device}  {held_now[device] / sum(map(np.size, start)):.1f} bytes a parameter")

# %% [markdown]
# One device would hold 12 bytes a parameter. Each of the two holds about half: the weights do not
# divide evenly.
#
# ## By hand: the step
#
# At the start of a step, a device fetches the weights that it does not own. The devices of `cores`
# mode share one memory, so `DeepCopy` makes the copy that a GPU would make, and we can count it.
# Then, in `tower`, the device computes the gradients of its share of the batch. In `update` the
# owner of a weight receives the gradients of this weight from all devices, averages them, and
# updates the weight. `fetch`, `tower` and `update` together are stage 2:

# %%
def fetch(weight, device):
    read = tf.convert_to_tensor(weight)
    mine = devices.short(weight.value.device) == devices.short(device)
    return read if mine else tf.raw_ops.DeepCopy(x=read)


# %%
def scores(weights, h):
    for weight in weights[:-1]:
        h = tf.nn.relu(h @ weight)
    return h @ weights[-1]


def tower(state, device, x, y):
    with tf.device(device):
        weights = [fetch(weight, device) for weight, *_ in state]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(y, scores(weights, x))
        return tape.gradient(value, weights)


# %%
def update(weight, adam, owner, gradients):
    with tf.device(owner):
        adam.apply([tf.add_n(gradients) / len(gradients)], [weight])


def stage_2(state, places, x, y, update=update):
    with tf.device(plan.host):
        shares = zip(tf.split(x, len(places)), tf.split(y, len(places)))
    towers = [tower(state, device, *share) for device, share in zip(places, shares)]
    for one, *gradients in zip(state, *towers):
        update(*one, gradients)


# %% [markdown]
# Does stage 2 train like one device? We compare five steps in float64, in which rounding does not
# hide a mistake. `apart` gives the largest difference, relative to the largest number of the same
# weight:

# %%
def trained(stage, owner, places):
    state = begin(owner, "float64")
    step = tf.function(partial(stage, state, places))
    for _ in range(5):
        step(x.astype("float64"), y)
    return [weight.numpy() for weight, *_ in state]


# %%
first = [plan.devices[0]] * len(start)
of_one = trained(stage_2, first, plan.devices[:1])
of_two = trained(stage_2, owner, plan.devices)
print("stage 2 is below 1e-12 from one device:", apart(of_two, of_one) < 1e-12)
print("and above 1e-3 from the start:", apart(of_two, start) > 1e-3)

# %% [markdown]
# ## What crosses, and what is held
#
# In stage 2 every device but the owner fetches a copy of a weight and sends a gradient back. With
# P for the bytes of all weights, that is 2(n - 1)P a step. For comparison there are towers, whose
# weights all lie on the first device. `fullest` gives what the fullest device holds for a million
# parameters: the weights and slots that lie there, and what a traced step adds at its peak:

# %%
P, uses = sum(value.nbytes for value in start), {}


def measure(name, stage, places):
    state = begin(places)
    step = trace.function_step(partial(stage, state, plan.devices), x, y)[1]
    uses[name] = fullest(state, step)
    crossed = sum(step.bytes_between().values())
    print(f"{name}: {crossed / P:.1f} P cross between {len(plan)} devices")


# %%
measure("towers", stage_2, first)
measure("stage 2", stage_2, owner)
print("stage 2 holds below 90 %:", uses["stage 2"].total < 0.9 * uses["towers"].total)

# %% [markdown]
# ## Stage 3: fetch each layer when it is needed
#
# In stage 3 a device fetches the weight of a layer when it computes this layer forward, and again
# when it computes the layer backward. TensorFlow frees a copy after its last use. A `GradientTape`
# would keep the first copy for the backward pass, so here we write the backward pass ourselves.
#
# TensorFlow runs an operation as soon as its inputs are there, so it could copy all the weights
# at the start. In `fetch_after` the copy therefore waits for a tensor `after`. In the forward
# pass this is `h`, the input of the layer. In the backward pass it is the layer's `slope`, the
# gradient of the loss with respect to `h @ weight`. `below` computes the slope of the layer before,
# and `of_weight` the gradient of the weight:

# %%
def fetch_after(after, weight, device):
    with tf.control_dependencies([after]):
        return fetch(weight, device)


def layer(one, activation, device, h):
    with tf.device(device):
        return activation(h @ fetch_after(h, one[0], device))


def below(one, device, h, slope):
    with tf.device(device):
        weight = fetch_after(slope, one[0], device)
        return tf.matmul(slope, weight, transpose_b=True) * tf.cast(h > 0, h.dtype)


def of_weight(device, h, slope, *after):
    with tf.device(device), tf.control_dependencies(after):
        return tf.matmul(h, slope, transpose_a=True)


# %% [markdown]
# `back` goes through the layers from the last to the first. `slopes` has a layer's slope for each
# device, `lower` those of the layer before it. `below` needs the weight as it was in the forward
# pass, so `update` comes later. The gradient of the weight waits for `lower`, too. So the copy can
# be freed before the gradient is made. Every device but the owner fetches two copies of a weight,
# so 3(n - 1)P should cross:

# %%
def back(state, places, inputs, slopes):
    for i in reversed(range(len(state))):
        lower = [below(state[i], *at) for at in zip(places, inputs[i], slopes)]
        update(*state[i], [of_weight(*at) for at in zip(places, inputs[i], slopes, lower)])
        slopes = lower


# %%
def of_loss(device, h, y):
    with tf.device(device):
        with tf.GradientTape() as tape:
            tape.watch(h)
            value = loss(y, h)
        return tape.gradient(value, h)


def stage_3(state, places, x, y, back=back):
    with tf.device(plan.host):
        inputs, parts = [tf.split(x, len(places))], tf.split(y, len(places))
    for one in state:
        activation = tf.identity if one is state[-1] else tf.nn.relu
        inputs.append([layer(one, activation, *at) for at in zip(places, inputs[-1])])
    slopes = [of_loss(*at) for at in zip(places, inputs.pop(), parts)]
    back(state, places, inputs, slopes)


# %%
of_three = trained(stage_3, owner, plan.devices)
print("stage 3 is below 1e-12 from one device:", apart(of_three, of_one) < 1e-12)
measure("stage 3", stage_3, owner)

# %% tags=["varies", "cover"]
ax = charts.held(uses)
marks = [held_by_formula(len(plan), stage) for stage in [0, 2, 3]]
ax.plot(marks, [0.42, 1.42, 2.42], "k^", clip_on=False, label="by the formula")
ax.set_xlim(0, 1.1 * max(ax.get_xlim()[1], *marks))
ax.set_title("The fullest device in a step, for a million parameters", loc="left")
ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
plt.show()

# %% [markdown]
# Stage 2 sends no more bytes than towers, and holds less. Stage 3 holds the least. The bars need
# not end at the formula's marks. TensorFlow frees a copy after its last use and a gradient once it
# is applied, so at the peak a device may hold less. The chart counts fetched copies as weights, and
# Adam's temporary tensors as gradients; the formula leaves those tensors out. In which order
# operations run, and so what the peak holds, differs from run to run.
#
# ## Break it
#
# **A weight is fetched after its update.** Somebody wants to free the gradients sooner, and updates
# each weight before `below` has fetched it for the backward pass:

# %%
def too_early(state, places, inputs, slopes):
    for i in reversed(range(len(state))):
        update(*state[i], [of_weight(*at) for at in zip(places, inputs[i], slopes)])
        slopes = [below(state[i], *at) for at in zip(places, inputs[i], slopes)]


# %%
mixed = trained(partial(stage_3, back=too_early), owner, plan.devices)
for name, weights in [("start", start), ("right", of_three), ("mixed", mixed)]:
    value = loss(y, scores([tf.cast(each, "float64") for each in weights], x.astype("float64")))
    print(f"{name}: the loss is {value:.2f}, equal to 1e-12: {apart(weights, of_one) < 1e-12}")

# %% [markdown]
# Such a step goes forward with the old weights and back with the new ones. The loss falls, too.
# Only the comparison with one device catches this mistake.
#
# ## On GPUs
#
# With `fit.shard`, the devices of `cores` mode read each other's weights without a copy. During a
# step, each GPU also holds copies of the weights that it does not own. A trace in `cores` mode does
# not count these bytes.
#
# ## With a model of another kind
#
# In a model of text, the embedding table may be larger than all other weights together. `fit.shard`
# does not cut a weight. But two tables with half of the columns each, side by side, can replace
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
    model = fit.parallel(fit.shard(model, plan.devices), plan.devices)
    print(f"\n{tables} x {columns} columns:")
    show(model, model.fit(**words))

# %% [markdown]
# With one table, one device holds nearly everything. With two tables, each device holds about
# half. So cut a weight yourself where it is larger than a fair share.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Weights do not always divide evenly. Write `fullest_holds(sizes, n, stage)`: the bytes that
# the fullest of n devices holds of weights, gradients and slots. `sizes` lists how many numbers
# each weight has, all are float32, and Adam trains them. The owners are those that `owners` finds.
# What a stage does not share out, every device holds for all weights.

# %% tags=["exercise"]
def fullest_holds(sizes, n, stage):
    return sum(sizes) * held_by_formula(n, stage)


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
# - Training with Adam in float32 needs 16.0 bytes a parameter beside the activations. On 8 devices,
#   stage 3 leaves 2.0 on each.
# - By hand, both stages were below 1e-12 from one device.
# - In a step of stage 2, 2.0 P crossed, as with towers. In one of stage 3, it was 3.0 P.
# - Only the comparison with one device caught a fetch that came too late.
#
# ## In practice
#
# `fit.shard` takes any built model. All of `fit` works as before, but without XLA. What is saved is
# the same as without `fit.shard`, and `fit.alone` moves the weights back. A layer that is too large
# for one device has to be split: [[13]].
