# %% [markdown]
# # Place operations
#
# You put the second half of a model on the second GPU. Training starts, the loss falls, and the
# second GPU computes nothing. The name was wrong, or the `tf.device` block stood in the wrong
# place, and TensorFlow computed somewhere else without a word.
#
# **In this lesson** you decide which device runs an operation, and check that it did.
#
# **You will learn** to
# - place the halves of a Keras model, and see where they ran,
# - know which device TensorFlow takes for what you do not place,
# - notice an operation that did not run where you wanted it.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from keras import layers

from mgpu_helpers import charts, fit, trace
from mgpu_helpers.lessons import halves
from mgpu_helpers.lessons.checks import lesson_01 as checks

# %% [markdown]
# ## The lines to paste
#
# `fit.use` puts each part of a built model on a device. Compile the model as ever, before or after
# the last line:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup(2)
# model = ...  # your own
# fit.use(model, plan.devices[:2], stages=["second"])
# ```
#
# `stages` names the layer, or the model inside the model, that begins the second part. We try the
# line on a small residual network with batch normalization, whose halves are models of their own:

# %%
def residual(x):
    y = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(y)]))


def first_half():
    image = keras.Input([16, 16, 3])
    stem = layers.Conv2D(8, 3, padding="same")(image)
    return keras.Model(image, residual(stem), name="first")


def second_half():
    middle = keras.Input([16, 16, 8])
    scores = layers.Dense(10)(layers.GlobalAveragePooling2D()(residual(middle)))
    return keras.Model(middle, scores, name="second")


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential([first_half(), second_half()])

# %% [markdown]
# `train_once` trains for one step, traces a further one, and returns the loss, the weights and the
# trace. `halves.places` tabulates where the weights of each half are, and where its convolutions
# and matrix products ran in the traced step:

# %%
ends = [plan.devices[0], plan.devices[-1]]  # the same, if there is only one device
images = np.random.default_rng(seed=0).normal(size=[8, 16, 16, 3]).astype("float32")
labels = np.arange(8)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_once(model):
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    value, weights = model.train_on_batch(images, labels), model.get_weights()
    step = trace.fit_step(model, (images, labels))
    print(halves.places(model.layers, step))
    return value, weights, step


# %% [markdown]
# First, the block puts everything on one device:

# %%
with tf.device(ends[0]):
    one_loss, one_weights, _ = train_once(build())

# %% [markdown]
# `fit.use` moves the weights itself and needs no block. The one here serves a plan of one device.
# Compare loss and weights with those of one device:

# %%
with tf.device(ends[0]):
    model = build()
    if len(plan) > 1:  # a single device has nothing to split
        fit.use(model, ends, stages=["second"])
    value, weights, step = train_once(model)

# %%
apart = max(np.abs(a - b).max() for a, b in zip(weights, one_weights))
print(f"loss {value:.3f} and {one_loss:.3f}, weights equal to 1e-5:", apart < 1e-5)

# %% [markdown]
# Each half has its weights on its device, and ran there in both passes. Loss and weights are as on
# one device. The halves take turns, so one device waits while the other works; [[14]] shortens the
# wait.
#
# In a script of your own, `weight.value.device` says where each `weight` of `model.weights` is.
# `assert_placed` checks that each wanted device ran some operations of a type in a traced step, and
# that no other device ran any. Halves that changed places would pass. If all is well it says
# nothing, as here:

# %%
def assert_placed(step, kind, wanted):
    ran = {op.device for op in step.ops if kind in op.type}
    assert ran == {*wanted}, f"{kind} should run on {[*wanted]} and ran on {sorted(ran)}"


assert_placed(step, "Conv2D", ends)

# %% [markdown]
# ## By hand: two ways that fail, and one that works
#
# When you place by hand, compile with `jit_compile=False`, as `train_once` does. Otherwise Keras on
# a GPU compiles the step with XLA, which accepts no variable of another device. `fit.use` compiles
# what each device does by itself.
#
# Most people first put blocks around the code that builds the halves:

# %% tags=["unplaced"]
parts = []
for half, device in zip([first_half, second_half], ends):
    with tf.device(device):
        parts.append(half())
_ = train_once(keras.Sequential(parts))

# %% [markdown]
# The weights are right, but all convolutions and products ran where TensorFlow chose: on the host,
# or the first GPU. A layer's weights stay, and are read, where it was *built*. The layer computes
# where it is *called*, and a training step calls it outside the blocks. So put the blocks around
# the calls:

# %% tags=["unplaced"]
class Called(keras.Model):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for part, device in zip(self.parts, ends):
            with tf.device(device):
                x = part(x)
        return x


_ = train_once(Called(parts))

# %% [markdown]
# The forward pass is right. The gradient tape makes the backward pass after `call` has ended,
# outside every block; on GPUs only the first half is right, by chance. So each half gets a tape of
# its own, and we call the tape's `gradient` in the block of the half. The second tape also gives,
# last in its list, the gradient of `middle`, with which the backward pass of the first half begins:

