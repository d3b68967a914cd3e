# %% [markdown]
# # Train in towers
#
# You train on several devices with a step of your own. If it adds up the gradients of the devices
# instead of averaging them, the training changes, and no error says so.
#
# **In this lesson** you build a step for several devices by hand, prove that it trains as one
# device does, and count what it sends.
#
# ![The host averages the gradients of two devices, the first updates the weights, and both read
# them in the next step.](pictures/07_two_towers.svg)
#
# This is **data parallelism**. Each device gets a part of the batch, its **shard**, and computes
# the gradients of this shard; the work of one device is a **tower**. With two towers, every weight
# moves as on one device, to within 0.01 %.
#
# ## The lines to paste
#
# `fit.use` gives your compiled model a step with the same gradients:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; call it before you make the first tensor
# model = build()  # your compiled model
# model = fit.use(model, plan)
# model.fit(x, y)  # or model.train_on_batch(x, y), in a loop of your own
# ```
#
# **You need** [[01]] and [[06]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, towers, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_07 as checks

layers = keras.layers
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# %% [markdown]
# ## Try it
#
# We train a small convolutional network on 840 handwritten digits, all in one batch, so an epoch is
# one step:

# %%
first = plan.devices[0]
x, y = digits.load(840)


def build(optimizer=None):
    keras.utils.set_random_seed(9)
    with tf.device(first):
        convolution = partial(layers.Conv2D, padding="same", activation="relu")
        stack = [convolution(32, 7), layers.MaxPool2D(4), convolution(16, 3), layers.Flatten()]
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile(optimizer or keras.optimizers.SGD(0.3), entropy)
        model.optimizer.build(model.trainable_variables)
    return model


# %%
model = fit.use(build(), plan)
history = model.fit(x, y, batch_size=840, epochs=5, shuffle=False, verbose=0).history
print("losses of five steps:", np.round(history["loss"], 2))

# %% [markdown]
# ## By hand, with one weight
#
# The smallest model has one weight w. Our whole batch, the **global batch**, has 210 ones, 210
# twos, 210 threes and 210 fours. The loss is the mean of (w·x)², so its gradient is the mean of
# 2wx². Here it is for w = 1, of the global batch and of each shard:

# %%
def slope(x, w=1.0):
    return tf.reduce_mean(2 * w * x**2)


def mean(column):
    return tf.add_n(column) / len(column)


# %%
numbers = tf.repeat([1.0, 2.0, 3.0, 4.0], 210)
shards = tf.split(numbers, len(plan))
print(f"global batch: {slope(numbers):.1f}")
print("shards:      ", *(f"{slope(shard):.1f}" for shard in shards))
print(f"their mean:   {mean([slope(shard) for shard in shards]):.1f}")

# %% [markdown]
# The mean of the shards' gradients is the gradient of the global batch, because the shards are
# equally large.
#
# ## For any model
#
# `make_step` does the same for a Keras model. The host cuts the batch with `towers.split`, and
# `towers.run` calls `tower` on each device with its shard. `zip` then collects the gradients of a
# weight from all devices in a column, and the host takes the mean of each column:

# %%
def make_step(model, places, together=mean):
    weights = model.trainable_variables

    def tower(x, y):
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True))
        return [loss, *tape.gradient(loss, weights)]

    @tf.function
    def step(x, y):
        shards = [towers.split(part, len(places)) for part in (x, y)]
        losses, *columns = zip(*towers.run(tower, places, *shards))
        with tf.device(plan.host):
            loss, gradients = mean(losses), [together(column) for column in columns]
        with tf.device(first):  # where the weights are
            model.optimizer.apply(gradients, weights)
        return loss

    return step


# %% [markdown]
# ## The proof
#
# Plain SGD moves a weight by its gradient times the learning rate. So if a step moves every weight
# as one device does, all of its gradients are right. `difference` compares two models after a step.
# For each kernel and bias it takes the largest difference, as a share of the largest change since
# `start`, the weights before the step:

# %%
def difference(ours, theirs):
    columns = zip(start, ours.get_weights(), theirs.get_weights())
    return max(np.abs(a - b).max() / np.abs(b - begin).max() for begin, a, b in columns)


# %%
one, by_hand, by_fit = build(), build(), fit.use(build(), plan)
start = one.get_weights()
step = make_step(by_hand, plan.devices)

with tf.device(first):
    one.train_on_batch(x, y)
step(x, y)
by_fit.train_on_batch(x, y)
print("by hand, below 1e-4 from one device:", difference(by_hand, one) < 1e-4)
print("fit.use, below 1e-4 from one device:", difference(by_fit, one) < 1e-4)

# %% [markdown]
# Here is the step by hand on one device and on all:

# %% tags=["varies", "cover"]
def shortest(step):
    return min((trace.function_step(step, x, y)[1] for _ in range(3)), key=lambda t: t.length)


traces = {"One device": shortest(make_step(one, [first])), "All devices": shortest(step)}
drawings.steps(traces, line="all gradients are averaged", last=True)
plt.show()

