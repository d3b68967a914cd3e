# %% [markdown]
# # Train in towers
#
# One network learns on all devices at once and, without dropout, stays with the one that a single
# device learns.
#
# [[previous]] ended with a gradient from each device; here they are averaged, and the weights find
# a place to live.
#
# **You will learn** to
# - build towers that share their weights, in a graph and in today's code,
# - prove that all devices take the same step as one,
# - catch five classic mistakes,
# - choose where variables live and who averages, by the bytes that cross,
# - measure whether more devices pay.
#
# **You need** lessons 00, 01 and 06.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, timing, towers, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_07 as checks

# %% [markdown]
# ## The average of gradients
#
# Each device computes the gradient of the mean loss of its own shard. If the shards are of the
# same size, the average of these gradients is the gradient of the whole batch. Here are two towers
# with two variables:

# %%
def average(tower_gradients):
    return [tf.add_n(each) / len(each) for each in zip(*tower_gradients)]


mean = average([[tf.constant([1.0, 2.0]), tf.constant(10.0)],
                [tf.constant([3.0, 6.0]), tf.constant(30.0)]])  # fmt: skip
print([gradient.numpy().tolist() for gradient in mean])

# %% [markdown]
# [1, 2] and [3, 6] became [2, 4], and 10 and 30 became 20.
#
# ## A network for digits
#
# The network is that of the [tensorlight notebook](../docs/sources.md) of 2016, an eighth as wide
# so that a step takes milliseconds:

# %%
network = networks.tensorlight(width=0.125)
network

# %% [markdown]
# `networks` keeps the weights apart from the arithmetic. So what one **tower** computes is a plain
# function: the loss of its shard, and a small penalty on large weights (L2). `seed` decides which
# units dropout drops:

# %%
images, labels = digits.load(1024)
test_images, test_labels = digits.load(test=True)


def tower_loss(weights, x, y, keep=1.0, seed=None):
    scores = networks.logits(network, weights, x, keep=keep, seed=seed)
    return networks.loss(scores, y) + networks.l2(weights, 5e-4)


# %% [markdown]
# ## Towers in a graph
#
# Each tower takes a shard, reads the shared weights, and gives its loss and its gradients. Its
# dropout mask depends on the step and on the number of the tower:

# %%
def make_towers(weights, x, y, n, keep, step):
    losses, gradients = [], []
    with tf.device(plan.host):
        shards = zip(tf.split(x, n), tf.split(y, n))
    for i, (device, shard) in enumerate(zip(plan.devices, shards)):
        with tf.device(device), tf.name_scope(f"tower_{i}"):
            read = towers.read(weights)
            losses.append(tower_loss(read, *shard, keep, tf.stack([step, i])))
            gradients.append(
                tf1.gradients(losses[i], list(read.values()), colocate_gradients_with_ops=True)
            )
    return losses, gradients


# %% [markdown]
# The host averages the gradients and the losses: the reported loss is that of all towers. Adam
# updates each weight where it lives, and a moving average follows it. Evaluation uses the moving
# averages, not the weights:

# %%
def build(n, variables_on):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
            keep = tf1.placeholder_with_default(1.0, [], name="keep")
            step = tf1.get_variable("step", initializer=0, trainable=False)
        weights = networks.classic(network, device=variables_on)
        losses, gradients = make_towers(weights, x, y, n, keep, step)
        with tf.device(plan.host):
            tf.identity(average([[loss] for loss in losses])[0], name="loss")
            mean = [tf.identity(g, name=f"mean_{i}") for i, g in enumerate(average(gradients))]
        with tf.device(variables_on):
            update = tf1.train.AdamOptimizer(1e-3).apply_gradients(zip(mean, weights.values()))
            smooth = tf1.train.ExponentialMovingAverage(0.9999, num_updates=step)
            with tf.control_dependencies([update]):
                follow = smooth.apply(list(weights.values()))
        with tf.device(plan.host), tf.control_dependencies([follow]):
            step.assign_add(1, name="train")
        averages = {name: smooth.average(weight) for name, weight in weights.items()}
        with tf.device(plan.devices[0]):
            scores = networks.logits(network, averages, x)
            tf.identity(networks.accuracy(scores, y), name="accuracy")
        tf1.global_variables_initializer()
    return graph


