# %% [markdown]
# # Place operations
#
# You put the second half of a model on the second GPU. Training starts, the loss falls, and the
# second GPU computes nothing. A wrong device name can cause this, and so can a right name in the
# wrong place. TensorFlow computes somewhere else and says nothing.
#
# **In this lesson** you decide which device runs an operation, and a log, a map and a check show
# that it did.
#
# **You will learn** to
# - notice an operation that did not run where you wanted it,
# - build, read and merge the names of devices,
# - place the operations of a function, of a graph and of a Keras model,
# - read graph-and-session code and TensorFlow's placement log,
# - count the bytes that a placement sends from device to device.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import os
import subprocess
import sys

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, trace
from mgpu_helpers.lessons.checks import lesson_01 as checks

# %% [markdown]
# ## The trouble
#
# This notebook has no `/GPU:9`. Here it is asked to multiply a small matrix by itself. Look at the
# product, and at the device that made it:

# %%
numbers = np.array([[1, 2], [3, 4]], "float32")

with tf.device("/GPU:9"):
    product = tf.matmul(numbers, numbers)
print(product.numpy())
print("made on", devices.short(product.device))

# %% [markdown]
# The product is right, and another device made it: the host where there is no GPU, and the first
# GPU where there is one. There was no error and no warning. In the same way `/GPU:2` leaves a GPU
# idle on a machine that has `/GPU:0` and `/GPU:1`.
#
# This is called **soft placement**: if the device you name is not there, TensorFlow takes another.
# It is on from the start, and one call switches it off. Look for the error:

# %%
tf.config.set_soft_device_placement(False)
try:
    with tf.device("/GPU:9"):
        tf.matmul(numbers, numbers)
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition(". ")[0])
tf.config.set_soft_device_placement(True)

# %% [markdown]
# Without soft placement a wrong name raises an error. The price is that some operations, such as
# those on strings, have no version for GPUs, and raise one too in a block that names a GPU.
#
# The last line switched soft placement on again, as it is in most code.
#
# ## Asked for, planned, ran
#
# Your code **asks for** a device. Before the first run, TensorFlow **plans** one for each
# operation. What **ran** can differ from both. The drawing has three examples, and this lesson
# meets all of them. The grey words say where each column can be read:
#
# ![Three examples, each with the device asked for, planned, and run on. A right name: device 0
# three times. A wrong name, /GPU:9: another device is planned and runs it. Nothing but constants:
# device 1 is asked for and planned, and it does not run.](pictures/01_asked_planned_ran.svg)
#
# The first row is what you want. The second is the trouble above. In the third, the operation does
# not run, although a device was planned for it.
#
# ## The name of a device
#
# Asking begins with a name. A device has a short one, a longer one and a full one:

# %%
print("short: ", plan.devices[0])
print("longer:", tf.config.list_logical_devices()[1].name)
with tf.device(plan.devices[0]):
    print("full:  ", tf.ones([]).device)

# %% [markdown]
# The full name also says which *job*, *replica* and *task* the device belongs to. In a program of
# one process they are `localhost`, 0 and 0, and may be left out. Where several processes train
# together, a worker's devices begin with `/job:worker` ([[13]]).
#
# `tf.DeviceSpec` takes a name apart, and what the name does not say is `None`. A name may have
# small letters, or `/device:` in front. `tf.DeviceSpec` also builds a name from its parts, and
# merges two names: the second one wins, and the first fills the gaps. Look at the last line:

# %%
for name in ["/CPU:1", "/cpu:1", "/device:CPU:1"]:
    spec = tf.DeviceSpec.from_string(name)
    print(f"{name:14}", spec.device_type, spec.device_index, spec.job, spec.task)

here = tf.DeviceSpec(job="localhost", replica=0, task=0, device_type="CPU", device_index=0)
print(here.make_merged_spec(spec).to_string())

# %% [markdown]
# ## Ask for a device
#
# `tf.device` names the device of every operation created in its block. Blocks can be nested, and
# the inner one wins. `tf.device(None)` takes the name away again.
#
# `tf.function` makes a **graph** of the function, a list of operations that is run as a whole. Each
# operation keeps in `op.device` what was asked for. `trace.placement` collects what TensorFlow
# planned in the block beneath it. Look for `nobody`:

# %%
@tf.function
def negatives(x):
    with tf.device(plan.devices[0]):
        outer = tf.negative(x, name="outer")
        with tf.device(plan.devices[-1]):
            inner = tf.negative(x, name="inner")
        with tf.device(None):
            nobody = tf.negative(x, name="nobody")
    return outer, inner, nobody


