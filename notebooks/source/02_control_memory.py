# %% [markdown]
# # Control memory
#
# You start a second script on a GPU, and it ends in a `ResourceExhaustedError`, although the first
# one is small. Or `nvidia-smi` shows a GPU that is full, and nothing runs on it. Both have the same
# cause: unless it is told otherwise, TensorFlow takes nearly all memory of every GPU that it sees,
# and keeps it until the process ends.
#
# **In this lesson** you limit what TensorFlow takes of a GPU, and you know what each setting really
# does.
#
# **You will learn** to
# - choose a setting and write it in plain TensorFlow,
# - tell apart what the driver, a process and TensorFlow's allocator hold,
# - recognise settings that come too late or do not go together,
# - watch memory while a model trains.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.eager import context

from mgpu_helpers import charts, memory, nvml
from mgpu_helpers.lessons import drawings
from mgpu_helpers.lessons.checks import lesson_02 as checks
from mgpu_helpers.lessons.pretend import pretend_gpus

# %% [markdown]
# ## The lines to paste
#
# Two settings are enough for most. This one lets TensorFlow **grow**: it begins with little on each
# GPU, and takes more when a tensor finds no room. It stands first in a script, before the first
# tensor, and is plain TensorFlow. Without a GPU its loop does nothing:

# %%
grow = """
import tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
print("a tensor of", tf.ones([1000, 1000]).shape)
"""
done = subprocess.run([sys.executable, "-c", grow], capture_output=True, text=True)
print(done.stdout or done.stderr, end="")

# %% [markdown]
# The other one is a **limit** in MiB, for the GPU that a script shares with others:
#
# ```python
# import tensorflow as tf
#
# gpu = tf.config.list_physical_devices("GPU")[0]
# limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
# tf.config.set_logical_device_configuration(gpu, [limit])
# ```
#
# Which of them to take:
#
# | use it when you | setting | it costs |
# |---|---|---|
# | work on a GPU beside others | growth | some memory, as regions are rounded up |
# | share a GPU between two long runs | a limit for each | the room that one run leaves unused |
# | have the GPU to yourself | none | nothing |
#
# A setting does not make a model smaller. When one alone does not fit on the GPU, go on with
# [[10]].
#
# ## When memory runs out
#
# To see it on any machine, we ask the host for a tensor of 20 exabytes:

# %%
try:
    with tf.device(plan.host):
        tf.ones([10**9, 5 * 10**9])
except tf.errors.ResourceExhaustedError as error:
    text = str(error).partition("}} ")[2]  # after the name of the operation
    print(text.partition(" on ")[0])

# %% [markdown]
# The message names the tensor that did not fit, and not what fills the memory. For that you have to
# know who holds what.
#
# ## Who holds what
#
# Here are two processes on a GPU and, below, on the host. TensorFlow's **allocator** takes large
# pieces from the driver and hands them out to tensors. What tensors give back, the allocator keeps
# for the next ones:
#
# ![The memory of a GPU, with a context, tensors and what is kept for two processes, and a free
# rest. The driver counts all that is given away, the allocator of process 1 its tensors. Below, the
# memory of the host: process 1 counts what it has there.](pictures/02_who_holds_what.svg)
#
# The dark parts are CUDA contexts: each process needs a few hundred MB on every GPU that it uses.
#
# So "How much memory is used?" has three answers. The **driver** says what it gave away; this is
# what `nvidia-smi` shows. The **allocator** holds tensors and what it keeps for later;
# when you ask it, it says what the tensors use. The **process** says what it has on the host. Here
# are the answers of this machine:

# %% tags=["nbval-ignore-output"]
report = nvml.query()
print("driver:", [memory.size_text(gpu.memory_used or 0) for gpu in report.gpus] or report.reason)
print("process:", memory.size_text(memory.process()))
info = tf.config.experimental.get_memory_info  # of a CPU it says 0, whatever it holds
print("allocator:", info(plan.devices[0][1:]) if plan.on_gpus else "has numbers for GPUs alone")

# %% [markdown]
# Without a GPU only the process has an answer.
#
# ## All settings
#
# | what you want | today, in `tf.config` | classic, in the `ConfigProto` | in the environment |
# |---|---|---|---|
# | start small and grow | `set_memory_growth` | `allow_growth` | `TF_FORCE_GPU_ALLOW_GROWTH` |
# | a limit in MiB | `memory_limit` of a logical device | `virtual_devices` (experimental) | |
# | a share of each GPU | | `per_process_gpu_memory_fraction` | |
# | another allocator | | `use_cuda_malloc_async` (experimental) | `TF_GPU_ALLOCATOR` |
# | leave a GPU alone | `set_visible_devices` | `visible_device_list` | `CUDA_VISIBLE_DEVICES` |
#
# Today's settings have to be made before TensorFlow starts, which it does with its first operation.
# In this notebook it has started, and there may be no GPU. In the block of `pretend_gpus`,
# TensorFlow has not started, and its list has GPUs that do not exist. Nothing can run on them, but
# all rules about settings apply. `gpu_options` is the configuration with which TensorFlow would
# start, as a protobuf message:

# %%
with pretend_gpus(2) as gpus:
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[1], "GPU")
    grows = context.context().config.gpu_options
grows

# %% [markdown]
# Growth is on, and only the GPU with number 1 is visible. Limits cut a GPU into logical devices,
# one for each limit. `memory.logical` first checks that the limits, in MiB, fit the GPU, and then
# sets them:

# %%
with pretend_gpus(1) as gpus:
    memory.logical(gpus[0], [1024, 2048])
    limited = context.context().config.gpu_options
limited

# %% [markdown]
# `devices.setup` chooses for you: growth where each device is a GPU, and limits where several
# devices share one.
#
# ## What a setting takes
#
# The rules stand in [TensorFlow's source](../docs/sources.md#allocator), in `gpu_device.cc` and
# `bfc_allocator.cc`.
#
# - **Nothing set**: with its first tensor TensorFlow takes what is free on the GPU, less a reserve
#   for libraries. The reserve is 1050 MiB on GPUs of compute capability 7, 1536 MiB on those of 8,
#   and 1800 MiB from 9 on.
# - **A share or a limit**: it takes exactly that much, also with its first tensor.
# - **Growth**: the first region has 2 MiB, the next one 4, then 8, and so on. A region is taken
#   when a tensor finds no room. If the tensor is larger than the next region, the size is doubled
#   until it fits, and the next region has the same size.
#
# So growth takes what you need, rounded up generously. Six tensors of 100 MB go into regions of
# 128, 128, 256 and 512 MiB, which makes 1024 MiB for 600 MB.
#
# ## The memory lab
#
# `scripts/hold_memory.py` tries eight settings, each in a process of its own. Each makes these six
# tensors, deletes them, and reports what was taken. The processes see one GPU, on which nobody else
# computes: with nothing set they would take nearly all of the others too. Without such a GPU only
# `set_memory_growth` is tried. These are the settings:

# %%
script = [sys.executable, "scripts/hold_memory.py"]
done = subprocess.run(script, capture_output=True, text=True, check=True)
records = [json.loads(line) for line in done.stdout.splitlines()]
print(*[record["option"] for record in records], sep="\n")

# %% [markdown]
# On a GPU the chart has what was measured. Without a free one, no setting changes anything, and
# eight equal bars would say nothing. Then the chart is a calculation by the rules above, for a GPU
# of compute capability 8 with 16 GiB. `cuda_malloc_async` hands every request on to the driver, so
# it takes what the tensors need:

# %% tags=["varies"]
MIB = 2**20
total, GROWTH = 16 * 1024 * MIB, 1024 * MIB
sizes = [total - 1536 * MIB, 0.4 * total, GROWTH, GROWTH, 1024 * MIB, GROWTH]
sizes += [6 * 100_000_000, 0]  # cuda_malloc_async, and every GPU hidden
measured = [record for record in records if record["driver"]]
calculated = [{"option": r["option"], "calculated": size} for r, size in zip(records, sizes)]
rules = "calculated from TensorFlow's source for a GPU of 16 GiB, without the CUDA context"
drawings.lab(measured or calculated, source=None if measured else rules)
plt.show()

# %% [markdown]
# The first bar is the trouble of the beginning. In the calculation 15.6 GB are taken for 600 MB of
# tensors. On a GPU, `benchmarks/memory.py` keeps the measured chart.
#
# ## A notebook that keeps a GPU
#
# What happens when the tensors are deleted? Here is the process with `set_memory_growth` at four
# moments. On a GPU the bars are what the driver gave it, elsewhere its memory on the host. Compare
# the third bar with the second:

# %% tags=["varies"]
growing = records[3]  # set_memory_growth
moments = ["TensorFlow not started", "holding six tensors", "tensors deleted", "process ended"]
kind = "driver" if growing["driver"] else "process"
rows = [{"option": moment, kind: size} for moment, size in zip(moments, growing[kind])]
drawings.lab(rows).set_title("One process at four moments", loc="left")
plt.show()

# %% [markdown]
# Where they are equally long, TensorFlow kept the memory for its next tensors. It does so on a GPU,
# and on processors where it computes with the library oneDNN, as on most PCs. Only the end of the
# process gives the memory back. So of two notebooks on one GPU, the first keeps what it once took,
# even while it idles. Restart its kernel, or give each notebook a limit.
#
# ## Break it
#
# **Too late.** In this notebook TensorFlow has started, and it takes no more settings:

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
except RuntimeError as error:
    print(error)

# %% [markdown]
# **What does not go together.** TensorFlow refuses growth on only one of two GPUs, growth on a GPU
# that has a limit, and a limit on a CPU. The first is an error only when TensorFlow starts, here
# with `tf.ones`:

# %%
def refused(call, *args):
    try:
        call(*args)
    except ValueError as error:
        print(error)


