# %% [markdown]
# # Pipeline it
#
# You have cut a model over two GPUs, and now it fits. But each GPU waits for the other, so you pay
# for two and get hardly the speed of one.
#
# **In this lesson** a batch goes through the stages in pieces, so that both devices work at the
# same time. In this drawing a step takes 16 units of time in one piece, and 10 in four:
#
# ![Two stages over time. In one piece, each waits while the other computes. In four pieces, they
# overlap, and B0 comes before F2.](pictures/13_bubble.svg)
#
# Each box is a **task**, the work of one stage on one piece. Pieces count from 0: `F2` takes piece
# 2 forward, and `B2` takes it back. In one piece, a stage waits for half of the step, and in four
# pieces for a fifth. Such a piece is also called a **micro-batch**, and the time in which stages
# wait is the **pipeline bubble**.
#
# ## The lines to paste
#
# If your model is already split, add `pieces`:
#
# ```python
# model = fit.use(model, plan, stages=2, pieces=4)
# model.fit(images, labels)
# ```
#
# **You need** [[12]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import warnings
from functools import partial

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, pipeline, trace
from mgpu_helpers.lessons import digits, schedules
from mgpu_helpers.lessons.checks import lesson_13 as checks
from mgpu_helpers.lessons.state import apart

layers = keras.layers
first, last = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## See both devices work
#
# The network has nine dense layers, and `staged` cuts it into one stage for each device:

# %%
images, labels = digits.load(2048)
images = images.reshape(2048, 784)


