# %% [markdown]
# # Count memory
#
# A batch of 64 trains, and a batch of 256 ends in a `ResourceExhaustedError`. Would 128 have
# fitted?
#
# **In this lesson** two calls answer this before you train. For our small network, one predicts
# that a step of 512 images holds about 36.2 MB, and the other that 11,802 images fit into 1 GB.
# Only 18.3 kB are weights. Nearly all else is outputs of layers, and the gradients of these
# outputs:
#
# ![Six columns. In the forward pass the outputs of three layers pile up; in the backward pass
# gradients come and outputs go. The peak is at layer 2 of the backward
# pass.](pictures/09_stack.svg)
#
# Each column is a moment of a step. In the **forward pass** each layer computes its output, and the
# output has to stay, because the **backward pass** needs it again. The backward pass begins at the
# last layer. At each layer it takes the gradient of the layer's output, and computes from it the
# gradients of the layer's weights and of the output before. After that, the layer's output and its
# gradient can go. The highest column is the **peak**, which has to fit into the device.
#
# ## The lines to paste
#
# ```python
# from mgpu_helpers import memory
#
# print(memory.predict(model, 256))  # what a step with a batch of 256 would hold
# print(memory.fits(model, 8e9))  # the largest batch if 8 GB are free
# ```
#
# `model` is your compiled Keras model. Both lines count from the graph of the step, and nothing is
# trained. On a GPU, compile the model with `jit_compile=False`. Otherwise Keras uses XLA, which
# rebuilds the step and changes the peak.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import gc

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, memory, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_09 as checks

device, layers = plan.devices[0], keras.layers

# %% [markdown]
# ## Try it
#
# This network for handwritten digits has two convolutions, each followed by a pool:

# %%
def conv(name):
    return layers.Conv2D(8, 3, padding="same", use_bias=False, activation="relu", name=name)


with tf.device(device):
    model = keras.Sequential([
        keras.Input([28, 28, 1]), conv("conv1"), layers.MaxPool2D(name="pool1"), conv("conv2"),
        layers.MaxPool2D(name="pool2"), layers.Flatten(), layers.Dense(10)])  # fmt: skip
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", entropy, jit_compile=False)

# %% tags=["nbval-ignore-output"]
predicted = memory.predict(model, 512)
print(predicted)
print("largest batch in 1 GB:", memory.fits(model, 1e9))

# %% [markdown]
# The line `activations` counts the outputs of the layers and the gradients of these outputs. The
# line `gradients` counts those of the weights, of which none is alive at the peak. **Slots** are
# the numbers that an optimizer keeps for each weight; Adam keeps two.
#
# The prediction has a range, because a real step may run its operations in another order.
# `memory.fits` counts with its upper end.
#
# ## Is it true?
#
# A trace of a real step lists every tensor made and freed. We trace three steps, because TensorFlow
# may choose another order than the picture's, and then hold more. `scratch=False` leaves out what
# an operation borrows only while it runs:

# %%
images, labels = digits.load(512)
with tf.device(device):
    steps = [trace.fit_step(model, (images, labels)) for _ in range(3)]
peaks = [each.peak(device, scratch=False) for each in steps]
step = steps[np.argmin(peaks)]  # in the picture's order
print("all in the range:", predicted.low < min(peaks) <= max(peaks) < predicted.high)

# %% [markdown]
# The chart shows the step that held least, about a tenth less than predicted:

# %% tags=["varies", "cover"]
drawings.within(charts.live_bytes(step, by="tensor"), predicted)
plt.show()

# %% [markdown]
# Before the dashed line the curve climbs with each named output. After the line, each layer adds a
# gradient and frees its own output. The peak comes near the end, because the first layers have the
# largest outputs.
#
# ## It does not fit: what now
#
# Assume that two devices have 25 MB free each. `memory.plan` lists the remedies in the order to try
# them. Each row has the remedy, what the fullest device then holds, and the code to write. A `*`
# marks what fits:

# %% tags=["nbval-ignore-output"]
advice = memory.plan(model, batch=512, devices=2, budget=25e6)
for way in advice.ways:
    fits = "*" if way in advice.fitting else " "
    print(f"{fits} {way.name:31}{memory.size_text(way.held):>8}  {way.write}")

