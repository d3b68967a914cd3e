"""Say what to try when a training step does not fit into a device's memory, cheapest first.

SCRIPT:FUNCTION is a Python file and a function in it, called without arguments, that builds a Keras
model and maybe compiles it. What the script does under `if __name__ == "__main__":` does not run,
nor does a step: everything is counted, without a GPU. The code at the end of each line is for that
model, after `plan = devices.setup(N)`.

  %(prog)s train.py:build_model --batch 256 --devices 2 --budget 16GB

The exit status is 0 when something fits, 1 when nothing does for certain, 2 when nothing could be
counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mgpu_helpers import nvml
from mgpu_helpers._formatting import error_line, with_options

_UNITS = {"": 1, "B": 1, **{
    f"{letter}{more}": base ** (i + 1)
    for i, letter in enumerate("kMGT") for more, base in (("B", 1000), ("iB", 1024))
}}  # fmt: skip


def main(arguments: Sequence[str], called: str) -> int:
    """Print the plan for the model that a function of a script makes; return the exit status."""
    parser = argparse.ArgumentParser(
        called, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("builds", metavar="SCRIPT:FUNCTION", help="the function that builds the model")
    add("--batch", type=int, required=True, metavar="N", help="examples in a step, of all devices")
    add("--devices", type=int, default=1, metavar="N", help="that may share a step; default: 1")
    add("--budget", type=size, metavar="SIZE",
        help="of a device, as 16GB or 40GiB; default: the memory of the smallest GPU here, "
        "if there is one")  # fmt: skip
    add("--optimizer", metavar="NAME", help="default: the model's own, or adam")
    options = parser.parse_args(arguments)
    if "tensorflow" not in sys.modules:  # nothing is computed that would need a GPU
        os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    budget = options.budget
    if budget is None:
        budget = min((gpu.memory_total or math.inf for gpu in nvml.query().gpus), default=math.inf)
    try:
        from mgpu_helpers.memory.plan import plan

        model = built(options.builds)
        found = plan(model, options.batch, options.devices, budget, options.optimizer)
    except (TypeError, ValueError, OSError) as error:
        parser.error(with_options(error_line(error), vars(options)))
    print(found)
    return 0 if found.fitting else 1


def size(text: str) -> int:
    """Read a number of bytes, as people write it.

    >>> size("16GB"), size("1.5 GiB"), size("300e6")
    (16000000000, 1610612736, 300000000)
    """
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kMGT]?i?B?)", text.strip())
    if not found or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 16GB, 40GiB or 300e6")
    return int(float(found[1]) * _UNITS[found[2]])


def built(text: str) -> Any:
    """Give what the function makes that is named as script.py:function."""
    script, _, name = text.rpartition(":")
    if not script.endswith(".py") or not name:
        raise ValueError(
            f"{text!r} names no function of a script: write it as train.py:build_model."
        )
    path = Path(script)
    if not path.is_file():
        raise ValueError(f"there is no file {script} here.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            raise ValueError(f"there is no function {name!r} in {script}.")
        return function()
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and f"no function {name!r}" in str(error):
            raise
        raise ValueError(
            f"{script} does not build the model: {type(error).__name__}: {error_line(error)}"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
