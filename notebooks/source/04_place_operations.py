# %% [markdown]
# # Place operations
#
# You put the second layer of a model on the second GPU. Training starts and the loss falls, but the
# first GPU computes that layer, too, and TensorFlow does not say so.
#
# **In this lesson** you decide which device runs an operation, in blocks of `with tf.device(...)`,
# and check that it did.
#
# ![Weights, forward pass and backward pass of two layers. Blocks around the building place only
# the weights. Blocks around the calls, too, also place the forward pass. A tape for each
# layer, or fit.use, places all three.](pictures/04_what_a_block_places.svg)
#
# Each row is a way to place two layers on two devices. A dashed box is work that ran in one place,
# which TensorFlow chose. Often the blocks are only around the code that *builds* the layers, as in
# the first row. Then the second device holds the weights of its layer, but computes none of that
# layer's matrix products. In the last row everything is in its place.
#
# ## The lines to paste
#
# For a Keras model, these lines do what the last row shows, and draw where everything ran:
#
# ```python
# from mgpu_helpers import charts, devices, fit, trace
#
# plan = devices.setup(2)  # call it before you make the first tensor
# model = build()  # your code makes and compiles the model here
# model = fit.use(model, plan, stages=2)
# step = trace.fit_step(model, (x, y))  # a batch of your data
# charts.placement_map(step).figure.savefig("map.png")
# ```
#
# **You need** [[00]] and `tf.GradientTape`.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, trace
from mgpu_helpers.lessons import digits, halves
from mgpu_helpers.lessons.checks import lesson_04 as checks
from mgpu_helpers.lessons.state import apart, show_crossing

ends = [plan.devices[0], plan.devices[-1]]  # the same, if there is only one device

# %% [markdown]
# ## Try it
#
# Our network for handwritten digits has two layers. `train_once` traces a step, and `halves.places`
# tells from the trace where each layer's weights are and where its matrix products ran. Then
# `train_once` trains for one step and returns the loss. `jit_compile=False` switches off XLA, a
# compiler that accepts no variable on another device:

# %%
images, labels = digits.load(64)
images = images.reshape(64, 784)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss")

# %%
def two_layers():
    keras.utils.set_random_seed(0)
    return keras.layers.Dense(32, "relu", name="first"), keras.layers.Dense(10, name="second")

# %%
def train_once(model, parts):
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    print(halves.places(parts, trace.fit_step(model, (images, labels))))
    return model.train_on_batch(images, labels)

# %% [markdown]
# First, one block puts everything on one device. Then `fit.use` moves each layer to a device of its
# own:

# %%
with tf.device(ends[0]):
    model = keras.Sequential([keras.Input([784]), *two_layers()])
    print(f"loss {train_once(model, model.layers):.2f}")

# %%
model = keras.Sequential([keras.Input([784]), *two_layers()])
model = fit.use(model, plan, stages=len(plan))
print(f"loss {train_once(model, model.layers):.2f}")

# %% [markdown]
# With `fit.use`, each layer has its weights on its device and ran there in both passes. The loss is
# the same.
#
# ## By hand: two ways that fail, and one that works
#
# The first way puts blocks around the building of the layers, which makes their weights:

# %% tags=["unplaced"]
parts = two_layers()
for layer, device, inputs in zip(parts, ends, [784, 32]):
    with tf.device(device):
        layer.build([None, inputs])
_ = train_once(keras.Sequential(parts), parts)

# %% [markdown]
# The weights are in the right places, but all products ran where TensorFlow chose. Here this is the
# host, `/CPU:0`; with GPUs it is the first GPU. A layer computes where it is *called*, and Keras
# calls it outside the blocks. So the second way keeps these layers, and puts blocks around their
# calls, too:

# %% tags=["unplaced"]
class Called(keras.Model):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for layer, device in zip(self.parts, ends):
            with tf.device(device):
                x = layer(x)
        return x


_ = train_once(Called(parts), parts)

# %% [markdown]
# Now the forward pass is right. Keras records it on a **gradient tape**, whose `gradient` computes
# the backward pass. But Keras calls `gradient` after `call` has returned, and so outside every
# block.
#
# In the way that works, each layer has a tape of its own, whose `gradient` is called in the layer's
# block. The second layer's tape goes first. It returns the gradients of that layer's weights, and
# the gradient of `middle`, which is the output of the first layer. From this gradient the first
# tape goes on. By itself a tape follows only variables, so the second one has to watch `middle`:

# %%
first, second = parts


def by_hand(x, y):
    with tf.device(ends[0]), tf.GradientTape() as first_tape:
        middle = first(x)
    with tf.device(ends[1]):
        with tf.GradientTape() as second_tape:
            second_tape.watch(middle)
            value = loss(y, second(middle))
        of_middle, *of_second = second_tape.gradient(value, [middle, *second.weights])
    with tf.device(ends[0]):
        of_first = first_tape.gradient(middle, first.weights, of_middle)
    return [*of_first, *of_second]

# %%
gradients, step = trace.function_step(by_hand, images, labels)
print(halves.places(parts, step))

# %% [markdown]
# Now both passes of each layer ran on its device. A map of the same step also shows what crossed.
# In it, `first_1` and `second_1` are the forward pass of the layers, and `gradient_tape` is the
# backward pass. A number in brackets counts operations:

# %% tags=["cover"]
charts.placement_map(step)
plt.show()
show_crossing(step)

