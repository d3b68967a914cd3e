# %% [markdown]
# # Split a model
#
# Your model does not fit on one GPU: the first training step ends with an error that says "out of
# memory". A smaller batch does not always help, because weights and the optimizer's numbers stay as
# large as they are. More replicas do not help either, because each of them holds the whole model.
#
# **In this lesson** a network that is too large for one device trains on two, and its gradients are
# those of the whole network.
#
# **You will learn** to
# - cut a Keras model in two and train both parts,
# - count what each device holds, and what crosses,
# - run the backward pass where the forward pass ran,
# - choose where to cut.
#
# **You need** [[01]] and [[03]].

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
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, memory, pipeline, timing, trace
from mgpu_helpers.lessons import digits, networks
from mgpu_helpers.lessons.checks import lesson_12 as checks

# %% [markdown]
# ## The trouble
#
# The article *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md#jang)) ends with a network that
# is too large for one GPU. Here it is in Keras, with a quarter of the filters, and with 1800 units
# in `fc1` where the article has 2400. (Dropout is left out in this lesson.) Look at where the
# weights are:

# %%
layers = keras.layers


def conv(filters, name):
    return [
        layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False, name=name),
        layers.MaxPooling2D(padding="same", name=f"{name}_pool"),
    ]


def dense(units, name, activation=None):
    return layers.Dense(units, activation, use_bias=False, name=name)


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# %%
first, second = plan.devices[0], plan.devices[-1]

with tf.device(first):
    front = keras.Sequential([keras.Input([28, 28, 1]), *conv(16, "conv1"), *conv(16, "conv2"),
                              *conv(32, "conv3"), layers.Flatten()])  # fmt: skip
with tf.device(second):
    rear = keras.Sequential([keras.Input([512]), dense(1800, "fc1", "relu"), dense(10, "output")])

for name, part in [("front", front), ("rear", rear)]:
    places = {devices.short(weight.value.device) for weight in part.weights}
    print(f"{name:5} {part.count_params():7,} weights on", *places)

# %% [markdown]
# The network is built in two **parts**, each in the block of its device, because that is
# where we shall cut it. 99 % of the weights are in the second part.
#
# `whole` is the same layers in one model, with the same weights. They start from the same values on
# every machine:

# %%
whole = keras.Sequential([keras.Input([28, 28, 1]), *front.layers, *rear.layers])
network = networks.jang(hidden=7200, width=0.25)  # a quarter of 7200 units
whole.set_weights(list(networks.initial(network).values()))
images, labels = digits.load(1024)
x, y = images[:128], labels[:128]

# %% [markdown]
# How much memory would it need on a single device? Say that a device can give it 25 MB, at a batch
# of 128. A copy of the model takes one training step on the first device. [[03]] explains
# `memory.by_use`, which splits what a step holds at its peak:

# %%
def on_one_device(optimizer, x, y):
    with tf.device(first):
        copy = keras.models.clone_model(whole)
        copy.compile(optimizer, loss)
        return trace.fit_step(copy, (x, y))


# %% tags=["nbval-ignore-output"]
def held(step, device, count):
    return memory.by_use(step, device, weights=4 * count, slots=8 * count, scratch=False)


of_whole = held(on_one_device("adam", x, y), first, whole.count_params())
assert of_whole.total > 25_000_000
of_whole

# %% [markdown]
# It does not fit. A weight has 4 bytes, and Adam keeps two more numbers for each, its **slots**.
# The gradients are those of the weights, and what Adam makes of them. The activations are what the
# forward pass leaves behind for the backward pass. (The numbers differ somewhat from
# run to run.)
#
# ## Cut it
#
# The idea is to leave each part on its own device:
#
# ![A batch goes through conv1, conv2 and conv3 on device 0, then through fc1 and output on device
# 1, to the loss. Activations cross the cut forward, and their gradient comes
# back.](pictures/12_cut_network.svg)
#
# In the forward pass the activations at the cut go to the second device. In the backward pass their
# gradient comes back. Nothing else has to cross.
#
# In code, each part is called in the block of its device, under one gradient tape:

# %%
@tf.function
def one_tape(x, y):
    with tf.GradientTape() as tape:
        with tf.device(first):
            middle = front(x)
        with tf.device(second):
            value = loss(y, rear(middle))
    with tf.device(first):
        return tape.gradient(value, whole.trainable_variables)


# %% [markdown]
# Are these the gradients of the whole network? Here is the network uncut on the first device.
# `apart` is the largest difference, as a share of the largest entry of the same gradient:

# %%
@tf.function
def uncut(x, y):
    with tf.device(first):
        with tf.GradientTape() as tape:
            value = loss(y, whole(x))
        return tape.gradient(value, whole.trainable_variables)


def apart(ours, theirs):
    pairs = [(np.array(a), np.array(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs)


reference = uncut(x, y)
print(f"the gradients are {apart(one_tape(x, y), reference):.1g} apart")

# %% [markdown]
# They are equal to the last bit. (On GPUs, which may choose other kernels, expect about 1e-6.)
#
# ## Where does the backward pass run?
#
# The first two blocks were around the forward pass. TensorFlow places the operations of the
# backward pass where `tape.gradient` is called: here in the last block, so on the first device.
# (Without that block they would run on the first GPU, or on the host where there is none.)
#
# A trace shows where the matrix products and convolutions ran. Keras names operations after their
# layer, and TensorFlow puts `gradient_tape` before the names of the backward pass:

# %%
def show_places(step):
    products = [op for op in step.ops if "Conv2D" in op.type or "MatMul" in op.type]
    for layer in ["conv3", "fc1"]:
        ops = [op for op in products if layer in op.name]
        ahead = {op.device for op in ops if "gradient_tape" not in op.name}
        back = {op.device for op in ops if "gradient_tape" in op.name}
        print(f"{layer:6} forward on", *ahead, " backward on", *back)


_, step = trace.function_step(one_tape, x, y)
show_places(step)
print(f"{step.bytes_between().get((second, first), 0) / 1e6:.0f} MB cross to the first device")

# %% [markdown]
# With two devices, the first one does the whole backward pass. What it needs from the second has to
# cross: mostly the weights of `fc1`, 3.7 MB. So the first device holds them again, with their
# gradients.
#
# ## A tape for each part
#
# The remedy is to cut the tape as well. Each part gets a tape of its own, and the call of
# `gradient` stands in the block of its device. Three things are new:
#
# - `rear_tape.watch(middle)`: the second tape has to know that we want the gradient of its input.
# - `of_middle` is that gradient, and goes back over the cut.
# - `front_tape.gradient` takes it as its third argument. The first part has no loss of its own, so
#   its backward pass begins with the gradient of what it passed on.

# %%
def cut(x, y):
    with tf.device(first), tf.GradientTape() as front_tape:
        middle = front(x)
    with tf.device(second):
        with tf.GradientTape() as rear_tape:
            rear_tape.watch(middle)
            value = loss(y, rear(middle))
        *of_rear, of_middle = rear_tape.gradient(value, [*rear.trainable_variables, middle])
    with tf.device(first):
        of_front = front_tape.gradient(middle, front.trainable_variables, of_middle)
    return of_front, of_rear


# %% [markdown]
# `middle` has 128 examples of 512 numbers of 4 bytes, which is 262,144 bytes. Look for this number
# twice, and for a backward pass on both devices:

# %%
(of_front, of_rear), step = trace.function_step(cut, x, y)
print(f"the gradients are {apart([*of_front, *of_rear], reference):.1g} apart")
show_places(step)
there, back = [step.bytes_between().get(way, 0) for way in [(first, second), (second, first)]]
print(f"{there:,} bytes forward, {back:,} bytes back")

# %% [markdown]
# The gradients are the same, and between the devices there is only what the drawing shows. (With a
# single device nothing crosses.)
#
# ## Does it fit?
#
# To train, each part needs an optimizer. It makes its slots where it is built, so it is built in
# the block of the device too:

# %%
def train_step(kind, *settings):
    with tf.device(first):
        front_optimizer = kind(*settings)
        front_optimizer.build(front.trainable_variables)
    with tf.device(second):
        rear_optimizer = kind(*settings)
        rear_optimizer.build(rear.trainable_variables)

    def train(x, y):
        of_front, of_rear = cut(x, y)
        with tf.device(first):
            front_optimizer.apply(of_front)
        with tf.device(second):
            rear_optimizer.apply(of_rear)

    return tf.function(train)


# %% [markdown]
# Compare the parts with the whole network, and with the 25 MB:

# %% tags=["nbval-ignore-output"]
_, step = trace.function_step(train_step(keras.optimizers.Adam), x, y)
parts = {
    f"whole on {first}": of_whole,
    f"front on {first}": held(step, first, front.count_params()),
    f"rear on {second}": held(step, second, rear.count_params()),
}
for name, each in parts.items():
    print(f"{name:16} {each.total / 1e6:5.1f} MB")
charts.held(parts)
plt.show()

# %%
_, *two = [each.total for each in parts.values()]
if len(plan) > 1:
    assert max(two) < 0.75 * of_whole.total
print("the larger part fits into 25 MB:", max(two) <= 25_000_000)

# %% [markdown]
# With two devices each part fits. The front holds activations, which grow with the batch. The rear
# holds weights, slots and gradients, which do not. (Each bar is the moment at which its device
# holds most, so the two need not add up to the whole. A single device holds both parts, and nothing
# is gained.)
#
# ## Why it is not faster
#
# Here is one step on a larger batch. Look for moments in which both devices work:

# %% tags=["varies", "cover"]
_, step = trace.function_step(cut, images, labels)
charts.timeline(step)
plt.show()

# %% [markdown]
# There are hardly any. (Where a device has two rows of bars, two of its operations ran at once, on
# the core that the other device left idle.)
#
# With two devices the first works, then the second, then the first again: a part cannot begin
# before the one in front of it has ended, and in the backward pass it is the other way round.
# **A cut shares out memory, not time.** [[14]] lets both work at once.
#
# ## Where to cut
#
# Each cut has its price. A trace of the whole network on one device tells how long the operations
# of each layer take, what they hold, and how many bytes go from one layer to the next.
# `pipeline.cuts` adds them up for every cut that there is. A line gives the time of both parts,
# what they hold without weights and slots, and what crosses, there and back:

# %% tags=["nbval-ignore-output"]
step = on_one_device("sgd", images, labels)
names = ["conv1", "conv2", "conv3", "fc1", "output"]
for each in pipeline.cuts(step, names, stages=2):
    print(each)

# %% [markdown]
# `best_cut` chooses by one of three criteria. By memory, the larger part is as small as can be. By
# bytes, the least crosses. (By time, the slower part is as fast as can be. That matters in [[14]].)

# %%
pair = [first, second]
for by in ["memory", "bytes"]:
    print(f"by {by}: cut before", *pipeline.best_cut(step, pair, names, by=by).starts)

# %% [markdown]
# They do not agree. The article's cut, before `fc1`, is the one where the least crosses. At this
# batch of 1024 the activations take most of the memory. After a cut before `conv2` the larger part
# holds least, but still far more than the smaller one: no cut shares them out evenly.
#
# ## The same in a graph
#
# In classic code one argument replaces the second tape. `tf1.gradients` makes the backward pass for
# the whole graph, and with `colocate_gradients_with_ops=True` it puts each operation on the device
# of the operation whose gradient it computes. Without it, the backward pass goes where
# `tf1.gradients` is called. `networks.stages` builds the two parts: each has a function, and
# weights on its device:

# %%
def build(network, start, colocate):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
        front, rear = networks.stages(network, [start], pair)
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
    session = tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))
    session.run("init")
    return session, gradients


