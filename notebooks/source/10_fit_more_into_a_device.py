# %% [markdown]
# # Fit more into a device
#
# Your model trains with a batch of 64, but a batch of 256 ends with the error "out of memory".
#
# **In this lesson** one line makes a step hold much less, and you count whether it then computes
# more:
#
# | the line to paste | what it does | our step holds |
# |---|---|---|
# | `fit.use(model, pieces=4)` | takes the batch in four **pieces**, updates once | about 30 % |
# | `fit.use(model, recompute=True)` | computes activations twice, keeps few | about 30 % |
# | `keras.config.set_dtype_policy("mixed_bfloat16")` | halves activations | about two thirds |
#
# The three are called **accumulation**, **recomputation** or gradient checkpointing, and **mixed
# precision**. Pieces are also called micro-batches.
#
# `fit.use` takes a compiled model. The third line has to come before the model is built.
#
# **You need** [[03]] and [[09]].

# %%
from mgpu_helpers import devices

plan = devices.setup(1, exact=True)
plan

# %%
import keras
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, graph, memory, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_10 as checks

device, layers = plan.devices[0], keras.layers
normal = keras.initializers.RandomNormal
x, y = digits.load(1024)

# %% [markdown]
# ## What a step holds
#
# Our network has ten residual blocks. Each block turns 64 numbers into 256, and these into 64:

# %%
def build(policy="float32"):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")  # for the proof
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.device(device):
        given = keras.Input([28, 28, 1])
        hidden = layers.Dense(64)(layers.Flatten()(given))
        for _ in range(10):
            wide = layers.Dense(256, "relu")(hidden)
            narrow = layers.Dense(64, kernel_initializer=normal(stddev=0.02))(wide)
            hidden = layers.Add()([hidden, narrow])
        scores = layers.Dense(10, dtype=keras.config.floatx())(hidden)  # float32 for the loss
        model = keras.Model(given, scores, name="ten_blocks")
        model.compile(keras.optimizers.SGD(0.05), entropy, jit_compile=False)
    return model

# %%
models = {"as it is": build()}
models["accumulated"] = fit.use(build(), pieces=4)
models["recomputed"] = fit.use(build(), recompute=True)
models["in bfloat16"] = build("mixed_bfloat16")

# %% [markdown]
# Each curve shows what a step of 1024 digits adds to batch and weights on the device:

# %% tags=["varies", "cover"]
with tf.device(device):
    steps = {name: trace.fit_step(model, (x, y)) for name, model in models.items()}
drawings.hills(steps, device)

# %% [markdown]
# As it is, the curve climbs in the forward pass, which keeps **activations** for the backward pass.
# It climbs on in the backward pass, because gradients come on top and TensorFlow frees many
# activations late.
#
# - Accumulated, each piece makes a hill. Between two hills only the sum of gradients is kept.
# - Recomputed, the network is in four parts, and each makes a hill. Hill 1 is the last part, where
#   the backward pass begins. The three others run forward a second time before they run backward.
# - In bfloat16 activations are half as large. The weights stay in float32, and copies of them and
#   of the batch are added.
#
# Assume that 10 MB are free for the weights and what a step adds. Which step fits, and does it
# compute more? `graph.flops` counts the additions and multiplications of matrix products:

# %%
weights = 4 * models["as it is"].count_params()
forward = graph.flops(models["as it is"], batch=1024)
for name, step in steps.items():
    computed = graph.flops(models[name].train_step, (x, y)) / forward
    print(f"{name:12} fits into 10 MB: {step.peak(device) + weights <= 10e6!s:6}",
          f"computes {computed:.2f} forward passes")  # fmt: skip

# %% [markdown]
# A backward pass computes twice as much as a forward pass, less the gradient of the images, so a
# step computes nearly three forward passes. Only recomputation computes more, by 0.61 of a forward
# pass.
#
# ## Ask before you run
#
# Call `memory.plan` before `fit.use`: it estimates all this without running a step. What a step
# holds depends on the order of its operations, so there is a range in brackets. "Perhaps" means
# that the step fits in only some of these orders. `work` is what it computes, relative to the step
# as it is:

# %% tags=["nbval-ignore-output"]
memory.plan(models["as it is"], batch=1024, budget=10e6)

# %% [markdown]
# The plan says six pieces, because these fit in any order. Four were enough above, in the order
# that TensorFlow took.
#
# | | accumulation | recomputation | precision |
# |---|---|---|---|
# | **Use it when** | a smaller batch fits | pieces are slow or do not fit | fewer digits suffice |
# | **It costs** | smaller products | up to one more forward pass | 7 digits become 2 or 3 |
#
# If a step holds mostly weights and their gradients, none of the three helps. Then read [[11]] or
# [[12]].
#
# ## Recomputation by hand
#
# The backward pass of a block needs the 64 numbers that came in and the 256 in between. If we keep
# the 64, we can compute the 256 again:
#
# ![As it is, the 64 and the 256 numbers of three blocks are kept; recomputed, the 256 only of the
# block that runs backward.](pictures/10_kept_and_again.svg)
#
# A function under `tf.custom_gradient` returns its result and a function for the backward pass,
# which takes `dy`, the gradient of the result. Ours runs the block again:

# %%
def recomputed(block, wait=True):
    @tf.custom_gradient
    def run(x, *weights):
        def gradient(dy):
            with tf.control_dependencies([dy] if wait else []):
                again = tf.identity(x)
            with tf.GradientTape() as tape:
                tape.watch([again, *weights])
                y = block(again, *weights)
            return tape.gradient(y, [again, *weights], dy)

        return block(x, *weights), gradient

    return run