with trace.placement() as log:
    negatives(numbers)

# %% tags=["unplaced"]
graph = negatives.get_concrete_function(numbers).graph
print("name    asked for  planned")
for name in ["outer", "inner", "nobody"]:
    asked = devices.short(graph.get_operation_by_name(name).device) or "nothing"
    print(f"{name:8}{asked:11}{log.device_of(name)}")

# %% [markdown]
# `nobody` was left to TensorFlow. It plans `/GPU:0` if there is one and the operation can run
# there, and `/CPU:0` otherwise.
#
# ## A product on each device
#
# Here is a small example with everything in it. Each device multiplies `x` by itself, and the host
# adds the products. The example is that of the wiki page [Understanding Multi device training in
# TensorFlow](../docs/sources.md#wiki) by kavyasrinet (2017), which uses two GPUs. `numbers` times
# itself is 7, 10, 15 and 22. Look for twice that, or as many times as you have devices:

# %%
@tf.function
def add_products(x):
    products = []
    for device in plan.devices:
        with tf.device(device):
            products.append(tf.matmul(x, x))
    with tf.device(plan.host):
        return tf.add_n(products)


big = np.random.default_rng(seed=0).integers(-3, 4, [1000, 1000]).astype("float32")
print(add_products(numbers).numpy())

# %% [markdown]
# Now `big`, with 1000 rows and columns, and a trace. Look at what crosses from device to device:

# %% tags=["cover"]
modern, step = trace.function_step(add_products, big)
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# `x` has 1000 · 1000 numbers of 4 bytes. It crosses once to each device, although `matmul` takes
# it twice, and each product crosses back.
#
# ## The same in a graph
#
# The classic way builds the graph by hand and runs it in a **session**. TensorFlow 2 replaced it in
# 2019. Why read it today?
#
# - Much code for several GPUs is older than that, and so are the [sources of this
#   series](../docs/sources.md).
# - A `tf.function` is a graph too: names, places and plans work in the same way.
# - A session keeps a record of each operation that ran. `trace.function_step` uses one for that.
#
# You do not have to write such code. Come back to this table when a later lesson shows some:
#
# | classic code | today's code |
# |---|---|
# | `tf.Session(graph=graph).run(total)` | call a `tf.function` |
# | `tf.placeholder(...)`, filled by a `feed_dict` | an argument of the function |
# | `tf.get_variable(...)`, `tf.variable_scope(...)` | `tf.Variable(...)`, or a Keras layer |
# | `tf.global_variables_initializer()` | nothing: a variable has its value from the start |
# | `tf.gradients(loss, weights)` | `tape.gradient(loss, weights)` of a `tf.GradientTape` |
# | `optimizer.minimize(loss)` | the tape, then `optimizer.apply_gradients(...)`; or `model.fit` |
# | `tf.ConfigProto(log_device_placement=True)` | `tf.debugging.set_log_device_placement(True)` |
# | `tf.ConfigProto(allow_soft_placement=True)` | `tf.config.set_soft_device_placement(True)` |
# | `tf.GPUOptions(allow_growth=True)` | `tf.config.experimental.set_memory_growth(gpu, True)` |
# | `tf.RunOptions(trace_level=...)`, `tf.RunMetadata()` | `tf.profiler`, or `trace.function_step` |
#
# TensorFlow 2 keeps the classic names in `tf.compat.v1`, which these lessons import as `tf1`.
#
# Here is `add_products` as a graph. `x` is a *placeholder*, an input that is filled at each run.
# Building the graph computes nothing. A session takes the graph and a configuration, which
# `plan.session_config` makes for the devices of the plan. `run` is told what is wanted, and what to
# put into the placeholder. Look for the same four numbers:

# %%
graph = tf.Graph()
with graph.as_default():
    with tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None, None], name="x")
    products = []
    for i, device in enumerate(plan.devices):
        with tf.device(device):
            products.append(tf.matmul(x, x, name=f"product_{i}"))
    with tf.device(plan.host):
        total = tf.add_n(products, name="total")

session = tf1.Session(graph=graph, config=plan.session_config())
print(session.run(total, {x: numbers}))

# %% [markdown]
# ### The placement log
#
# With `log_device_placement` in its configuration, a session prints the device that it planned for
# each operation. `trace.placement` collects what it prints. Look at the end of each line:

# %%
def run_logged(graph, fetches, feed=None, soft=False):
    config = plan.session_config()
    config.log_device_placement = True
    config.allow_soft_placement = soft
    with trace.placement() as log, tf1.Session(graph=graph, config=config) as session:
        session.run(fetches, feed)
    return log


