# %% [markdown]
# # Split a model
#
# One network trains on two devices, each with a part of it, and a batch in pieces keeps both busy.
#
# [[previous]] gave each device a model of its own. A model that no device can hold has to be cut.
#
# **You will learn** to
# - cut a network, and see what each device then holds,
# - keep the way back on the devices of the way forward,
# - write down the order in which a device works,
# - choose where to cut,
# - send a batch through in pieces, in three orders.
#
# **You need** lessons 00 to 02.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, memory, pipeline, placement, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_09 as checks

# %% [markdown]
# ## A part for each device
#
# The article *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md)), which lessons 04 and 05
# follow too, ends with a model that is too large for one GPU: it places the convolutions on one and
# the dense layers on another. This is its network with a quarter of the filters, and with 1800
# units in `fc1` where the article has 2400:

# %%
network = networks.jang(hidden=7200, width=0.25)
network

# %% [markdown]
# `fc1` has 97 % of the weights. But an example leaves 12,544 numbers behind `conv1` and 1800
# behind `fc1`. So the two parts are large in different ways. (Dropout is off in this lesson.)
#
# A part on its device is a **stage**. `forward` makes them; a cut is the name of the layer that
# begins the next stage, and without one there is a single stage. `build` makes the training step
# around it (what `colocate` does is the next section; Adam's slots and the update are where their
# weight is). `start` runs the first step, so that `traced` can trace the next one; `working` is
# the number of devices that work at a time, `None` for all:

# %%
def forward(network, starts, where, x):
    values, weights = networks.initial(network), {}
    for part, device in zip(networks.cut(network, starts), where):
        with tf.device(device):
            for name in networks.shapes(part):
                weights[name] = tf1.get_variable(name, initializer=values[name])
            x = networks.logits(part, {n: weights[n] for n in networks.shapes(part)}, x)
    return x, weights


# %%
def build(network, starts, where, colocate=True):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
        scores, weights = forward(network, starts, where, x)
        with tf.device(where[-1]):
            loss = tf.identity(networks.loss(scores, y), name="loss")
        with tf.device(where[0]):
            gradients = tf1.gradients(
                loss, list(weights.values()), colocate_gradients_with_ops=colocate
            )
        pairs = list(zip(gradients, weights.values()))
        tf1.train.AdamOptimizer(1e-3).apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    return graph


# %%
images, labels = digits.load(1024)


