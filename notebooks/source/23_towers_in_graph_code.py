# %% [markdown]
# # Towers in graph code
#
# You inherit a program of 2016 or 2017 that trains on several GPUs. It stops in its first lines,
# because `tf.placeholder` and `tf.Session` have moved and `tf.contrib` is gone. Some of its other
# lines still run, and mean something else.
#
# **In this lesson** you learn what replaces each call of such a program, run the two kinds of them
# on two devices, and prove that both train what two lines of today train.
#
# ![Joined losses, colocated: two devices go forward, the host takes one mean of the losses, both
# devices go backward, and the first device updates the weights. Towers: each device goes forward
# and backward, and the host takes the mean of the gradients and updates the
# weights.](pictures/23_two_kinds.svg)
#
# ```python
# fit.use(model, plan)
# model.fit(x, y)
# ```
#
# With two devices, both programs move every weight as these lines do, to a part in 10,000.
#
# **You need** [[00]], for its traces, and [[07]].

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

from mgpu_helpers import fit, trace
from mgpu_helpers.lessons import digits, drawings, lesson_23
from mgpu_helpers.lessons.checks import lesson_23 as checks

layers = keras.layers

# %% [markdown]
# ## What replaces each call
#
# First try two lines in place of the program's import:
#
# ```python
# import tensorflow.compat.v1 as tf
# tf.disable_v2_behavior()
# ```
#
# With them it runs up to the first call that is gone. Here are some calls of our sources. `tf`
# means that today's TensorFlow still has the call, `tf1` that only `tf.compat.v1` has it, and `own`
# that it is from a library of the author. The last column says what replaces it. The [complete
# list](../docs/sources.md#calls) has the calls of each source.

# %%
print(lesson_23.today())

# %% [markdown]
# Some replacements differ a little: in graph code the averages begin with the weights before the
# first step, and with `use_ema` with those after it. Worse are calls that still run and mean
# something else. The second argument of `tf.nn.dropout` was the share to keep, and is now the share
# to drop:

# %%
ones = tf.ones([100_000])
for module in (tf1, tf):
    kept = tf.reduce_mean(tf.cast(module.nn.dropout(ones, 0.8) > 0, tf.float32))
    print(f"{module.__name__:20} keeps {kept:.1f} of the units")

# %% [markdown]
# ## How graph code works
#
# Graph code has two phases. First Python builds a **graph**, and nothing is computed. Then a
# **session** runs parts of the graph, as often as you like. The **fetches** say which parts. A
# **placeholder** is an input that each run has to feed. `get_variable` makes a variable, and the
# name of its **variable scope** comes before its own:

# %%
with tf.Graph().as_default(), tf1.Session() as session:
    number = tf1.placeholder(tf.float32, [])
    with tf1.variable_scope("shared"):
        factor = tf1.get_variable("factor", initializer=2.0)
    product = factor * number
    session.run(factor.initializer)
    print(factor.name, session.run(product, {number: 3.0}))

# %% [markdown]
# The line with `*` only describes an operation. Its fetch in `run` computes the number.
#
# ## What today's lines train
#
# The network of [[07]] takes two steps with today's lines. `start` holds its weights before them,
# and `today` those after them. One of the old programs also follows each weight with a **moving
# average**, which NumPy computes here:

# %%
x, y = digits.load(840)
with tf.device(plan.devices[0]):
    model = lesson_23.model()
start = follow = model.get_weights()
fit.use(model, plan)
for _ in range(2):
    model.train_on_batch(x, y)
    today = model.get_weights()
    follow = [0.9 * average + 0.1 * weight for average, weight in zip(follow, today)]

# %% [markdown]
# Here is the same network in graph code, with the weights of `start`. Below it, `begin` builds the
# graph of a program and starts its session, and `two_steps` compares what the program trains with
# `today`:

# %%
def variables():
    return [tf1.get_variable(f"weight_{i}", initializer=each) for i, each in enumerate(start)]


