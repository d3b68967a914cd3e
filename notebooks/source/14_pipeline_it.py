# %% [markdown]
# # Pipeline it
#
# You have cut a model over two GPUs, and now it fits. But the GPUs wait for each other. You pay for
# two and get hardly more than the speed of one.
#
# **In this lesson** a batch goes through the stages of a split model in pieces, so that both
# devices work at the same time.
#
# **You will learn** to
# - let `fit` take a batch through the stages in pieces,
# - write down and check the order in which each device works,
# - say how long the devices wait, and how much they hold,
# - notice where pieces change the training.
#
# **You need** [[12]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
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

from mgpu_helpers import charts, fit, pipeline, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks, schedules
from mgpu_helpers.lessons.checks import lesson_14 as checks
from mgpu_helpers.lessons.state import apart

layers = keras.layers
entropy = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
first, second = plan.devices[0], plan.devices[-1]

# %% [markdown]
# ## The lines to paste
#
# Here is a network of thirteen dense layers. `fit.use` cuts it into a stage for each device
# ([[12]]), and `pieces=8` lets each batch go through the stages in eight pieces, called
# **micro-batches**:

# %%
def dense(numbers):
    layer = partial(layers.Dense, 256, "relu", kernel_initializer="he_normal")
    return [layer(name=f"dense{i}") for i in numbers]


def build():
    keras.utils.set_random_seed(0)
    stack = [layers.Flatten(), *dense(range(12)), layers.Dense(10)]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    model.compile(keras.optimizers.SGD(0.01), entropy(), jit_compile=False)
    return model  # without XLA, whose order is another


# %%
images, labels = digits.load(2048)
train = {"x": images, "y": labels, "batch_size": 512, "epochs": 3, "shuffle": False, "verbose": 0}
with tf.device(first):
    alone = build()
    of_one = alone.fit(**train).history["loss"]

# %%
def staged(make, pieces, **options):
    with tf.device(plan.host):
        model = make()
    return fit.use(model, plan, stages=len(plan), pieces=pieces, **options)


models = {"one piece": staged(build, 1), "eight pieces": staged(build, 8)}

# %%
of_eight = models["eight pieces"].fit(**train).history["loss"]
print("losses of one device  ", *(f"{loss:.1f}" for loss in of_one))
print("losses in eight pieces", *(f"{loss:.1f}" for loss in of_eight))
print("less than 1e-3 apart:", np.allclose(of_one, of_eight, rtol=0, atol=1e-3))

# %% [markdown]
# The losses agree. The next cell traces one step of `fit` with 2048 images in one piece, and one in
# eight. Each frame is a **task**, the work of one stage on one piece: `F3` (dark) takes piece 3
# forward, and `B3` (pale) takes it back. White is a wait. When do both devices work?
#
# A single step may be slower or faster than most. So the second cell times ten steps of both
# models, and of the uncut one on one device; the brackets hold the middle half of the runs:

# %% tags=["varies", "cover"]
steps = {name: trace.fit_step(model, (images, labels)) for name, model in models.items()}
for name, step in steps.items():
    ax = charts.pipeline(step)
    ax.set_title(f"In {name}: {1e3 * step.length:.1f} ms", loc="left")
    ax.set_xlim(0, 1e3 * max(each.length for each in steps.values()))
    plt.show()

# %% tags=["nbval-ignore-output"]
all_three = {"one device": alone, **models}
runs = {name: partial(each.train_on_batch, images, labels) for name, each in all_three.items()}
with tf.device(first):  # where the uncut model computes
    for name, taken in timing.several(runs, warmup=1, repeats=10).items():
        print(f"{name:12}", taken)

