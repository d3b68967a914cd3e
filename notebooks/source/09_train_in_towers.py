# %% [markdown]
# # Train in towers
#
# Your model trains on one GPU, and now there are two. You give each of them half of the batch. Then
# a step takes as long as before, or the loss is no longer the one that you had with one GPU.
# Neither raises an error.
#
# **In this lesson** one network trains on all devices, with the losses that one device has, and you
# count what this costs in bytes and in time.
#
# **You will learn** to
# - build towers, and average what they compute,
# - prove that all devices take the same step as one,
# - catch five mistakes, most of which raise no error,
# - choose where variables live and who averages, by the bytes that cross,
# - measure whether more devices pay.
#
# **You need** [[00]], [[01]] and [[08]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, timing, towers, trace
from mgpu_helpers.lessons import averaging, digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_09 as checks

layers = keras.layers

# %% [markdown]
# ## The trouble
#
# Here is a Keras model with a single weight, which is 1 at first. It multiplies its input by the
# weight and should learn to answer 0, so its loss is the mean of the squared outputs. The batch
# holds 210 ones, 210 twos, 210 threes and 210 fours. (840 examples divide over any number of
# devices up to 8.)

# %%
with tf.device(plan.host):
    one_weight = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([1]), one_weight])
    batch = tf.repeat([[1.0], [2.0], [3.0], [4.0]], 210, axis=0)


