# %% [markdown]
# # Combine two ways
#
# One GPU cannot hold your model, and you have four. If two train it in two stages ([[12]]), the
# other two do nothing.
#
# **In this lesson** one line puts all four to work, in two rows. Each row has both stages of the
# model, and half of the batch:
#
# ![Four devices in a grid. Thin arrows within the rows: activations and gradients, 2.1 MB. Thick
# arrows between them: weights and gradients, 10.1 MB.](pictures/15_grid.svg)
#
# Row 0 keeps the weights. In each step row 1 reads them, and sends their gradients back. By a count
# that we make below, a step of our network with 1024 images holds 33.4 MB on one device, and 10.8
# MB on the fullest of these four. The bytes on the arrows are the price. The line to paste:
#
# ```python
# plan = devices.setup()
# model = fit.use(model, plan, stages=2)  # four devices make two rows
# model.fit(images, labels)
# ```
#
# **You need** [[07]], [[12]] and [[14]].

# %%
from mgpu_helpers import devices

plan = devices.setup(4, exact=True)
plan

# %%
import textwrap

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, memory, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_15 as checks
from mgpu_helpers.lessons.state import apart, at_rest

layers = keras.layers
images, labels = digits.load(1024)
images = images.reshape(1024, 784)

# %% [markdown]
# ## Two devices do nothing
#
# The network has two residual blocks, and 5 MB of weights:

# %%
def build():
    keras.utils.set_random_seed(0)
    image = keras.Input([784])
    x = layers.Dense(256, name="stem")(image)
    for i in range(2):
        y = layers.LayerNormalization(name=f"norm_{i}")(x)
        y = layers.Dense(1024, "relu", name=f"up_{i}")(y)
        x = layers.Add(name=f"sum_{i}")([x, layers.Dense(256, name=f"down_{i}")(y)])
    model = keras.Model(image, layers.Dense(10, name="scores")(x))
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), entropy, jit_compile=False)
    return model


def use(where=plan, **options):
    with tf.device(plan.host):
        return fit.use(build(), where, **options)


def traced(model, batch=1024):
    with tf.device(plan.host):  # prepares the batch
        return trace.fit_step(model, (images[:batch], labels[:batch]))

# %% [markdown]
# We train it in two stages, first on two devices and then on four. To see which work, we trace a
# step, and add up the bytes that the matrix products of the forward pass make:

# %%
for where in (plan.devices[:2], plan):
    model = use(where, stages=2)
    step = traced(model)
    products = [op for op in step.ops if "MatMul" in op.type and "gradient" not in op.name]
    print("rows:", *fit.layout(model).rows)
    for device in plan.devices:
        print(f"  {device} {sum(op.bytes for op in products if op.device == device):9,} bytes")

# %% [markdown]
# With four devices, each computes half as much, because its row has half of the images. Rows that
# share the batch are **data parallelism**, stages are **model parallelism**, and the grid is a
# **device mesh**.
#
# When does each device work? `F0` is a stage's forward pass, and `B0` its backward pass:

# %% tags=["varies", "cover"]
ax = charts.pipeline(step)
ax.set_title("Two rows of two stages: forward dark, backward pale", loc="left")
names = [f"row {i // 2}: {label.get_text()}" for i, label in enumerate(ax.get_yticklabels())]
ax.set_yticks(ax.get_yticks(), names)
plt.show()

# %% [markdown]
# Both rows work at the same time. Within a row the stages take turns, so each device is idle about
# half the time. `pieces=4` would help ([[13]]).
#
# Which devices hold the weights?

# %%
for device, size in at_rest(model.weights).items():
    print(f"{device}  {size:9,} bytes of weights")

# %% [markdown]
# Only those of row 0.
#
# ## By hand
#
# In the smallest such model, the first stage multiplies by `a`, which is 2, and the second by `b`,
# which is 3. The batch is 1, 2, 3 and 4, and the loss is the mean of the outputs. The mean of the
# batch is 2.5, so the gradient of `a` has to be 3 · 2.5 = 7.5, and that of `b` 2 · 2.5 = 5.
#
# Unlike `fit.use`, the code below gives each row a copy of the weights, which is simpler:

# %%
grid = [plan.devices[:2], plan.devices[2:4]]
shares = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])


def weights():
    copies = []
    for front, rear in grid:
        with tf.device(front):
            a = tf.Variable(2.0)
        with tf.device(rear):
            b = tf.Variable(3.0)
        copies.append((a, b))
    return copies

# %% [markdown]
# Within a row each stage has its own tape: `middle` goes to the second stage, and its gradient
# comes back. The losses of the rows have to add up to the mean, so each row divides its sum by the
# whole batch, 4:

# %%
def gradients(row, pair, x):
    (front, rear), (a, b) = row, pair
    with tf.device(front), tf.GradientTape() as front_tape:
        middle = a * x
    with tf.device(rear):
        with tf.GradientTape() as rear_tape:
            rear_tape.watch(middle)
            loss = tf.reduce_sum(b * middle) / 4
        of_b, of_middle = rear_tape.gradient(loss, [b, middle])
    with tf.device(front):
        return loss, front_tape.gradient(middle, a, of_middle), of_b

# %% [markdown]
# Between the rows the gradients are added up, and both copies of a weight move by their sum:

# %%
def take_step(copies, added=("a", "b")):
    computed = [gradients(row, pair, x) for row, pair, x in zip(grid, copies, shares)]
    losses, of_a, of_b = zip(*computed)
    for stage, (name, parts) in enumerate({"a": of_a, "b": of_b}.items()):
        for row in range(2):
            with tf.device(grid[row][stage]):
                gradient = tf.add_n(parts) if name in added else parts[row]
                copies[row][stage].assign_sub(0.1 * gradient)
    return sum(loss.numpy() for loss in losses), of_a, of_b

# %%
_, of_a, of_b = take_step(weights())
for name, (one, other) in {"a": of_a, "b": of_b}.items():
    print(f"gradient of {name}: {one.numpy()} + {other.numpy()} = {one.numpy() + other.numpy()}")

# %% [markdown]
# The rows' gradients add up to those of the batch.
#
# ## Proof
#
# Do two rows train what one device trains? We compare the weights after two steps of `fit`, in
# float64. Batches of 99 and 51 images make the shares unequal.
#
# In place of stages, a row can have parts of layers ([[14]]). We compare both ways with one device.
# `"row": 2` puts two devices into each row of the grid. `columns` and `rows` say how a layer's
# weights are cut:

# %%
cut = {"layers": {"up_.*": "columns", "down_.*": "rows"}, "row": 2}
ways = {"stages": {"stages": 2}, "parts of layers": cut}


def trained(model):
    model.fit(images[:150], labels[:150], batch_size=99, shuffle=False, verbose=0)
    return model.get_weights()

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
with tf.device(plan.devices[0]):
    begin, of_one = build().get_weights(), trained(build())
for name, options in ways.items():
    close = apart(trained(use(**options)), of_one) < 1e-12
    print(f"{name}: less than 1e-12 from one device: {close}")
print("training moved the weights by more than 0.001:", apart(begin, of_one) > 0.001)
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")

# %% [markdown]
# ## What crosses
#
# `crossed` traces a step, and adds up the bytes that cross within rows and between them:

# %%
def crossed(model, batch):
    row_of = {device: i for i, row in enumerate(fit.layout(model).rows) for device in row}
    within = between = 0
    for (source, target), size in traced(model, batch).bytes_between().items():
        if plan.host not in (source, target):
            if row_of[source] == row_of[target]:
                within += size
            else:
                between += size
    return f"{within:10,} within rows {between:11,} between rows"

# %%
for name, options in ways.items():
    for batch in [512, 1024]:
        print(f"{name:16} batch {batch:4} {crossed(use(**options), batch)}")
print(f"weights, there and back: {2 * sum(at_rest(model.weights).values()):,} bytes")