# %% [markdown]
# With `wait`, the second run begins only when `dy` is there. Write down what you expect: what is
# the peak without it? We take ten blocks without Keras:

# %%
random = np.random.default_rng(0)
with tf.device(device):
    kernels = [tf.Variable(random.normal(0, 0.1, side)) for side in [[64, 256], [256, 64]] * 10]


def block(x, wide, back):
    return x + tf.nn.relu(x @ wide) @ back

# %%
def slopes(called):
    def gradients(x):
        with tf.device(device), tf.GradientTape() as tape:
            for wide, back in zip(kernels[::2], kernels[1::2]):
                x = called(x, tf.convert_to_tensor(wide), tf.convert_to_tensor(back))
            return tape.gradient(tf.reduce_mean(tf.square(x)), kernels)

    return gradients

# %%
numbers = tf.constant(random.normal(size=[1024, 64]))
ways = {"as it is": block, "recomputed": recomputed(block),
        "without wait": recomputed(block, wait=False)}  # fmt: skip
made = {name: trace.function_step(slopes(way), numbers)[1] for name, way in ways.items()}
for name, step in made.items():
    products = sum("MatMul" in op.type for op in step.ops)
    share = step.peak(device) / made["as it is"].peak(device)
    print(f"{name:12} {products} products, peak {share:.1f} of the step as it is")

# %% [markdown]
# One product of each block runs a second time. Without `wait` nothing is saved, and no error says
# so: TensorFlow finds that both runs compute the same and keeps the first.
#
# `recompute=True` takes several blocks as one part. Fewer inputs are kept then, but a larger part
# holds more while it runs. About √n parts are best for n blocks ([Chen,
# 2016](../docs/sources.md#sublinear)).
#
# ## Proof
#
# The gradients of the pieces, each weighted by its share of the examples, add up to the gradient of
# the batch, and recomputation computes the same numbers again. So both should give the weights of
# plain training. We train two steps in float64, where rounding hides no mistake:

# %%
def trained(model):
    with tf.device(device):
        model.fit(x[:512], y[:512], batch_size=256, shuffle=False, verbose=0)
    return model.get_weights()


plain = trained(build("float64"))
for name, options in {"accumulated": {"pieces": 4}, "recomputed": {"recompute": True}}.items():
    ours = trained(fit.use(build("float64"), **options))
    apart = max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(ours, plain))
    print(f"{name:11} equal to 1e-12: {apart < 1e-12}")

# %% [markdown]
# ## Break it
#
# Dropout here sets each number to 0 with a chance of one half, and doubles the others. What does
# `recomputed` make of it?

# %%
tf.random.set_seed(1)
ones = tf.Variable(tf.ones(10))
with tf.GradientTape() as tape:
    dropped = recomputed(lambda x: tf.nn.dropout(x, 0.5))(tf.convert_to_tensor(ones))
print("result  ", *dropped.numpy().astype(int))
print("gradient", *tape.gradient(dropped, ones).numpy().astype(int))

# %% [markdown]
# The gradient should be 2 at the same places as the result, but the second run silently drew
# another mask. `fit.use` gives both runs of a Keras layer the same seeds.
#
# ## On GPUs
#
# > `mixed_bfloat16` also makes large products faster on GPUs from Ampere on, such as A100 and RTX
# > 30. On V100 and T4 `mixed_float16` does so. In float16 small gradients become 0, so Keras
# > scales the loss ([Micikevicius, 2017](../docs/sources.md#mixed)).
#
# ## On your own
#
# ### Exercise 1
#
# Write `fewest(batch, room, fixed, added, example)`: the smallest number of pieces with which a
# step fits into `room` bytes, or 0 if none does. The pieces are as equal as whole examples allow. A
# step holds
#
# - `fixed` bytes in any case,
# - `example` bytes for each example of the largest piece,
# - `added` bytes for the sum of gradients, if there are two or more pieces.

# %% tags=["exercise"]
def fewest(batch, room, fixed, added, example):
    return batch * example // (room - fixed)


checks.fewest(fewest)

# %% tags=["solution"]
def fewest(batch, room, fixed, added, example):
    def held(pieces):
        return fixed + (added if pieces > 1 else 0) + -(-batch // pieces) * example

    return next((pieces for pieces in range(1, batch + 1) if held(pieces) <= room), 0)


checks.fewest(fewest)

# %% [markdown]
# ### Exercise 2
#
# Write `drop(x, seed)`, a dropout that may run twice. It keeps about half of the numbers, doubled,
# and draws for each number on its own. `seed` holds two whole numbers. The same seed gives the same
# mask, and another seed another mask. Look for `stateless` in `tf.random`.

# %% tags=["exercise"]
def drop(x, seed):
    return tf.nn.dropout(x, 0.5)


checks.drop(drop)

# %% tags=["solution"]
def drop(x, seed):
    kept = tf.random.stateless_uniform(tf.shape(x), seed) < 0.5
    return tf.where(kept, 2 * x, tf.zeros_like(x))


checks.drop(drop)

# %% [markdown]
# ## What we saw
#
# - In four pieces, or recomputed, a step fitted into 10 MB; as it is, and in bfloat16, it did not.
# - A step computed 2.87 forward passes, and 3.48 when recomputed.
# - In pieces and recomputed, the weights after training were equal to 1e-12.
#
# ## Compared with other ways
#
# Pieces and recomputation do not change what the device keeps, and more than halve what is added:
#
# [[ways: 00]]
#
# ## In practice
#
# Take bfloat16 first, if your metric allows it. If that is not enough, take pieces, and if even one
# piece is too large, recompute it: `fit.use(model, pieces=4, recompute=True)`.
#
# Next: [[next]].
