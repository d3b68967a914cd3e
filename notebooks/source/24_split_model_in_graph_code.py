# %% [markdown]
# # Split model in graph code
#
# You inherit a program for TensorFlow 1 that cuts a model over two GPUs. It no longer starts, and
# nobody knows whether it ever used both. One of our two sources did not: its first GPU
# computed nothing of the forward pass.
#
# **In this lesson** graph code that cuts a model over two devices runs on today's TensorFlow, whole
# and in pieces, and trains to the weights that one line of today gives.
#
# The programs are those of two sources: Wonik Jang's article of 2017
# ([source](../docs/sources.md#jang)), which puts a network's convolutions and its dense layers on
# two GPUs, and the tensorlight notebook of 2016 ([source](../docs/sources.md#tensorlight)), which
# tries a cut with and without one argument. This line replaces both ([[12]], [[13]]):
#
# ```python
# model = fit.use(model, plan, stages=2, pieces=4)
# ```

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, fit, pipeline, trace
from mgpu_helpers.lessons import digits, schedules
from mgpu_helpers.lessons.checks import lesson_24 as checks
from mgpu_helpers.lessons.state import apart, show_crossing

first, last = pair = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## What no longer works
#
# | in the sources | today |
# |---|---|
# | `tf.placeholder`, `tf.Session`, `tf.ConfigProto` | in `tf.compat.v1`; else `tf.function` |
# | `tf.train.RMSPropOptimizer` | in `tf.compat.v1`; else `keras.optimizers.RMSprop` |
# | `tf.initialize_all_variables` | `tf.compat.v1.global_variables_initializer` |
# | `tf.gradients` with colocation | `tf.compat.v1.gradients`; else a tape for each stage |
# | `tf.contrib`, `tensorflow.examples` | gone: `keras.regularizers`, `keras.datasets` |
# | `'/gpu:1'`, `'/gpu:2'` with two GPUs | `plan.devices` |
#
# ## The network, twice
#
# Here is the article's network in Keras, about a quarter as wide, without dropout and with plain
# gradient descent instead of RMSProp. It trains on one device, in float64, which gives the weights
# to compare with:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


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
images, labels = digits.load(128)
RATE = 0.125  # exact in float32, to which the classic optimizer rounds it

# %%
with tf.device(first):
    alone = build()
begin = alone.get_weights()
alone.fit(images, labels, batch_size=128, epochs=3, verbose=0)
of_one = alone.get_weights()

# %% [markdown]
# In graph code each stage is a function of its weights and its input. `make` creates weights on the
# device of the block in which it is called:

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
# ## The split graph
#
# `conv_on` is the device in whose block the convolutions are called. `minimize` is called in the
# last device's block, as in the article. With `colocate`, each operation of the backward pass runs
# where its forward operation ran; without it, all of them run on the last device:

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

# %%
feed = {"x:0": images, "y:0": labels}


def trained(session):
    session.run("init")
    for _ in range(3):
        session.run("train", feed)
    return session.run(session.graph.get_collection("trainable_variables"))

# %% [markdown]
# The article creates the first weights in the block of the first GPU, but it calls the whole model
# in the block of the second. Do both GPUs compute? Here is its way, and then the same cut as the
# tensorlight notebook makes one, without and with the argument:

# %%
ways = {
    "the article's": (last, False),
    "without colocation": (first, False),
    "with colocation": (first, True),
}

# %%
steps = {}
for name, way in ways.items():
    session = split(*way)
    print(f"{name}: less than 1e-12 from one device:", apart(trained(session), of_one) < 1e-12)
    steps[name] = trace.session_step(session, "train", feed)[1]

# %%
def ran(step, back):
    ops = [op for op in step.ops if "Conv2D" in op.type and ("Backprop" in op.type) == back]
    return " ".join(sorted({op.device for op in ops}))


# %%
for name, step in steps.items():
    print(f"\n{name}: forward on {ran(step, False)}, backward on {ran(step, True)}")
    show_crossing(step)

# %% [markdown]
# All three train correctly, so nobody notices a difference. In the article's way the first device
# computes no convolution. It only keeps their weights, 56,448 bytes, which cross, and the last
# device has all the work and all the activations. Without colocation the first device goes forward,
# but the last one comes back for both and has to fetch the activations. Only with colocation does
# each device work on its own layers, and only the activations at the cut and their gradient cross.
# The notebook measured 23.33 ms a step without the argument on two TitanX, and 20.18 ms with it.

# %% tags=["varies", "cover"]
charts.timeline(steps["with colocation"])
plt.show()

# %% [markdown]
# The devices take turns, as always when a model is split and the batch goes through whole.
#
# ## In pieces
#
# None of the sources pipelines, but their code can be extended. One loop writes the tasks of all
# stages into the graph, in an order in which they can run ([[13]]). `control_dependencies` makes
# each task of a stage wait for the one before:

# %%
def in_pieces(stages, xs, ys, order):
    kept, back, sums, before = {}, {}, {}, {}
    for s, task in schedules.run_times(order):
        (device, part, weights), k = stages[s], int(task[1:])
        with tf.device(device), tf1.control_dependencies(before.get(s, [])):
            if task[0] == "F":
                x = tf.identity(kept[s - 1, k][1] if s else xs[k])
                kept[s, k] = x, part(weights, x)
                before[s] = [kept[s, k][1]]
                continue
            x, made = kept.pop((s, k))
            end = made if (s + 1, k) in back else loss(ys[k], made) / len(xs)
            *found, back[s, k] = tf1.gradients(end, [*weights, x], back.get((s + 1, k)))
            sums[s] = [a + b for a, b in zip(sums[s], found)] if s in sums else found
            before[s] = sums[s]
    return [*sums[0], *sums[1]]

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
# ## Break it
#
# The sources name their devices by hand. What does such a name do on a machine that has no such
# device, without and with soft placement?

# %%
with tf.Graph().as_default(), tf.device("/gpu:99"):
    product = tf.matmul([[2.0]], [[3.0]])
    for soft in [False, True]:
        with tf1.Session(config=plan.session_config(soft_placement=soft)) as session:
            try:
                print(f"soft placement {soft}:", session.run(product))
            except tf.errors.InvalidArgumentError as error:
                print(f"soft placement {soft}:", type(error).__name__)

# %% [markdown]
# With soft placement TensorFlow takes a device that exists and says nothing. So a program that
# names `/gpu:1` and `/gpu:2` can run on one GPU for years. Take the names from `plan.devices`, and
# look at a trace.
#
# | | |
# |---|---|
# | **Use it when** | you have to know what an old program did, or to keep it alive |
# | **It costs** | each wait and device is written by hand, and `compat.v1` gets nothing new |
# | **Instead** | `fit.use` with `stages` and `pieces` ([[12]], [[13]]) |
#
# ## On GPUs
#
# A classic Session compiles nothing with XLA unless it is told to, and `fit` does, so old and new
# times differ for this reason, too. One process has one list of GPUs for all its Sessions:
# `devices.setup` makes it, and `plan.session_config` gives it to each Session.
#
# ## On your own
#
# **1.** Write `tensors(called)`. `called` lists, for the layers in their order, the device in whose
# block each was called. Return how many tensors cross between devices in a training step with
# colocated gradients: activations there, and gradients back.

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
