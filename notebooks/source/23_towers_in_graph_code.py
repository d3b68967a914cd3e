# %% [markdown]
# # Towers in graph code
#
# You inherit a program of 2016 or 2017 that trains on several GPUs. It stops in its first lines,
# because today's TensorFlow has no `tf.placeholder`, no `tf.Session` and no `tf.contrib`. Two lines
# of today replace all that it does with its GPUs:
#
# ```python
# fit.use(model, plan)
# model.fit(x, y)
# ```
#
# **In this lesson** you run two kinds of old programs on two devices, and prove that they train
# what these lines train. You also find out whether each device does its share. The first kind joins
# the losses of the devices, and needs an option, `colocate_gradients_with_ops`. Without it the host
# computes the backward pass, and each device sends it 47.4 MB of activations in a step. With it
# each device sends 0.1 MB:
#
# ![Joined losses, not colocated: two devices go forward, and the host goes backward. Joined losses,
# colocated: the devices go backward, too. Towers: the devices go forward and backward, and then the
# host takes the mean of the gradients.](pictures/23_two_kinds.svg)
#
# **You need** [[00]], which explains a trace, [[04]] and [[07]].

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
# Most of the old calls are in `tensorflow.compat.v1`. Replace the program's `import tensorflow as
# tf` by two lines:
#
# ```python
# import tensorflow.compat.v1 as tf
# tf.disable_v2_behavior()
# ```
#
# Now it runs up to the first call that is gone. In this lesson `tf` is today's TensorFlow, and
# `tf1` is `tensorflow.compat.v1`. The table says which of them still has a call, and what replaces
# it ([more calls](../docs/sources.md#calls)). A call in `tf` is also in `tf1`:

# %%
print(lesson_23.today())

# %% [markdown]
# A call that is in both modules may mean something else today. The second argument of `dropout` is
# the share of units to keep in `tf1`, and the share to drop in `tf`:

# %%
ones = tf.ones([100_000])
for module in (tf1, tf):
    kept = tf.reduce_mean(tf.cast(module.nn.dropout(ones, 0.8) > 0, tf.float32))
    print(f"{module.__name__:20} keeps {kept:.1f} of the units")

# %% [markdown]
# ## How graph code works
#
# Graph code has two phases. First Python builds a **graph** of operations, and nothing is computed.
# Then a **session** runs the graph, as often as you like. A run gets **fetches**, which are what it
# has to compute, and a value for each **placeholder**, which is an input of the graph.
# `get_variable` makes a variable, and puts the name of its **variable scope** before its own:

# %%
with tf1.Graph().as_default(), tf1.Session() as session:
    number = tf1.placeholder(tf1.float32, [])
    with tf1.variable_scope("shared"):
        factor = tf1.get_variable("factor", initializer=2.0)
    product = factor * number
    session.run(factor.initializer)
    print(factor.name, session.run(product, {number: 3.0}))

# %% [markdown]
# The line with `*` computes nothing: it adds a multiplication to the graph. `run` computes it.
#
# ## The first kind: join the losses
#
# Here is the network of [[07]] in graph code, with its weights on the host. Because of the seed,
# every program of this lesson begins with the same weights:

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
# In `make_parallel` ([2017](../docs/sources.md#make_parallel)) and in a program for P40 GPUs
# ([2017](../docs/sources.md#p40)) each device computes the losses of its shard, and `minimize` gets
# the mean of all losses. Both devices need the same variables. So they use one scope, and `reuse`
# gives the second device the variables that the first has made there:

# %%
shared = ["shared"] * len(plan)


def on_each(function, *batches, scopes=shared):
    shards = zip(*[tf1.split(batch, len(plan)) for batch in batches])
    outputs = []
    for device, scope, shard in zip(plan.devices, scopes, shards):
        with tf1.device(device), tf1.variable_scope(scope, reuse=tf1.AUTO_REUSE):
            outputs.append(function(*shard))
    return outputs


def joined(x, y, colocate=True, scopes=shared):
    loss = tf1.reduce_mean(tf1.concat(on_each(row_losses, x, y, scopes=scopes), axis=0))
    sgd = tf1.train.GradientDescentOptimizer(0.3)
    return loss, sgd.minimize(loss, colocate_gradients_with_ops=colocate)


