"""Say what to try when a training step does not fit into a device's memory, cheapest first.

SCRIPT:FUNCTION is a Python file and a function in it, called without arguments, that builds a Keras
model and maybe compiles it. What the script does under `if __name__ == "__main__":` does not run,
nor what comes after its first fit, and no step does: everything is counted, without a GPU, and
weights get no values where that will do, so that the model may be larger than this machine. The
function may return (model, data) with data as fit takes them, which say what --batch and --length
do. The code at the end of each line is for that model, after `plan = devices.setup(N)`.

  %(prog)s train.py:build_model --batch 256 --devices 2 --budget 16GB

A number of parameters, in place of a function, is counted for GPUs that need not be here:

  %(prog)s --parameters 7B --devices 8 --budget 80GB --link NVLINK_3

The exit status is 0 when something fits, 1 when nothing does for certain, 2 when nothing could be
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from mgpu_helpers import _quiet, nvml
from mgpu_helpers._files import check_script
from mgpu_helpers._formatting import error_line, whole, with_options
from mgpu_helpers._later import keras, tf
from mgpu_helpers.graph.step import without_values
from mgpu_helpers.memory.paper import Paper, on_paper
from mgpu_helpers.scaling import links

if TYPE_CHECKING:
    from mgpu_helpers.memory.planning import Plan

LINKS = {name: link for name, link in vars(links).items() if isinstance(link, links.Link)}
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
    add("builds", nargs="?", metavar="SCRIPT:FUNCTION", help="the function that builds the model")
    add("--batch", type=whole, metavar="N", help="examples in a step of the model, of all devices")
    add("--devices", type=whole, default=1, metavar="N", help="that may share a step; default: 1")
    add("--budget", type=budget, metavar="SIZE",
        help="of a device, as 16GB or 40GiB; default: the memory of the smallest GPU here, "
        "if there is one")  # fmt: skip
    add("--length", type=whole, nargs="+", metavar="N",
        help="what open sizes of inputs are, as of texts; of several, the plan is for the longest")
    add("--optimizer", metavar="NAME", help="default: the model's own, or adam")
    add("--parameters", type=count, metavar="N", help="as 7B or 125M, in place of a function")
    add("--precision", choices=("mixed", "float32"), default="mixed", help="of the parameters")
    add("--activations", type=size, default=0, metavar="SIZE",
        help="that one device would keep of the whole batch; default: 0")  # fmt: skip
    add("--link", choices=LINKS, metavar="NAME", help=f"between devices: {', '.join(LINKS)}")
    options = parser.parse_args(arguments)
    if bool(options.builds) == bool(options.parameters):
        parser.error("give SCRIPT:FUNCTION or --parameters.")
    unused = ("batch", "length", "optimizer") if options.parameters else ("activations", "link")
    for name in filter(vars(options).get, unused):
        other = "SCRIPT:FUNCTION" if options.parameters else "--parameters"
        parser.error(f"--{name} is for {other}, and says nothing here: leave it out.")
    if "tensorflow" not in sys.modules:  # nothing is computed that would need a GPU
        os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    most = options.budget
    if most is None:
        most = min((gpu.memory_total or math.inf for gpu in nvml.query().gpus), default=math.inf)
    try:
        found: Plan | Paper
        if options.parameters:
            found = on_paper(
                options.parameters, options.devices, most, precision=options.precision,
                activations=options.activations, link=LINKS.get(options.link),
            )  # fmt: skip
        else:
            made = built(options.builds)
            from mgpu_helpers.memory.planning import plan

            model, *data = made if isinstance(made, tuple) else (made,)
            sizes = [each for each in (options.batch, *data, options.length) if each is not None]
            if options.batch is None and not data:
                raise ValueError("give --batch: the examples in a step, of all devices together.")
            found = plan(
                model, sizes[0], options.devices, most, options.optimizer,
                length=sizes[1] if len(sizes) > 1 else None,
            )  # fmt: skip
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


def budget(text: str) -> int:
    """Read a device's memory: a size of which nobody has to guess the unit.

    >>> budget("16GB")
    16000000000
    """
    if size(text) < 10_000 and re.fullmatch(r"[\d.]+", text.strip()):
        text = text.strip()
        raise argparse.ArgumentTypeError(f"{text} bytes are no memory: {text}GB or {text}MB?")
    return size(text)


def count(text: str) -> float:
    """Read a number of parameters, as people write it.

    >>> count("7B"), count("1.5M"), count("7e9")
    (7000000000.0, 1500000.0, 7000000000.0)
    """
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kMBT]?)", text.strip())
    if not found or not (number := float(found[1]) * 1000 ** " kMBT".index(found[2] or " ")):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters: write 7B or 125M")
    return number


class _Trains(BaseException):
    """A script has come to its first fit."""


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
    check_script(path)
    _quiet.start()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        with (
            mock.patch.object(sys, "argv", [script]),
            mock.patch.object(keras.callbacks.CallbackList, "__init__", side_effect=_Trains),
            contextlib.suppress(_Trains),
        ):
            spec.loader.exec_module(module)
        tf.distribute.experimental_set_strategy(None)  # that of a script: one device is counted
        if callable(function := getattr(module, name, None)):
            try:
                with without_values():  # it may be larger than this machine
                    return function()
            except Exception:  # whoever quantizes weights reads them
                return function()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{script} does not build the model: {type(error).__name__}: {error_line(error)}"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    raise ValueError(f"there is no function {name!r} in {script}.")