log = run_logged(graph, total, {x: numbers})
print(*log.raw, "", log, sep="\n")

# %% [markdown]
# This is TensorFlow's **placement log**: name, type, full device name. Beneath it is the table that
# `trace.placement` makes of it.
#
# Today's code prints such a log only if it is asked *before* TensorFlow starts, which takes a
# process of its own. If it is asked now, it prints nothing:

# %%
program = """
import tensorflow as tf
tf.debugging.set_log_device_placement(True)
tf.matmul([[1.0, 2.0]], [[3.0], [4.0]])
"""
quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}  # no start-up messages
quiet |= {"CUDA_VISIBLE_DEVICES": "-1"}  # a GPU in use by this notebook stays out of it
done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=quiet)
print("asked before:", [line for line in done.stdout.splitlines() if line.startswith("MatMul")])

tf.debugging.set_log_device_placement(True)
with trace.placement() as log:
    tf.matmul([[1.0, 2.0]], [[3.0], [4.0]])
print("asked now:   ", list(log.raw))

# %% [markdown]
# ### A function that chooses
#
# `tf1.device` takes a function as well. It is called with each new operation and returns the name
# of a device. `by_type` sends what multiplies to the last device and the rest to the first. Compare
# it with `leave`, which leaves the device as it was, unnamed:

# %% tags=["unplaced"]
def by_type(op):
    return plan.devices[-1] if op.type == "MatMul" else plan.devices[0]


def leave(op):
    return op.device


for chooser in [leave, by_type]:
    with tf.Graph().as_default() as small, tf1.device(chooser):
        a = tf1.placeholder(tf.float32, [2, 2], name="a")
        added = tf.add(tf.matmul(a, a, name="square"), a, name="sum")
    print(run_logged(small, added, {a: numbers}), end="\n\n")

# %% [markdown]
# Unasked, a session puts everything in one place, as `tf.function` does. `by_type` sent the product
# to the last device. Such a function works inside a `tf.function` too, and "With your own model"
# below uses one there.
#
# ### A device that is not there
#
# In the configuration of a session, soft placement is off unless `allow_soft_placement` switches it
# on. Look for the error of the first run, and for the device of the second:

# %%
with tf.Graph().as_default() as wrong, tf.device("/GPU:9"):
    zero = tf.zeros([], name="lost")

# %%
try:
    run_logged(wrong, zero)
except tf.errors.InvalidArgumentError as error:
    print(next(line for line in error.message.splitlines() if "Cannot assign" in line))
print(run_logged(wrong, zero, soft=True))

# %% [markdown]
# Much old code sets `allow_soft_placement=True`, so that it runs on any machine. It is then as
# silent as today's.
#
# ## Proof: the same sum and the same bytes
#
# The entries are whole numbers and so are their sums, which float32 holds exactly. So the sum of
# the function, that of the session and that of NumPy have to be equal without any tolerance.
# `trace.session_step` runs one step of a session and keeps its record. Look for 0 entries that
# differ, and for the same bytes:

# %%
classic, graph_step = trace.session_step(session, total, {x: big})
for name, value in [("function", modern), ("session", classic)]:
    print(name, "and NumPy:", np.count_nonzero(value != len(plan) * (big @ big)), "entries differ")
print(f"each of them sends {sum(step.bytes_between().values()):,} bytes")
assert step.bytes_between() == graph_step.bytes_between()

# %% [markdown]
# ## Break it
#
# A right value does not show where it was computed. So this check compares places: those of the
# trace with those that you want. First it gets the step of the proof, then a function that
# asks for `/GPU:9` again:

# %%
def assert_placed(step, wanted):
    ran = {op.name: op.device for op in step.ops}
    for name, device in wanted.items():
        place = ran.get(name, "no device")
        assert place == device, f"{name} should run on {device} and ran on {place}"


def lost(x):
    with tf.device("/GPU:9"):
        return tf.matmul(x, x, name="product")


assert_placed(graph_step, {"product_0": plan.devices[0], "total": plan.host})
try:
    assert_placed(trace.function_step(lost, numbers)[1], {"product": plan.devices[-1]})
except AssertionError as error:
    print(error)

# %% [markdown]
# The step of the proof passes, and the wrong name is caught. With a single device that is a GPU,
# soft placement takes the right one by chance, and the check has nothing to report.
#
# The second mistake is easily made in a small example: it multiplies constants instead of a
# placeholder. Compare what the log says with what the check says:

# %%
with tf.Graph().as_default() as graph, tf.device(plan.devices[-1]):
    total = tf.matmul(numbers, numbers, name="product")
print("planned:", run_logged(graph, total).device_of("product"))

session = tf1.Session(graph=graph, config=plan.session_config())
print(session.run(total))
try:
    assert_placed(trace.session_step(session, total)[1], {"product": plan.devices[-1]})
except AssertionError as error:
    print(error)

# %% [markdown]
# The product is right, and in this step nothing was multiplied. TensorFlow saw that the inputs
# never change, computed the product once, before the first step, and kept the result. The log says
# what was *planned*, the trace what *ran*. To measure speed or memory, look at the trace.
#
# ## With your own model
#
# Here is a small residual network with batch normalization, in two halves. Each half is built in a
# `tf.device` block, as most people would begin:

# %%
layers = keras.layers
keras.utils.set_random_seed(0)


def residual(x):
    y = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(y)]))


image, middle = keras.Input([16, 16, 3]), keras.Input([16, 16, 8])
with tf.device(plan.devices[0]):
    stem = layers.Conv2D(8, 3, padding="same")(image)
    first = keras.Model(image, residual(stem), name="first")
with tf.device(plan.devices[-1]):
    scores = layers.Dense(10)(layers.GlobalAveragePooling2D()(residual(middle)))
    second = keras.Model(middle, scores, name="second")

# %% [markdown]
# `train_once` takes a model through one training step, always from the same weights. It gives the
# loss, the new weights and a trace of the next step. `jit_compile=False` is explained below.
#
# `show_places` prints where the weights of each half are, and where its convolutions and matrix
# products ran, in the forward and in the backward pass. Keras names an operation after the layer
# that made it, and TensorFlow puts `gradient_tape` before the names of the backward pass:

# %%
images = np.random.default_rng(seed=0).normal(size=[8, 16, 16, 3]).astype("float32")
labels = np.arange(8)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
whole = keras.Sequential([first, second])
start = whole.get_weights()

# %%
def train_once(model):
    model.set_weights(start)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=False)
    value = model.train_on_batch(images, labels)
    _, step = trace.function_step(model.train_on_batch, images, labels)
    return value, model.get_weights(), step


def show_places(step):
    print("half     weights  forward  backward")
    heavy = [op for op in step.ops if "Conv" in op.type or "MatMul" in op.type]
    for half in [first, second]:
        weights = {devices.short(weight.value.device) for weight in half.weights}
        ops = [op for op in heavy if half.name in op.name]
        forward = {op.device for op in ops if "gradient_tape" not in op.name}
        backward = {op.device for op in ops if "gradient_tape" in op.name}
        print(f"{half.name:9}" + "   ".join([*weights, *forward, *backward]))


# %% tags=["unplaced"]
whole_loss, whole_weights, step = train_once(whole)
show_places(step)

# %% [markdown]
# The weights are where they should be, and everything was computed in one place. The place of a
# layer's weights is decided where the layer is *built*: here where it is called on a
# `keras.Input`, in its block. (A `Sequential` without an `Input` is built where it first gets data,
# whatever block it was made in.) The place of its operations is decided where it is *called*, and
# Keras calls it in `train_on_batch`, outside the blocks.
#
# So the blocks belong around the calls:

# %% tags=["unplaced"]
class Called(keras.Model):
    def __init__(self):
        super().__init__()
        self.halves = [first, second]

    def call(self, x):
        for half, device in zip(self.halves, [plan.devices[0], plan.devices[-1]]):
            with tf.device(device):
                x = half(x)
        return x


show_places(train_once(Called())[2])

# %% [markdown]
# The forward pass is right. The backward pass was left to TensorFlow: the gradient tape makes its
# operations after `call` has ended. On GPUs, the first GPU would do all of it.
#
# A function that chooses sees every operation of the step, also those of the backward pass. This
# one goes by the name of the half. What has neither name goes where its first input is:

# %%
def by_layer(op):
    if "first" in op.name:
        return plan.devices[0]
    if "second" in op.name:
        return plan.devices[-1]
    return op.inputs[0].device if op.inputs else plan.devices[0]


class Placed(keras.Sequential):
    def train_step(self, data):
        with tf1.device(by_layer):
            return super().train_step(data)


placed = Placed([first, second])
value, weights, step = train_once(placed)
show_places(step)

