# %% [markdown]
# # Compile what each device does
#
# On one GPU, Keras compiles your training step with **XLA**, TensorFlow's compiler. On several,
# Keras and `tf.distribute` leave XLA out, and this can cost as much as the second GPU gains. Our
# `fit` compiles on several devices, too:
#
# ```python
# with fit.strategy(plan).scope():
#     model = build()
#     model.compile("adam", loss, jit_compile=True)  # on GPUs this is the default
# model.fit(x, y)
# ```
#
# So does `fit.use(model, plan)`. A GPU runs operations as **kernels**. A small kernel often takes
# longer to start than to run, and XLA joins many into one. Here is a step of MobileNetV2 on an H200
# whose halves stand for two GPUs:
#
# | two halves of the GPU | kernels | time |
# |---|--:|--:|
# | `MirroredStrategy`, without XLA | 11,578 | 97 ms |
# | `fit.strategy(plan, synchronized=False)`, with XLA | 2,059 | 47 ms |
#
# XLA saves half of the time, as much as a second GPU saves at best. The times are
# [rough](../docs/first_ten_minutes_on_a_gpu.md#14-compiled-layouts-on-an-h200), and nobody has
# measured this on two real GPUs.
#
# **In this lesson** you build a compiled step by hand, prove that it trains as one device does, and
# see what XLA makes faster. All that a device does between two **exchanges**, such as that of the
# gradients, becomes one function:
#
# ![Each device runs two compiled functions; between these, gradients cross, and the first device
# adds them up.](pictures/08_functions.svg)
#
# **You need** [[01]] and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import re
import warnings
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, timing, towers
from mgpu_helpers.lessons import compiled, digits
from mgpu_helpers.lessons.checks import lesson_08 as checks
from mgpu_helpers.lessons.state import apart

# %% [markdown]
# ## Count the functions
#
# The network has seven dense layers. It computes in float64, where rounding cannot hide a mistake,
# and gets all 64 images in one batch, so an epoch is one step:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")  # before the loss is made, which has a type, too
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images, labels = digits.load(64)
x, y = images.reshape(64, 784).astype("float64"), labels
train = {"batch_size": 64, "epochs": 3, "shuffle": False, "verbose": 0}


def build(optimizer="adam", **how):
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(128, "relu") for _ in range(6)]
    model = keras.Sequential([keras.Input([784]), *hidden, keras.layers.Dense(10)])
    model.compile(optimizer, entropy, **how)
    return model


# %% [markdown]
# `compiled.functions` trains the model, and lists what `fit` has compiled, in the order of a step:

# %%
with fit.strategy(plan).scope():
    by_fit = build(jit_compile=True)
found, others = compiled.functions(by_fit, x, y, **train)
for device, operations in found:
    print(f"{device}: {operations} operations became one function")
print(f"in all: {sum(n for _, n in found)} became {len(found)}, and {others} stayed as they were")

# %% [markdown]
# The first two functions return the gradients of each device's share of the batch. The third
# belongs to the exchange: the first device adds up 14 gradients. The last two update each device's
# weights with Adam. Two operations on single numbers are not compiled.
#
# ## Build it by hand
#
# XLA refuses a function that uses variables of another device, and our model has all its variables
# on the first one. So we write **pure functions**, which use no variables: the weights go in as
# arguments, and what changes comes out as results. Keras's `stateless_call` takes a model's weights
# as an argument, and also its variables that are not trained, here none. `update` is SGD with
# momentum, which is shorter than Adam:

# %%
first = plan.devices[0]
with tf.device(first):
    model = build()
begin = model.get_weights()


def gradients(weights, x, y):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, _ = model.stateless_call(weights, [], x)
        loss = entropy(y, outputs)
    return tape.gradient(loss, weights)


def update(weights, moves, means):
    moves = [0.5 * move - 0.125 * mean for move, mean in zip(moves, means)]
    return [weight + move for weight, move in zip(weights, moves)], moves


# %% [markdown]
# `stepper` makes a step of these functions, and the weights and momentum of each device. `jit` says
# whether XLA compiles:

# %%
def put(variable, value):
    variable.assign(value)


