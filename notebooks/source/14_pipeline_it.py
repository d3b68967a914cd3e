# %% [markdown]
# # Pipeline it
#
# You have cut a model over two GPUs, and now it fits. But the GPUs take turns: while one works, the
# other waits for it. You pay for two and get the speed of one.
#
# **In this lesson** the batch goes through the stages of a cut network in pieces, and both devices
# work at the same time.
#
# **You will learn** to
# - send a batch through two stages in pieces, with the gradients of the whole batch,
# - write down, print and check the order in which each device works,
# - predict how long the devices wait, and see it in a trace,
# - choose an order by what it holds in memory.
#
# **You need** [[12]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import warnings
from collections import namedtuple
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, pipeline, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks, schedules
from mgpu_helpers.lessons.checks import lesson_14 as checks

# %% [markdown]
# ## The trouble
#
# This is the network of [[12]], from the article of Wonik Jang ([2017](../docs/sources.md#jang)),
# cut in front of `conv3`, where both parts take about as long. `networks.stages` makes two
# **stages**. A stage is a device, a function, and its weights.
#
# `pipeline.gradients` takes a batch through the stages, forward and back, inside a `tf.function`.
# (What an order is comes below.) Look for moments in which both devices work:

# %%
first, second = plan.devices[0], plan.devices[-1]
network = networks.jang(hidden=7200, width=0.25)  # a quarter of 7200 units
stages = networks.stages(network, ["conv3"], [first, second])
images, labels = digits.load(512)


# %%
def in_order(order):
    def gradients(x, y):
        return pipeline.gradients(stages, networks.loss, x, y, order)[1]

    return tf.function(gradients)


# %% tags=["varies"]
one_piece = [["F0", "B0"], ["F0", "B0"]]
_, step = trace.function_step(in_order(one_piece), images, labels)
charts.timeline(step)
plt.show()

# %% [markdown]
# With two devices there are hardly any. The first stage goes forward, then the second goes forward
# and back, then the first goes back.
#
# Now cut the batch into pieces, **micro-batches**. When the first piece has passed the first
# stage, the second stage can begin with it, and the first stage takes the next piece. In the
# drawing, `F0` is piece 0 on its way forward, and `B0` on its way back. Such a box, one piece
# through one stage, is a **task**:
#
# ![Two stages over time. In one piece, F0 and B0 of stage 0 stand at both ends, and it waits while
# stage 1 computes; stage 1 waits at both ends. In four pieces the stages overlap, and the step is a
# bit over half as long.](pictures/14_bubble.svg)
#
# In four pieces the step is shorter. What is left of the waiting is called the **bubble**.
#
# ## Two pieces, by hand
#
# Begin with two stages that only multiply: one by `a`, which is 2, the other by `b`, which is 3.
# The loss is the mean of what comes out. The batch is 1, 2, 3 and 4, with a mean of 2.5. So the
# gradient of `a` should be 3 times 2.5, which is 7.5, and that of `b` 2 times 2.5, which is 5.

# %%
with tf.device(first):
    a = tf.Variable(2.0)
with tf.device(second):
    b = tf.Variable(3.0)


# %%
def multiply(weights, x):
    (weight,) = weights.values()
    return weight * x


small = [pipeline.Stage(first, multiply, {"a": a}), pipeline.Stage(second, multiply, {"b": b})]

# %% [markdown]
# A task is a call of one of two short functions.
#
# `forward` runs the stage's function on what comes from the stage before. It keeps that, and what
# the stage made of it, because the backward pass needs both.
#
# `back` gets the gradient of the loss with respect to what the stage made. This is what
# `tf.gradients` calls `grad_ys`. `back` gives the gradients of the weights, and that of what came
# in, which goes to the stage before. (`tf.gradients` does what a tape does, and there is no tape to
# keep. It works in a graph, and a `tf.function` is one.)

# %%
Kept = namedtuple("Kept", "x made")


def forward(stage, x):
    with tf.device(stage.device):
        return Kept(x, stage.function(stage.weights, x))


