"""Break the package in small ways, one at a time, and see whether a test notices.

python tools/mutants.py trace memory       some mutants of these rooms; or MUTANTS="trace memory"
python tools/mutants.py --count 10 --seed 2 whatif

A mutant is one expression changed: `<` to `<=`, `+` to `-`, `and` to `or`, `min` to `max`, a number
by one, a condition to its opposite. Each is tried in a copy of the checkout, by the tests that run
its line, and by all of the room's where none does in this process. What no test notices is
listed: a test is missing, or the change makes no difference (look which). A sentence of an error
and what only prints are left alone, as the tests leave them to readers.

A mutant that runs longer than the limit counts as noticed: a loop without an end is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/mgpu_helpers")
#: The rooms, and the beginnings of the names of their test files; a room without tests is an error.
TESTS = {
    "charts": "charts", "cluster": "cluster", "devices": "devices placement quiet",
    "ensemble": "ensemble", "fit": "fit", "graph": "graph gpu_graph memory_paper", "jobs": "jobs",
    "memory": "memory", "nvml": "nvml", "pipeline": "pipeline fit_split", "scaling": "scaling",
    "timing": "timing", "towers": "towers",
    "trace": "trace_ trace. export layers placement", "whatif": "whatif",
    "_doctor": "main", "_processes": "jobs cluster", "_private": "private fit trace",
    "_models": "fit memory",
    "_formatting": "charts memory", "_files": "jobs", "_quiet": "quiet", "_given": "given",
    "_layers": "graph layers",
}  # fmt: skip
# What only prints, names, or is a lesson's.
WITHOUT = {
    "__init__", "__main__", "_completion", "_gone", "_later", "_names", "_train", "lessons",
    "__pycache__",
}  # fmt: skip
# What `make test` leaves out is no help to whoever waits for it.
QUICK = "not (browser or site or isa or counts or tools or thorough)"
LIMIT = 120.0  # seconds that the tests of one mutant may take
OTHERS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SURVIVES = "SURVIVES"
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What is said to people, or only to a type checker.
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign, ast.arg, ast.ImportFrom, ast.Import)


@dataclass(frozen=True)
class Mutant:
    """One expression of a file, and what stands in its place."""

    file: Path  # from the root of the checkout
    line: int
    before: str
    after: str
    start: int  # in bytes of the file
    end: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  →  {self.after}"


def mutants(file: Path) -> Iterator[Mutant]:
    """List the mutants of a file."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    for node, new in _changes(ast.parse(source)):
        start = at(node.lineno, node.col_offset)
        end = at(node.end_lineno or node.lineno, node.end_col_offset or 0)
        before, after = ast.unparse(node), ast.unparse(new)
        yield Mutant(file, node.lineno, before, f"({after})", start, end)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Give each expression that can be changed, with each of its changes."""
    for node in ast.iter_child_nodes(tree):
        decorates = node in getattr(tree, "decorator_list", ())
        if decorates or isinstance(node, SILENT) or _is_text(node):
            continue
        if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield node, _with(node, lambda new: new.ops.__setitem__(0, OTHERS[type(new.ops[0])]()))
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHERS:
            yield node, _with(node, lambda new: setattr(new, "op", OTHERS[type(new.op)]()))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, node.operand
        elif isinstance(node, ast.Name) and node.id in NAMES:
            yield node, ast.Name(NAMES[node.id])
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, ast.Constant(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, ast.Constant(node.value + 1)
        elif isinstance(node, ast.IfExp):
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        yield from _changes(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _with(node: ast.expr, change: Callable[[ast.expr], None]) -> ast.expr:
    new = copy.deepcopy(node)
    change(new)
    return new


def files_of(room: str) -> list[str]:
    """List the test files of a room."""
    found = [
        path.relative_to(ROOT).as_posix()
        for begin in TESTS[room].split()
        for path in sorted((ROOT / "tests").glob(f"test_{begin}*"))
    ]
    if not found:
        raise SystemExit(f"{room} has no tests: TESTS names {TESTS[room]}.")
    return found


def chosen(room: str, count: int, seed: int) -> list[Mutant]:
    """Draw some mutants of a room, at most one on a line."""
    place = PACKAGE / room
    files = sorted((ROOT / place).glob("*.py")) or [(ROOT / place).with_suffix(".py")]
    every = [each for file in files for each in mutants(file.relative_to(ROOT))]
    random.Random(seed).shuffle(every)
    lines: dict[tuple[Path, int], Mutant] = {}
    for each in every:
        lines.setdefault((each.file, each.line), each)
    return list(lines.values())[:count]


def in_child(work: Callable[[], int], limit: float) -> int | None:
    """Do the work in a fork of this process, silently; give its status, None where it was late."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            status = work()
        finally:
            os._exit(status)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def tested(copied: Path, tests: list[str]) -> int:
    """Run tests of the copy in this process."""
    import pytest

    os.chdir(copied)
    sys.path[:0] = [str(copied / each) for each in ("src", "tests", "tools")]
    os.environ |= {"MGPU_MODE": "cores", "PYTHONPATH": str(copied / "src")}
    quiet = "-q -x -p no:cacheprovider -p no:nbval -o addopts=--strict-markers".split()
    return int(pytest.main([*quiet, "-m", QUICK, *tests]))