# %%
first, second = parts
keras.Sequential(parts).set_weights(build().get_weights())  # as at the start


def by_hand(x, y):
    with tf.device(ends[0]), tf.GradientTape() as first_tape:
        middle = first(x, training=True)
    with tf.device(ends[1]):
        with tf.GradientTape() as second_tape:
            second_tape.watch(middle)
            value = loss(y, second(middle, training=True))
        *of_second, of_middle = second_tape.gradient(value, [*second.trainable_weights, middle])
    with tf.device(ends[0]):
        of_first = first_tape.gradient(middle, first.trainable_weights, of_middle)
    return value, of_first, of_second


(value, *_), step = trace.function_step(by_hand, images, labels)
print(halves.places([first, second], step))
print(f"loss {value:.3f} and {one_loss:.3f}")

# %% [markdown]
# Both passes of each half ran on its device, and the loss is the same; [[12]] adds the update. Here
# the first device is blue, and the second orange:
#
# ![Weights, forward pass and backward pass of two halves. Blocks around the building place only
# the weights. Blocks around the calls place the forward pass as well. A tape for each
# half, or fit.use, places all three.](pictures/01_what_a_block_places.svg)
#
# | placing by hand | |
# |---|---|
# | Use it when | you write a step of your own, or want to decide which GPU does what |
# | It costs | blocks and a tape for each part, and a check, whose tracing runs the step twice |
# | Instead | `fit.use` for a Keras model; [[07]] to train on all devices; [[10]] to fit more |
#
# ## Which device an operation gets
#
# `tf.device` names the device of every operation created in its block:
#
# - Of nested blocks the inner one wins.
# - `tf.device(None)` undoes the blocks around it.
#
# What nobody names is left to TensorFlow:
#
# - Reading or changing a variable is an operation of its own, planned where the variable is.
# - Other operations usually get `/GPU:0`, if there is one and it can run the operation.
# - Otherwise they get `/CPU:0`.
#
# ## A map of a step
#
# A right value does not show where it was computed; a map of a trace shows it. This function
# multiplies `x` by itself on each device, and the host adds the products. Look for a `MatMul` in
# the lane of each device:

# %%
numbers = np.array([[1, 2], [3, 4]], "float32")


@tf.function
def add_products(x):
    products = []
    for device in plan.devices:
        with tf.device(device):
            products.append(tf.matmul(x, x))
    with tf.device(plan.host):
        return tf.add_n(products)

# %% tags=["cover"]
total, step = trace.function_step(add_products, numbers)
print(total)
charts.placement_map(step)
plt.show()

# %% [markdown]
# All devices multiplied. `x`, four numbers of 4 bytes, crosses once to each device.
#
# ## Break it
#
# **A name that is not there.** `lost` asks for `/GPU:9`, which does not exist. Look at the product,
# and at the device that made it:

# %% tags=["unplaced"]
def lost(x):
    with tf.device("/GPU:9"):
        return tf.matmul(x, x)


product = lost(numbers)
print(product.numpy(), "made on", devices.short(product.device))

# %% [markdown]
# The product is right, and another device made it without a warning: the first GPU, or, without
# GPUs, the host. With two GPUs, a block of `/GPU:2` runs on `/GPU:0`, and `/GPU:1` stays idle.
#
# This is **soft placement**: if the device you name is not there, TensorFlow takes another. It is
# on by default. One call switches it off, and the name becomes an error:

# %%
tf.config.set_soft_device_placement(False)
try:
    lost(numbers)
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition(". ")[0])

# %% [markdown]
# With soft placement off, a wrong name is an error. The error gives the device's full name: its
# *job*, *replica* and *task* say which process has the device. In a program of one process they are
# always `localhost`, 0 and 0.
#
# The price is that operations without a version for GPUs, such as those on strings, also fail in a
# block that names a GPU. So we switch soft placement on again.
#
# **Nothing but constants.** Now `assert_placed` checks a trace of `lost`, and one of a function
# that multiplies only constants:

# %%
tf.config.set_soft_device_placement(True)


def constant(x):
    with tf.device(plan.devices[-1]):
        return tf.matmul(numbers, numbers)

# %% tags=["unplaced"]
for function in [lost, constant]:
    try:
        assert_placed(trace.function_step(function, numbers)[1], "MatMul", plan.devices[-1:])
    except AssertionError as error:
        print(f"{function.__name__}: {error}")

# %% [markdown]
# The wrong name is caught. The product of constants did not run in the step: its inputs never
# change, so TensorFlow computed it once, before the first run, and kept the result. Before it
# computes anything, TensorFlow *plans* a device for each operation. Look at the devices that were
# planned for both:

# %% tags=["unplaced"]
for function in [lost, constant]:
    with trace.placement() as log:
        tf.function(function)(numbers)
    print(f"{function.__name__}: planned on", log.device_of("MatMul"))

