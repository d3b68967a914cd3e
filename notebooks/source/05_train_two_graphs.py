# %% [markdown]
# # Train two graphs at once
#
# Networks in graphs of their own train at the same time, each on its own device, and then vote.
#
# [[previous]] ran whole scripts side by side. They share nothing: each loads the data again, and
# their answers have to be collected from files. Here the models live in one process.
#
# **You will learn** to
# - build graphs whose parts have the same names, and reach them by name,
# - train them at once, with a thread for each session,
# - see that they train at all,
# - let them vote, and look at what they disagree on,
# - say the same in today's code, with threads and in one function.
#
# **You need** lessons 00 to 04.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import threading

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, ensemble, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_05 as checks

# %% [markdown]
# ## Two graphs, the same names
#
# The article *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md)) trains two networks that
# differ in their last hidden layer only, of 2400 and 4800 units. Here they are an eighth as wide.
# Each has a graph and a **scope** of its own, `g1` and `g2`, in front of the same names. Its
# dropout follows from the step and from the number of units, and from nothing else, so that a
# training can be repeated:

# %%
def build(scope, hidden, device):
    network = networks.jang(hidden=hidden, width=0.125)
    with tf.Graph().as_default() as graph, tf.device(device), tf.name_scope(scope):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="input")
        y = tf1.placeholder(tf.int64, [None], name="label")
        keep = tf1.placeholder_with_default(1.0, [], name="keep")
        step = tf1.train.get_or_create_global_step()
        weights = networks.classic(network, seed=hidden)
        seed = tf.stack([tf.cast(step, tf.int32), hidden])
        scores = networks.logits(network, weights, x, keep=keep, seed=seed)
        loss = tf.identity(networks.loss(scores, y), name="cross_entropy")
        tf1.train.AdamOptimizer(1e-3).minimize(loss, global_step=step, name="train_step")
        tf.nn.softmax(scores, name="probabilities")
        tf1.global_variables_initializer()  # an operation called init
    return graph


homes = {"g1": plan.devices[0], "g2": plan.devices[-1]}
graphs = {"g1": build("g1", 2400, homes["g1"]), "g2": build("g2", 4800, homes["g2"])}

# %% [markdown]
# A part is found by its scope and its name. What ends in `:0` is a tensor, what does not is an
# operation. (Variables keep plain names such as `conv1/kernel:0`: `get_variable` does not know
# name scopes.)

# %%
for scope, graph in graphs.items():
    print(graph.get_tensor_by_name(f"{scope}/input:0").name, end="  ")
    print(graph.get_operation_by_name(f"{scope}/train_step").name)

# %% [markdown]
# A name that is not there is an error. `ensemble.named` looks for the ones that are near:

# %%
try:
    ensemble.named(graphs["g1"], "g1/cross_entropie:0")
except KeyError as error:
    print(error.args[0])

# %% [markdown]
# ## A session for each
#
# The article gives each session a GPU of its own by `visible_device_list`, in one process. Does
# that run today?

# %%
try:
    for number, graph in enumerate(graphs.values()):
        config = tf1.ConfigProto()
        config.gpu_options.visible_device_list = str(number)
        tf1.Session(graph=graph, config=config)
    print("no error (without a GPU nobody reads the list)")
except tf.errors.OpError as error:
    print(error.message)

# %% [markdown]
# With GPUs it does not. A process numbers its GPUs once, and the second list gives `/GPU:0`
# another meaning: TensorFlow says that the device "is being mapped to multiple" ones and stops
# (tensorflow issue 19083; without two GPUs the cell cannot show it). So the graphs above are
# placed with `tf.device`, and the sessions see all devices.
#
# `devices=1` says that one of them works at a time in a session. In `cores` mode that is one
# thread, and each session has its own:

# %%
def start(scope, graph):
    config = plan.session_config(devices=1, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run(f"{scope}/init")
    return session


# %% [markdown]
# One step of each. `keep` is the share of units that dropout keeps:

# %%
sessions = {scope: start(scope, graph) for scope, graph in graphs.items()}
images, labels = digits.load(1024)
test_images, test_labels = digits.load(test=True)
batches = list(digits.batches(images, labels, 128))


# %%
def step(scope, x, y):
    feed = {f"{scope}/input:0": x, f"{scope}/label:0": y, f"{scope}/keep:0": 0.8}
    return sessions[scope].run([f"{scope}/cross_entropy:0", f"{scope}/train_step"], feed)[0]


for scope in sessions:
    print(f"{scope} loss {step(scope, images[:128], labels[:128]):.1f}")

# %% [markdown]
# ## At once
#
# The article trains one graph and then the other. While one session runs, the other's device has
# nothing to do (with a single device, both share it). A thread for each session changes that:

# %%
def train(scope):
    for x, y in batches:
        step(scope, x, y)


def in_turn():
    for scope in sessions:
        train(scope)


def at_once():
    threads = [threading.Thread(target=train, args=[scope]) for scope in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


timing.compare(in_turn, at_once, repeats=10, names=("in turn", "at once"))

# %% [markdown]
# Python runs one thread at a time, but `Session.run` releases Python's lock while it computes.
# With a core for each, two sessions compute in parallel.
#
# `ensemble.train` does the same, and keeps losses and times. A **member** is a step and a
# prediction; `ensemble.from_session` makes one from a session and a scope:

# %%
members = [
    ensemble.from_session(session, scope, feed={"keep": 0.8}) for scope, session in sessions.items()
]
runs = {
    "in turn": ensemble.train(members, batches * 2, at_once=False),
    "at once": ensemble.train(members, batches * 2),
}
for name, run in runs.items():
    print(name, {scope: len(losses) for scope, losses in run.losses.items()})

# %% [markdown]
# Sixteen steps each, twice. Each bar of the chart is one step:

# %% tags=["varies", "cover"]
for name, run in runs.items():
    ax = charts.spans(run.spans, homes)
    ax.set(xlim=(0, 1.02 * runs["in turn"].wall))
    ax.set_title(name, loc="left")
    plt.show()

# %% [markdown]
# In turn, one row is empty while the other works. At once, both are full.
#
# What does a thread **not** inherit? The default graph, and the `tf.device` block of the thread
# that starts it:

# %% tags=["unplaced"]
def look(who):
    print(who, "puts a tensor on", devices.short(tf.ones([]).device) or "no device, in a graph")


with tf.device(plan.devices[-1]):
    look("this thread")
    thread = threading.Thread(target=look, args=["the other thread"])
    thread.start()
    thread.join()

# %% [markdown]
# So a thread names its session and what it fetches, and needs no default.
#
# ## Proof
#
# Training at once must give what training in turn gives. Two new pairs of sessions, the same
# weights at the start, the same batches and the same dropout:

# %%
def learned(at_once):
    pair = [ensemble.from_session(start(s, g), s, feed={"keep": 0.8}) for s, g in graphs.items()]
    ensemble.train(pair, batches * 3, at_once=at_once)
    return [value for m in pair for value in m.session.run(list(m.variables.values()))]


turn, once = learned(False), learned(True)
print("equal to 1e-2:    ", all(np.allclose(a, b, atol=1e-2) for a, b in zip(turn, once)))
print("equal bit for bit:", "yes" if all(map(np.array_equal, turn, once)) else "no")

# %% [markdown]
# In `cores` mode weights, the slots of Adam and the counters of steps are equal to the last bit:
# each session computes with one thread, so it adds in one order. Some kernels of a GPU add in the
# order in which their threads come, so there two runs differ by rounding, even in turn.
#
# ## More graphs than devices
#
# With two devices a third member finds none of its own, and shares the first. What do the devices
# hold?

# %%
homes["g3"] = plan.devices[2 % len(plan)]
graphs["g3"] = build("g3", 1200, homes["g3"])
sessions["g3"] = start("g3", graphs["g3"])

# %% tags=["varies"]
peaks = dict.fromkeys(plan.devices, 0)
for scope, session in sessions.items():
    feed = {f"{scope}/input:0": images[:128], f"{scope}/label:0": labels[:128]}
    train_step = graphs[scope].get_operation_by_name(f"{scope}/train_step")
    session.run(train_step, feed)  # the first run prepares the graph
    _, traced = trace.session_step(session, train_step, feed)
    peaks[homes[scope]] += traced.peak(homes[scope], scratch=False)
charts.device_bars(peaks).set_title("The peaks of all members' steps, added up", loc="left")
plt.show()

# %% [markdown]
# A device holds that much if its members peak at the same moment. Weights and slots are not in a
# trace; lesson 02 counts them, and what `scratch=False` leaves out.
#
# ## Vote
#
# Three new members train for sixteen passes. Instead of a list, `ensemble.train` takes a function
# that gives the batches of the first, second and third member, so that each has an order of its
# own. Then they predict digits that none has seen:

# %%
def own_batches(place):
    for epoch in range(16):
        yield from digits.batches(images, labels, 128, seed=100 * place + epoch)


members = [ensemble.from_session(start(s, g), s, feed={"keep": 0.8}) for s, g in graphs.items()]
ensemble.train(members, own_batches)
predicted = ensemble.predictions(members, test_images)
print({name: array.shape for name, array in predicted.items()})

# %% [markdown]
# Each member gives 360 digits ten probabilities. There are two ways to join them. In a **vote**
# each member has one voice, for its likeliest digit. Or the probabilities are **averaged**, and a
# member that is sure counts for more. The accuracy of each:

# %% tags=["varies"]
answers = {name: array.argmax(axis=1) for name, array in predicted.items()}
answers |= {"vote": ensemble.vote(predicted), "average": ensemble.mean(predicted)}
accuracy = {name: np.mean(answer == test_labels) for name, answer in answers.items()}
members_accuracy = np.mean([accuracy[name] for name in predicted])
for name in ("vote", "average"):
    print(f"{name:8} at least as good as a member on average:", accuracy[name] >= members_accuracy)
drawings.accuracies(accuracy)
plt.show()

# %% [markdown]
# Where do they disagree? These are the first digits that the vote got right and at least one
# member did not. Above each is what g1, g2 and g3 said:

# %% tags=["varies"]
said = np.stack([answers[name] for name in predicted])
saved = np.flatnonzero((answers["vote"] == test_labels) & (said != test_labels).any(axis=0))[:6]
drawings.digits(test_images[saved], [" ".join(map(str, said[:, i])) for i in saved])
plt.show()

# %% [markdown]
# Where one member errs, the two others outvote it. Where all three say the same wrong digit, no
# vote helps. The members differ in their layers, their weights at the start, and the order of
# their batches.
#
# ## The same today
#
# A model is a set of variables and a `tf.function` for its step. The block of the device stands
# inside, because a thread brings none. The two start from the weights of `g1` and `g2`:

# %%
def make_today(hidden, device):
    network = networks.jang(hidden=hidden, width=0.125)
    weights = networks.variables(network, device=device, seed=hidden)
    values = list(weights.values())
    with tf.device(device):
        optimizer = tf.keras.optimizers.Adam(1e-3, epsilon=1e-8)
        optimizer.build(values)

    @tf.function
    def step(x, y):
        with tf.device(device):
            with tf.GradientTape() as tape:
                loss = networks.loss(networks.logits(network, weights, x), y)
            optimizer.apply_gradients(zip(tape.gradient(loss, values), values))
        return loss

    return step


# %%
def losses_today():
    steps = [make_today(2400, plan.devices[0]), make_today(4800, plan.devices[-1])]
    # No prediction and no variables to save are needed here.
    pair = [ensemble.from_functions(f"today {i}", step, None, []) for i, step in enumerate(steps)]
    return list(ensemble.train(pair, batches).losses.values())


def losses_classic():
    pair = [ensemble.from_session(start(s, graphs[s]), s) for s in ("g1", "g2")]
    return list(ensemble.train(pair, batches).losses.values())


threads_today = losses_today()
agree = np.allclose(threads_today, losses_classic(), rtol=1e-3)
print("classic and today's losses agree to 0.1 %:", agree)

# %% [markdown]
# Instead of threads, one `tf.function` may hold all steps. They do not depend on each other, so
# TensorFlow may run them in parallel. Are its losses those of the threads, to 0.1 %?

# %%
steps = [make_today(2400, plan.devices[0]), make_today(4800, plan.devices[-1])]


@tf.function
def step_all(x, y):
    return [step(x, y) for step in steps]


np.allclose(threads_today, np.transpose([step_all(x, y) for x, y in batches]), rtol=1e-3)

# %% [markdown]
# One function returns when its slowest member is done; threads do not wait for each other.
#
# ## Break it
#
# **A loop that trains nothing.** The article's loop fetches `cross_entropy` and never
# `train_step`. It runs, and it gives a loss. Count the variables that moved:

# %%
def moved(scope, fetches):
    session = start(scope, graphs[scope])
    names = [v.name for v in graphs[scope].get_collection("trainable_variables")]
    reads = [name.replace(":0", "/Read/ReadVariableOp:0") for name in names]
    before = session.run(reads)
    for x, y in batches:
        session.run(fetches, {f"{scope}/input:0": x, f"{scope}/label:0": y})
    count = sum(not np.array_equal(a, b) for a, b in zip(before, session.run(reads)))
    return f"{count} of {len(before)} variables moved"


print("fetching the loss: ", moved("g1", ["g1/cross_entropy:0"]))
print("fetching both:     ", moved("g1", ["g1/cross_entropy:0", "g1/train_step"]))

# %% [markdown]
# A graph does what is fetched, and nothing else. `ensemble.from_session` fetches both. The check is
# worth having in any training: after the first step, something must have moved. (A variable's
# value has the name of the variable with `/Read/ReadVariableOp` behind it.)
#
# **One iterator for two members.** Batches that come from one generator are dealt out, a batch to
# whoever asks:

# %%
shared, seen = digits.batches(images, labels, 128), {"g1": 0, "g2": 0}
for scope in ["g1", "g2"] * 4:
    next(shared)
    seen[scope] += 1
print(seen, "of", len(batches), "batches; left:", len(list(shared)))

# %% [markdown]
# Each member saw half of the batches. `ensemble.train` makes a list of an iterator, so that all
# members see all of it. Two members that are given one iterator by a function are refused:

# %%
shared = digits.batches(images, labels, 128)
try:
    ensemble.train(members, lambda place: shared)
except ValueError as error:
    print(error)

# %% [markdown]
# **An error in one member.** The third batch of `g2` has lost a row of each image. The others end
# the step they are in, and the run so far is kept:

# %%
def third_is_wrong(place):
    for i, (x, y) in enumerate(batches):
        yield x[:, 1:] if (place, i) == (1, 2) else x, y


try:
    ensemble.train(members, third_is_wrong)
except ensemble.MemberError as error:
    print(error.name, "failed in step", error.step, "after", len(error.run.losses["g2"]), "losses")

# %% [markdown]
# **A wrong label.** Labels 0 to 9 exist, and one batch holds 10s. On the CPU the loss raises an
# error. On a GPU it does not, because a kernel cannot raise: the loss becomes NaN, the step writes
# NaN into every weight, and the training goes on without a word. So check the loss as well. This
# cell catches the error of the CPU and the NaN of the GPU:

# %%
x, y = batches[0]
try:
    assert np.isfinite(step("g1", x, y + 1)), "the loss is not a number"  # each 9 is a 10 now
except (tf.errors.InvalidArgumentError, AssertionError):
    print("caught")

# %% [markdown]
# On a CPU TensorFlow raises the error, and on a GPU the assertion does. Where the loss comes as a
# number in every step, as it does here, the check costs nothing.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `trains(session, fetches, feed)`: run the fetches once and say, True or False,
# whether any trainable variable of the session's graph has another value than before.

# %% tags=["exercise"]
def trains(session, fetches, feed):
    session.run(fetches, feed)
    return True


checks.trains(trains)

# %% tags=["solution"]
def trains(session, fetches, feed):
    names = [v.name for v in session.graph.get_collection("trainable_variables")]
    reads = [name.replace(":0", "/Read/ReadVariableOp:0") for name in names]
    before = session.run(reads)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(reads)))


