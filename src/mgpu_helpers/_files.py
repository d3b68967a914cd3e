"""Scripts that Python can read, and files that are written whole or not at all."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_script(script: str | os.PathLike[str]) -> None:
    """Raise a ValueError that says why Python cannot read a script, unless it can."""
    try:
        ast.parse(Path(script).read_bytes(), Path(script).name)
        return
    except OSError as error:
        why = f"{error.strerror}: see that it is yours to read"
    except (SyntaxError, ValueError) as error:
        why = str(error)
        if why.startswith("(unicode error)"):
            why = "it is not UTF-8: write it as that, or begin it with # coding: latin-1 or its own"
    raise ValueError(f"Python cannot read {os.fspath(script)!r}: {why}.")


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