# %% [markdown]
# **Within the rows activations cross, and they grow with the batch.** Stages send them once, at the
# cut: each image has 256 numbers of 4 bytes there, and as many come back as gradients. Parts of
# layers send four times as much, at the beginning and at the end of both blocks.
#
# **Between the rows weights and gradients cross, and they do not grow with the batch.** The few
# other bytes are the scores, from which the first row computes the loss, and their gradients.
#
# ## Ask first
#
# `memory.plan` counts before you train. For one device, and for each way to train on four, it says
# roughly what the fullest device holds, and the line to paste. Each name in `stages` is a layer
# that begins a stage:

# %% tags=["nbval-ignore-output"]
with tf.device(plan.host):
    advice = memory.plan(build(), 1024, devices=4)
several = [way for way in advice.ways if len(way.layout.devices) > 1]
for way in [advice.ways[0], *several]:
    print(f"{way.name:40}{memory.size_text(way.held):>8}  {way.write}")

# %%
print(*textwrap.wrap(advice.notes[0], 88), sep="\n")

# %% [markdown]
# If a device has 12 MB, only the last way fits.
#
# ## Break it
#
# Your own loop forgets one sum: each row updates its copy of `b` by its own gradient. Write down
# what you expect of the loss and the weights:

# %%
for name, added in {"both sums": ["a", "b"], "only a": ["a"]}.items():
    copies = weights()
    loss, *_ = take_step(copies, added)
    after = [f"a {a.numpy():.2f}, b {b.numpy():.2f}" for a, b in copies]
    print(f"{name}: loss {loss:.2f}, then {take_step(copies, added)[0]:.2f}")
    print(*(f"  row {i} after a step: {each}" for i, each in enumerate(after)), sep="\n")

# %% [markdown]
# The loss falls in both cases, and no error says that the rows now train two models. If your own
# loop keeps a copy in each row, compare the copies after a step. With `fit.use` the rows read one
# copy and cannot drift apart.
#
# | | |
# |---|---|
# | **Use it when** | a model needs several devices, and you have at least twice as many |
# | **It costs** | what crosses, [compared](../docs/layouts.md#what-each-costs) with all ways |
# | **Instead** | if a device holds the weights, share the batch ([[01]]) or the state ([[11]]) |
#
# ## On GPUs
#
# `nvidia-smi topo -m` prints which GPUs are connected by NVLink, the fast link. `fit.use` fills the
# rows in the order of your list: the first two devices are row 0. The first and the third are a
# **column**: they have the same stage.
#
# ## On your own
#
# **1.** Each of four GPUs has a fast link to one other. `pairs` lists both pairs, as in
# `[("/GPU:0", "/GPU:1"), ("/GPU:2", "/GPU:3")]`. In a step, `within` bytes cross within rows, and
# `between` bytes between them. Write `in_order`, which returns the list of devices for
# `fit.use(model, …, stages=2)`, so that the larger number crosses the fast links.

# %% tags=["exercise"]
def in_order(pairs, within, between):
    return [*pairs[0], *pairs[1]]


checks.in_order(in_order)

# %% tags=["solution"]
def in_order(pairs, within, between):
    (a, b), (c, d) = pairs
    return [a, b, c, d] if within > between else [a, c, b, d]


checks.in_order(in_order)

# %% [markdown]
# **2.** A model in two stages has `weights` bytes of weights, and an example has `cut` bytes at the
# cut. `rows` rows share a batch of `batch` examples. The first row holds the weights, and the
# others read them there. Write `crossing`, which returns the bytes that cross in a step within all
# rows, and those between rows. Leave the scores out.

# %% tags=["exercise"]
def crossing(weights, cut, batch, rows):
    return 0, 0


checks.crossing(crossing)

# %% tags=["solution"]
def crossing(weights, cut, batch, rows):
    return 2 * batch * cut, 2 * weights * (rows - 1)


checks.crossing(crossing)

# %% [markdown]
# ## What we saw
#
# - In float64, two rows of two devices ended with the weights of one device, to 1e-12.
# - With a batch of 1024, 2,097,152 bytes crossed within rows of stages, and 10,086,480 between.
#
# ## In practice
#
# Give a row as few devices as hold the model. Read in `memory.plan` what crosses, and order the
# devices by it.
#
# Next: [[next]].