# %% [markdown]
# In one piece, the devices work almost only in turns, and the cut model is slower than the uncut
# one. On cores, both often work at the same time in eight, and the cut model is faster. On a GPU,
# starting operations this small takes most of the step, so eight pieces, with eight times the
# operations, may take longest. [PyTorch's tutorial on model
# parallelism](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html) compares the
# same three for ResNet-50: cut over two GPUs, it was 7 % slower than on one, and in pieces 49 %
# faster than that.
#
# Why is a step in pieces, on cores too, not twice as fast as on one device?
#
# - In eight pieces, too, the devices wait: the shares stand beside the stages in the second chart.
# - In `cores` mode the one device is no single core: it may use both in its backward pass ([[13]]).
#   And both cores share one memory's bandwidth. Each GPU has its own cores and memory.
#
# | | |
# |---|---|
# | **Use it when** | a model has to be cut, and a piece is still enough work for a device |
# | **It costs** | smaller operations; BatchNormalization sees only a piece; some waits stay |
# | **It saves, too** | activations: a stage holds those of a few pieces |
# | **Instead** | if it fits on one device, share out the batch ([[07]]) |
#
# ## How it works
#
# When the first piece has passed the first stage, the second stage can begin with it, and the first
# stage takes the next piece:
#
# ![Two stages over time. In one piece, each waits while the other computes. In four pieces, they
# overlap: F0 to F3, then B0 to B3.](pictures/14_bubble.svg)
#
# In the order of this picture all pieces go forward before the first goes back. The time in
# which a stage waits is its **bubble**. A `B` has about twice the multiplications of an `F`. Here
# both are drawn equally long, which does not change the shares. The gradients of all pieces are
# added up, and the weights are updated once, as in accumulation ([[10]]).
#
# ## Three orders
#
# An **order** lists the tasks of each stage. In *one after the other*, a piece goes all the way
# before the next one starts. In *all forward first*, all go forward, and then all go back. In *one
# forward, one back* (**1F1B**), stage 0 of two first does two forward tasks (of three, three), and
# each later stage one fewer. Then backward and forward tasks alternate. In the tables, a line is a
# stage, a column a unit of time, and a dot a wait:

# %%
ways = {"one after the other": pipeline.one_by_one,
        "all forward first": pipeline.all_forward,
        "one forward, one back": pipeline.one_forward_one_backward}  # fmt: skip
for name, way in ways.items():
    order = way(stages=2, pieces=4)
    columns = max(end for _, end in schedules.run_times(order).values())
    print(f"{name}, {columns:.0f} columns", schedules.table(order), sep="\n", end="\n\n")

# %% [markdown]
# The last two orders are equally fast. With p stages and m pieces, each takes 2 (m + p - 1)
# columns, and a stage waits in 2 (p - 1) of them. So the bubble is a share of (p - 1)/(m + p - 1),
# if all stages take equally long: with two stages, 1/2 in one piece and 1/9 in eight. In the charts
# above the shares differ: the stages are not quite equal, starting operations takes time, and in
# one step a task may be held up.
#
# A stage **holds** a piece from its `F` to its `B`: in *all forward first*, stage 0 holds up to
# four pieces, and in *one forward, one back* never more than two.
#
# ## One order, by hand
#
# Here are two stages that only multiply: `a` by 2 and `b` by 3. The batch is 1, 2, 3 and 4, with
# a mean of 2.5, and the loss is the mean of the outputs. So the gradient of `a` should be
# 3 · 2.5 = 7.5, and that of `b` 2 · 2.5 = 5.

# %%
Stage = namedtuple("Stage", "device part")


def times(number, device):
    layer = layers.Dense(1, None, False, keras.initializers.Constant(number))  # without a bias
    with tf.device(device):
        return Stage(device, keras.Sequential([keras.Input([1]), layer]))


a, b = times(2.0, first), times(3.0, second)

# %% [markdown]
# A task is a call of one of two functions. `forward` runs a stage and keeps its input and output.
# `back` gets the output's gradient and returns those of the weights and of the input; the last goes
# to the stage before. Inside a `tf.function`, `tf.gradients` replaces a tape.

# %%
Kept = namedtuple("Kept", "x made")


def forward(stage, x):
    with tf.device(stage.device):
        return Kept(x, stage.part(x))

# %%
def back(stage, kept, gradient):
    weights = [weight.value for weight in stage.part.trainable_weights]
    with tf.device(stage.device):
        *found, of_x = tf.gradients(kept.made, [*weights, kept.x], grad_ys=gradient)
    return found, of_x


# %% [markdown]
# `two_pieces` is written in the order *one forward, one back*: `F0 F1 B0 B1` in stage 0, and
# `F0 B0 F1 B1` in stage 1. The loss is the mean of four outputs, so its gradient is a quarter for
# each of them:

# %%
@tf.function
def two_pieces(x0, x1):
    quarters = tf.fill([2, 1], 0.25)
    front0 = forward(a, x0)
    rear0 = forward(b, front0.made)
    front1 = forward(a, x1)
    (b0,), gradient0 = back(b, rear0, quarters)
    rear1 = forward(b, front1.made)
    (a0,), _ = back(a, front0, gradient0)
    (b1,), gradient1 = back(b, rear1, quarters)
    (a1,), _ = back(a, front1, gradient1)
    return a0, a1, b0, b1