# %% [markdown]
# In `cores` mode a session for it gets as many threads as it has towers. `train` runs some passes
# over the digits. A batch has to divide over the devices, so `near` makes it a little smaller where
# it does not. Here with dropout, on all devices:

# %%
def start(n, variables_on=plan.devices[0]):
    config = plan.session_config(devices=n, soft_placement=True)
    session = tf1.Session(graph=build(n, variables_on), config=config)
    session.run("init")
    return session


def near(size):
    return size - size % len(plan)


def train(session, passes, keep=1.0):
    losses = []
    for epoch in range(passes):
        for x, y in digits.batches(images, labels, near(128), seed=epoch):
            feed = {"x:0": x, "y:0": y, "keep:0": keep}
            losses.append(session.run(["loss:0", "train"], feed)[0])
    return losses


session = start(len(plan))
losses = train(session, passes=8, keep=0.5)
accuracy = session.run("accuracy:0", {"x:0": test_images, "y:0": test_labels})
print("steps:", len(losses), " loss fell:", losses[-1] < losses[0] / 2)
print("accuracy on new digits above 0.9:", accuracy > 0.9)

# %% [markdown]
# It learns. Whether it is the network that one device would have learned is another question. With
# dropout the masks differ, so the proof goes without it.
#
# ## Proof
#
# Two fresh graphs with the same weights, one tower and all towers, get the same batch, without
# dropout. First the gradients, each compared with the largest entry of its own variable:

# %%
x, y = images[: near(120)], labels[: near(120)]
batch = {"x:0": x, "y:0": y}
names = [f"mean_{i}:0" for i in range(len(networks.shapes(network)))]