def compiled(*stack):
    model = keras.Sequential([keras.Input([784]), *stack, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    return model

# %%
def build():
    keras.utils.set_random_seed(0)
    return compiled(*[layers.Dense(256, "relu", kernel_initializer="he_normal") for _ in range(8)])


def staged(make, pieces, **options):
    with tf.device(plan.host):
        model = make()
    return fit.use(model, plan, stages=len(plan), pieces=pieces, **options)

# %% [markdown]
# We trace a step in one piece, and a step in four. Dark boxes go forward, pale ones back. In a
# white gap the device is idle:

# %% tags=["varies", "cover"]
steps = {m: trace.fit_step(staged(build, m), (images, labels)) for m in [1, 4]}
for m, step in steps.items():
    ax = charts.pipeline(step)
    ax.set_title(f"Pieces: {m}", loc="left")
    ax.set_xlim(0, 1e3 * max(each.length for each in steps.values()))
    plt.show()

# %% [markdown]
# In one piece the devices nearly take turns. In four pieces both often work at once, each on
# another piece. A device does not wait for exactly a fifth of the step, because going back takes
# longer than going forward, and the second stage has more work.
#
# ## By hand
#
# Do pieces give the right gradient? Two stages that only multiply are enough to see it: the first
# by `a`, which is 2, and the second by `b`, which is 3. The batch is 1, 2, 3 and 4, with a mean of
# 2.5, and the loss is the mean of the outputs. So the gradient of `a` has to be 3 · 2.5 = 7.5, and
# that of `b` 2 · 2.5 = 5.

# %%
with tf.device(first):
    a = tf.Variable(2.0)
with tf.device(last):
    b = tf.Variable(3.0)

# %% [markdown]
# `forward` runs a stage under a tape and keeps what its backward pass needs. `back` takes the
# gradient of the stage's output and returns those of its weight and of its input, which the stage
# before needs.

# %%
def forward(device, weight, x):
    with tf.device(device), tf.GradientTape() as tape:
        tape.watch(x)
        return tape, x, weight * x


def back(device, weight, kept, gradient):
    tape, x, made = kept
    with tf.device(device):
        return tape.gradient(made, [weight, x], gradient)

# %% [markdown]
# The batch goes through in two pieces. The loss is the mean of four outputs, so its gradient is a
# quarter for each of them:

# %%
quarters = tf.fill([2], 0.25)
front0 = forward(first, a, tf.constant([1.0, 2.0]))  # F0 of the first stage
rear0 = forward(last, b, front0[-1])
front1 = forward(first, a, tf.constant([3.0, 4.0]))  # F1 of the first stage, beside rear0
of_b0, gradient0 = back(last, b, rear0, quarters)
rear1 = forward(last, b, front1[-1])
of_a0, _ = back(first, a, front0, gradient0)  # B0 of the first stage, beside rear1
of_b1, gradient1 = back(last, b, rear1, quarters)
of_a1, _ = back(first, a, front1, gradient1)

# %%
print(f"gradient of a: {of_a0.numpy()} + {of_a1.numpy()} = {of_a0.numpy() + of_a1.numpy()}")
print(f"gradient of b: {of_b0.numpy()} + {of_b1.numpy()} = {of_b0.numpy() + of_b1.numpy()}")

# %% [markdown]
# The gradients of the pieces add up to that of the whole batch. `fit.use` puts all these tasks into
# one graph, in which a device waits only for what it needs, and updates the weights once.
#
# ## Two orders
#
# In **all forward first**, all pieces go forward, and then all go back. In **one forward, one
# back** (**1F1B**), a stage takes a piece back as soon as it can. In these tables a line is a
# stage, a column is a unit of time, and a dot is a wait:

# %%
orders = {"all forward first": pipeline.all_forward, "1F1B": pipeline.one_forward_one_backward}
for name, order in orders.items():
    print(name, schedules.table(order(stages=2, pieces=4)), sep="\n", end="\n\n")

# %% [markdown]
# Both orders take equally long. With p stages and m pieces, a stage works in 2m columns and waits
# in 2 (p - 1). So the bubble is a share of (p - 1)/(m + p - 1), here a fifth.
#
# But the orders differ in memory, because a stage holds the activations of a piece from its `F` to
# its `B`. In *all forward first* the first stage holds four pieces at once, and in 1F1B it holds
# two. This is what a step adds to the first device at its peak:

# %% tags=["nbval-ignore-output"]
forward_first = trace.fit_step(staged(build, 4, schedule="all forward first"), (images, labels))
named = {"one piece": steps[1], "four, all forward first": forward_first, "four, 1F1B": steps[4]}
held = {name: step.peak(first, scratch=False) / 1e6 for name, step in named.items()}
for name, size in held.items():
    print(f"{name:24} {size:.1f} MB")

# %% [markdown]
# *All forward first* saves little, so `fit.use` takes 1F1B unless you name another `schedule`.
#
# ## Proof
#
# We compare three steps in four pieces with three on one device, in float64, where rounding hides
# no mistake. A batch of 150 images does not divide into four equal pieces, so some have an image
# more, and each counts by its size:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def trained(model):
    model.fit(images[:150], labels[:150], batch_size=150, epochs=3, verbose=0)
    return model.get_weights()

# %%
with tf.device(first):
    begin, of_one = build().get_weights(), trained(build())
print("less than 1e-12 from one device:", apart(trained(staged(build, 4)), of_one) < 1e-12)
print("training moved the weights by more than 0.01:", apart(begin, of_one) > 0.01)

# %% [markdown]
# ## Break it
#
# BatchNormalization subtracts the mean of the batch and divides by its standard deviation. In
# pieces, both are those of a piece. LayerNormalization looks at each example alone. Write down what
# you expect: which of the two trains in two pieces as on one device?

# %%
def normed(norm):
    keras.utils.set_random_seed(0)
    block = [layers.Dense(32), norm(name="norm"), layers.ReLU()]
    return compiled(*block, layers.Dense(32), layers.Dense(32))


# %%
for norm in [layers.BatchNormalization, layers.LayerNormalization]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        of_two = trained(staged(partial(normed, norm), 2))
    with tf.device(first):
        of_one = trained(normed(norm))
    print(norm.__name__, "less than 1e-12 from one device:", apart(of_two, of_one) < 1e-12)
    print(*(each.message for each in said))

# %% [markdown]
# With BatchNormalization the weights become others. So take LayerNormalization, or keep the pieces
# large.
#
# | | |
# |---|---|
# | **Use it when** | a model has to be split, and a piece is enough work for a device |
# | **It costs** | smaller operations, and a larger graph |
# | **Instead** | if the model fits on one device, share out the batch ([[01]]) |
#
# ## On GPUs
#
# A GPU needs some microseconds to start an operation, however small. If that takes longer than to
# compute it, more pieces make a step slower. In [PyTorch's
# tutorial](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html), ResNet-50 cut
# over two GPUs was 7 % slower than on one, and in pieces 49 % faster.
#
# ## On your own
#
# **1.** With three stages, 1F1B lets the first stage hold three pieces, each from its `F` to its
# `B`, the second two and the last one. Write `two_at_most(stages, pieces)`, an
# order in which no stage ever holds more than two, and which is faster than finishing each piece
# before the next one starts. Return a list for each stage, of texts such as `"F0"`.

# %% tags=["exercise"]
print(schedules.table(pipeline.one_forward_one_backward(3, 4)))


def two_at_most(stages, pieces):
    return pipeline.one_forward_one_backward(stages, pieces)


checks.two_at_most(two_at_most)

# %% tags=["solution"]
def two_at_most(stages, pieces):
    order = []
    for stage in range(stages):
        ahead = min(2, stages - stage, pieces)
        tasks = [f"F{k}" for k in range(ahead)]
        for k in range(pieces):
            tasks.append(f"B{k}")
            if k + ahead < pieces:
                tasks.append(f"F{k + ahead}")
        order.append(tasks)
    return order


checks.two_at_most(two_at_most)

# %% [markdown]
# **2.** Write `fewest(stages, batch, percent)`: the smallest number of equal pieces into which a
# batch of `batch` examples can be cut so that the bubble is at most `percent` percent of the step.
# Return 0 if there is no such number. All tasks take equally long.

# %% tags=["exercise"]
def fewest(stages, batch, percent):
    return stages


checks.fewest(fewest)

# %% tags=["solution"]
def fewest(stages, batch, percent):
    for pieces in range(1, batch + 1):
        small = 100 * (stages - 1) <= percent * (pieces + stages - 1)
        if small and batch % pieces == 0:
            return pieces
    return 0


checks.fewest(fewest)

# %% [markdown]
# ## What we saw
#
# - In pieces, both devices worked at the same time, and the weights were less than 1e-12 from those
#   of one device.
# - The gradients of two pieces added up to those of the whole batch, 7.5 and 5.0.
# - 1F1B held less than *all forward first*, and BatchNormalization changed the weights.
#
# ## Compared with other ways
#
# In the small Transformer of [[01]], four pieces halve what a step adds. On two cores they
# take as long as one device, and one piece takes longer:
#
# [[ways: 00 01 12]]
#
# ## In practice
#
# Add `pieces` to the line that splits your model, time some steps with 1, 2, 4 and 8, and keep the
# fastest.
#
# Next: [[next]].
