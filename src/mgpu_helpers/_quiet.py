"""TensorFlow's start-up noise, off; MGPU_VERBOSE=1 brings it back. Lesson 00 uses it first."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

__all__ = ["start"]


@contextlib.contextmanager
def redirected(descriptor: int) -> Iterator[IO[bytes]]:
    """Send a file descriptor (1 or 2) to a temporary file for the block, and give that file.

    Python's own sys.stdout and sys.stderr are not enough: TensorFlow writes from C++.

    >>> with redirected(2) as file:
    ...     written = os.write(2, b"said from C")
    ...     start = file.seek(0)
    ...     file.read()
    b'said from C'
    """
    stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
    stream.flush()
    kept = os.dup(descriptor)
    in_memory = hasattr(os, "memfd_create")  # /tmp may be full
    with open(os.memfd_create("said"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield file
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)


def verbose() -> bool:
    """Say whether MGPU_VERBOSE asks for TensorFlow's own messages.

    >>> verbose()
    False
    """
    return os.environ.get("MGPU_VERBOSE", "0") not in ("", "0")


@contextlib.contextmanager
def kept_back() -> Iterator[None]:
    """Keep what C++ writes to stderr in the block from the reader, unless the block fails.

    When the block raises, all that was written is shown first. MGPU_VERBOSE=1 shows it as it comes:
    the way to see what a process said that crashed in the block.

    >>> with kept_back():
    ...     devices = tf.config.list_physical_devices()
    """
    if verbose():
        yield
        return
    said = b""
    try:
        with redirected(2) as noise:
            try:
                yield
            finally:
                noise.seek(0)
                said = noise.read()
    except Exception:  # and not Ctrl-C
        sys.stderr.write(said.decode(errors="replace"))
        raise


def start() -> None:
    """Import TensorFlow without its messages; do nothing when MGPU_VERBOSE=1.

    The log level alone does not silence the import, and keeping back what the import says does not
    silence what comes later, so both are done. An import that fails shows what it had to say.

    >>> start()
    """
    if verbose():
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with kept_back():
        import tensorflow as tf

        # The first look for GPUs says what CUDA lacks, in 2.19 and 2.20 at any log level. The
        # answer is kept for later calls; nothing is started by it.
        tf.config.list_physical_devices()

    tf.get_logger().setLevel("ERROR")
    # In a notebook AutoGraph also prints what it logs, as that it leaves Keras's own code as it is.
    tf.autograph.set_verbosity(0, alsologtostdout=False)
    # A machine that draws its first chart is told that fonts are being looked for.
    logging.getLogger("matplotlib.font_manager").setLevel("ERROR")


def first_session() -> None:
    """Run a Session of nothing, because the first of a process says a line: 2.18 to 2.20 always.

    Call it after TensorFlow has its devices. It takes 15 ms, and neither GPUs nor the pools of
    threads that later Sessions share have a part in it. MGPU_VERBOSE=1 leaves it out.

    >>> first_session()
    """
    if verbose():
        return
    import tensorflow.compat.v1 as tf

    config = tf.ConfigProto(device_count={"CPU": 1, "GPU": 0})
    config.session_inter_op_thread_pool.add(num_threads=1)
    with kept_back(), tf.Graph().as_default(), tf.Session(config=config) as session:
        session.run(tf.no_op())
