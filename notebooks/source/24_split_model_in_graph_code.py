# %% [markdown]
# # Split model in graph code
#
# You inherit a program for TensorFlow 1 that cuts a model over two GPUs. It trains, but nobody
# knows whether it ever used both. One of our two sources did not: its first GPU computed no layer.
#
# **In this lesson** you trace three ways to cut a model over two devices in graph code, and see
# what each device computes and what crosses.
#
# ![Four boxes for each way: convolutions forward, dense layers forward, dense layers backward,
# convolutions backward. In the article's way the second device computes all of them. In a cut that
# is not colocated it computes all but the first. In a colocated cut it computes the two of the
# dense layers.](pictures/24_three_ways.svg)
#
# All three train the same weights, so only a trace tells them apart. This line of today trains them
# too, to 1e-12:
#
# ```python
# model = fit.use(model, plan, stages=2)
# ```
#
# **You need** [[12]] and [[23]].

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
# Wonik Jang's article of 2017 ([source](../docs/sources.md#jang)) has the convolutions of its
# network on one GPU and the dense layers on another. Here are both parts in graph code, a quarter
# as wide, without dropout and with plain gradient descent. `make` makes their weights, in float64,
# so that we can compare to 1e-12. The loss takes the labels as rows of 0 and 1, because TensorFlow
# has no sparse cross-entropy in float64 for GPUs:

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
# A weight is on the device in whose block it is made, and an operation on the device in whose block
# it is called. These need not be the same. In `split` the first device always has the kernels of
# the convolutions, and `conv_on` calls them. As in the article, `minimize` is called in the second
# device's block, so the whole backward pass is there. With `colocate` each of its operations is on
# the device of its forward operation instead:

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
# `global_variables_initializer` makes an operation called `init`. A session runs an operation by
# its name, and gives a tensor by its name with `:0`:

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
# cuts the calls as well, without and with colocation:

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
# The losses are the same, so nobody notices a difference. Here is a step of each, the fastest of
# ten:

# %% tags=["varies", "cover"]
drawings.steps(steps, line="", devices=pair, dense=True)
plt.show()

# %% [markdown]
# A bar of half the height ran beside another of its device. In the article's way the first device
# computes no layer. Without colocation it only goes forward. With colocation it goes forward and
# backward through the convolutions, which are most of the work, and the second device does the
# rest.
#
# What crosses? At the cut the batch has 128 · 512 activations of 8 bytes, which are 524,288 bytes.
# Write down about how many bytes the first device sends to the second without colocation:

# %%
for name, step in steps.items():
    print(f"\n{name}: {lesson_24.convolved(step)}")
    show_crossing(step)

# %% [markdown]
# In the article's way the first device only keeps the kernels. They cross, and their gradients come
# back. Without colocation the second device fetches all activations of the first, not only those at
# the cut, and two of the three kernels, because the backward pass needs them. Only with colocation
# does each device work on its own layers: the activations at the cut cross, and their gradient
# comes back. On two TitanX the authors of the tensorlight notebook measured 23.33 ms a step without
# `colocate_gradients_with_ops`, and 20.18 ms with it.
#
# Even with colocation the devices take turns. A Keras model lets both work at once ([[13]]).
#
# ## Proof
#
# Here is the article's network in Keras. It begins with the weights of `start` and takes three
# steps with today's line, which finds its own place for the cut:

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
    model = fit.use(model, pair, stages=2)
    model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
    print(f"{name}: weights of fit.use to 1e-12:", apart(weights, model.get_weights()) < 1e-12)

# %% [markdown]
# | | a cut in graph code |
# |---|---|
# | **Use it when** | you have to know what an old program did, or to keep it alive |
# | **It costs** | each device is written by hand, and `compat.v1` gets nothing new |
# | **Instead** | `fit.use` with `stages` and `pieces` ([[12]], [[13]]) |
#
# ## On GPUs
#
# With soft placement, TensorFlow takes another device for a name that your machine lacks, and says
# nothing ([[04]]). On a machine with two GPUs, a program that names `/gpu:2` and `/gpu:3` can run
# on one of them for years. Take the names from `plan.devices`, and look at a trace.
#
# On a GPU `fit` compiles with XLA, and a classic Session does not unless it is told to. So their
# times differ for this reason, too.
#
# ## On your own
#
# **1.** Write `chain(places, kernels, x)` in graph code. It makes a variable of each array in
# `kernels`, and each layer is the ReLU of a matrix product with it. The first layer gets `x`, each
# other layer what the one before it gives, and the loss is the mean of the last outputs. Each
# device in `places` has to hold the weight of its layer and compute it, forward and backward.
# Return the loss and a list of the weights' gradients.

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
# **2.** An old program clips its gradients. So it calls `compute_gradients` and `apply_gradients`
# in place of `minimize`, and `tf1.clip_by_norm` between them. All three calls are in the host's
# block, so each gradient is computed there, and crosses to the device of its weight. Write
# `clipped(sgd, loss, limit)`, which returns the operation that trains. Each device has to compute
# the gradients of its own layers, and to clip each of them to the norm `limit`.

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
# Run the old program once, trace a step, and keep the weights after three steps. Then replace its
# graph by a Keras model and one line, and compare with these weights.
#
# Next: [[next]].
