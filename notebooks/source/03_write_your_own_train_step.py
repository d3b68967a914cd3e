# %% [markdown]
# # Write your own train step
#
# You have a Keras model with a `train_step` of your own, and two GPUs. TensorFlow's
# `MirroredStrategy` adds up the gradients of both, even if your loss is a mean. So the model may
# learn something else than on one GPU, and no error says so.
#
# **In this lesson** `fit.strategy` trains a GAN on two devices to the weights of one, and refuses a
# loss that compares the examples of a batch. You learn how to tell `fit` what a loss of yours is.
#
# ![The first device has three examples with a mean of 2, the second has one with 10. They count by
# three quarters and one quarter, which gives 4.](pictures/03_shares.svg)
#
# Each device has a copy of the model, its **replica**, and runs your step on its part of the batch.
# There, a device's mean has to be multiplied by its share of the examples, as in the picture.
# `fit.strategy` does that, and your step stays as it is:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()
# with fit.strategy(plan).scope():
#     gan = build()  # makes the networks, the optimizers and the model, and compiles it
# gan.fit(images, noise)
# ```
#
# **You need** [[01]], and the `train_step` of a Keras model.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import textwrap
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_03 as checks
from mgpu_helpers.lessons.state import apart

layers = keras.layers

# %% [markdown]
# ## A GAN on both devices
#
# A **generator** makes images out of noise. A **discriminator** gives each image a score, which is
# high if it takes the image for a real one. `softplus(-score)` is small if the score is high:

# %%
class GAN(keras.Model):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.g_optimizer, self.d_optimizer = map(keras.optimizers.Adam, (1e-3, 1e-4))

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            of_fake = self.discriminator(self.generator(noise))
            of_real = self.discriminator(real)
            d_loss = tf.reduce_mean(tf.nn.softplus(of_fake) + tf.nn.softplus(-of_real))
        self.update(tape, d_loss, self.discriminator, self.d_optimizer)
        with tf.GradientTape() as tape:
            of_fake = self.discriminator(self.generator(noise))
            g_loss = tf.reduce_mean(tf.nn.softplus(-of_fake))
        self.update(tape, g_loss, self.generator, self.g_optimizer)
        return {"generator": g_loss, "discriminator": d_loss}

    def update(self, tape, loss, network, optimizer):
        weights = network.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

# %%
def build(width=256):
    keras.utils.set_random_seed(0)
    generator = [keras.Input([16]), layers.Dense(width, "relu"), layers.Dense(784, "sigmoid")]
    discriminator = [keras.Input([784]), layers.Dense(width, "relu"), layers.Dense(1)]
    gan = GAN(keras.Sequential(generator, name="generator"),
              keras.Sequential(discriminator, name="discriminator"))  # fmt: skip
    gan.compile(jit_compile=False)  # XLA would compute in another order, and we compare
    return gan

# %%
images, _ = digits.load(1024)
images = images.reshape(1024, 784)
# if the step drew the noise, replicas would draw other numbers than one device, and we compare
noise = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
with fit.strategy(plan).scope():
    gan = build()
history = gan.fit(images, noise, batch_size=256, shuffle=False, epochs=3, verbose=0).history
print({name: np.round(values, 1) for name, values in history.items()})

# %% [markdown]
# Which network did each device compute, and when? We trace a step of all 1,024 images:

# %% tags=["varies", "cover"]
steps = [trace.fit_step(gan, (images, noise)) for _ in range(2)]
step = min(steps, key=lambda step: step.length)  # the least disturbed
drawings.networks(step, "generator", "discriminator")
plt.show()

# %% [markdown]
# Each device computes both networks for its half of the images, forward and backward. At the first
# black line the gradients of the discriminator are added up, and at the second those of the
# generator.
#
# ## By hand
#
# When is the sum of the replicas' gradients the gradient of the whole batch? Gradients add up as
# losses do, so we look at losses. Four examples have the losses 1, 2, 3 and 10. The first replica
# has the first `three` of them, and the second has `one`. Here are four ways to make one number of
# them. `mean of counted` leaves out the second example, as a mask would:

# %%
losses, counted = np.array([1.0, 2.0, 3.0, 10.0]), np.array([1, 0, 1, 1])
ways = {
    "mean": lambda loss, mask: loss.mean(),
    "sum": lambda loss, mask: loss.sum(),
    "mean of counted": lambda loss, mask: (mask * loss).sum() / mask.sum(),
    "largest": lambda loss, mask: loss.max(),
}

# %%
print("                three    one  added    all")
for name, way in ways.items():
    found = [way(losses[rows], counted[rows]) for rows in (slice(3), slice(3, 4), slice(4))]
    numbers = found[0], found[1], found[0] + found[1], found[2]
    print(f"{name:15}", *[f"{number:6.2f}" for number in numbers])

# %% [markdown]
# `added` is the sum of the two replicas' numbers, and `all` is the number of all four examples.
# Only in the second line are they equal. The means give 12 instead of 4. They have to count by
# their shares of the examples: 3/4 · 2 + 1/4 · 10 = 4. With a mask, the counted examples give the
# shares: 2/3 · 2 + 1/3 · 10 = 4.67. For the largest loss, no count of examples gives the right
# shares.
#
# So `fit` has to know which of these your loss is. It knows the losses of Keras. Before the first
# update it tests any other loss as we did: on two parts of a batch and on both together. If the
# loss is neither a mean nor a sum, `fit` refuses it until you say in the step what it is:
#
# | your loss | you say | so the values of the replicas are |
# |---|---|---|
# | a mean over the examples | `fit.loss(value, "mean")` | averaged by their shares |
# | a sum over the examples | `fit.loss(value, "sum")` | added up |
# | a mean over `count` unmasked examples | `fit.loss(value, count)` | averaged by their counts |
#
# ## Proof
#
# We train the same GAN, with smaller networks, on one device and on two. We train in float64, so
# that rounding cannot hide a mistake. The last batch has 13 examples, an odd number:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
data = images[:205].astype("float64"), noise[:205].astype("float64")

# %%
def trained(scope, make, data):
    with scope:
        model = make()
    history = model.fit(*data, batch_size=64, shuffle=False, epochs=3, verbose=0).history
    return model.get_weights(), history


# %%
small = partial(build, width=32)
one, before = trained(tf.device(plan.devices[0]), small, data)
both, after = trained(fit.strategy(plan).scope(), small, data)
print("weights less than 1e-12 from one device:", apart(both, one) < 1e-12)
print("losses less than 1e-12 from one device: ", apart(after.values(), before.values()) < 1e-12)
print("training changed the first kernel:", apart(small().get_weights()[:1], one[:1]) > 0.01)

# %% [markdown]
# ## Break it
#
# A **contrastive loss** compares each example with all others of the batch. Here each image has two
# views. `alike` says how much each first view is like every second view, and `own` how much it is
# like the second view of its own image. The loss is small if `own` is the largest:

# %%
class Contrast(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            first, second = [tf.math.l2_normalize(self(view), axis=1) for view in data]
            alike = 5 * tf.matmul(first, self.rows(second), transpose_b=True)
            own = 5 * tf.reduce_sum(first * second, axis=1)
            loss = tf.reduce_mean(tf.reduce_logsumexp(alike, axis=1) - own)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"contrast": loss}

    def rows(self, others):
        return others  # all that this replica has


# %%
views = data[0][:64], np.roll(data[0][:64], 2, axis=1)  # moved by two pixels

# %%
def contrast(kind):
    keras.utils.set_random_seed(0)
    model = kind([keras.Input([784]), layers.Dense(16)])
    model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
    return model

# %% [markdown]
# A replica has only half of the images. Write down what you expect: will the loss of the first step
# be smaller, larger, or the same under `MirroredStrategy`?

