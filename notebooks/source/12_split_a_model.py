# %% [markdown]
# # Split a model
#
# Your model does not fit on one GPU, even with a small batch. More replicas do not help, because
# each of them holds the whole model.
#
# **In this lesson** one line cuts a network between its layers, and `fit` trains it on two devices.
# A step that needs over 30 MB on one device then needs 17 MB on the first and 19 MB on the second.
#
# ![The first device has conv1 to conv3, the second fc1, output and the loss. Activations cross the
# cut, and their gradient comes back.](pictures/12_cut_network.svg)
#
# Each device has a **stage**, a part of the layers together with their weights. Of two stages, we
# call the first the **front** and the second the **rear**. Only the activations at the cut and
# their gradient cross.
#
# ## The lines to paste
#
# ```python
# import tensorflow as tf
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; call it before you make the first tensor
# with tf.device(plan.host):  # no GPU has room for the whole model
#     model = build()  # your code makes and compiles the model here
# model = fit.use(model, plan, stages=len(plan))
# model.fit(images, labels)
# ```
#
# **You need** [[04]] and [[09]].

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

from mgpu_helpers import charts, fit, pipeline, trace
from mgpu_helpers.lessons import digits, drawings, halves
from mgpu_helpers.lessons.checks import lesson_12 as checks
from mgpu_helpers.lessons.state import apart, show, show_crossing, use_of, uses_of

layers = keras.layers
entropy = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
first, last = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## The network
#
# We take the network of Wonik Jang's article of 2017 ([source](../docs/sources.md#jang)), about a
# quarter as wide: three convolutions and two dense layers. Most of its weights are in `fc1`:

# %%
def body():
    stack = []
    for i, filters in enumerate([16, 16, 32], 1):
        conv = {"padding": "same", "activation": "relu", "use_bias": False, "name": f"conv{i}"}
        stack += [layers.Conv2D(filters, 3, **conv), layers.MaxPooling2D(padding="same")]
    return [*stack, layers.Flatten()]


def head():
    wide = layers.Dense(1800, "relu", use_bias=False, name="fc1")
    return [wide, layers.Dense(10, use_bias=False, name="output")]

# %%
def build(optimizer="adam"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([28, 28, 1]), *body(), *head()])
    model.compile(optimizer, entropy(), jit_compile=False)
    return model


images, labels = digits.load(128)
train = {"x": images, "y": labels, "batch_size": 128, "epochs": 3, "verbose": 0}

# %% [markdown]
# First it trains on one device. `show` prints the losses and what each device holds between two
# steps: the weights and the **slots**, two numbers that Adam keeps for each weight.

# %%
with tf.device(first):
    alone = build()
    show(alone, alone.fit(**train))

# %% [markdown]
# Now it trains on two devices. We build it on the host, and `fit.use` moves each layer to the
# device of its stage:

# %%
with tf.device(plan.host):
    model = build()
model = fit.use(model, plan, stages=len(plan))
show(model, model.fit(**train))

# %% [markdown]
# The losses are the same, and nearly all weights are on the last device, because `fit.use` cut
# before `fc1`. Suppose that each device has 25 MB. Does a whole step fit, and does each stage?
# `use_of` counts what a device holds at the peak of a step, and the dashed line is the limit:

# %% tags=["varies", "cover"]
data = images, labels
with tf.device(first):
    whole = trace.fit_step(alone, data)
with tf.device(plan.host):  # the batch is prepared there, as in fit
    step = trace.fit_step(model, data)
bars = {f"whole on {first}": use_of(alone, whole, first)}
bars |= uses_of(model, step, "stage on {}")
drawings.limit(charts.held(bars), 25e6)
plt.show()

# %%
for name, use in bars.items():
    print(f"{name}  fits into 25 MB: {use.total < 25e6}")
show_crossing(step)

