# %% [markdown]
# # Run a function on every device
#
# A function that you wrote for one device runs on all of them, each on its share of the batch,
# with one set of weights.
#
# In [[previous]] you placed single operations; a model has hundreds of them.
#
# **You will learn** to
# - split a batch and run any function on every device,
# - train a model that way with two changes,
# - place the gradients where the forward operations are,
# - share variables between the devices, and notice when they are not shared,
# - say the same in today's code.
#
# **You need** lessons 00 and 01.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, placement, towers, trace
from mgpu_helpers.lessons.checks import lesson_06 as checks

# %% [markdown]
# ## Add two vectors
#
# One device adds two vectors. They have twelve numbers for each device, so with two devices 24:

# %%
a = tf.range(12.0 * len(plan))
b = 10 * a
with tf.device(plan.devices[0]):
    print((a + b).numpy())

# %% [markdown]
# To use all devices, split both vectors, add each pair of pieces on its device, and join the sums.
# Splitting and joining are the host's. Look at the pieces:

# %%
sums = []
with tf.device(plan.host):
    pieces_a, pieces_b = tf.split(a, len(plan)), tf.split(b, len(plan))
    for device, piece_a, piece_b in zip(plan.devices, pieces_a, pieces_b):
        with tf.device(device):
            sums.append(piece_a + piece_b)
            print(devices.short(sums[-1].device), sums[-1].numpy())
    print(tf.concat(sums, axis=0).numpy())

# %% [markdown]
# Each device made its piece of the sum, and the joined vector is the one from before. Nothing in
# these lines depends on the addition. So take it out:

# %%
def make_parallel(function, devices):
    def parallel(**batches):
        outputs = []
        with tf.device(plan.host):
            pieces = {name: tf.split(batch, len(devices)) for name, batch in batches.items()}
            for i, device in enumerate(devices):
                with tf.device(device):
                    outputs.append(function(**{name: piece[i] for name, piece in pieces.items()}))
            return tf.concat(outputs, axis=0)

    return parallel


# %% [markdown]
# It takes a function and returns one that does the same on all devices. The function may be
# anything whose inputs and output are **batches**: an entry of the output depends on the same
# entry of the inputs, and on no other.

# %%
def add(a, b):
    return a + b


print(make_parallel(add, plan.devices)(a=a, b=b).numpy())

# %% [markdown]
# The same again with 600,000 numbers for each device, traced. (`parallel` takes its batches by
# name, hence the `lambda`.) Look for the bytes: each device gets its share of both vectors and
# sends back one share.

# %%
rng = np.random.default_rng(seed=0)
long_a, long_b = rng.integers(0, 100, [2, 600_000 * len(plan)]).astype("float32")

result, step = trace.function_step(
    lambda a, b: make_parallel(add, plan.devices)(a=a, b=b), long_a, long_b
)
print("equal to NumPy's sum:", np.array_equal(result, long_a + long_b))
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")

# %% [markdown]
# Twelve bytes cross for one addition, which is a bad bargain on a GPU. The next function does more
# with each number.
#
# ## Fit a parabola
#
# The model is a parabola with three weights, and its loss is the squared error of each example. It
# is classic code: `get_variable` makes the weights when it is called first.

# %%
def model(x, y):
    w = tf1.get_variable("w", [3, 1], initializer=tf1.zeros_initializer())
    powers = tf.stack([tf.square(x), x, tf.ones_like(x)], axis=1)
    return tf.square(tf.squeeze(tf.matmul(powers, w), axis=1) - y)


# %% [markdown]
# First on one device. The loss of the batch is the mean over its examples, taken on the host, and
# Adam, a form of gradient descent, makes it small. (`colocate` comes later; in the graph, `train`
# is one step and `init` sets the weights to zero.)

# %%
def build(loss_of_each, colocate):
    graph = tf.Graph()
    with graph.as_default(), tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None], name="x")
        y = tf1.placeholder(tf.float32, [None], name="y")
        loss = tf.reduce_mean(loss_of_each(x=x, y=y), name="loss")
        optimizer = tf1.train.AdamOptimizer(0.1)
        # pairs of (gradient, variable)
        pairs = optimizer.compute_gradients(loss, colocate_gradients_with_ops=colocate)
        tf.identity(pairs[0][0], name="gradient")
        optimizer.apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    return graph


def on_first_device(x, y):
    with tf.device(plan.devices[0]):
        return model(x, y)


