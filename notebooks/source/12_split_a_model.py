# %% [markdown]
# # Split a model
#
# Your model does not fit on one GPU, and a smaller batch is not enough. More replicas do not help,
# because each holds the whole model.
#
# **In this lesson** one line cuts a network between its layers, and `fit` trains it on two devices
# of which neither holds a whole step.
#
# **You will learn** to
# - cut a Keras model into stages, and train it with `fit`,
# - see what each device holds, and what crosses,
# - compare the places for a cut,
# - do it by hand: weights, backward pass and update.
#
# **You need** [[01]] and [[03]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import tempfile
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, fit, pipeline, trace
from mgpu_helpers.lessons import digits, drawings, halves, networks
from mgpu_helpers.lessons.checks import lesson_12 as checks
from mgpu_helpers.lessons.state import apart, show, show_crossing, use_of, uses_of

layers = keras.layers
entropy = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)

# %% [markdown]
# ## The lines to paste
#
# The article *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md#jang)) ends with a network
# too large for one GPU. Here it is about a quarter as wide, and without its dropout.
#
# First the network trains on one device. `show` prints the losses, and the weights and **slots**
# that lie on each device between two steps. Slots are the two numbers that Adam keeps for each
# parameter.

# %%
def body():
    stack = []
    for i, filters in enumerate([16, 16, 32], 1):
        conv = {"padding": "same", "activation": "relu", "use_bias": False, "name": f"conv{i}"}
        stack += [layers.Conv2D(filters, 3, **conv), layers.MaxPooling2D(padding="same")]
    return [*stack, layers.Flatten()]


def head():
    wide = layers.Dense(1800, "relu", use_bias=False, name="fc1")
    return [wide, layers.Dense(10, use_bias=False, name="output")]


def build(optimizer="adam"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([28, 28, 1]), *body(), *head()])
    model.compile(optimizer, entropy(), metrics=["accuracy"], jit_compile=False)
    return model  # without XLA, whose order is another


images, labels = digits.load(512)
train = {"x": images, "y": labels, "batch_size": 128, "epochs": 3, "shuffle": False, "verbose": 0}

# %%
first, second = plan.devices[0], plan.devices[-1]
with tf.device(first):
    alone = build()
    show(alone, alone.fit(**train))

# %% [markdown]
# Now it trains on two devices. The model is built on the host, so that no device has to hold all of
# it, and `fit.use` moves each layer to the device of its stage:

# %%
with tf.device(plan.host):
    model = build()
model = fit.use(model, plan, stages=len(plan))
show(model, model.fit(**train))

# %% [markdown]
# The losses are the same, and nearly all weights lie on the second device. A **stage** is a part of
# the model on one device. Suppose that a device has 25 MB, the dashed line. Does a step of the
# whole model fit, and does each stage? `use_of` tells what fills the memory at the peak ([[03]]),
# without scratch memory, for which a GPU needs room, too. What Adam computes for a moment counts as
# gradients:

# %% tags=["varies", "cover"]
data = images[:128], labels[:128]
with tf.device(first):
    bars = {f"whole on {first}": use_of(alone, trace.fit_step(alone, data), first)}
with tf.device(plan.host):
    step = trace.fit_step(model, data)
bars |= uses_of(model, step, "stage on {}")
drawings.limit(charts.held(bars), 25e6)
plt.show()
for name, use in bars.items():
    print(f"{name}  fits into 25 MB: {use.total < 25e6}")
show_crossing(step)

