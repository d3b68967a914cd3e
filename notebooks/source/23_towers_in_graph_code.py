# %% [markdown]
# # Towers in graph code
#
# You inherit a program of 2016 or 2017 that trains on several GPUs. It stops in its first lines,
# because `tf.placeholder` and `tf.Session` have moved and `tf.contrib` is gone. Some of its other
# lines still run, and mean something else.
#
# **In this lesson** you run programs of 2016 and 2017, of two kinds, on two devices, find out
# whether each device does its share, and prove that they train what two lines of today train.
#
# ![Joined losses, colocated: two devices go forward, the host takes one mean of the losses, both
# devices go backward, and the host updates the weights. Towers: each device goes forward and
# backward, and the host takes the mean of the gradients and updates the
# weights.](pictures/23_two_kinds.svg)
#
# With two devices, both kinds move every weight as these lines do, to a part in 10,000:
#
# ```python
# fit.use(model, plan)
# model.fit(x, y)
# ```
#
# **You need** [[00]], for its traces, and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import fit, trace
from mgpu_helpers.lessons import digits, drawings, lesson_23
from mgpu_helpers.lessons.checks import lesson_23 as checks

layers = keras.layers

# %% [markdown]
# ## Make it start
#
# First put two lines in place of the program's import:
#
# ```python
# import tensorflow.compat.v1 as tf
# tf.disable_v2_behavior()
# ```
#
# With them it runs up to the first call that is gone. In this lesson `tf` is today's TensorFlow,
# and `tf1` is `tensorflow.compat.v1`, which such a program calls `tf`. Our graphs are built inside
# `tf1.Graph().as_default()`, so they need no `disable_v2_behavior`. Here are some calls of our
# sources, where each of them still is, and what replaces it. `gone` means that neither module has
# it, and `own` that it is from a library of the author. The [complete
# list](../docs/sources.md#calls) has the calls of each source.

# %%
print(lesson_23.today())

# %% [markdown]
# A call that is gone stops the program. Worse is a call that runs and means something else. The
# second argument of `dropout` is the share to keep in `tf1`, and the share to drop in `tf`:

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
with tf1.Graph().as_default(), tf1.Session() as session:
    number = tf1.placeholder(tf1.float32, [])
    with tf1.variable_scope("shared"):
        factor = tf1.get_variable("factor", initializer=2.0)
    product = factor * number
    session.run(factor.initializer)
    print(factor.name, session.run(product, {number: 3.0}))

# %% [markdown]
# The line with `*` only describes an operation. Its fetch in `run` computes the number.
#
# ## The first kind: join the losses
#
# Here is the network of [[07]] in graph code, with its weights on the host. The seed lets every
# program of this lesson begin with the same weights:

# %%
def weight(name, shape):
    with tf1.device(plan.host):
        return tf1.get_variable(name, shape, initializer=tf1.glorot_uniform_initializer(seed=9))


def row_losses(x, y):
    x = tf1.nn.conv2d(x, weight("k1", [7, 7, 1, 32]), 1, "SAME")
    x = tf1.nn.relu(tf1.nn.bias_add(x, weight("b1", [32])))
    x = tf1.nn.max_pool2d(x, 4, 4, "VALID")
    x = tf1.nn.conv2d(x, weight("k2", [3, 3, 32, 16]), 1, "SAME")
    x = tf1.nn.relu(tf1.nn.bias_add(x, weight("b2", [16])))
    scores = tf1.matmul(tf1.reshape(x, [-1, 784]), weight("k3", [784, 10])) + weight("b3", [10])
    return tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores)


# %% [markdown]
# `make_parallel` in *Effective TensorFlow* ([2017](../docs/sources.md#make_parallel)) and a program
# for P40 GPUs ([2017](../docs/sources.md#p40)) join the losses. Each device computes the losses of
# its shard, and then there is one mean and one backward pass. With `reuse` the second device gets
# the variables that the first has made under the same names:

# %%
scopes = ["shared"] * len(plan)


def on_each(function, *batches):
    shards = zip(*[tf1.split(batch, len(plan)) for batch in batches])
    outputs = []
    for device, scope, shard in zip(plan.devices, scopes, shards):
        with tf1.device(device), tf1.variable_scope(scope, reuse=tf1.AUTO_REUSE):
            outputs.append(function(*shard))
    return outputs


def joined(x, y, colocate=True):
    loss = tf1.reduce_mean(tf1.concat(on_each(row_losses, x, y), axis=0))
    sgd = tf1.train.GradientDescentOptimizer(0.3)
    return loss, sgd.minimize(loss, colocate_gradients_with_ops=colocate)


# %% [markdown]
# `begin` builds the graph of a program and starts its session. The program takes two steps:

# %%
def begin(program, **options):
    with tf1.Graph().as_default() as graph, tf1.device(plan.host):
        x = tf1.placeholder(tf1.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf1.int64, [None], name="y")
        fetches = program(x, y, **options)
        initialize = tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run(initialize)
    return session, fetches


def weights_of(session):
    return session.run(session.graph.get_collection("trainable_variables"))


