"""Say what this machine is and whether the lessons can run on it: `python -m mgpu_helpers`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

DESCRIPTION = """\
Print what this machine is: versions, driver, GPUs as nvidia-smi, CUDA and the lessons number
them, why TensorFlow leaves a GPU unused and what to do about it, and the plan that the lessons
would use. The exit status is 0 when the lessons can run, with or without a GPU.
"""


def main(arguments: list[str] | None = None) -> int:
    """Print the report and return the exit status: 0 when the lessons can run, else 1."""
    parser = argparse.ArgumentParser(
        "python -m mgpu_helpers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the facts for a bug report")
    options = parser.parse_args(arguments)
    return _machine(options.json)


def _machine(as_json: bool) -> int:
    from mgpu_helpers import report

    facts = report.gather()
    if not as_json:
        # Before TensorFlow is imported, which takes seconds and can end the process.
        print(report.head(facts), flush=True)
    plan = None
    error = ""
    try:
        from mgpu_helpers import devices

        plan = devices.setup(2)
    except Exception as problem:
        error = report.explain(problem)
    if "tensorflow" in sys.modules:
        facts = report.with_tensorflow(facts)
    if as_json:
        shown = {"plan": plan and dataclasses.asdict(plan), "problems": report.diagnose(facts)}
        print(json.dumps({**shown, "error": error, "facts": dataclasses.asdict(facts)}, indent=1))
    else:
        print(report.body(facts), end="\n\n")
        print(plan if plan else report.row("error", error))
    return 0 if plan else 1


if __name__ == "__main__":
    raise SystemExit(main())