# %%
alone, before = trained(tf.device(plan.devices[0]), partial(contrast, Contrast), views)
plain = tf.distribute.MirroredStrategy(plan.devices)
_, after = trained(plain.scope(), partial(contrast, Contrast), views)
print(f"first loss, one device:       {before['contrast'][0]:.2f}")
print(f"first loss, MirroredStrategy: {after['contrast'][0]:.2f}")

# %% [markdown]
# It is smaller, because 32 images are easier to tell apart than 64. What does `fit.strategy` do?

# %%
try:
    trained(fit.strategy(plan).scope(), partial(contrast, Contrast), views)
except ValueError as refused:
    print(textwrap.fill(str(refused), 88))

# %% [markdown]
# It refuses the loss before the first update. To call the loss a mean would be wrong here, because
# a replica lacks images to compare with. `all_gather` gives each replica the second views of all
# replicas, and sends their gradients back:

# %%
class Gathered(Contrast):
    def rows(self, others):
        return tf.distribute.get_replica_context().all_gather(others, axis=0)


both, after = trained(fit.strategy(plan).scope(), partial(contrast, Gathered), views)
print(f"first loss: {after['contrast'][0]:.2f}")
print("weights less than 1e-12 from one device:", apart(both, alone) < 1e-12)

# %% [markdown]
# Now each replica compares its images with all 64, and takes the mean over its own. `fit` accepts
# this mean, and trains.
#
# | | |
# |---|---|
# | **Use it when** | a step needs two optimizers, or a loss that `compile` cannot express |
# | **It costs** | a longer start, in which `fit` tests the step, and exchanges in each step |
# | **Instead** | `compile` with a loss, or `fit.use(model, plan)`, with losses of the whole batch |
#
# ## On GPUs
#
# Choose a batch so large that each GPU computes for much longer than it waits for the two
# exchanges.
#
# ## On your own
#
# **1.** Write `weighted(losses, weights)`, which a step calls for the examples of its replica:
# the sum of `weights * losses`, divided by the sum of `weights`. On all devices its gradient has
# to be that of one device, even if all weights of a replica are 0. The `count` of `fit.loss` may
# be a sum of weights, and `tf.math.divide_no_nan` returns 0 for a division by 0.

# %% tags=["exercise"]
def weighted(losses, weights):
    return tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)


checks.weighted(weighted)

# %% tags=["solution"]
def weighted(losses, weights):
    count = tf.reduce_sum(weights)
    return fit.loss(tf.math.divide_no_nan(tf.reduce_sum(weights * losses), count), count)


checks.weighted(weighted)

# %% [markdown]
# **2.** Find out, as `fit` does, what a loss is. Write `kind(loss, x)`. `x` is an array of five or
# more numbers, and the function `loss` makes one number of such an array. Compute the loss of two
# parts of `x` and of all of it, and return `"mean"`, `"sum"` or `"neither"`.

# %% tags=["exercise"]
def kind(loss, x):
    return "mean"


checks.kind(kind)

# %% tags=["solution"]
def kind(loss, x):
    k, n = len(x) // 2, len(x)
    a, b, both = loss(x[:k]), loss(x[k:]), loss(x)
    if np.isclose(a + b, both):
        return "sum"
    return "mean" if np.isclose(k / n * a + (n - k) / n * b, both) else "neither"


checks.kind(kind)

# %% [markdown]
# ## What we saw
#
# - With `fit.strategy`, two devices trained a GAN to the weights of one device, to 1e-12.
# - Means of 2.00 and 10.00 make 4.00 if each counts by its share of the examples.
# - A contrastive loss of 3.61 was 2.94 under `MirroredStrategy`. `fit.strategy` refused it, and
#   with `all_gather` the weights were those of one device.
#
# ## In practice
#
# Build your model in the scope of `fit.strategy`. If `fit` refuses your loss, say what it is with
# `fit.loss`, or gather what it compares. [A list](../docs/train_step.md) tells what a step may
# contain.
#
# Next: [[next]].