# %% [markdown]
# The towers compute at the same time, so on two free cores the step takes about half as long. At
# the black line both are done and their gradients averaged, and the update can begin.
#
# ## Break it
#
# Now we add up the gradients, first with SGD and then with Adam. Write down what the losses will
# do:

# %%
def losses(together, optimizer):
    step = make_step(build(optimizer), plan.devices, together)
    return np.round([float(step(x, y)) for _ in range(5)], 2)


for kind, rate in [(keras.optimizers.SGD, 0.3), (keras.optimizers.Adam, 0.003)]:
    print(f"{kind.__name__:5} mean:", losses(mean, kind(rate)))
    print(f"{kind.__name__:5} sum: ", losses(tf.add_n, kind(rate)))

# %% [markdown]
# With SGD the sum acts like a learning rate twice as large, which you see only if you compare with
# one device. With Adam you do not see it even then, because Adam divides each gradient by its usual
# size. It shows when you clip the gradients or change the optimizer. So prove a step of your own
# with SGD.
#
# ## What crosses
#
# The trace also has the bytes that the step by hand sent:

# %%
weights = sum(value.nbytes for value in start)
print(f"weights, and so the gradients of a tower: {weights:,} bytes")
for (source, target), size in sorted(traces["All devices"].bytes_between().items()):
    print(f"{source} to {target}: {size:,} bytes")

# %% [markdown]
# The host, `/CPU:0`, sends each device its shard of 1,320,480 bytes, and the first also the mean
# gradients. Each device sends the host its gradients, and a loss of 4 bytes. The second device
# reads the weights from the first.
#
# ## A ring
#
# A device that averages for all has to send the mean to every other one. GPUs average among
# themselves instead, in an **all-reduce**, after which each has the mean. In a **ring**, each
# device sends only to its neighbour. It cuts its gradients into as many pieces as there are
# devices, here four. Device 0 starts with ones, device 1 with tens, and so on:
#
# ![Four devices in a ring, and what each holds after each of six
# rounds.](pictures/07_ring_of_four.svg)
#
# In the first three rounds, each device adds what it receives to its own piece, which is framed,
# and sends this sum on in the next round. Then each device has one finished sum, 1111. In the last
# three rounds the finished sums go around. Divided by 4, they are the mean.
#
# The table shows what the busiest device sends, as a multiple of all gradients:
#
# | devices | 2 | 4 | 8 | n |
# |---|--:|--:|--:|--:|
# | one averages for all | 1 | 3 | 7 | n - 1 |
# | ring | 1 | 1.5 | 1.75 | 2 (n - 1) / n |
#
# | | `fit.use(model, plan)` |
# |---|---|
# | **Use it when** | a device computes for much longer than its weights and gradients travel |
# | **It costs** | in each step the other devices read the weights and send their gradients |
# | **Instead** | `fit.strategy`: each GPU updates a copy of its own, and only gradients cross |
#
# ## On GPUs
#
# Give each GPU a large shard: with a small one, operations take longer to start than to run, and a
# second GPU gains nothing.
#
# ## On your own
#
# **1.** If shards differ in size, their plain mean is wrong. Write
# `weighted_average(tower_gradients, sizes)`, in which each shard counts by its size.
# `tower_gradients` has a list of plain tensors for each tower.

# %% tags=["exercise"]
def weighted_average(tower_gradients, sizes):
    return [mean(column) for column in zip(*tower_gradients)]


checks.weighted_average(weighted_average)

# %% tags=["solution"]
def weighted_average(tower_gradients, sizes):
    shares = [size / sum(sizes) for size in sizes]
    return [sum(s * g for s, g in zip(shares, each)) for each in zip(*tower_gradients)]


checks.weighted_average(weighted_average)

# %% [markdown]
# **2.** `make_step` sends gradients to the host as float32. Write `half_the_bytes(vectors)`, where
# `vectors` lists a vector for each device of the plan, already on that device. Each device sends
# its vector to the host as float16, and the host adds them as float32 and returns the mean. In the
# check, operations that you do not place run on the first device.

# %% tags=["exercise"]
def half_the_bytes(vectors):
    with tf.device(plan.host):
        return tf.add_n(vectors) / len(vectors)


checks.half_the_bytes(half_the_bytes)

# %% tags=["solution"]
def half_the_bytes(vectors):
    small = []
    for device, vector in zip(plan.devices, vectors):
        with tf.device(device):
            small.append(tf.cast(vector, tf.float16))
    with tf.device(plan.host):
        return tf.add_n([tf.cast(each, tf.float32) for each in small]) / len(vectors)


checks.half_the_bytes(half_the_bytes)

# %% [markdown]
# ## What we saw
#
# - The gradients of two shards were 5.0 and 25.0. The gradient of the batch was their mean, 15.0.
# - Both steps on all devices moved every weight as one device does, to 1e-4.
# - SGD showed in its losses that a step added gradients, and Adam did not.
#
# ## In practice
#
# Use `fit` under `fit.strategy` or `fit.use`. If you change the step itself, start from
# `make_step`. It needs shards of one size, it leaves out regularization losses, and its
# BatchNormalization takes the statistics of one shard.
#
# Next: [[next]].
