# %% [markdown]
# # Count memory
#
# A batch of 64 trains, and a batch of 256 ends in a `ResourceExhaustedError`. Would 128 have
# fitted? The size of the model does not tell you, because most of what a training step holds is not
# the model.
#
# **In this lesson** you say what a training step will hold, and the largest batch that fits, before
# you train.
#
# **You will learn** to
# - count what a step of your own Keras model holds,
# - find what to do when a step does not fit,
# - read what a step holds from a trace, in the forward and in the backward pass,
# - count it by hand from the shapes of the layers,
# - notice a training that keeps more with every step.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import gc

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, memory, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_03 as checks

# %% [markdown]
# ## The lines to paste
#
# Here is a small residual network in Keras. Put your own compiled model in its place:

# %%
layers = tf.keras.layers
device = plan.devices[0]


def block(x, name):
    out = layers.Conv2D(16, 3, padding="same", name=name)(x)
    out = layers.BatchNormalization(name=f"{name}_norm")(out)
    return layers.Add()([x, layers.ReLU()(out)])


# %%
with tf.device(device):
    given = tf.keras.Input((32, 32, 3))
    x = block(block(layers.Conv2D(16, 3, padding="same", name="first")(given), "a"), "b")
    model = tf.keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", "mse", jit_compile=False)

# %% [markdown]
# Two lines say what a step of `fit` would hold with a batch of 256, and which batch would fit if
# 8 GB of a GPU are free. Nothing runs: both count from the graph of the step, with its loss, its
# metrics and its optimizer.

# %% tags=["nbval-ignore-output"]
predicted = memory.predict(model, 256)
print(predicted)
print("largest batch in 8 GB:", memory.fits(model, 8e9))

# %% [markdown]
# The weights take hundredths of a megabyte, and the step holds more than a thousand times as much.
# The **slots** are the numbers that an optimizer keeps for each weight; Adam keeps two. "Gradients"
# are the weights' gradients that are alive at the **peak**, the moment at which most is held.
# Nearly everything is "activations": the outputs of the layers and the gradients of these outputs.
#
# Is the prediction true? A trace of a step with 256 examples lists every allocation and release.
# Added up, they give the bytes alive at each moment; in your own code `charts.live_bytes(step)`
# draws them. Below, the predicted range is pale. `scratch=False` leaves out the memory that an
# operation borrows while it runs; how much that is depends on the library. Look for the highest
# place:

# %% tags=["varies", "nbval-ignore-output"]
pictures, targets = np.ones([256, 32, 32, 3], "float32"), np.zeros([256, 10], "float32")
with tf.device(device):
    real = trace.fit_step(model, (pictures, targets))
seen = real.peak(device, scratch=False)
low, high, traced = map(memory.size_text, (predicted.low, predicted.high, seen))
print(f"predicted {low} to {high}, traced {traced}")
assert predicted.low < seen < predicted.high
drawings.within(charts.live_bytes(real), predicted)
plt.show()

# %% [markdown]
# The peak is in the range. There is a range because a real step may run its operations in another
# order, and hold an output longer. `memory.fits` counts with the upper end of the range. On
# a GPU, Keras compiles `fit` with XLA, and the step has another peak. The
# count holds there only if you compile the model with `jit_compile=False`, as here.
#
# | `memory.predict`, `memory.fits` | |
# |---|---|
# | Use them when | a batch does not fit, or before you rent a GPU |
# | They cost | about a second for a small model, some seconds for a large one |
# | Instead | `memory.measure`: traces two small batches, and takes your own step, too |

# %% [markdown]
# ## It does not fit: what now
#
# `memory.plan` counts a step as it is, and then with each remedy, in the order in which to try
# them. Here it counts the model above for two devices of 100 MB. Each size is that of the device
# that holds more. The last column is the code to write, with `fit` from `mgpu_helpers`. The line
# for `mixed_bfloat16` goes before the model is built, the others after it:

# %% tags=["nbval-ignore-output"]
advice = memory.plan(model, batch=256, devices=2, budget=100e6)
for way in advice.ways:
    fits = "*" if way in advice.fitting else " "
    print(f"{fits} {way.name:31}{memory.size_text(way.held):>8}  {way.write}")

# %% [markdown]
# `fit.use(model, plan)` shares out the batches of a built model. The ways that fit have a `*`: they
# halve the activations. Moving weights and slots saves nothing: they are small here. bfloat16 saves
# only a fifth, because batch normalization computes in float32. [[10]] and [[11]] explain the
# remedies.

