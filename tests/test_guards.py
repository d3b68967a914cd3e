"""Each guard bites: what must not pass is made on purpose, on a lesson of a few lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbval.plugin import get_sanitize_patterns

from build_notebooks import main
from check_notebooks import RULES, SANITIZE, problems, strangers
from lessons import APPENDIX, ROOT, LessonError, draft, read
from mgpu_helpers.timing import Comparison, Timing

pytestmark = pytest.mark.tools

LESSON = """\
# %% [markdown]
# # Add numbers
#
# You will have a sum. It is four.
# %%
import sys, time

class devices:
    setup = staticmethod(lambda n: print("machine ", time.time()))

devices.setup(2)
# %% [markdown]
# ## On your own
# %%
def check(answer):
    print({4: "yes: four", 22: "not yet: that is text"}.get(answer, "not yet: add them"))
# %% tags=["exercise"]
answer = None
check(answer)
# %% tags=["solution"]
answer = 4
check(answer)
# %%
import matplotlib.pyplot as plt
# %%
now = time.time() % 1000
print(f"{now:.1f} ms ({now - 1:.1f} to {now + 1:.1f}, 20 runs)")
# %%
heights = [1, 2 + 2]
print("heights", heights)
plt.plot(heights)
plt.show()
# %% tags=["varies"]
plt.plot([1, now])
plt.show()
# %% [markdown]
# ## What we saw
#
# - As in lesson 09, `float32` had heights of 1 and 4.
#
# ## In practice
# Next: [[next]].
"""


def table(folder: Path, *names: str, words: int = 99) -> None:
    """Write the list of a folder's lessons."""
    rest = 'devices = [2], what = "you have it", picture = "It"'
    lines = [f'{{name = "{name}", {rest}}},' for name in names]
    (folder / "lessons.toml").write_text(f"words = {words}\nparts.all = [{' '.join(lines)}]\n")


def build(folder: Path, *arguments: str) -> int:
    return main(["--folder", str(folder), *arguments])


def found(folder: Path, rule: str | None = None) -> list[str]:
    lessons = read(folder)
    return problems(lessons[0], lessons, [rule] if rule else RULES)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build the lesson once."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "source").mkdir()
    (folder / "source" / "00_add_numbers.py").write_text(LESSON)
    table(folder, "00_add_numbers")
    assert build(folder) == 0
    return folder


@pytest.fixture
def folder(built, tmp_path) -> Path:
    """Give a copy of the built lesson, to be spoilt."""
    return shutil.copytree(built, tmp_path / "notebooks")


def spoil(folder: Path, change: Callable[[NotebookNode], object], name: str = "") -> None:
    path = folder / "00_add_numbers.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, folder / f"{name}.ipynb" if name else path)


def code(notebook: NotebookNode, position: int) -> NotebookNode:
    return [cell for cell in notebook.cells if cell.cell_type == "code"][position]


def replace_output(position: int, old: str, new: str) -> Callable[[NotebookNode], None]:
    def change(notebook):
        output = code(notebook, position).outputs[0]
        assert old in output.text
        output.text = output.text.replace(old, new)

    return change


# the build


def test_building_again_changes_no_byte_but_the_row_of_its_readme_and_a_changed_number(
    folder, capsys
):
    assert found(folder) == []
    path, readme = folder / "00_add_numbers.ipynb", folder / "README.md"
    before, whole = path.read_bytes(), nbformat.read(path, as_version=4)
    readme.write_text("# It\n<!-- lessons: -->\n<!-- end -->\nmore\n")
    assert build(folder) == 0
    assert "unchanged" in capsys.readouterr().out and path.read_bytes() == before
    row = "| 00 | [Add numbers](00_add_numbers.ipynb) | you have it | ![It](../docs/00_add_numbers"
    assert row in readme.read_text() and readme.read_text().endswith(" |\n\n<!-- end -->\nmore\n")
    spoil(folder, replace_output(6, "4", "5"))
    assert build(folder) == 0
    mended = nbformat.read(path, as_version=4)
    assert code(mended, 6).outputs == code(whole, 6).outputs
    assert code(mended, 5).outputs == code(whole, 5).outputs
    assert code(mended, 7).outputs != code(whole, 7).outputs  # the chart after it is drawn anew


def test_a_failing_cell_is_named_and_the_old_notebook_stays(folder, capsys):
    before = (folder / "00_add_numbers.ipynb").read_bytes()
    source = folder / "source" / "00_add_numbers.py"
    source.write_text(source.read_text().replace("def check(answer):", "1 / 0\ndef check(answer):"))
    assert build(folder, "00") == 1
    said = capsys.readouterr().err
    assert "00_add_numbers: cell 4 fails" in said and "    1 / 0" in said
    assert "ZeroDivisionError: division by zero" in said
    assert (folder / "00_add_numbers.ipynb").read_bytes() == before
    assert [path.name for path in folder.glob("*.ipynb*")] == ["00_add_numbers.ipynb"]
    assert build(folder, "07") == 1
    assert "there is no lesson 07" in capsys.readouterr().err


