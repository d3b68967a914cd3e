# %% [markdown]
# # Run a function on every device
#
# You have a Keras model and two GPUs, and you want something that neither `fit` nor `predict`
# gives, such as the pixels that made the model choose a class. Your function calls the model with a
# large batch, and the first GPU does everything.
#
# **In this lesson** a function that was written for one device runs on all of them, each with its
# share of the batch, and one set of weights serves them all.
#
# **You will learn** to
# - run a function of your own on all devices with one line,
# - cut a batch into shards and join the results by hand,
# - keep the backward pass on the devices,
# - notice a function that may not be shared.
#
# **You need** [[00]] and [[01]]. For `fit` and `predict` on all devices take [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import fit, timing, towers, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_08 as checks
from mgpu_helpers.lessons.products import print_products

layers = keras.layers

# %% [markdown]
# ## The lines to paste
#
# A small model learns to read handwritten digits, on the first device, so its weights are there.
# The function to share, `saliency`, gives for each image the gradient of the highest score with
# respect to the pixels. A pixel times its gradient is, roughly, what that pixel adds to the chosen
# class's score.

# %%
keras.utils.set_random_seed(0)
with tf.device(plan.devices[0]):
    hidden = [layers.Dense(512, activation="tanh"), layers.Dense(512, activation="tanh")]
    model = keras.Sequential([layers.Flatten(), *hidden, layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

# %%
images, labels = digits.load(1024 * len(plan))
with tf.device(plan.devices[0]):
    model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
with tf.device(plan.host):
    images = tf.constant(images)


# %%
def saliency(x, model=model):
    with tf.GradientTape() as tape:
        tape.watch(x)
        highest = tf.reduce_max(model(x), axis=1)
    return tape.gradient(highest, x)


# %% [markdown]
# The first line below is the line to paste. You call `on_all` like `saliency`, and it must give one
# device's numbers:

# %%
on_all = tf.function(towers.make_parallel(saliency, plan.devices))

found = on_all(images)
with tf.device(plan.devices[0]):
    close = np.isclose(found, saliency(images), rtol=0, atol=1e-5)
print(f"{np.count_nonzero(close):,} of {close.size:,} numbers agree to 0.00001")

# %% tags=["varies"]
drawings.attributions(images[:10], images[:10] * found[:10])
plt.show()

# %% [markdown]
# Green pixels speak for the chosen class, and purple ones against it.
#
# Did every device work? `saliency` needs six matrix products: three forward, from the pixels to the
# scores, and three backward, from the scores to the pixels. `trace.function_step` records where
# each operation of a function ran, and `print_products` counts the products. Compare the counts on
# one device and on all:

# %%
on_one = tf.function(towers.make_parallel(saliency, plan.devices[:1]))
for title, function in (("on one", on_one), ("on all", on_all)):
    print_products(title, trace.function_step(function, images)[1])

# %% [markdown]
# "On one", one device computed six products for the whole batch. "On all", every device computed
# six for its own share.
#
# `towers.make_parallel` takes any function whose inputs and outputs are **batches**: each row of an
# output depends on the same row of the inputs, and on no other row.
#
# | | |
# |---|---|
# | **Use it when** | a function of yours treats each row by itself, and does much work for each |
# | **It costs** | each call sends weights to the other devices, rows to all, and results back |
# | **Instead** | to train or predict, [[07]]; for many calls, a copy on each device (below) |
#
# ## By hand
#
# The host cuts the batch into **shards**, each device runs the function on one of them, and the
# host joins the results. The first device keeps the weights and sends them to the others at each
# call:
#
# ![A batch on the host in two shards; each device runs the function on one shard, the second with
# weights that the first one sends; the host joins the two results.](pictures/08_shards.svg)
#
# In code, `on_each` calls a function on each device with that device's shards, and `make_parallel`
# puts the cutting and the joining around it. Both take any number of batches and of devices:

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
by_hand = make_parallel(saliency, plan.devices)(images)
print("the numbers of the helper:", np.allclose(by_hand, found, rtol=0, atol=1e-5))

# %% [markdown]
# ## Where to put the tape
#
# `saliency` has its tape inside. Suppose that the devices compute only the scores, and one tape
# goes around all of them. Look where the backward pass ends up:

# %%
def highest_scores(x):
    return tf.reduce_max(model(x), axis=1)


def tape_around(x):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            tape.watch(x)
            highest = towers.make_parallel(highest_scores, plan.devices)(x)
        return tape.gradient(highest, x)


numbers, step_around = trace.function_step(tape_around, images)
print("the same numbers:", np.allclose(numbers, found, rtol=0, atol=1e-5))
print_products("one tape around all devices", step_around)

# %% [markdown]
# The numbers are right, but the host computed the whole backward pass, three products for each
# shard. A tape remembers operations and not their devices: the backward pass runs in the block that
# calls `tape.gradient`, here the host's. In `saliency` that block is each device's. Here are both
# ways as they ran, with the bytes that crossed. A number in brackets counts operations:

# %% tags=["varies", "cover"]
step_inside = trace.function_step(on_all, images)[1]
drawings.shared_calls({"One tape around all": step_around, "A tape on each": step_inside})
plt.show()

# %% [markdown]
# With one tape, the devices send the host what the backward pass needs, and the first sends it the
# weights, once for each shard. With a tape on each, they go backward themselves and send the host
# only results.
#
# A gradient of the *weights* has no row for each image, so there are no rows to join. Instead, the
# host takes the mean of the shards' gradients, as in [[09]].
#
# ## TensorFlow's own way
#
# `strategy.run` calls a function on each device with that device's copy of the model, its
# **replica**. The shards come from `experimental_distribute_values_from_function`, and `gather`
# joins the results. Compare what the devices send each other:

# %%
strategy = fit.strategy(plan)
with strategy.scope():
    replicas = keras.models.clone_model(model)
replicas.set_weights(model.get_weights())


@tf.function
def on_replicas(x):
    with tf.device(plan.host):
        shards = tf.split(x, len(plan))
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group]
        )
        return strategy.gather(strategy.run(saliency, [parts, replicas]), axis=0)


