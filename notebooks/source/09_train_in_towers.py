# %% [markdown]
# # Train in towers
#
# With [[07]] your `fit` trains on all devices, and you never see its step. Then you need a step
# that `fit` does not have. You give each device half of the batch and add up the gradients. The
# training changes, and no error says that adding up was the mistake.
#
# **In this lesson** you build by hand a step on several devices that share one set of weights,
# prove that it is the step of one device, and count what it sends.
#
# **You will learn** to
# - train in towers, with `fit` or in a loop of your own,
# - build a tower, and average what all towers compute,
# - catch three mistakes that raise no error, even the one that Adam hides,
# - choose who averages, by the bytes that cross.
#
# **You need** [[07]] and [[08]].

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
import tensorflow.compat.v1 as tf1

from mgpu_helpers import fit, timing, towers, trace
from mgpu_helpers.lessons import averaging, digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_09 as checks

layers = keras.layers
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# %% [markdown]
# ## The lines to paste
#
# Here is the small network of [[07]] for handwritten digits. All 840 images are one batch, so an
# epoch is one step. One device takes five steps:

# %%
first = plan.devices[0]
x, y = digits.load(840)
options = {"batch_size": len(x), "epochs": 5, "shuffle": False, "verbose": 0}


def build(optimizer=None):
    keras.utils.set_random_seed(9)
    with tf.device(first):
        convolution = partial(layers.Conv2D, padding="same", activation="relu")
        stack = [convolution(32, 7), layers.MaxPool2D(4), convolution(16, 3), layers.Flatten()]
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile(optimizer or keras.optimizers.SGD(0.3), entropy)
        model.optimizer.build(model.trainable_variables)
    return model


with tf.device(first):
    of_one = build().fit(x, y, **options).history["loss"]
print(np.round(of_one, 2))

# %% [markdown]
# A **tower** is what one device computes in a step, from its shard of the batch to the gradients.
# After `fit.use`, the `fit` of a built model trains in towers:

# %%
model = fit.use(build(), plan)
of_fit = model.fit(x, y, **options).history["loss"]
print(np.round(of_fit, 2), "as on one device:", np.allclose(of_fit, of_one, rtol=1e-4))

# %% [markdown]
# In a loop of your own, `train_on_batch` takes the same step:

# %%
model, of_loop = fit.use(build(), plan), []
for _ in range(5):
    model.reset_metrics()  # without it Keras 3.14 gives the mean of the steps so far
    of_loop.append(float(model.train_on_batch(x, y)))
print(np.round(of_loop, 2), "as on one device:", np.allclose(of_loop, of_one, rtol=1e-4))

# %% [markdown]
# | | `fit.use(model, plan)` |
# |---|---|
# | **Use it when** | a built model trains by `fit`, or by `train_on_batch` in a loop of your own |
# | **It costs** | all devices but the first read the weights and send gradients |
# | **Instead** | `fit.strategy`: each GPU updates a copy, only gradients cross |
#
# ## By hand
#
# The smallest model has one weight w. The batch has 210 ones, 210 twos, 210 threes and 210 fours,
# and the loss is the mean of (w·x)². Its gradient is the mean of 2wx², which is 15 where w is 1.
# What is the gradient of each shard?

# %%
def slope(x, w=1.0):
    return tf.reduce_mean(2 * w * x**2)


numbers = tf.repeat([1.0, 2.0, 3.0, 4.0], 210)
for part in (numbers, *tf.split(numbers, len(plan))):
    print(f"gradient of {len(part)} numbers: {slope(part):.1f}")

# %% [markdown]
# The mean of 5 and 25 is 15, the gradient of the batch. The sum, 30, is twice that. Here are the
# losses of four steps:

# %%
def mean(column):
    return tf.add_n(column) / len(column)


def descend(shards, together):
    w, losses = 1.0, []
    for _ in range(4):
        losses.append(f"{7.5 * w**2:.1f}")
        w -= 0.1 * float(together([slope(shard, w) for shard in shards]))
    return " ".join(losses)


shards = tf.split(numbers, len(plan))
print("one device:", descend([numbers], mean))
print("sum:       ", descend(shards, tf.add_n))
print("mean:      ", descend(shards, mean))