# %%
def back(stage, kept, gradient):
    wanted = [*stage.weights.values(), kept.x]
    with tf.device(stage.device):
        *of_weights, of_x = tf.gradients(kept.made, wanted, grad_ys=gradient)
    return of_weights, of_x


# %% [markdown]
# Here are two pieces, line by line, in an order in which both devices have something to do. The
# loss is the mean of four outputs, so its gradient is a quarter for each of them:

# %%
@tf.function
def two_pieces(x0, x1):
    quarters = tf.constant([0.25, 0.25])

    front0 = forward(small[0], x0)
    rear0 = forward(small[1], front0.made)
    front1 = forward(small[0], x1)
    (b0,), gradient0 = back(small[1], rear0, quarters)
    rear1 = forward(small[1], front1.made)
    (a0,), _ = back(small[0], front0, gradient0)
    (b1,), gradient1 = back(small[1], rear1, quarters)
    (a1,), _ = back(small[0], front1, gradient1)
    return a0, a1, b0, b1


a0, a1, b0, b1 = [g.numpy() for g in two_pieces(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]))]
print(f"gradient of a: {a0} + {a1} = {a0 + a1}, of b: {b0} + {b1} = {b0 + b1}")

# %% [markdown]
# These are 7.5 and 5. Each piece gives its share of a gradient, and the shares are added.
#
# ## Any number of pieces
#
# In general an **order** says what each stage does, one task after the other. That of the eight
# lines above is `F0 F1 B0 B1` for stage 0 and `F0 B0 F1 B1` for stage 1. `schedules.run_times`
# lists the tasks of all stages so that each comes after what it needs.
#
# `in_pieces` follows that list. `carried[k]` is what piece k takes to its next task: at first its
# examples, then the activations, and in the backward pass their gradient. `loss_gradient` gives the
# gradient with which the backward pass of a piece begins. The loss of a piece counts by its share
# of the batch:

# %%
def mean(labels, made):
    return tf.reduce_mean(made)


def loss_gradient(stage, loss, y, made, pieces):
    with tf.device(stage.device):
        return tf.gradients(loss(y, made) / pieces, made)[0]


def add(stage, total, found):
    with tf.device(stage.device):
        for name, gradient in zip(stage.weights, found):
            total[name] = total.get(name, 0.0) + gradient


# %%
def in_pieces(stages, loss, x, y, order):
    pieces = len(order[0]) // 2
    with tf.device(plan.host):
        carried, ys = tf.split(x, pieces), tf.split(y, pieces)
    kept, total = [{} for stage in stages], {}
    for s, task in schedules.run_times(order):
        stage, k = stages[s], int(task[1:])
        if task[0] == "F":
            kept[s][k] = forward(stage, carried[k])
            carried[k] = kept[s][k].made
        else:
            if stage is stages[-1]:
                carried[k] = loss_gradient(stage, loss, ys[k], carried[k], pieces)
            found, carried[k] = back(stage, kept[s].pop(k), carried[k])
            add(stage, total, found)
    return total


# %% [markdown]
# The same four numbers, in the same order of tasks, should give 7.5 and 5 again:

# %%
@tf.function
def in_two(x):
    return in_pieces(small, mean, x, x, [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]])


total = in_two(tf.range(1.0, 5.0))
print("gradient of a:", float(total["a"]), " of b:", float(total["b"]))

# %% [markdown]
# ## Three orders
#
# One piece can go all the way before the next one starts. Or all pieces go forward, then all go
# back. Or a stage goes back with one piece for each one that goes forward, as soon as there is one
# to go back with. `schedules.table` prints an order: a line is a stage, a column a unit of time,
# and a point a unit in which the stage waits. Count the columns, and look for what stage 0 has sent
# and not got back:

# %%
ways = {"one after the other": pipeline.one_by_one,
        "all forward first": pipeline.all_forward,
        "one forward, one back": pipeline.one_forward_one_backward}  # fmt: skip
for name, way in ways.items():
    print(name, schedules.table(way(stages=2, pieces=4)), sep="\n", end="\n\n")