# %%
found = two_pieces(tf.constant([[1.0], [2.0]]), tf.constant([[3.0], [4.0]]))
a0, a1, b0, b1 = (each.numpy().item() for each in found)
print(f"gradient of a: {a0} + {a1} = {a0 + a1}, of b: {b0} + {b1} = {b0 + b1}")

# %% [markdown]
# Each piece gives its share of a gradient, and the shares add up.
#
# ## What does a device hold?
#
# TensorFlow starts an operation as soon as its inputs are there, so in `two_pieces` a task may
# start before its turn. That changes no result, only what is held. `fit.use` makes each task of a
# device wait for the one before. Its order is 1F1B, unless `schedule` says otherwise. Without
# scratch memory, what does the first device hold at most in a step of 1, 4 and 8 pieces?

# %% tags=["nbval-ignore-output"]
peaks = {}
for schedule in ["all forward first", "1F1B"]:
    peaks[schedule] = held = {}
    for m in [1, 4, 8]:
        step = trace.fit_step(staged(build, m, schedule=schedule), (images, labels))
        held[m] = step.peak(first, scratch=False)
    print(f"{schedule:17}", *(f"{peak / 1e6:5.1f} MB" for peak in held.values()))

# %% tags=["varies"]
drawings.against_pieces(peaks)
plt.show()
forward_first, in_turn = (held[8] for held in peaks.values())
print("less than 0.6 of the first order in eight pieces:", in_turn < 0.6 * forward_first)

# %% [markdown]
# *All forward first* keeps the activations of all pieces, so more pieces save little. *One
# forward, one back* keeps at most two pieces, and the more pieces there are, the smaller each is.
# It needs the loss of each piece alone. Where a loss is no mean over examples, so that those of
# pieces do not add up, `fit.use` says so and takes *all forward first*.
#
# ## Proof
#
# In float64, two epochs of `fit` in eight pieces are compared with those on one device. The
# batches, of 300 and 100, are not multiples of eight:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def trained(model):
    model.fit(images[:700], labels[:700], batch_size=300, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


# %%
with tf.device(first):
    of_one = trained(build())
for schedule in peaks:
    close = apart(trained(staged(build, 8, schedule=schedule)), of_one) < 1e-12
    print(f"{schedule:17} below 1e-12 from one device:", close)
print("fit moved the weights by more than 0.01:", apart(build().get_weights(), of_one) > 0.01)

# %% [markdown]
# ## Break it
#
# **An order that cannot run.** In this order, both stages would wait forever: stage 0 waits for
# piece 0 to return before it sends piece 1, and stage 1 waits for piece 1 before it returns piece
# 0. The error names the second task:

# %%
try:
    schedules.check([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])
except ValueError as error:
    print(error)

# %% [markdown]
# **Pieces of different sizes that count alike.** Take a batch of 90 in pieces of 32, 32 and 26. In
# a plain average of their gradients, each of the last 26 examples counts more than each of the
# first 64, and no error says so. Which equals the gradient of the whole batch: the plain average,
# or one in which a piece counts by its size?

# %%
def slopes(begin, end):
    with tf.device(first), tf.GradientTape() as tape:
        value = entropy()(labels[begin:end], alone(images[begin:end]))
    return tape.gradient(value, alone.trainable_weights)


# %%
several = [slopes(0, 32), slopes(32, 64), slopes(64, 90)]
for shares in [[1 / 3, 1 / 3, 1 / 3], [32 / 90, 32 / 90, 26 / 90]]:
    average = [sum(s * each for s, each in zip(shares, three)) for three in zip(*several)]
    close = apart(average, slopes(0, 90)) < 1e-5
    print(*(f"{share:.3f}" for share in shares), " less than 1e-5 apart:", close)

# %% [markdown]
# The plain average is wrong. `fit.use` counts pieces by their size, which is right.
#
# **A layer that looks at the whole batch.** BatchNormalization subtracts the mean of the batch and
# divides by its standard deviation. In pieces, both are those of a piece. Here is a network in four
# pieces, first with this layer, then with GroupNormalization, which looks at each example alone.
# What does `fit.use` say?

# %%
def convolutions(norm):
    keras.utils.set_random_seed(0)
    stack = []
    for _ in range(2):
        stack += [layers.Conv2D(8, 3, strides=2, use_bias=False), norm(), layers.ReLU()]
    end = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, *end])
    model.compile(keras.optimizers.SGD(0.05), entropy(), jit_compile=False)
    return model