# %% [markdown]
# With the mean, the loss falls as on one device, and with the sum it rises. So a step averages the
# gradients. ([[07]] adds them, because there each loss is divided by the size of the whole batch.)
# Our step averages on the host; `fit.use` adds up where the weights lie, here the first device.
#
# ![The host averages the gradients of two devices, device 0 updates the weights, and both read
# them in the next step.](pictures/09_two_towers.svg)
#
# ## For any model
#
# `make_step` does this for a Keras model. `towers.split` cuts a batch on the host, and `towers.run`
# calls `tower` on each device in `places` with its shard. Each call gives the loss and then a
# gradient for each weight. `zip` turns these lists into columns, each with all gradients of one
# weight. A column's mean is right only if all shards have the same size:

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
# ## Proof
#
# Plain SGD moves each weight by the gradient times the rate. So if all devices together move every
# weight as one does, the averaged gradient is right. `apart` divides the largest difference of each
# variable by its largest move, and returns the largest of these ratios:

# %%
def apart(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


def moves(places):
    model = build()
    start = model.get_weights()
    make_step(model, places)(x, y)
    return [after - before for after, before in zip(model.get_weights(), start)]


# %%
print("below 1e-4 apart:", apart(moves(plan.devices), moves([first])) < 1e-4)

# %% [markdown]
# Apart from rounding, the step of all devices is that of one. What does the sum do? Here are five
# losses with SGD and with Adam:

# %%
def losses(places, together, optimizer):
    step = make_step(build(optimizer), places, together)
    return np.round([float(step(x, y)) for _ in range(5)], 2)


for kind, rate in [(keras.optimizers.SGD, 0.3), (keras.optimizers.Adam, 0.003)]:
    print(kind.__name__)
    print("  one device:", losses([first], mean, kind(rate)))
    print("  mean:      ", losses(plan.devices, mean, kind(rate)))
    print("  sum:       ", losses(plan.devices, tf.add_n, kind(rate)))

# %% [markdown]
# With SGD, the losses of the sum fall faster, as with twice the rate, and only the comparison shows
# the mistake. With Adam the losses are equal: Adam divides each gradient by its usual size, so a
# gradient twice as large makes the same step. The mistake shows once you clip gradients or change
# the optimizer. So prove your own steps with SGD.
#
# ## Does it pay?
#
# Here is the time of a step with a small batch and with a large one, each the median of eight runs.
# The chart then shows the fastest of three traced large steps, whose times can be others:

# %% tags=["nbval-ignore-output"]
steps = {"One device": make_step(build(), [first]), "All devices": make_step(build(), plan.devices)}
for size in (8 * len(plan), 840):
    ways = {name: lambda step=step: float(step(x[:size], y[:size])) for name, step in steps.items()}
    took = timing.several(ways, warmup=2, repeats=8)
    print(f"batch {size}", *(f"{name} {each}" for name, each in took.items()), sep="\n  ")

# %% tags=["varies", "cover"]
def shortest(step):
    return min((trace.function_step(step, x, y)[1] for _ in range(3)), key=lambda t: t.length)


traces = {name: shortest(step) for name, step in steps.items()}
drawings.steps(traces, line="all gradients are averaged", last=True)
plt.show()

# %% [markdown]
# The small batch gains nothing: starting operations and averaging cost as much as for a large one.
# On cores the large batch gains; for a fast GPU 840 images may still be too few. In the chart both
# shards are computed at the same time, and at the black line all gradients have been averaged. The
# slower device decides when. Operations of one device that ran at once are drawn at half the
# height.
#
# ## With a model of another kind
#
# `synchronized` says which statistics a BatchNormalization uses. With `True`, the default of
# `fit.use`, all towers use those of the whole batch. With `False` each uses those of its own shard.
# This small residual network gets images that become brighter from the first to the last, so the
# shards differ:

# %%
def residual():
    keras.utils.set_random_seed(0)
    with tf.device(first):
        given = keras.Input([28, 28, 1])
        outer = layers.Conv2D(8, 5, strides=4)(given)
        inner = layers.ReLU()(layers.BatchNormalization(momentum=0.5, name="norm")(outer))
        joined = layers.Add()([outer, layers.Conv2D(8, 3, padding="same")(inner)])
        model = keras.Model(given, layers.Dense(10)(layers.Flatten()(joined)))
        model.compile("sgd", entropy)
    return model


brighter = x + np.linspace(0, 2, len(x), dtype="float32").reshape(-1, 1, 1, 1)
for places, how in [([first], True), (plan.devices, True), (plan.devices, False)]:
    model = fit.use(residual(), places, synchronized=how)
    losses = model.fit(brighter, y, **options | {"epochs": 3}).history["loss"]
    variance = model.get_layer("norm").moving_variance.numpy()[0]
    print(f"{how!s:5} on {len(places)}: losses {np.round(losses, 3)}  a variance {variance:.3f}")

# %% [markdown]
# With `True` the numbers are those of one device. With `False` on several devices the moving
# variances, which normalize new images, come out smaller, because the difference between the
# shards' means is left out. Where shards are large and alike this hardly matters, and with
# `False` no tower waits for another's statistics.
#
# ## Break it
#
# **Shards of unequal size.** One shard has 630 numbers, the other the 210 fours:

# %%
uneven = [slope(numbers[:630]), slope(numbers[630:])]
print(*(f"{each:.1f}" for each in uneven), f"mean {mean(uneven):.1f}, and not {slope(numbers):.1f}")

# %% [markdown]
# 210 fours weigh as much as 630 others: each four counts as much as three others.
#
# **A penalty once per tower.** At w = 1 a penalty of w² adds 2 to the gradient: 17. Here gradients
# are added. Each tower divides its loss by the number of towers, but not its penalty:

# %%
careless = [slope(shard) / len(plan) + 2 for shard in shards]
print(f"with the penalty {tf.add_n(careless):.1f}, and not 17.0")

# %% [markdown]
# ## Who averages
#
# `make_step` averages on the host; the first device could instead. In a **ring** no device gets all
# gradients: each cuts its own into as many pieces as there are devices, and sends one piece at a
# time to its neighbour. Below, device 0 starts with ones, device 1 with tens, and so on. For three
# rounds each device adds what it receives; then it has one finished sum, 1111. In three more rounds
# these sums are passed on, and in the end each device divides by four:
#
# ![Four devices in a ring, and what each holds after each of six
# rounds.](pictures/09_ring_of_four.svg)
#
# Each device starts with one vector that holds all gradients, and ends with the mean, although in
# `make_step` only the first device gets it. `averaging.traffic` reads from a trace how many vectors
# enter and leave each place:

# %%
ways = {"first device": partial(averaging.central, middle=first), "ring": averaging.ring}
length = build().count_params()
for name, way in ways.items():
    traffic, error = averaging.traffic(way, length)
    most = max(out for _, out in traffic.values())
    print(f"{name:12}  right to 1e-6: {error < 1e-6}  the busiest place sends {most:.2f} vectors")

# %% [markdown]
# With two devices a ring saves nothing against the first device. With more it does, because each of
# its devices sends an nth of a vector in each of 2 (n - 1) rounds:
#
# | vectors that the busiest place sends | n devices | 2 | 4 | 8 |
# |---|---|---|---|---|
# | the host averages | n | 2 | 4 | 8 |
# | the first device averages | n - 1 | 1 | 3 | 7 |
# | ring | 2 (n - 1) / n | 1 | 1.5 | 1.75 |
#
# `fit.use` adds up where the weights lie, so here on the first device.
#
# ## On GPUs
#
# Expect no gain from a small batch: its kernels take longer to start than to run. Towers pay when
# each GPU computes for much longer than its weights and gradients travel. On several physical GPUs
# `fit.strategy` is the first choice: NVIDIA's library NCCL adds up the gradients, often in rings.
#
# ## On your own
#
# Under each exercise is its solution, closed until you click *1 cell hidden*.
#
# **1.** Write `weighted_average(tower_gradients, sizes)`, in which shards of unequal size count by
# their size. Each of any number of towers has a list of gradients, which are plain tensors.

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
# **2.** Averaging on the host sends each gradient there as float32. Write
# `half_the_bytes(vectors)`: each device sends its own vector to the host as float16, which is half
# of the bytes, and the host adds them as float32 and gives the mean. The check reads the bytes from
# a trace. What you do not place runs on the first device.

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
# - The gradients of two shards were 5.0 and 25.0, and that of the batch was their mean, 15.0.
# - With the sum the loss rose from 7.5 to 480.0 in three steps, and with the mean it fell to 0.1.
# - A step of all devices moved each weight as a step of one does, to 1e-4. SGD showed the sum in
#   its losses, and Adam did not.
# - With a small batch two devices gained nothing. They need a batch that keeps each busy for longer
#   than starting and averaging take.
# - Unequal shards gave 20.7, and not 15.0. A penalty in each tower gave 19.0, and not 17.0.
# - With two devices the busiest place sent 1.00 vectors, whether the first device averaged or a
#   ring.
#
# ## In practice
#
# Take `fit.use(model, plan)`, and `train_on_batch` where the loop is your own. Both `fit` and
# `train_on_batch` take batches of any size. Copy `make_step` where you change the step itself: it
# needs shards of equal size, leaves out the penalties of layers, and updates a BatchNormalization's
# averages once for each tower.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# The [tensorlight notebook](../docs/sources.md#tensorlight) of 2016 trains in towers in a graph,
# with all weights on the host. `tf1.gradients` takes the place of the tape, and
# `colocate_gradients_with_ops=True` puts each gradient where its forward operation is. In `update`
# a **moving average** follows each weight, for the evaluation. Operations built under
# `tf.control_dependencies([a])` run after `a`. In `start` each tower has its own seed, or all would
# drop the same units. Without dropout, gradients should equal those of a tape on one device, and
# ten losses should equal those of one tower:

# %%
network = networks.tensorlight(width=0.125)  # an eighth as wide, to be quick


def network_loss(weights, x, y, keep=1.0, seed=None):
    scores = networks.logits(network, weights, x, keep=keep, seed=seed)
    return networks.loss(y, scores) + networks.l2(weights, 5e-4)


def classic_tower(weights, x, y, seed, keep):
    read = networks.read(weights)
    loss = network_loss(read, x, y, keep, seed)
    return [loss, *tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)]


