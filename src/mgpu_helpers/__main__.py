"""Print what this machine is: versions, driver, GPUs as nvidia-smi, CUDA and the lessons number
them, why TensorFlow leaves a GPU unused and what to do about it, and the plan that the lessons
would use. The exit status is 0 when the lessons can run, with or without a GPU.

With the name of a Python script, run that, with what its fit trains on all devices: no line of it
has to change. With --check first it compares a step of each model on all devices with one device
before it trains.

Take fit.strategy when your script makes the model and one device can hold it: each device then
has a copy of the weights.
Take fit.use when the model is there already, or when one device cannot hold it: its options cut
the model, or let a device hold less.
Take mgpu train.py when no line of the script is to change: it runs the script as if all of it
stood in the scope of fit.strategy.

  mgpu train.py --epochs 3
  mgpu train.py --check --epochs 3
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import importlib
import json
import os
import shlex
import sys
from pathlib import Path

from mgpu_helpers import __version__
from mgpu_helpers._files import check_script

DESCRIPTION = __doc__
NEXT = """
next  {0} train.py               trains with all of these devices; the script stays as it is
      {0} run a.py b.py          gives each script a device of its own
      {0} plan train.py:build --batch 256    says what to try when a step does not fit
      {0} lessons DIR            copies the lessons, for jupyter lab"""
# The module of each command has a `main`, which takes its arguments and what it was called.
COMMANDS = {
    "run": ("mgpu_helpers.jobs.command", "run scripts, each on a device of its own"),
    "cluster": ("mgpu_helpers.cluster.command", "run a script as all workers of several machines"),
    "plan": ("mgpu_helpers.memory.command", "say what to try when a step does not fit"),
    "completion": ("mgpu_helpers._completion", "print what lets bash and zsh complete commands"),
    "verdict": ("mgpu_helpers.lessons.verdict", "run the lessons on these GPUs and say what held"),
    "lessons": ("mgpu_helpers.lessons.command", "copy the lessons of this version into a folder"),
}


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or do what a command says; return the exit status: 0 when all is well."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it
            setattr(sys, name, open(os.devnull, "w"))
    arguments = sys.argv[1:] if arguments is None else arguments
    status, failed = 0, None
    try:
        status = _called(arguments)
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 wraps what comes while a class gets its attributes' names.
        if not any(isinstance(each, KeyboardInterrupt) for each in (error, error.__cause__)):
            raise
        status = 130
    except OSError as error:
        if error.filename or _is_script(arguments):  # no output of ours
            raise
        failed = error
    try:
        sys.stdout.flush()
    except OSError as error:  # Python is not to try it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        failed = error
    if failed and arguments[:1] not in (["run"], ["cluster"]):  # which go on where nobody reads
        status = status or 1
        if failed.errno != errno.EPIPE:
            said = f"what is said cannot be written ({failed.strerror}): make room"
            print(f"mgpu: {said}, or send it elsewhere.", file=sys.stderr)
    return status


def _is_script(arguments: list[str]) -> bool:
    return arguments[:1] != [] and arguments[0].endswith(".py") and os.path.isfile(arguments[0])


def _called(arguments: list[str]) -> int:
    called = "mgpu" if Path(sys.argv[0]).stem == "mgpu" else "python -m mgpu_helpers"
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
        return module.main(arguments[1:], f"{called} {arguments[0]}")
    parser = argparse.ArgumentParser(
        called, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the facts for a bug report")
    parser.add_argument("--version", action="version", version=f"mgpu {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command",
        description=f"{called} COMMAND --help says more of each",
    )  # fmt: skip
    for name, (_, does) in COMMANDS.items():
        commands.add_parser(name, help=does)
    script = (arguments or [""])[0]
    if _is_script(arguments):
        try:
            check_script(script)
        except ValueError as error:
            parser.error(str(error))
        return importlib.import_module("mgpu_helpers.fit.command").main(arguments, called)
    if os.path.isfile(script):
        call = shlex.join([script, *(["--", *arguments[1:]] if arguments[1:] else [])])
        parser.error(f"{script!r} is no command: {called} run {call} gives it a device of its own")
    if os.path.isdir(script):
        parser.error(f"{script!r} is a folder: name a script in it, as in {called} train.py")
    if script.endswith(".py"):
        parser.error(f"there is no file {script} here")
    if script[:1] not in ("", "-"):
        parser.error(
            f"{script!r} is no command, and no script that is here: the commands are "
            f"{', '.join(COMMANDS)}, and {called} train.py runs a script"
        )
    options = parser.parse_args(arguments)
    if options.command:
        parser.error(f"{options.command} takes no --json: call {called} {options.command} --help")
    return _machine(options.json, called)


def _machine(as_json: bool, called: str) -> int:
    from mgpu_helpers import devices
    from mgpu_helpers._doctor import facts, report

    known, plan, error = facts.without_tensorflow(), None, ""
    if not as_json:
        # Before TensorFlow is imported, which takes seconds and can end the process.
        print(report.head(known), flush=True)
    try:
        plan = devices.setup(2)
    except Exception as problem:
        error = report.no_plan(problem)
    if "tensorflow" in sys.modules:
        known = facts.with_tensorflow(known)
    if as_json:
        shown = {"plan": plan and dataclasses.asdict(plan), "problems": report.diagnose(known)}
        print(json.dumps({**shown, "error": error, "facts": dataclasses.asdict(known)}, indent=1))
    else:
        print(report.body(known), end="\n\n")
        print(plan if plan else report.row("error", error))
        if plan:
            print(NEXT.format(called))
    return 0 if plan else 1


if __name__ == "__main__":
    raise SystemExit(main())