# %% [markdown]
# ## A stack that grows and shrinks
#
# Why did the curve of the trace climb and fall? In the forward pass each layer computes its output.
# The backward pass needs these outputs again, so they have to stay. This pass begins at the last
# layer. At each layer it turns the gradient of the layer's output into the gradient of the layer's
# weights and that of the output before it. After that, neither the output of the layer nor its
# gradient is needed any more. Here are three layers, and each column is a moment:
#
# ![Six columns: what is held while three layers run forward and back. The outputs of layers 1, 2
# and 3 pile up; then gradients come and outputs go. The highest column, the peak, is at layer 2 of
# the backward pass: outputs 1 and 2, gradients 2 and 1.](pictures/03_stack.svg)
#
# If all large outputs have the same size, as in the model above, the peak is in the first half of
# the backward pass. If the outputs shrink fast, as in the network below, it is near the end. At
# layer 1 no gradient is passed on, because the images are not trained.

# %% [markdown]
# ## What a step holds
#
# The next network has three convolutions, each followed by a pool. `width=0.125` makes it an eighth
# as wide as the original, the network of [Wonik Jang's article "Multi-GPUs",
# 2017](../docs/sources.md#jang). Its dropout is off here. No output is larger than those of its
# first two layers:

# %%
network = networks.jang(width=0.125)
print(*str(network).splitlines()[:6], sep="\n")

# %% [markdown]
# Here is a training step with plain variables and plain gradient descent:

# %%
variables = networks.variables(network, device=device)
images, labels = digits.load(1024)


@tf.function
def train_today(x, y):
    with tf.device(device):
        with tf.GradientTape() as tape:
            loss = networks.loss(y, networks.logits(network, variables, x))
        gradients = tape.gradient(loss, list(variables.values()))
        for weight, gradient in zip(variables.values(), gradients):
            weight.assign_sub(0.01 * gradient)


# %% [markdown]
# TensorFlow may run any operation whose inputs are ready, and some orders hold more than others. So
# we trace three steps and take the one that held least: it ran in the drawing's order. Each place
# to the right is one large tensor made or freed; names mark outputs. Look for the dashed line:

# %% tags=["varies", "cover"]
steps = [trace.function_step(train_today, images[:512], labels[:512])[1] for _ in range(3)]
today = min(steps, key=lambda each: each.peak(device, scratch=False))
drawings.climb(today, device)
plt.show()

# %% [markdown]
# Before the dashed line the curve climbs with the output of each layer. After it each layer adds a
# gradient and frees its own output, so the peak comes only at the first layers, the largest.
#
# ## Count it by hand
#
# By the drawing, four tensors of the first layers are alive at the peak: the output of `conv1`,
# 28 · 28 · 8 = 6272 float32 numbers for each example, that of its pool, 14 · 14 · 8 = 1568 numbers,
# and the gradients of both. Are these the four largest tensors alive at the peak of the trace?

# %%
largest = memory.at_peak(today, device, scratch=False)[:4]
for held in largest:
    made_in = "backward" if "gradient" in held.op else "forward"
    print(f"{held.bytes / 512 / 4:5.0f} numbers for each example, made in the {made_in} pass")
print(f"by hand {512 * 4 * 2 * (6272 + 1568):,} bytes,", end=" ")
print(f"traced {sum(held.bytes for held in largest):,}")

# %% [markdown]
# The count by hand is right to the byte, and these four tensors are nearly the whole peak. On
# Intel's and AMD's processors the pool also keeps a byte for each of its 1568 outputs, the place of
# the largest input. Steps that run in another order may hold other small tensors at the peak. A
# trace counts only what the step makes, so weights
# and slots come on top.
#
# ## Break it
#
# **A list that keeps too much.** Two loops collect the losses of their steps. One keeps numbers.
# The other keeps each loss together with its tape, and a persistent tape holds the outputs of its
# step. `memory.Monitor` asks in the background how much the process holds:

# %%
def one_step():
    with tf.GradientTape(persistent=True) as tape:
        loss = networks.loss(labels, networks.logits(network, variables, images))
    tape.gradient(loss, list(variables.values()))
    return loss, tape


def numbers_only(steps):
    return [float(one_step()[0]) for _ in range(steps)]


def losses_and_tapes(steps):
    return [one_step() for _ in range(steps)]


