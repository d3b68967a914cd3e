"""Compile the stand-in driver of fake_driver.c, so that the real pynvml and TensorFlow meet it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What TensorFlow wants to load before it counts a GPU; an empty library of that name will do.
CUDA_LIBRARIES = (
    "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9",
    "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12",
)  # fmt: skip


def build(folder: Path, extra: tuple[str, ...] = ()) -> str:
    """Compile the driver into a folder for LD_LIBRARY_PATH; skip the test where that cannot be."""
    if sys.platform != "linux":
        pytest.skip("the stand-in driver is a Linux library")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler for the stand-in driver")
    source = Path(__file__).with_name("fake_driver.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source],
        check=True,
    )
    for name in ("libcuda.so.1", *extra):
        (folder / name).symlink_to(library)
    return str(folder)