# %% [markdown]
# Each half is now on its device, in both passes. Is it the same training step? Where is the
# momentum, which the optimizer keeps for each weight? And what are the two largest tensors that
# cross? At the cut there are 8 images of 16 · 16 · 8 numbers of 4 bytes, which is 65,536 bytes:

# %% tags=["unplaced"]
apart = max(np.abs(a - b).max() for a, b in zip(weights, whole_weights))
print(f"loss {value:.3f} and {whole_loss:.3f}, weights equal to 1e-5:", apart < 1e-5)
print("momentum on", {devices.short(each.value.device) for each in placed.optimizer.momentums})
for copy in sorted(step.copies, key=lambda copy: copy.bytes or 0)[-2:]:
    print(f"{copy.source} -> {copy.target}  {copy.bytes:,} bytes")

# %% [markdown]
# The loss and the weights are those of the model that was computed in one place. The activations
# cross forward, and their gradient, of the same size, crosses back.
#
# What to watch for:
#
# - `evaluate` and `predict` have steps of their own. Put the same block into `test_step` and
#   `predict_step`.
# - Nobody placed the momentum: the optimizer creates it outside the block, for both halves in one
#   place. On GPUs that place is the first GPU. The momentum of weights elsewhere crosses in every
#   step, and where weights are large this is more than the activations. Adam keeps two numbers for
#   each weight in the same way.
# - The halves take turns: one device waits while the other works. [[09]] is about that.
# - On a machine with GPUs, Keras compiles a training step with XLA unless you pass
#   `jit_compile=False`. XLA compiles a step for one device, and does not accept a variable that is
#   on another. Look for its error:

# %%
placed.compile("sgd", loss, jit_compile=True)
try:
    placed.train_on_batch(images, labels)
except tf.errors.InvalidArgumentError as error:
    print("a variable is located in another device:", "located in device" in error.message)

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `full_name`. It takes a short name, such as `/GPU:3`, `/device:GPU:3` or `/cpu:7`,
# and returns the full one, such as `/job:localhost/replica:0/task:0/device:GPU:3`.

# %% tags=["exercise"]
def full_name(name):
    return name


checks.full_name(full_name)

# %% tags=["solution"]
def full_name(name):
    machine = tf.DeviceSpec(job="localhost", replica=0, task=0)
    return machine.make_merged_spec(tf.DeviceSpec.from_string(name)).to_string()


checks.full_name(full_name)

# %% [markdown]
# **2.** Write a function for `tf1.device` that puts variables on the host, and everything else on
# the plan's first device. In a graph, the variable that `tf1.get_variable` makes is an operation of
# the type `VarHandleOp`. What reads or assigns it goes where the variable is, without being told.

# %% tags=["exercise"]
def choose(op):
    return plan.devices[0]


checks.variables_on_host(choose)

# %% tags=["solution"]
def choose(op):
    return plan.host if op.type == "VarHandleOp" else plan.devices[0]


checks.variables_on_host(choose)

# %% [markdown]
# **3.** `add_products` sends each whole product to the host. Suppose that only the sum of all its
# entries is wanted, one number. Write `add_entries` so that each device still multiplies, and
# sends no more than 4 bytes. The check reads the bytes from a trace.

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
# - A wrong name was silent in today's code and raised an error in a session. In each of them one
#   setting reverses this.
# - What nobody placed went to one place, in a function and in a graph.
# - A product on each device and their sum sent exactly the bytes of their shapes. Function, session
#   and NumPy gave the same million numbers.
# - The log named a device for a product of constants. The trace showed that it did not run there.
# - A block around Keras layers placed their weights, a block in `call` placed the forward pass, and
#   a function around `train_step` placed both passes. The loss and the new weights stayed the same.
#
# ## In practice
#
# Use this when you want to know which GPU does what: name a device for what matters, then check it
# with a trace of one step. It costs two extra runs of that step, and a line of code for each place.
#
# - While you develop, call `tf.config.set_soft_device_placement(False)`. Leave soft placement on in
#   code that should run on any machine, and check the places of the few operations that matter.
# - TensorFlow numbers the GPUs that it may see. `CUDA_VISIBLE_DEVICES=2,3` makes them `/GPU:0` and
#   `/GPU:1`; [[04]] is about that.
# - Call `tf.debugging.set_log_device_placement` before TensorFlow starts, or not at all. In
#   TensorFlow 2.18 to 2.21 a later call logs nothing. It switches soft placement instead: `True`
#   switches it on and `False` off.
# - A session that is given a configuration forgets what `tf.config` was told.
#   `plan.session_config` builds one that has the same devices.
#
# Next: [[next]].