# %%
for title, function in (("make_parallel", on_all), ("strategy.run", on_replicas)):
    result, step = trace.function_step(function, images)
    between = sum(size for ends, size in step.bytes_between().items() if plan.host not in ends)
    print(f"{title:13}  same numbers:", np.allclose(result, found, rtol=0, atol=1e-5), end="  ")
    print(f"between devices: {between:9,} bytes")

# %% [markdown]
# With `make_parallel` the first device sends its weights at each call. The replicas hold them
# already. For a few calls of an existing model take `make_parallel`; for many calls with the same
# weights, `strategy.run`.
#
# ## With a model of another kind
#
# Here is a convolutional network with BatchNormalization. In a prediction each row of the output
# depends on its own image. In training BatchNormalization takes the mean and variance of what it
# gets, and a device gets only a shard. `make_parallel` cuts every argument as a batch, so `call`
# takes only the images:

# %%
with tf.device(plan.devices[0]):
    stack = [layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU()]
    stack += [layers.Conv2D(16, 3), layers.GlobalAveragePooling2D(), layers.Dense(10)]
    network = keras.Sequential([layers.Input([28, 28, 1]), *stack])


# %%
def same(training):
    def call(x):
        return network(x, training=training)

    few = images[: 16 * len(plan)]
    one = towers.make_parallel(call, plan.devices[:1])(few)
    of_all = towers.make_parallel(call, plan.devices)(few)
    return np.allclose(one, of_all, rtol=0, atol=1e-5)


print("same outputs in a prediction:", same(training=False))
print("same outputs in training:    ", same(training=True))

# %% [markdown]
# In training the function mixes rows, and no error says so. To train, take `fit.strategy`: it makes
# BatchNormalization take the statistics of the whole batch, which TensorFlow's strategies by
# themselves do not.
#
# ## Was it faster?
#
# Several devices gain only where a call computes for longer than it copies. This network has few
# weights and, for a core, much work with each image, so here its saliency is timed. Eager code on
# cores waits for one device before it calls the next; on GPUs it starts each operation from Python.
# In a graph, which `tf.function` makes, the devices work at the same time: hence `tf.function` in
# the line to paste. `.numpy()` waits for the result:

# %%
def timed(places):
    shared = towers.make_parallel(lambda x: saliency(x, network), places)
    call, batch = tf.function(shared), images[: 128 * len(plan)]
    return lambda: call(batch).numpy()


on_first, on_every = timed(plan.devices[:1]), timed(plan.devices)
timing.compare(on_first, on_every, names=("on one", "on all"), repeats=10)

# %% [markdown]
# A ratio is the time on one divided by that on all: over 1, all devices were faster. Ten pairs were
# timed, and the middle half of their ratios lies in the brackets. If this range contains 1 or lies
# below it, no gain is shown, as is usual where devices share a GPU, or the network is too small to
# keep a device busy.
#
# ## Break it
#
# **A function that returns one number, and a batch that does not divide.** A mean has no rows to
# join, and eleven examples do not divide by two. By hand, TensorFlow refuses the mean with "Can't
# concatenate scalars (use tf.stack instead)", but `tf.stack` would give one mean for each shard.
# What does the helper say?

# %%
for function, batch in ((tf.reduce_mean, tf.range(8.0 * len(plan))), (tf.square, tf.range(11.0))):
    try:
        print("worked:", towers.make_parallel(function, plan.devices)(batch).shape)
    except ValueError as error:
        print(error)