# %% [markdown]
# `begin` builds the graph of such a program and starts a session for it:

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
# The loss falls. But does the program train the right thing? The same network in Keras begins with
# the same weights, and takes two steps with today's lines:

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
history = model.fit(x, y, batch_size=840, epochs=2, verbose=0)

# %% [markdown]
# As in [[07]], `apart` takes each weight's largest difference between the two programs, and divides
# it by the weight's largest change in the two steps:

# %%
def compare(session):
    apart = lesson_23.apart(start, weights_of(session), model.get_weights())
    print("weights of fit.use to 1e-4:", apart < 1e-4)


compare(session)

# %% [markdown]
# ## Does each device do its share?
#
# `minimize` adds the operations of the backward pass to the graph. With
# `colocate_gradients_with_ops` each of them is on the device of its forward operation. Without it
# all are on the device in whose block `minimize` is called, which is the host here. We trace a step
# each way and count the convolutions. A shard goes backward in three: two give the gradients of the
# kernels, and one that of the second layer's input:

# %%
for colocate in (False, True):
    session, fetches = begin(joined, colocate=colocate)
    session.run(fetches, feed)  # the first run prepares the graph
    step = trace.session_step(session, fetches, feed)[1]
    print(f"colocate={colocate}", *lesson_23.backward(step), sep="\n  ")

# %% [markdown]
# Without the option the devices share only the forward pass, and send all activations that the
# backward pass needs. With the option each device goes backward through its own shard, and sends
# only losses and gradients. The host sends the batch and the weights.
#
# TensorFlow's script `tf_upgrade_v2`, which renames old calls, removes this option
# ([why](../docs/sources.md#calls)). So put it back.
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
# Do both devices work in `fit` as they do here? This is a step of the towers in a session, and then
# one of `fit`, each the fastest of ten:

# %% tags=["varies", "cover"]
in_session = lesson_23.fastest(lambda: trace.session_step(session, fetches, feed)[1])
by_fit = lesson_23.fastest(lambda: trace.fit_step(model, (x, y)))
traces = {"Towers in a session": in_session, "fit, after fit.use": by_fit}
drawings.steps(traces, line="all gradients are averaged", last=True)
plt.show()

# %% [markdown]
# They do: in both steps the devices go forward and backward at the same time.
#
# ## Break it
#
# We give each device a scope of its own, so the two no longer ask for variables of the same name.
# Write down what will tell you of the mistake: an error, the loss or the weights?

# %%
session, fetches = begin(joined, scopes=[f"tower_{i}" for i in range(len(plan))])
print("losses:", *[f"{session.run(fetches, feed)[0]:.2f}" for _ in range(2)])
compare(session)
print("variables:", len(weights_of(session)))

# %% [markdown]
# There is no error, and the loss falls. But there are 12 variables instead of 6: each device trains
# a model of its own, on its own shard only. So count the variables of a program that you inherit.
#
# ## On GPUs
#
# Names such as `/gpu:0` still work. Replace the `ConfigProto` of an old session by
# `plan.session_config()`, so that it has the plan's devices.
#
# ## On your own
#
# **1.** An old program may share only some of its weights. The names of its variables tell you:
# each begins with an outer scope, and `tower_1/conv/k:0` is the weight `conv/k` in `tower_1`. Write
# `unshared(names)`, which returns a sorted list of the weights in more than one outer scope: of
# `["a/k:0", "b/k:0", "a/b:0"]` it is `["k"]`.

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
# - Both kinds of program changed each weight as `fit.use` does, to 1e-4.
# - Without `colocate_gradients_with_ops` the devices computed 0 convolutions of the backward pass.
# - A scope for each device made 12 variables, and no error said so.
#
# ## In practice
#
# Run the old program with plain SGD and without dropout. Write its network in Keras, give it the
# old program's first weights, and compare two steps, as we did. Then delete the graph, and read the
# trained weights from its checkpoint:
#
# ```python
# tf.train.load_checkpoint(path).get_tensor("shared/k1")
# ```
#
# Next: [[next]].
