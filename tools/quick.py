"""Run the tests that the files changed since main can break: ``make quick``, within 45 s.

A test can be broken by a changed file if it imports it, through however many others; those that
import it most directly run first, and what the time does not suffice for is counted at the end.
Lessons run if their own files have changed. More arguments go to pytest.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 40.0  # and the tests that are running then
FOLDERS = ("src", "tests", "tools", "benchmarks")


def changed() -> set[str]:
    """List the files that differ from main's newest commit that is in this branch's history."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.splitlines()

    base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main") or ["HEAD"]
    return {*git("diff", "--name-only", base[0]), *git("ls-files", "-o", "--exclude-standard")}


def imports() -> dict[str, set[str]]:
    """Say which files of the checkout each of its Python files imports, whole packages as well."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    names: dict[str, str] = {}
    for path in paths:
        parts = path.relative_to(ROOT).with_suffix("").parts[1:]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names[name] = str(path.relative_to(ROOT))
    found: dict[str, set[str]] = {}
    for name, file in names.items():
        package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
        wanted: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - node.level]
                whole = ".".join([*(above if node.level else []), *filter(None, [node.module])])
                wanted |= {whole, *(f"{whole}.{alias.name}" for alias in node.names)}
        found[file] = {names[each] for each in wanted if each in names} - {file}
    return found


def endangered(files: set[str]) -> list[str]:
    """List what pytest has to run for these changed files, the most direct first."""
    graph, distance = imports(), dict.fromkeys(files, 0)
    while True:
        new = {
            file: 1 + min(distance[each] for each in needs & distance.keys())
            for file, needs in graph.items()
            if file not in distance and needs & distance.keys()
        }
        if not new:
            break
        distance |= new
    tests = [file for file in distance if Path(file).match("tests/test_*.py")]
    lessons = [
        f"notebooks/{path.name}"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if any(path.stem in file or f"lesson_{path.name[:2]}.py" in file for file in files)
    ]
    kept = [file for file in (*tests, *lessons) if (ROOT / file).exists()]
    return sorted(kept, key=lambda file: (distance.get(file, 1), file))


class Limit:
    """End a run of pytest when its time is over."""

    def __init__(self) -> None:
        self.end, self.failed = time.monotonic() + SECONDS, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        if time.monotonic() > self.end:
            self.workers.shouldstop = f"{SECONDS:.0f} s are over: make test runs all"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.workers = session.config.pluginmanager.getplugin("dsession") or session


def main() -> int:
    files = changed()
    chosen = endangered(files)
    print(f"{len(files)} files changed; tests that import them: {len(chosen)} files", flush=True)
    if not chosen:
        return 0
    limit = Limit()
    status = int(pytest.main([*sys.argv[1:], "-q", *chosen], plugins=[limit]))
    late = status == pytest.ExitCode.INTERRUPTED and time.monotonic() > limit.end
    if late:  # pytest's status says only that it was interrupted
        return int(limit.failed)
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status


if __name__ == "__main__":
    sys.exit(main())
