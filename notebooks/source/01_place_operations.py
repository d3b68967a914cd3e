# %% [markdown]
# # Place operations
#
# You decide which device runs an operation, and a log, a map and a check show that it did.
#
# [[previous]] used the names that the plan gave. Here you see what a device name can be, and what
# a wrong one does.
#
# **You will learn** to
# - write device names short and in full, and take them apart,
# - read TensorFlow's placement log, in a graph and in today's code,
# - place operations by hand, nested, and with a function,
# - recognise the wrong name that raises an error and the one that does not,
# - count the bytes that a placement sends from device to device.
#
# **You need** lesson 00.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import os
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, placement, trace
from mgpu_helpers.lessons.checks import lesson_01 as checks

# %% [markdown]
# ## The name of a device
#
# A device has a short name, a longer one, and a full one:

# %%
print("short: ", plan.devices[0])
print("longer:", tf.config.list_logical_devices()[1].name)
with tf.device(plan.devices[0]):
    print("full:  ", tf.ones([]).device)

# %% [markdown]
# The full name also says which *job*, *replica* and *task* the device belongs to. They are for
# programs that run on several machines. On one machine they are always `localhost`, 0 and 0, and
# may be left out.
#
# `tf.DeviceSpec` builds such a name from its parts:

# %%
spec = tf.DeviceSpec(job="localhost", replica=0, task=0, device_type="CPU", device_index=1)
print(spec.to_string())

# %% [markdown]
# It takes a name apart. What the name does not say is `None`. Small letters and `/device:` mean
# the same:

# %%
for name in ["/CPU:1", "/cpu:1", "/device:CPU:1"]:
    spec = tf.DeviceSpec.from_string(name)
    print(f"{name:14}", spec.device_type, spec.device_index, spec.job, spec.task)

# %% [markdown]
# And it merges two names. What the second one says wins, and the first fills the gaps:

# %%
here = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0")
there = tf.DeviceSpec.from_string("/CPU:1")
print(here.make_merged_spec(there).to_string())

# %% [markdown]
# ## What TensorFlow does unasked
#
# Two small programs, the same sum twice. First the classic way: a graph is built, and then a
# session runs it. A placeholder is an input, to be filled at each run. Nobody names a device:

# %%
graph = tf.Graph()
with graph.as_default():
    x = tf1.placeholder(tf.float32, [2, 2], name="x")
    tf.add(tf.matmul(x, x, name="square"), x, name="sum")

# %% [markdown]
# With `log_placement=True` in its configuration, a session prints which device it chose for each
# operation. `placement.capture` collects what it prints. (`sum:0` is the first output of the
# operation `sum`.) Look at the end of each line:

# %% tags=["unplaced"]
numbers = np.array([[1, 2], [3, 4]], "float32")

with placement.capture() as log:
    with tf1.Session(graph=graph, config=plan.session_config(log_placement=True)) as session:
        print(session.run("sum:0", {"x:0": numbers}))
print(*log.raw, sep="\n")

# %% [markdown]
# This is TensorFlow's **placement log**: name, type, full device name. As a table it is easier to
# read:

# %% tags=["unplaced"]
log

# %% [markdown]
# Everything is in one place. TensorFlow prefers `/GPU:0` if there is one and the operation can run
# there, and takes `/CPU:0` otherwise. It does not spread work over several devices by itself.
#
# Now today's way, a `tf.function`:

# %% tags=["unplaced"]
@tf.function
def square_and_add(x):
    return tf.add(tf.matmul(x, x, name="square"), x, name="sum")


with placement.capture() as log:
    print(square_and_add(numbers).numpy())
log

# %% [markdown]
# The same sum and the same places. (`Identity` hands the result out.) No log was printed here:
# `capture` read the places from the graph that TensorFlow ran.
#
# Today's code prints a log only if it is asked *before* TensorFlow starts, which takes a separate
# process. Asked now, it is silent:

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
with placement.capture() as log:
    tf.matmul([[1.0, 2.0]], [[3.0], [4.0]])
print("asked now:   ", list(log.raw))

# %% [markdown]
# ## Place by hand
#
# `tf.device` names a device for every operation created in its block. Blocks can be nested, and
# the inner one wins. `tf.device(None)` takes the name away again:

# %%
graph = tf.Graph()
with graph.as_default(), tf.device(plan.devices[0]):
    tf.zeros([], name="outer")
    with tf.device(plan.host):
        tf.zeros([], name="inner")
    with tf.device(None):
        tf.zeros([], name="nobody")

for op in graph.get_operations():
    print(f"{op.name:8}{op.device or '(no device named)'}")

# %% [markdown]
# That is what was *asked for*. What became of it, the log says. `nobody` was left to TensorFlow:

# %%
with placement.capture() as log:
    with tf1.Session(graph=graph, config=plan.session_config(log_placement=True)) as session:
        session.run(["outer:0", "inner:0", "nobody:0"])
log

# %% [markdown]
# The classic form, `tf1.device`, also takes a function. It is called with each new operation and
# returns the name of its device. This one sends what multiplies to the last device and keeps the
# rest on the host:

# %%
def by_type(op):
    return plan.devices[-1] if op.type == "MatMul" else plan.host


graph = tf.Graph()
with graph.as_default(), tf1.device(by_type):
    x = tf1.placeholder(tf.float32, [2, 2], name="x")
    tf.add(tf.matmul(x, x, name="square"), x, name="sum")

with placement.capture() as log:
    with tf1.Session(graph=graph, config=plan.session_config(log_placement=True)) as session:
        session.run("sum:0", {"x:0": numbers})
print(log)

# %% [markdown]
# ## A device that is not there
#
# In a session, a name without a device is an error, at the first run:

# %%
graph = tf.Graph()
with graph.as_default(), tf.device("/GPU:63"):
    tf.zeros([], name="lost")

with tf1.Session(graph=graph, config=plan.session_config()) as session:
    try:
        session.run("lost:0")
    except tf.errors.InvalidArgumentError as error:
        print(next(line for line in error.message.splitlines() if "Cannot assign" in line))

# %% [markdown]
# `allow_soft_placement` in the configuration of the session (here `soft_placement=True`) turns the
# error off. TensorFlow then takes a device that is there:

# %%
config = plan.session_config(soft_placement=True, log_placement=True)
with placement.capture() as log:
    with tf1.Session(graph=graph, config=config) as session:
        session.run("lost:0")
log

# %% [markdown]
# In today's code soft placement is on from the start. The same wrong name, and no error:

# %%
with tf.device("/GPU:63"):
    lost = tf.zeros([])
print("made on", devices.short(lost.device))

# %% [markdown]
# `tf.config.set_soft_device_placement(False)` brings the error back:

# %%
tf.config.set_soft_device_placement(False)
try:
    with tf.device("/GPU:63"):
        tf.zeros([])
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition(". ")[0])
tf.config.set_soft_device_placement(True)

# %% [markdown]
# ## Two products and a sum
#
# A small example with everything in it: each device multiplies, and the host adds the products.
# `numbers` times itself is 7, 10, 15 and 22. Look for twice that, or as many times as you have
# devices. Classic:

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
# Now 1000 rows and columns, traced. `session_step` runs one step of the session and keeps
# TensorFlow's record of it:

# %% tags=["cover"]
big = np.random.default_rng(seed=0).integers(-3, 4, [1000, 1000]).astype("float32")
session.run(total, {x: big})  # the first run prepares the graph
classic, step = trace.session_step(session, total, {x: big})
for (source, target), size in step.bytes_between().items():
    print(f"{source} -> {target}  {size:>10,} bytes")
charts.placement_map(step)
plt.show()

# %% [markdown]
# `x` has 1000 · 1000 numbers of 4 bytes. It crosses once to each device, although `matmul` takes
# it twice, and each product crosses back.
#
# Today's code says the same in a `tf.function`:

# %%
@tf.function
def add_products(x):
    products = []
    for device in plan.devices:
        with tf.device(device):
            products.append(tf.matmul(x, x))
    with tf.device(plan.host):
        return tf.add_n(products)


modern, step = trace.function_step(add_products, big)
print("bytes that cross:", f"{sum(step.bytes_between().values()):,}")

# %% [markdown]
# ## Proof: classic and modern agree
#
# The entries are whole numbers and so are their sums, which float32 holds exactly. Both have to be
# equal to NumPy's result, without any tolerance:

# %%
print("classic equals modern:", np.array_equal(classic, modern))
print("both equal NumPy:     ", np.array_equal(classic, len(plan) * (big @ big)))

# %% [markdown]
# ## Break it
#
# An operation that ran somewhere else than you think. Give each device constants instead of a
# placeholder, as many examples do. The log is as expected:

# %%
graph = tf.Graph()
with graph.as_default():
    products = []
    for i, device in enumerate(plan.devices):
        with tf.device(device):
            products.append(tf.matmul(numbers, numbers, name=f"product_{i}"))
    with tf.device(plan.host):
        total = tf.add_n(products, name="total")

with placement.capture() as log:
    session = tf1.Session(graph=graph, config=plan.session_config(log_placement=True))
    session.run(total)
print([(row.name, row.device) for row in log.rows if row.type == "MatMul"])

# %% [markdown]
# The trace is not. Look for a multiplication in it:

# %%
value, step = trace.session_step(session, total)
print(value)
print("multiplications that ran:", [op.name for op in step.ops if op.type == "MatMul"])

# %% [markdown]
# The sum is right, and nothing was multiplied on any device. TensorFlow saw that the inputs never
# change, computed the products once, before the first step, and keeps the result. The log says
# what was *planned*, the trace what *ran*. To measure speed or memory, look at the trace.
#
# A wrong name under soft placement moves an operation without a word. One check on the trace
# catches both:

# %%
def assert_placed(step, wanted):
    ran = {op.name: op.device for op in step.ops}
    wrong = {name: ran.get(name, "nowhere") for name in wanted if ran.get(name) != wanted[name]}
    assert not wrong, f"not where they should be: {wrong}"


def lost(x):
    with tf.device("/GPU:63"):
        return tf.matmul(x, x, name="product_0")


for traced in [step, trace.function_step(lost, numbers)[1]]:
    try:
        assert_placed(traced, {"product_0": plan.devices[-1]})
    except AssertionError as error:
        print(error)

# %% [markdown]
# (Soft placement puts the second product where TensorFlow puts what nobody placed. With a single
# device that is a GPU, the wrong name happens to find the right device, and the check has nothing
# to report.)
#
# ## On your own
#
# Under each exercise is its solution, in JupyterLab a collapsed cell: open it with a click.
#
# **1.** Build the full name of the plan's last device, such as
# `/job:localhost/replica:0/task:0/device:CPU:7`, from its short name `plan.devices[-1]`. It should
# come out right whatever the plan.

# %% tags=["exercise"]
answer = plan.devices[-1]

checks.full_name(answer)

# %% tags=["solution"]
machine = tf.DeviceSpec(job="localhost", replica=0, task=0)
answer = machine.make_merged_spec(tf.DeviceSpec.from_string(plan.devices[-1])).to_string()

checks.full_name(answer)

# %% [markdown]
# **2.** Write a function for `tf1.device` that puts variables on the host, and everything else on
# the plan's first device. In a graph, the
# variable that `tf1.get_variable` makes is an operation of the type `VarHandleOp`. What reads or
# assigns it goes where the variable is, without being told.

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
# - A device name was built from parts, taken apart and merged.
# - Unasked, TensorFlow put everything in one place, in a graph and in today's code.
# - A wrong name raised an error in a session and was silent in today's code.
# - Two products and a sum crossed devices with exactly the bytes of their shapes, and classic and
#   modern gave the same sum.
# - The log said where operations were planned, and the trace which of them ran.
#
# ## In practice
#
# - Leave soft placement on for code that should run anywhere, and check the places of the few
#   operations that matter. Some operations exist only for the CPU, such as those on strings;
#   without soft placement, naming a GPU for them is an error.
# - TensorFlow numbers the GPUs that it may see. `CUDA_VISIBLE_DEVICES=2,3` makes them `/GPU:0` and
#   `/GPU:1`; lesson 04 is about that.
# - Call `tf.debugging.set_log_device_placement` before TensorFlow starts, or not at all. In
#   TensorFlow 2.18 to 2.21 a later call logs nothing and switches soft placement instead, on or
#   off.
# - A session that is given a configuration forgets what `tf.config` was told.
#   `plan.session_config` builds one that has the same devices.
#
# Next: [[next]].