# %% [markdown]
# With the same weights and the same batch, it should give the gradients of the Keras model:

# %%
session, gradients = build(network, "fc1", colocate=True)
ours = session.run(gradients, {"x:0": x, "y:0": y})
print(f"the gradients are {apart(ours, reference):.1g} apart")

# %% [markdown]
# The [tensorlight notebook](../docs/sources.md#tensorlight) of 2016 cuts its network between
# `conv1` and `conv2`, and measured a step with and without this argument, on two TitanX GPUs. Here
# is its network with a quarter of the width. The placement log says where TensorFlow plans to run
# the operations of `conv2`, and a trace says how much crosses. The second cell times both steps,
# and one kernel of the second part, the gradient of its pool:

# %%
feed, runs, steps = {"x:0": images[:512], "y:0": labels[:512]}, [], []
back = "gradients/conv2/Conv2D_grad/Conv2DBackpropFilter"

for colocate in [True, False]:
    session, _ = build(networks.tensorlight(width=0.25), "conv2", colocate)
    config = plan.session_config(log_placement=True)
    with trace.placement() as log:
        tf1.Session(graph=session.graph, config=config).run("init")
    runs.append(partial(session.run, "train", feed))
    runs[-1]()
    steps.append(trace.session_step(session, "train", feed)[1])
    crossed = sum(steps[-1].bytes_between().values()) / 1e6
    print(f"colocate={colocate!s:6} forward on {log.device_of('conv2/Conv2D')},",
          f"backward on {log.device_of(back)}, {crossed:.0f} MB cross")  # fmt: skip