def start(graph, size, working=None):
    config = plan.session_config(devices=working, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run("init")
    feed = {"x:0": images[:size], "y:0": labels[:size]}
    session.run("train", feed)
    return session, feed


def traced(graph, size, working=None):
    session, feed = start(graph, size, working)
    return trace.session_step(session, "train", feed)[1]


# %% [markdown]
# Say that a device can give this training 25 MB, at a batch of 128. Here is the network whole, and
# cut as in the article, before `fc1`. Below it is the network of the [tensorlight
# notebook](../docs/sources.md) of 2016, also with a quarter of its width, and cut as there between
# `conv1` and `conv2`. The second device of the pair is the plan's last. "Gradients" in the chart
# are the gradients, and the new weights that the update writes while the old ones are still being
# read:

# %%
pair = [plan.devices[0], plan.devices[-1]]


def held(name, network, starts, where):
    step, found = traced(build(network, starts, where), 128), {}
    for i, (part, device) in enumerate(zip(networks.cut(network, starts), where), 1):
        own = 4 * networks.parameters(part)
        found[f"{name} {i} of {len(where)} on {device}"] = memory.by_use(
            step, device, weights=own, slots=2 * own, scratch=False
        )
    return found


# %%
other = networks.tensorlight(width=0.25)
parts = held("article", network, [], pair[:1]) | held("article", network, ["fc1"], pair)
parts |= held("notebook", other, [], pair[:1]) | held("notebook", other, ["conv2"], pair)
for name, each in parts.items():
    print(f"{name}: weights and slots {each.weights + each.slots:10,} bytes")
whole, *halves = [each.total for each in parts.values()][:3]
print("the article's network within 25 MB, whole:", whole <= 25e6, " cut:", max(halves) <= 25e6)
print("the larger part holds less than 3/4 of the whole:", max(halves) < 0.75 * whole)
charts.held(parts)
plt.show()

# %% [markdown]
# With two devices the article's stages differ in kind. The first holds activations, which grow with
# the batch; the second weights, Adam's slots and gradients, which do not. (A single device holds
# both.) The tensorlight notebook says what its GPUs held: 4285 MiB with the whole network, and 2236
# and 2795 with a part of it. These are what TensorFlow had taken, not what the step needed: another
# row of the same table has the whole network in 1214 MiB.
#
# ## Where the way back runs
#
# `tf.device` was around the forward operations only. TensorFlow puts the gradient of an operation
# on the operation's device if `colocate_gradients_with_ops` is `True`; otherwise it goes where the
# call of `tf1.gradients` is. The notebook measured both with its two parts on two TitanX GPUs:
# 20.18 ms a step with it, 23.33 without. The placement log says where the operations of `conv2`
# are, forward and back, and a trace says how many bytes cross:

# %%
back, runs = "gradients/conv2/Conv2D_grad/Conv2DBackpropFilter", []
for colocate in (True, False):
    graph = build(other, ["conv2"], pair, colocate)
    with placement.capture() as log:
        tf1.Session(graph=graph, config=plan.session_config(log_placement=True)).run("init")
    session, feed = start(graph, 512)
    crossed = sum(trace.session_step(session, "train", feed)[1].bytes_between().values())
    print(f"colocate={colocate!s:6} forward on {log.device_of('conv2/Conv2D')},",
          f"back on {log.device_of(back)}, {crossed / 1e6:.0f} MB cross")
    runs.append(lambda session=session, feed=feed: session.run("train", feed))
print(timing.compare(*runs, repeats=10, names=("colocated", "not colocated")))

# %% [markdown]
# Without it, what the second stage keeps for the way back travels to the first device, which does
# all of it. In the published figures the colocated step is 1.16 times as fast. There the bytes
# went from card to card; in `cores` mode both devices lie in the same memory. (With a single
# device only the batch crosses, from the host.)
#
# ## Why it is not faster
#
# One step of the article's cut, on a larger batch:

# %% tags=["varies"]
step = traced(build(network, ["fc1"], pair), 1024)
charts.timeline(step)
plt.show()

# %% [markdown]
# With two devices: the first works, then the second, then the first again. A stage cannot begin
# before the one in front of it has ended, and on the way back it is the other way round. The cut
# shares out memory, not time.
#
# Where a device has two rows of bars, two of its operations ran at once, on the core that the
# other device left idle. A logical CPU starts whatever is ready, in any order. On a GPU,
# TensorFlow's computations **run one after the other, in the order in which they were given to
# it.** Before a schedule can be tried here, a device has to behave like that.
#
# ## A stream for each device
#
# An operation waits for all its inputs. TensorFlow can also make it wait for an operation whose
# result it does not use: a **control dependency**. A chain of them is a **stream**. (The
# underscore says that the method is TensorFlow's own; `tf.control_dependencies` is for operations
# that are still to be made.) Four products that do not need each other, on one device:

# %%
def stream(operations):
    for before, operation in zip(operations, operations[1:]):
        operation._add_control_input(before)


def products(chosen):
    with tf.Graph().as_default(), tf.device(pair[0]):
        x = tf1.placeholder(tf.float32, [400, 400])
        made = {name: tf.matmul(x, x, name=name) for name in "abcd"}
        stream([made[name].op for name in chosen])
        with tf1.Session(config=plan.session_config(soft_placement=True)) as session:
            feed = {x: np.ones([400, 400])}
            session.run(made, feed)
            _, step = trace.session_step(session, made, feed)
    return [op for op in step.ops if op.type == "MatMul"]


# %%
for chosen in ("abcd", "cadb"):
    done = products(chosen)
    apart = all(a.start + a.length <= b.start for a, b in zip(done, done[1:]))
    print("asked for", chosen, " ran", "".join(op.name for op in done), " one at a time:", apart)

# %% [markdown]
# The order is now something one writes down. From here on every device has a stream, and a device
# of `cores` mode works like one that does one thing at a time.
#
# ## Where to cut
#
# A stage that takes longer lets the other one wait. What would each cut cost? A trace of the whole
# network, with one thread, knows how long the operations of each layer take, what they hold, and
# how many bytes go from one to the next. `pipeline.cuts` adds them up by stage, for every cut
# there is. A line gives the time of each stage, its peak memory without weights and slots, and
# what crosses, there and back. (A pool belongs to the layer in front of it.) `best_cut` takes the
# cut whose slower stage is fastest, or the one whose larger stage is smallest, or the one where
# the least crosses:

# %%
layers = ["conv1", "conv2", "conv3", "fc1", "output"]
uncut = traced(build(network, [], pair[:1]), 1024, working=1)
for cut in pipeline.cuts(uncut, layers, stages=2):
    print("timing ", cut)
best = {}
for by in ("time", "memory", "bytes"):
    best[by] = pipeline.best_cut(uncut, pair, layers, by=by).starts
print("by memory:", *best["memory"], "  by bytes:", *best["bytes"])
print("timing    by time:", *best["time"])

# %% [markdown]
# The three criteria do not agree: the article's cut is the one where the least crosses. For speed
# it is the time that counts, so the cut by time goes into the rest of this lesson.
#
# ## Micro-batches
#
# Cut the batch into pieces, **micro-batches**, and the second device can begin as soon as the
# first piece has passed the first. From here on a stage is a device, a function of weights and an
# input, and its weights. A **task** is one piece through one stage, `F` forward or `B` back. The
# loss of a piece counts by its share of the batch, and the gradients of the pieces are added.
# `order` is the schedule: the tasks of each stage, one after the other:

# %%
def in_pieces(stages, loss, x, y, order):
    pieces, last = len(order[0]) // 2, len(stages) - 1
    with tf.device(plan.host):
        xs, ys = tf.split(x, pieces), tf.split(y, pieces)
    out = {(-1, k): piece for k, piece in enumerate(xs)}
    given, back, total = {}, {}, {}
    for s, task in pipeline.run_times(order):  # each after what it needs
        stage, k = stages[s], int(task[1:])
        with tf.device(stage.device):
            if task[0] == "F":
                given[s, k] = tf.identity(out[s - 1, k])
                out[s, k] = stage.function(stage.weights, given[s, k])
                if s == last:
                    out[s, k] = loss(out[s, k], ys[k]) / pieces
            else:
                wanted = [*stage.weights.values(), given[s, k]]
                found = tf1.gradients(out[s, k], wanted, grad_ys=back.get((s + 1, k)))
                for name, gradient in zip(stage.weights, found):
                    total[name] = gradient + total.get(name, 0)
                back[s, k] = found[-1]
    return total


# %% [markdown]
# Four examples, two stages that multiply, and the mean as the loss. The first weight is 2, the
# second 3. The mean of x is 2.5, so the gradients should be 3 times 2.5 and 2 times 2.5:

# %%
def multiply(weights, x):
    (weight,) = weights.values()
    return weight * x


# %%
order = [["F0", "B0", "F1", "B1"], ["F0", "B0", "F1", "B1"]]
with tf.Graph().as_default():
    stages = []
    for device, name, value in zip(pair, ["a", "b"], [2.0, 3.0]):
        with tf.device(device):
            weights = {name: tf1.get_variable(name, initializer=value)}
        stages.append(pipeline.Stage(device, multiply, weights))
    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    total = in_pieces(stages, lambda outputs, _: tf.reduce_mean(outputs), x, x, order)
    with tf1.Session(config=plan.session_config(soft_placement=True)) as session:
        session.run(tf1.global_variables_initializer())
        print({name: float(gradient) for name, gradient in sorted(session.run(total).items())})

# %% [markdown]
# ## Three orders
#
# A schedule is a list of tasks for each stage. `pipeline.table` prints it as if each took as long
# as any other. The schedule above lets one piece go all the way before the next one starts. Or all
# pieces go forward, then all back. Or one goes back for each one that goes forward, as soon as
# there is one to go back. Not every order can run: in the last one, the first stage waits for
# piece 0 before it sends piece 1, and the second sends nothing back before it has both:

# %%
print(pipeline.table(pipeline.one_by_one(stages=2, pieces=4)), end="\n\n")
print(pipeline.table(pipeline.all_forward(stages=2, pieces=4)), end="\n\n")
print(pipeline.table(pipeline.one_forward_one_backward(stages=2, pieces=4)), end="\n\n")
try:
    pipeline.check([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])
except ValueError as error:
    print(error)

# %% [markdown]
# The first takes 16 columns, the next two 10. But look at stage 0: all forward, it holds what four
# pieces left behind; in the third table never more than two.
#
# With p stages and m pieces, these two have m + p - 1 columns forward and as many back, and a
# device waits in p - 1 of each. That share, (p - 1)/(m + p - 1), is called the **bubble**.
#
# ## The network in pieces
#
# `pipeline.gradients` is `in_pieces` with a stream for each device, pieces of unequal size and
# errors that say what to do. (Its stream chains the tasks, and in a task only the operations that
# take time, because oneDNN merges some of the others.) `networks.stages` cuts the network and makes
# the weights, which start as those of the whole one do. The batch of 1024 in one piece, and in
# eight:

# %%
def pipelined(order, starts, where):
    with tf.Graph().as_default() as graph:
        with tf.device(plan.host):
            x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
        stages = networks.stages(network, starts, where)
        loss, gradients = pipeline.gradients(stages, networks.loss, x, y, order)
        tf.identity(loss, name="loss")
        weights = {name: weight for stage in stages for name, weight in stage.weights.items()}
        for name, gradient in gradients.items():
            tf.identity(gradient, name=f"gradient/{name}")
        pairs = [(gradients[name], weight) for name, weight in weights.items()]
        tf1.train.GradientDescentOptimizer(0.01).apply_gradients(pairs, name="train")
        tf1.global_variables_initializer()
    return graph


# %% tags=["varies"]
for pieces in (1, 8):
    order = pipeline.one_forward_one_backward(stages=2, pieces=pieces)
    step = traced(pipelined(order, best["time"], pair), 1024)
    charts.pipeline(step)
    plt.show()

# %% [markdown]
# In one piece the devices take turns, but for a few operations at the change. In eight, with as
# many cores as devices, they overlap. What is left of the idle time lies at the two ends, and
# where one device waits for the other.
#
# Now all three orders, with more and more pieces: the time of a step, and what the first device
# holds at most. The dashed line is a prediction: what the tasks of a single piece took, divided by
# the number of pieces and laid out by the schedule of the third way:

# %%
ways = {
    "one after the other": pipeline.one_by_one,
    "all forward first": pipeline.all_forward,
    "one forward, one back": pipeline.one_forward_one_backward,
}
times, peaks, steps, runs = ({name: {} for name in ways} for _ in range(4))
for pieces in (1, 2, 4, 8, 16):
    for name, way in ways.items():
        session, feed = start(pipelined(way(2, pieces), best["time"], pair), 1024)
        runs[name][pieces] = lambda session=session, feed=feed: session.run("train", feed)
        times[name][pieces] = timing.measure(runs[name][pieces], warmup=1, repeats=5)
        steps[name][pieces] = trace.session_step(session, "train", feed)[1]
        peaks[name][pieces] = steps[name][pieces].peak(pair[0], scratch=False)

# %% tags=["varies", "cover"]
spans = pipeline.spans(steps["one forward, one back"][1])
took = {(span.stage, span.task): span.length for span in spans}


def predict(pieces):
    order = pipeline.one_forward_one_backward(2, pieces)
    costs = [[took[stage, task] / pieces for stage in (0, 1)] for task in ("F0", "B0")]
    return max(end for _, end in pipeline.run_times(order, *costs, devices=pair).values())


drawings.against_pieces(times, {pieces: predict(pieces) for pieces in (1, 2, 4, 8, 16)})
plt.show()

# %%
print(timing.compare(runs["one after the other"][1], runs["one forward, one back"][8], repeats=10,
                     names=("in one piece", "in eight pieces")))  # fmt: skip
for pieces, step in steps["one forward, one back"].items():
    print(f"timing  in {pieces:2}:", *(f"{1e3 * step.busy(d):.0f} ms on {d}," for d in pair),
          f"{pair[0]} idle {step.idle(pair[0]):.2f}, bubble {pipeline.bubble(2, pieces):.2f}")

# %% [markdown]
# With as many cores as devices, the two ways that overlap gain with the first pieces, and then
# little or nothing. The bubble shrinks, but a device is idle for longer than the bubble: the
# formula assumes equally long tasks. On the machine that built this page the two stages cost the
# same in one piece; in small ones the second, with its large matrix, takes longer than the first,
# which waits for it. And all forward first waits twice: for the stage that is slower forward, then
# for the one that is slower back. One forward, one back mixes the two.
#
# On GPUs this network is too small for pieces. A task is dozens of short kernels, and starting them
# takes longer than computing them. There, expect pieces to make the step slower, not faster.
#
# What the first device holds:

# %%
eight = {name: peak[8] for name, peak in peaks.items()}
half = eight["one forward, one back"] <= 0.5 * eight["all forward first"]
print("one forward, one back, holds at most half of all forward first:", half)
drawings.against_pieces(peaks)
plt.show()

# %% [markdown]
# All forward first keeps what every piece left behind, however small the pieces are; what falls is
# what one piece needs on its way back. One forward, one back keeps two pieces, and a piece becomes
# smaller. One after the other keeps one, and overlaps nothing. (Weights are not in these curves.)
#
# ## Proof
#
# The reference is a tape over the whole network and the whole batch, in today's code, with 256
# examples. The error of a gradient is divided by the largest entry of that gradient. After five
# steps each weight is compared with the same weight of the uncut network:

# %%
weights, x, y = networks.variables(network), images[:256], labels[:256]


def gradient_of(x, y):
    with tf.GradientTape() as tape:
        loss = networks.loss(networks.logits(network, weights, x), y)
    return dict(zip(weights, tape.gradient(loss, list(weights.values()))))


def agrees(ours, theirs):
    off = {name: np.max(np.abs(ours[name] - theirs[name])) for name in theirs}
    return all(off[name] <= 1e-4 * np.max(np.abs(theirs[name])) for name in theirs)


def results(graph):
    session, feed = start(graph, 256)
    session.run("init")
    gradients = session.run({name: f"gradient/{name}:0" for name in weights}, feed)
    for _ in range(5):
        session.run("train", feed)
    return gradients, session.run({name: f"{name}/Read/ReadVariableOp:0" for name in weights})


whole = gradient_of(x, y)
gradients, uncut = results(pipelined([["F0", "B0"]], [], pair[:1]))
print("uncut: gradients agree to 1e-4:", agrees(gradients, whole))

# %%
for pieces in (1, 2, 4, 8):
    graphs = [pipelined(way(2, pieces), best["time"], pair) for way in ways.values()]
    gradients, weights_after = zip(*map(results, graphs))
    print(f"{pieces} pieces: gradients agree to 1e-4:", all(agrees(g, whole) for g in gradients),
          " weights:", all(agrees(w, uncut) for w in weights_after))  # fmt: skip

# %% [markdown]
# ## The same today
#
# `pipeline.gradients` works in a `tf.function` too, with the same streams; there the variables are
# made beforehand. Four stages this time, given to the devices in turn. A device that has several
# takes the task that is ready first. In the chart, `2:3` is stage 2 with piece 3:

# %%
stages = networks.stages(network, ["conv2", "conv3", "fc1"], (plan.devices * 4)[:4])
order = pipeline.one_forward_one_backward(stages=4, pieces=4)
today = tf.function(lambda x, y: pipeline.gradients(stages, networks.loss, x, y, order)[1])
print("four stages, four pieces, agree to 1e-4:", agrees(today(x, y), whole))

# %% tags=["varies"]
charts.pipeline(trace.function_step(today, images, labels)[1])
plt.show()

# %% [markdown]
# ## Break it
#
# **Batch statistics.** Batch normalization subtracts the mean of the batch. In pieces it is the
# mean of the piece, and the gradients differ. One stage with one weight for each of the ten
# outputs shows it:

# %%
def gradient_in(pieces, function):
    stage = pipeline.Stage(pair[0], function, {"w": tf.Variable(tf.ones([10]))})
    order = pipeline.one_by_one(1, pieces)
    return tf.function(lambda x, y: pipeline.gradients([stage], networks.loss, x, y, order)[1]["w"])


def plain(weights, x):
    return tf.reshape(x, [-1, 784])[:, 200:210] * weights["w"]


def normalized(weights, x):
    mean, variance = tf.nn.moments(x, axes=[0])
    return plain(weights, (x - mean) / tf.sqrt(variance + 1e-3))


for function in (plain, normalized):
    one, four = ({"w": gradient_in(pieces, function)(x, y).numpy()} for pieces in (1, 4))
    print(f"{function.__name__:10} 1 and 4 pieces agree to 1e-4:", agrees(four, one))

# %% [markdown]
# **A loss averaged per piece, without weights.** A batch of 90 in pieces of 32, 32 and 26. The
# plain average counts the last examples more than the others. Weights put it right;
# `pipeline.gradients` applies them where `uneven=True` allows pieces of two sizes:

# %%
pieces = [(x[a:b], y[a:b]) for a, b in [(0, 32), (32, 64), (64, 90)]]
for name, shares in [("plain", [1 / 3] * 3), ("weighted", [32 / 90, 32 / 90, 26 / 90])]:
    parts = [(share, gradient_of(*piece)) for share, piece in zip(shares, pieces)]
    mean = {weight: sum(share * g[weight] for share, g in parts) for weight in whole}
    print(f"{name:9} average agrees to 1e-4:", agrees(mean, gradient_of(x[:90], y[:90])))

# %%
uneven = tf.function(
    lambda x, y: pipeline.gradients(stages, networks.loss, x, y, order, uneven=True)[1]
)
print("pipeline.gradients:", agrees(uneven(x[:90], y[:90]), gradient_of(x[:90], y[:90])))

# %% [markdown]
# **A weight that both stages use.** With w = 2 and a mean of 2.5, w times w times x has the
# gradient 2 times 2 times 2.5, and each stage makes half of it. Whoever gives each stage a copy of
# the variable has two weights, each with half of the gradient:

# %%
shared, copy = tf.Variable(2.0), tf.Variable(2.0)
for own in ({"w": shared}, {"copy": copy}), ({"w": shared}, {"w": shared}):
    stages = [pipeline.Stage(pair[i], multiply, weights) for i, weights in enumerate(own)]
    step = tf.function(lambda x: pipeline.gradients(stages, lambda y, _: tf.reduce_mean(y), x, x))
    print({name: float(gradient) for name, gradient in step(tf.range(1.0, 5.0))[1].items()})

# %% [markdown]
# `pipeline.gradients` adds what two stages have for the same variable.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** The same network, with a batch of 512 and 62 MB a device, weights and Adam's slots
# included. With the article's cut the first part holds more than that. Which one layer should
# begin the second part? The check trains it and measures both.

# %% tags=["exercise"]
starts = ["fc1"]
checks.within_budget(starts)

# %% tags=["solution"]
starts = ["conv2"]
checks.within_budget(starts)

# %% [markdown]
# **2.** With three stages, one forward, one back lets the first stage hold three pieces. Write
# `two_at_most(stages, pieces)`: a schedule in which no stage ever holds more than two, and which
# still takes less time than one piece after the other. Each stage has a list of tasks like `"F0"`.

# %% tags=["exercise"]
def two_at_most(stages, pieces):
    return pipeline.one_forward_one_backward(stages, pieces)


checks.two_at_most(two_at_most)

# %% tags=["solution"]
def two_at_most(stages, pieces):
    schedule = []
    for stage in range(stages):
        ahead = min(2, stages - stage, pieces)
        steps = [f"F{k}" for k in range(ahead)]
        for k in range(pieces):
            steps.append(f"B{k}")
            if k + ahead < pieces:
                steps.append(f"F{k + ahead}")
        schedule.append(steps)
    return schedule


checks.two_at_most(two_at_most)

# %% [markdown]
# **3.** Pieces also help a single device: it then needs the memory of one piece only. Write
# `accumulate(gradient_of, pieces)`. `pieces` is a list of pairs (x, y) of any sizes, and
# `gradient_of(x, y)` gives the gradient of the mean loss of a pair, one tensor. Return that of all
# examples together, and never hold the gradients of all pieces at once.

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
# - With two devices, the article's network fitted where it did not fit whole; its first stage held
#   activations, its second weights.
# - Without `colocate_gradients_with_ops` the whole way back ran on the first device, and more
#   bytes crossed.
# - The cut alone let one device wait for the other. Pieces of the batch let both work, up to the
#   point where the slower stage set the pace.
# - One forward, one back held at most half of what all forward first held, at eight pieces.
# - In every cut, order and number of pieces that we compared, gradients stayed with those of the
#   whole network. Batch statistics did not; unweighted pieces and a copied weight did not until
#   they were put right.
#
# ## In practice
#
# - Cut a model if it does not fit. If it fits, towers (lesson 07) keep devices busy without a
#   bubble. [PyTorch's
#   tutorial](https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html) measured
#   ResNet-50 on two GPUs: cut in two, 7 % longer than on one; in pieces, 49 % faster than cut
#   without them.
# - All forward first is the order of GPipe (2018), one forward, one back that of PipeDream (2018).
#   On GPUs the pieces must be large enough to fill a card.
# - A layer that is itself too large is cut across: each device holds some columns of its matrix.
#   In TensorFlow that is DTensor (`tf.experimental.dtensor`), which spreads a tensor over a mesh
#   of devices as its layout says.
# - Very large models combine towers, stages and cut layers. Ready-made schedules for that are in
#   PyTorch (`torch.distributed.pipelining`), Megatron-LM and DeepSpeed, and JAX shards by layouts;
#   TensorFlow has no pipeline of its own.
# - What is cheap to compute again need not be kept for the way back: `tf.recompute_grad` trades
#   time for memory.
#
# Next: [[next]].
