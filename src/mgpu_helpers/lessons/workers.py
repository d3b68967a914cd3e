"""The script of two workers, run by one process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any
from unittest import mock


def run_alone(path: str | os.PathLike[str], folder: Path, device: str) -> dict[str, Any]:
    """Run train_workers.py in this process without the line marked "added"; return its names."""
    import tensorflow as tf

    script = Path(path).read_text(encoding="utf-8")
    (added,) = [line.strip() for line in script.splitlines() if line.endswith("# added")]
    names: dict[str, Any] = {"__name__": "__main__"}
    words = [str(path), "--folder", str(folder)]
    with tf.device(device), mock.patch("sys.argv", words), contextlib.redirect_stdout(None):
        exec(script.replace(added, "if True:"), names)
    return names