def covered(copied: Path, files: list[str]) -> dict[tuple[str, int], list[str]]:
    """Say which tests run each line of the package in their own process."""
    import coverage

    data = copied / "covered"

    def watch() -> int:
        found = coverage.Coverage(data_file=str(data), source=[str(copied / PACKAGE)])

        class Contexts:
            def pytest_runtest_setup(self, item: object) -> None:
                found.switch_context(item.nodeid)  # type: ignore[attr-defined]

        import pytest

        found.start()
        main = pytest.main
        pytest.main = lambda args: main(args, plugins=[Contexts()])
        status = tested(copied, files)
        found.stop()
        found.save()
        return status

    status = in_child(watch, 10 * LIMIT)
    if status:
        sys.exit(f"{' '.join(files)}: the tests fail (or hang) before anything is broken: {status}")
    kept = coverage.CoverageData(str(data))
    kept.read()
    lines: dict[tuple[str, int], list[str]] = {}
    for file in kept.measured_files():
        name = str(Path(file).relative_to(copied))
        for line, contexts in kept.contexts_by_lineno(file).items():
            # What runs when a file is imported counts for all tests.
            lines[name, line] = [] if "" in contexts else list(contexts)
    return lines


def tried(copied: Path, mutant: Mutant, tests: list[str]) -> str:
    """Say whether a test notices a mutant, or runs for longer than the limit."""
    path = copied / mutant.file
    source = path.read_bytes()
    path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    try:
        status = in_child(lambda: tested(copied, tests), LIMIT)
        return "late" if status is None else "noticed" if status else SURVIVES
    finally:
        path.write_bytes(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    rooms = f"of {', '.join(TESTS)}; all without"
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=rooms)
    parser.add_argument("--count", type=int, default=10, help="mutants of each room (10)")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn (1)")
    options = parser.parse_args()
    strangers = {path.stem for path in (ROOT / PACKAGE).iterdir() if path.suffix in ("", ".py")}
    if missing := strangers - TESTS.keys() - WITHOUT:
        parser.error(f"TESTS lacks the rooms {', '.join(sorted(missing))}.")
    for room in options.rooms:
        if room not in TESTS:
            parser.error(f"there is no room {room!r} here: choose from {', '.join(TESTS)}.")
    sys.dont_write_bytecode = True
    import tensorflow  # noqa: F401  # once, for all forks

    noticed = total = 0
    with tempfile.TemporaryDirectory() as name:
        copied = Path(name).resolve() / "checkout"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
        for file in filter(None, listed.stdout.split("\0")):
            if (ROOT / file).is_file():
                (copied / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, copied / file)
        for room in options.rooms or TESTS:
            files = files_of(room)
            lines = covered(copied, files)
            for mutant in chosen(room, options.count, options.seed):
                tests = lines.get((str(mutant.file), mutant.line)) or files
                found = tried(copied, mutant, tests)
                noticed, total = noticed + (found != SURVIVES), total + 1
                print(f"{found:8}", mutant, flush=True)
    print(f"{noticed} of {total} mutants noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