def test_links_are_filled_in(tmp_path):
    (tmp_path / "source").mkdir()
    table(tmp_path, "00_see_all", "01_do_it")
    for name, text in (
        ("00_see_all", "# See all\n\nBefore: [[previous]].\nNext: [[next]]."),
        ("01_do_it", "# Do it: now\n\nIt gets\ndone. After [[previous]], [[00]].\n\n[[next]]"),
    ):
        lines = "\n".join("# " + line for line in text.split("\n"))
        (tmp_path / "source" / f"{name}.py").write_text(f"# %% [markdown]\n{lines}\n")
    lessons = read(tmp_path)
    first, second = (draft(lesson, lessons).cells[0].source for lesson in lessons)
    assert first.endswith("\nNext: [Do it: now](01_do_it.ipynb).") and "Before" not in first
    link = "[See all](00_see_all.ipynb)"
    assert second.endswith(f"After {link}, {link}.")
    (tmp_path / "source" / "01_do_it.py").write_text("# %% [markdown]\n# # Do it\n#\n# [[06]]\n")
    with pytest.raises(LessonError, match="no such lesson"):
        draft(read(tmp_path)[1], read(tmp_path))
    for names in ["00_see_all"], ["00_see_all", "01_do_it", "02_do_more"]:
        table(tmp_path, *names)
        with pytest.raises(LessonError, match="needs a line in .*lessons.toml and a file in"):
            read(tmp_path)
    table(tmp_path, "01_do_it", "00_see_all")
    with pytest.raises(LessonError, match="01_do_it is at place 00"):
        read(tmp_path)


def test_a_lesson_has_a_limit_of_its_words(folder):
    table(folder, "00_add_numbers", words=5)
    assert "at most 5" in "".join(found(folder, "sizes"))


# strict nbval, under this project's settings


def test_nbval_compares_numbers_and_stderr_but_not_timings(folder):
    def change(notebook):
        replace_output(2, "add them", "add it")(notebook)
        code(notebook, 3).source += "\nprint('noise', file=sys.stderr)"
        # The picture stays, and the text beside it gives away that it is stale.
        code(notebook, 6).source = code(notebook, 6).source.replace("2 + 2", "2 + 3")

    spoil(folder, change)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--nbval", "-rf", folder,
         "-p", "no:cacheprovider", "--color=no"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    failed = re.findall(r"^FAILED (\w+)\.ipynb::Cell (\d)", run.stdout, flags=re.MULTILINE)
    assert failed == [("00_add_numbers", position) for position in "236"], run.stdout
    assert "3 failed, 5 passed" in run.stdout


@pytest.mark.parametrize("seconds", [2e-9, 4.567e-5, 0.9996, 86400])
def test_the_sanitize_file_covers_what_timings_print(seconds):
    once, twice = Timing((seconds,) * 20), Timing((2 * seconds, 3 * seconds) * 10)
    patterns = get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))

    def clean(thing: object) -> str:
        text = f"{thing}\nand so on"
        for regex, put in patterns:
            text = re.sub(regex, put, text)
        return text

    assert clean(once) == clean(twice) == "TIME\nand so on"
    for pair in (once, twice), (twice, once), (once, once):
        assert clean(Comparison(*pair, names=("one", "all"))) == "COMPARISON\nand so on"


# the rules


@pytest.mark.parametrize("rule, old, new, said", [
    ("agrees", "It is four.", "It is 4.", "differs from its source in its text"),
    ("title", "# # Add numbers", "# # Adding", "does not begin with 'add numbers'"),
    ("links", "[[next]]", "[it](00_add_numbers.ipynb)", "by hand"),
])  # fmt: skip
def test_a_source_edited_without_a_build_is_noticed(folder, capsys, rule, old, new, said):
    source = folder / "source" / "00_add_numbers.py"
    source.write_text(source.read_text().replace(old, new))
    assert said in "".join(found(folder, rule))
    assert build(folder, "--check") == 1
    assert "python tools/build_notebooks.py 00" in capsys.readouterr().out


def test_a_notebook_or_a_source_alone_is_noticed(folder):
    spoil(folder, lambda notebook: None, "05_do_more")
    assert "05_do_more.ipynb has no source" in strangers(read(folder), folder)[0]
    (folder / "00_add_numbers.ipynb").unlink()
    assert "there is no notebook" in found(folder)[0]


def append(position: int, kind: str = "stream", **fields) -> Callable[[NotebookNode], None]:
    output = nbformat.v4.new_output(kind, **fields)
    return lambda notebook: code(notebook, position).outputs.append(output)