# %% [markdown]
# The first takes 16 columns, the other two take 10. But with all forward first, stage 0 holds what
# four pieces left behind. In the third order it never holds more than two.
#
# With p stages and m pieces, each of the last two orders has 2 (m + p - 1) columns. A stage works
# in 2 m of them and waits in the other 2 (p - 1). So the bubble is a share of (p - 1)/(m + p - 1),
# if all tasks take equally long. For two stages that is 50 % with one piece, 33 % with two, 20 %
# with four, and 11 % with eight.
#
# Not every order can run. Here stage 0 waits for piece 0 to come back before it sends piece 1, and
# stage 1 sends nothing back before it has both. Devices that kept to this order would wait for each
# other for ever. `schedules.check` says so beforehand:

# %%
try:
    schedules.check([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])
except ValueError as error:
    print(error)

# %% [markdown]
# ## A stream for each device
#
# On a GPU, TensorFlow's computations run one after the other, in the order in which they were given
# to it. Such a queue is a **stream**. A logical CPU starts whatever is ready, in any order, so it
# would not keep to a schedule.
#
# TensorFlow can make an operation wait for another one whose result it does not use. A chain of
# such **control dependencies** makes a stream. Here are four products that do not need each other,
# on one device. Look at the order in which they ran:

# %%
def products(x, names):
    made = []
    for name in names:
        with tf.device(first), tf.control_dependencies(made[-1:]):
            made.append(tf.matmul(x, x, name=name))
    return made


for names in [["a", "b", "c", "d"], ["c", "a", "d", "b"]]:
    _, step = trace.function_step(products, np.ones([400, 400], "float32"), names)
    done = [op for op in step.ops if op.type == "MatMul"]
    apart = all(a.start + a.length <= b.start for a, b in zip(done, done[1:]))
    print("asked for", *names, " ran", *[op.name for op in done], " one at a time:", apart)

# %% [markdown]
# `pipeline.gradients` is `in_pieces` with such a stream for each device. It also takes batches that
# cannot be cut evenly, and its errors say what to do.
#
# ## A network in pieces
#
# Now the network of the beginning, with 512 images. `steps` has a step for each order and number of
# pieces. The charts show one forward, one back: first in one piece, then in eight. The number in a
# bar is that of its piece:

# %% tags=["varies", "cover"]
steps = {}
for name, way in ways.items():
    steps[name] = {m: in_order(way(stages=2, pieces=m)) for m in [1, 2, 4, 8]}
overlapping = steps["one forward, one back"]

for pieces in [1, 8]:
    _, traced = trace.function_step(overlapping[pieces], images, labels)
    charts.pipeline(traced)
    plt.show()

# %% [markdown]
# In one piece the devices take turns. In eight, with as many cores as devices, they overlap. What
# is left of the waiting lies at both ends, and where one stage is slower than the other.
#
# ### How many pieces?
#
# Every step is timed and traced. (`.numpy()` waits for a gradient, so that the time is that of the
# whole step.)

# %%
def run(step):
    for gradient in step(images, labels).values():
        gradient.numpy()


times, traces = {}, {}
for name in ways:
    times[name], traces[name] = {}, {}
    for pieces, step in steps[name].items():
        times[name][pieces] = timing.measure(partial(run, step), warmup=1, repeats=3)
        traces[name][pieces] = trace.function_step(step, images, labels)[1]

# %% [markdown]
# What could one expect? In one piece the three orders are the same, and their traces say how long
# each of the four tasks took. We take the quickest. In m pieces a task should take 1/m of that.
# `run_times` lays the tasks out in time, and the end of the last one is the prediction, the dashed
# line in the chart. The cell after the chart times eight pieces and one piece in turn:

# %%
def work(spans):
    return sum(span.length for span in spans)


spans = min([pipeline.spans(traces[name][1]) for name in ways], key=work)
spans.sort(key=lambda span: span.stage)
forward_took = [span.length for span in spans if span.task == "F0"]
back_took = [span.length for span in spans if span.task == "B0"]


def predict(pieces):
    order = pipeline.one_forward_one_backward(2, pieces)
    costs = [[seconds / pieces for seconds in took] for took in (forward_took, back_took)]
    found = schedules.run_times(order, *costs, devices=[first, second])
    return max(end for _, end in found.values())