# %%
def row_losses(x, y):
    k1, b1, k2, b2, k3, b3 = variables()
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, k1, 1, "SAME"), b1))
    x = tf.nn.max_pool2d(x, 4, 4, "VALID")
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, k2, 1, "SAME"), b2))
    scores = tf.matmul(tf.reshape(x, [-1, 784]), k3) + b3
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)


# %%
def begin(program, **options):
    with tf.Graph().as_default() as graph, tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        fetches = program(x, y, **options)
        initialize = tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run(initialize)
    return session, fetches


# %%
feed = {"x:0": x, "y:0": y}


def weights_of(session):
    return session.run(session.graph.get_collection("trainable_variables"))


# %%
def apart(ours, theirs):
    columns = zip(start, ours, theirs)
    return max(np.abs(a - b).max() / np.abs(b - first).max() for first, a, b in columns)


def two_steps(program):
    session, fetches = begin(program)
    losses = [session.run(fetches, feed)[0] for _ in range(2)]
    print("the loss falls:", losses[1] < losses[0])
    print("weights of fit.use to 1e-4:", apart(weights_of(session), today) < 1e-4)
    return session, fetches


# %% [markdown]
# ## The first kind: join the losses
#
# *Effective TensorFlow* ([2017](../docs/sources.md#make_parallel)) calls it `make_parallel`, and a
# note on P40 GPUs ([2017](../docs/sources.md#p40)) has a program that does the same. Each device
# computes the losses of its shard, and the losses are joined. Then there is one mean and one
# backward pass:

# %%
scopes = ["shared"] * len(plan)


def on_each(function, *batches):
    shards = zip(*[tf.split(batch, len(plan)) for batch in batches])
    outputs = []
    for device, scope, shard in zip(plan.devices, scopes, shards):
        with tf.device(device), tf1.variable_scope(scope, reuse=tf1.AUTO_REUSE):
            outputs.append(function(*shard))
    return outputs


# %%
def joined(x, y, colocate=True):
    loss = tf.reduce_mean(tf.concat(on_each(row_losses, x, y), axis=0))
    sgd = tf1.train.GradientDescentOptimizer(0.3)
    return loss, sgd.minimize(loss, colocate_gradients_with_ops=colocate)


session, fetches = two_steps(joined)

# %% [markdown]
# It trains what today's lines train. Two options matter. With `reuse` the second device gets the
# variables of the same names that the first has made, and they stay on the first. With
# `colocate_gradients_with_ops` each gradient is computed on the device of its operation. We trace a
# step without the second option and with it. For each place we count the convolutions of the
# backward pass, three for each shard, and what it sends:

# %%
for colocate in (False, True):
    session, fetches = begin(joined, colocate=colocate)
    session.run(fetches, feed)  # the first run prepares the graph
    step = trace.session_step(session, fetches, feed)[1]
    print(f"colocate={colocate}", *lesson_23.backward(step), sep="\n  ")

# %% [markdown]
# Without the option the host computes the whole backward pass, because the optimizer was called in
# the host's block. In an old program that place is usually the first GPU. Then the devices share
# only the forward pass, and all that they keep for the backward pass has to cross. With the option
# each device goes backward through its own shard, and sends only weights, losses or gradients.
#
# ## The second kind: towers
#
# The [tensorlight notebook](../docs/sources.md#tensorlight) (2016) keeps all weights on the host.
# Each tower has a backward pass of its own. The host averages the gradients, updates the weights,
# and then their moving averages:

# %%
def tower(x, y):
    loss = tf.reduce_mean(row_losses(x, y))
    return [loss, *tf1.gradients(loss, tf1.trainable_variables())]


def averaged(x, y):
    with tf1.variable_scope(scopes[0]):
        weights = variables()  # on the host, before a tower asks for them
    columns = zip(*on_each(tower, x, y))
    loss, *gradients = [tf.add_n(column) / len(column) for column in columns]
    sgd = tf1.train.GradientDescentOptimizer(0.3)
    update = sgd.apply_gradients(zip(gradients, weights))
    follow = tf1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([update]):
        train = follow.apply(weights)
    tf1.add_to_collection("followed", [follow.average(weight) for weight in weights])
    return loss, train


