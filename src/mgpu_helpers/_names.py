"""How devices are named: the short form of the plan, in the order people count; what Keras's is."""

from __future__ import annotations

import inspect
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
    """Sort device names as people count: "/CPU:2" before "/CPU:10".

    >>> sorted(["/CPU:10", "/CPU:2"], key=order)
    ['/CPU:2', '/CPU:10']
    """
    kind, _, index = name.rpartition(":")
    return kind, int(index or 0)


def of_keras(what: Any, *others: str) -> bool:
    """Say whether a function or class is Keras's, or of the other packages.

    >>> import keras
    >>> of_keras(keras.Model.fit), of_keras(keras.Model), of_keras(print)
    (True, True, False)
    >>> of_keras(type("Made", (), {"__module__": None}))
    False
    """
    home = getattr(inspect.unwrap(what), "__module__", None) or ""  # None: made by `exec`
    return home.startswith(("keras.", *others))
