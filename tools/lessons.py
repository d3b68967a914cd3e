"""Read the lessons: ``notebooks/lessons.toml`` lists them, ``notebooks/source`` has their texts.

``python tools/lessons.py`` writes the table of lessons in notebooks/README.md and the table of ways
in docs/layouts.md, as every build does. A source is ``NN_verb_object.py`` in jupytext's percent
format. In its Markdown cells

* ``[[01]]`` becomes a link to lesson 01 that carries its title;
* ``[[previous]]`` and ``[[next]]`` become a link to the neighbour; where there is none the whole
  line goes, so they stand on a line of their own;
* ``[[ways]]``, alone on its line, becomes a table of what each way to train costs, up to this
  lesson's, and what its columns are; ``[[ways: 00 12]]`` has only those of these lessons and its
  own.

Tags of code cells: ``exercise``, ``solution`` (below a heading that is closed at first),
``varies`` (a chart of this run's timings), ``cover`` (the lesson's picture, stored in ``docs/`` as
well). A drawing without data is no cell: it is an SVG file in ``notebooks/pictures``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from mgpu_helpers.lessons.verdict import tags

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, BENCHMARKS = ROOT / "notebooks", ROOT / "benchmarks"
TOKEN = re.compile(r"\[\[(\d\d|previous|next|ways)\]\]")
# What a person may have set for their own work and what would then show in an output.
PRIVATE = re.compile(r"MGPU_|TF_|ONEDNN_|DNNL_|XLA_|CUDA_|OMP_|MPLBACKEND|IPYTHONDIR|PYTEST_")
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SERIES = re.compile(r"(<!-- lessons:.*?-->\n).*?(?=<!-- end)", re.DOTALL)  # in notebooks/README.md
WAYS = re.compile(r"(<!-- ways:.*?-->\n).*?(?=<!-- end)", re.DOTALL)  # in docs/layouts.md
APPENDIX = "## The same in a graph"  # comes last, and is closed until the reader opens it
SIZES = "keeps", "adds", "crosses"  # in bytes: of the fullest device twice, and of all
COLUMNS = (  # below the table of ways in each lesson
    "In brackets is the number of devices. **Keeps** is the weights and the optimizer's state on "
    "the fullest device, and **adds** is what a step needs there on top. What **crosses** between "
    "devices, and the **operations** that a step starts, are counted over all devices. **Time** is "
    "a multiple of the first line's, on two cores."
)
CLOSED = {"jp-MarkdownHeadingCollapsed": True}  # JupyterLab then hides what is below a heading


class LessonError(Exception):
    """A lesson that cannot be read or built; the message is for the person who edits it."""


@dataclass(frozen=True)
class Lesson:
    """A source, ``cells`` as written, links not yet filled in, and what lessons.toml says of it."""

    source: Path
    title: str
    cells: tuple[NotebookNode, ...]
    part: str
    words: int
    devices: list[int]
    what: str
    picture: str
    asked: str = ""
    was: str = ""  # an earlier name, whose address on the site leads here

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def notebook(self) -> Path:
        return self.source.parent.parent / f"{self.name}.ipynb"

    @property
    def cover(self) -> Path:
        """Where pages find the lesson's picture."""
        return self.notebook.parent.parent / "docs" / f"{self.name}.png"

    @property
    def link(self) -> str:
        return f"[{self.title}]({self.name}.ipynb)"


def environment() -> dict[str, str]:
    """Return the environment in which a lesson's stored outputs are true."""
    kept = {name: value for name, value in os.environ.items() if not PRIVATE.match(name)}
    return kept | {"MGPU_MODE": "cores"}


