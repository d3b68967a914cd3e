# %% [markdown]
# # Run a function on every device
#
# You have a model, a large batch and two GPUs. You call the model, or a function of your own, and
# the first GPU does everything.
#
# **In this lesson** a function that was written for one device runs on all of them, each with its
# share of the batch, and one set of weights serves them all.
#
# **You will learn** to
# - run a model or a function on all devices with one line,
# - cut a batch into shards and join the results by hand,
# - compute the gradient of each shard on the shard's own device,
# - notice a function that may not be shared.
#
# **You need** [[00]] and [[01]]. If you only want `fit` on all devices, [[07]] is enough.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, timing, towers, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_08 as checks

layers = keras.layers

# %% [markdown]
# ## The lines to paste
#
# Here is a model of three layers that reads handwritten digits. It is built on the first device, so
# its weights are there. The batch has 1024 images for each device and waits on the host.
#
# The second cell below begins with the line to paste. It makes `on_all`, which is called like the
# model and must give the same answers as one device:

# %%
keras.utils.set_random_seed(0)
with tf.device(plan.devices[0]):
    hidden = [layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
    model = keras.Sequential([layers.Input([784]), *hidden, layers.Dense(10)])
images, labels = digits.load(1024 * len(plan))
with tf.device(plan.host):
    images, labels = tf.constant(images.reshape(-1, 784)), tf.constant(labels)


def on_one(x):
    with tf.device(plan.devices[0]):
        return model(x)


# %%
on_all = tf.function(towers.make_parallel(model, plan.devices))

answers = on_all(images)
close = np.isclose(answers, on_one(images), rtol=0, atol=1e-5)
print(f"{np.count_nonzero(close):,} of {close.size:,} numbers agree to 0.00001")

# %% [markdown]
# Did every device work? A call of the model needs three matrix products, one for each layer.
# `trace.function_step` records where each operation of a function ran, and `print_products` counts
# the products of each device. Look at the model on one device, and then on all:

# %%
def print_products(step):
    for device in [plan.host, *plan.devices]:
        products = [op for op in step.ops if "MatMul" in op.type and op.device == device]
        backward = [op for op in products if "gradient" in op.name]
        print(f"{device}  forward {len(products) - len(backward)}  backward {len(backward)}")


for function in (on_one, on_all):
    print_products(trace.function_step(function, images)[1])

# %% [markdown]
# First one device computed three products, for the whole batch. Then every device computed three
# smaller ones, for its own share.
#
# `towers.make_parallel` takes any function whose inputs and outputs are **batches**: each row of an
# output depends on the same row of the inputs, and on no other row.
#
# | | |
# |---|---|
# | **Use it when** | a function handles each row by itself, and computes much for each |
# | **It costs** | each call sends all weights to the other devices, and the rows to and fro |
# | **Instead** | `model.predict` of a model that was made under `fit.strategy` ([[07]]) |
#
# ## A batch in shards
#
# The host cuts the batch into **shards**, each device runs the function on one of them, and the
# host joins the results:
#
# ![A batch on the host in two shards; each device runs the function on one shard; the host joins
# the two results.](pictures/08_shards.svg)
#
# Done by hand on two devices, the sum of two vectors of six numbers looks like this:

# %%
def add(a, b):
    return a + b


with tf.device(plan.host):
    first_a, second_a = tf.split(tf.range(6.0), 2)
    first_b, second_b = tf.split(10 * tf.range(6.0), 2)
with tf.device(plan.devices[0]):
    first = add(first_a, first_b)
with tf.device(plan.devices[-1]):
    second = add(second_a, second_b)
with tf.device(plan.host):
    print(first.numpy(), "and", second.numpy(), "make", tf.concat([first, second], axis=0).numpy())

# %% [markdown]
# These are the six sums. The same works for any function, any number of batches and any number of
# devices: `on_each` calls the function on each device with that device's shards, and
# `make_parallel` puts the cutting and the joining around it. Look at what a device gets to add
# 600,000 pairs of numbers, and what it sends back:

# %%
def on_each(function, devices, *shards):
    outputs = []
    for device, *shard in zip(devices, *shards):
        with tf.device(device):
            outputs.append(function(*shard))
    return outputs


def make_parallel(function, devices):
    def parallel(*batches):
        with tf.device(plan.host):
            shards = [tf.split(batch, len(devices)) for batch in batches]
            return tf.concat(on_each(function, devices, *shards), axis=0)

    return parallel


# %%
many = np.random.default_rng(seed=0).integers(0, 100, [2, 600_000 * len(plan)]).astype("float32")
result, step = trace.function_step(make_parallel(add, plan.devices), *many)
print(np.count_nonzero(result != many.sum(axis=0)), "sums differ from NumPy's")
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>9,} bytes")

