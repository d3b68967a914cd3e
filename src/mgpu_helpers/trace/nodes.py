"""How RunMetadata names an operation, and how many bytes a tensor has."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from mgpu_helpers import private


def plain_name(name: str) -> str:
    """Give the name that an operation has for people: what is fed has that of its placeholder."""
    if not name.startswith(private.FED):
        return name
    return re.sub(rf"^{private.FED}(.+)_\d+_\d+$", r"\1", name)


def size_of(node: Any, tensor: str) -> int | None:
    """Count a tensor's bytes from its shape; None for one without a fixed size (a string)."""
    slot = int(tensor.partition(":")[2] or 0)
    for output in node.output:
        if output.slot == slot:
            return bytes_of(output)
    return None


def bytes_of(output: Any) -> int | None:
    """Count the bytes of one output of an operation from its shape, None without a fixed size."""
    about = output.tensor_description
    each = _item_size(about.dtype)
    return each and each * math.prod([dim.size for dim in about.shape.dim])


@functools.cache
def _item_size(dtype: int) -> int | None:
    import tensorflow as tf

    kind = tf.dtypes.as_dtype(dtype)
    return None if kind in (tf.string, tf.resource, tf.variant) else kind.size
