# %% [markdown]
# # Run a function on every device
#
# You have a model, a large batch and two GPUs. You call the model, or its loss, and the first GPU
# does everything. The second one waits, because the function was written for one device.
#
# **In this lesson** a function that was written for one device runs on all of them, each with its
# share of the batch, and one set of weights serves them all.
#
# **You will learn** to
# - cut a batch into shards, run any function on every device, and join the results,
# - share the prediction and the training step of a Keras model in this way,
# - compute the gradient of each shard on the shard's own device,
# - time one device against all of them,
# - read and write the same in a graph, where variables have to be shared by name.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import tempfile
from pathlib import Path

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
# ## The trouble
#
# Here is a model of three layers that reads handwritten digits. Its weights live on the first
# device, where TensorFlow puts them by itself on a machine with GPUs. The batch has 1024 images for
# each device and waits on the host.
#
# One call of the model needs three matrix products, one for each layer. `print_products` counts, in
# a trace, the products that each device computed. A name with `gradient` in it belongs to the
# backward pass, which comes later. Look at which devices computed:

# %%
keras.utils.set_random_seed(0)
with tf.device(plan.devices[0]):
    hidden = [layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
    model = keras.Sequential([layers.Input([784]), *hidden, layers.Dense(10)])
images, labels = digits.load(1024 * len(plan))
with tf.device(plan.host):
    images, labels = tf.constant(images.reshape(-1, 784)), tf.constant(labels)


def print_products(step):
    for device in [plan.host, *plan.devices]:
        products = [op for op in step.ops if "MatMul" in op.type and op.device == device]
        backward = [op for op in products if "gradient" in op.name]
        print(f"{device}  forward {len(products) - len(backward)}  backward {len(backward)}")


def on_one(x):
    with tf.device(plan.devices[0]):
        return model(x)


_, step = trace.function_step(on_one, images)
print_products(step)

# %% [markdown]
# The first device computed all three products, for the whole batch. No other device did anything.
#
# ## A batch in shards
#
# The function is the same for every image. So the host can cut the batch into **shards**, each
# device can run the function on one of them, and the host can join the results:
#
# ![The batch on the host in two shards; the function runs on shard 0 on device 0 and on shard 1 on
# device 1; the two results are joined on the host.](pictures/08_shards.svg)
#
# Here it is done by hand, on two devices, with a function that you can check in your head. It adds
# two vectors of six numbers:

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
# These are the six sums. Nothing here depends on the addition, on two vectors or on two devices.
# `on_each` is the middle part in general: it calls a function on each device with that device's
# shards. `make_parallel` puts the cutting and the joining around it. It takes a function and gives
# one that does the same on all devices. (Its argument `run` has one use, in "The same in a graph",
# where another loop is needed.)
#
# Here it adds 600,000 numbers for each device. Look at what each device gets and what it sends
# back:

# %%
def on_each(function, devices, *shards):
    outputs = []
    for device, *shard in zip(devices, *shards):
        with tf.device(device):
            outputs.append(function(*shard))
    return outputs


def make_parallel(function, devices, run=on_each):
    def parallel(*batches):
        with tf.device(plan.host):
            shards = [tf.split(batch, len(devices)) for batch in batches]
            return tf.concat(run(function, devices, *shards), axis=0)

    return parallel


# %%
many = np.random.default_rng(seed=0).integers(0, 100, [2, 600_000 * len(plan)]).astype("float32")
result, step = trace.function_step(make_parallel(add, plan.devices), *many)
print(np.count_nonzero(result != many.sum(axis=0)), "sums differ from NumPy's")
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>9,} bytes")

# %% [markdown]
# Each device gets its shard of both vectors and sends back one shard. That is twelve bytes for one
# addition. On a GPU this is a bad bargain, because the numbers travel far longer than the
# addition takes. A model does more with each number.
#
# The function may be anything whose inputs and output are **batches**: each row of the output
# depends on the same row of the inputs, and on no other row.
#
# ## Share a prediction
#
# A Keras model is a function of a batch, so `make_parallel` takes it as it is. Its answers have to
# be those of one device. The last digits may differ, because a smaller product may be added up in
# another order:

# %%
on_all = make_parallel(model, plan.devices)
answers, step = trace.function_step(on_all, images)
print_products(step)
close = np.isclose(answers, on_one(images), rtol=0, atol=1e-5)
print(f"{np.count_nonzero(close):,} of {close.size:,} numbers agree to 0.00001")