# %% tags=["varies"]
drawings.against_pieces(times, {pieces: predict(pieces) for pieces in [1, 2, 4, 8]})
plt.show()

# %%
runs = [partial(run, overlapping[pieces]) for pieces in [8, 1]]
timing.compare(*runs, repeats=6, names=("eight", "one piece"))

# %% [markdown]
# With as many free cores as devices, the two orders that overlap gain with the first pieces, and
# then little or nothing: a piece that is too small takes longer than its share, and starting a task
# costs something too. In one piece a step can be shorter than predicted, because stage 1 hands back
# its gradient before it is done with its own weights. Where one stage is slower than the other, the
# faster one waits for it, so a device is idle for longer than the bubble.
#
# On GPUs this network is too small for pieces. A task is dozens of short kernels, and starting them
# takes longer than computing them. There, expect pieces to make this step slower, not faster.
#
# ### What does it hold?
#
# Here is the peak of each step on the first device, without the weights, in 1, 2, 4 and 8 pieces:

# %% tags=["nbval-ignore-output"]
peaks = {}
for name in ways:
    peaks[name] = {m: each.peak(first, scratch=False) for m, each in traces[name].items()}
    print(f"{name:21}", *[f"{peak / 1e6:5.1f} MB" for peak in peaks[name].values()])
drawings.against_pieces(peaks)
plt.show()
assert peaks["one forward, one back"][8] < 0.5 * peaks["all forward first"][8]

# %% [markdown]
# All forward first keeps what every piece left behind, however small the pieces are. (GPipe, which
# this order comes from, keeps only what crosses from stage to stage and computes the rest again, so
# it holds much less than this.) One forward, one back keeps two pieces, and the pieces become
# smaller: with eight of them it holds less than half as much. One after the other keeps one, and
# overlaps nothing.
#
# ## Proof
#
# Is it still the gradient of the whole batch? The reference is a tape over the uncut network.
# `apart` is the largest difference, as a share of the largest entry of the same gradient:

# %%
weights = {**stages[0].weights, **stages[1].weights}


@tf.function
def uncut(x, y):
    with tf.device(first):
        with tf.GradientTape() as tape:
            value = networks.loss(y, networks.logits(network, weights, x))
        return tape.gradient(value, weights)


def apart(ours, theirs):
    pairs = [(np.array(ours[name]), np.array(theirs[name])) for name in theirs]
    return max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs)


# %%
reference = uncut(images, labels)
for pieces in [1, 2, 4, 8]:
    worst = max(apart(steps[name][pieces](images, labels), reference) for name in ways)
    print(f"pieces: {pieces}  all three orders less than 1e-5 apart:", worst < 1e-5)

# %% [markdown]
# They differ by rounding only, because sums are taken in another order. Now five steps of plain
# gradient descent, in four pieces and uncut, from the same weights. Rounding adds up over the
# steps, but stays far below what the steps change:

# %%
def descend(step):
    for _ in range(5):
        for name, gradient in step(images, labels).items():
            weights[name].assign_sub(0.01 * gradient)
    found = {name: weight.numpy() for name, weight in weights.items()}
    for name, value in begin.items():
        weights[name].assign(value)
    return found


begin = {name: weight.numpy() for name, weight in weights.items()}
in_four = descend(overlapping[4])
print("weights less than 1e-4 apart:", apart(in_four, descend(uncut)) < 1e-4)
print(f"end and beginning are {apart(in_four, begin):.1g} apart")

# %% [markdown]
# ## More stages than devices
#
# Shorter tasks leave a shorter bubble. Four stages, given to two devices in turn, have tasks half
# as long. A device that could start one of several tasks takes the one that can start first. With
# four pieces all forward first took 10 columns. Look at how many it takes now, and at the
# gradients. In the chart, `2:3` is piece 3 in stage 2, where a bar has room for it:

# %% tags=["varies"]
order, half = pipeline.all_forward(stages=4, pieces=4), [0.5, 0.5, 0.5, 0.5]
columns = schedules.run_times(order, half, half, devices=[0, 1, 0, 1])
print(f"four stages: {max(end for _, end in columns.values()):g} columns")