one = build(on_first_device, colocate=False)
print([variable.name for variable in one.get_collection("trainable_variables")])

# %% [markdown]
# The examples lie on the parabola 5x² + 3. So the weights should become 5, 0 and 3. (A session
# reads `w` by the name of an operation.)

# %%
def train(graph, steps=3000):
    rng = np.random.default_rng(seed=0)
    with placement.capture() as log:
        session = tf1.Session(graph=graph, config=plan.session_config(log_placement=True))
        session.run("init")
        for _ in range(steps):
            x = rng.uniform(-10, 10, 48 * len(plan)).astype("float32")
            session.run("train", {"x:0": x, "y:0": 5 * x**2 + 3})
    return session, log


session, log = train(one)
weights_of_one = session.run("w/Read/ReadVariableOp:0").ravel()
print(np.round(weights_of_one, 1) + 0)  # -0 becomes 0

# %% [markdown]
# Now on all devices. Replace `model` by `make_parallel(model, plan.devices)`. It does not work
# yet:

# %%
try:
    build(make_parallel(model, plan.devices), colocate=False)
    print("there is one device: nothing to share")
except ValueError as error:
    print(str(error).partition(". Did")[0])

# %% [markdown]
# The second device calls `get_variable("w")` again, and TensorFlow refuses to make a second `w`.
# What is wanted is the first one, once more. `variable_scope` with `reuse=True` says that:

# %%
def make_parallel(function, devices):
    def parallel(**batches):
        outputs = []
        with tf.device(plan.host):
            pieces = {name: tf.split(batch, len(devices)) for name, batch in batches.items()}
            for i, device in enumerate(devices):
                scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=i > 0)
                with tf.device(device), tf.name_scope(f"tower_{i}"), scope:
                    outputs.append(function(**{name: piece[i] for name, piece in pieces.items()}))
            return tf.concat(outputs, axis=0)

    return parallel


# %% [markdown]
# The first call, with `reuse=False`, makes the variables; every later one takes them. The variable
# scope stays the one that was there, so the variable keeps its name. The name scope only groups
# the operations of a device, for maps and for TensorBoard.

# %%
everywhere = build(make_parallel(model, plan.devices), colocate=False)
print([variable.name for variable in everywhere.get_collection("trainable_variables")])

session, log = train(everywhere)
print(np.round(session.run("w/Read/ReadVariableOp:0").ravel(), 1) + 0)

# %% [markdown]
# One `w`, and the same parabola.
#
# ## Where the gradients are
#
# Training is more than the forward pass. Count where the operations of the backward pass were
# placed; their names begin with `gradients`:

# %%
def gradients_by_device(log):
    kept = [row for row in log.rows if row.type != "Const"]
    rows = [row for row in kept if row.name.startswith(("gradients/", "gradient_tape/"))]
    return dict(Counter(row.device for row in rows))


print(gradients_by_device(log))

# %% [markdown]
# All of them are on the host. `tf.device` applies to what is created in its block, and the
# gradients are created later, by `compute_gradients`, which stands in the block of the host.
# `colocate_gradients_with_ops=True` puts each beside the forward operation that it belongs to:

# %%
colocated = build(make_parallel(model, plan.devices), colocate=True)
session, log = train(colocated)
print(gradients_by_device(log))

# %% [markdown]
# Now each device computes the gradients of its own shard. What is left on the host belongs to
# `tf.concat` and to the mean, which are there, too.
#
# `make_parallel` and `colocate_gradients_with_ops=True` are the two changes between one device and
# many. Here is the gradient of a batch in that graph, 48 examples for each device. Look for what
# comes back to the host, and how many bytes it is:

# %% tags=["cover"]
feed = {"x:0": np.ones(48 * len(plan)), "y:0": np.ones(48 * len(plan))}
session.run("gradient:0", feed)
_, step = trace.session_step(session, "gradient:0", feed)
print("bytes that cross:", sum(step.bytes_between().values()))
charts.placement_map(step)
plt.show()

# %% [markdown]
# The losses of all examples come to the host, which sends a gradient for each of them back, 4
# bytes each. Of the weights and their gradient, three numbers, 12 bytes cross at a time. A number
# in a box counts its operations, and `tower_1` on the first device reads the weights for the
# second.
#
# ## Proof: the same weights
#
# One device and all devices saw the same batches in the same order. The mean over a batch is the
# same sum, added in another order, so the weights may differ in the last digits, and by no more:

# %%
weights_of_all = session.run("w/Read/ReadVariableOp:0").ravel()
difference = np.abs(weights_of_all - weights_of_one).max()
print("largest difference below 1e-5:", difference < 1e-5)

# %% [markdown]
# ## The graph for TensorBoard
#
# The map above is of one step. TensorBoard shows the whole graph and lets you open and close its
# scopes. It reads a file that `FileWriter` writes, with or without TensorBoard on this machine.
# Read back, the file holds the graph:

# %%
folder = Path(tempfile.mkdtemp())
with colocated.as_default():
    tf1.summary.FileWriter(str(folder), graph=colocated).close()
(file,) = folder.iterdir()
events = tf1.train.summary_iterator(str(file))
stored = next(event.graph_def for event in events if event.graph_def)
nodes = tf1.GraphDef.FromString(stored).node
print("nodes:", len(nodes), "of", len(colocated.get_operations()))

# %% [markdown]
# `pip install tensorboard` and then `tensorboard --logdir FOLDER`, with the path in `folder`, show
# it at `http://localhost:6006`, tab *Graphs*. Choose *Color: Device* there.
#
# ## The same today
#
# In today's code a variable is an object. It is made once, outside, and the function uses it.
# There is no name to look up and no scope to reuse:

# %%
with tf.device(plan.devices[0]):
    w = tf.Variable(tf.zeros([3, 1]))


def squared_error(x, y):
    powers = tf.stack([tf.square(x), x, tf.ones_like(x)], axis=1)
    return tf.square(tf.squeeze(tf.matmul(powers, w), axis=1) - y)


# %% [markdown]
# A `tf.GradientTape` records the forward operations and gives the gradient. It knows nothing of
# colocation. Look where its operations are; their names begin with `gradient_tape`:

# %%
@tf.function
def gradient(x, y):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(make_parallel(squared_error, plan.devices)(x=x, y=y))
        return tape.gradient(loss, w)


x = rng.uniform(-10, 10, 48 * len(plan)).astype("float32")
with placement.capture() as log:
    gradient(x, 5 * x**2 + 3)
print(gradients_by_device(log))

# %% [markdown]
# All of them are on the host, in whose block the gradient was asked for. In today's code each
# device has to be asked for the gradient of its own shard, inside its own block:

# %%
@tf.function
def gradient(x, y):
    gradients = []
    with tf.device(plan.host):
        for device, *shard in zip(plan.devices, tf.split(x, len(plan)), tf.split(y, len(plan))):
            with tf.device(device):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(squared_error(*shard))
                gradients.append(tape.gradient(loss, w))
        return tf.add_n(gradients) / len(plan)


with placement.capture() as log:
    modern = gradient(x, 5 * x**2 + 3)
print(gradients_by_device(log))

# %% [markdown]
# The loss of one shard and its gradient, on one device: that is a **tower**, and the next lesson
# is about it. The result equals the gradient of the classic graph, whose weights are zero again
# after `init`:

# %%
session = tf1.Session(graph=colocated, config=plan.session_config())
session.run("init")
classic = session.run("gradient:0", {"x:0": x, "y:0": 5 * x**2 + 3})
print("largest difference below 0.1 %:", np.abs(classic / modern - 1).max() < 1e-3)

# %% [markdown]
# ## Break it
# **A scope for each device.** Above, TensorFlow refused a second `w`. Give each device a variable
# scope of its own, which looks tidy, and it no longer refuses. Count the variables, and look at
# the weights of each device after 200 steps:

# %%
def make_separate(function, devices):
    def parallel(**batches):
        outputs = []
        with tf.device(plan.host):
            pieces = {name: tf.split(batch, len(devices)) for name, batch in batches.items()}
            for i, device in enumerate(devices):
                with tf.device(device), tf1.variable_scope(f"tower_{i}"):
                    outputs.append(function(**{name: piece[i] for name, piece in pieces.items()}))
            return tf.concat(outputs, axis=0)

    return parallel


separate = build(make_separate(model, plan.devices), colocate=True)
session, log = train(separate, steps=200)
found = separate.get_collection("trainable_variables")
print("variables:", [variable.name for variable in found])
each = session.run([f"{variable.op.name}/Read/ReadVariableOp:0" for variable in found])
print(*[np.round(weights.ravel(), 1) + 0 for weights in each])
print("all devices have the same weights:", np.allclose(each, each[0], atol=1e-6))