# %% tags=["nbval-ignore-output"]
kinds = ["colocated", "not colocated"]
for name, step in zip(kinds, steps):
    pool = [op for op in step.ops if op.type == "MaxPoolGrad" and "/pool_1/" in op.name]
    print(f"{name:13} gradient of the pool: {1e3 * sum(op.length for op in pool):4.1f} ms")
timing.compare(*runs, repeats=6, names=kinds)

# %% [markdown]
# The notebook's steps took 20.18 ms with the argument and 23.33 ms without, so its colocated step
# was 1.16 times as fast. There the bytes went from GPU to GPU. (With a single device both steps are
# the same, and only the batch crosses.)
#
# In `cores` mode all devices share one memory, and a gain seen here has another reason: the kernel
# for the gradient of the pool. The library oneDNN has a fast one, which reads what the pool noted
# down in the forward pass. That note stays on the pool's device. So where the gradient runs on
# another device, a slow kernel computes it.
#
# The notebook also says what the GPUs held: 4285 MiB with the whole network, and 2236 and 2795 MiB
# with a part of it. Do not read this as what a step needs: in another row of its table the whole
# network, at the same per-device batch, has 1214 MiB. The likely reason is that TensorFlow's
# allocator grows in ever larger regions: 1214, 2236 and 4285 are about 190 more than 1024, 2048 and
# 4096. A trace, as above, says what a step holds.
#
# ## Proof
#
# Take five steps of plain gradient descent from the same weights, once cut and once uncut, with a
# learning rate of 0.01. Every weight is compared with the same weight of the uncut network, and
# with where it began:

# %%
begin = whole.get_weights()
train = train_step(keras.optimizers.SGD, 0.01)
for _ in range(5):
    train(x, y)
after_cut = whole.get_weights()

whole.set_weights(begin)
for _ in range(5):
    for weight, gradient in zip(whole.trainable_variables, uncut(x, y)):
        weight.assign_sub(0.01 * gradient)

print(f"cut and uncut are {apart(after_cut, whole.get_weights()):.1g} apart")
print(f"end and beginning are {apart(after_cut, begin):.1g} apart")

# %% [markdown]
# The cut network has learned, and it has learned the same.
#
# ## Break it
#
# **The cut is not on the tape.** Somebody sends the activations over the cut through NumPy. The
# loss is right, and no error is raised. Count the gradients:

# %%
with tf.GradientTape() as tape:
    middle = front(x).numpy()
    value = loss(y, rear(middle))
gradients = tape.gradient(value, whole.trainable_variables)
print("the loss is the same:", np.isclose(value, loss(y, whole(x)), rtol=1e-5))
for weight, gradient in zip(whole.trainable_variables, gradients):
    said = "no gradient" if gradient is None else "a gradient"
    print(f"{weight.path.split('/', 1)[-1]:15}", said)

# %% [markdown]
# The tape cannot see through NumPy, so the first part would not learn. The check is to look for
# `None`, or to compare the gradients with those of the whole network once.
#
# **A weight that both parts use.** In some models two layers share a weight, such as the first and
# the last of a language model. Here both parts multiply by `w`, which is 2. The loss is the mean of
# w · w · x. With a mean of x of 2.5 its gradient is 2 · w · 2.5 = 10. Look at what becomes of it
# where the second device gets a copy of the variable:

# %%
some = tf.constant([1.0, 2.0, 3.0, 4.0])
with tf.device(first):
    w = tf.Variable(2.0)
with tf.device(second):
    copy = tf.Variable(2.0)

# %%
for name, other in [("a copy", copy), ("one variable", w)]:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(other * (w * some))
    print(f"{name:12}  loss {value.numpy()}  gradient of w {tape.gradient(value, w).numpy()}")

# %% [markdown]
# The loss is right both times. With a copy, `w` has half of its gradient, and the copy has the
# other half. In the next steps each learns half as fast, and in general the two drift apart.
#
# So use one variable in both parts. One of the devices then reads it over the cut. Or add the
# gradients of the copies before each update.
#
# ## With your own model
#
# `pipeline.stages` cuts any functional or Sequential Keras model in front of the layers that you
# name. A part on its device is a **stage**. Here is a residual network with batch normalization.
# `pipeline.places` lists the layers in front of which a single tensor crosses: a cut through a
# residual block would have to send two.

# %%
def residual(x, name):
    y = layers.Conv2D(8, 3, padding="same", name=f"{name}_conv")(x)
    y = layers.BatchNormalization(name=f"{name}_norm")(y)
    return layers.Add(name=f"{name}_add")([x, layers.ReLU(name=f"{name}_relu")(y)])


