"""Which devices are there: a wrong name gets a sentence, before TensorFlow runs it elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from mgpu_helpers.devices.plan import current
from mgpu_helpers.names import short


def checked(devices: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of devices as a plan writes them; raise ValueError if one is not there.

    Told to place something on a device that is not there, TensorFlow places it elsewhere, without
    a word. A device may be written in any of TensorFlow's ways, or be a `tf.config.LogicalDevice`.
    TensorFlow is started where it has not been. Without a plan the devices of a classic graph are
    not looked up: its Session may have others.

    >>> checked(["cpu:0", "/device:CPU:1"])
    ('/CPU:0', '/CPU:1')
    """
    import tensorflow as tf

    given = [] if isinstance(devices, str) else [getattr(d, "name", d) for d in devices]
    if not given or not all(isinstance(name, str) for name in given):
        raise ValueError(f"devices={devices!r} is no list of devices: give one, as plan.devices.")
    if current() is None and not tf.compat.v1.executing_eagerly_outside_functions():
        return tuple(given)
    found = [device.name for device in tf.config.list_logical_devices()]
    there = {_written(name): short(name) for name in found}
    for name in given:
        if _written(name) not in there:
            raise ValueError(
                f"there is no device {name!r}, and TensorFlow would use another one without a "
                f"word: use {', '.join(dict.fromkeys(there.values()))}."
            )
    return tuple(there[_written(name)] for name in given)


def placed(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Place on a device; None leaves it to the surrounding one, which `tf.device(None)` does not.

    A device that is not there raises ValueError.

    >>> with placed("/CPU:0"):
    ...     x = tf.ones([2])
    """
    import tensorflow as tf

    return contextlib.nullcontext() if device is None else tf.device(*checked([device]))


def _written(name: str) -> str:
    """Write a name as it is looked up: in full where it names a job of a cluster."""
    name = name.removeprefix("/job:localhost/replica:0/task:0")
    return name if "/job:" in name else short(name)
