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
# - tell apart what the driver, a process and TensorFlow's allocator hold,
# - make the settings, in today's code and in classic code,
# - recognise settings that come too late or do not go together,
# - work out what each setting takes,
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
from pathlib import Path

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
# ## The trouble
#
# This is how it looks when memory runs out. To see it on any machine, we ask the host for a tensor
# of 20 exabytes:

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
# Without a GPU only the process has an answer. The settings below are about GPUs, but their rules
# can be tried on any machine.
#
# ## The settings
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
# ## The same in a graph
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
# Here is the last rule as code. `rooms` are the free parts of the regions. A tensor goes into the
# smallest room in which it fits. What is left of that room is a new room, unless it is both smaller
# than the tensor and smaller than 128 MiB:

# %%
MIB = 2**20


def regions(tensors):
    taken, rooms, size = [], [], 2 * MIB
    for tensor in tensors:
        fitting = [room for room in rooms if room >= tensor]
        if fitting:
            room = min(fitting)
            rooms.remove(room)
        else:
            enough = size >= tensor
            while size < tensor:
                size *= 2
            room = size
            taken.append(room)
            size *= 2 if enough else 1
        if room >= 2 * tensor or room - tensor >= 128 * MIB:
            rooms.append(room - tensor)
    return taken


# %% [markdown]
# First five tensors of 1 MiB, which you can do in your head: two go into the region of 2 MiB, and
# the other three into the next one, of 4 MiB. Then six tensors of 100 MB:

# %%
print([region // MIB for region in regions([MIB] * 5)], "MiB")
growth = regions([100_000_000] * 6)
print([region // MIB for region in growth], "MiB")

# %% [markdown]
# The six tensors need 600 MB, and growth takes 1024 MiB. A quarter of each of the first three
# regions is lost, and most of the last one is still empty. So growth takes what you need, rounded
# up generously.
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
total = 16 * 1024 * MIB
sizes = [total - 1536 * MIB, 0.4 * total, sum(growth), sum(growth), 1024 * MIB, sum(growth)]
sizes += [6 * 100_000_000, 0]  # cuda_malloc_async, and every GPU hidden
measured = [record for record in records if record["driver"]]
calculated = [{"option": r["option"], "calculated": size} for r, size in zip(records, sizes)]
rules = "calculated from TensorFlow's source for a GPU of 16 GiB, without the CUDA context"
drawings.lab(measured or calculated, source=None if measured else rules)
plt.show()

# %% [markdown]
# The first bar is the trouble of the beginning. In the calculation 15.6 GB are taken for 600 MB of
# tensors. On a GPU, `benchmarks/memory.py` keeps the measured chart in a **result card**. Where
# there are cards from GPUs, here they are:

# %% tags=["varies", "nbval-ignore-output"]
cards = sorted(Path("../results").glob("memory-gpus*.json"))
for card in map(json.loads, map(Path.read_text, cards)):
    where = f"{card['machine']}, {card['date']}"
    drawings.lab(card["numbers"]["lab"], source=where).set_title(where, loc="left")
    plt.show()
print("cards from a GPU:", len(cards) or "none yet; python benchmarks/memory.py makes one")

# %% [markdown]
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
# process held:

# %% tags=["nbval-ignore-output"]
print([phase.name for phase in monitor.phases], memory.size_text(monitor.peak))
assert len(monitor.phases) == 4

# %% [markdown]
# Watch for two things. Ten samples a second miss a peak that lasts a millisecond. And the driver's
# curve shows what the allocator took, not what your model needs. [[03]] says what a step needs.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Build a classic configuration with which a session starts small, grows, and takes a quarter
# of each GPU at most.

# %% tags=["exercise"]
answer = tf1.ConfigProto()

checks.quarter_and_growth(answer)

# %% tags=["solution"]
answer = tf1.ConfigProto()
answer.gpu_options.per_process_gpu_memory_fraction = 0.25
answer.gpu_options.allow_growth = True

checks.quarter_and_growth(answer)

# %% [markdown]
# **2.** A machine is shared. `prepare` gets its list of GPUs before TensorFlow has started. Write
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
# **3.** With growth, the order of the tensors matters. Write `best_order`: it gets the sizes of up
# to five tensors in bytes, and returns them in an order for which `regions` takes the least memory.

# %% tags=["exercise"]
def best_order(tensors):
    return tensors


checks.taken_by_growth(best_order)

# %% tags=["solution"]
from itertools import permutations


def best_order(tensors):
    return min(permutations(tensors), key=lambda order: sum(regions(order)))


checks.taken_by_growth(best_order)

# %% [markdown]
# ## What we saw
#
# - A `ResourceExhaustedError` named the tensor that did not fit. It did not say what fills the
#   memory: for that there are the driver, the process and the allocator.
# - Today's calls and the classic options ended in the same message.
# - By TensorFlow's own rules, six tensors took nearly twice their size with growth, and nearly all
#   of a GPU with nothing set.
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
