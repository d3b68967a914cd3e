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
# - read what a step holds from a trace, in the forward and in the backward pass,
# - count it by hand from the shapes of the layers,
# - find the largest batch for a budget, by counting and from traces of small batches,
# - do both with a Keras model of your own,
# - notice a training that keeps more with every step.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import gc

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, memory, trace
from mgpu_helpers.lessons import count, digits, networks
from mgpu_helpers.lessons.checks import lesson_03 as checks

# %% [markdown]
# ## The trouble
#
# Here is a small residual network in Keras. How many bytes do its weights take, and how many does
# one training step hold at once?

# %%
layers = tf.keras.layers
device = plan.devices[0]


def block(x, name):
    out = layers.Conv2D(16, 3, padding="same", name=name)(x)
    out = layers.BatchNormalization(name=f"{name}_norm")(out)
    return layers.Add()([x, layers.ReLU()(out)])


with tf.device(device):
    given = tf.keras.Input((32, 32, 3))
    x = block(block(layers.Conv2D(16, 3, padding="same", name="first")(given), "a"), "b")
    model = tf.keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", "mse")

# %% tags=["nbval-ignore-output"]
pictures, targets = np.ones([256, 32, 32, 3], "float32"), np.zeros([256, 10], "float32")
with tf.device(device):
    step = trace.fit_step(model, (pictures[:64], targets[:64]))
weights = 4 * model.count_params()
print(f"weights: {weights / 1e6:.2f} MB, a step of 64 examples: {step.peak(device) / 1e6:.1f} MB")
assert step.peak(device) > 1000 * weights

# %% [markdown]
# The step holds more than a thousand times the bytes of the weights. Whether 256 examples fit
# hardly depends on the size of the model. It depends on what else a step holds.
#
# ## A stack that grows and shrinks
#
# In the forward pass each layer computes its output, which is called its **activations**. The
# backward pass needs these outputs again, so they have to stay. It begins at the last layer. At
# each layer it turns the gradient of the layer's output into the gradient of the output before it.
# After that, neither the output of the layer nor its gradient is needed any more. Here are three
# layers:
#
# ![Six columns: what is held while three layers run forward and back. The outputs of layers 1, 2
# and 3 pile up; then gradients come and outputs go. The highest column, the peak, is at layer 2 of
# the backward pass: outputs 1 and 2, gradients 2 and 1.](pictures/03_stack.svg)
#
# Each column is a moment. At layer 1 no gradient is passed on, because the images are not trained.
# The peak is in the backward pass. Where the first layers have the largest outputs, as in most
# networks for images, it is near the end of the step.
#
# First a step that is small enough to add up by hand. Its `y` has 1000 rows of 50 float32 numbers,
# so it takes 200,000 bytes. The loss is the sum of its squares. When the backward pass begins, two
# tensors of this size are alive: `y`, and its gradient, which is 2 · `y`.

# %%
with tf.device(device):
    w = tf.Variable(tf.ones([200, 50]))


@tf.function
def by_hand(x):
    with tf.device(device):
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.matmul(x, w))
            loss = tf.reduce_sum(tf.square(y))
        w.assign_sub(0.01 * tape.gradient(loss, w))


_, step = trace.function_step(by_hand, tf.ones([1000, 200]))
print(f"by hand {2 * 1000 * 50 * 4:,} bytes, traced {step.peak(device, scratch=False):,}")

# %% [markdown]
# They are equal to the byte. `scratch=False` leaves out what an operation borrows only while it
# runs, which depends on the library that computes.
#
# ## What a step holds
#
# The next network has three convolutions, each followed by a pool. `width=0.125` makes it an eighth
# as wide as the original, the network of [Wonik Jang's article "Multi-GPUs",
# 2017](../docs/sources.md#jang). Its dropout is off here:

# %%
network = networks.jang(width=0.125)
network

# %% [markdown]
# The table has the shape of each layer's output for one example. Here is a training step in today's
# code, with plain variables and plain gradient descent:

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
# The trace has every allocation. Added up, they are the bytes alive at each moment. TensorFlow may
# run operations in any order in which each finds its inputs ready, so we trace three steps and take
# the one that held least. Look for the dashed line:

# %% tags=["varies", "cover"]
steps = [trace.function_step(train_today, images[:512], labels[:512])[1] for _ in range(3)]
today = min(steps, key=lambda each: each.peak(device))
charts.live_bytes(today)
plt.show()

