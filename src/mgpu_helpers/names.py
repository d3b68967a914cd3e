"""How devices are named: the short form of the plan, in the order people count, and as a block."""

from __future__ import annotations

import contextlib
import re
from typing import Any


def short(name: str) -> str:
    """Shorten a device name to the form of the plan: "/CPU:1"; "" when it names no device.

    >>> short("/job:localhost/replica:0/task:0/device:CPU:1")
    '/CPU:1'
    """
    found = re.search(r"(?:^|[/:])(?!(?:job|replica|task|stream):)([A-Za-z_]+):(\d+)$", name)
    return f"/{found[1].upper()}:{found[2]}" if found else ""


def order(name: str) -> tuple[str, int]:
    """Sort device names as people count: "/CPU:2" before "/CPU:10"."""
    kind, _, index = name.rpartition(":")
    return kind, int(index or 0)


def placed(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Place on a device; None leaves it to the surrounding one, which `tf.device(None)` does not.

    >>> with placed("/CPU:0"):
    ...     x = tf.ones([2])
    """
    import tensorflow as tf

    return contextlib.nullcontext() if device is None else tf.device(device)