# %% [markdown]
# Each stage fits, and the whole does not. At its peak the whole has already freed some activations,
# so its bar may show fewer than the first stage's. A smaller batch lowers the activations, which
# fill most of the first device. But it leaves the weights, slots and gradients on the second.
#
# | | |
# |---|---|
# | **Use it when** | weights and slots, or one example, are too large for a device |
# | **It costs** | the devices mostly take turns, and activations cross |
# | **Instead** | [[10]] or [[11]]; [[13]], if a single layer does not fit |
#
# ## How it works
#
# The first device has the **front** of the network, and the second has the **rear**. Each holds the
# weights and slots of its stage, and runs its forward pass, backward pass and update:
#
# ![The first device has conv1 to conv3, the second fc1, output and the loss. Activations cross the
# cut, and their gradient comes back.](pictures/12_cut_network.svg)
#
# The activations at the cut cross in the forward pass, and their gradient crosses in the backward
# pass. `fc1` takes 512 numbers of 4 bytes for each of the 128 examples. These are the 262,144 bytes
# that crossed each way.
#
# ## The devices mostly take turns
#
# Here is a step of `fit` in stages, with a batch of 512: with 128 the work would be too short to be
# seen. Each bar is an operation, and one that overlaps another, if only for microseconds, is drawn
# below it. When does each device wait for the other?

# %% tags=["varies"]
charts.timeline(trace.fit_step(model, (images, labels))).autoscale(axis="x")
plt.show()

# %% [markdown]
# The first device waits until the gradient comes back, and the second waits before and after its
# turn. Both work at once only while the second still computes the gradients of its own weights and
# updates them. [[14]] keeps both busier. A GPU also waits within its turn, for the host to start
# operations.
#
# ## Where to cut
#
# A cut is chosen by time (both stages take equally long), by memory (the fullest stage holds least)
# or by bytes (the least crosses, there and back). `pipeline.cuts` takes all three from a trace of
# the whole network on one device, for every cut. `held` has each layer's bytes of weights and
# slots. Where does `best_cut` cut by memory, and where by bytes?

# %% tags=["nbval-ignore-output"]
names = ["conv1", "conv2", "conv3", "fc1", "output"]
with tf.device(first):
    step = trace.fit_step(alone, (images, labels))
held = {name: 12 * alone.get_layer(name).count_params() for name in names}  # weights and slots
print(*pipeline.cuts(step, names, stages=2, held=held), sep="\n")

# %%
for by in ["memory", "bytes"]:
    best = pipeline.best_cut(step, [first, second], names, by=by, held=held)
    print(f"by {by}: cut before", *best.starts)

# %% [markdown]
# The least crosses before `fc1`, where the article cuts. But with 512 examples activations fill
# most of the memory, and the cut before `conv2` divides it most evenly. `fit.use` evens out the
# arithmetic operations (FLOP), a rough measure of the time, and so cuts before `fc1` here. Where
# the measured times suggest another cut, `stages=["conv3"]` cuts before `conv3`.
#
# ## By hand: the backward pass
#
# If you train with `fit`, go on at *Break it*. For a training loop of your own, each stage is built
# in the block of its device, so its weights lie there. `whole` has the same layers in one model,
# and `of_whole` are its gradients:

# %%
def stages():
    keras.utils.set_random_seed(0)
    with tf.device(first):
        front = keras.Sequential([keras.Input([28, 28, 1]), *body()])
    with tf.device(second):
        rear = keras.Sequential([keras.Input([512]), *head()])
    return front, rear, keras.Sequential([keras.Input([28, 28, 1]), *front.layers, *rear.layers])


front, rear, whole = stages()
with tf.device(first), tf.GradientTape() as tape:
    value = entropy()(data[1], whole(data[0]))
of_whole = tape.gradient(value, whole.trainable_variables)

# %% [markdown]
# In `one_tape` both stages are called under a single tape, each in its device's block. Does this
# give the gradients of the uncut network, and where does the backward pass run? `apart` gives the
# largest difference, relative to the largest number of its array, and `halves.places` lists the
# devices ([[01]]):

# %%
@tf.function
def one_tape(x, y):
    with tf.GradientTape() as tape:
        with tf.device(first):
            middle = front(x)
        with tf.device(second):
            value = entropy()(y, rear(middle))
    with tf.device(first):
        return tape.gradient(value, whole.trainable_variables)