limit = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
with pretend_gpus(2) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    refused(tf.ones, [])
    tf.config.set_logical_device_configuration(gpus[1], [limit])
    refused(tf.config.experimental.set_memory_growth, gpus[1], True)
    refused(tf.config.set_logical_device_configuration, cpu, [limit])

# %% [markdown]
# It does not refuse a limit on a GPU that grows. Look at `allow_growth` before and after:

# %%
with pretend_gpus(1) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    print("growth:", context.context().config.gpu_options.allow_growth)
    tf.config.set_logical_device_configuration(gpus[0], [limit, limit])
    print("growth after the limit:", context.context().config.gpu_options.allow_growth)

# %% [markdown]
# The limit silently took the growth away. `memory.logical` is the check that catches it:

# %%
with pretend_gpus(1) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    refused(memory.logical, gpus[0], [1024, 1024])

# %% [markdown]
# ## With your own model
#
# `memory.Monitor` asks the process, the driver, and on a GPU also the allocator, ten times a
# second, in the background. A phase marks what ran. Here it watches a Keras model. (On a GPU Keras
# would compile a step with XLA for each batch size, and the phases would show little else. So it is
# told not to.)

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
    model.compile("adam", "mse", jit_compile=False)
    return model


# %% tags=["varies", "cover"]
images, targets = np.ones([256, 32, 32, 3], "float32"), np.zeros([256, 10], "float32")
with tf.device(plan.devices[0]), memory.Monitor() as monitor:
    with monitor.phase("build"):
        model = build()
    for batch in (16, 64, 256):
        with monitor.phase(f"batch of {batch}"):
            model.fit(images, targets, batch, verbose=0)
charts.monitor(monitor)
plt.show()

# %% [markdown]
# Each larger batch lifts the curve. On a GPU look at the curve of the allocator. Where TensorFlow
# keeps what it took, the curve does not come down again. `monitor.peak` is the most that the
# process held.
#
# Watch for two things. Ten samples a second miss a peak that lasts a millisecond. And the driver's
# curve shows what the allocator took, not what your model needs. [[03]] says what a step needs.

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# Classic code puts the settings into the configuration of a session:

# %%
config = tf1.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = "1"
config.gpu_options.per_process_gpu_memory_fraction = 0.4
config

# %% [markdown]
# The fraction 0.4 is 40 % of each GPU.
#
# These settings act only in the first session of a process. TensorFlow makes one allocator for each
# GPU when it starts, and keeps it until the process ends. What a later session says about memory
# changes nothing, so `plan.session_config` says nothing about it.
#
# ## Proof: one configuration
#
# Today's calls and the classic options end in the same message. Compare growth and the visible GPU,
# and then the limits, which classic code adds to the field `experimental`:

# %%
for name in ("allow_growth", "visible_device_list"):
    print(name, "- today:", getattr(grows, name), "- classic:", getattr(config.gpu_options, name))
classic = tf1.GPUOptions(visible_device_list="0")
classic.experimental.virtual_devices.add(memory_limit_mb=[1024, 2048])
print("limits: the messages are equal:", classic == limited)

# %% [markdown]
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A machine is shared. `prepare` gets its list of GPUs before TensorFlow has started. Write
# it with `tf.config`, so that TensorFlow sees only the last two of them, and both start small and
# grow. The check calls it with 2 to 8 GPUs.

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
# **2.** `n` scripts share a GPU of `total` MiB, and each has a CUDA context of `context` MiB beside
# what its limit allows. Write `limit_for(total, context, n)`. It returns the largest limit in whole
# MiB that can be set in all of the scripts.

# %% tags=["exercise"]
def limit_for(total, context, n):
    return total // n


checks.limit_for(limit_for)

# %% tags=["solution"]
def limit_for(total, context, n):
    return total // n - context


checks.limit_for(limit_for)

# %% [markdown]
# ## What we saw
#
# - A `ResourceExhaustedError` named the tensor that did not fit. It did not say what fills the
#   memory: for that there are the driver, the process and the allocator.
# - By TensorFlow's own rules, six tensors took nearly twice their size with growth, and nearly all
#   of a GPU with nothing set.
# - Today's calls and the classic options ended in the same message.
# - Settings that came too late or did not go together were refused in TensorFlow's own words. One
#   pair was not: a limit silently took growth away, and `memory.logical` caught it.
# - A monitor showed what a Keras model took, phase by phase.
#
# ## In practice
#
# Use growth when you work on a GPU that others use too. It costs some memory, because regions are
# rounded up, and no region comes back before the process ends.
#
# - Set a limit where two processes share a GPU for long, so that neither can starve the other.
# - Where regions are free but each is too small for the next tensor,
#   `TF_GPU_ALLOCATOR=cuda_malloc_async` may help: the driver then manages the memory.
# - Look for an idle notebook before you look for a leak. `nvidia-smi` names the processes.
# - `TF_FORCE_GPU_ALLOW_GROWTH=true` in the environment sets growth in a program that you cannot
#   edit.
#
# Next: [[next]].