def stepper(jit):
    compute, change = [tf.function(each, jit_compile=jit) for each in (gradients, update)]
    state = {}
    for device in plan.devices:
        with tf.device(device):
            state[device] = [[tf.Variable(a) for a in begin], [tf.Variable(0 * a) for a in begin]]

    @tf.function
    def step(x, y):
        found = []  # 1. each device computes the gradients of its share
        for device, shard in zip(plan.devices, towers.split((x, y), len(plan))):
            with tf.device(device):
                found.append(compute(state[device][0], *shard))
        with tf.device(plan.host):  # 2. the host averages them, weight by weight
            means = [tf.add_n(column) / len(plan) for column in zip(*found)]
        for device in plan.devices:  # 3. each device changes its weights and momentum
            with tf.device(device):
                tf.nest.map_structure(put, state[device], list(change(*state[device], means)))

    return step, state


# %%
step, state = stepper(jit=True)
for _ in range(3):
    step(x, y)
by_hand = [weight.numpy() for weight in state[plan.devices[-1]][0]]

# %% [markdown]
# ## Proof
#
# The weights have to be those of plain Keras on one device, without XLA. We compare them after
# three steps with Adam by `fit`, and after three with momentum by hand:

# %%
def on_one(optimizer):
    with tf.device(first):
        model = build(optimizer, run_eagerly=True)
        model.fit(x, y, **train)
    return model.get_weights()


momentum = keras.optimizers.SGD(0.125, momentum=0.5)
print("fit differs by less than 1e-12:", apart(by_fit.get_weights(), on_one("adam")) < 1e-12)
print("by hand differs by less than 1e-12:", apart(by_hand, on_one(momentum)) < 1e-12)

# %% [markdown]
# ## Count what a device starts
#
# We trace the step by hand without XLA and with it. `compiled.started` counts the operations that a
# device starts, but for those that read and write variables. A compiled function counts as one:

# %%
plain, _ = stepper(jit=False)
traces = {"Without XLA": compiled.traced(plain, x, y), "With XLA": compiled.traced(step, x, y)}
for name, traced in traces.items():
    print(f"{name}: {compiled.started(traced)}")

# %% tags=["varies", "cover"]
compiled.draw(traces, "gradients", "update")
plt.show()

# %% [markdown]
# Without XLA, each device starts 108 operations, mostly so short that they are thin lines. With XLA
# it starts two, the wide boxes.
#
# ## What XLA fuses
#
# Without XLA, each operation writes its result to memory, and the next one reads it. XLA **fuses**
# neighbours into one loop, which reads its inputs once and writes its result once. We try this on
# Adam's update of a weight, which has twelve operations, and on a matrix product:

# %%
def adam(weight, mean, square, gradient):
    mean += 0.1 * (gradient - mean)
    square += 0.001 * (gradient * gradient - square)
    return weight - 0.001 * mean / (tf.sqrt(square) + 1e-7), mean, square

# %%
def product(rows, matrix):
    return rows @ matrix


numbers = np.random.default_rng(0).uniform(1, 2, [2048, 2048]).astype("float32")
both = {adam: [numbers] * 4, product: [numbers[:128], numbers]}

# %% [markdown]
# `compiled.kernels` lists what a compiled function runs:

# %% tags=["nbval-ignore-output"]
with tf.device(first):
    print("gradients:", compiled.kernels(gradients, begin, x[:32], labels[:32]))
    print("update:   ", compiled.kernels(update, begin, begin, begin))
    for function, given in both.items():
        print(f"{function.__name__ + ':':10}", compiled.kernels(function, *given))

# %% [markdown]
# A `dot` is a matrix product, and a `fusion` is a fused loop. `gradients` still has 20 products.
# Adam's twelve operations became three loops, one for each result. Which of `adam` and `product`
# does XLA make faster on one core?

# %%
for function, given in both.items():
    plain, fused = (tf.function(function, jit_compile=jit) for jit in (False, True))
    with tf.device(first):
        given = [tf.constant(each) for each in given]
        ways = (lambda: fused(*given)[0].numpy()), (lambda: plain(*given)[0].numpy())
        names = f"{function.__name__} with XLA", "without"
        print(timing.compare(*ways, repeats=9, names=names))