four = networks.stages(network, ["conv2", "conv3", "fc1"], (plan.devices * 4)[:4])


def in_four_stages(x, y):
    return pipeline.gradients(four, networks.loss, x, y, order)[1]


found, traced = trace.function_step(in_four_stages, images, labels)
print("four stages: less than 1e-5 apart:", apart(found, reference) < 1e-5)
charts.pipeline(traced)
plt.show()

# %% [markdown]
# A column is saved where the four stages take equally long. Those of this network do not.
#
# ## The same in a graph
#
# `pipeline.gradients` needs a graph, and a `tf.function` is one. In classic code it stands in the
# graph itself, and the session runs it:

# %%
with tf.Graph().as_default() as graph:
    in_graph = networks.stages(network, ["conv3"], [first, second])
    with tf.device(plan.host):
        feeds = [tf1.placeholder(tf.float32, [512, 28, 28, 1]), tf1.placeholder(tf.int64, [512])]
    order = pipeline.one_forward_one_backward(2, 4)
    _, gradients = pipeline.gradients(in_graph, networks.loss, *feeds, order)
    start = tf1.global_variables_initializer()

with tf1.Session(graph=graph, config=plan.session_config(soft_placement=True)) as session:
    session.run(start)
    found = session.run(gradients, dict(zip(feeds, [images, labels])))
print("session: less than 1e-5 apart:", apart(found, reference) < 1e-5)

# %% [markdown]
# ## Break it
#
# **Pieces of different sizes that count the same.** Take a batch of 90 in pieces of 32, 32 and 26.
# The plain average of the pieces' gradients counts the last examples more than the others, and no
# error says so. Compare it with the whole batch, and with an average in which a piece counts by its
# size.
#
# The second cell leaves that to `pipeline.gradients`. It refuses a batch that cannot be cut evenly,
# unless you say `uneven=True`:

# %%
whole = uncut(images[:90], labels[:90])
pieces = [uncut(images[a:b], labels[a:b]) for a, b in [(0, 32), (32, 64), (64, 90)]]
for shares in [[1 / 3, 1 / 3, 1 / 3], [32 / 90, 32 / 90, 26 / 90]]:
    average = {n: sum(s * each[n] for s, each in zip(shares, pieces)) for n in weights}
    print(*[f"{s:.3f}" for s in shares], " less than 1e-5 apart:", apart(average, whole) < 1e-5)

# %%
order = pipeline.one_forward_one_backward(2, 4)


@tf.function
def uneven(x, y):
    return pipeline.gradients(stages, networks.loss, x, y, order, uneven=True)[1]


print("uneven=True: less than 1e-5 apart:", apart(uneven(images[:90], labels[:90]), whole) < 1e-5)

# %% [markdown]
# **A layer that looks at the whole batch.** Batch normalization subtracts the mean of the batch and
# divides by its deviation. In pieces, these are the mean and the deviation of the piece. The next
# section shows what becomes of the gradients.
#
# ## With your own model
#
# A residual network with batch normalization, built in the blocks of its devices as in [[12]]. (A
# convolution in front of a batch normalization needs no bias: the mean takes it away again.)

# %%
def residual(x, name):
    y = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
    y = keras.layers.BatchNormalization(name=f"{name}_norm")(y)
    return keras.layers.Add()([x, keras.layers.ReLU()(y)])


keras.utils.set_random_seed(0)
x, y = images[:256], labels[:256]
image = keras.Input([28, 28, 1])
with tf.device(first):
    middle = residual(keras.layers.Conv2D(8, 3, padding="same", name="stem")(image), "one")
with tf.device(second):
    top = keras.layers.GlobalAveragePooling2D()(residual(middle, "two"))
    model = keras.Model(image, keras.layers.Dense(10, name="scores")(top))

# %% [markdown]
# `gradients_in` cuts it in front of `two_conv` and takes a batch through it in pieces. Compare one
# piece and four with Keras's own gradients, and read the warning:

# %%
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
own = pipeline.stages(model, ["two_conv"], [first, second])


