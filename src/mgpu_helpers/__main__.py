"""Say what this machine is and whether the lessons can run on it: `python -m mgpu_helpers`.

`python -m mgpu_helpers run a.py b.py` gives each script a device of its own, as lesson 04 does;
`python -m mgpu_helpers cluster train.py` runs one script as all workers of a cluster.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Print what this machine is: versions, driver, GPUs as nvidia-smi, CUDA and the lessons number
them, why TensorFlow leaves a GPU unused and what to do about it, and the plan that the lessons
would use. The exit status is 0 when the lessons can run, with or without a GPU.
"""
RUN = """\
Run Python scripts, each on a GPU of its own, or on a core where there is no GPU; in order, the
next as soon as a device is free. What follows -- is given to every job. The exit status is 0
when all ended well, 1 when one did not, 2 when nothing could be started, 130 when stopped.
"""
AFTER = """\
A line of JSON about each job is added to DIR/jobs.jsonl, which pandas.read_json(..., lines=True)
reads. The last line that a job prints and that is a JSON object is in it: {"loss": 0.25} becomes
the column result_loss.

  python -m mgpu_helpers run train.py --grid width=32,64 seed=0,1,2 --skip-done -- --epochs 3

is six jobs: train.py --epochs 3 --width=32 --seed=0, and so on. Quote commas in values:
'shape="2,3","4,5"'. In a FILE each line has a job's arguments, as a shell splits them; empty
lines and # comments do not count.
"""


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or run scripts, and return the exit status: 0 when all is well."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["cluster"]:
        from mgpu_helpers.cluster import command

        return command.main(arguments[1:])
    parser = argparse.ArgumentParser(
        "python -m mgpu_helpers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the facts for a bug report")
    commands = parser.add_subparsers(title="commands", metavar="")
    run = commands.add_parser(
        "run",
        help="run scripts, each on a device of its own: run --help says more",
        usage="%(prog)s SCRIPT [SCRIPT ...] [options] [-- arguments for every job]",
        description=RUN,
        epilog=AFTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.add_parser("cluster", help="run a script as all workers of several machines: "
                        "cluster --help says more")  # fmt: skip
    run.add_argument("scripts", nargs="+", metavar="SCRIPT", help="a Python file")
    sweep = run.add_mutually_exclusive_group()
    sweep.add_argument("--grid", nargs="+", action="extend", metavar="NAME=A,B", help="a job for "
                       "every combination: --NAME=A, --NAME=B")  # fmt: skip
    sweep.add_argument("--each", metavar="FILE", help="a job for every line of arguments; - is "
                       "standard input")  # fmt: skip
    run.add_argument("--skip-done", action="store_true", help="leave out the commands that "
                     "DIR/jobs.jsonl says are done")  # fmt: skip
    run.add_argument("--devices", type=_numbers, metavar="0,1", help="only these; default: all")
    run.add_argument("--per-device", type=int, default=1, metavar="N", help="jobs that share a "
                     "device; default: 1")  # fmt: skip
    run.add_argument("--devices-each", type=int, default=1, metavar="N", help="devices for each "
                     "job; default: 1")  # fmt: skip
    run.add_argument("--time-limit", type=float, metavar="S", help="seconds for each job")
    run.add_argument("--logs", default="logs", metavar="DIR", help="what the jobs print goes "
                     "here; default: logs")  # fmt: skip
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        known = "scripts" in options
        behind = "; arguments for the scripts stand behind --" if known else ""
        (run if known else parser).error(f"unrecognized arguments: {' '.join(unknown)}{behind}")
    if "scripts" not in options:
        return _machine(options.json)
    return _run(options, arguments[end + 1 :], run.error)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no devices: write their numbers with commas between, as 0,1"
        ) from None


def _run(options: argparse.Namespace, common: list[str], refuse: Any) -> int:
    from mgpu_helpers import jobs
    from mgpu_helpers.jobs.process import as_ctrl_c

    as_ctrl_c()
    sys.stdout.reconfigure(errors="replace")  # a log may hold what the terminal cannot show
    try:
        commands, names = _commands(options, common)
        report = jobs.run(
            commands,
            names=names,
            devices=options.devices,
            per_device=options.per_device,
            devices_each=options.devices_each,
            time_limit=options.time_limit,
            logs=options.logs,
            skip_done=options.skip_done,
        )
    except (ValueError, RuntimeError) as error:
        refuse(str(error))
    except KeyboardInterrupt as stopped:
        report = getattr(stopped, "report", None)  # None before the first script starts
        print(f"\n{report or 'stopped before a script was started'}")
        return 130
    print(f"\n{report}\n\nwhat they printed is in {options.logs}")
    for job in report.jobs:
        if not job.ok:
            print(f"\n{job.name}, {job.status}; the end of {job.log}:\n{job.tail}")
    return 0 if report.ok else 1


def _commands(options: argparse.Namespace, common: list[str]) -> tuple[list[list[str]], Any]:
    """Make the commands and their names; None for names that are the scripts'."""
    from mgpu_helpers.jobs import sweep

    own = [[]]
    if options.each is not None:
        own = sweep.lines(options.each)
    elif options.grid:
        own = sweep.parsed_grid(options.grid)
    jobs = [(script, each) for script in options.scripts for each in own]
    # A job's own arguments come last, as argparse takes the last value of an option.
    commands = [[sys.executable, script, *common, *each] for script, each in jobs]
    if own == [[]]:
        return commands, None
    several = len(options.scripts) > 1
    names = [sweep.called([Path(script).stem] * several + each) for script, each in jobs]
    return commands, sweep.numbered(names)


def _machine(as_json: bool) -> int:
    from mgpu_helpers import doctor

    facts = doctor.gather()
    if not as_json:
        # Before TensorFlow is imported, which takes seconds and can end the process.
        print(doctor.head(facts), flush=True)
    plan = None
    error = ""
    try:
        from mgpu_helpers import devices

        plan = devices.setup(2)
    except Exception as problem:
        error = doctor.explain(problem)
    if "tensorflow" in sys.modules:
        facts = doctor.with_tensorflow(facts)
    if as_json:
        shown = {"plan": plan and dataclasses.asdict(plan), "problems": doctor.diagnose(facts)}
        print(json.dumps({**shown, "error": error, "facts": dataclasses.asdict(facts)}, indent=1))
    else:
        print(doctor.body(facts), end="\n\n")
        print(plan if plan else doctor.row("error", error))
    return 0 if plan else 1


if __name__ == "__main__":
    raise SystemExit(main())