# %% [markdown]
# The first device sends `middle` to the second, which is 64 · 32 numbers of 4 bytes, so 8,192
# bytes. The gradient of `middle` has the same size and comes back.
#
# ## Proof
#
# The step by hand has to compute the gradients that one tape computes on one device. `apart`
# returns the largest difference between them, as a share of the gradient's largest number:

# %%
with tf.device(ends[0]):
    with tf.GradientTape() as tape:
        value = loss(labels, second(first(images)))
    of_one = tape.gradient(value, [*first.weights, *second.weights])
print("less than 1e-5 from one device:", apart(gradients, of_one) < 1e-5)

# %% [markdown]
# | | place by hand |
# |---|---|
# | **Use it when** | you write a step of your own, or want to decide which GPU does what |
# | **It costs** | a block and a tape for each part, and a check in your tests |
# | **Instead** | `fit.use` for a Keras model; [[01]] if the model fits on one device |
#
# ## Which device an operation gets
#
# - If blocks are nested, the inner one decides.
# - Reading or changing a variable happens on the device of the variable, whatever the block says.
# - An operation outside every block goes to `/GPU:0` if there is one and it can run the operation,
#   and otherwise to `/CPU:0`.
#
# ## Break it
#
# `lost` asks for `/GPU:9`, which does not exist. Write down what you expect: an error, a wrong
# product, or a right one?

# %% tags=["unplaced"]
def lost(x):
    with tf.device("/GPU:9"):
        return tf.matmul(x, x)


numbers = tf.constant([[1.0, 2.0], [3.0, 4.0]])
product = lost(numbers)
print(product.numpy(), "made on", devices.short(product.device))

# %% [markdown]
# The product is right, and another device made it without a warning. This is **soft placement**: if
# the device that you name does not exist, TensorFlow takes another. It is on by default, and one
# call switches it off:

# %%
tf.config.set_soft_device_placement(False)
try:
    lost(numbers)
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition(". ")[0])
tf.config.set_soft_device_placement(True)

# %% [markdown]
# Now the wrong name is an error. But a block that names a GPU then also fails for operations that
# no GPU can run, such as those on strings. So leave soft placement on, and put this check into your
# tests:

# %%
def ran_on(step, kind):
    return sorted({op.device for op in step.ops if kind in op.type})

# %%
print("by hand, on the devices we named:", ran_on(step, "MatMul") == sorted({*ends}))
_, lost_step = trace.function_step(lost, numbers)
print("lost, on /GPU:9:", ran_on(lost_step, "MatMul") == ["/GPU:9"])

# %% [markdown]
# ## On GPUs
#
# > TensorFlow numbers the GPUs that it may see. With `CUDA_VISIBLE_DEVICES=2,3` they are `/GPU:0`
# > and `/GPU:1`, and a block of `/GPU:2` runs on `/GPU:0` without a word.
#
# ## On your own
#
# In both checks, operations outside every block run on the first device, as with GPUs.
#
# **1.** `gradients` multiplies by `a` on the first device and by `b` on the second, but its
# backward pass is outside the blocks. Change it so that the backward pass of each product also runs
# on the device of the product.

# %% tags=["exercise"]
def gradients(x, a, b):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        with tf.device(ends[0]):
            middle = tf.matmul(x, a)
        with tf.device(ends[1]):
            value = tf.reduce_sum(tf.matmul(middle, b) ** 2)
    return tape.gradient(value, [a, b])


checks.gradients(gradients)

# %% tags=["solution"]
def gradients(x, a, b):
    with tf.device(ends[0]), tf.GradientTape() as first_tape:
        first_tape.watch(a)
        middle = tf.matmul(x, a)
    with tf.device(ends[1]):
        with tf.GradientTape() as second_tape:
            second_tape.watch([middle, b])
            value = tf.reduce_sum(tf.matmul(middle, b) ** 2)
        of_middle, of_b = second_tape.gradient(value, [middle, b])
    with tf.device(ends[0]):
        of_a = first_tape.gradient(middle, a, of_middle)
    return of_a, of_b


checks.gradients(gradients)

# %% [markdown]
# **2.** Each device multiplies `x` by itself and sends its whole product to the host, which adds up
# all entries. Change `add_entries` so that each device still multiplies, but sends no more than 4
# bytes.

# %% tags=["exercise"]
def add_entries(x):
    products = []
    for device in plan.devices:
        with tf.device(device):
            products.append(tf.matmul(x, x))
    with tf.device(plan.host):
        return tf.reduce_sum(tf.add_n(products))


checks.add_entries(add_entries)

# %% tags=["solution"]
def add_entries(x):
    sums = []
    for device in plan.devices:
        with tf.device(device):
            sums.append(tf.reduce_sum(tf.matmul(x, x)))
    with tf.device(plan.host):
        return tf.add_n(sums)


checks.add_entries(add_entries)

# %% [markdown]
# ## What we saw
#
# - Blocks around the building placed the weights, and blocks around the calls the forward pass.
#   `fit.use`, and by hand a tape for each layer, placed the backward pass, too.
# - The gradients by hand were less than 1e-5 from those of one device.
# - A product in a block of `/GPU:9` was right, but made on another device.
#
# ## In practice
#
# Name a device for what matters, and check a trace of one step in your tests. Leave the rest to
# TensorFlow, or to `fit.use`.
#
# Next: [[next]].