def gradients_in(pieces):
    order = pipeline.one_forward_one_backward(2, pieces)
    return tf.function(lambda x, y: pipeline.gradients(own, loss, x, y, order)[1])


@tf.function
def by_keras(x, y):
    with tf.device(first), tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    return tape.gradient(value, {weight.path: weight for weight in model.trainable_variables})


theirs = by_keras(x, y)
print("1 piece:  less than 1e-5 apart:", apart(gradients_in(1)(x, y), theirs) < 1e-5)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always", UserWarning)
    found = gradients_in(4)(x, y)
print(f"4 pieces: {apart(found, theirs):.0%} apart")
print(warned[0].message)

# %% [markdown]
# In one piece the gradients are Keras's. In four pieces of 64 images they are 2 % off, far more
# than rounding, and smaller pieces would be further off. That need not harm the training: batch
# normalization sees smaller batches, as it does in towers ([[09]]). But it is not the same
# training.
#
# What to watch for:
#
# - Train with an optimizer for each stage, as in [[12]]: `pipeline.updater` makes them.
# - The moving averages are updated with every piece, so four times as often in four pieces.
# - If the same gradients matter, use a normalization that looks at one example at a time, such as
#   `keras.layers.GroupNormalization` or `LayerNormalization`.
# - Keep the pieces large enough to fill a GPU, and time a step before you settle on a number.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** With three stages, one forward, one back lets the first stage hold three pieces. Write
# `two_at_most(stages, pieces)`: an order in which no stage ever holds more than two, and which
# still takes less time than one piece after the other. Return a list for each stage, with tasks
# like `"F0"`.

# %% tags=["exercise"]
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
# **2.** Pieces also help a single device, which then needs the memory of one piece at a time. Write
# `accumulate(gradient_of, pieces)` in plain Python, without `tf.function`. `pieces` is a list of
# pairs (x, y) of any sizes, and `gradient_of(x, y)` gives the gradient of the mean loss of a pair,
# one tensor. Return that of all examples together. Never hold the gradients of all pieces at once.

# %% tags=["exercise"]
def accumulate(gradient_of, pieces):
    return tf.add_n([gradient_of(x, y) for x, y in pieces]) / len(pieces)


checks.accumulate(accumulate)

# %% tags=["solution"]
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    return sum(gradient_of(x, y) * (len(x) / size) for x, y in pieces)


checks.accumulate(accumulate)

# %% [markdown]
# ## What we saw
#
# - In one piece the devices took turns. In pieces they worked at the same time, except for the
#   bubble.
# - Gradients of the pieces added up to those of the whole batch, in three orders, in a function and
#   in a graph, for even and for uneven pieces.
# - All forward first and one forward, one back had the same bubble. With eight pieces the second
#   held less than half as much.
# - With batch normalization, four pieces had other gradients than the whole batch.
#
# ## In practice
#
# Use this when a model has to be cut and each device would wait for the other. It costs a bubble
# and the starting of many small tasks, and batch normalization sees smaller batches. [PyTorch's
# tutorial on model
# parallelism](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html) measured
# ResNet-50 on two GPUs: 7 % slower than one GPU when it was cut, and 49 % faster than one GPU when
# the batch went through in pieces. (That is 60 % faster than cut without pieces.)
#
# - All forward first is the order of [GPipe](https://arxiv.org/abs/1811.06965) (2018). One forward,
#   one back comes from [PipeDream](https://arxiv.org/abs/1806.03377) (2018), which lets one batch
#   follow the other without a wait, and so trains on older weights. With the update after the last
#   piece, as here, it is that of [DAPPLE](https://arxiv.org/abs/2007.01045) (2020) and
#   [PipeDream-Flush](https://arxiv.org/abs/2006.09503) (2020).
# - If the model fits on one device, towers ([[09]]) have no bubble.
# - Very large models combine towers, stages and cut layers. TensorFlow has no pipeline of its own.
#   Ready-made schedules are in PyTorch (`torch.distributed.pipelining`), Megatron-LM and DeepSpeed.
#
# Next: [[next]].
