# %% [markdown]
# # Control memory
#
# You start a second script on a GPU, and it ends in a `ResourceExhaustedError`, although both
# scripts are small. Unless told otherwise, TensorFlow takes nearly all memory of every GPU that it
# sees, and keeps it until the process ends.
#
# **In this lesson** you limit what TensorFlow takes of a GPU, and see what each setting does.
#
# ![Three bars. With nothing set nearly the whole GPU is taken; with growth or a limit most is
# left.](pictures/05_what_is_taken.svg)
#
# Each bar is a GPU of 17.2 GB (16 GiB), on which a script makes 600 MB of tensors. By the rules in
# its source, TensorFlow takes 15.6 GB for them if nothing is set, and 1.08 GB with memory growth.
#
# ## The lines to paste
#
# With **memory growth**, TensorFlow takes more memory only when a tensor does not fit:
#
# ```python
# for gpu in tf.config.list_physical_devices("GPU"):
#     tf.config.experimental.set_memory_growth(gpu, True)
# ```
#
# With a **memory limit**, TensorFlow takes that much for its tensors, here 2048 MiB:
#
# ```python
# gpu = tf.config.list_physical_devices("GPU")[0]
# limit = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
# tf.config.set_logical_device_configuration(gpu, [limit])
# ```
#
# Paste one of the two before the first tensor or model. After that TensorFlow [refuses a
# setting](../docs/errors.md#modified). With `devices.setup` paste neither: it sets growth if each
# device is a GPU, and limits if several devices share one. For a program that you cannot edit, put
# `TF_FORCE_GPU_ALLOW_GROWTH=true` into the environment.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import memory
from mgpu_helpers.lessons import drawings, growth
from mgpu_helpers.lessons.checks import lesson_05 as checks
from mgpu_helpers.lessons.pretend import gpu_options, pretend_gpus

MIB = 2**20

# %% [markdown]
# ## Who holds what
#
# There are three answers to "How much memory is used?". In the picture two processes share a GPU,
# and the brackets show what each answer counts:
#
# ![On a GPU, two processes each have a context, tensors and what is kept. The allocator counts the
# tensors, the driver all. Each process also has memory on the
# host.](pictures/05_who_holds_what.svg)
#
# - NVIDIA's **driver** counts what it gave to all processes. `nvidia-smi` shows this number.
# - TensorFlow's **allocator** takes large **regions** from the driver and hands out pieces of them
#   to tensors. `tf.config.experimental.get_memory_info("GPU:0")` returns what is handed out. The
#   allocator *keeps* the rest for later tensors, and with it the memory of deleted ones.
# - Each **process** also has memory on the host, which `memory.process()` returns.
#
# Every process also has a **CUDA context** on each GPU that it uses. The context takes a few
# hundred MB for the driver's own work.
#
# ## Try it
#
# How much does TensorFlow take under each setting? On a GPU, `scripts/hold_memory.py` measures it.
# Without a GPU, the chart is calculated for one of 16 GiB. Only growth is measured, because
# TensorFlow's allocator for GPUs can also serve the host: `growth.on_host` starts a process that
# makes a small tensor and six of 100 MB, deletes them and makes them again. The log of this process
# names the regions taken:

# %%
logged = growth.on_host(100_000_000, 6)
print("regions in TensorFlow's log:", [region // MIB for region in logged], "MiB")

# %% tags=["varies", "cover"]
script = [sys.executable, "scripts/hold_memory.py"]
done = subprocess.run(script, capture_output=True, text=True, check=True)
records = [json.loads(line) for line in done.stdout.splitlines()]
drawings.lab(records, growth=sum(logged))
plt.show()

# %% [markdown]
# With nothing set, only 1.6 GB are left for a second script and its CUDA context. These are the
# rules in [TensorFlow's source](../docs/sources.md#allocator):
#
# - **Nothing set**: with its first tensor, TensorFlow takes all that is free, except a reserve of 1
#   to 2 GB.
# - **Growth**: it takes a new region when a tensor fits into none of its regions.
# - **A limit**: it takes that much with its first tensor.
# - **`TF_GPU_ALLOCATOR=cuda_malloc_async`** in the environment: the driver manages the memory, and
#   gives about what the tensors need.
# - **Every GPU hidden** by `CUDA_VISIBLE_DEVICES=-1`: it takes nothing.
#
# ## By hand: growth
#
# Why does growth take nearly twice what the tensors need? The allocator plans the size of its next
# region, which is 2 MiB at first. When a tensor finds no room, the plan decides what is taken:
#
# - If the tensor fits into the planned size, the region gets this size. Then the plan doubles.
# - If not, the plan doubles until the tensor fits. The region gets this size, and so does the next
#   plan.
#
# The rest of the region is kept for the next tensors. But if the rest is smaller than the tensor
# and smaller than 128 MiB, it is handed out with this tensor, and no other can use it:
#
# ![Five regions: 2 MiB for a small tensor, 128 for tensor 1, 128 for tensor 2, 256 for 3 and 4, 512
# for 5 and 6.](pictures/05_growth.svg)
#
# Here is the rule in code. It looks for room only in the newest region, which is enough here:

# %%
def regions(sizes):
    taken, planned, free = [], 2 * MIB, 0
    for size in sizes:
        if size > free:  # a new region
            fits = size <= planned
            while planned < size:
                planned *= 2
            taken.append(planned)
            free = planned
            if fits:
                planned *= 2
        rest = free - size
        free = 0 if rest < min(size, 128 * MIB) else rest
    return taken


# %%
tensors = [4, *6 * [100_000_000]]
by_hand = regions(tensors)
print("regions:", [region // MIB for region in by_hand], "MiB")
print(memory.size_text(sum(by_hand)), "for", memory.size_text(sum(tensors)), "of tensors")

# %% [markdown]
# ## Proof
#
# Did TensorFlow follow this rule?

# %%
print("TensorFlow's regions are those by hand:", logged == by_hand)

# %% [markdown]
# The log has these five regions and no sixth, although the tensors were made twice: the allocator
# had kept the memory of the deleted ones. For the same reason, an idle notebook keeps its memory
# until you restart its kernel.
#
# ## Break it
#
# What happens if you paste both settings, first growth and then a limit? Write down what you
# expect. In a block of `pretend_gpus`, TensorFlow behaves as if it had a GPU and had not started.
# `gpu_options` returns what it would start with:

# %%
limit = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
with pretend_gpus(1) as [gpu]:
    tf.config.experimental.set_memory_growth(gpu, True)
    print("growth:", gpu_options().allow_growth)
    tf.config.set_logical_device_configuration(gpu, [limit])
    print("growth after the limit:", gpu_options().allow_growth)

# %% [markdown]
# The limit has switched growth off, and no message says so. In the other order, TensorFlow raises
# an error.
#
# | | growth | a limit |
# |---|---|---|
# | **Use it when** | you work on a GPU beside others | two long runs share a GPU |
# | **It costs** | it can still fill the whole GPU | no run can use what another leaves free |
# | **Instead** | set nothing if the GPU is yours alone | give each script its own GPU ([[16]]) |
#
# ## On GPUs
#
# > The bars of the chart are measured, and include the CUDA context.
#
# ## On your own
#
# **1.** Write `prepare(gpus)`, which gets the list of a machine's GPUs before TensorFlow has
# started. Afterwards TensorFlow should see only the last two, and both should grow.
# `tf.config.set_visible_devices(some, "GPU")` hides all GPUs but some. The check calls `prepare`
# with 2 to 8 GPUs.

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
# **2.** `n` scripts share a GPU of `total` MiB. Beside its limit, each has a CUDA context of
# `overhead` MiB. Write `limit_for(total, overhead, n)`, which returns the largest limit in whole
# MiB that all scripts can have at once.

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
# - With growth, TensorFlow took 1.08 GB for 600 MB of tensors, in regions of 2, 128, 128, 256 and
#   512 MiB. The rule by hand gives the same regions.
# - Deleted tensors gave no memory back: made again, they needed no new region.
# - A limit switched growth off without a message.
#
# ## In practice
#
# If a GPU is full, look for an idle notebook first: `nvidia-smi` names the processes.
#
# Next: [[next]].
