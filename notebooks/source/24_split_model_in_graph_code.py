# %% [markdown]
# # Split model in graph code
#
# You inherit a program for TensorFlow 1 that cuts a model over two GPUs. It no longer starts, and
# nobody knows whether it ever used both. One of our two sources did not: its first GPU computed
# nothing of the forward pass.
#
# **In this lesson** you trace three ways to cut a model over two devices in graph code, see which
# device computes what, write the cut in pieces, and get the weights that one line of today gives.
#
# ![Four boxes for each way: convolutions forward, dense layers forward, dense layers backward,
# convolutions backward. In the article's way the second device computes all of them. In a cut that
# is not colocated it computes all but the first. In a colocated cut it computes the two of the
# dense layers.](pictures/24_three_ways.svg)
#
# Wonik Jang's article of 2017 ([source](../docs/sources.md#jang)) puts a network's convolutions on
# one GPU and its dense layers on another. The tensorlight notebook of 2016
# ([source](../docs/sources.md#tensorlight)) cuts a model with and without
# `colocate_gradients_with_ops`. This line replaces both programs:
#
# ```python
# model = fit.use(model, plan, stages=2, pieces=4)
# ```
#
# **You need** [[12]], [[13]] and [[23]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import fit, pipeline, trace
from mgpu_helpers.lessons import digits, drawings, schedules
from mgpu_helpers.lessons.checks import lesson_24 as checks
from mgpu_helpers.lessons.state import apart, show_crossing

first, last = pair = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## The network, twice
#
# Here is the article's network in Keras, about a quarter as wide, without dropout and with plain
# gradient descent instead of RMSProp. It trains on one device, in float64, which gives the weights
# to compare with:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
images, labels = digits.load(128)
RATE = 0.125  # exact in float32, to which the classic optimizer rounds it


# %%
def build():
    keras.utils.set_random_seed(0)
    stack = [keras.Input([28, 28, 1])]
    for filters in [16, 16, 32]:
        conv = keras.layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False)
        stack += [conv, keras.layers.MaxPooling2D(padding="same")]
    stack += [keras.layers.Flatten(), keras.layers.Dense(600, "relu", use_bias=False)]
    model = keras.Sequential([*stack, keras.layers.Dense(10, use_bias=False)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return model


# %%
with tf.device(first):
    alone = build()
begin = alone.get_weights()
alone.fit(images, labels, batch_size=128, epochs=3, verbose=0)
of_one = alone.get_weights()

# %% [markdown]
# In graph code each part is a function of its weights and its input. The weights that `make`
# creates begin like those of Keras:

# %%
def make(numbers):
    return [tf1.get_variable(f"w{n}", initializer=begin[n]) for n in numbers]


# %%
def front(weights, x):
    for w in weights:
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), 2, 2, "SAME")
    return tf.reshape(x, [-1, 512])


def rear(weights, x):
    return tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])


# %%
def loss(y, scores):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))


# %% [markdown]
# ## Three ways to cut it
#
# A weight is on the device in whose block it was made, and an operation on the device in whose
# block it was called. These need not be the same: in `split` the first device always has the
# weights of the convolutions, and `conv_on` calls them. As in the article, `minimize` is called in
# the last device's block, so the whole backward pass is there. With `colocate` each of its
# operations is on the device of its forward operation instead:

# %%
def split(conv_on, colocate):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float64, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
        with tf.device(first):
            kernels = make([0, 1, 2])
        with tf.device(conv_on):
            middle = front(kernels, x)
        with tf.device(last):
            value = loss(y, rear(make([3, 4]), middle))
            descent = tf1.train.GradientDescentOptimizer(RATE)
            descent.minimize(value, colocate_gradients_with_ops=colocate, name="train")
        tf1.global_variables_initializer()
    return tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))


# %% [markdown]
# The optimizer's operation is named `train`, and the initializer names itself `init`. A session can
# run both by these names:

# %%
feed = {"x:0": images, "y:0": labels}


def trained(session):
    session.run("init")
    for _ in range(3):
        session.run("train", feed)
    return session.run(session.graph.get_collection("trainable_variables"))


# %% [markdown]
# The article makes the first weights in the block of the first GPU, but it calls the whole model in
# the block of the second. The notebook cuts the calls as well, without and with colocation. Write
# down in which of the three ways both devices compute convolutions or dense layers:

# %%
ways = {  # conv_on, and colocate
    "the article's way": (last, False),
    "cut, not colocated": (first, False),
    "cut, colocated": (first, True),
}

# %%
steps = {}
for name, way in ways.items():
    session = split(*way)
    print(f"{name}: less than 1e-12 from one device:", apart(trained(session), of_one) < 1e-12)
    steps[name] = trace.session_step(session, "train", feed)[1]

# %% tags=["varies", "cover"]
drawings.steps(steps, line="", devices=pair)
plt.show()

# %% [markdown]
# All three train correctly, so nobody notices a difference. In the chart, a bar of half the height
# ran beside another of its device. In the article's way the first device computes no layer. Without
# colocation it only goes forward. With colocation it goes forward and backward through the
# convolutions, which are most of the work, and the last device does the rest. The two take turns,
# because the batch goes through whole. What crosses between them?

# %%
def ran(step, back):
    ops = [op for op in step.ops if "Conv2D" in op.type and ("Backprop" in op.type) == back]
    return " ".join(sorted({op.device for op in ops}))


# %%
for name, step in steps.items():
    print(f"\n{name}: forward on {ran(step, False)}, backward on {ran(step, True)}")
    show_crossing(step)