# %% [markdown]
# The front holds mostly activations, and the rear mostly weights, slots and gradients. The
# gradients take twice as much as the weights, because Adam's update of `fc1` makes a temporary
# tensor as large as the gradient.
#
# The activations that cross are the input of `fc1`: 512 numbers of 4 bytes for each of 128 images,
# which makes 262,144 bytes. Their gradient has the same size.
#
# ## Where to cut
#
# A good cut gives all stages about the same time or the same memory, or lets few bytes cross. For
# every cut `pipeline.cuts` estimates from the trace of the whole step what both stages take, in
# time and in memory, and what crosses there and back. A trace counts only what the step makes, so
# `held` adds weights and slots, 12 bytes for each parameter:

# %% tags=["nbval-ignore-output"]
names = ["conv1", "conv2", "conv3", "fc1", "output"]
held = {name: 12 * alone.get_layer(name).count_params() for name in names}
print(*pipeline.cuts(whole, names, stages=2, held=held), sep="\n")

# %% [markdown]
# The fewest bytes cross before `fc1`. `fit.use` needs no trace: it cuts where both stages have
# about equally many arithmetic operations, which is the same place here. If you want another cut,
# name the layers with which the later stages begin, as in `stages=["conv3"]`.
#
# ## By hand
#
# If you write your own training loop, build each stage in the block of its device, so that its
# weights are there:

# %%
def stages():
    keras.utils.set_random_seed(0)
    with tf.device(first):
        front = keras.Sequential([keras.Input([28, 28, 1]), *body()])
    with tf.device(last):
        rear = keras.Sequential([keras.Input([512]), *head()])
    return front, rear

# %% [markdown]
# Each stage also needs its own tape, because a backward pass runs where `gradient` is called
# ([[04]]). The rear also asks for the gradient of its input, `middle`, with which the front's
# backward pass begins:

# %%
def gradients(front, rear, x, y):
    with tf.device(first), tf.GradientTape() as front_tape:
        middle = front(x)
    with tf.device(last):
        with tf.GradientTape() as rear_tape:
            rear_tape.watch(middle)
            loss = entropy()(y, rear(middle))
        *of_rear, of_middle = rear_tape.gradient(loss, [*rear.trainable_variables, middle])
    with tf.device(first):
        of_front = front_tape.gradient(middle, front.trainable_variables, of_middle)
    return of_front, of_rear

# %% [markdown]
# Each stage has its own optimizer, too, because an update runs where `apply` is called:

# %%
def stepper(front, rear, make):
    optimizers = {}
    for stage, device in [(front, first), (rear, last)]:
        with tf.device(device):  # its rate and its count of steps, too
            optimizers[device] = make()
            optimizers[device].build(stage.trainable_variables)

    @tf.function
    def step(x, y):
        found = gradients(front, rear, x, y)
        for of_stage, (device, optimizer) in zip(found, optimizers.items()):
            with tf.device(device):
                optimizer.apply(of_stage)

    return step


front, rear = stages()
step = stepper(front, rear, keras.optimizers.Adam)
show_crossing(trace.function_step(step, *data)[1])

# %% [markdown]
# ## Proof
#
# We train for three steps on one device, with `fit.use`, and by hand, in float64, where rounding
# cannot hide a mistake. The optimizer is SGD with momentum, because Adam hides gradients that are
# wrong by a factor. `apart` returns the largest difference, relative to the largest number of a
# weight:

# %%
def floats(kind):
    keras.config.set_floatx(kind)
    keras.config.set_dtype_policy(kind)

# %%
floats("float64")
momentum = partial(keras.optimizers.SGD, 0.05, momentum=0.9)
with tf.device(first):
    alone = build(momentum())
    alone.fit(**train)
of_one = alone.get_weights()

# %%
with tf.device(plan.host):
    model = build(momentum())
begin = model.get_weights()
fit.use(model, plan, stages=len(plan)).fit(**train)
print("fit.use differs by less than 1e-12:", apart(model.get_weights(), of_one) < 1e-12)
print("training changed the weights by more than 1 %:", apart(of_one, begin) > 0.01)

