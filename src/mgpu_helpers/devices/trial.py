"""A GPU's first operations, and what its errors mean: a sentence with the remedy.

A GPU can be listed, named and given memory, and still run nothing: TensorFlow may hold no kernels
for it, or cuDNN may not know it. The first operation tells.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mgpu_helpers import nvml

TURING = (7, 5)  # the oldest GPUs that cuDNN 9.11 and later know
# What CUDA, cuDNN and TensorFlow say, in TensorFlow 2.18 to 2.21 with CUDA 12.
_KERNELS = re.compile(
    r"no kernel image|INVALID_PTX|INVALID_IMAGE|NO_BINARY|INVALID_HANDLE|"
    r"in-memory CUBIN|named symbol not found|invalid device function"
)
# The wheel has kernels to compile, and the driver is older than the CUDA that wrote them.
_DRIVER = re.compile(r"UNSUPPORTED_PTX|unsupported toolchain")
DRIVERS = {"12.5": "555", "12.8": "570"}  # the first version of the driver for a CUDA
_CUDNN = re.compile(r"cudnn|\bDNN\b|no algorithm worked|convolution algorithm", re.I)
_MEMORY = re.compile(r"out.of.memory|\bOOM\b|ALLOC_FAILED|failed to allocate", re.I)
_GPU = re.compile(r"cuda|cudnn|cublas|\bGPU\b|\bstream\b|\bcu[A-Z]\w+", re.I)
# XLA ends the process on a GPU that its compiler does not know, as TensorFlow 2.21's on Blackwell.
WITHOUT_XLA = (
    "take a newer TensorFlow or NVIDIA's container; until then model.compile(jit_compile=False), "
    "because Keras compiles with XLA wherever there is a GPU"
)
_XLA = "import tensorflow as tf; tf.function(lambda x: x @ x, jit_compile=True)(tf.ones([8, 8]))"
Details = Mapping[str, Any]  # what tf.config.experimental.get_device_details says of a GPU


def run(names: Iterable[str], details: Mapping[str, Details]) -> None:
    """Run a product and a convolution on each device; raise a sentence where one cannot."""
    import tensorflow as tf

    for name in names:
        try:
            _try(name)
        except tf.errors.OpError as error:
            raise RuntimeError(_explained(error, name, details.get(name, {}))) from None


def _try(name: str) -> None:
    import tensorflow as tf

    with tf.device(name):
        square = tf.ones([8, 8])
        tf.linalg.matmul(square, square).numpy()
        image, filters = tf.ones([1, 8, 8, 4]), tf.ones([3, 3, 4, 4])
        tf.nn.conv2d(image, filters, strides=1, padding="SAME").numpy()


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
    return _explained(error, "the GPU", {}, known_to_work=True)


def _explained(
    error: BaseException, device: str, details: Details, known_to_work: bool = False
) -> str:
    said = str(error).strip()
    first = next(iter(said.splitlines()), type(error).__name__)
    first = re.sub(r"\{\{.*?\}\} *| *\[Op:\w+\]", "", first)[:200].rstrip(".: ")
    if _GPU.search(said):
        for gpu in nvml.query().gpus:
            if gpu.problem:
                return gpu.problem
    name, capability = details.get("device_name"), details.get("compute_capability")
    known = [device, name, capability and f"compute capability {capability[0]}.{capability[1]}"]
    which = ", ".join(filter(None, known))
    if _MEMORY.search(said):
        return (
            f"There is too little memory on {device} ({first}): stop what holds it, which "
            "nvidia-smi shows, or use smaller batches."
        )
    if _DRIVER.search(said):
        import tensorflow as tf

        cuda = tf.sysconfig.get_build_info().get("cuda_version", "").rpartition(".")[0]
        version = f", version {DRIVERS[cuda]} or later" if cuda in DRIVERS else ""
        newer = f"one for CUDA {cuda} or newer{version}" if cuda else "a newer one"
        return (
            f"The driver is too old to compile TensorFlow's kernels for {which} ({first}): "
            f"install {newer}."
        )
    if _KERNELS.search(said):
        built = [have for _, have in _built()]
        remedy = "install the newest TensorFlow, or use NVIDIA's container"
        if capability and built and capability < min(built):
            remedy = "install an older TensorFlow, this one is built for newer GPUs only"
        return f"TensorFlow has nothing that runs on {which} ({first}): {remedy}."
    if _CUDNN.search(said):
        if capability and capability < TURING:
            return (
                f"cuDNN does not work on {which} ({first}), and from version 9.11 on it knows no "
                "GPU before Turing: pip install 'nvidia-cudnn-cu12<9.11'."
            )
        return (
            f"cuDNN does not work on {which} ({first}): pip install --upgrade nvidia-cudnn-cu12, "
            "or free the GPU's memory if nvidia-smi shows that it is full."
        )
    if known_to_work:
        return f"{first}."
    return f"{which} does not work ({first}): restart with MGPU_MODE=cores to go on without it."


def announce(details: Iterable[Details]) -> None:
    """Say, before it happens, that CUDA compiles TensorFlow's kernels for one of these GPUs.

    Nothing is said where the wheel brings finished kernels, or where CUDA has kept compiled ones.
    """
    for each in details:
        if _finished(each.get("compute_capability")) or _kept() > 2**20:
            continue
        print(
            f"{each.get('device_name', 'The GPU')} is newer than the finished kernels of this "
            "TensorFlow: CUDA compiles each at its first use, which takes seconds to minutes, and "
            f"keeps it in {_cache()} for the next time.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return


def try_xla(details: Iterable[Details]) -> None:
    """Say where XLA ends the process on a GPU that is newer than all that the wheel was built for.

    A process of its own tries it, as there is nothing to catch. No other GPU costs this time.
    """
    newest = max((have for _, have in _built()), default=(99, 0))
    names = [each.get("device_name", "this GPU") for each in details
             if (each.get("compute_capability") or newest) > newest]  # fmt: skip
    env = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    command = [sys.executable, "-c", _XLA]
    if names and subprocess.run(command, env=env, capture_output=True).returncode:
        print(
            f"XLA ends a process that compiles for {names[0]}: {WITHOUT_XLA}.",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _finished(capability: tuple[int, int] | None) -> bool:
    """Say whether the wheel has finished code for this GPU, and not only PTX to compile."""
    built = _built()
    if capability is None or not built:
        return True
    return any(
        kind == "sm" and major == capability[0] and minor <= capability[1]
        for kind, (major, minor) in built
    )


def _built() -> list[tuple[str, tuple[int, int]]]:
    """List what the wheel was built for: ("sm", (8, 0)) is finished, ("compute", (9, 0)) is PTX.

    TensorFlow 2.21's has a part of the kernels for 9.0 finished (249 of 1398 files), so that what
    it lists as compute_90 counts as PTX on an H100 too.
    """
    import tensorflow as tf

    listed = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    found = (re.match(r"(sm|compute)_(\d+)(\d)", name) for name in listed)
    return [(each[1], (int(each[2]), int(each[3]))) for each in found if each]


def _cache() -> Path:
    if path := os.environ.get("CUDA_CACHE_PATH"):
        return Path(path)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", "")) / "NVIDIA" / "ComputeCache"
    return Path.home() / ".nv" / "ComputeCache"


def _kept() -> int:
    """Count the bytes of kernels that CUDA compiled before and kept."""
    return sum(path.stat().st_size for path in _cache().rglob("*") if path.is_file())