def gradients_of(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    return loss, tape.gradient(loss, [one_weight.kernel])


# %% [markdown]
# `descend` takes four steps of gradient descent. In each step every device computes the gradients
# of its shard of the batch, and `together` makes one list of gradients out of theirs. `total` adds
# them up, which looks right. Compare the losses of one device with those of all. Then look at the
# gradients of the first step, of the whole batch and of each shard:

# %%
def descend(places, together):
    losses = []
    one_weight.kernel.assign([[1.0]])
    with tf.device(plan.host):
        for _ in range(4):
            gradients = []
            for device, shard in zip(places, tf.split(batch, len(places))):
                with tf.device(device):
                    gradients.append(gradients_of(shard)[1])
            losses.append(gradients_of(batch)[0].numpy())
            one_weight.kernel.assign_sub(0.1 * together(gradients)[0])
    return np.round(losses, 1)


def total(tower_gradients):
    return [tf.add_n(each) for each in zip(*tower_gradients)]


print("one device: ", descend(plan.devices[:1], total))
print("all devices:", descend(plan.devices, total))

# %%
one_weight.kernel.assign([[1.0]])
with tf.device(plan.host):
    for part in (batch, *tf.split(batch, len(plan))):
        gradient = gradients_of(part)[1][0].numpy().item()
        print(f"gradient of {len(part)} examples: {gradient:.1f}")

# %% [markdown]
# On one device the loss falls. On two it rises, and nothing says why.
#
# The mean of the squares of 1, 2, 3 and 4 is 7.5, and the gradient is twice that, 15. With two
# devices, one has the ones and twos, the other the threes and fours. Their gradients, 5 and 25, add
# up to 30. Their **average** is 15. The sum, and every step with it, is as many times too
# large as there are devices.
#
# ## Two towers
#
# What one device computes, from its shard to its gradients, is a **tower**. If the shards are of
# the same size, the average of the towers' gradients is the gradient of the whole batch.
#
# A tower gives a list of gradients, one for each variable. In `average`, `zip` puts those of the
# same variable together. The cell below the drawing averages two towers with two variables, and
# then takes the four steps from above again:
#
# ![Two shards of the batch go to two towers, device 0 and device 1, which go forward and backward.
# Their gradients go to the host, which averages them and updates the weights. Both towers read
# these in the next step.](pictures/09_two_towers.svg)

# %%
def average(tower_gradients):
    return [tf.add_n(each) / len(each) for each in zip(*tower_gradients)]


print([each.numpy().tolist() for each in average([[[1.0, 2.0], 10.0], [[3.0, 6.0], 30.0]])])
print("one device: ", descend(plan.devices[:1], average))
print("all devices:", descend(plan.devices, average))

# %% [markdown]
# [1, 2] and [3, 6] became [2, 4], and 10 and 30 became 20. All devices together now have the losses
# of one.
#
# ## A network for digits
#
# The network is that of the [tensorlight notebook](../docs/sources.md#tensorlight) "MNIST CNN Multi
# GPU Example" of 2016, an eighth as wide so that a step takes milliseconds. `networks` keeps the
# weights apart from the arithmetic, so that the same functions serve today's code and a graph.
#
# - `tower_loss` is the loss of a shard, plus a small penalty on large weights (L2). `keep` is the
#   share of the units that dropout keeps, and `seed` decides which these are.
# - `tower` gives the loss and its gradients. `networks.read` fetches each weight once. Without it,
#   the loss and the penalty would both fetch what lives on another device.

# %%
network = networks.tensorlight(width=0.125)
images, labels = digits.load(1024)
test_images, test_labels = digits.load(test=True)
network

# %%
def tower_loss(weights, x, y, keep=1.0, seed=None):
    scores = networks.logits(network, weights, x, keep=keep, seed=seed)
    return networks.loss(y, scores) + networks.l2(weights, 5e-4)


def tower(weights, x, y, keep=1.0, seed=None):
    read = networks.read(weights)
    with tf.GradientTape() as tape:
        tape.watch(read)
        loss = tower_loss(read, x, y, keep, seed)
    return loss, tape.gradient(loss, list(read.values()))


# %% [markdown]
# ## Proof: the same gradient
#
# `whole` is what the gradients in this lesson are compared with: those of all 840 examples on one
# device. `towers.split` and `towers.run` are those of [[08]]: they cut a batch on the host, and
# call a function on every device with its shard.
#
# Compare the lengths of the gradients (the square roots of their sums of squares).
# `largest_difference` says by how much any entry differs, as a share of the largest entry of that
# variable's gradient in `whole`:

# %%
def largest_difference(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


weights = networks.variables(network, device=plan.devices[0])
x, y = images[:840], labels[:840]
with tf.device(plan.devices[0]):
    _, whole = tower(weights, x, y)
shards = towers.split((x, y), len(plan))
results = towers.run(lambda shard: tower(weights, *shard), plan.devices, shards)
averaged = average([gradients for _, gradients in results])
for name, ours, theirs in zip(weights, averaged, whole):
    print(f"{name:14} all devices {np.linalg.norm(ours):.3f}  one {np.linalg.norm(theirs):.3f}")
print("largest difference below 1e-5:", largest_difference(averaged, whole) < 1e-5)

# %% [markdown]
# All gradients agree. The towers add the same numbers in another order than one device, so the last
# digits may differ.
#
# ## A training step
#
# The host averages the gradients and the losses. Then Adam, an optimizer, updates the weights where
# they live. It keeps two more numbers for each weight, its **slots**. The dropout seed of a tower
# is the number of the step and that of the tower.
#
# `make_step` makes such a step for some devices, and `train` runs passes over the digits. First
# comes the proof: one device against all, from the same weights. It goes without dropout, because
# one tower and two towers draw different masks. Then the training on all devices goes on with
# dropout, to see that the network learns. Compare the losses:

# %%
def make_step(places, variables_on=plan.devices[0]):
    weights = networks.variables(network, device=variables_on)
    with tf.device(variables_on):
        adam = keras.optimizers.Adam(1e-3)
        adam.build(list(weights.values()))

    @tf.function
    def train_step(x, y, step, keep=1.0):
        def numbered(shard, i):
            return tower(weights, *shard, keep, tf.stack([step, i]))

        shards = towers.split((x, y), len(places))
        losses, gradients = zip(*towers.run(numbered, places, shards, range(len(places))))
        with tf.device(plan.host):
            loss, averaged = tf.add_n(losses) / len(losses), average(gradients)
        with tf.device(variables_on):
            adam.apply(averaged, list(weights.values()))
        return loss

    return train_step, weights


# %%
size = 128 - 128 % len(plan)  # a batch that divides over the devices


def train(train_step, passes, keep=1.0):
    losses = []
    for epoch in range(passes):
        for x, y in digits.batches(images, labels, size, seed=epoch):
            with tf.device(plan.host):
                step = tf.constant(len(losses))
                losses.append(float(train_step(x, y, step, np.float32(keep))))
    return losses


# %%
step_on_one, weights_of_one = make_step(plan.devices[:1])
step_on_all, weights_of_all = make_step(plan.devices)
losses_of_one, losses_of_all = train(step_on_one, passes=2), train(step_on_all, passes=2)

# %%
for step in (0, 5, 10, 15):
    print(f"step {step:2}  one {losses_of_one[step]:.1f}  all {losses_of_all[step]:.1f}")
print("losses agree to 1 %:  ", np.allclose(losses_of_all, losses_of_one, rtol=0.01))
ours, theirs = weights_of_all.values(), weights_of_one.values()
print("weights agree to 0.01:", largest_difference(ours, theirs) < 0.01)

# %%
losses = train(step_on_all, passes=4, keep=0.5)
right = networks.accuracy(networks.logits(network, weights_of_all, test_images), test_labels)
print("loss fell by half:", losses[-1] < losses_of_all[0] / 2)
print("accuracy on new digits above 0.8:", right.numpy() > 0.8)

# %% [markdown]
# After two passes over the digits, one device and all devices have the same network. Rounding
# differs in every step and is carried along, so the bounds are wider than that for one gradient.
# (With Adam only the proof of the gradient finds a sum in place of the average: Adam divides by the
# size of the gradients, so twice the gradients make the same step.)
# Trained further with dropout, the network reads most of the new digits.
#
# ## Where the variables live
#
# Every tower reads all weights in every step, and the host averages. Should the variables live on
# the host, or on the first device? Look at which way the bytes of a step go, and how many bytes of
# tensors each device holds at the peak of the step:

# %%
state = 3 * 4 * networks.parameters(network)  # weights and two slots, 4 bytes each
print(f"the weights: {state / 3e6:.2f} MB, with Adam's slots {state / 1e6:.2f} MB")
for where in (plan.host, plan.devices[0]):
    _, step = trace.function_step(make_step(plan.devices, variables_on=where)[0], x, y, 0)
    print(f"\nvariables on {where}")
    for (source, target), crossed in step.bytes_between().items():
        print(f"  {source} -> {target}  {crossed / 1e6:5.2f} MB")
    many = all(step.peak(device) > 5 * state for device in plan.devices)
    print("  each device holds over 5 times the weights and slots:", many)

# %% [markdown]
# With the variables on the host, all weights go from there to every device. With two devices and
# the variables on the first one, the second fetches the weights there, and the first gets the
# averages from the host. The totals are the same: the place of the variables decides which
# connection carries them.
#
# The device that has the variables holds the slots, too. But every device holds many times as much,
# mostly the activations of its shard. So for this network the place of the variables hardly matters
# to memory.
#
# ## Who averages
#
# So far the host averaged. Here are three ways to give the average to every device:
#
# - the host collects all gradients and sends the average back;
# - the first device does so;
# - in a **ring** nobody collects. Each device cuts its gradients into as many pieces as there are
#   devices, and sends one piece at a time to its neighbour.
#
# Here is a ring of four. To see whose numbers are in a piece, device 0 starts with ones, device 1
# with tens, and so on. A piece with the numbers of all four reads 1111. In each of the first three
# rounds every device sends one piece to its neighbour, which adds its own numbers for that piece.
# Then each device has one finished piece. In three more rounds these are passed on.
#
# One line is the rule: in round `turn`, counted from 0, device `i` sends piece `(i - turn) % 4`.
# The cell below the drawing runs the first three rounds on plain numbers:
#
# ![Four devices in a ring, and tables of what each holds: a row for a device, a column for a piece.
# In rounds 1 to 3 each device adds what it receives; after round 3 each has one finished piece,
# 1111. In rounds 4 to 6 these are passed on, until all rows read
# 1111.](pictures/09_ring_of_four.svg)

# %%
held = [[10**i] * 4 for i in range(4)]
for turn in range(3):
    for i in range(4):
        held[(i + 1) % 4][(i - turn) % 4] += held[i][(i - turn) % 4]
print(np.array(held))

# %% [markdown]
# This is the table after round 3. On devices, the sum is made where the piece arrives, and
# `tf.identity` in the neighbour's block is the sending. Device `i` starts with a vector that is
# `i + 1` everywhere. Each should end with the average:

# %%
def ring(vectors):
    n = len(vectors)
    sizes = [len(part) for part in np.array_split(np.arange(vectors[0].shape[0]), n)]
    pieces = towers.run(lambda vector: tf.split(vector, sizes), plan.devices, vectors)
    for turn in range(2 * (n - 1)):
        for i in range(n):
            piece, neighbour = (i - turn) % n, (i + 1) % n
            with tf.device(plan.devices[neighbour]):
                came = tf.identity(pieces[i][piece])
                own = pieces[neighbour][piece]
                pieces[neighbour][piece] = came + own if turn < n - 1 else came
    return towers.run(lambda own: tf.concat(own, axis=0) / n, plan.devices, pieces)


small = towers.run(lambda i: tf.fill([8], i + 1.0), plan.devices, range(len(plan)))
print([each.numpy().tolist() for each in ring(small)])

# %% [markdown]
# In the other two ways one place is in the middle. `averaging.traffic` lets each device make a
# vector as long as the network's gradients and use the average. From a trace of it, it counts what
# goes into each place and out of it, in multiples of the vector. Compare the places in the middle
# with the devices of the ring:

# %%
def central(vectors, middle):
    with tf.device(middle):
        return [tf.add_n(vectors) / len(vectors)] * len(plan)


ways = {"host": partial(central, middle=plan.host),
        "first device": partial(central, middle=plan.devices[0]), "ring": ring}  # fmt: skip
for name, way in ways.items():
    traffic, error = averaging.traffic(way, networks.parameters(network))
    print(f"{name}: right to 1e-6: {error < 1e-6}")
    for place, (into, out) in traffic.items():
        print(f"  {place}  in {into:.2f}  out {out:.2f}")

# %% [markdown]
# With n devices, as many vectors go in as come out:
#
# - n at the host,
# - n - 1 at the first device, if it is in the middle,
# - 2(n - 1)/n at each device of the ring.
#
# In the middle the traffic grows with the number of devices. In the ring it stays below two: with
# four devices it is 1.50, where the first device has 3.00 and the host 4.00.
#
# With two devices, the ring and the first device have the same bytes, 1.00 in and 1.00 out. But the
# first device can send no average before all gradients have come. In the ring every device sends
# and receives at once, so it takes half the time. [[16]] counts them so. In `cores` mode all
# devices share one memory, and none of this can be timed.
#
# ## The same in a graph
#
# The tensorlight notebook builds a graph. First the inputs and a tower. `tf1.gradients` takes the
# place of the tape. Without
# `colocate_gradients_with_ops=True` it would not keep the backward pass on the device of the tower
# ([[08]]).

# %%
def make_inputs():
    with tf.device(plan.host):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        keep = tf1.placeholder_with_default(1.0, [], name="keep")
        return x, y, keep, tf1.get_variable("count", initializer=0, trainable=False)


def classic_tower(weights, x, y, keep, seed):
    read = networks.read(weights)
    loss = tower_loss(read, x, y, keep, seed)
    return loss, tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)


# %% [markdown]
# Then Adam. That notebook lets a **moving average** follow each weight, and evaluates the network
# with these averages. A graph runs its operations in any order that its tensors allow.
# `tf.control_dependencies` asks for more: what is made in its block runs only after what it names.
# So the moving averages follow the update, and `train`, which counts the steps, follows both.
#
# `start` puts the parts together and opens a session. In the last of the three cells, compare the
# gradients with `whole`, and the losses of two passes with those of one device above. Three passes
# with dropout follow, and their result is evaluated with the moving averages:

# %%
def update(weights, averaged, count):
    adam = tf1.train.AdamOptimizer(1e-3, epsilon=1e-7)  # as in Keras
    applied = adam.apply_gradients(zip(averaged, weights.values()))
    smooth = tf1.train.ExponentialMovingAverage(0.9999, num_updates=count)
    with tf.control_dependencies([applied]):
        follow = smooth.apply(list(weights.values()))
    with tf.control_dependencies([follow]), tf.device(plan.host):
        count.assign_add(1, name="train")
    return {name: smooth.average(weight) for name, weight in weights.items()}


# %%
def start(places):
    def numbered(shard, i):
        return classic_tower(weights, *shard, keep, tf.stack([count, i]))

    with tf.Graph().as_default() as graph, tf.device(plan.host):
        x, y, keep, count = make_inputs()
        weights = networks.classic(network, device=plan.devices[0])
        shards = towers.split((x, y), len(places))
        losses, gradients = zip(*towers.run(numbered, places, shards, range(len(places))))
        tf.divide(tf.add_n(losses), len(places), name="loss")
        averaged = average(gradients)
        tf1.add_to_collection("averaged", averaged)
        with tf.device(plan.devices[0]):
            followed = update(weights, averaged, count)
            right = networks.accuracy(networks.logits(network, followed, x), y)
            tf.identity(right, name="accuracy")
        tf1.global_variables_initializer()
    config = plan.session_config(devices=len(places), soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run("init")
    return session


# %%
one, every = start(plan.devices[:1]), start(plan.devices)
in_graph = every.run(every.graph.get_collection("averaged")[0], {"x:0": x, "y:0": y})
print("gradients agree to 1e-5:", largest_difference(in_graph, whole) < 1e-5)


def classic_step(x, y, step, keep):
    return every.run(["loss:0", "train"], {"x:0": x, "y:0": y, "keep:0": keep})[0]


losses = train(classic_step, passes=2)
print("losses agree to 1 %:    ", np.allclose(losses, losses_of_one, rtol=0.01))
train(classic_step, passes=3, keep=0.5)
accuracy = every.run("accuracy:0", {"x:0": test_images, "y:0": test_labels})
print("accuracy above 0.8:     ", accuracy > 0.8)

# %% [markdown]
# The graph takes the steps of today's code.
#
# ## Does it pay?
#
# These sessions can be timed fairly: in `cores` mode each has as many threads as towers, so that
# one tower uses one core. Compare the same **global batch** on one device and on all, in three
# sizes. A small batch leaves each device little to do, and the average costs the same:

# %%
for some in (len(plan) * 12, len(plan) * 60, 840):
    feed = {"x:0": images[:some], "y:0": labels[:some]}
    runs = [partial(session.run, "train", feed) for session in (one, every)]
    print(f"batch {some:3}", timing.compare(*runs, warmup=1, repeats=8, names=("one", "all")))

# %% [markdown]
# With as many free cores as devices, the gain grows with the batch. Where the cores are busy with
# something else, the lines tell little.
#
# Here is a step of one tower, then one of all, on the batch of 840. Both charts have the same axis.
# (Above them stand the timelines that `make gpu` has stored on machines with GPUs, if any.)

# %% tags=["varies", "cover", "nbval-ignore-output"]
drawings.from_gpus("09")
steps = [trace.session_step(each, "train", feed)[1] for each in (one, every)]
for step in steps:
    charts.timeline(step).set_xlim(0, 1e3 * max(each.length for each in steps))
    plt.show()

# %% [markdown]
# With several devices, and as many free cores, the long bars are shorter and lie one above the
# other. The average and the update are too short to see here. (Where a device has two rows of bars,
# two of its operations ran at once, on a core that another device left idle.)
#
# On GPUs, expect no gain from this network. A step is some hundred small kernels, and starting them
# takes longer than computing them. Towers pay when each GPU has work for tens of milliseconds: at
# the network's full width (`width=1.0`), and at batches of thousands.
#
# ## Break it
#
# The sum in place of the average was the first mistake. Here are four more.
#
# **Shards of unequal size.** One shard has 600 examples, the other the remaining 240. The plain
# average counts an example of the small shard more than one of the large. `towers.average` does
# what `average` does, and can also weight the shards. The first cell compares both with `whole`.
#
# **A variable that one tower does not use.** Its gradient there is `None`, and the average of this
# lesson stops. `None` means that the loss does not change with the variable. `towers.average`
# counts it as zero, and still divides by the number of towers. The second cell averages 4 and
# `None`:

# %%
uneven = [tower(weights, x[:600], y[:600])[1], tower(weights, x[600:], y[600:])[1]]
for sizes in (None, [600, 240]):
    difference = largest_difference(towers.average(uneven, weights=sizes), whole)
    print(f"weights {sizes}: agrees to 1e-5: {difference < 1e-5}")

# %%
try:
    average([[tf.constant(4.0)], [None]])
except (TypeError, ValueError) as error:
    print(type(error).__name__)
print("towers.average:", towers.average([[tf.constant(4.0)], [None]])[0].numpy())

# %% [markdown]
# With the sizes as weights the average is right again, and 4 and `None` became 2.
#
# **L2 once per tower.** `careless` divides the loss of each shard by the number of devices and adds
# the penalty. The gradients are then summed. That is right for the losses, and counts the penalty
# once per tower. The gradient of the penalty is 5e-4 times the kernel, so what is too much can be
# measured:

# %%
def careless(x, y):
    with tf.GradientTape() as tape:
        scores = networks.logits(network, weights, x)
        loss = networks.loss(y, scores) / len(plan) + networks.l2(weights, 5e-4)
    return tape.gradient(loss, weights["fc1/kernel"]).numpy()


shards = towers.split((x, y), len(plan))
kernel = weights["fc1/kernel"].numpy()
excess = sum(careless(*shard) for shard in shards) - dict(zip(weights, whole))["fc1/kernel"]
print(f"penalty counted {1 + np.vdot(excess, kernel) / (5e-4 * np.vdot(kernel, kernel)):.2f} times")

# %% [markdown]
# With two devices the penalty was counted twice.
#
# **The same dropout mask in each tower.** With the step alone as the seed, example k of every shard
# drops the same units. Count the units on which the masks of two towers agree. By chance it is
# half:

# %%
def mask(*seed):
    drop = tf.nn.experimental.stateless_dropout
    return drop(tf.ones([10_000]), 0.5, seed, rng_alg="philox").numpy() > 0


for name, seed in [("step alone", (7, 0)), ("step and tower", (7, 1))]:
    print(f"{name:15} the masks agree on {np.mean(mask(7, 0) == mask(*seed)):.1f} of the units")

# %% [markdown]
# With the step alone both towers had the same mask. With the number of the tower, they agree by
# chance only.
#
# ## With your own model
#
# `towers.train_step` does all of this for a Keras model. One question is left: which statistics
# does a BatchNormalization use? With `"average"` each tower uses those of its own shard. With
# `"sync"` the towers exchange theirs, and all use those of the whole batch, as one device does.
# Here is a small residual network. Its batch gets brighter from image to image, so that the shards
# differ. Compare losses and moving variances:

# %%
def residual():
    keras.utils.set_random_seed(0)
    given = keras.Input([28, 28, 1])
    outer = layers.Conv2D(8, 5, strides=4)(given)
    inner = layers.ReLU()(layers.BatchNormalization(momentum=0.5, name="norm")(outer))
    joined = layers.Add()([outer, layers.Conv2D(8, 3, padding="same")(inner)])
    return keras.Model(given, layers.Dense(10)(layers.Flatten()(joined)))


entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
brighter = x * np.linspace(0.2, 3, len(x), dtype="float32").reshape(-1, 1, 1, 1)
for places, how in [(1, "sync"), (len(plan), "sync"), (len(plan), "average")]:
    model = residual()
    step = towers.train_step(model, "sgd", entropy, plan.devices[:places], batch_norm=how)
    losses = [float(step(brighter, y)) for _ in range(3)]
    variance = model.get_layer("norm").moving_variance.numpy()[:3]
    print(f"{how:8} on {places}: losses {np.round(losses, 3)}  variances {np.round(variance, 3)}")

# %% [markdown]
# Synchronized, the numbers are those of one device. With `"average"` on several devices the first
# loss differs already. The moving variances come out smaller, because what differs between the
# shards is left out. New images will be normalized by them.
#
# Watch for this where the per-device batch is small, or where the shards differ. Otherwise
# `"average"` is usual, and faster: with `"sync"` all devices wait for each other at every
# BatchNormalization, forward and backward.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `weighted_average(tower_gradients, sizes)` for gradients that are plain tensors, so
# that shards of unequal size count by their size. There may be any number of towers.

# %% tags=["exercise"]
def weighted_average(tower_gradients, sizes):
    return average(tower_gradients)


checks.weighted_average(weighted_average)

# %% tags=["solution"]
def weighted_average(tower_gradients, sizes):
    shares = [size / sum(sizes) for size in sizes]
    return [sum(s * g for s, g in zip(shares, each)) for each in zip(*tower_gradients)]


checks.weighted_average(weighted_average)

# %% [markdown]
# **2.** Averaging on the host sends each gradient there as float32. Write
# `half_the_bytes(vectors)`: each device sends its own vector to the host as float16, which is half
# of the bytes, and the host adds them as float32 and gives the average. The check reads the bytes
# from a trace. It puts what you leave unplaced on the first device, as TensorFlow does on a GPU
# machine.

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
# **3.** A dropout seed has two whole numbers. Write `mask_seed(step, tower)`, which makes one from
# these two alone, so that no two towers and no two steps share one, for the first million steps of
# eight towers. Adding the two numbers is not enough: step 3 of tower 1 and step 2 of tower 2 would
# drop the same units.

# %% tags=["exercise"]
def mask_seed(step, tower):
    return (step + tower, 0)


checks.mask_seed(mask_seed)

# %% tags=["solution"]
def mask_seed(step, tower):
    return (step, tower)


checks.mask_seed(mask_seed)

# %% [markdown]
# ## What we saw
#
# - Two devices whose gradients were added saw their loss rise from 7.5 to 480 in four steps. With
#   the average it fell to 0.1, as on one device.
# - A network for digits had the same gradients on all devices, and the same losses and weights
#   after two passes. A graph gave the same numbers.
# - On two cores that were nearly free, two devices were faster than one, and gained more on a large
#   batch than on a small one.
# - The place of the variables decided which connection carried the bytes. It hardly mattered to
#   what a device held.
# - In a ring, less than twice the gradients go into each device, however many devices there are.
# - A number or an error caught unequal shards, a missing gradient, a penalty counted once per tower
#   and a shared mask.
# - `towers.train_step` gave the losses and moving variances of one device where the towers
#   exchanged their statistics, and others where they did not.
#
# ## In practice
#
# Use this when the model fits on one GPU and a step keeps it busy for tens of milliseconds. It
# costs traffic: in every step all weights go to each device, and all gradients come back.
#
# - `towers.train_step` does all of this for a Keras model.
# - More devices at the same per-device batch mean a larger global batch, and fewer steps for the
#   same examples. The learning rate may have to change ([[15]]).
# - On real GPUs the library NCCL does what `ring` does, and `tf.distribute.MirroredStrategy` calls
#   it.
# - float16 holds no number above 65504 and few below 0.00006. Scale what you send in it.
# - The network, and its variables on the host or on a device, come from the [tensorlight
#   notebook](../docs/sources.md#tensorlight) of bsautermeister (2016), colocated gradients from the
#   [P40 note](../docs/sources.md#p40) (2017). [[15]] and [[16]] show the times that they published.
#
# Next: [[next]].