# %% [markdown]
# Each device computed the three products of its own shard, and all the answers agree with those of
# one device.
#
# The package has `towers.make_parallel` for this. It also takes batches by name, functions that
# return several batches, and, with `uneven=True`, batches that do not divide by the number of
# devices. `towers.run` is the loop `on_each`. "Break it" shows what their error messages are worth.
#
# ## Share a training step
#
# The losses of the images are a batch, too. A training takes their mean, and the gradient of that
# mean. The forward pass can be shared as before. Look where the backward pass ends up when the mean
# and the gradient are left to the host:

# %%
weights = model.trainable_variables


def losses(x, y):
    return keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)


# %%
def gradient_on_host(x, y):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(make_parallel(losses, plan.devices)(x, y))
        return tape.gradient(loss, weights)


# %%
_, step = trace.function_step(gradient_on_host, images, labels)
print_products(step)

# %% [markdown]
# The host computed the whole backward pass, five products for each shard, and the devices computed
# none of it. A `tf.GradientTape` remembers operations but not their devices. The backward pass goes
# where its gradient is asked for, and that was in the host's block.
#
# So each device has to be asked for the gradient of its own shard, in its own block:
#
# ![The host asks for one gradient: each device goes forward, and the host goes backward for both.
# Each device asks for its own: each goes forward and backward, and the host takes the
# mean.](pictures/08_backward.svg)
#
# `gradient_of` is what one device does: the loss of a shard and its gradient. A gradient is not a
# batch, so there is nothing to join. The host takes the mean of the shards' gradients instead:

# %%
def gradient_of(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(losses(x, y))
    return tape.gradient(loss, weights)


def gradient_on_all(x, y):
    with tf.device(plan.host):
        shards = tf.split(x, len(plan)), tf.split(y, len(plan))
        found = on_each(gradient_of, plan.devices, *shards)
        return [tf.add_n(each) / len(plan) for each in zip(*found)]


gradient, step = trace.function_step(gradient_on_all, images, labels)
print_products(step)

# %% [markdown]
# Every device computed the forward and the backward pass of its shard. The next cell draws what
# crosses for that, and the one after it is the **proof**. The mean of the shards' gradients has to
# be the gradient of the whole batch, because the shards have the same size:

# %% tags=["varies", "cover"]
print("weights:", f"{4 * model.count_params():,} bytes")
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>9,} bytes")
charts.placement_map(step)
plt.show()

# %%
with tf.device(plan.devices[0]):
    wanted = np.concatenate([np.ravel(each) for each in gradient_of(images, labels)])
error = np.abs(np.concatenate([np.ravel(each) for each in gradient]) - wanted)
close = np.count_nonzero(error <= 1e-5 * np.abs(wanted).max())
print(f"{close:,} of {wanted.size:,} entries agree to a hundred-thousandth of the largest")

# %% [markdown]
# On the map, the host sends every device its images and labels. The first device sends all the
# weights to each of the others, at every step. Each device sends back a gradient, as large as the
# weights. A model on one device, with the loss and the gradient of one shard, is a **tower**.
# [[09]] trains with towers, and says where the weights and the mean should be.
#
# ## Was it faster?
#
# Now one device is timed against all of them. First comes the prediction, then a whole training
# step. Its update is on the first device, where the weights are. `tf.function` turns each into a
# graph. Without it, TensorFlow would start one device after the other. `.numpy()` waits for the
# result:

# %%
def training_step(gradient):
    def step(x, y):
        with tf.device(plan.devices[0]):
            for weight, change in zip(weights, gradient(x, y)):
                weight.assign_sub(0.01 * change)
            return tf.identity(weights[-1])

    return tf.function(step)


def gradient_on_one(x, y):
    with tf.device(plan.devices[0]):
        return gradient_of(x, y)


predict_on_one, predict_on_all = tf.function(on_one), tf.function(on_all)
train_on_one, train_on_all = training_step(gradient_on_one), training_step(gradient_on_all)

# %%
timing.compare(
    lambda: predict_on_one(images).numpy(),
    lambda: predict_on_all(images).numpy(),
    repeats=10, names=("prediction on one", "prediction on all"),
)

# %%
timing.compare(
    lambda: train_on_one(images, labels).numpy(),
    lambda: train_on_all(images, labels).numpy(),
    repeats=10, names=("step on one", "step on all"),
)

