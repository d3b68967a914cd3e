"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for bytes that takes the place of `path` when the block ends without an error.

    Until then, and after an error, the old file stays as it is, and nothing else stays beside it.

    >>> with replacing("weights.npz") as file:
    ...     np.savez(file, w=np.ones(3))
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
