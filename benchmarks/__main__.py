"""Run the benchmarks one after another; then one table of their ratios, and one chart.

python benchmarks [-v] [NAME ...]    or make bench, or make bench ONLY=jobs

A benchmark is a file of this folder without _ in front; those of `_rounds.ASKED` run only when they
are named. One that fails does not stop the others, and makes the exit status 1; a target that is
not met does not. The chart has every card there is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import matplotlib

import _cards as results
import _chart
import _rounds
from mgpu_helpers._formatting import counted

HERE = Path(__file__).resolve().parent


def run(file: Path, label: str, env: dict[str, str], verbose: bool) -> tuple[int, str]:
    """Run a file with its seconds in sight; return its exit status and what it said."""
    began, over, said = time.perf_counter(), threading.Event(), []

    def seconds() -> str:
        return f"{time.perf_counter() - began:4.0f} s"

    def tick() -> None:
        while not over.wait(1):
            print(f"\r{label}{seconds()}", end="", flush=True)

    print(label, end="\n" if verbose else "", flush=True)
    if sys.stdout.isatty() and not verbose:
        threading.Thread(target=tick, daemon=True).start()
    command = [sys.executable, str(file)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        with subprocess.Popen(command, env=env, **pipe) as child:
            for line in child.stdout:
                said.append(line)
                if verbose:
                    print(f"      {seconds()}  {line}", end="", flush=True)
    finally:
        over.set()
        print("" if verbose else f"\r{label}{seconds()}" if sys.stdout.isatty() else seconds())
    return child.returncode, "".join(said)


def written(folder: Path) -> dict[Path, int]:
    """Note when each card was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; most without")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what they say")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the benchmarks are")
    parser.add_argument(
        "--results",
        type=Path,
        default=os.environ.get("MGPU_RESULTS") or HERE.parent / "results",
        help="where the cards and the chart go",
    )
    options = parser.parse_args()
    files = {file.stem: file for file in sorted(options.folder.glob("[!_]*.py"))}
    for name in options.names:
        if name not in files:
            parser.error(f"there is no benchmark {name!r}: choose from {', '.join(files)}.")
    names = options.names or [name for name in files if name not in _rounds.ASKED]
    folder = options.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"MGPU_RESULTS": str(folder), "PYTHONUNBUFFERED": "1"}
    began, cards, failed, without = time.perf_counter(), [], [], []
    wide = max(map(len, names), default=0)
    for i, name in enumerate(names, 1):
        before = written(folder)
        label = f"[{i}/{len(names)}] {name:{wide}} "
        try:
            status, said = run(files[name], label, env, options.verbose)
            new = [path for path, when in written(folder).items() if before.get(path) != when]
            cards += [results.read(path) for path in sorted(new)]
        except KeyboardInterrupt:
            failed.append(f"{name} (stopped by Ctrl-C)")
            break
        except ValueError as error:
            failed.append(f"{name} ({error})")
            continue
        if status:
            failed.append(f"{name} (exit status {status})")
        elif not new:
            without.append(name)
        if not options.verbose and (status or not new):
            print("".join(f"      {line}\n" for line in said.splitlines()), end="")
    print("", results.table(cards), "", sep="\n")
    for card in cards:
        for few in card.numbers.get("short", ()):
            print(f"{card.name}: {few}")
    try:
        drawn = _chart.cards(results.read_all(folder), relative=True)
    except ValueError as error:
        failed.append(f"the chart ({error})")
    else:
        drawn.figure.savefig(folder / "bench.png")
        print(f"chart: {folder / 'bench.png'}")
    print(f"{counted(len(names), 'benchmark')} in {time.perf_counter() - began:.0f} s", end="")
    print(f"; no card: {', '.join(without)}" if without else "", end="")
    print(f"; failed: {', '.join(failed)}" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    matplotlib.use("Agg")
    sys.exit(main())