# %% [markdown]
# Each device gets its shard of both vectors and sends back one shard of sums. So twelve bytes cross
# for one addition. A model computes far more with each number that it gets.
#
# ## The gradient of a shard
#
# Training needs the gradient of the mean loss. The losses of the images are a batch, so the forward
# pass can be shared as before. Look where the backward pass ends up when the mean and the gradient
# are left to the host. (A product with `gradient` in its name belongs to a backward pass.)

# %%
def losses(x, y):
    return keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)


def gradient_on_host(x, y):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(make_parallel(losses, plan.devices)(x, y))
        return tape.gradient(loss, model.trainable_variables)


_, step = trace.function_step(gradient_on_host, images, labels)
print_products(step)

# %% [markdown]
# The host computed the whole backward pass: five products for each shard, three for the gradients
# of the weights and two to get from a layer to the one before. A `tf.GradientTape` remembers
# operations but not their devices. The backward pass runs where the gradient is asked for, and that
# was in the host's block.
#
# So ask for the gradient of each shard in the block of its device:
#
# ![Asked in the host's block, the devices go forward and the host goes backward for both. Asked in
# each device's block, each goes forward and backward, and the host takes the
# mean.](pictures/08_backward.svg)
#
# A gradient is not a batch, so there is nothing to join. The host takes the mean of the shards'
# gradients instead. The second cell below draws what crosses:

# %%
def gradient_of(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(losses(x, y))
    return tape.gradient(loss, model.trainable_variables)


def gradient_on_all(x, y):
    with tf.device(plan.host):
        shards = tf.split(x, len(plan)), tf.split(y, len(plan))
        found = on_each(gradient_of, plan.devices, *shards)
        return [tf.add_n(each) / len(plan) for each in zip(*found)]


gradient, step = trace.function_step(gradient_on_all, images, labels)
print_products(step)

# %% tags=["varies", "cover"]
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>9,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# Every device computed the forward and the backward pass of its shard. On the map, the box of a
# layer holds its operations of both directions, with their number in brackets, `variables` holds
# the weights and what reads them, and `others` stands for small ones. The host sends every device
# its images and labels. The first device sends all the weights to each of the others, and every
# device sends the host a gradient as large as the weights.
#
# What one device computes from its shard to the gradients is called a **tower**. [[09]] trains in
# towers.
#
# The **proof** is that the mean of the shards' gradients is the gradient of the whole batch. (For
# that the shards must have the same size.)

# %%
with tf.device(plan.devices[0]):
    wanted = np.concatenate([np.ravel(each) for each in gradient_of(images, labels)])
error = np.abs(np.concatenate([np.ravel(each) for each in gradient]) - wanted)
close = np.count_nonzero(error <= 1e-5 * np.abs(wanted).max())
print(f"{close:,} of {wanted.size:,} entries agree to a hundred-thousandth of the largest")

# %% [markdown]
# ## Was it faster?
#
# Eager code on the CPU waits for one device before it calls the next. In a graph, such as
# `tf.function` makes, the devices work at the same time, so the line to paste has `tf.function` in
# it. `.numpy()` waits for the result:

# %%
alone = tf.function(on_one)
timing.compare(
    lambda: alone(images).numpy(), lambda: on_all(images).numpy(),
    names=("on one", "on all"), repeats=10,
)  # fmt: skip

# %% [markdown]
# The brackets hold the middle half of the ratios. In `cores` mode two devices can be nearly twice
# as fast as one, but only while no other program uses their cores.
#
# ## Break it
#
# **A function that returns one number, and a batch that does not divide.** A mean has no rows to
# join, and eleven examples do not divide by two. Compare TensorFlow's messages, which come first,
# with those of the helper.

# %%
mistakes = [(tf.reduce_mean, tf.range(8.0 * len(plan))), (tf.square, tf.range(11.0))]
for make in (make_parallel, towers.make_parallel):
    for function, batch in mistakes:
        try:
            print("- worked:", make(function, plan.devices)(batch).shape)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            print("-", str(error).rpartition("}} ")[2])

# %% [markdown]
# TensorFlow's first message does not say that the function has to return rows. That of the helper
# does. With `uneven=True` the helper takes a batch that does not divide.
#
# ## When not to
#
# Keep a function on one device if its rows depend on each other or need little work. To train, and
# to predict with what you trained, take [[07]]: it keeps a copy of the weights on each device, and
# does not send them at each step.
#
# ## On GPUs
#
# Do not expect "on all" to win with a model this small. A GPU may compute it in less time than the
# images and the weights need to cross. What no `tf.device` block names goes to the first GPU, so
# name the host for what you cut and join.
#
# ## With a model of another kind
#
# Here is a small convolutional network with BatchNormalization. In a prediction each row of the
# output depends on its own image. In training BatchNormalization takes the mean and the variance of
# the batch, and a device has only its shard of it. Every argument of the shared function is cut as
# a batch, so `training` is set inside a `lambda`:

# %%
with tf.device(plan.devices[0]):
    stack = [layers.Conv2D(16, 3, strides=2), layers.BatchNormalization(), layers.ReLU()]
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    network = keras.Sequential([layers.Input([28, 28, 1]), *stack])
pictures = digits.load(16 * len(plan))[0]

# %%
for training in (False, True):
    calls = [towers.make_parallel(lambda x: network(x, training=training), places)
             for places in (plan.devices[:1], plan.devices)]  # fmt: skip
    one, of_all = [call(pictures) for call in calls]
    print(f"training={training!s:5}  same outputs:", np.allclose(one, of_all, rtol=0, atol=1e-5))

# %% [markdown]
# In training the function mixes rows, and no error says so. A model that was made under the
# strategy of [[07]] takes the statistics of the whole batch.
#
# ## The same in a graph: if you inherit such code
#
# `make_parallel` comes from *Effective TensorFlow* by Vahid Kazemi
# ([2017](../docs/sources.md#make_parallel)), where it is written for graphs and sessions ([[01]]).
# Its example fits a parabola to points. In a graph the model makes its weights itself:
# `get_variable` makes a variable and remembers it by its name. In the graph that `build` makes, the
# operation `init` sets the weights to zero, and the operation `train` is one step of Adam. All
# points lie on 5x² + 3, so training should find 5, 0 and 3:

# %%
def error_of(w, x, y):
    powers = tf.stack([tf.square(x), x, tf.ones_like(x)], axis=1)
    return tf.square(tf.squeeze(tf.matmul(powers, w), axis=1) - y)


def model_of_graph(x, y):
    return error_of(tf1.get_variable("w", [3, 1], initializer=tf1.zeros_initializer()), x, y)


def build(losses, colocate=False):
    with tf.Graph().as_default() as graph, tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None], name="x")
        y = tf1.placeholder(tf.float32, [None], name="y")
        loss, adam = tf.reduce_mean(losses(x, y)), tf1.train.AdamOptimizer(0.3)
        pairs = adam.compute_gradients(loss, colocate_gradients_with_ops=colocate)
        tf.identity(pairs[0][0], name="gradient")  # pairs of gradient and variable
        adam.apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()  # its name is init
    return graph


# %%
def points_at(x):
    x = x.astype("float32")
    return {"x:0": x, "y:0": 5 * x**2 + 3}


def train(graph, steps):
    rng = np.random.default_rng(seed=0)
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run("init")
    for _ in range(steps):
        session.run("train", points_at(rng.uniform(-10, 10, 48 * len(plan))))
    return session, session.run(graph.get_collection("trainable_variables"))


_, of_one = train(build(make_parallel(model_of_graph, plan.devices[:1])), steps=1500)
print(np.round(np.ravel(of_one), 3) + 0)  # + 0 makes -0 a 0

# %% [markdown]
# On several devices the model is called several times. TensorFlow refuses the second
# `get_variable("w")`, because there is a `w` already. With `reuse=tf1.AUTO_REUSE` it returns that
# `w` instead. **Proof:** after 1500 steps the one `w` has the values that one device found:

# %%
def reusing(x, y):
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return model_of_graph(x, y)