# %% [markdown]
# In the article's way the first device only keeps the convolutions' weights. They cross, 56,448
# bytes, and their gradients come back. The last device computes all layers and holds all
# activations. Without colocation the last device has to fetch the activations of the first for the
# backward pass. Only with colocation does each device work on its own layers: the activations at
# the cut cross, and their gradient comes back. On two TitanX the notebook measured 23.33 ms a step
# without the argument, and 20.18 ms with it.
#
# ## In pieces
#
# If the batch goes through in pieces, both devices work at once ([[13]]). None of the sources does
# that. Here one loop writes the tasks of both stages into the graph. Task `F2` takes piece 2
# forward, and `B2` takes it back. `kept` holds a piece's input and output from its `F` to its `B`,
# `back` the gradient for the stage before, and `sums` the weights' gradients so far.
# `control_dependencies` makes each task of a stage wait for the one before:

# %%
def in_pieces(stages, xs, ys, order):
    kept, back, sums, before = {}, {}, {}, {}
    for s, task in schedules.run_times(order):
        (device, part, weights), k = stages[s], int(task[1:])
        with tf.device(device), tf1.control_dependencies(before.get(s, [])):
            if task.startswith("F"):
                x = tf.identity(kept[s - 1, k][1] if s else xs[k])
                kept[s, k] = x, part(weights, x)
                before[s] = [kept[s, k][1]]
            else:
                x, end = kept[s, k]
                if s + 1 == len(stages):
                    end = loss(ys[k], end) / len(xs)
                *found, back[s, k] = tf1.gradients(end, [*weights, x], back.get((s + 1, k)))
                sums[s] = [a + b for a, b in zip(sums[s], found)] if s in sums else found
                before[s] = sums[s]
    return [gradient for s in range(len(stages)) for gradient in sums[s]]


# %%
with tf.Graph().as_default() as graph:
    with tf.device(plan.host):
        x = tf1.placeholder(tf.float64, [128, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [128], name="y")
        xs, ys = tf.split(x, 4), tf.split(y, 4)
    with tf.device(first):
        kernels = make([0, 1, 2])
    with tf.device(last):
        dense = make([3, 4])
    stages = [(first, front, kernels), (last, rear, dense)]
    found = in_pieces(stages, xs, ys, pipeline.one_forward_one_backward(2, 4))
    descent = tf1.train.GradientDescentOptimizer(RATE)
    descent.apply_gradients(zip(found, [*kernels, *dense]), name="train")
    tf1.global_variables_initializer()

# %% [markdown]
# ## Proof
#
# Three steps of each graph, whole and in pieces, are compared with three of today's line:

# %%
pipelined = tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))
graphs = {1: trained(split(first, True)), 4: trained(pipelined)}

# %%
for pieces, weights in graphs.items():
    with tf.device(plan.host):
        model = build()
    model = fit.use(model, pair, stages=2, pieces=pieces)
    model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
    close = apart(weights, model.get_weights()) < 1e-12
    print(f"pieces: {pieces}, graph and fit.use differ by less than 1e-12:", close)
print("training changed the weights by more than 1 %:", apart(begin, of_one) > 0.01)

# %% [markdown]
# | | a cut in graph code |
# |---|---|
# | **Use it when** | you have to know what an old program did, or to keep it alive |
# | **It costs** | each wait and device is written by hand, and `compat.v1` gets nothing new |
# | **Instead** | `fit.use` with `stages` and `pieces` ([[12]], [[13]]) |
#
# ## On GPUs
#
# With soft placement, TensorFlow takes another device for a name that your machine lacks, and says
# nothing ([[25]]). On a machine with two GPUs, a program that names `/gpu:2` and `/gpu:3` can run
# on one of them for years. Take the names from `plan.devices`, and look at a trace.
#
# A classic Session compiles nothing with XLA unless it is told to, and `fit` does, so old and new
# times differ for this reason, too. One process has one list of GPUs for all its Sessions:
# `devices.setup` makes it, and `plan.session_config` gives it to each Session.
#
# ## On your own
#
# **1.** Write `tensors(called)`. `called` lists, for the layers in their order, the device in whose
# block each was called. Its weights are on this device, too, and gradients are colocated. Return
# how many tensors cross between layers in a training step: activations go forward, and their
# gradients come back. Inputs and labels do not count.

# %% tags=["exercise"]
def tensors(called):
    return len(called)


checks.tensors(tensors)

# %% tags=["solution"]
def tensors(called):
    return 2 * sum(a != b for a, b in zip(called, called[1:]))


checks.tensors(tensors)

# %% [markdown]
# **2.** Write `fetched(made, called, sizes)`. For each layer, `made` has the device on which its
# weights were made, `called` the device on which it was called, and `sizes` the bytes of its
# weights. Return how many bytes of weights cross in a forward pass.

# %% tags=["exercise"]
def fetched(made, called, sizes):
    return sum(sizes)


checks.fetched(fetched)

# %% tags=["solution"]
def fetched(made, called, sizes):
    return sum(size for a, b, size in zip(made, called, sizes) if a != b)


checks.fetched(fetched)

# %% [markdown]
# ## What we saw
#
# - The article's program trains correctly, but its first device computes no convolution.
# - With colocated gradients, 524,288 bytes crossed each way.
# - Graph code, whole and in pieces, gave the weights of `fit.use` to 1e-12.
#
# ## In practice
#
# Run the old program once, trace a step, and keep the weights after three steps. Then replace its
# graph by a Keras model and one line, and compare with these weights.
#
# Next: [[next]].