# %%
def report(gradients, step):
    print("less than 1e-5 from the uncut network:", apart(gradients, of_whole) < 1e-5)
    print(halves.places([whole.get_layer("conv3"), whole.get_layer("fc1")], step))
    show_crossing(step)


report(*trace.function_step(one_tape, *data))

# %% [markdown]
# The gradients are right. But TensorFlow runs the backward pass where `tape.gradient` is called, so
# the first device computes all of it, and fetches 4,685,120 bytes for that, mostly the weights of
# `fc1`.
#
# The remedy is a tape for each stage, whose `gradient` is called in the block of its device.
# `rear_tape.watch(middle)` asks for the gradient of the rear's input, too. This gradient crosses,
# and the backward pass of the front begins with it, as the third argument of `front_tape.gradient`:

# %%
def two_tapes(x, y):
    with tf.device(first), tf.GradientTape() as front_tape:
        middle = front(x)
    with tf.device(second):
        with tf.GradientTape() as rear_tape:
            rear_tape.watch(middle)
            value = entropy()(y, rear(middle))
        *of_rear, of_middle = rear_tape.gradient(value, [*rear.trainable_variables, middle])
    with tf.device(first):
        of_front = front_tape.gradient(middle, front.trainable_variables, of_middle)
    return of_front, of_rear


(of_front, of_rear), step = trace.function_step(two_tapes, *data)
report([*of_front, *of_rear], step)

# %% [markdown]
# Now each backward pass runs where its forward pass ran, and as much crosses as with `fit.use`.
#
# ## By hand: the update
#
# An optimizer keeps slots beside their weights, but `apply` computes where you call it. What
# crosses in a step with one optimizer for both stages?

# %%
with tf.device(first):
    adam = keras.optimizers.Adam()
    adam.build(whole.trainable_variables)


@tf.function
def one_optimizer(x, y):
    of_front, of_rear = two_tapes(x, y)
    with tf.device(first):
        adam.apply([*of_front, *of_rear])


show_crossing(trace.function_step(one_optimizer, *data)[1])

# %% [markdown]
# The first device fetches, of the rear, the gradients once and both slots twice, and sends back the
# changes of slots and weights. With an optimizer for each stage, all this stays where it is:

# %%
def stepper(make):
    with tf.device(first):
        front_optimizer = make()
        front_optimizer.build(front.trainable_variables)
    with tf.device(second):
        rear_optimizer = make()
        rear_optimizer.build(rear.trainable_variables)

    @tf.function
    def step(x, y):
        of_front, of_rear = two_tapes(x, y)
        with tf.device(first):
            front_optimizer.apply(of_front)
        with tf.device(second):
            rear_optimizer.apply(of_rear)

    return step


show_crossing(trace.function_step(stepper(keras.optimizers.Adam), *data)[1])

# %% [markdown]
# ## Proof
#
# In float64, where rounding cannot hide a mistake, the network trains for two epochs with momentum:
# on one device, with `fit.use`, and by hand. The last batch is shorter. (Keras stays in float64
# from here on.)

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
momentum = partial(keras.optimizers.SGD, 0.05, momentum=0.9)
x, y = images[:300].astype("float64"), labels[:300]
passes = {"batch_size": 128, "epochs": 2, "shuffle": False, "verbose": 0}

with tf.device(first):
    alone = build(momentum())
    alone.fit(x, y, **passes)
with tf.device(plan.host):
    model = build(momentum())
begin, of_one = model.get_weights(), alone.get_weights()
fit.use(model, plan, stages=len(plan)).fit(x, y, **passes)
print("fit.use differs by less than 1e-12:", apart(model.get_weights(), of_one) < 1e-12)
print("training changed the weights by more than 1 %:", apart(of_one, begin) > 0.01)

