"""Run a script as Python does, with what its `fit` trains on all devices: `mgpu train.py`."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What a script calls that says itself where it trains, as it is written.
_OWN = re.compile(
    r"(\w+\.)*distribut(e|ion)(\.(?!get_|has_|in_cross_)\w+)+|(\w+\.)?\w+Strategy|(tf|tensorflow|keras)\.device"
    r"|devices\.setup|fit\.(strategy|parallel|shard|split)"
)


def main(arguments: Sequence[str], called: str) -> int:
    """Run a script with its arguments; errors and exit statuses are the script's own.

    --check as its first argument compares a step on all devices with one device before it trains.
    """
    script = arguments[0]
    path = Path(script)
    why = left_alone(path.read_bytes())
    # Of a script that has such an option itself it is the script's.
    checks = "--check" in arguments[1:2] and b"--check" not in path.read_bytes()
    sys.argv = [script, *arguments[2 if checks else 1 :]]
    sys.path.insert(0, str(path.resolve().parent))
    if why:
        why += "; --check compares nothing then: call fit.check(model, batch) in it" * checks
        print(f"{called}: {script} runs as it is: {why}", file=sys.stderr, flush=True)
        runpy.run_path(str(path.resolve()), run_name="__main__")
        return 0
    from mgpu_helpers import devices, fit

    plan = devices.setup()
    stand_in = " (cores stand in for GPUs: slower than TensorFlow alone)" * (plan.mode == "cores")
    print(
        f"{called}: {script} trains on {', '.join(plan.devices)}{stand_in}. In the script that is "
        "`with fit.strategy(devices.setup()).scope():` around what makes and compiles the model. "
        f"{called} run {script} gives it one device.",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    strategy = fit.strategy(plan)
    if checks:
        strategy.before_training = functools.partial(_tell, called)
    with strategy.scope():
        runpy.run_path(str(path.resolve()), run_name="__main__")
    return 0


def _tell(called: str, model: Any, batch: Any) -> None:
    """Say what a step of a model does on all devices that it does not on one."""
    from mgpu_helpers import fit

    equal = f"a step of {model.name!r} does on all devices what it does on one."
    for sentence in fit.check(model, batch) or [equal]:
        print(f"{called}: {sentence}", file=sys.stderr, flush=True)


def left_alone(code: str | bytes) -> str:
    """Say why a script is not to be put on all devices; "" where it is.

    >>> left_alone("with tf.device('/GPU:1'): model.fit(x)")
    "line 1 has tf.device('/GPU:1'), so it says itself where it trains"
    """
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    for call in calls:
        if _OWN.fullmatch(ast.unparse(call.func)):
            said = ast.unparse(call)
            return f"line {call.lineno} has {said}, so it says itself where it trains"
    if not any(isinstance(call.func, ast.Attribute) and call.func.attr == "fit" for call in calls):
        return (
            "it calls no fit itself. Where a module that it imports does, put `with "
            "fit.strategy(devices.setup()).scope():` around what makes and compiles the model"
        )
    return ""
