"""A Python of its own, for what has to happen before TensorFlow starts."""

from __future__ import annotations

import os
import subprocess
import sys


def python(code: str) -> str:
    """Run code in a new Python that sees no GPU; return what it prints, or else its errors.

    >>> python("print(1 + 1)")
    '2'
    """
    without_gpus = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=without_gpus
    )
    return (done.stdout or done.stderr).rstrip()