# %%
for norm in [layers.BatchNormalization, partial(layers.GroupNormalization, 4)]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        model = staged(partial(convolutions, norm), 4)
    with tf.device(first):
        of_one = trained(convolutions(norm))
    print("below 1e-12 from one device:", apart(trained(model), of_one) < 1e-12)
    print(*(each.message for each in said))

# %% [markdown]
# With BatchNormalization, pieces give other weights. If you need the same, take
# GroupNormalization or LayerNormalization.
#
# ## On GPUs
#
# *All forward first* comes from [GPipe](https://arxiv.org/abs/1811.06965), and *one forward, one
# back* from [PipeDream](https://arxiv.org/abs/1806.03377) and
# [DAPPLE](https://arxiv.org/abs/2007.01045). For very large models, take
# `torch.distributed.pipelining`, Megatron-LM or DeepSpeed.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** With three stages, *one forward, one back* lets the first stage hold three pieces. Write
# `two_at_most(stages, pieces)`: an order in which no stage ever holds more than two, and which,
# from two stages and two pieces on, is faster than *one after the other*. Return a list for each
# stage, with tasks like `"F0"`.

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
# - In one piece, the devices worked almost only in turns. In eight, on cores, both often worked at
#   once. In float64 the weights after `fit` were below 1e-12 from those of one device.
# - Gradients of two pieces added up to 7.5 and 5.0, those of the whole batch.
# - *All forward first* and *one forward, one back* had the same bubble, and the second held less.
# - With BatchNormalization, pieces gave other weights, and `fit.use` warned of it.
#
# ## In practice
#
# Add `pieces` to the line that splits your model. Time a step in 1, 2, 4 and 8 pieces, and keep the
# number of the fastest. If the model fits on one device, time `fit` on all devices ([[07]]), too.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# In classic code the stages, the orders and the waits can be written down in one loop. It goes
# through the tasks in an order in which they can run, and `tf1.control_dependencies` makes each
# task of a stage wait for the one before. Here it takes the network of Wonik Jang's article
# ([2017](../docs/sources.md#jang)) in four pieces.

# %%
def gradients(stages, xs, ys, order):
    kept, back, total, before = {}, {}, {}, {}
    for s, task in schedules.run_times(order):
        stage, k = stages[s], int(task[1:])
        with tf.device(stage.device), tf1.control_dependencies(before.get(s, [])):
            if task[0] == "F":
                x = tf.identity(kept[s - 1, k].made if s else xs[k])
                kept[s, k] = Kept(x, stage.function(stage.weights, x))
                before[s] = [kept[s, k].made]
                continue
            x, made = kept.pop((s, k))
            end = made if (s + 1, k) in back else networks.loss(ys[k], made) / len(xs)
            weights = [*stage.weights.values(), x]
            *found, back[s, k] = tf1.gradients(end, weights, back.get((s + 1, k)))
            for name, slope in zip(stage.weights, found):
                total[name] = total[name] + slope if name in total else slope
            before[s] = [total[name] for name in stage.weights]
    return total


# %%
network = networks.jang(width=0.25)
variables = networks.variables(network, device=first)
with tf.device(first), tf.GradientTape() as tape:
    value = networks.loss(labels[:128], networks.logits(network, variables, images[:128]))
reference = tape.gradient(value, list(variables.values()))

with tf.Graph().as_default() as graph:
    in_graph = networks.stages(network, ["conv3"], [first, second])
    with tf.device(plan.host):
        feeds = [tf1.placeholder(tf.float32, [128, 28, 28, 1]), tf1.placeholder(tf.int64, [128])]
        xs, ys = (tf.split(each, 4) for each in feeds)
    order = pipeline.one_forward_one_backward(2, 4)
    fetched = gradients(in_graph, xs, ys, order)
    start = tf1.global_variables_initializer()

with tf1.Session(graph=graph, config=plan.session_config(soft_placement=True)) as session:
    session.run(start)
    found = session.run(fetched, dict(zip(feeds, [images[:128], labels[:128]])))
print("session: less than 1e-5 apart:", apart([found[n] for n in variables], reference) < 1e-5)