# %%
session, fetches = two_steps(averaged)
(averages,) = session.graph.get_collection("followed")
print("moving averages to 1e-4:", apart(session.run(averages), follow) < 1e-4)

# %% [markdown]
# A graph has no order of lines: TensorFlow runs an operation when its inputs are ready. So
# `control_dependencies` says that the averages come after the update. Without it they may miss the
# last update.
#
# Here is a step of the towers in a session, and then one of `fit`:

# %% tags=["varies", "cover"]
towers = trace.session_step(session, fetches, feed)[1]
traces = {"Towers in a session": towers, "fit, after fit.use": trace.fit_step(model, (x, y))}
drawings.steps(traces, line="all gradients are averaged", last=True)
plt.show()

# %% [markdown]
# In both steps the two devices go forward and backward through their shards at the same time.
#
# ## Break it
#
# We give each device a scope of its own, so that no name is asked for twice. Write down what will
# tell you: an error, the loss or the weights?

# %%
scopes = [f"tower_{i}" for i in range(len(plan))]
session, fetches = two_steps(joined)
print("variables:", len(weights_of(session)))

# %% [markdown]
# There is no error, and the loss falls. But there are 12 variables instead of 6: each device trains
# a model of its own, on its own shard only. So count the variables of a program that you inherit.
#
# | | graph code in `tf1` |
# |---|---|
# | **Use it when** | you need the old program's numbers, to compare a new one with them |
# | **It costs** | no Keras 3, no new layers, and `tf.contrib` is gone |
# | **Instead** | a Keras model, `fit.use(model, plan)` and `fit` |
#
# ## On GPUs
#
# Names such as `/gpu:0` still work, and `plan.devices` holds those of your GPUs. An old program
# hands its session a `ConfigProto`. Pass `plan.session_config()` instead, or the session forgets
# the devices of the plan.
#
# ## On your own
#
# Under each exercise is its solution. JupyterLab keeps it closed until you click on it.
#
# **1.** The notebook also tells its moving average the number of updates, so that early averages
# follow faster. In update n = 1, 2, … the decay is the smaller of `decay` and (1 + n) / (10 + n).
# Write `followed(values, decay)`: `values` holds a weight at the start and after each update, and
# the last average is returned.

# %% tags=["exercise"]
def followed(values, decay):
    average = values[0]
    for value in values[1:]:
        average = decay * average + (1 - decay) * value
    return average


checks.followed(followed)

# %% tags=["solution"]
def followed(values, decay):
    average = values[0]
    for n, value in enumerate(values[1:], start=1):
        kept = min(decay, (1 + n) / (10 + n))
        average = kept * average + (1 - kept) * value
    return average


checks.followed(followed)

# %% [markdown]
# **2.** An old program has a dense layer with ReLU and `units` outputs. Its kernel has the penalty
# `tf.contrib.layers.l2_regularizer(scale)`, which is `scale` times half of the sum of squares. Then
# comes `tf.nn.dropout` with the share `keep`. Write `hidden(units, keep, scale)`, which returns the
# Keras layers that do the same.

# %% tags=["exercise"]
def hidden(units, keep, scale):
    return [layers.Dense(units, activation="relu"), layers.Dropout(keep)]


checks.hidden(hidden)

# %% tags=["solution"]
def hidden(units, keep, scale):
    penalty = keras.regularizers.L2(scale / 2)
    dense = layers.Dense(units, activation="relu", kernel_regularizer=penalty)
    return [dense, layers.Dropout(1 - keep)]


checks.hidden(hidden)

# %% [markdown]
# ## What we saw
#
# - Both kinds of program moved every weight as `fit.use` does, to 1e-4.
# - A scope for each device made 12 variables, and no error said so.
# - The same call of `dropout` keeps 0.8 of the units in `tf.compat.v1`, and 0.2 in `tf`.
#
# ## In practice
#
# Write the network anew in Keras, give it the old program's weights, and compare one step with
# plain SGD, as we did. Then call `fit.use(model, plan)` and delete the graph.
#
# Next: [[next]].
