"""Rules that a built notebook keeps and that nbval cannot see; each says what is wrong and where.

Every rule takes a ``Built`` and gives sentences, none when all is well. ``problems`` applies them
all; tests/test_notebooks.py makes a test of each.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

import nbformat
from nbformat import NotebookNode
from nbval.plugin import get_sanitize_patterns

from lessons import APPENDIX, CLOSED, COLUMNS, METADATA, Lesson, cover, disagreements, tags
from mgpu_helpers.lessons.verdict import SANITIZE, text_of

MOST_CELLS, MOST_LINES, MEDIAN_LINES = 36, 20, 5
MOST_BYTES, MOST_BULLETS = 1_000_000, 6
SECTIONS = ["On your own", "What we saw", "In practice"]
# What TensorFlow's start-up writes, and paths that only one machine has.
NOISE = re.compile(
    r"cuInit|oneDNN|rebuild TensorFlow|cuda_executor|TF-TRT|absl::InitializeLog|[EWI]0000 00:00"
)
PLACES = re.compile(r"(?<![\w/])/(?:home|root|Users|tmp|var|usr|opt|mnt)/|[A-Z]:\\|site-packages")
# A number and its unit. What is glued to a word is a name (float16, ResNet-50).
NUMBER = re.compile(
    r"(?<![\w.])(?<!\w-)(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)\.?(?!\w)"
    r"(?:[ ]?(%|[KMG]i?B|bytes|ms|[µμ]s|s|times)(?!\w))?"
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)[^)]*\)")


@dataclass(frozen=True)
class Built:
    """A lesson with its notebook, read from disk."""

    lesson: Lesson
    lessons: list[Lesson]

    @cached_property
    def cells(self) -> list[NotebookNode]:
        return self.notebook.cells

    @cached_property
    def notebook(self) -> NotebookNode:
        return nbformat.read(self.lesson.notebook, as_version=4)

    def code(self, *tag: str) -> list[tuple[int, NotebookNode]]:
        """Return the code cells (that have the tag), with their number in the notebook."""
        return [
            (number, cell)
            for number, cell in enumerate(self.cells, 1)
            if cell.cell_type == "code" and set(tag) <= set(tags(cell))
        ]

    def prose(self) -> list[tuple[int, str]]:
        """Return the Markdown cells without their code blocks, with their number."""
        return [
            (number, re.sub(r"```.*?```|`[^`\n]*`", "", cell.source, flags=re.DOTALL))
            for number, cell in enumerate(self.cells, 1)
            if cell.cell_type == "markdown"
        ]


Rule = Callable[[Built], Iterator[str]]


def last_statement(source: str) -> str:
    """Return the source of the last statement; "" where there is none."""
    body = ast.parse(source).body
    return ast.unparse(body[-1]) if body else ""


def agrees(built: Built) -> Iterator[str]:
    yield from disagreements(built.lesson, built.lessons)


def execution_counts(built: Built) -> Iterator[str]:
    for wanted, (number, cell) in enumerate(built.code(), 1):
        if cell.execution_count != wanted:
            yield f"cell {number} was run as {cell.execution_count}, not as {wanted}"


def outputs_present(built: Built) -> Iterator[str]:
    for position, (number, cell) in enumerate(built.code()):
        shows = re.search(r"^print\(|^plt\.show\(", cell.source, flags=re.MULTILINE)
        if (shows or position == 0 or set(tags(cell))) and not cell.outputs:
            yield f"cell {number} has lost its output"


def outputs_clean(built: Built) -> Iterator[str]:
    for number, cell in built.code():
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"cell {number} ends with {output.ename}: {output.evalue}"
            elif output.get("name") == "stderr":
                yield f"cell {number} writes to stderr: {output.text[:80]!r}"


def outputs_portable(built: Built) -> Iterator[str]:
    here = [sys.prefix, sys.base_prefix, str(Path.home()), str(built.lesson.notebook.parent)]
    for number, cell in built.code():
        said = "\n".join(
            str(text)
            for output in cell.outputs
            for kind, text in {"": output.get("text", ""), **output.get("data", {})}.items()
            if not kind.startswith("image/")
        )
        for found in (NOISE.search(said), PLACES.search(said)):
            if found:
                yield f"cell {number} shows {found[0]!r}, which other machines do not"
        for place in here:
            if len(place) > 1 and place in said:
                yield f"cell {number} shows {place!r}, a place on one machine"


def metadata(built: Built) -> Iterator[str]:
    if built.notebook.metadata != METADATA:
        yield f"the notebook's metadata is {dict(built.notebook.metadata)}, not {METADATA}"
    if (built.notebook.nbformat, built.notebook.nbformat_minor) != (4, 5):
        yield "the notebook's format is not 4.5"
    for number, cell in enumerate(built.cells, 1):
        extra = set(cell.metadata) - {"tags", *CLOSED}
        if extra:
            yield f"cell {number} has metadata of its own: {sorted(extra)}"


def no_empty_cell(built: Built) -> Iterator[str]:
    for number, cell in enumerate(built.cells, 1):
        if not cell.source.strip():
            yield f"cell {number} is empty"


def sizes(built: Built) -> Iterator[str]:
    lines = [len(re.findall(r"\S.*", cell.source)) for _, cell in built.code()]
    for (number, _), count in zip(built.code(), lines, strict=True):
        if count > MOST_LINES:
            yield f"cell {number} has {count} lines: at most {MOST_LINES}"
    if lines and statistics.median(lines) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lines)} lines: at most {MEDIAN_LINES}"
    cells = [cell for cell in built.cells if not cell.source.startswith("#### Solution")]
    if len(cells) > MOST_CELLS:
        yield f"there are {len(cells)} cells: at most {MOST_CELLS}"
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    listed = r"^\| (?:one small Transformer|\W*[^|]+ \(\d\)[^|]*) \|.*"  # ways
    words = len(re.sub(listed, "", text.replace(COLUMNS, ""), flags=re.MULTILINE).split())
    if words > built.lesson.words:
        yield f"there are {words} words of text: at most {built.lesson.words}"
    size = built.lesson.notebook.stat().st_size
    if size >= MOST_BYTES:
        yield f"the file has {size} bytes: fewer than {MOST_BYTES}, so draw smaller pictures"


def title(built: Built) -> Iterator[str]:
    words = built.lesson.name[3:].replace("_", " ")
    if not built.lesson.title.lower().replace(".", " ").startswith(words):
        yield f"the title is {built.lesson.title!r} and does not begin with {words!r}"


def opening(built: Built) -> Iterator[str]:
    first = built.code()[0][1].source if built.code() else ""
    if (call := f"devices.setup({built.lesson.devices[0]}") not in first:
        yield f"the first code cell does not call {call}"
    before = "\n".join(text for _, text in built.prose()).split("\n## ")[0]
    bullets = len(re.findall(r"^ *[-*] ", before, flags=re.MULTILINE))
    if bullets > MOST_BULLETS:
        yield f"the opening has {bullets} bullets: at most {MOST_BULLETS}"


def sections(built: Built) -> Iterator[str]:
    found = [name for _, text in built.prose() for name in re.findall(r"^## (.+)$", text, re.M)]
    ours = [name.strip() for name in found if name.strip() in SECTIONS]
    if ours != SECTIONS:
        yield f"of the sections {SECTIONS} it has {ours}"
    if any(name.startswith(APPENDIX[3:]) for name in found[:-1]):
        yield f"{APPENDIX!r} is not its last section"
    if any(f"\n{APPENDIX}" in text for _, text in built.prose()):
        yield f"{APPENDIX!r} does not begin a cell, so it stays open"


def summary(built: Built) -> Iterator[str]:
    """Find the digits of each sentence of "What we saw" together in one output above it.

    An output that other machines do not repeat is nothing to quote: times move with every build.
    Names are no claims: "lesson 09", a list of whole numbers in brackets, what is in backticks.
    """
    patterns = get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))
    printed: list[list[tuple[str, str]]] = []
    for number, cell in enumerate(built.cells, 1):
        if cell.cell_type == "code" and "nbval-ignore-output" not in tags(cell):
            said = text_of(cell)
            for regex, put in patterns:
                said = re.sub(regex, put, said)
            printed.append(NUMBER.findall(said))
        elif cell.cell_type == "markdown" and re.search(r"^## What we saw$", cell.source, re.M):
            text = dict(built.prose())[number].split("## What we saw\n")[1].split("\n## ")[0]
            text = re.sub(r"\blessons? \d\d\b|\([\d, \n]+\)", "", LINK.sub(r"\2", text))
            for sentence in re.split(r"\n- |(?<=[.!?])\s+(?=[A-Z])", text):
                claims = NUMBER.findall(sentence)
                if not any(all(_says(claim, said) for claim in claims) for said in [[], *printed]):
                    wanted = ", ".join(" ".join(claim).strip() for claim in claims)
                    yield f"cell {number} sums up {wanted}: no cell above prints this, or it moves"


def _says(claim: tuple[str, str], printed: Iterable[tuple[str, str]]) -> bool:
    """Say whether one of these numbers is the claimed one, but for digits that are left out."""
    text, unit = claim[0].replace(",", ""), claim[1]
    wanted, digits = float(text), len(text.partition(".")[2])
    exact = wanted == 0 or "e" in text or not (unit or digits)  # 8 pairs are not 7.6
    return any(
        wanted == (value if exact else round(value, digits))
        for number, its in printed
        for value in [float(number.replace(",", ""))]
        if its in (unit, "") or not unit  # in a table the unit stands above
    )


def links(built: Built) -> Iterator[str]:
    for number, cell in enumerate(built.lesson.cells, 1):
        if cell.cell_type == "markdown" and re.search(r"\]\([^)]*\.ipynb", cell.source):
            yield f"cell {number} has a link to a lesson written by hand: use [[NN]]"
    folder = built.lesson.notebook.parent
    for number, text in built.prose():
        for image, label, target in LINK.findall(text):
            if not label.strip():
                kind = "an image without alt text" if image else "a link without words"
                yield f"cell {number} has {kind}: {target}"
            if re.match(r"https?://|mailto:|data:|attachment:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            file = folder / path if path else built.lesson.notebook
            if not file.exists():
                yield f"cell {number} links to {target}, which does not exist"
            elif anchor and file.suffix == ".ipynb" and anchor not in anchors(file):
                yield f"cell {number} links to {target}, and there is no such heading"
        if re.search(r"<img(?![^>]*\balt=\"[^\"]+\")", text):
            yield f"cell {number} has an <img> without alt text"


def anchors(path: Path) -> set[str]:
    """Return the names by which JupyterLab links to a notebook's headings."""
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {name.strip().replace(" ", "-") for name in re.findall(r"^#+ (.+)$", prose, re.M)}