def largest_difference(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


one, every = start(1), start(len(plan))
gradients_of_one, gradients_of_all = one.run(names, batch), every.run(names, batch)
print("gradients agree to 1e-4:", largest_difference(gradients_of_all, gradients_of_one) < 1e-4)

# %% [markdown]
# They are sums of the same numbers in another order, so the last digits may differ. A short
# training carries such differences along. After three passes:

# %%
def weights_of(session):
    return session.run([f"{name}/Read/ReadVariableOp:0" for name in networks.shapes(network)])


losses_of_one, losses_of_all = train(one, passes=3), train(every, passes=3)
print("losses agree to 1 %:  ", np.allclose(losses_of_all, losses_of_one, rtol=0.01))
print("weights agree to 0.01:", largest_difference(weights_of(every), weights_of(one)) < 0.01)

# %% [markdown]
# ## The same today
#
# A variable for each weight, and a tape for each tower, inside the block of its device. The
# weights start from the same numbers as those of the graph, so the first gradients have to agree:

# %%
weights = networks.variables(network, device=plan.devices[0])


@tf.function
def tower_gradients(x, y):
    gradients = []
    with tf.device(plan.host):
        shards = zip(tf.split(x, len(plan)), tf.split(y, len(plan)))
    for device, shard in zip(plan.devices, shards):
        with tf.device(device):
            read = towers.read(weights)
            with tf.GradientTape() as tape:
                tape.watch(read)
                loss = tower_loss(read, *shard)
            gradients.append(tape.gradient(loss, list(read.values())))
    return gradients


today = tower_gradients(x, y)
mean = [gradient.numpy() for gradient in average(today)]
print("classic and today's agree to 1e-4:", largest_difference(mean, gradients_of_all) < 1e-4)

# %% [markdown]
# ## Break it
#
# `whole` is the gradient that everything here is compared with, that of one device and the whole
# batch:

# %%
def gradient_of(x, y):
    with tf.device(plan.devices[0]):
        with tf.GradientTape() as tape:
            loss = tower_loss(weights, x, y)
        return [g.numpy() for g in tape.gradient(loss, list(weights.values()))]


whole = gradient_of(x, y)

# %% [markdown]
# **The sum for the mean.** Forget to divide, and the gradient is too long, by the number of
# devices as a factor. Its length tells:

# %%
total = [sum(each) for each in zip(*[[g.numpy() for g in tower] for tower in today])]
ratio = np.linalg.norm(total[-1]) / np.linalg.norm(whole[-1])
print(f"too long by a factor of {ratio:.2f}")

# %% [markdown]
# **Shards of unequal size.** 90 examples, and the 30 that are left. The plain average counts the
# few as much as the many; weights, here the sizes, put it right:

# %%
uneven = [gradient_of(x[:90], y[:90]), gradient_of(x[90:], y[90:])]
plain = [g.numpy() for g in towers.average(uneven)]
weighted = [g.numpy() for g in towers.average(uneven, weights=[90, len(x) - 90])]
print("plain average agrees to 1e-4:   ", largest_difference(plain, whole) < 1e-4)
print("weighted average agrees to 1e-4:", largest_difference(weighted, whole) < 1e-4)

# %% [markdown]
# `towers.average` is the function of this lesson, with weights and with sentences for what cannot
# be averaged.
#
# **L2 once per tower.** Divide the loss of each shard by the number of devices, add the penalty,
# and sum the gradients. That is right for the losses, and counts the penalty once per tower. The
# gradient of the penalty is 5e-4 times the weights, so what is too much can be measured:

# %%
def careless(x, y):
    with tf.GradientTape() as tape:
        scores = networks.logits(network, weights, x)
        loss = networks.loss(scores, y) / len(plan) + networks.l2(weights, 5e-4)
    return tape.gradient(loss, weights["fc1/kernel"]).numpy()


shards = zip(np.split(x, len(plan)), np.split(y, len(plan)))
kernel = weights["fc1/kernel"].numpy()
excess = sum(careless(*shard) for shard in shards) - whole[list(weights).index("fc1/kernel")]
print(f"penalty counted {1 + np.vdot(excess, kernel) / (5e-4 * np.vdot(kernel, kernel)):.2f} times")

# %% [markdown]
# **A variable that one tower does not use.** Its gradient there is `None`, and the average of this
# lesson stops. `None` means that the loss does not change with the variable, so it counts as zero,
# and the sum is still divided by the number of towers:

# %%
try:
    average([[tf.constant(4.0)], [None]])
except (TypeError, ValueError) as error:
    print(type(error).__name__)
print("towers.average:", towers.average([[tf.constant(4.0)], [None]])[0].numpy())

# %% [markdown]
# **The same dropout mask in each tower.** With the same seed everywhere, all towers drop the same
# units, and the batch sees one mask where it should see several. Count the entries on which two
# masks agree; half of them do by chance:

# %%
def mask(*seed):
    return tf.nn.experimental.stateless_dropout(tf.ones([10_000]), 0.5, seed, rng_alg="philox") > 0


for name, seed in [("step alone", (7, 0)), ("step and tower", (7, 1))]:
    agree = np.mean(mask(7, 0) == mask(*seed))
    print(f"{name:15} the masks of two towers agree on {agree:.1f} of the units")

# %% [markdown]
# ## What a step looks like
#
# One step of one tower, and one of all towers, on a batch of 840. Both charts have the same axis.
# (Above them stand the timelines that `make gpu` has stored on machines with GPUs, if any.)

# %% tags=["varies", "cover", "nbval-ignore-output"]
drawings.from_gpus("07")
big = {"x:0": images[:840], "y:0": labels[:840]}


def step_of(session):
    train_step = session.graph.get_operation_by_name("train")
    session.run(train_step, big)
    return trace.session_step(session, train_step, big)[1]


steps = [step_of(session) for session in (one, every)]
for step in steps:
    charts.timeline(step).set_xlim(0, 1e3 * max(each.length for each in steps))
    plt.show()

# %% [markdown]
# With several devices, and as many cores, the long bars are shorter and lie one above the other.
# The average and the update are too short to see here.
#
# ## Where the variables live
#
# On the host, or on the first device? Look at which way the bytes of a step go:

# %%
parameters = networks.parameters(network)
print(f"the weights: {4 * parameters:,} bytes")
for where in (plan.host, plan.devices[0]):
    crossed = step_of(start(len(plan), variables_on=where)).bytes_between()
    print(f"\nvariables on {where}")
    for (source, target), size in crossed.items():
        print(f"  {source} -> {target}  {size:>10,} bytes")

# %% [markdown]
# From the host, every device fetches all weights in every step and sends all gradients. With
# several devices and the variables on the first one, the others fetch the weights there, and the
# host still gets the gradients, because it averages, and sends the averages to the first device.
# The rest is the batch and a few bytes. With several devices the totals are the same to a few
# bytes: what changes is the road.
#
# Now memory: what a step allocates on each device. The variables are there before it and are not
# in the curves. With Adam's two slots and the moving average they are four times the weights, 1.7
# MB, where they live:

# %% tags=["varies"]
for where in (plan.host, plan.devices[0]):
    ax = charts.live_bytes(step_of(start(len(plan), variables_on=where)))
    ax.set_title(f"What one step holds, variables on {where}", loc="left")
    plt.show()

# %% [markdown]
# Each device holds the activations of its own shard, which are many times larger than those 1.7
# MB. So for this network the place of the variables hardly matters to memory.
#
# ## Who averages
#
# Afterwards every device should have the average. Three ways: the host collects and sends back;
# the first device does; or a **ring**, in which nobody collects. Each device cuts its gradients
# into as many pieces as there are devices. In each round it sends one piece to its neighbour,
# which adds its own numbers for that piece. After n - 1 rounds each device has one finished piece,
# and n - 1 more rounds pass these on. To try it, device number i starts with a vector that is i +
# 1 everywhere; each should end with the average:

# %%
def ring(vectors):
    n, pieces = len(vectors), []
    sizes = [len(part) for part in np.array_split(np.arange(vectors[0].shape[0]), n)]
    for device, vector in zip(plan.devices, vectors):
        with tf.device(device):
            pieces.append(tf.split(vector, sizes))
    for step in range(2 * (n - 1)):
        for i in range(n):
            piece, neighbour = (i - step) % n, (i + 1) % n
            with tf.device(plan.devices[neighbour]):
                came = tf.identity(pieces[i][piece])
                own = pieces[neighbour][piece]
                pieces[neighbour][piece] = came + own if step < n - 1 else came
    averages = []
    for device, each in zip(plan.devices, pieces):
        with tf.device(device):
            averages.append(tf.concat(each, axis=0) / n)
    return averages


vectors = []
for i, device in enumerate(plan.devices):
    with tf.device(device):
        vectors.append(tf.fill([8], i + 1.0))
print([np.unique(vector).tolist() for vector in ring(vectors)], "average:", (len(plan) + 1) / 2)

# %% [markdown]
# The other way has one device in the middle. `averaged` lets each device make a gradient as long
# as the network's, traces how they are averaged, and keeps a sample of what each device ends with,
# from every piece:

# %%
def central(vectors, middle):
    with tf.device(middle):
        mean = tf.add_n(vectors) / len(vectors)
    return [mean] * len(plan)  # a device fetches it when it uses it


def averaged(how):
    def step(seed):
        vectors = []
        for i, device in enumerate(plan.devices):
            with tf.device(device):
                vectors.append(tf.random.stateless_normal([parameters], tf.stack([seed, i])))
        averages = how(vectors)
        outputs = []
        for device, each in zip(plan.devices, averages):
            with tf.device(device):
                outputs.append(each[::1000])
        return outputs

    return trace.function_step(step, tf.constant(1))


ways = {
    "host": lambda vectors: central(vectors, plan.host),
    "first device": lambda vectors: central(vectors, plan.devices[0]),
    "ring": ring,
}

# %% [markdown]
# The trace counts what goes into each device and out of it. Compare the devices in the middle:

# %%
results, size, n = {}, 4 * parameters, len(plan)
for name, how in ways.items():
    results[name], step = averaged(how)
    big_copies = [copy for copy in step.copies if copy.bytes > 1000]  # without the sample
    for device in (plan.host, *plan.devices):
        into = sum(c.bytes for c in big_copies if c.target == device)
        out = sum(c.bytes for c in big_copies if c.source == device)
        print(f"{name:13}{device}  in {into / size:.2f}  out {out / size:.2f}  times the gradients")
print("formula for the ring:", 2 * (n - 1) / n)

found = [each for outputs in results.values() for each in outputs]
same = [np.abs(each - found[0]).max() < 1e-6 for each in found]
print("averages that agree to 1e-6:", sum(same), "of", len(same))

# %% [markdown]
# In the middle the traffic grows with the number of devices. With two devices the ring and the
# first device come out the same; with four, the host takes 4.00, the first device 3.00, and in the
# ring nobody more than 1.50. In the ring it is 2(n - 1)/n of the gradients into each device and
# out of it, less than twice, however many there are. All three ways give every device the same
# average.
#
# ## Does it pay?
#
# First the same **global batch** on one device and on all of them. A small batch leaves each
# device little to do, and the average costs the same. Compare the three lines:

# %%
one, every = start(1), start(len(plan))
for size in map(near, (24, 120, 840)):
    feed = {"x:0": images[:size], "y:0": labels[:size]}
    steps = [lambda s=s: s.run("train", feed) for s in (one, every)]
    print(f"batch {size:3}", timing.compare(*steps, repeats=10, names=("one", "all")))

# %% [markdown]
# Then the same **per-device batch**: with more devices the global batch grows. The chart has the
# time that an example takes, for each number of devices; the dashed line is that of one device,
# divided by their number:

# %% tags=["varies"]
per_example = {}
for n in range(1, len(plan) + 1):
    session, size = start(n), 120 * n
    feed = {"x:0": images[:size], "y:0": labels[:size]}
    measured = timing.measure(lambda: session.run("train", feed))
    per_example[n] = [seconds / size for seconds in measured.seconds]
charts.per_example(per_example)
plt.show()

# %% [markdown]
# Near the dashed line, nearly all of the time is useful work. The distance from it is the average,
# the update, waiting for the slowest and, beyond the number of cores, the cores that are missing.
#
# On GPUs, expect no gain from this network. A step is some hundred small kernels, and starting them
# takes longer than computing them, so several GPUs take about as long as one, or longer. Towers pay
# when each GPU has work for tens of milliseconds: at the network's full width (`width=1.0`), and at
# batches of thousands.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `weighted_average(tower_gradients, sizes)` for dense gradients, such that shards of
# unequal size count by their size.

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
# `half_the_bytes(vectors)`, which gives the average on the host, as float32, and sends half of the
# bytes: as float16. The check reads the bytes from a trace.

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
# **3.** A dropout seed has two whole numbers. Write `mask_seed(step, tower)` so that no two towers
# and no two steps share one. Adding the two numbers is not enough: step 3 of tower 1 and step 2 of
# tower 2 would drop the same units.

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
# - Averaged gradients of equal shards were the gradient of the whole batch, and a short training
#   on all devices stayed with that on one.
# - A sum for a mean, unequal shards, a penalty counted once per tower, a missing gradient and a
#   shared mask were each caught by a number or an error.
# - Where the variables lived decided between whom the bytes crossed, and hardly what a device
#   held.
# - A ring moved the same bytes through every device, and no device had to take them all.
# - On cores, the smaller the batch, the less all devices gained over one.
#
# ## In practice
#
# - More devices at the same per-device batch mean a larger global batch, and fewer steps for the
#   same examples. The learning rate then wants attention; lesson 11 measures it.
# - Batch normalization in towers sees the statistics of one shard only, unless it is synchronized.
# - On real GPUs the library NCCL does what `ring` does, and `tf.distribute.MirroredStrategy` calls
#   it.
# - float16 holds no number above 65504 and few below 0.00006. Whoever sends gradients in it scales
#   them first.
# - The network, its size and the choice of host or device for its variables come from the
#   tensorlight notebook, which measured them on TitanX GPUs in 2016; lesson 11 has its table.
#
# Next: [[next]].