# %% [markdown]
# Four remedies fit. They halve the activations: a device computes half of the batch at a time, or
# keeps half of the bytes of each number. Weights and slots, the "state", are too small here to
# matter.
#
# | | `memory.predict`, `fits` and `plan` |
# |---|---|
# | **Use them when** | a batch does not fit, or before you rent a GPU |
# | **They cost** | a few seconds |
# | **Instead** | `memory.measure`, which traces two small batches |
#
# ## Proof: count it by hand
#
# By the picture, these are alive at the peak: the outputs of the first two layers and the gradients
# of both. For each example, the output of `conv1` has 28 · 28 · 8 = 6272 numbers and the output of
# `pool1` has 14 · 14 · 8 = 1568. Each number has 4 bytes. Are these the four largest tensors at the
# traced peak?

# %%
largest = memory.at_peak(step, device, scratch=False)[:4]
print("numbers for each example:", *[held.bytes // 512 // 4 for held in largest])
print(f"by hand {512 * 4 * 2 * (6272 + 1568):,} bytes,", end=" ")
print(f"traced {sum(held.bytes for held in largest):,}")

# %% [markdown]
# The count is right to the byte, and these four are nearly the whole peak.
#
# ## Break it
#
# Memory that grows from step to step often means that a list keeps too much. Here two loops collect
# the losses of their steps. The first keeps numbers. The second keeps each loss together with its
# tape. A persistent tape holds the outputs of its step even after `gradient`:

# %%
def one_step():
    with tf.device(device), tf.GradientTape(persistent=True) as tape:
        loss = entropy(labels, model(images, training=True))
    tape.gradient(loss, model.trainable_weights)
    return loss, tape


def numbers_only(steps):
    return [float(one_step()[0]) for _ in range(steps)]


def losses_and_tapes(steps):
    return [one_step() for _ in range(steps)]

# %% [markdown]
# Write down what you expect of the second loop. `memory.Monitor` watches what the process holds:

# %% tags=["varies"]
numbers_only(1)  # warm up
with memory.Monitor(every=0.01) as monitor:
    for train in (numbers_only, losses_and_tapes):
        with monitor.phase(train.__name__):
            history = train(8)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# The numbers take next to no memory. With the tapes the curve climbs in every step, and no error
# says so. How many tapes are still alive?

# %%
gc.collect()
alive = sum(type(each) is tf.GradientTape for each in gc.get_objects())
print(alive, "tapes are alive after", len(history), "steps")

# %% [markdown]
# ## On GPUs
#
# > Leave a tenth of the GPU free. TensorFlow took [3 to 9 % more on an
# > H100](../docs/first_ten_minutes_on_a_gpu.md#10-what-an-h100-showed) than a traced step held, and
# > the CUDA context takes a few hundred MB on top. In the chart of `memory.Monitor`, the curve
# > "/GPU:0, handed out" is the memory of the tensors.
#
# ## On your own
#
# ### Exercise 1
#
# Count layers from 0 here. Layer `i` of a network keeps `kept[i]` float32 numbers of each example.
# While the backward pass is at layer `i`, these are alive: the outputs of the layers 0 to `i`, the
# gradient of output `i` and the gradient of output `i - 1`. Layer 0 has no output before it. Write
# `peak`, which returns the bytes of the moment that holds most. With the sizes of `conv1` and
# `pool1`, `peak([6272, 1568], 512)` is 32,112,640.

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
# ### Exercise 2
#
# `train(step, steps)` calls `step()`, which returns a loss and its tape. You want to look at the
# worst step. Change `train` so that it returns the losses as a list of numbers, and the tape of the
# largest loss. When a step begins, only the tape of the largest loss so far may be alive.

# %% tags=["exercise"]
def train(step, steps):
    losses, tapes = zip(*[step() for _ in range(steps)])
    return [*map(float, losses)], tapes[int(np.argmax(losses))]


checks.keeps_one(train)

# %% tags=["solution"]
def train(step, steps):
    losses, worst = [], None
    for _ in range(steps):
        loss, tape = step()
        losses.append(float(loss))
        if losses[-1] == max(losses):
            worst = tape
        del tape  # or it would live until the next step has made another
    return losses, worst


checks.keeps_one(train)

# %% [markdown]
# ## What we saw
#
# - `memory.predict` said what a step would hold without a run, and the traced peaks were in its
#   range.
# - The four largest tensors at the peak held the 32,112,640 bytes that we had counted by hand.
# - A list that kept tapes grew with every step: 8 tapes were alive after 8 steps.
#
# ## In practice
#
# Count with `memory.predict` before you train, and take the first line of `memory.plan` that fits.
# If your inputs have different lengths, count with the longest. If you have no model yet, the
# [calculator](../docs/calculator.md) counts from a number of parameters.
#
# Next: [[next]].