# %% [markdown]
# In `cores` mode this compares one core with as many cores as there are devices. With that many
# free cores the speed-up of the prediction comes near the number of devices, and that of the step
# stays further below it. TensorFlow without `devices.setup` would have used all cores from the
# start, so on a laptop nothing is gained. On a machine that is busy with something else, or where
# the plan's `timing` line says so, the numbers mean nothing.
#
# On GPUs do not expect "all" to win with a model this small. A GPU computes it in about the time
# that the images, the weights and the gradients need to cross. A large model does more with each
# byte. [[15]] measures how far that goes.
#
# ## The same in a graph
#
# Much code is written for graphs and sessions ([[01]]), and so is the `make_parallel` that this
# lesson comes from, in *Effective TensorFlow* by Vahid Kazemi
# ([2017](../docs/sources.md#make_parallel)). Its example fits a parabola, which has three weights,
# to points. `error_of` gives the squared error of each point.
#
# In a graph the model makes its weights itself: `get_variable` makes a variable and remembers it by
# its name. `build` makes the graph of a training. In it, the operation `init` sets the weights to
# zero, and the operation `train` is one step of Adam, a form of gradient descent. What `colocate`
# does comes later. All points lie on 5x² + 3, so training should find the weights 5, 0 and 3.
# One device trains it first:

# %%
def error_of(w, x, y):
    powers = tf.stack([tf.square(x), x, tf.ones_like(x)], axis=1)
    return tf.square(tf.squeeze(tf.matmul(powers, w), axis=1) - y)


def model_of_graph(x, y):
    w = tf1.get_variable("w", [3, 1], initializer=tf1.zeros_initializer())
    return error_of(w, x, y)


def build(losses, colocate=False):
    graph = tf.Graph()
    with graph.as_default(), tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None], name="x")
        y = tf1.placeholder(tf.float32, [None], name="y")
        loss = tf.reduce_mean(losses(x, y), name="loss")
        adam = tf1.train.AdamOptimizer(0.3)
        pairs = adam.compute_gradients(loss, colocate_gradients_with_ops=colocate)
        tf.identity(pairs[0][0], name="gradient")  # pairs of gradient and variable
        adam.apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    return graph


# %%
def train(graph, steps=1500):
    rng = np.random.default_rng(seed=0)
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run("init")
    for _ in range(steps):
        x = rng.uniform(-10, 10, 48 * len(plan)).astype("float32")
        session.run("train", {"x:0": x, "y:0": 5 * x**2 + 3})
    return session, session.run(graph.get_collection("trainable_variables"))


_, weights_of_one = train(build(make_parallel(model_of_graph, plan.devices[:1])))
print(np.round(np.ravel(weights_of_one), 3) + 0)  # + 0 makes -0 a 0

# %% [markdown]
# ### One variable for all devices
#
# The same with all devices does not work yet:

# %%
try:
    build(make_parallel(model_of_graph, plan.devices))
    print("there is one device: nothing to share")
except ValueError as error:
    print(str(error).partition(". Did")[0])

# %% [markdown]
# The second device calls `get_variable("w")` again, and TensorFlow refuses to make a second `w`.
# What we want is the first one, once more. `variable_scope` with `reuse=True` says that. Here is
# the loop `on_each` with it. (The name scope only groups the operations of a tower, for maps and
# for TensorBoard.)

# %%
def on_each_reusing(function, devices, *shards):
    outputs = []
    for device, *shard in zip(devices, *shards):
        tower = len(outputs)
        scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=tower > 0)
        with tf.device(device), tf.name_scope(f"tower_{tower}"), scope:
            outputs.append(function(*shard))
    return outputs


everywhere = make_parallel(model_of_graph, plan.devices, run=on_each_reusing)
on_host = build(everywhere)
print([variable.name for variable in on_host.get_collection("trainable_variables")])

# %% [markdown]
# There is one `w`. The first call makes the variables, and every later one takes them.
#
# ### Colocate the gradients
#
# Where is the backward pass in this graph? With one tape it was on the host, and here too:
# `compute_gradients` is called in the host's block. A graph has an option for this.
# `colocate_gradients_with_ops=True` puts each gradient where its forward operation is. Look at the
# products without the option and with it, and at the weights after 1500 steps on the same points as
# above. (The first run of a session prepares the graph, so the second one is traced.)

# %%
def trace_gradient(session):
    feed = {"x:0": np.ones(48 * len(plan)), "y:0": np.ones(48 * len(plan))}
    session.run("gradient:0", feed)
    return trace.session_step(session, "gradient:0", feed)[1]


print_products(trace_gradient(train(on_host, steps=1)[0]))

# %%
session, weights_of_all = train(build(everywhere, colocate=True))
print_products(trace_gradient(session))
print(np.round(np.ravel(weights_of_all), 3) + 0)
difference = np.abs(np.subtract(weights_of_all, weights_of_one)).max()
print("largest difference from one device below 0.00001:", difference < 1e-5)