checks.trains(trains)

# %% [markdown]
# **2.** Sometimes no answer is better than a wrong one. Write `agreed(predicted)`, which takes the
# members' probabilities, as `predicted` above, and gives for each digit the label if all members
# say the same, and -1 if they do not.

# %% tags=["exercise"]
def agreed(predicted):
    return ensemble.vote(predicted)


checks.agreed(agreed)

# %% tags=["solution"]
def agreed(predicted):
    said = np.stack([array.argmax(axis=1) for array in predicted.values()])
    return np.where((said == said[0]).all(axis=0), said[0], -1)


checks.agreed(agreed)

# %% [markdown]
# **3.** Write `run_all(functions)`: call all functions at once, each in a thread of its own, and
# give their results in the order of the functions.

# %% tags=["exercise"]
def run_all(functions):
    return [function() for function in functions]


checks.run_all(run_all)

# %% tags=["solution"]
def run_all(functions):
    results = [None] * len(functions)

    def call(i):
        results[i] = functions[i]()

    threads = [threading.Thread(target=call, args=[i]) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


checks.run_all(run_all)

# %% [markdown]
# ## What we saw
#
# - Graphs with the same names under scopes of their own were trained by one loop.
# - Trained at once, each session in a thread of its own, they learned what they learned in turn: to
#   1e-2, and in `cores` mode to the last bit.
# - A loop that fetched the loss alone moved no weight.
# - Today's code gave the same losses to 0.1 %, with a thread for each model and in one function.
# - The vote and the averaged probabilities were at least as good as the average member.
#
# ## In practice
#
# - When members differ in their data, their libraries or their owners, give each a process of its
#   own ([[04]]). A crash then ends one of them, and nothing in Python is shared.
# - Save members often: `ensemble.save` and `ensemble.resume` keep weights, slots and counters, one
#   file for each member. After an error in one, the others can be saved.
# - Members that differ more err on more different digits. Other seeds are the cheapest difference;
#   other networks and other parts of the data give more.
# - A thread for each, one graph that holds all, or a process for each? `benchmarks/ensemble.py`
#   tells on your machine. On the two cores of its card (`results/ensemble.json`) one graph was 1.8
#   times as fast as in turn, the others 1.6 and 1.7. Separate graphs are easier to change one by
#   one.
# - An ensemble of n costs n times the memory and the time of one when it predicts.
# - The digits are those that come with this project; the article's are those of MNIST.
#
# Next: [[next]].
