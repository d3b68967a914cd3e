# %% [markdown]
# # Split model in graph code
#
# You inherit a program for TensorFlow 1 that cuts a model over two GPUs. It trains, but its losses
# are the same on one GPU, so nobody knows whether it ever used both. Today one line replaces the
# cut, and trains the same weights to 1e-12:
#
# ```python
# fit.use(model, plan, stages=2)
# ```
#
# **In this lesson** you trace three ways to cut a model over two devices in graph code. The first
# is that of an article of 2017, and its first device computes no layer. The others differ in one
# option, colocation. You see which layers each device computes, and how many bytes cross between
# the devices:
#
# ![Four boxes for each way: convolutions forward, dense layers forward, dense layers backward,
# convolutions backward. In the article's way the second device computes all of them and gets the
# kernels, 0.06 MB. In a cut that is not colocated it computes all but the first, and gets
# activations and kernels, 22 MB. In a colocated cut it computes the two of the dense layers, and
# gets the activations at the cut, 0.5 MB. As many bytes of gradients come back, and 0.06 MB without
# colocation.](pictures/24_three_ways.svg)
#
# **You need** [[12]] and [[23]], which explains graph code.

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
from mgpu_helpers.lessons import digits, drawings, lesson_24
from mgpu_helpers.lessons.checks import lesson_24 as checks
from mgpu_helpers.lessons.lesson_23 import fastest
from mgpu_helpers.lessons.state import apart, show_crossing

first, second = pair = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## The program
#
# Wonik Jang's article of 2017 ([source](../docs/sources.md#jang)) wants the convolutions of its
# network on one GPU and the dense layers on another. Here is its network in graph code, a quarter
# as wide and without dropout, so that it is fast and each run gives the same numbers. `make` makes
# the weights of a part, in float64, so that we can compare to 1e-12:

# %%
def make(name, *shapes):
    draw = tf1.variance_scaling_initializer(2.0, seed=9)
    numbered = enumerate(shapes)
    return [tf1.get_variable(f"{name}{n}", shape, tf1.float64, draw) for n, shape in numbered]


# %%
def front(kernels, x):
    for kernel in kernels:
        x = tf1.nn.relu(tf1.nn.conv2d(x, kernel, 1, "SAME"))
        x = tf1.nn.max_pool2d(x, 2, 2, "SAME")
    return x


# %%
def rear(dense, x):
    x = tf1.reshape(x, [-1, 512])
    return tf1.matmul(tf1.nn.relu(tf1.matmul(x, dense[0])), dense[1])


# %%
def mean_loss(y, scores):
    y = tf1.one_hot(y, 10, dtype=tf1.float64)
    entropy = tf1.nn.softmax_cross_entropy_with_logits_v2
    return tf1.reduce_mean(entropy(labels=y, logits=scores))


# %% [markdown]
# ## Three ways to cut it
#
# In graph code a weight is on the device in whose block it is made, and an operation is on the
# device in whose block it is called. `split` always makes the kernels of the convolutions on the
# first device, and computes the convolutions on `conv_on`.
#
# `minimize` adds the backward pass. It is called in the second device's block, as in the article.
# So this device computes the whole backward pass, unless `colocate` is true. Then each operation of
# the backward pass is **colocated** with its forward operation: it is on the same device ([[23]]).

# %%
def split(conv_on, colocate):
    with tf1.Graph().as_default() as graph, tf1.device(plan.host):
        x = tf1.placeholder(tf1.float64, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf1.int64, [None], name="y")
        with tf1.device(first):
            kernels = make("kernel", [3, 3, 1, 16], [3, 3, 16, 16], [3, 3, 16, 32])
        with tf1.device(conv_on):
            middle = front(kernels, x)
        with tf1.device(second):
            dense = make("dense", [512, 600], [600, 10])
            loss = tf1.identity(mean_loss(y, rear(dense, middle)), name="loss")
            sgd = tf1.train.GradientDescentOptimizer(0.0625)
            sgd.minimize(loss, colocate_gradients_with_ops=colocate, name="train")
        tf1.global_variables_initializer()
    return graph


# %% [markdown]
# A session finds the operations and the tensors of the graph by name. `init` is the operation that
# `global_variables_initializer` makes, and `x:0` is the placeholder `x`:

# %%
images, labels = digits.load(128)
feed = {"x:0": images, "y:0": labels}


def begin(graph):
    session = tf1.Session(graph=graph, config=plan.session_config())
    session.run("init")
    return session


def weights_of(session):
    return session.run(session.graph.get_collection("trainable_variables"))


# %%
def three_steps(name, session):
    losses = [session.run(["loss:0", "train"], feed)[0] for _ in range(3)]
    print(f"{name}: losses", *[f"{loss:.3f}" for loss in losses])
    return weights_of(session)


# %% [markdown]
# The article makes the kernels in the block of the first GPU, but it calls the whole model in the
# block of the second. The tensorlight notebook of 2016 ([source](../docs/sources.md#tensorlight))
# calls each part on the device of its weights, first without colocation and then with it:

# %%
ways = {  # conv_on, and colocate
    "the article's way": (second, False),
    "cut, not colocated": (first, False),
    "cut, colocated": (first, True),
}

# %%
steps, trained = {}, {}
for name, way in ways.items():
    session = begin(split(*way))
    start = weights_of(session)
    trained[name] = three_steps(name, session)
    steps[name] = fastest(lambda: trace.session_step(session, "train", feed)[1])

# %% [markdown]
# The losses are the same. But which device computed what? Here is a trace of each way, the fastest
# of ten steps. Where a device ran two operations at once, each on a core, their bars have half the
# height:

# %% tags=["varies", "cover"]
drawings.steps(steps, line="", devices=pair, dense=True)
plt.show()

# %% [markdown]
# In the article's way the first device computes no layer: its thin line is the update of a kernel.
# In a cut without colocation it only goes forward. With colocation it goes forward and backward
# through the convolutions, which are most of the work, and the second device computes the dense
# layers. Even then the two take turns. Today `pieces=4` beside `stages=2` lets both work at once
# ([[13]]).
#
# ## Break it
#
# Suppose that somebody forgets to colocate. The dense layers need only what `rear` takes: 512
# activations of 8 bytes for each of the 128 images, which are 524,288 bytes. Write down how many
# bytes the first device sends to the second in the cut that is not colocated:

# %%
for name, step in steps.items():
    print(f"\n{name}: {lesson_24.convolved(step)}")
    show_crossing(step)

# %% [markdown]
# With colocation only the activations at the cut cross, and their gradient comes back. Without it
# the second device goes backward through the convolutions. So it needs the output of each
# convolution and of each pooling:
#
# | layer | numbers of each image | after its pooling |
# |---|---|---|
# | first | 28·28·16 = 12,544 | 14·14·16 = 3,136 |
# | second | 14·14·16 = 3,136 | 7·7·16 = 784 |
# | third | 7·7·32 = 1,568 | 4·4·32 = 512 |
#
# All six, times 8 bytes and 128 images, are 22,200,320 bytes. The second and the third kernel are
# the rest. In the article's way all three kernels cross, and their gradients come back.
#
# On CPU cores the bytes cost little time, because the cores share one memory and nothing is copied.
# Between GPUs a tensor is copied: on two TitanX the tensorlight notebook measured 23.33 ms a step
# without `colocate_gradients_with_ops`, and 20.18 ms with it.
#
# ## Proof
#
# Does one line of today train the same? Here is the network in Keras. For each way, it begins with
# the same weights, `start`, and takes three steps on two stages:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def build():
    stack = [keras.Input([28, 28, 1])]
    for filters in [16, 16, 32]:
        conv = keras.layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False)
        stack += [conv, keras.layers.MaxPooling2D(padding="same")]
    stack += [keras.layers.Flatten(), keras.layers.Dense(600, "relu", use_bias=False)]
    model = keras.Sequential([*stack, keras.layers.Dense(10, use_bias=False)])
    model.set_weights(start)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0625), loss, jit_compile=False)
    return model


# %%
for name, weights in trained.items():
    with tf.device(plan.host):
        model = build()
    fit.use(model, pair, stages=2)
    model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
    print(f"{name}: weights of fit.use to 1e-12:", apart(weights, model.get_weights()) < 1e-12)

# %% [markdown]
# ## On GPUs
#
# When a program names a GPU that your machine lacks, soft placement takes another device and says
# nothing ([[04]]). So take the names from `plan.devices`, and look at a trace.
#
# ## On your own
#
# **1.** `chain(places, kernels, x)` below builds a network in graph code: a layer for each array in
# `kernels`, which is the ReLU of a matrix product with it. But everything is on the host. Change
# it, so that layer `n` is on the device `places[n]`: its weight, its forward pass and its backward
# pass. It still has to return the loss and a list of the weights' gradients.

# %% tags=["exercise"]
def chain(places, kernels, x):
    weights = [tf1.get_variable(f"w{n}", initializer=each) for n, each in enumerate(kernels)]
    for weight in weights:
        x = tf1.nn.relu(tf1.matmul(x, weight))
    loss = tf1.reduce_mean(x)
    return loss, tf1.gradients(loss, weights)


checks.chain(chain)

# %% tags=["solution"]
def chain(places, kernels, x):
    weights = []
    for n, (place, kernel) in enumerate(zip(places, kernels)):
        with tf1.device(place):
            weights.append(tf1.get_variable(f"w{n}", initializer=kernel))
            x = tf1.nn.relu(tf1.matmul(x, weights[-1]))
    loss = tf1.reduce_mean(x)
    return loss, tf1.gradients(loss, weights, colocate_gradients_with_ops=True)


checks.chain(chain)

# %% [markdown]
# **2.** An old program clips each gradient to the norm `limit`, as `clipped(sgd, loss, limit)` does
# below. It is called in the host's block, so the host computes every gradient and clips it. Change
# it, so that each device computes and clips the gradients of the weights that it holds.

# %% tags=["exercise"]
def clipped(sgd, loss, limit):
    found = sgd.compute_gradients(loss)
    found = [(tf1.clip_by_norm(gradient, limit), weight) for gradient, weight in found]
    return sgd.apply_gradients(found)


checks.clipped(clipped)

# %% tags=["solution"]
def clipped(sgd, loss, limit):
    found = []
    for gradient, weight in sgd.compute_gradients(loss, colocate_gradients_with_ops=True):
        with tf1.device(weight.device):
            found.append((tf1.clip_by_norm(gradient, limit), weight))
    return sgd.apply_gradients(found)


checks.clipped(clipped)

# %% [markdown]
# ## What we saw
#
# - The article's program trains correctly, but its first device computes no layer.
# - Without colocation, 22,255,616 bytes crossed to the second device, and with it 524,288.
# - All three ways gave the weights of `fit.use` to 1e-12.
#
# ## In practice
#
# Run the old program, trace a step by `trace.session_step`, and save the weights before and after
# three steps. Then write the network in Keras, give it the first weights, add the one line, and
# compare after three steps.
#
# Next: [[next]].