# %% [markdown]
# ## Asked for, planned, ran
#
# Your code **asks for** a device in `tf.device`. TensorFlow **plans** one; the **placement log**
# lists it if you switch the log on. A trace shows what **ran**, which can differ from both:
#
# ![Three examples, each with the device asked for, planned, and run on. A right name: the first
# device three times. A wrong name, /GPU:9: another device is planned and runs it. Nothing but
# constants: the second device is asked for and planned, and it does not
# run.](pictures/01_asked_planned_ran.svg)
#
# ## On GPUs
#
# TensorFlow numbers the GPUs that it may see: with `CUDA_VISIBLE_DEVICES=2,3` they are `/GPU:0` and
# `/GPU:1` ([[04]]). While you develop, switch soft placement off. In code for any machine leave it
# on, and check where the operations that matter ran.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** `gradients` multiplies by `a` on the first device and by `b` on the second, but its
# backward pass is outside the blocks. Change it so that the backward pass of each product also runs
# on the device of the product. In both checks, as with GPUs, operations outside every block run on
# the first device.

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
# **2.** Here each device sends its whole product to the host, and the first also the sum, 4 bytes.
# Change `add_entries` so that each device still multiplies, and sends no more than 4 bytes.

# %% tags=["exercise"]
def add_entries(x):
    return tf.reduce_sum(add_products(x))


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
# - Blocks around the building of layers placed their weights, and blocks in `call` the forward
#   pass. `fit.use`, and by hand a tape for each half, placed both passes.
# - With `fit.use`, loss and weights were those of one device.
# - A wrong name raised no error until soft placement was off; `assert_placed` found it.
# - A product of constants was planned on a device, but did not run in the step.
#
# ## In practice
#
# Name a device for what matters, and check it with a trace of one step. Leave the rest to
# TensorFlow, or to a helper such as `fit.use`.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# The classic way builds a graph by hand and runs it in a **session**. The table translates classic
# code:
#
# | classic code | today's code |
# |---|---|
# | `tf.Session(graph=graph).run(total)` | call a `tf.function` |
# | `tf.placeholder(...)`, filled by a `feed_dict` | an argument of the function |
# | `tf.get_variable(...)`, `tf.variable_scope(...)` | `tf.Variable(...)`, or a Keras layer |
# | `tf.global_variables_initializer()` | nothing: variables begin with their values |
# | `tf.gradients(loss, weights)` | `tape.gradient(loss, weights)` of a `tf.GradientTape` |
# | `optimizer.minimize(loss)` | the tape, then `optimizer.apply_gradients(...)`; or `model.fit` |
# | `tf.ConfigProto(log_device_placement=True)` | `tf.debugging.set_log_device_placement(True)` |
# | `tf.ConfigProto(allow_soft_placement=True)` | `tf.config.set_soft_device_placement(True)` |
# | `tf.GPUOptions(allow_growth=True)` | `tf.config.experimental.set_memory_growth(gpu, True)` |
# | `tf.RunOptions(trace_level=...)`, `tf.RunMetadata()` | `tf.profiler`, or `trace.function_step` |
#
# TensorFlow 2 keeps the classic names in `tf.compat.v1`.
#
# Here is `add_products` as a graph, as in [Understanding Multi device training in
# TensorFlow](../docs/sources.md#wiki) (kavyasrinet, 2017). Building it computes nothing. `x` is a
# *placeholder*, an input that is filled at each run. A session takes the graph and a configuration.
# Its `run` is told what is wanted, and what to put into the placeholder:

# %%
import tensorflow.compat.v1 as tf1

graph = tf.Graph()
with graph.as_default():
    with tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None, None], name="x")
    products = []
    for i, device in enumerate(plan.devices):
        with tf.device(device):
            products.append(tf.matmul(x, x, name=f"product_{i}"))
    with tf.device(plan.host):
        added = tf.add_n(products, name="total")

with tf1.Session(graph=graph, config=plan.session_config()) as session:
    classic = session.run(added, {x: numbers})
print(classic)
print("equal to the function's sum:", np.array_equal(classic, total))

# %% [markdown]
# With `log_device_placement`, a session prints the name, type and planned device of each operation,
# and `trace.placement` collects that. In a session, soft placement is off by default, so a wrong
# name is an error here. Much old code switches it on with `allow_soft_placement`:

# %%
def run_logged(graph, fetches, feed=None, soft=False):
    config = plan.session_config()
    config.log_device_placement = True
    config.allow_soft_placement = soft
    with trace.placement() as log, tf1.Session(graph=graph, config=config) as session:
        session.run(fetches, feed)
    return log


print(*run_logged(graph, added, {x: numbers}).raw, sep="\n")
with tf.Graph().as_default() as wrong, tf.device("/GPU:9"):
    zero = tf.zeros([], name="lost")
try:
    run_logged(wrong, zero)
except tf.errors.InvalidArgumentError as error:
    line = next(line for line in error.message.splitlines() if "Cannot assign" in line)
    print(line.partition(" but ")[0])