# %% [markdown]
# With the option each device has its own backward pass. **Proof:** after 1500 steps the weights are
# those of one device. `make_parallel` with the loop that reuses, and this option, take a graph from
# one device to many.
#
# **Today's code gives the same gradient.** Its variable is an object that the function uses, so
# there is no name to look up and nothing to reuse. This time the helpers cut and run. The graph's
# weights are zero again after `init`:

# %%
with tf.device(plan.devices[0]):
    w = tf.Variable(tf.zeros([3, 1]))


def squared_error(x, y):
    return error_of(w, x, y)


# %%
def gradient_of_w(shard):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(squared_error(*shard))
    return tape.gradient(loss, w)


x = np.random.default_rng(seed=1).uniform(-10, 10, 48 * len(plan)).astype("float32")
y = 5 * x**2 + 3
found = towers.run(gradient_of_w, plan.devices, towers.split((x, y), len(plan)))
session.run("init")
classic = session.run("gradient:0", {"x:0": x, "y:0": y})
with tf.device(plan.host):
    today = tf.add_n(found) / len(plan)
print("today  ", [f"{entry:.3g}" for entry in np.ravel(today)])
print("classic", [f"{entry:.3g}" for entry in np.ravel(classic)])

# %% [markdown]
# ## The graph in TensorBoard
#
# TensorBoard shows a whole graph, and you can open and close its scopes. It reads a file that
# `FileWriter` writes, whether or not TensorBoard is installed. Here the graph of the parabola is
# written and read back. (The graph of a `tf.function` is
# `train_on_all.get_concrete_function(images, labels).graph`, and is written in the same way.)

# %%
folder = Path(tempfile.mkdtemp())
with session.graph.as_default():
    tf1.summary.FileWriter(str(folder), graph=session.graph).close()
(file,) = folder.iterdir()
events = tf1.train.summary_iterator(str(file))
stored = next(event.graph_def for event in events if event.graph_def)
nodes = tf1.GraphDef.FromString(stored).node
print(f"{len(nodes)} of {len(session.graph.get_operations())} operations are in the file")

# %% [markdown]
# After `pip install tensorboard`, this line in a new cell starts it. It runs until you interrupt
# the cell:
#
# ```
# !tensorboard --logdir {folder}
# ```
#
# It serves a page at `http://localhost:6006`. There, *Graphs* with *Color by: Device* gives each
# device a colour. In the legend 0 is the host. The box of the gradients has the colours of all.
#
# ## With your own model
#
# Here is a small residual network with BatchNormalization. `towers.make_parallel` shares its
# prediction, and has to agree with Keras's own `predict`:

# %%
with tf.device(plan.devices[0]):
    start = keras.Input([28, 28, 1])
    x = layers.Conv2D(16, 3, strides=2, activation="relu")(start)
    y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(x))
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(layers.add([x, y])))
    network = keras.Model(start, layers.Dense(10)(x))

pictures = digits.load(16 * len(plan))[0]
answers = tf.function(towers.make_parallel(network, plan.devices))(pictures)
wanted = network.predict(pictures, verbose=0)
close = np.isclose(answers, wanted, rtol=0, atol=1e-5)
print(f"{np.count_nonzero(close):,} of {close.size:,} numbers agree to 0.00001")

# %% [markdown]
# In a prediction every row depends on its own image only. In training BatchNormalization breaks
# this rule: it takes the mean and the variance of the batch, and a device has only its shard. Look
# at the difference, and at how far the layer's moving average of the mean goes in one call:

# %%
def in_training(pictures):
    return network(pictures, training=True)


average = next(v for v in network.non_trainable_variables if v.name == "moving_mean")
results, moved = [], []
for used in [plan.devices[:1], plan.devices]:
    average.assign(tf.zeros(average.shape))
    results.append(towers.make_parallel(in_training, used)(pictures))
    moved.append(np.abs(average.numpy()).sum())

change = np.abs(results[1] - results[0]).max() / np.abs(results[0]).max()
print(f"the outputs differ by up to {100 * change:.0f} % of the largest")
print(f"the moving average went {moved[1] / moved[0]:.2f} times as far")

# %% [markdown]
# No error is raised. Two things to watch for:
#
# - **The statistics are those of the shard.** Compare trainings by their per-device batch, and keep
#   it large. Under `tf.distribute`, `BatchNormalization(synchronized=True)` takes the
#   statistics of the global batch.
# - **The moving averages are updated once for each device**, so they follow faster. A `momentum` of
#   0.99 with two devices acts like about 0.98 with one.
#
# ## Break it
#
# **A scope for each device.** Above, TensorFlow refused a second `w`. Give each tower a variable
# scope of its own, which looks tidy, and it no longer refuses. Count the variables, and compare the
# weights after 200 steps:

# %%
def on_each_apart(function, devices, *shards):
    outputs = []
    for device, *shard in zip(devices, *shards):
        with tf.device(device), tf1.variable_scope(f"tower_{len(outputs)}"):
            outputs.append(function(*shard))
    return outputs


apart = build(make_parallel(model_of_graph, plan.devices, run=on_each_apart), colocate=True)
_, found = train(apart, steps=200)
for variable, value in zip(apart.get_collection("trainable_variables"), found):
    print(variable.name, np.round(np.ravel(value), 1) + 0)

# %% [markdown]
# With two devices these are two models with weights of their own, each trained on half of the
# points. No error says so. The check that catches it is the number of variables, which must not
# depend on the number of devices.
#
# **A function that returns one number, and a batch that does not divide.** A mean has no rows to
# join, and eleven examples do not divide by two. Compare TensorFlow's messages with those of the
# helper. (With one device nothing is cut, and both work.)

# %%
mistakes = [(tf.reduce_mean, tf.range(8.0 * len(plan))), (tf.square, tf.range(11.0))]
for make in (make_parallel, towers.make_parallel):
    for function, batch in mistakes:
        try:
            print("- worked:", make(function, plan.devices)(batch).shape)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            print("-", str(error).rpartition("}} ")[2])

# %% [markdown]
# TensorFlow speaks of concatenating and splitting. The helper names the function and the batch.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A function with two inputs: the distance of each row of `points` from the same row of
# `others`. Both have the shape [n, 2]. Make `distances` run on all devices, each with its share of
# the rows. The check calls `distances(points, others)`, with any n that divides by the number of
# devices.

# %% tags=["exercise"]
def distance(points, others):
    return tf.sqrt(tf.reduce_sum(tf.square(points - others), axis=1))


distances = distance

checks.distances(distances)

# %% tags=["solution"]
def distance(points, others):
    return tf.sqrt(tf.reduce_sum(tf.square(points - others), axis=1))


distances = make_parallel(distance, plan.devices)

checks.distances(distances)

# %% [markdown]
# **2.** Write `make_parallel_uneven(function, devices)`. It is like `make_parallel`, for any number
# of batches, and also takes batches that do not divide: 11 examples over 2 devices are 6 and 5. The
# sizes of the shards may differ by one at most. `tf.split` accepts a list of sizes. Cut and join on
# the host: the check puts what you leave unplaced on the first device, as TensorFlow does on a GPU
# machine.

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
# **3.** `mean_error` sends the squared error of every point to the host, 4 bytes each, and takes
# the mean there. Write it so that each device sends a single number, and the result stays the same.
# (`towers.make_parallel` wants a row for each example. The `make_parallel` of this lesson does
# not.) The check reads the bytes from a trace, and places what you leave unplaced as before.

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
# - Called as it is, a model of three products ran on one device. `make_parallel` gave every device
#   three products and a share of the batch, and the results agreed to 0.00001.
# - With one tape around it all, the host computed the whole backward pass. Asked for the gradient
#   of its own shard, every device computed its own five products.
# - On cores that were nearly free, all devices together were faster than one, and gained more in a
#   prediction than in a training step.
# - In a graph, `reuse` kept one set of weights, and `colocate_gradients_with_ops=True` put each
#   shard's backward pass on its device. The graph learned the weights of one device, 5, 0 and 3.
# - With a scope for each device there were as many models as devices, and no error said so.
# - BatchNormalization took its statistics from the shard, and moved its averages once for each
#   device.
#
# ## In practice
#
# Use this when a function handles every row of a batch by itself, and a device computes for longer
# than its rows and the weights travel. It costs a copy of the weights to every other device at each
# call, and in training a copy of their gradients back.
#
# - `towers.make_parallel(model, plan.devices)` inside `tf.function` is all that a prediction needs.
#   Outside `tf.function`, TensorFlow starts one device after the other.
# - Ask for gradients in the block of the device that should compute them.
# - A mean of the shards' means is the mean of the batch only if the shards have the same size. Use
#   `drop_remainder=True` in `tf.data`, or weight each shard by its size.
# - In old graphs, `reuse=tf1.AUTO_REUSE` makes a variable at the first call and takes it at the
#   others, without a condition. It also hides a misspelt name, which then makes a new variable.
#
# Next: [[next]].