exact = stages()  # they begin with the same weights
step = stepper(*exact, momentum)
for _ in range(3):
    step(images.astype("float64"), labels)
by_hand = [*exact[0].get_weights(), *exact[1].get_weights()]
print("by hand differs by less than 1e-12:", apart(by_hand, of_one) < 1e-12)
floats("float32")

# %% [markdown]
# ## Break it
#
# Somebody computes both stages under one tape. Write down what you expect: where does the backward
# pass of `fc1` run? `halves.places` tells where each layer was computed:

# %%
@tf.function
def one_tape(x, y):
    with tf.GradientTape() as tape:
        with tf.device(first):
            middle = front(x)
        with tf.device(last):
            loss = entropy()(y, rear(middle))
    with tf.device(first):
        return tape.gradient(loss, [*front.trainable_variables, *rear.trainable_variables])


# %%
step = trace.function_step(one_tape, *data)[1]
print(halves.places([front.get_layer("conv3"), rear.get_layer("fc1")], step))
show_crossing(step)

# %% [markdown]
# The forward pass of `fc1` ran where its weights are, but its backward pass ran on the first
# device, which had to fetch them. These 512 · 1800 numbers of 4 bytes are most of the 4,685,120
# bytes. No error says so, so count what crosses before you train for days.
#
# | | |
# |---|---|
# | **Use it when** | the weights and slots, or one example, are too large for a device |
# | **It costs** | the devices take turns, so two are no faster than one; activations cross |
# | **Instead** | recompute activations ([[10]]), or give each weight an owner ([[11]]) |
#
# ## On GPUs
#
# Between GPUs data goes over PCIe or NVLink, so there it pays more to cut where little crosses.
#
# `fit.use` cuts Sequential and functional models. A model with a `call` of its own has no list of
# layers to cut: write it by hand, as above.
#
# ## On your own
#
# **1.** Write `choose(cuts, budget)`, where `cuts` is a list as `pipeline.cuts` returns it. A cut
# has two or more stages, `cut.parts`. Each of them has `part.bytes`, what its device holds, and
# `part.crossing`, the bytes that cross to the next part and back. Look at the cuts in which no part
# holds more than `budget`. Return the one whose parts' `crossing` add up to least, or None if there
# is no such cut.

# %% tags=["exercise"]
def choose(cuts, budget):
    return min(cuts, key=lambda cut: max(part.bytes for part in cut.parts))


checks.choose(choose)

# %% tags=["solution"]
def choose(cuts, budget):
    fitting = [cut for cut in cuts if all(part.bytes <= budget for part in cut.parts)]
    return min(fitting, key=lambda cut: sum(part.crossing for part in cut.parts), default=None)


checks.choose(choose)

# %% [markdown]
# **2.** Write `crossing(model, names, batch)`: how many bytes cross in one training step, over all
# cuts, there and back. The Sequential model is cut in front of each layer that `names` lists. Count
# float32 numbers, 4 bytes each. A Keras layer has `layer.input.shape` and `layer.output.shape`,
# whose first entry, None, stands for the batch.

# %% tags=["exercise"]
def crossing(model, names, batch):
    return 4 * batch


checks.crossing(crossing)

# %% tags=["solution"]
def crossing(model, names, batch):
    numbers = sum(np.prod(model.get_layer(name).input.shape[1:]) for name in names)
    return 2 * 4 * batch * numbers


checks.crossing(crossing)

# %% [markdown]
# ## What we saw
#
# - A step that needs more than 25 MB needed less on each device in two stages, and 262,144 bytes
#   crossed each way.
# - In float64 the weights differed by less than 1e-12 from those of one device.
# - With one tape for both stages, 4,685,120 bytes crossed to the first device instead.
#
# ## Compared with other ways
#
# In two stages the small Transformer of [[01]] sends less than in shares of the batch, but its
# stages take turns:
#
# [[ways: 00 01 11]]
#
# ## In practice
#
# Ask `memory.plan` ([[09]]) first, and split the model if nothing cheaper fits.
#
# Next: [[next]].