def pictures(built: Built) -> Iterator[str]:
    for number, cell in built.code():
        kinds = [kind for output in cell.outputs for kind in output.get("data", {})]
        others = {kind for kind in kinds if kind.startswith("image/")} - {"image/png"}
        if others:
            yield f"cell {number} has pictures of kind {sorted(others)}: only PNG"
        shown = [output.data.get("text/html", "") for output in cell.outputs if "data" in output]
        if re.search(r"<svg|<img", "".join(shown)):
            yield f"cell {number} has a picture inside HTML: only PNG"
        timed = "varies" in tags(cell)
        if "image/png" in kinds and not timed and not text_of(cell).strip():
            yield f"cell {number} draws a chart and does not print the numbers that it draws"
    picture, stored = cover(built.notebook), built.lesson.cover
    if picture and not (stored.exists() and stored.read_bytes() == picture):
        yield f"docs/{stored.name} is not the picture of the cell tagged cover: build the lesson"


def exercises(built: Built) -> Iterator[str]:
    order = [
        (tag, number, cell)
        for number, cell in built.code()
        for tag in ("exercise", "solution")
        if tag in tags(cell)
    ]
    if [tag for tag, _, _ in order] != ["exercise", "solution"] * (len(order) // 2):
        yield f"exercises and solutions do not alternate: {[(t, n) for t, n, _ in order]}"
    for tag, number, cell in order:
        wanted = {"exercise": "not yet", "solution": "yes"}[tag]
        if not re.search(rf"^{wanted}\b", text_of(cell), flags=re.MULTILINE):
            yield f"cell {number}, {tag}, does not say {wanted!r}: {text_of(cell)[:80]!r}"
        if tag == "solution" and built.cells[number - 2].metadata != CLOSED:
            yield f"cell {number}, a solution, is not below a closed heading"
    for (_, _, stub), (_, number, solved) in zip(order[::2], order[1::2], strict=False):
        if last_statement(stub.source) != last_statement(solved.source):
            yield f"cell {number}, a solution, does not end with the check of its exercise"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        agrees, execution_counts, outputs_present, outputs_clean, outputs_portable, metadata,
        no_empty_cell, sizes, title, opening, sections, summary, links,
        pictures, exercises,
    )
}  # fmt: skip


def problems(lesson: Lesson, lessons: list[Lesson], rules: Iterable[str] = RULES) -> list[str]:
    """Apply rules (all when none is named) to a lesson's notebook; return what is wrong."""
    if not lesson.notebook.exists():
        rules = ["agrees"]
    built = Built(lesson, lessons)
    return [f"{lesson.name}: {said}" for rule in rules for said in RULES[rule](built)]


def strangers(lessons: list[Lesson], folder: Path) -> list[str]:
    """Name the notebooks in a folder that have no source."""
    known = {lesson.notebook.name for lesson in lessons}
    return [
        f"{path.name} has no source: write one or remove it"
        for path in sorted(folder.glob("*.ipynb"))
        if path.name not in known
    ]
