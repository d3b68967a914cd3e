"""TensorFlow and Keras, loaded as soon as something of them is used: importing a room loads none.

>>> from mgpu_helpers._later import tf
>>> tf.constant([1, 2]).shape.rank
1
"""

from __future__ import annotations

import importlib
from typing import Any


class _Later:
    """Stands for a module until it is used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what tools ask of anything that they find in a module
            raise AttributeError(name)
        return getattr(importlib.import_module(self._module), name)


keras: Any = _Later("keras")
tf: Any = _Later("tensorflow")
