"""Build the notebooks from their text sources: ``python tools/build_notebooks.py [NN ...]``.

Every chosen lesson (all when none is named) is executed from its first cell and stored with its
outputs, under the condition in which nbval runs it later. A rebuild keeps a stored output that is
the same but for what nbval_sanitize.cfg covers, so building twice gives the same bytes; of
cells tagged ``varies`` it keeps the picture as well. ``--fresh`` keeps nothing. The table of
lessons in notebooks/README.md is written, too. ``--check`` runs nothing and says whether sources
and notebooks agree.
"""

from __future__ import annotations

import argparse
import base64
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.plugin import coalesce_streams, get_sanitize_patterns

from check_notebooks import RULES, SANITIZE, problems, strangers
from lessons import NOTEBOOKS, Lesson, LessonError, cover, draft, environment, read, tabulate, tags

Patterns = list[tuple[re.Pattern[str], str]]


def execute(notebook: NotebookNode, name: str, folder: Path, timeout: int = 120) -> None:
    """Run every cell of a draft in ``folder`` and fill in the outputs; ``timeout`` in s a cell."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    count = 0
    with tempfile.TemporaryDirectory() as ipython:
        # ipykernel captures what C code writes, unless it sees the variable that pytest sets.
        env = environment() | {"PYTEST_CURRENT_TEST": "store", "IPYTHONDIR": ipython}
        env |= {"TF_ENABLE_ONEDNN_OPTS": "1"}  # which some processors do without, others not
        with client.setup_kernel(env=env, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type != "code":
                    continue
                count += 1
                try:
                    client.execute_cell(cell, index, execution_count=count)
                except CellExecutionError:
                    said = "\n".join(cell.outputs[-1].traceback)
                    raise LessonError(_failure(name, index, cell, said)) from None
                except CellTimeoutError:
                    said = f"It ran longer than {timeout} s."
                    raise LessonError(_failure(name, index, cell, said)) from None
                except DeadKernelError:
                    said = "The kernel died."
                    raise LessonError(_failure(name, index, cell, said)) from None
                cell.outputs = coalesce_streams(cell.outputs)
                for output in cell.outputs:
                    if "image/png" in output.get("data", {}):
                        output.data["image/png"] = strip_png(output.data["image/png"])


def _failure(name: str, index: int, cell: NotebookNode, said: str) -> str:
    source = "\n".join("    " + line for line in cell.source.splitlines())
    said = re.sub(r"\x1b\[[\d;]*m", "", said).strip()  # colours
    return f"{name}: cell {index + 1} fails\n\n{source}\n\n{said}"


def strip_png(text: str) -> str:
    """Return a base64 PNG without its text and date chunks, which name versions."""
    data = base64.b64decode(text)
    kept, position = data[:8], 8
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] not in (b"tEXt", b"iTXt", b"zTXt", b"tIME"):
            kept += data[position:end]
        position = end
    return base64.b64encode(kept).decode()


def said(cell: NotebookNode, patterns: Patterns) -> list[tuple[str, str | None, str, str]]:
    """List what a cell's outputs say, but for what the patterns cover and, where it is tagged
    ``varies``, its pictures."""

    def clean(kind: str, text: str) -> str:
        if kind == "image/png":
            return "a picture" if "varies" in tags(cell) else text
        for regex, put in patterns if isinstance(text, str) else ():
            text = regex.sub(put, text)
        return text

    return [
        (output.output_type, output.get("name"), kind, clean(kind, text))
        for output in cell.outputs
        for kind, text in sorted({"": output.get("text", ""), **output.get("data", {})}.items())
    ]


def sanitizing() -> Patterns:
    """Read what may differ between a stored output and a new one."""
    pairs = get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))
    return [(re.compile(regex), put) for regex, put in pairs]


def keep_outputs(new: NotebookNode, old: NotebookNode, patterns: Patterns) -> None:
    """Put the old outputs back wherever they say the same as the new ones.

    From the first cell on whose code or meaning differs, everything is new.
    """

    def code(notebook: NotebookNode) -> list[NotebookNode]:
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    for cell, stored in zip(code(new), code(old), strict=False):
        if cell.source != stored.source or said(cell, patterns) != said(stored, patterns):
            return
        cell.outputs = stored.outputs


def build(lesson: Lesson, lessons: list[Lesson], *, fresh: bool = False) -> bool:
    """Execute a lesson and store its notebook; return whether the file's bytes changed."""
    notebook, path = draft(lesson, lessons), lesson.notebook
    execute(notebook, lesson.name, path.parent)
    if path.exists() and not fresh:
        old = nbformat.read(path, as_version=4)
        keep_outputs(notebook, old, sanitizing())
    if picture := cover(notebook):
        lesson.cover.parent.mkdir(exist_ok=True)
        lesson.cover.write_bytes(picture)
    text = nbformat.writes(nbformat.from_dict(notebook), version=4) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    unfinished = path.with_suffix(".ipynb.new")
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    unfinished.replace(path)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons to build (default: all)")
    parser.add_argument("--check", action="store_true", help="run nothing, compare and say")
    parser.add_argument("--fresh", action="store_true", help="keep no stored output")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help="where notebooks/ is")
    options = parser.parse_args(arguments)
    try:
        lessons = read(options.folder.resolve())
        numbers = {lesson.number for lesson in lessons}
        for number in options.numbers:
            if number not in numbers:
                raise LessonError(f"there is no lesson {number}: there are {sorted(numbers)}.")
        chosen = [one for one in lessons if not options.numbers or one.number in options.numbers]
        for lesson in chosen if not options.check else ():
            began = time.perf_counter()
            changed = "written" if build(lesson, lessons, fresh=options.fresh) else "unchanged"
            print(f"{lesson.name}: {changed}, {time.perf_counter() - began:.1f} s", flush=True)
        if not options.check:
            tabulate(lessons)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    wrong = strangers(lessons, options.folder.resolve())
    for lesson in lessons:
        built = not options.check and lesson in chosen
        wrong += problems(lesson, lessons, RULES if built else ["agrees"])
    for said in wrong:
        print(f"! {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