def cover(notebook: NotebookNode) -> bytes | None:
    """Return the last PNG that the cell tagged ``cover`` draws; None when there is none."""
    pictures = [
        output.data["image/png"]
        for cell in notebook.cells
        if "cover" in tags(cell)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    return base64.b64decode(pictures[-1]) if pictures else None


def read(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """Read the lessons that ``folder/lessons.toml`` lists from ``folder/source``, in that order."""
    table = tomllib.loads((folder / "lessons.toml").read_text(encoding="utf-8"))
    entries = {
        entry.pop("name"): {"part": part, "words": table["words"], **entry}
        for part, its in table["parts"].items()
        for entry in its
    }
    for name in entries.keys() ^ {path.stem for path in (folder / "source").glob("*.py")}:
        raise LessonError(f"{name} needs a line in {folder}/lessons.toml and a file in source/.")
    for place, name in enumerate(entries):
        if not re.fullmatch(rf"{place:02}(_[a-z0-9]+)+", name):
            raise LessonError(f"{name} is at place {place:02}: name it {place:02}_verb_object.")
    return [_read_one(folder / "source" / f"{name}.py", **entries[name]) for name in entries]


def _read_one(path: Path, **entry: Any) -> Lesson:
    cells = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells
    first = cells[0].source if cells and cells[0].cell_type == "markdown" else ""
    heading = re.match(r"# (.+)\n*", first)
    if not heading:
        raise LessonError(f"{path.name} does not begin with a Markdown cell with a '# ' title.")
    return Lesson(path, heading[1].strip(), tuple(cells), **entry)


def draft(lesson: Lesson, lessons: list[Lesson]) -> NotebookNode:
    """Make the notebook of a lesson, links filled in, without outputs."""
    notebook = nbformat.v4.new_notebook(metadata=METADATA)
    taken: set[str] = set()
    for cell in lesson.cells:
        if "solution" in tags(cell):  # with its output it is closed until the reader opens it
            new = nbformat.v4.new_markdown_cell("#### Solution", metadata=CLOSED)
            new.id = _identify(new, taken)
            notebook.cells.append(new)
        if cell.cell_type == "markdown":
            # A heading of its own, or the next exercise would be closed with the solution.
            text = re.sub(r"(?m)^\*\*(\d)\.\*\* ", r"### Exercise \1\n\n", cell.source)
            closed = CLOSED if text.startswith(APPENDIX) else {}
            new = nbformat.v4.new_markdown_cell(_fill_in(text, lesson, lessons), metadata=closed)
        elif cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(cell.source)
        else:
            raise LessonError(f"{lesson.name} has a {cell.cell_type} cell: use code or Markdown.")
        if tags(cell):
            new.metadata["tags"] = tags(cell)
        new.id = _identify(new, taken)
        notebook.cells.append(new)
    return notebook


def _identify(cell: NotebookNode, taken: set[str]) -> str:
    # From the content, so that an edited cell changes its own id and no other's.
    for turn in range(1000):
        text = f"{cell.cell_type}{turn or ''}\n{cell.source}"
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        if name not in taken:
            taken.add(name)
            return name
    raise LessonError(f"more than 1000 cells with the same source: {cell.source[:60]!r}.")


def _fill_in(text: str, lesson: Lesson, lessons: list[Lesson]) -> str:
    position = [other.name for other in lessons].index(lesson.name)
    links = {other.number: other.link for other in lessons}
    if position > 0:
        links["previous"] = lessons[position - 1].link
    if position + 1 < len(lessons):
        links["next"] = lessons[position + 1].link

    lines = []
    for line in text.split("\n"):
        if table := re.fullmatch(r"\[\[ways(?:: ([\d ]+))?\]\]", line.strip()):
            lines += [*ways(lessons, lesson, only=(table[1] or "").split()), "", COLUMNS]
            continue
        tokens = TOKEN.findall(line)
        for token in tokens:
            if token not in links and token not in ("previous", "next"):
                alone = token == "ways"
                remedy = "put it on a line of its own" if alone else "no such lesson"
                raise LessonError(f"{lesson.name} has [[{token}]] in {line!r}: {remedy}.")
        if all(token in links for token in tokens):
            lines.append(TOKEN.sub(lambda match: links[match[1]], line))
    return "\n".join(lines).strip()


def ways(
    lessons: list[Lesson], until: Lesson | None = None, folder: str = "", only: Collection[str] = ()
) -> list[str]:
    """Tabulate what each way to train costs, up to a lesson, whose own lines are bold.

    With `only`, numbers of lessons, of the others' lines just theirs. tools/count_ways.py counts.
    """
    named = {lesson.name[3:]: lesson for lesson in lessons}
    found = json.loads((NOTEBOOKS / "ways.json").read_text(encoding="utf-8"))
    found.sort(key=lambda row: named[row["lesson"]].number)
    lines = [
        "| one small Transformer | keeps | adds | crosses | operations | time |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in found:
        lesson = named[row["lesson"]]
        if until and lesson.number > until.number:
            break
        if only and lesson is not until and lesson.number not in only:
            continue
        sizes = ("" if row[size] is None else f"{row[size] / 1e6:.1f} MB" for size in SIZES)
        time = "" if row["time"] is None else f"{row['time']:.1f}"
        way = f"{row['way']} ({row['devices']})"
        cells = [*sizes, f"{row['operations']:,}", time]
        if lesson is until:
            cells = [f"**{cell}**" if cell else cell for cell in [way, *cells]]
        else:
            cells.insert(0, f"[{way}]({folder}{lesson.name}.ipynb)")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rows(lessons: list[Lesson], part: str, row: str) -> Iterator[str]:
    """Fill in a line for each part of the series, and one for each of its lessons."""
    for title, its in by_part(lessons):
        yield part.format(title)
        yield from map(row.format, its)


def by_part(lessons: list[Lesson]) -> list[tuple[str, list[Lesson]]]:
    """Give the title of each part of the series, and its lessons."""
    return [(title, list(its)) for title, its in groupby(lessons, attrgetter("part"))]


def with_table(readme: str, lessons: list[Lesson]) -> str:
    """Return the text of notebooks/README.md with its table of lessons as it is now."""
    row = "| {0.number} | [{0.title}]({0.name}.ipynb) | {0.what} | "
    rows = _rows(lessons, "| | **{}** | | |", row + "![{0.picture}](../docs/{0.name}.png) |")
    table = "\n".join(["", "| | lesson | what happens | |", "|---|---|---|---|", *rows, "", ""])
    return SERIES.sub(lambda found: found[1] + table, readme)


def with_ways(page: str, lessons: list[Lesson]) -> str:
    """Return a page of docs/ with its table of ways as it is now."""
    table = "\n".join(["", *ways(lessons, folder="../notebooks/"), "", ""])
    return WAYS.sub(lambda found: found[1] + table, page)


def tabulate(lessons: list[Lesson]) -> None:
    """Write the tables of lessons beside them and of ways in docs/layouts.md, if they exist."""
    folder = lessons[0].notebook.parent
    ways_of = folder.parent / "docs/layouts.md"
    for path, with_one in (folder / "README.md", with_table), (ways_of, with_ways):
        if path.exists():
            text = with_one(path.read_text(encoding="utf-8"), lessons)
            path.write_text(text, encoding="utf-8")


def disagreements(lesson: Lesson, lessons: list[Lesson]) -> list[str]:
    """Say where a lesson's notebook is not what its source says; an empty list when it is."""
    remedy = f"run: python tools/build_notebooks.py {lesson.number}"
    if not lesson.notebook.exists():
        return [f"there is no notebook: {remedy}"]
    wanted = draft(lesson, lessons).cells
    found = nbformat.read(lesson.notebook, as_version=4).cells
    if len(wanted) != len(found):
        return [f"the source has {len(wanted)} cells and the notebook {len(found)}: {remedy}"]
    return [
        f"cell {number} differs from its source in its {part}: {remedy}"
        for number, (one, other) in enumerate(zip(wanted, found, strict=True), 1)
        for part, same in (
            ("kind", one.cell_type == other.cell_type),
            ("text", one.source == other.source),
            ("metadata", one.metadata == other.metadata),
        )
        if not same
    ]


if __name__ == "__main__":
    tabulate(read())
