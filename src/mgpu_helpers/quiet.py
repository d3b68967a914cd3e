"""TensorFlow's start-up noise, off; MGPU_VERBOSE=1 brings it back. Lesson 00 uses it first."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def redirected(descriptor: int) -> Iterator[IO[bytes]]:
    """Send a file descriptor (1 or 2) to a temporary file for the block, and give that file.

    Python's own sys.stdout and sys.stderr are not enough: TensorFlow writes from C++.
    """
    stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield file
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)


def verbose() -> bool:
    """Say whether MGPU_VERBOSE asks for TensorFlow's own messages."""
    return os.environ.get("MGPU_VERBOSE", "0") not in ("", "0")


def start() -> None:
    """Import TensorFlow without its messages; do nothing when MGPU_VERBOSE=1.

    The log level alone does not silence the import, and redirecting the import alone does not
    silence what comes later, so both are done. An import that fails shows what it had to say.
    """
    if verbose():
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" not in sys.modules:
        said = b""
        try:
            with redirected(2) as noise:
                try:
                    import tensorflow  # noqa: F401
                finally:
                    noise.seek(0)
                    said = noise.read()
        except BaseException:
            sys.stderr.write(said.decode(errors="replace"))
            raise
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    # A machine that draws its first chart is told that fonts are being looked for.
    logging.getLogger("matplotlib.font_manager").setLevel("ERROR")