# %% [markdown]
# `adam` is faster, because three loops go through memory less often than twelve operations. A
# product stays a product. So XLA gains where a step has much to do between its products.
#
# ## Break it
#
# `centre` subtracts from each row its median, which NumPy computes. XLA cannot compile NumPy: will
# it compile the rest, or refuse the whole function? And what does `fit` do with a layer that calls
# `centre`? Write down what you expect.

# %%
def centre(x):
    medians = tf.numpy_function(partial(np.median, axis=1), [tf.stop_gradient(x)], tf.float64)
    return x - tf.reshape(medians, [-1, 1])


try:
    with tf.device(first):
        tf.function(centre, jit_compile=True)(x)
except tf.errors.InvalidArgumentError as error:
    print(*re.findall(r"Detected unsupported operations|No registered '\w+' OpKernel", str(error)))

# %%
with fit.strategy(plan).scope():
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Lambda(centre, name="centre")]
    odd = keras.Sequential([keras.Input([784]), *layers, keras.layers.Dense(10)], name="odd")
    odd.compile("sgd", entropy, jit_compile=True)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found, others = compiled.functions(odd, x, y, **train)
print(f"operations outside of the compiled functions: {others}")
print(*(each.message for each in said))

# %% [markdown]
# XLA refuses the whole function, because it has no `PyFunc`, the operation that `numpy_function`
# makes. `fit` compiles the rest and runs `PyFunc` on each device, which makes two operations more
# than before. On a GPU, NumPy's data goes to the host and back, so use TensorFlow's own operations
# in such a layer.
#
# | | |
# |---|---|
# | **Use it when** | a step has many small operations, as in normalization and Adam |
# | **It costs** | time to compile, minutes for MobileNetV2, and again for each batch size |
# | **Instead** | `jit_compile=False` while you debug, or if your batches have many lengths |
#
# ## On GPUs
#
# By default, each BatchNormalization of `fit.strategy` uses the whole batch, which needs an
# exchange forward and one back. In MobileNetV2, 52 of them cut the step into 212 functions. With
# `synchronized=False`, each uses only the images of its device, as in both lines of the table
# above.
#
# ## On your own
#
# ### Exercise 1
#
# Texts in a batch are padded to one length, and the loss leaves the padding out. The stub does this
# with NumPy. Write `word_loss(losses, is_word)` so that XLA compiles it. It returns the mean of all
# `losses` for which `is_word` is True, and 0 if there is none. Both are tensors of one shape.

# %% tags=["exercise"]
def word_loss(losses, is_word):
    def mean(losses, is_word):
        return losses[is_word].mean()

    return tf.numpy_function(mean, [losses, is_word], losses.dtype)


checks.word_loss(word_loss)

# %% tags=["solution"]
def word_loss(losses, is_word):
    counts = tf.cast(is_word, losses.dtype)
    return tf.reduce_sum(losses * counts) / tf.maximum(tf.reduce_sum(counts), 1)


checks.word_loss(word_loss)

# %% [markdown]
# ### Exercise 2
#
# XLA compiles again for each new size of a device's share. `fit.strategy` cuts a batch into shares
# that differ by at most one example: 35 examples on 4 devices become 9, 9, 9 and 8. An epoch has
# batches of `batch` examples, and the last one has what is left, never fewer than there are
# devices. Write `sizes(examples, batch, devices)`, which returns how many different sizes the
# shares of an epoch have.

# %% tags=["exercise"]
def sizes(examples, batch, devices):
    return 1


checks.sizes(sizes)

# %% tags=["solution"]
def sizes(examples, batch, devices):
    batches = {min(batch, examples), examples % batch} - {0}
    return len({n // devices for n in batches} | {-(-n // devices) for n in batches})


checks.sizes(sizes)

# %% [markdown]
# ## What we saw
#
# - With `fit`, 891 operations became 5 compiled functions. By hand, 108 on a device became 2.
# - After three steps the weights differed by less than 1e-12 from those of one device.
# - On one core, Adam's update was faster with XLA, and a matrix product was not.
# - XLA refused a function that asks NumPy, and `fit` ran that operation by itself.
#
# ## In practice
#
# On GPUs leave `jit_compile` out, and give all batches one size.
#
# Next: [[next]].
