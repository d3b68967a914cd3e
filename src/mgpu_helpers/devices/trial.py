"""A GPU's first operations.

A GPU can be listed, named and given memory, and still run nothing: TensorFlow may hold no kernels
for it, or cuDNN may not know it. The first operation tells.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mgpu_helpers.devices.messages import Details, built_for, explained

# XLA ends the process on a GPU that its compiler does not know, as TensorFlow 2.21's on Blackwell.
WITHOUT_XLA = (
    "take a newer TensorFlow or NVIDIA's container; until then model.compile(jit_compile=False), "
    "because Keras compiles with XLA wherever there is a GPU"
)
_XLA = "import tensorflow as tf; tf.function(lambda x: x @ x, jit_compile=True)(tf.ones([8, 8]))"


def run(name: str, details: Details) -> None:
    """Run a product and a convolution on a device; raise a sentence where it cannot."""
    import tensorflow as tf

    try:
        _try(name)
    except tf.errors.OpError as error:
        other = "{which} does not work ({first}): restart with MGPU_MODE=cores to go on without it."
        raise RuntimeError(explained(error, name, details, other)) from None


def _try(name: str) -> None:
    import tensorflow as tf

    with tf.device(name):
        square = tf.ones([8, 8])
        tf.linalg.matmul(square, square).numpy()
        image, filters = tf.ones([1, 8, 8, 4]), tf.ones([3, 3, 4, 4])
        tf.nn.conv2d(image, filters, strides=1, padding="SAME").numpy()


def announce(details: Iterable[Details]) -> None:
    """Say, before it happens, that CUDA compiles TensorFlow's kernels for one of these GPUs.

    Nothing is said where the wheel brings finished kernels, or where CUDA has kept compiled ones.
    """
    cache = Path(os.environ.get("CUDA_CACHE_PATH") or Path.home() / ".nv" / "ComputeCache")
    for each in details:
        if _finished(each.get("compute_capability")):
            continue
        if sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) > 2**20:
            return
        _say(
            f"{each.get('device_name', 'The GPU')} is newer than the finished kernels of this "
            "TensorFlow: CUDA compiles each at its first use, which takes seconds to minutes, and "
            f"keeps it in {cache} for the next time."
        )
        return


def try_xla(details: Iterable[Details]) -> None:
    """Say where XLA ends the process on a GPU that is newer than all that the wheel was built for.

    A process of its own tries it, as there is nothing to catch. No other GPU costs this time.
    """
    newest = max(built_for(), default=(99, 0))
    names = [each.get("device_name", "this GPU") for each in details
             if (each.get("compute_capability") or newest) > newest]  # fmt: skip
    env = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    command = [sys.executable, "-c", _XLA]
    if names and subprocess.run(command, env=env, capture_output=True).returncode:
        _say(f"XLA ends a process that compiles for {names[0]}: {WITHOUT_XLA}.")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _finished(capability: tuple[int, int] | None) -> bool:
    """Say whether the wheel has finished code for this GPU, and not only PTX to compile."""
    built = built_for()
    return capability is None or not built or any(
        major == capability[0] and minor <= capability[1] for major, minor in built
    )