# %% tags=["varies"]
numbers_only(1)  # warm up
with memory.Monitor(every=0.01) as monitor:
    for train in (numbers_only, losses_and_tapes):
        with monitor.phase(train.__name__):
            history = train(8)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# The numbers take next to no memory. Each kept tape holds the outputs of 1024 examples, so the
# curve climbs until the list is dropped or memory runs out. On a GPU look at the curve of `/GPU:0`,
# "handed out". The check is to count the tapes that are still alive:

# %%
def tapes():
    gc.collect()
    return sum(type(each) is tf.GradientTape for each in gc.get_objects())


print(tapes(), "tapes are alive after", len(history), "steps")

# %% [markdown]
# ## On GPUs
#
# Workspaces of a GPU's libraries and the CUDA context, a few hundred megabytes, are not counted:
# leave a tenth of the GPU free. The first step may hold far more for a moment, probably while cuDNN
# tries its algorithms; `get_memory_info` then gives that as the peak. A model whose inputs have
# different lengths has to be counted with the longest.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Layers count from 0 here, not from 1 as in the drawing. Layer `i` of a network keeps
# `kept[i]` float32 numbers of each example. While the backward pass is at layer `i`, the outputs of
# the layers 0 to `i` are alive, with the gradient of output `i` and that of output `i - 1`; layer 0
# has no output before it. Write `peak`: the bytes of the moment that holds most. With the sizes of
# `conv1` and its pool, `peak([6272, 1568], 512)` is 32,112,640.

# %% tags=["exercise"]
def peak(kept, batch):
    return 0


checks.peak_of_a_stack(peak)

# %% tags=["solution"]
def peak(kept, batch):
    before = [0, *kept[:-1]]
    moments = [sum(kept[: i + 1]) + kept[i] + before[i] for i in range(len(kept))]
    return 4 * batch * max(moments)


checks.peak_of_a_stack(peak)

# %% [markdown]
# **2.** `train(step, steps)` calls `step()`, which returns a loss and its tape. It should return
# the losses as a list of numbers. Change it so that no tape of an earlier step is alive when the
# next step begins. The check counts them.

# %% tags=["exercise"]
def train(step, steps):
    return [step() for _ in range(steps)]


checks.lets_go(train)

# %% tags=["solution"]
def train(step, steps):
    losses = []
    for _ in range(steps):
        loss, tape = step()
        losses.append(float(loss))
        del tape  # or it would live until the next step has made another
    return losses


checks.lets_go(train)

# %% [markdown]
# ## What we saw
#
# - A step of a small network held more than a thousand times the bytes of its weights.
# - `memory.predict` said what a batch would hold without a run, and a trace was in its range.
# - The curves climbed in the forward pass and had their peak in the backward pass, where
#   large outputs met their gradients.
# - The four largest tensors at a peak held the 32,112,640 bytes that we had counted by hand.
# - A list of losses that kept tapes grew by the outputs of every step.
#
# ## In practice
#
# Count with `memory.predict` before you train, and take the first line of `memory.plan` that fits.
# Where activations are nearly everything, a smaller batch helps and another optimizer does not.
# Where weights and slots dominate, change the optimizer, not the batch.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# This graph is small enough to count. Its `y` has 1000 rows of 50 float32 numbers, so it takes
# 200,000 bytes, and the loss is the sum of its squares. When the backward pass begins, `y` and its
# gradient are alive. So the step should peak at 400,000 bytes, and free them all:

# %%
with tf.Graph().as_default() as small, tf.device(device):
    x = tf1.placeholder(tf.float32, [1000, 200])
    v = tf1.get_variable("v", [200, 50])
    y = tf.nn.relu(tf.matmul(x, v))
    loss = tf.reduce_sum(tf.square(y))
    small_step = v.assign_sub(0.01 * tf1.gradients(loss, v)[0]).op
    small.finalize()  # from here on it takes no more operations

with tf1.Session(graph=small, config=plan.session_config(devices=1)) as small_session:
    small_session.run(v.initializer)
    for _ in range(2):
        tiny = trace.session_step(small_session, small_step, {x: np.ones([1000, 200])})[1]
print(f"peak {tiny.peak(device, scratch=False):,}, at its end {tiny.memory[device][-1][1]}")

# %% [markdown]
# Another leak is a loop that adds operations, because its graph grows with every round. After
# `finalize` such a loop fails in its first round:

# %%
try:
    with small.as_default():
        tf.square(v)
except RuntimeError as error:
    print(error)