# %%
front, rear, whole = stages()  # begins with the same weights
step = stepper(momentum)
for i in [0, 128, 256] * 2:
    step(x[i : i + 128], y[i : i + 128])
print("by hand differs by less than 1e-12:", apart(whole.get_weights(), of_one) < 1e-12)

# %% [markdown]
# ## Break it
#
# **A weight that both stages use.** Both multiply by `w`, which is 3, so the loss is the mean of
# w · w · x. The mean of x is 2.5, so the gradient is 2 · w · 2.5 = 15. What is it if the second
# device gets a copy of `w`?

# %%
with tf.device(first):
    w = tf.Variable(3.0)
with tf.device(second):
    copy = tf.Variable(3.0)

# %%
for name, other in [("a copy", copy), ("one variable", w)]:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(other * (w * [1.0, 2.0, 3.0, 4.0]))
    print(f"{name:12}  loss {value.numpy()}  gradient of w {tape.gradient(value, w).numpy()}")

# %% [markdown]
# With a copy, the loss is right, but `w` gets the gradient of the first stage only, and in general
# the two variables drift apart. The cure is one variable on one device, which the other device
# reads over the cut. To find such a mistake, compare the gradients once with those of the uncut
# network, on the host or with narrower layers.
#
# ## On GPUs
#
# Between GPUs data goes over PCIe or NVLink, so a cut with little to cross pays more than on cores.
# In [PyTorch's tutorial on model
# parallelism](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html) a step of
# ResNet-50 cut over two GPUs took 7 % longer than on one. On GPUs XLA compiles each stage.
#
# ## With a model of another kind
#
# Here is a small language model, whose first and last layer share their table of words.
# `pipeline.places` lists where a stage can begin: at the first layer, or where only one activation
# crosses. Inside a residual block two would cross. A file saved in stages loads on one device: the
# model in stages trains for two epochs, and a callback saves it. Then both train for another one:

# %%
def reader():
    keras.utils.set_random_seed(0)
    words = keras.Input([12], dtype="int32")
    table = layers.ReversibleEmbedding(50, 32, name="table")
    x = table(words)
    for i in range(1, 4):
        y = layers.Conv1D(32, 3, padding="causal", activation="relu", name=f"conv{i}")(x)
        x = layers.LayerNormalization(name=f"norm{i}")(layers.Add()([x, y]))
    model = keras.Model(words, table(x, reverse=True))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), entropy(), jit_compile=False)
    return model


print(*pipeline.places(reader()))

# %%
text = np.random.default_rng(0).integers(0, 50, [205, 13])
train = {"x": text[:, :-1], "y": text[:, 1:], "batch_size": 50, "shuffle": False, "verbose": 0}
with tf.device(plan.host):
    model = fit.use(reader(), plan, stages=len(plan))
with tempfile.TemporaryDirectory() as folder:
    save = keras.callbacks.ModelCheckpoint(f"{folder}/reader.keras")
    model.fit(**train, epochs=2, callbacks=[save])
    with tf.device(first):
        loaded = keras.models.load_model(f"{folder}/reader.keras")
        loss = loaded.fit(**train).history["loss"][0]
print(f"loss in stages {model.fit(**train).history['loss'][0]:.2f}, on one device {loss:.2f}")
print("the table lies on", devices.short(model.get_layer("table").weights[0].value.device))
print("weights differ by less than 1e-6:", apart(model.get_weights(), loaded.get_weights()) < 1e-6)

# %% [markdown]
# The first stage owns the table, and the last stage reads it over the cut. Stages can be cut from
# Sequential and functional models. A model with a `call` of its own has no list of layers to cut:
# write a tape for each stage.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `choose(cuts, budget)`. `cuts` is the list that `pipeline.cuts` gives. Each cut has
# two or more `parts`, its stages, and each part has `bytes`, what its device holds, and `crossing`,
# the bytes to the next part and back. Of the cuts in which no part holds more than `budget`, return
# the one where the least crosses in all, or None if there is no such cut.