# %%
x, y = digits.load(840)
feed = {"x:0": x, "y:0": y}
session, fetches = begin(joined)
start = weights_of(session)
print("losses:", *[f"{session.run(fetches, feed)[0]:.2f}" for _ in range(2)])

# %% [markdown]
# It runs, and the loss falls. Does it train the right thing? We give the weights of its start to
# the same network in Keras, which takes two steps with today's lines:

# %%
stack = [
    layers.Conv2D(32, 7, padding="same", activation="relu"),
    layers.MaxPool2D(4),
    layers.Conv2D(16, 3, padding="same", activation="relu"),
    layers.Flatten(),
    layers.Dense(10),
]
with tf.device(plan.devices[0]):
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), entropy)
model.set_weights(start)
fit.use(model, plan)
for _ in range(2):
    model.train_on_batch(x, y)

# %% [markdown]
# As in [[07]], `apart` divides the largest difference by the largest change from `start`, for each
# weight:

# %%
def compare(session):
    apart = lesson_23.apart(start, weights_of(session), model.get_weights())
    print("weights of fit.use to 1e-4:", apart < 1e-4)


compare(session)

# %% [markdown]
# The old program trains what today's lines train.
#
# ## Does each device do its share?
#
# With `colocate_gradients_with_ops` each gradient is computed on the device of its operation. We
# trace a step without this option and with it. For each place we count what it sends, and the
# convolutions of the backward pass: three for each shard, as the images need no gradient:

# %%
for colocate in (False, True):
    session, fetches = begin(joined, colocate=colocate)
    session.run(fetches, feed)  # the first run prepares the graph
    step = trace.session_step(session, fetches, feed)[1]
    print(f"colocate={colocate}", *lesson_23.backward(step), sep="\n  ")

# %% [markdown]
# Without the option the host computes the whole backward pass, because `minimize` was called in the
# host's block. In an old program that place is usually the first GPU. Then the devices share only
# the forward pass, and all that they keep for the backward pass has to cross. With the option each
# device goes backward through its own shard, and sends only losses and gradients.
#
# ## The second kind: towers
#
# In the [tensorlight notebook](../docs/sources.md#tensorlight) (2016) each tower has a backward
# pass of its own, in the block of its device, so it needs no option. The host averages the
# gradients and updates the weights:

# %%
def tower(x, y):
    loss = tf1.reduce_mean(row_losses(x, y))
    return [loss, *tf1.gradients(loss, tf1.trainable_variables())]


def averaged(x, y):
    columns = zip(*on_each(tower, x, y))
    loss, *gradients = [tf1.add_n(column) / len(column) for column in columns]
    sgd = tf1.train.GradientDescentOptimizer(0.3)
    return loss, sgd.apply_gradients(zip(gradients, tf1.trainable_variables()))


# %%
session, fetches = begin(averaged)
for _ in range(2):
    session.run(fetches, feed)
compare(session)

# %% [markdown]
# Here is a step of the towers in a session, and then one of `fit`, each the fastest of ten:

# %% tags=["varies", "cover"]
in_session = lesson_23.fastest(lambda: trace.session_step(session, fetches, feed)[1])
by_fit = lesson_23.fastest(lambda: trace.fit_step(model, (x, y)))
traces = {"Towers in a session": in_session, "fit, after fit.use": by_fit}
drawings.steps(traces, line="all gradients are averaged", last=True)
plt.show()

# %% [markdown]
# A bar of half the height ran beside another of its device. In both steps the two devices go
# forward and backward through their shards at the same time.
#
# ## Break it
#
# We give each device a scope of its own, so that no name is asked for twice. Write down what will
# tell you: an error, the loss or the weights?

# %%
scopes = [f"tower_{i}" for i in range(len(plan))]
session, fetches = begin(joined)
print("losses:", *[f"{session.run(fetches, feed)[0]:.2f}" for _ in range(2)])
compare(session)
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
# **1.** An old program may share only some of its weights. Its graph names the variables, by
# `[v.name for v in graph.get_collection("trainable_variables")]`: the outer scope, the weight's own
# name, which may have scopes as well, and `:0`. `tower_1/conv/k:0` is the weight `conv/k`. Write
# `unshared(names)`, which returns a sorted list of the weights that are in several outer scopes.

# %% tags=["exercise"]
def unshared(names):
    return sorted(name for name in names if name.startswith("tower"))


checks.unshared(unshared)

# %% tags=["solution"]
def unshared(names):
    weights = [name.removesuffix(":0").partition("/")[2] for name in names]
    return sorted({weight for weight in weights if weights.count(weight) > 1})


checks.unshared(unshared)

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
# - Without `colocate_gradients_with_ops` the devices computed 0 convolutions of the backward pass.
# - A scope for each device made 12 variables, and no error said so.
# - The same call of `dropout` keeps 0.8 of the units in `tf.compat.v1`, and 0.2 in `tf`.
#
# ## In practice
#
# Let the old program run again, with plain SGD and without dropout. Write its network anew in
# Keras, give it the old program's weights, and compare two steps, as we did. Then delete the graph.
#
# Next: [[next]].