def conclude(old: str, new: str) -> Callable[[NotebookNode], None]:
    def change(notebook):
        (cell,) = [cell for cell in notebook.cells if old in cell.source]
        cell.source = cell.source.replace(old, new)

    return change


def add(text: str) -> Callable[[NotebookNode], None]:
    return conclude("It is four.", f"It is four.\n\n{text}")


def open_headings(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        if cell.source == "#### Solution":
            cell.metadata.clear()


SPOILT = {
    "count": ("execution_counts", lambda book: code(book, 1).update(execution_count=7)),
    "one output gone": ("outputs_present", lambda book: code(book, 7).update(outputs=[])),
    "stderr": ("outputs_clean", append(1, name="stderr", text="oh")),
    "error": ("outputs_clean", append(1, "error", ename="E", evalue="", traceback=[])),
    "noise": ("outputs_portable", append(1, text="E0 failed call to cuInit")),
    "path": ("outputs_portable", append(1, text="in /home/somebody/x.py")),
    "prefix": ("outputs_portable", append(1, text=f"in {sys.prefix}/bin")),
    "timing": ("metadata", lambda book: code(book, 1).metadata.update(execution={"a": "12:00"})),
    "kernel": ("metadata", lambda book: book.metadata.kernelspec.update(name="mine")),
    "empty": ("no_empty_cell", lambda book: book.cells[0].update(source=" \n")),
    "long cell": ("sizes", lambda book: code(book, 1).update(source="1\n" * 26)),
    "long cells": ("sizes", lambda book: [c.update(source="1\n" * 6) for c in book.cells]),
    "many cells": ("sizes", lambda book: book.cells.extend(map(new_markdown_cell, 60 * "m"))),
    "large file": ("sizes", append(1, text="x" * 1_000_000)),
    "no set-up": ("opening", lambda book: code(book, 0).update(source="import os")),
    "bullets": ("opening", add("- one\n" * 7)),
    "no section": ("sections", lambda book: book.cells.pop()),
    "early appendix": ("sections", lambda book: book.cells.insert(1, new_markdown_cell(APPENDIX))),
    "open appendix": ("sections", lambda book: book.cells[-1].update(
        source=f"{book.cells[-1].source}\n\n{APPENDIX}")),
    "other digit": ("summary", conclude("1 and 4", "1 and 5")),
    "unprinted number": ("summary", lambda book: code(book, 6).outputs.pop(0)),
    "dead link": ("links", add("[there](07_nowhere.ipynb)")),
    "dead anchor": ("links", add("[there](#Nowhere)")),
    "no alt text": ("links", add("![](../README.md)")),
    "no alt in HTML": ("links", add('<img src="../README.md">')),
    "SVG": ("pictures", append(1, "display_data", data={"image/svg+xml": "<svg/>"})),
    "HTML": ("pictures", append(1, "display_data", data={"text/html": "<svg/>"})),
    "mute chart": ("pictures", lambda book: code(book, 6).outputs.pop(0)),
    "stale cover": ("pictures", lambda book: code(book, 6).metadata.update(tags=["cover"])),
    "easy stub": ("exercises", replace_output(2, "not yet", "yes")),
    "hard solution": ("exercises", replace_output(3, "yes", "not yet")),
    "open solution": ("exercises", open_headings),
    "other check": ("exercises", lambda book: code(book, 3).update(source="print('yes')")),
    "no solution": ("exercises", lambda book: book.cells.remove(code(book, 3))),
}


@pytest.mark.parametrize("rule, change", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_notebook_breaks_its_rule(folder, rule, change):
    spoil(folder, change)
    assert found(folder, rule) != []  # and before it nothing was found, as the first test sees


@pytest.mark.parametrize("claim, printed, holds", [
    ("a loss of 0.19", "loss 0.1872", True),
    ("a loss of 0.18", "loss 0.1872", False),
    ("26.6 MB", "26,560,000 bytes, 26.56 MB", True),
    ("26.6 MB", "26.56 ms", False),
    ("2,640,960 bytes", "2640960", True),
    ("below 1e-5", "below 1e-05: True", True),
    ("ResNet-50", "nothing", True),
    ("1.7 times as fast", "all: 1.71 times as fast as one (1.62 to 1.76, 10 pairs)", False),
    ("4 heights of 14", "in all 4", False),  # by two cells
])  # fmt: skip
def test_a_summary_quotes_what_a_cell_prints_and_no_time(folder, claim, printed, holds):
    def change(notebook):
        conclude("had heights of 1 and 4", claim)(notebook)
        replace_output(6, "heights [1, 4]", printed)(notebook)

    spoil(folder, change)
    assert (found(folder, "summary") == []) == holds


def test_every_rule_is_seen_to_bite():
    assert {rule for rule, _ in SPOILT.values()} | {"agrees", "title"} == set(RULES)