everywhere = make_parallel(reusing, plan.devices)
points = points_at(np.linspace(-1, 1, 48 * len(plan)))
_, of_all = train(build(everywhere), steps=1500)
print(np.round(np.ravel(of_all), 3) + 0)
print("from one device below 0.00001:", np.abs(np.subtract(of_all, of_one)).max() < 1e-5)

# %% [markdown]
# Where is the backward pass? `compute_gradients` is called in the host's block, and
# `colocate_gradients_with_ops=True` puts each gradient where its forward operation is. Look at the
# products without this option and with it. The two cells after that take the same gradient in
# today's code, where the weight is an object and needs no name:

# %%
for colocate in (False, True):
    session, [start] = train(build(everywhere, colocate), steps=1)
    session.run("gradient:0", points)  # the first run prepares the graph
    classic, step = trace.session_step(session, "gradient:0", points)
    print_products(step)

# %%
def squared_error(x, y):
    return error_of(w, x, y)


with tf.device(plan.devices[0]):
    w = tf.Variable([[5.0], [0.0], [3.0]])

# %%
w.assign(start)
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(make_parallel(squared_error, plan.devices)(*points.values()))
print("the gradient of today's code:", np.allclose(tape.gradient(loss, w), classic, rtol=1e-5))

# %% [markdown]
# With the option each device has its own backward pass, and the gradient is that of today's code.
#
# **A scope for each device** looks tidy, and TensorFlow refuses nothing. Count the variables.
# (After 200 steps their values are still on their way to 5, 0 and 3.)

# %%
def in_own_scope(x, y):
    with tf1.variable_scope(None, "tower"):
        return model_of_graph(x, y)


apart = build(make_parallel(in_own_scope, plan.devices))
for variable, value in zip(apart.get_collection("trainable_variables"), train(apart, 200)[1]):
    print(variable.name, np.round(np.ravel(value), 1) + 0)

# %% [markdown]
# Two devices train two models now, each on its half of the points. The number of variables must not
# depend on the number of devices.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `make_parallel_uneven(function, devices)`. It does what `make_parallel` does, with
# any number of batches, and also takes batches that do not divide: 11 examples over 2 devices are 6
# and 5. The sizes of the shards may differ by one at most, and `tf.split` accepts a list of sizes.
# Name the host for cutting and joining: the check puts unplaced operations on the first device, as
# a GPU machine does.

# %% tags=["exercise"]
def make_parallel_uneven(function, devices):
    return make_parallel(function, devices)


checks.uneven(make_parallel_uneven)

# %% tags=["solution"]
def make_parallel_uneven(function, devices):
    def parallel(*batches):
        least, more = divmod(len(batches[0]), len(devices))
        sizes = [least + 1] * more + [least] * (len(devices) - more)
        with tf.device(plan.host):
            shards = [tf.split(batch, sizes) for batch in batches]
            return tf.concat(on_each(function, devices, *shards), axis=0)

    return parallel


checks.uneven(make_parallel_uneven)

# %% [markdown]
# **2.** `mean_error` sends the squared error of every point to the host, 4 bytes each, and takes
# the mean after that. Write it so that each device sends a single number, and the result stays the
# same. Use the `make_parallel` of this lesson, for that of `towers` wants a row for each example.

# %% tags=["exercise"]
def mean_error(x, y):
    return tf.reduce_mean(make_parallel(squared_error, plan.devices)(x, y))


checks.mean_error(mean_error, squared_error)

# %% tags=["solution"]
def mean_error(x, y):
    def mean_of_shard(x, y):
        return tf.reduce_mean(squared_error(x, y), keepdims=True)

    return tf.reduce_mean(make_parallel(mean_of_shard, plan.devices)(x, y))


checks.mean_error(mean_error, squared_error)

# %% [markdown]
# ## What we saw
#
# - One line ran a model on all devices. Each device computed 3 matrix products for its own share
#   of the batch, and the answers agreed with those of one device to 0.00001.
# - With one tape around all devices, the host computed the whole backward pass. With the gradient
#   asked for in each device's block, every device computed its own.
# - The mean of the shards' gradients was the gradient of the batch.
# - BatchNormalization in training gave other outputs on two devices, and no error said so.
# - In a graph, `reuse` kept one set of weights, and it learned 5, 0 and 3 as one device did.
#
# ## In practice
#
# Put `towers.make_parallel(model, plan.devices)` inside `tf.function`, and compare its answers once
# with those of one device. Next: [[next]].