image = keras.Input([28, 28, 1])
with tf.device(first):
    stem = residual(layers.Conv2D(8, 3, strides=2, padding="same", name="stem")(image), "one")
with tf.device(second):
    top = layers.GlobalAveragePooling2D(name="mean")(residual(stem, "two"))
    model = keras.Model(image, layers.Dense(10, name="scores")(top))
model.compile("adam", loss)
print(*pipeline.places(model))

# %% [markdown]
# `best_cut` takes these places and a trace of the model on one device. What it would choose here:

# %%
with tf.device(first):
    step = trace.fit_step(model, (x, y))
candidates = pipeline.places(model)
for by in ["memory", "bytes"]:
    print(f"by {by}: cut before", *pipeline.best_cut(step, pair, candidates, by=by).starts)

# %% [markdown]
# We cut in front of `two_conv`, where the blocks above change the device. `pipeline.gradients` runs
# the forward and the backward pass of all stages, each on its device, and gives the gradients by
# the `path` of the weight. Compare them with those of the model whole:

# %%
stages = pipeline.stages(model, ["two_conv"], pair)


@tf.function
def in_stages(x, y):
    return pipeline.gradients(stages, loss, x, y)[1]


@tf.function
def by_tape(x, y):
    with tf.device(first), tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    return tape.gradient(value, model.trainable_variables)


found, step = trace.function_step(in_stages, x, y)
ours = [found[weight.path] for weight in model.trainable_variables]
print(f"{apart(ours, by_tape(x, y)):.1g} apart; convolutions ran on",
      *sorted({op.device for op in step.ops if "Conv2D" in op.type}))  # fmt: skip

# %% [markdown]
# What to watch for:
#
# - A stage reads the model's own variables. Where they lie on another device, each step copies
#   them. So build the layers of a stage in the block of its device, as above.
# - Train with an optimizer for each stage, where its weights lie:
#   `update = pipeline.updater(stages, "adam")` makes them, and `update(gradients)` trains.
# - The moving averages of batch normalization, and the seeds of dropout, are updated by each step.
# - `best_cut` needs a trace of the whole model. Where it does not fit, trace a small batch. The
#   batch has to be large enough for the activations to count.
# - A model with a `call` of its own has no list of layers to cut. Write two tapes for it.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** The network of this lesson trains with a batch of 512, and each device can give it 62 MB,
# weights and Adam's slots included. If the cut is before `fc1`, the first part holds more than
# that. Which layer should begin the second part: `conv2`, `conv3` or `output`? The check trains it
# and measures both.

# %% tags=["exercise"]
starts = ["fc1"]

checks.within_budget(starts)

# %% tags=["solution"]
starts = ["conv2"]

checks.within_budget(starts)

# %% [markdown]
# **2.** Write `crossing(model, name, batch)`: how many bytes cross in one training step, there and
# back, if the Sequential model is cut in front of the layer of this name. All numbers are float32.
# (A Keras layer has `layer.input.shape` and `layer.output.shape`, and their first entry stands for
# the batch.)

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
# - With two devices, a network fitted that did not fit whole. One part held activations, the other
#   weights, slots and gradients.
# - Under one tape the whole backward pass ran in one place. With a tape for each part it ran where
#   the forward pass had run, and only the activations at the cut and their gradient crossed.
# - Gradients and weights were those of the uncut network, in Keras and in a graph.
# - The devices took turns.
# - The best cut for memory was not the best one for what crosses.
#
# ## In practice
#
# Use this when a model does not fit on one device. It costs time: the devices take turns, and the
# activations have to cross. [PyTorch's tutorial on model
# parallelism](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html) measured
# ResNet-50 cut over two GPUs: a step took 7 % longer than on one.
#
# - If the model fits, towers ([[09]]) make better use of the devices.
# - Some models fit without a cut. `tf.recompute_grad` keeps only what goes into the function that
#   it wraps, and the backward pass computes the rest again. Wrap each of many blocks: ten residual
#   blocks then held 45 MB in place of 106. Wrapped as a whole they held 109, since the backward
#   pass had to compute everything again before it began. Dropout and batch normalization do not go
#   with it. Smaller pieces of the batch, one after the other, need less memory at a time ([[14]]).
# - A layer that is itself too large is cut across: each device holds some columns of its matrix. In
#   TensorFlow that is DTensor (`tf.experimental.dtensor`), which spreads a tensor over a mesh of
#   devices as its layout says.
#
# Next: [[next]].
