# %% [markdown]
# # Control memory
#
# You start a second script on a GPU, and it ends in a `ResourceExhaustedError`, although both
# scripts are small. Or `nvidia-smi` shows a GPU that is full, and nothing runs on it. Both have the
# same cause: unless it is told otherwise, TensorFlow takes nearly all memory of every GPU that it
# sees, and keeps it until the process ends.
#
# **In this lesson** you limit what TensorFlow takes of a GPU, and you know what each setting really
# does.
#
# **You will learn** to
# - choose a setting and write it in plain TensorFlow,
# - tell apart what the driver, a process and TensorFlow's allocator hold,
# - watch memory while a model trains,
# - recognise settings that come too late or do not go together.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import memory
from mgpu_helpers.lessons import drawings, growth
from mgpu_helpers.lessons.checks import lesson_02 as checks
from mgpu_helpers.lessons.pretend import gpu_options, pretend_gpus

# %% [markdown]
# ## The lines to paste
#
# Two settings are enough for most scripts. Either stands before the first tensor or model. The
# first setting lets TensorFlow **grow**: it begins with little memory on each GPU, and takes more
# when a tensor does not fit:
#
# ```python
# import tensorflow as tf
#
# for gpu in tf.config.list_physical_devices("GPU"):
#     tf.config.experimental.set_memory_growth(gpu, True)
# ```
#
# The second setting is a **limit** in MiB, for a GPU that a script shares with others:
#
# ```python
# import tensorflow as tf
#
# gpu = tf.config.list_physical_devices("GPU")[0]  # fails where there is none
# limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
# tf.config.set_logical_device_configuration(gpu, [limit])
# ```
#
# | use it when you | setting | it costs |
# |---|---|---|
# | work on a GPU beside others | growth | no upper bound: it can still take the whole GPU |
# | share a GPU between two long runs | a limit for each | unused room; the CUDA context is extra |
# | have the GPU to yourself | none | the GPU looks full, and a second program finds no room |
#
# `devices.setup` makes these settings for you: growth where each device is a GPU, and limits where
# several devices share one. No setting makes a model smaller: where one alone does not fit, go on
# with [[10]].
#
# ## When memory runs out
#
# To see the error on any machine, we ask the host for a tensor that fits on no machine:

# %%
try:
    with tf.device(plan.host):
        tf.ones([10**9, 5 * 10**9])
except tf.errors.ResourceExhaustedError as error:
    text = str(error).partition("}} ")[2]  # after the name of the operation
    print(text.partition(" by ")[0])

# %% [markdown]
# The message names the shape, type and device of what did not fit, but not what fills the memory.
#
# ## Who holds what
#
# The picture shows two processes: above on a GPU, below on the host. TensorFlow's **allocator**
# takes large pieces from the driver and hands them out to tensors. When a tensor is deleted, the
# allocator keeps its memory for later ones. In the pictures, *kept* is what the allocator has taken
# and not handed out:
#
# ![On a GPU two processes each have a context, tensors and what is kept; the rest is free. The
# allocator counts what it handed out to tensors, the driver all that is given away. Below, each
# process has memory on the host.](pictures/02_who_holds_what.svg)
#
# The dark parts are CUDA contexts, which CUDA needs for its own work: each process has one on every
# GPU that it uses, of a few hundred MB.
#
# So "How much memory is used?" has three answers. The driver says what it gave to all processes:
# `nvidia-smi` shows it. The process says what it has on the host: `memory.process()`. The allocator
# says what it handed out to tensors, sometimes more than they need:
# `tf.config.experimental.get_memory_info("GPU:0")`.
#
# ## With your own model
#
# `memory.Monitor` asks all three ten times a second. Without a GPU only the process answers. A
# phase names what runs in its block. Look at how much memory each phase adds:

# %%
def build():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((32, 32, 3))])
    for filters in (32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    model.compile("adam", "mse", jit_compile=False)  # XLA would compile in each phase
    return model


# %% tags=["varies", "cover"]
images, targets = np.ones([256, 32, 32, 3], "float32"), np.zeros([256, 10], "float32")
with tf.device(plan.devices[0]), memory.Monitor() as monitor:
    with monitor.phase("build"):
        model = build()
    for batch in (16, 64, 256):
        with monitor.phase(f"batch of {batch}"):
            model.fit(images, targets, batch, verbose=0)
drawings.rises(monitor)
plt.show()

# %% [markdown]
# The largest batch adds most to what is held. The first `fit` also adds its graph and, on a GPU,
# what cuDNN may borrow to try its algorithms. [[03]] says what a step needs.
#
# ## What each setting takes
#
# By [TensorFlow's source](../docs/sources.md#allocator):
#
# - **Nothing set**: with its first tensor TensorFlow takes what is free on the GPU, less a reserve
#   for libraries: 1536 MiB on GPUs of NVIDIA's compute capability 8, 1800 MiB on newer ones.
# - **A fraction (`per_process_gpu_memory_fraction`) or a limit**: it takes that much with its first
#   tensor.
# - **Growth**: it takes a new region of memory when a tensor does not fit.
# - **`cuda_malloc_async`**: the driver manages the memory, and gives about what the tensors need.
# - **Every GPU hidden**: it takes nothing.
#
# `scripts/hold_memory.py` starts a process for each setting, which makes 600 MB of tensors. Without
# a GPU, the chart is calculated by the rules above for an empty GPU of 16 GiB, without the CUDA
# context:

# %% tags=["varies"]
script = [sys.executable, "scripts/hold_memory.py"]
done = subprocess.run(script, capture_output=True, text=True, check=True)
records = [json.loads(line) for line in done.stdout.splitlines()]
tensors = [4, *6 * [100_000_000]]  # bytes: a small one, and six of 100 MB
regions = growth.regions(tensors)
drawings.lab(records, growth=sum(regions))
plt.show()

# %% [markdown]
# The first bar is why the second script of the beginning failed: nearly all of the free memory, for
# 600 MB of tensors.
#
# ## Why growth takes more than the tensors
#
# TensorFlow doubles the planned size until the tensor fits. If no doubling was needed, it plans the
# next region twice as large. The picture shows the regions for a small tensor and six of 100 MB:
#
# ![Five regions, a row for each. 2 MiB: the first, for a small tensor. 128 MiB: 4 MiB was too small
# and doubled; it holds tensor 1. 128 MiB for tensor 2, 256 for tensors 3 and 4, 512 for tensors 5
# and 6: each fits at once. The rest beside tensors 1, 2 and 4 is handed out with them; any other
# rest is kept.](pictures/02_growth.svg)
#
# Is the rule true? TensorFlow's allocator for GPUs can also serve the host, and its log names each
# region. `growth.on_host` reads that log: a new process makes these tensors, deletes them and makes
# them again.

# %%
held = growth.on_host(100_000_000, 6)
print("regions in TensorFlow's log:", [region // 2**20 for region in held["regions"]], "MiB")
print("as in the picture:", held["regions"] == regions)
print("taken:", memory.size_text(sum(regions)))
print("handed out to tensors:", memory.size_text(held["handed_out"]))

# %% [markdown]
# So growth takes 1.08 GB for 600 MB of tensors. The allocator counts 737 MB as handed out. It gives
# a tensor a whole free piece if the piece is less than twice what the tensor asks for and the rest
# is under 128 MiB. So tensors 1 and 2 get 134.2 MB each, a whole region, and tensor 4 gets the
# 168.4 MB beside tensor 3. The others get 100 MB each.
#
# ## A notebook that keeps a GPU
#
# The log has no further region, though the tensors were made twice, because TensorFlow had kept
# their memory. It gives nothing back when another process needs it: only the end of the process
# frees everything. So of two notebooks on one GPU, the first keeps what it once took, even
# while it idles. Restart its kernel, or give each notebook a limit.
#
# ## Break it
#
# **Too late.** TensorFlow starts with its first operation. In this notebook it has started, so it
# refuses a setting:

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
except RuntimeError as error:
    print(error)

# %% [markdown]
# **What does not go together.** TensorFlow refuses three of these four:
#
# | what you set | what TensorFlow does |
# |---|---|
# | growth on only one of two GPUs | refuses when it starts: `Memory growth cannot differ` |
# | growth on a GPU with a limit | refuses: `Cannot set memory growth on device` |
# | a limit on a CPU | refuses: `Setting memory limit on CPU` |
# | a limit on a GPU that grows | drops growth, and says nothing |
#
# Watch the last. In a block of `pretend_gpus` TensorFlow behaves as if it had not started, and
# lists invented GPUs. `gpu_options` shows what TensorFlow would start with. Then we ask
# `memory.logical` for the same limits, which it checks first:

# %%
limit = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
with pretend_gpus(1) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    print("growth:", gpu_options().allow_growth)
    tf.config.set_logical_device_configuration(gpus[0], [limit, limit])
    print("growth after the limit:", gpu_options().allow_growth)
with pretend_gpus(1) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    try:
        memory.logical(gpus[0], [1024, 1024])
    except ValueError as error:
        print(error)

# %% [markdown]
# ## On GPUs
#
# The monitor's chart has the scale of what the allocators handed out. Its labels say what each
# phase adds to that, and its legend names the most of each curve, also of those beyond the scale.
# The chart of the settings shows what the driver gave, with the CUDA context. When memory runs out,
# TensorFlow logs what its tensors hold. `devices.setup` silences the log, unless
# `TF_CPP_MIN_LOG_LEVEL=0` is in the environment.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `prepare(gpus)` with `tf.config`. It gets the list of a shared machine's GPUs before
# TensorFlow has started. Afterwards TensorFlow should see only the last two of these GPUs, and both
# should grow. The check calls `prepare` with 2 to 8 GPUs.

# %% tags=["exercise"]
def prepare(gpus):
    pass


checks.last_two_grow(prepare)

# %% tags=["solution"]
def prepare(gpus):
    tf.config.set_visible_devices(gpus[-2:], "GPU")
    for gpu in gpus[-2:]:
        tf.config.experimental.set_memory_growth(gpu, True)


checks.last_two_grow(prepare)

# %% [markdown]
# **2.** `n` scripts share a GPU of `total` MiB. Each has a CUDA context of `overhead` MiB beside
# what its limit allows. Write `limit_for(total, overhead, n)`, which returns the largest limit in
# whole MiB that all of the scripts can have at once.

# %% tags=["exercise"]
def limit_for(total, overhead, n):
    return total // n


checks.limit_for(limit_for)

# %% tags=["solution"]
def limit_for(total, overhead, n):
    return total // n - overhead


checks.limit_for(limit_for)

# %% [markdown]
# ## What we saw
#
# - A `ResourceExhaustedError` named the shape that did not fit, and not what fills the memory.
# - A monitor showed what was held while a Keras model trained, phase by phase.
# - TensorFlow's own log named regions of 2, 128, 128, 256 and 512 MiB for a small tensor and six
#   large ones, as the rule of growth says, and no further one when they were made again.
# - TensorFlow refused a setting that came too late. A limit silently dropped growth, and
#   `memory.logical` caught it.
#
# ## In practice
#
# Before you look for a leak, look for an idle notebook: `nvidia-smi` names the processes. In a
# program that you cannot edit, `TF_FORCE_GPU_ALLOW_GROWTH=true` in the environment sets growth.
# Where much memory is free, but in pieces too small for the next tensor (fragmentation),
# `TF_GPU_ALLOCATOR=cuda_malloc_async` may help.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# Classic code puts the settings into the configuration of a session. Here are all names, and below
# growth, one visible GPU and 40 % of its memory:
#
# | what you want | today, in `tf.config` | classic, in the `ConfigProto` | in the environment |
# |---|---|---|---|
# | start small and grow | `set_memory_growth` | `allow_growth` | `TF_FORCE_GPU_ALLOW_GROWTH` |
# | a limit in MiB | `memory_limit` of a logical device | `virtual_devices` (experimental) | |
# | a share of each GPU | | `per_process_gpu_memory_fraction` | |
# | another allocator | | `use_cuda_malloc_async` (experimental) | `TF_GPU_ALLOCATOR` |
# | leave a GPU alone | `set_visible_devices` | `visible_device_list` | `CUDA_VISIBLE_DEVICES` |

# %%
config = tf1.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = "1"
config.gpu_options.per_process_gpu_memory_fraction = 0.4
config

# %% [markdown]
# Only the first session's settings act.
#
# Do today's calls set the same? The first block compares growth and the visible GPU (`tf.config`
# has no share). The second compares two limits, which classic code puts into `experimental`:

# %%
with pretend_gpus(2) as gpus:
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[1], "GPU")
    config.gpu_options.ClearField("per_process_gpu_memory_fraction")
    print("growth and the visible GPU are equal:", gpu_options() == config.gpu_options)
with pretend_gpus(1) as gpus:
    memory.logical(gpus[0], [1024, 2048])
    classic = tf1.GPUOptions(visible_device_list="0")
    classic.experimental.virtual_devices.add(memory_limit_mb=[1024, 2048])
    print("two limits are equal:", gpu_options() == classic)
