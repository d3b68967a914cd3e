"""What the errors of several devices mean: one table, with the words that docs/errors.md shows.

An error of TensorFlow is loud, but seldom says what to do. It is explained after it came, by what
can be found in its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mgpu_helpers import nvml
from mgpu_helpers._formatting import error_line

Details = Mapping[str, Any]  # what tf.config.experimental.get_device_details says of a GPU
TURING = (7, 5)  # the oldest GPUs that cuDNN 9.11 and later know
DRIVERS = {"12.5": "555", "12.8": "570"}  # the first version of the driver for a CUDA
# What is found in a message, without regard to case; what that means; what to do. The messages are
# those of TensorFlow 2.18 to 2.21 with CUDA 12, and the first that fits counts.
MESSAGES = (
    (r"OOM when allocating tensor|out.of.memory|\bOOM\b|ALLOC_FAILED|failed to allocate",
     "There is too little memory on {device}",
     "stop what holds it, which nvidia-smi shows, or use smaller batches"),
    # The wheel has kernels to compile, and the driver is older than the CUDA that wrote them.
    ("UNSUPPORTED_PTX|unsupported toolchain",
     "The driver is too old to compile TensorFlow's kernels for {which}", "install {driver}"),
    ("does not support target|no kernel image|INVALID_PTX|INVALID_IMAGE|NO_BINARY|INVALID_HANDLE|"
     "in-memory CUBIN|named symbol not found|invalid device function",
     "TensorFlow has nothing that runs on {which}", "{tensorflow}"),
    ("No blas support|CUBLAS_STATUS_NOT_INITIALIZED", "cuBLAS does not start on {which}",
     "mostly other programs have taken its memory, which nvidia-smi shows: stop them"),
    (r"Failed to get convolution algorithm|cudnn|\bDNN\b|no algorithm worked",
     "cuDNN does not work on {which}", "{cudnn}"),
    ("is being mapped to multiple|mapped to multiple CUDA devices",
     "Two Sessions of one process list different GPUs",
     "give them one list, and place each graph with tf.device"),
    ("Cannot assign a device for operation|Could not satisfy device spec",
     "A device is not there, or has no kernel for the operation",
     "use one of tf.config.list_logical_devices()"),
    ("cannot be modified after being initialized",
     "TensorFlow has started, and this setting comes too late",
     "restart the kernel and call devices.setup first"),
    ("must be configured at program startup",
     "The strategy of several workers is made too late",
     "make it right after devices.setup, before the first tensor or dataset"),
    ("Could not start gRPC server", "The port in TF_CONFIG is taken",
     "end the older worker, or take another port"),
    ("must have the same size and shape|with other shapes.*AddN",
     "Gradients of unlike variables are added",
     "list the same variables in the same order in each tower"),
    (r"Attempt to convert a value \(PerReplica|using a PerReplica object|'PerReplica' (and|object)",
     "A value of each replica is used as one",
     "call strategy.reduce or strategy.experimental_local_results"),
    (r"Shape mismatch in the collective instance|Collective instance \d+ expected",
     "A second MirroredStrategy was made in the process, or a worker has other data",
     "restart the kernel and make one, in a cell of its own, and give all workers the same data"),
    ("Mixing different tf.distribute.Strategy|inside .with strategy.scope|colocate_vars_with|"
     "different distribution strategy scope|slot variable under the scope",
     "The model and what trains it were not made in one scope",
     "make and compile the model, and its optimizer, in one strategy.scope()"),
    ("called while defining a new graph or a tf.function",
     "Replicas would add up within a function or a condition of their own",
     "leave out what only some steps do, jit_compile=True and a tf.function around the step"),
    ("Trying to access resource",
     "XLA compiles one step for several devices",
     "leave out jit_compile=True, or train with fit.strategy or fit.use, which let it compile what "
     "each device does"),
    ("Unable to automatically build the model",
     "Keras cannot build the model from a first batch",
     "mend the exception that it names; a model with a train_step and no call takes fit.strategy"),
    ("nodes in a cycle|contains a cycle with", "An operation waits for itself",
     "let whole tasks wait for each other, not the operations in them"),
    ("Tensor had NaN values", "The loss or the weights are not a number",
     "look with fit.check for a replica without examples"),
)  # fmt: skip
LONGEST = 200  # letters that are shown of an error's own line
_GPU = re.compile(r"cuda|cudnn|cublas|\bGPU\b|\bstream\b|\bcu[A-Z]\w+", re.I)


def explain(error: BaseException) -> str:
    """Say in one sentence what an error in a step on GPUs means; its own first line if not known.

    The driver is asked whether it has lost a GPU: TensorFlow only names what it was doing then. A
    GPU that dies often ends the process, with nothing left to explain; `python -m mgpu_helpers`
    says it afterwards.

    >>> try:
    ...     tf.ones([2, 2]) @ tf.ones([3, 3])
    ... except tf.errors.OpError as error:
    ...     print(explain(error))
    Matrix size-incompatible: ...
    """
    return explained(error, "the GPU", {}, "{first}.")


def explained(error: BaseException, device: str, details: Details, unknown: str) -> str:
    """Explain an error of a device whose GPU has these details; `unknown` is for any other."""
    text = str(error)
    if _GPU.search(text):
        for gpu in nvml.query().gpus:
            if gpu.problem:
                return gpu.problem
    first = re.sub(r"\{\{.*?\}\} *| *\[Op:\w+\](?: name:)?", "", error_line(error)).rstrip(".: ")
    if len(first) > LONGEST:
        first = f"{first[:LONGEST].rpartition(' ')[0]} …"
    name, capability = details.get("device_name"), details.get("compute_capability")
    known = [device, name, capability and f"compute capability {capability[0]}.{capability[1]}"]
    which = ", ".join(filter(None, known))
    for pattern, means, todo in MESSAGES:
        if re.search(pattern, text, re.I):
            remedies = _remedies(capability) if "{" in todo else {}
            means = means.format(device=device, which=which)
            return f"{means} ({first}): {todo.format(**remedies)}."
    return unknown.format(first=first, which=which)


def _remedies(capability: tuple[int, int] | None) -> dict[str, str]:
    """Say what to install for a GPU, by what this TensorFlow was built for."""
    import tensorflow as tf

    cuda = tf.sysconfig.get_build_info().get("cuda_version", "").rpartition(".")[0]
    version = f", version {DRIVERS[cuda]} or later" if cuda in DRIVERS else ""
    older = capability and capability < min(built_for(), default=(0, 0))
    return {
        "driver": f"one for CUDA {cuda} or newer{version}" if cuda else "a newer one",
        "tensorflow": "install an older TensorFlow, this one is built for newer GPUs only"
        if older else "install the newest TensorFlow, or use NVIDIA's container",
        "cudnn": "from version 9.11 on it knows no GPU before Turing, so "
        "pip install 'nvidia-cudnn-cu12<9.11'"
        if capability and capability < TURING else
        "pip install --upgrade nvidia-cudnn-cu12, or free the GPU's memory if nvidia-smi shows "
        "that it is full",
    }  # fmt: skip


def built_for() -> list[tuple[int, int]]:
    """List the GPUs that the wheel has finished kernels for, as compute capabilities.

    2.18's to 2.21's have them also for what they list as compute_90, with PTX for newer GPUs beside
    them: 37 of 38 MB, all but the small kernels of elementwise operations.
    """
    import tensorflow as tf

    listed = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    found = (re.match(r"(?:sm|compute)_(\d+)(\d)", name) for name in listed)
    return [(int(each[1]), int(each[2])) for each in found if each]