# %% [markdown]
# The helper says what to return, and which sizes divide. With `uneven=True` it takes any size.
#
# ## On GPUs
#
# Several GPUs pay where a call computes for longer than its weights and rows need to cross. With
# these small models they may not pay. A ResNet-50 has 102 MB of weights; 256 photos take 154 MB,
# and so does their saliency: at 10 GB/s all of this crosses in 41 ms. Computing the saliency takes
# about 4 TFLOP, which keep a GPU of 15 TFLOP/s busy for over a quarter of a second. Operations
# outside every `tf.device` block go to the first GPU, so name the host for what you cut and join.
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
# **2.** `mean_map` gives the mean saliency of all images. It sends the saliency of every image to
# the host, and takes their mean there. Write it so that each device sends the host one image of 784
# numbers, and the result stays the same. Use this lesson's `make_parallel`, because
# `towers.make_parallel` wants a row for each example.

# %% tags=["exercise"]
def mean_map(x):
    return tf.reduce_mean(make_parallel(saliency, plan.devices)(x), axis=0)


checks.mean_map(mean_map, saliency)

# %% tags=["solution"]
def mean_map(x):
    def mean_of_shard(x):
        return tf.reduce_mean(saliency(x), axis=0, keepdims=True)

    return tf.reduce_mean(make_parallel(mean_of_shard, plan.devices)(x), axis=0)


checks.mean_map(mean_map, saliency)

# %% [markdown]
# ## What we saw
#
# - One line ran a function around a model on all devices. Each device computed 3 matrix products
#   forward and 3 backward for its share of the batch, and the numbers were those of one device.
# - With one tape around all devices, the host computed the whole backward pass.
# - Each call of `make_parallel` sent 2,678,824 bytes of weights. With `strategy.run` each device
#   had its copy, and the devices sent each other nothing.
# - BatchNormalization in training gave other outputs on two devices, and no error said so.
#
# ## In practice
#
# Put `towers.make_parallel(function, plan.devices)` inside `tf.function`, with the tape in your
# function, and compare its results and its time once with those of one device. Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# `make_parallel` comes from *Effective TensorFlow* by Vahid Kazemi
# ([2017](../docs/sources.md#make_parallel)), where it is written for graphs and sessions ([[01]])
# and fits a parabola to points. There the model makes its own weights: `get_variable` makes a
# variable and remembers its name. A second call of the model asks for the same name, and TensorFlow
# refuses. With `reuse=tf1.AUTO_REUSE` the second call gets the first variable; with a scope for
# each call, it gets a new one. All points lie on 5x² + 3, so training should find 5, 0 and 3:

# %%
def parabola(w, x, y):
    powers = tf.stack([tf.square(x), x, tf.ones_like(x)], axis=1)
    return tf.square(tf.squeeze(tf.matmul(powers, w), axis=1) - y)


def plain(x, y):
    return parabola(tf1.get_variable("w", [3, 1], initializer=tf1.zeros_initializer()), x, y)


def reuse(x, y):
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return plain(x, y)


def scopes(x, y):
    with tf1.variable_scope(None, "tower"):
        return plain(x, y)


# %%
def build(function, places, colocate=True):
    with tf.Graph().as_default() as graph, tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None], name="x")
        y = tf1.placeholder(tf.float32, [None], name="y")
        loss = tf.reduce_mean(make_parallel(function, places)(x, y))
        adam = tf1.train.AdamOptimizer(0.3)
        pairs = adam.compute_gradients(loss, colocate_gradients_with_ops=colocate)
        tf.identity(pairs[0][0], name="gradient")  # pairs of gradient and variable
        adam.apply_gradients(pairs, name="train")
        start = tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run(start)
    return session


# %%
x = np.linspace(-10, 10, 48 * len(plan), dtype="float32")
points = {"x:0": x, "y:0": 5 * x**2 + 3}
for function, places in ((plain, plan.devices[:1]), (reuse, plan.devices), (scopes, plan.devices)):
    session = build(function, places)
    for _ in range(1500):
        session.run("train", points)
    for w in session.graph.get_collection("trainable_variables"):
        values = np.round(np.ravel(session.run(w)), 2) + 0  # + 0 makes -0 a 0
        print(f"{function.__name__:6}  devices: {len(places)}  {w.name:11} {values}")

# %% [markdown]
# With `reuse`, one `w` learned what it learns on one device. A scope for each device raises no
# error, but trains one model for each device, on that device's points only.
#
# `compute_gradients` is called in the host's block. Where is its backward pass, without the option
# `colocate_gradients_with_ops` and with it?

# %%
for colocate in (False, True):
    session = build(reuse, plan.devices, colocate)
    session.run("gradient:0", points)  # the first run prepares the graph
    print_products(f"colocate={colocate}", trace.session_step(session, "gradient:0", points)[1])

# %% [markdown]
# The option puts each gradient where its forward operation is, as a tape on each device does.
