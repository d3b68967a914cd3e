"""Records of steps on GPUs, as TensorFlow wrote them."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def gpu_step(version: str) -> Any:
    """Give the RunMetadata of a step on two GPUs, by data/make_gpu_step.cc and a TensorFlow.

    It has kernels on several streams, a loop, and of NCCL what carries no operation.
    """
    from tensorflow.compat.v1 import RunMetadata

    return RunMetadata.FromString((DATA / f"gpu_step_{version}.pb").read_bytes())


def recorded(name: str) -> Any:
    """Give the RunMetadata of a step that ran on one H100, with TensorFlow 2.21.

    "step" is a network of 128 digits in a Session, "lstm" the LSTMs of keras_models by fit, "split"
    its residual network by fit.split on two shares of the GPU.
    """
    from tensorflow.compat.v1 import RunMetadata

    packed = DATA / f"h100_{name}.pb.xz"
    return RunMetadata.FromString(lzma.decompress(packed.read_bytes()))