def update(weights, averaged, count):
    adam = tf1.train.AdamOptimizer(1e-3, epsilon=1e-7)  # as in Keras
    applied = adam.apply_gradients(zip(averaged, weights.values()))
    smooth = tf1.train.ExponentialMovingAverage(0.9999, num_updates=count)
    with tf.control_dependencies([applied]):
        follow = smooth.apply(list(weights.values()))
    with tf.control_dependencies([follow]):
        count.assign_add(1, name="train")
    return {name: smooth.average(weight) for name, weight in weights.items()}


# %%
def start(places):
    with tf.Graph().as_default() as graph, tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        keep = tf1.placeholder_with_default(1.0, [], name="keep")
        count = tf1.get_variable("count", initializer=0, trainable=False)
        weights = networks.classic(network)
        seeds = [tf.stack([count, i]) for i in range(len(places))]
        shards = [towers.split(part, len(places)) for part in (x, y)]
        tower = partial(classic_tower, weights, keep=keep)
        loss, *averaged = map(mean, zip(*towers.run(tower, places, *shards, seeds)))
        tf.identity(loss, name="loss")
        tf1.add_to_collection("averaged", averaged)
        followed = update(weights, averaged, count)
        right = networks.accuracy(networks.logits(network, followed, x), y)
        tf.identity(right, name="accuracy")
        tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))
    session.run("init")
    return session


# %%
weights = networks.variables(network, device=first)
with tf.device(first), tf.GradientTape() as tape:
    loss = network_loss(weights, x, y)
whole = [each.numpy() for each in tape.gradient(loss, list(weights.values()))]

every, feed = start(plan.devices), {"x:0": x, "y:0": y}
averaged = every.run(every.graph.get_collection("averaged")[0], feed)
print("gradients of the tape to 1e-5:", apart(averaged, whole) < 1e-5)
of_one, of_every = ([session.run(["loss:0", "train"], feed)[0] for _ in range(10)]
                    for session in (start([first]), every))  # fmt: skip
print("losses of one tower to 1 %:", np.allclose(of_every, of_one, rtol=0.01))

# %%
for _ in range(15):
    every.run("train", feed | {"keep:0": 0.5})
new, answers = digits.load(test=True)
print("accuracy above 0.7:", every.run("accuracy:0", {"x:0": new, "y:0": answers}) > 0.7)