# %% [markdown]
# Before the line the curve climbs, layer after layer: the activations. After it gradients come on
# top, and then both are freed, layer after layer. The peak is near the end, at the first and
# largest layers. At the end of the step everything has been freed. What is alive at the peak? Here
# are the four largest tensors, in float32 numbers per example:

# %%
for held in memory.at_peak(today, device, scratch=False)[:4]:
    made_in = "backward" if "gradient" in held.op else "forward"
    print(f"{held.bytes / 512 / 4:5.0f} numbers, made in the {made_in} pass")

# %% [markdown]
# These are the outputs of `conv1`, 28 · 28 · 8 = 6272 numbers, and of its pool, 14 · 14 · 8 = 1568
# numbers, and two gradients of the same sizes. In the drawing it is the column "the peak".
#
# ## Count it
#
# So the peak can be counted from the shapes, without a trace:

# %% tags=["nbval-ignore-output"]
outputs = 28 * 28 * 8 + 14 * 14 * 8
counted, traced = 4 * 512 * 2 * outputs, today.peak(device, scratch=False)
print(f"counted {memory.size_text(counted)}, traced {memory.size_text(traced)}")
assert abs(traced / counted - 1) < 0.3

# %% [markdown]
# The trace has a little more: with oneDNN a pool's notes of where it found each maximum, and any
# gradients of weights that still wait to be used. A step that runs in another order may hold one
# tensor more, about a tenth.
#
# What was there before the step began is not in its trace: the batch, the **weights**, and the
# **slots**, which are the numbers that an optimizer keeps for each weight. Adam keeps two.
#
# `count.predict` counts a step of this network, with weights and slots. It goes through the moments
# of the backward pass as in the drawing and takes the one that holds most:

# %% tags=["nbval-ignore-output"]
count.predict(network, 512)

# %% [markdown]
# In this table `gradients` are those of the weights. `activations` are the layers' outputs, the
# pools' notes and the gradients that pass from layer to layer.
#
# ## The same in a graph
#
# Here is the graph-and-session form, with Adam. Its session has one thread for one device, so it
# runs the operations in the same order in every step. That makes it the right place to test the
# count:

# %%
with tf.Graph().as_default() as graph, tf.device(device):
    x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
    y = tf1.placeholder(tf.int64, [None], name="y")
    loss = networks.loss(y, networks.logits(network, networks.classic(network), x))
    tf1.train.AdamOptimizer(1e-3).minimize(loss, name="train")
    initialize = tf1.global_variables_initializer()

# %%
session = tf1.Session(graph=graph, config=plan.session_config(devices=1, soft_placement=True))
session.run(initialize)
train_step = graph.get_operation_by_name("train")


def step_of(batch):
    feed = {"x:0": images[:batch], "y:0": labels[:batch]}
    session.run(train_step, feed)  # the first run prepares the graph
    return trace.session_step(session, train_step, feed)[1]


# %% tags=["nbval-ignore-output"]
classic = step_of(512).peak(device, scratch=False)
print(f"graph {memory.size_text(classic)}, today {memory.size_text(traced)}")
assert abs(traced / classic - 1) < 0.3

# %% [markdown]
# Both forms hold the same large tensors. They may differ by the gradients of the weights. Is the
# count right for other batches too? Each pair of bars is counted above and measured below. The
# trace has the gradients and the activations; the bytes of the weights and of Adam's slots are
# added to it:

# %% tags=["varies", "nbval-ignore-output"]
in_weights = 4 * networks.parameters(network)
bars = {}
for batch in (64, 128, 256, 512):
    bars[f"{batch}\ncounted"] = said = count.predict(network, batch)
    bars[f"{batch}\nmeasured"] = seen = memory.by_use(
        step_of(batch), device, weights=in_weights, slots=2 * in_weights, scratch=False
    )
    print(f"{batch:3}: counted {said.total / 1e6:5.2f} MB, measured {seen.total / 1e6:5.2f} MB")
    assert abs(said.total / seen.total - 1) < 0.1
charts.held(bars)
plt.show()

# %% [markdown]
# Count and measurement are less than 10 % apart. Weights, slots and the gradients of the weights
# stay as they are. Activations grow with the batch, and soon they are nearly everything.
#
# ## Will it fit?
#
# `count.fits` turns the count around: it gives the largest batch for a budget. We trace one step at
# this limit and one with a tenth more examples. The weights and Adam's two slots, three numbers per
# weight, are added:

# %%
budget = 25_000_000
largest = count.fits(network, budget)
for name, batch in [("at the limit", largest), ("a tenth above", largest * 11 // 10)]:
    needed = 3 * in_weights + step_of(batch).peak(device, scratch=False)
    print(name, "fits into 25 MB:", needed <= budget)

# %% [markdown]
# The count was right on both sides of the limit. For a step that nobody has counted, two small
# batches are enough. The peak has a fixed part and a part for each example, which is a straight
# line:

# %% tags=["nbval-ignore-output"]
peaks = [step_of(batch).peak(device, scratch=False) for batch in (64, 128, 1024)]
per_example, fixed = np.polyfit([64, 128], peaks[:2], 1)
said = fixed + 1024 * per_example
print(f"1024 examples: from the line {said / 1e6:.1f} MB, measured {peaks[2] / 1e6:.1f} MB")
assert abs(said / peaks[2] - 1) < 0.1

# %% [markdown]
# What does not fit on one device may fit on several. Here each gets its share of the batch and
# reads the same weights; [[06]] and [[07]] train in this way. Compare the sizes with the peak of
# the curve above:

# %% tags=["nbval-ignore-output"]
def shared(x, y):
    gradients = []
    with tf.device(plan.host):
        shards = zip(tf.split(x, len(plan)), tf.split(y, len(plan)))
    for each, (images_here, labels_here) in zip(plan.devices, shards):
        with tf.device(each):
            with tf.GradientTape() as tape:
                scores = networks.logits(network, variables, images_here)
                loss = networks.loss(labels_here, scores)
            gradients.append(tape.gradient(loss, list(variables.values())))
    return gradients


size = 512 - 512 % len(plan)
_, on_all = trace.function_step(shared, images[:size], labels[:size])
for each in plan.devices:
    print(each, memory.size_text(on_all.peak(each, scratch=False)))

# %% [markdown]
# Each device holds about its share of that peak.
#
# ## Proof
#
# Here is the step that we added up by hand, as a graph. It holds the same 400,000 bytes as the
# function, and at its end nothing:

# %%
with tf.Graph().as_default() as small, tf.device(device):
    x = tf1.placeholder(tf.float32, [1000, 200])
    v = tf1.get_variable("v", [200, 50])
    loss = tf.reduce_sum(tf.square(tf.nn.relu(tf.matmul(x, v))))
    small_step = v.assign_sub(0.01 * tf1.gradients(loss, v)[0]).op

with tf1.Session(graph=small, config=plan.session_config(devices=1)) as small_session:
    small_session.run(v.initializer)
    for _ in range(2):
        tiny = trace.session_step(small_session, small_step, {x: np.ones([1000, 200])})[1]
print(f"function {step.peak(device, scratch=False):,}, graph {tiny.peak(device, scratch=False):,}")
print("held at the end:", step.memory[device][-1][1], "and", tiny.memory[device][-1][1])

# %% [markdown]
# What a step takes, it gives back to TensorFlow's allocator. [[02]] shows what the allocator does
# with it.
#
# ## Break it
#
# **A list that keeps too much.** Two trainings collect their losses. One keeps numbers. The other
# keeps each loss together with its tape, and a persistent tape holds the activations of its step.
# `memory.Monitor` asks in the background how much the process holds:

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
numbers_only(2)  # warm up
with memory.Monitor(every=0.05) as monitor:
    for train in (numbers_only, losses_and_tapes):
        with monitor.phase(train.__name__):
            history = train(8)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# The numbers take next to no memory. Each kept tape holds the activations of 1024 examples, so the
# curve climbs until the list is dropped or memory runs out. On a GPU look at the curve of the
# allocator. The check is to count the tapes that are still alive:

# %%
def tapes():
    gc.collect()
    return sum(type(each) is tf.GradientTape for each in gc.get_objects())


print(tapes(), "tapes are alive after", len(history), "steps")

# %% [markdown]
# **A graph that grows.** In graph code the same mistake is to make operations inside the loop. Each
# round adds some, and nothing takes them away. The check is `finalize`: a finished graph accepts no
# more operations.

# %%
with small.as_default():
    for _ in range(3):
        tf.square(loss)
        print(len(small.get_operations()), "operations")
    small.finalize()
    try:
        tf.square(loss)
    except RuntimeError as error:
        print(error)

# %% [markdown]
# ## With your own model
#
# `memory.predict` takes a Keras model that has been built, makes the graph of the step that `fit`
# would run, with the loss, the metrics and the optimizer that `compile` was given, and counts it.
# Nothing runs. It refuses a model whose inputs have no fixed size, or whose loops run as often as
# the data say. `memory.fits` gives the largest batch of a device for a budget, here the 8 GB of a
# small GPU.
# This is the residual network from the beginning:

# %% tags=["nbval-ignore-output"]
predicted = memory.predict(model, 256)
print(predicted)
print("largest batch in 8 GB:", memory.fits(model, 8e9))

# %% [markdown]
# The outputs of all blocks are equally large here, so the peak comes early in the backward pass,
# when only the last layers have gradients of their weights. The count takes the operations in one
# order, and a real step may take another, so it comes with a range. `fits` goes by its upper end.
#
# Where the model can run, a line through traces of small batches is more accurate. You give
# `memory.measure` a function of the batch size that returns what to trace: a step and its
# arguments. `train_step` is what `fit` runs in each step:

# %% tags=["nbval-ignore-output"]
model.optimizer.build(model.trainable_variables)  # makes the slots before the step
train = tf.function(lambda x, y: model.train_step((x, y)))
with tf.device(device):
    measured = memory.measure(
        lambda b: (train, pictures[:b], targets[:b]), batches=(16, 64), scratch=False
    )
measured.at(256)

# %% [markdown]
# The second number adds the weights and slots. The estimate would warn you if the largest traced
# batch were less than a quarter of the one you ask for, or if the peak moved to another layer
# between the traces. What does a step of 256 examples really hold?

# %% tags=["nbval-ignore-output"]
with tf.device(device):
    real = trace.fit_step(model, (pictures, targets)).peak(device, scratch=False)
sizes = predicted.total, measured.at(256).bytes, real
print("counted {}, measured {}, traced {} MB".format(*[f"{size / 1e6:.1f}" for size in sizes]))
assert predicted.low < real < predicted.high and abs(sizes[1] / real - 1) < 0.2

# %% [markdown]
# The count and the line say 151 MB. The trace is in the range of the count: it says 151 MB too, or,
# where operations ran in another order, one output of 17 MB more.
#
# Watch for two things. A GPU's libraries borrow workspaces, which no count has, so leave a tenth of
# the GPU free. A model whose inputs have different lengths has to be measured with the longest.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Layer `i` of a network keeps `kept[i]` float32 numbers of each example. While the backward
# pass is at layer `i`, the outputs of the layers 0 to `i` are alive, with the gradient of output
# `i` and that of output `i - 1`; layer 0 has no output before it. Write `peak`: the bytes of the
# moment that holds most. With the sizes of `conv1` and its pool, `peak([6272, 1568], 512)` is
# 32,112,640.

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
# **2.** Write `largest_batch`: the largest batch with which a training of the network with momentum
# stays within a budget of bytes. Momentum keeps one number per weight; `count.predict` and
# `count.fits` take `slots=`. The check runs and traces a step of your batch. It accepts what holds
# 90 to 110 % of the budget, since a count is no better than that.

# %% tags=["exercise"]
def largest_batch(network, budget):
    return 1


checks.batch_that_fits(largest_batch)

# %% tags=["solution"]
def largest_batch(network, budget):
    return count.fits(network, budget, slots=1)


checks.batch_that_fits(largest_batch)

# %% [markdown]
# **3.** `train(step, steps)` calls `step()`, which returns a loss and its tape. It should return
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
# - The curve climbed in the forward pass and had its peak in the backward pass, where the
#   largest outputs met their gradients.
# - A step that was added up by hand held 400,000 bytes, as a function and as a graph.
# - Counted from the layers' shapes, four batches were right within a tenth, and so was a line
#   through two small ones. The largest batch for 25 MB fitted, and a tenth more did not.
# - For a Keras model, `memory.predict` said what a batch would hold without a run, and
#   `memory.measure` from two small batches. A trace was in the range.
# - A list of losses that kept tapes grew by the activations of every step.
#
# ## In practice
#
# Use this when a batch does not fit, or before you rent a GPU. It costs about a second to count a
# small model, and two runs of the step for each trace.
#
# - Count with `memory.predict`, measure with `memory.measure`, and leave a tenth of the GPU free
#   for workspaces and the CUDA context.
# - A `ResourceExhaustedError` names the shape that did not fit. Halve the batch, then look at the
#   peak of a trace.
# - Where activations are nearly everything, a smaller batch helps and another optimizer does not.
#   Where weights are, it is the other way round, and the model may have to be split: [[09]].
# - For memory over a whole training on a GPU, TensorFlow's Profiler has a memory viewer.
#
# Next: [[next]].