# %% [markdown]
# With two devices these are two models, each trained on half of the examples. The check that tells
# is the number of variables, which must not depend on the number of devices.
#
# **A function that returns one number**, and **a batch that does not divide.** `make_parallel`
# joins along the batch, and a mean has no batch left. Eleven examples do not divide over two
# devices:

# %%
for function, batch in [(tf.reduce_mean, a), (tf.square, tf.range(11.0))]:
    try:
        print(make_parallel(lambda x, f=function: f(x), plan.devices)(x=batch).shape)
    except Exception as error:
        print(str(error).partition("}} ")[2])

# %% [markdown]
# These speak of concatenating and splitting, not of your function and your batch, and `tf.stack`
# would be wrong here. (With one device nothing is cut, and both work.) The function of this lesson
# is in the package as `towers.make_parallel`, with error messages that name the cause. It also
# takes batches without a name:

# %%
for function, batch in [(tf.reduce_mean, a), (tf.square, tf.range(11.0))]:
    try:
        print(towers.make_parallel(function, plan.devices)(batch).shape)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A function with two inputs: the distance of each row of `points` from the same row of
# `others`. `points` and `others` have the shape [n, 2]. Make `distances` run on all devices. It is
# called as `distances(points=..., others=...)`.

# %% tags=["exercise"]
def distance(points, others):
    return tf.sqrt(tf.reduce_sum(tf.square(points - others), axis=1))


distances = distance

checks.distances(distances)

# %% tags=["solution"]
distances = make_parallel(distance, plan.devices)

checks.distances(distances)

# %% [markdown]
# **2.** Write `make_parallel_uneven(function, devices)`, which also takes a batch that does not
# divide: 11 examples over 2 devices are 6 and 5; the sizes differ by one at most. `tf.split`
# accepts a list of sizes.

# %% tags=["exercise"]
def make_parallel_uneven(function, devices):
    return make_parallel(function, devices)


checks.uneven(make_parallel_uneven)

# %% tags=["solution"]
def make_parallel_uneven(function, devices):
    def parallel(**batches):
        size, outputs = len(next(iter(batches.values()))), []
        sizes = [len(part) for part in np.array_split(np.arange(size), len(devices))]
        with tf.device(plan.host):
            pieces = {name: tf.split(batch, sizes) for name, batch in batches.items()}
            for i, device in enumerate(devices):
                with tf.device(device):  # without the scopes, to be short
                    outputs.append(function(**{name: piece[i] for name, piece in pieces.items()}))
            return tf.concat(outputs, axis=0)

    return parallel


checks.uneven(make_parallel_uneven)

# %% [markdown]
# **3.** `mean_error` sends the squared error of every example to the host, 4 bytes each, and takes
# the mean there. Write it with the `make_parallel` of this lesson so that each device sends a
# single number, and the result stays the same. The check reads the bytes from a trace. It puts what
# you leave unplaced on the first device, as TensorFlow does on a GPU machine.

# %% tags=["exercise"]
def mean_error(x, y):
    return tf.reduce_mean(make_parallel(squared_error, plan.devices)(x=x, y=y))


checks.mean_error(mean_error, squared_error)

# %% tags=["solution"]
def mean_error(x, y):
    def mean_of_shard(x, y):
        return tf.reduce_mean(squared_error(x, y), keepdims=True)

    return tf.reduce_mean(make_parallel(mean_of_shard, plan.devices)(x=x, y=y))


checks.mean_error(mean_error, squared_error)

# %% [markdown]
# ## What we saw
#
# - A dozen numbers for each device, then 600,000, were added in shards, one a device, and the sum
#   was the same.
# - A model ran on all devices after two changes, and learned the same weights.
# - Without colocation all gradients were in one place; with it each device had its own.
# - With a scope for each device there were as many models as devices, and no error said so.
# - Today's code shared its variable without a scope; its tape put the gradients on the host, in
#   whose block they were asked for, until each device was asked for its own.
#
# ## In practice
#
# - `w` lives on the first device, because that is where it was made. Where variables should live
#   is a question of its own, and lesson 07 measures the answers.
# - `reuse=tf1.AUTO_REUSE` makes a variable at the first call and takes it at the others, without a
#   condition. It also hides a misspelled name: that makes a new variable.
# - A mean of the shards' means is the mean of the batch only if the shards are of the same size.
# - A batch that does not divide is better avoided: `drop_remainder=True` in `tf.data`, or else the
#   helper's `uneven=True`, with each shard weighted by its size.
#
# Next: [[next]].