# %% tags=["exercise"]
def choose(cuts, budget):
    return min(cuts, key=lambda cut: max(part.bytes for part in cut.parts))


checks.choose(choose)

# %% tags=["solution"]
def choose(cuts, budget):
    fitting = [cut for cut in cuts if all(part.bytes <= budget for part in cut.parts)]
    return min(fitting, key=lambda cut: sum(part.crossing for part in cut.parts), default=None)


checks.choose(choose)

# %% [markdown]
# **2.** Write `crossing(model, name, batch)`: how many bytes cross in one training step, there and
# back, if the Sequential model is cut in front of the layer of this name. Count float32 numbers, 4
# bytes each. A Keras layer has `layer.input.shape` and `layer.output.shape`, whose first entry,
# None, stands for the batch.

# %% tags=["exercise"]
def crossing(model, name, batch):
    return 4 * batch


checks.crossing(crossing)

# %% tags=["solution"]
def crossing(model, name, batch):
    numbers = np.prod(model.get_layer(name).input.shape[1:])
    return 2 * 4 * batch * numbers


checks.crossing(crossing)

# %% [markdown]
# ## What we saw
#
# - A step that needs more than 25 MB needed less on each device in two stages. In float64 the
#   weights after `fit` differed by less than 1e-12 from those of one device.
# - In a step 262,144 bytes crossed each way: the activations at the cut, and their gradient.
# - Under one tape the whole backward pass ran in one place. With a tape and an optimizer for each
#   stage, only the activations and their gradient crossed.
# - The best cut for memory was not the one where the least crosses.
#
# ## In practice
#
# Ask `memory.plan` ([[03]]) first, and split the model if nothing cheaper fits. Build it on the
# host, paste the line, and trace one step.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# Classic code has an argument in place of the second tape. With `colocate_gradients_with_ops=True`,
# each operation of the backward pass runs on the device of its forward operation; without it, all
# run on the device in whose block `tf1.gradients` is called. Here is the network of the
# [tensorlight notebook](../docs/sources.md#tensorlight) of 2016, a quarter as wide and cut in front
# of `conv2`, as there. On two TitanX GPUs its steps took 20.18 ms with the argument and 23.33 ms
# without. Are the gradients right, where is that of `conv2` computed, and what crosses?

# %%
network = networks.tensorlight(width=0.25)


def build_graph(colocate):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
        front, rear = networks.stages(network, ["conv2"], [first, second])
        with tf.device(first):
            middle = front.function(front.weights, x)
        with tf.device(second):
            value = networks.loss(y, rear.function(rear.weights, middle))
        weights = [*front.weights.values(), *rear.weights.values()]
        with tf.device(first):
            gradients = tf1.gradients(value, weights, colocate_gradients_with_ops=colocate)
            descent = tf1.train.GradientDescentOptimizer(0.01)
            descent.apply_gradients(zip(gradients, weights), name="train")
            tf1.global_variables_initializer()
    return tf1.Session(graph=graph, config=plan.session_config(soft_placement=True)), gradients


# %%
variables = networks.variables(network, device=first)
with tf.device(first), tf.GradientTape() as tape:
    value = networks.loss(labels, networks.logits(network, variables, images))
reference, feed = tape.gradient(value, list(variables.values())), {"x:0": images, "y:0": labels}
for colocate in [True, False]:
    session, gradients = build_graph(colocate)
    session.run("init")
    close = apart(session.run(gradients, feed), reference) < 1e-5
    step = trace.session_step(session, "train", feed)[1]
    back = "gradients/conv2/Conv2D_grad/Conv2DBackpropFilter"
    ran = {op.device for op in step.ops if op.name.endswith(back)}
    crossed = sum(step.bytes_between().values()) / 1e6
    print(f"colocate={colocate!s:5}  equal to 1e-5: {close}  on", *ran, f" {crossed:.0f} MB cross")
